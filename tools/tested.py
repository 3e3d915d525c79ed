"""Records the versions with which tests passed, and writes their table in `docs/installing.md`.

    make test && python tools/tested.py "make test"

adds a row to `tools/tested.json` for the versions of the running interpreter, or refreshes the date and the commit of
its row. Call it only after the tests have passed. It refuses to record uncommitted changes, because the row names the
commit that was tested; the environment variable COMMIT names it where there is no git.

A row of a stored result has the result's `file` too; `tests/tools/test_tested.py` compares their facts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tools" / "tested.json"
PAGE = ROOT / "docs" / "installing.md"
START, END = "<!-- made from tools/tested.json by `make docs` -->\n", "<!-- end -->\n"
PACKAGES = ("torch", "triton", "transformers")
KEY = ("python", *PACKAGES, "device", "what")  # a run with the same values refreshes the row

Row = dict[str, str]


def page() -> str:
    """`docs/installing.md` with the table of the recorded rows."""
    text = PAGE.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{PAGE} needs the lines {START.strip()!r} and {END.strip()!r}: the table goes between them")
    return f"{before}{START}{table(read(DATA))}{END}{after}"


def read(file: Path) -> list[Row]:
    return json.loads(file.read_text(encoding="utf-8"))


def table(rows: list[Row]) -> str:
    lines = ["", "| Python | torch | triton | transformers | on | what ran | date, commit |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        what = f"[{row['what']}](../{row['file']})" if "file" in row else row["what"]
        versions = [row[name] or "-" for name in ("python", *PACKAGES)]
        lines.append(f"| {' | '.join(versions)} | {row['device']} | {what} | {row['date']}, {row['commit']} |")
    return "\n".join([*lines, "", ""])


def added(rows: list[Row], row: Row) -> list[Row]:
    """The rows with this one, which replaces that of the same versions, device and tests. Newer versions come first."""
    others = [r for r in rows if any(r[name] != row[name] for name in KEY)]
    return sorted([*others, row], key=lambda r: [_numbers(r["torch"]), _numbers(r["python"]), r["what"]], reverse=True)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.partition("+")[0].split(".") if part.isdecimal()]


def row_of_this_interpreter(what: str) -> Row:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {platform.machine()}"
    row = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    row["torch"] = torch.__version__  # the metadata lack "+cu130" if the wheel is from PyPI
    return row | {"device": device, "what": what, "date": date.today().isoformat(), "commit": _commit()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """The tested commit. Ends the program if it is not known, or if files differ from it."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    recorded = [f":(exclude){file.relative_to(ROOT)}" for file in (DATA, PAGE)]
    changed = _git("status", "--porcelain", "--", ".", *recorded)
    commit = _git("rev-parse", "--short", "HEAD")
    if changed is None or commit is None:
        raise SystemExit(f"{ROOT} is no git checkout: set COMMIT to the commit that was tested")
    if changed:
        raise SystemExit(f"the tested files are in no commit: commit them, test again, then record.\n{changed}")
    return commit


def _git(*words: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="record that tests passed with the versions of this interpreter")
    parser.add_argument("what", help="the tests that passed, for example 'make test'")
    options = parser.parse_args(argv)
    row = row_of_this_interpreter(options.what)
    rows = ",\n".join(f"  {json.dumps(r)}" for r in added(read(DATA), row))
    DATA.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(f"recorded in {DATA.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}: {json.dumps(row)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
