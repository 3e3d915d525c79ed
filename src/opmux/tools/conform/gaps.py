"""Known gaps: the vendor's `xfail.toml`, beside its `__init__.py`.

    [gelu_tanh_mul.values]
    reason = "rounds twice before driver 2.1"

    ["cum*".gradient]
    impl = "default.flagos.acme"
    reason = "no double precision on the chip"

The header of a row (a TOML table) names an op and a check. The op is a name, a key such as `"aten::add"` or a glob, in
quotes where TOML requires them. The check may be `"*"` for all checks. `reason` is required; `impl` limits the row to
one impl. Failures that a row covers are expected. If a row covers only passed checks, the report lists these checks, so
that the row can be removed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ...core.errors import OpmuxError, nearest, suggestion
from ...core.spec import specs
from .record import CHECKS, EXPECTED, FAIL, PASS, UNEXPECTED, CheckResult

FILE = "xfail.toml"
FIELDS = ("reason", "impl")


class BadGaps(OpmuxError, ValueError):
    """An `xfail.toml` that cannot be read or is invalid; the message names the file and the row."""


@dataclass(frozen=True)
class Gap:
    op: str
    check: str
    reason: str
    impl: str | None = None

    def covers(self, result: CheckResult) -> bool:
        names = (result.op, result.key, result.key.rpartition("::")[2])
        if not any(fnmatchcase(n.casefold(), self.op.casefold()) for n in names):
            return False
        return self.check in ("*", result.check) and self.impl in (None, result.impl)


def read(folder: Path | None) -> list[Gap]:
    """The rows of a vendor's file; empty if there is no file."""
    file = None if folder is None else folder / FILE
    if file is None or not file.is_file():
        return []
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadGaps(f"{file} is not valid TOML: {error}") from None
    gaps = []
    for op, checks in tables.items():
        if not isinstance(checks, dict) or not all(isinstance(row, dict) for row in checks.values()):
            raise BadGaps(f'{file}: [{op}]: a row is [op.check] with reason = "..."')
        gaps += [_gap(file, op, check, row) for check, row in checks.items()]
    return gaps


def _gap(file: Path, op: str, check: str, row: dict[str, Any]) -> Gap:
    where = f"{file}: [{op}.{check}]"
    if check not in (*CHECKS, "*"):
        close = nearest(check, CHECKS)
        hint = f"did you mean '{close}'?" if close else f"Allowed: {', '.join(CHECKS)}, *"
        raise BadGaps(f"{where}: there is no check '{check}'. {hint}")
    strange = [k for k in row if k not in FIELDS]
    if strange:
        raise BadGaps(f"{where}: unknown field {', '.join(strange)}. Allowed: {', '.join(FIELDS)}")
    if not isinstance(row.get("reason"), str) or not row["reason"].strip():
        raise BadGaps(f'{where}: a reason is required, such as reason = "rounds twice before driver 2.1"')
    if not isinstance(row.get("impl", ""), str):
        raise BadGaps(f"{where}: impl = {row['impl']!r}. Allowed: the id of an impl")
    return Gap(op, check, row["reason"].strip(), row.get("impl"))


def unknown_ops(gaps: Iterable[Gap]) -> list[str]:
    """A note for each row whose op does not exist. No error: several versions of opmux may read the same file."""
    names = {n.casefold(): n for s in specs for n in (s.name, s.key)}
    names |= {n.casefold(): n for k in specs.derived for n in (k, k.removeprefix("aten::"))}
    notes = []
    for gap in gaps:
        if not any(fnmatchcase(n, gap.op.casefold()) for n in names) and gap.op != "(package)":
            notes.append(f"{FILE}: [{gap.op}.{gap.check}]: no such op{suggestion(gap.op, names.values())}")
    return notes


def apply(gaps: Iterable[Gap], results: Iterable[CheckResult]) -> None:
    """Mark failures that a row covers as expected; if a row covers only passes, mark the passes as unexpected."""
    by_gap: dict[int, list[CheckResult]] = {}
    gaps = list(gaps)
    for result in results:
        at = next((i for i, gap in enumerate(gaps) if gap.covers(result)), None)
        if at is not None and result.status in (FAIL, PASS):
            by_gap.setdefault(at, []).append(result)
    for at, covered in by_gap.items():
        failed = [r for r in covered if r.status == FAIL]
        for result in failed or covered:
            result.gap, result.status = gaps[at].reason, EXPECTED if failed else UNEXPECTED
