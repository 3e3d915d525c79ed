"""Prints a run: a table per family, where ops run, and the failures, each with a command that reproduces it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from .. import screen
from .gaps import Gap
from .plan import ConformPlan
from .record import (
    CHECKS,
    CPU,
    DISPATCH,
    EXPECTED,
    FAIL,
    NATIVE,
    NOWHERE,
    OWN,
    PASS,
    PLUGIN,
    REFUSED,
    TRITON,
    UNEXPECTED,
    WHERE,
    CheckResult,
    ConformRecord,
    Covered,
    ImplRefusal,
)
from .rows import VendorRow
from .target import DEVICE, SIMULATED

MARKS = {
    PASS: ("ok", "green"),
    REFUSED: ("refused", "dim"),
    FAIL: ("FAIL", "bold red"),
    EXPECTED: ("known", "yellow"),
    UNEXPECTED: ("passes", "bold yellow"),
}
PLACES = {OWN: "chip's own", TRITON: "triton", PLUGIN: "plugin", NATIVE: "torch's own", CPU: "CPU", NOWHERE: "nowhere"}
PLACE_STYLES = {OWN: "magenta", CPU: "yellow"}
NANS = "are NaN"  # part of the message about results that are NaN although the expected ones are not
SHOWN = 12  # at most this many entries of a list are printed


def report(record: ConformRecord, known: list[Gap]) -> Group:
    parts: list[Any] = []
    families: dict[str, list[CheckResult]] = {}
    for result in record.results:
        families.setdefault(result.family, []).append(result)
    parts += [table for family, results in families.items() if (table := _family(family, results)) is not None]
    parts += _coverage(record)
    parts += _refusals(record)
    parts += [Text(f"note: {note}", "dim") for note in record.notes]
    parts += [Text(str(entry), "yellow") for entry in record.unchecked]
    parts += _gaps(record)
    parts += _failures(record)
    parts.append(Text(f"{record.headline()} ({record.seconds:.0f} s)", "bold red" if record.failures else "bold green"))
    parts += [Text(line, "yellow") for line in without_a_kernel(record)]
    if record.facts["depth"] == "quick" and not record.failures:
        parts.append(Text("the quick run tries one sample of what is not the vendor's own; --full tries all", "dim"))
    return Group(*parts)


# ---- a family -------------------------------------------------------------------------------------------------------


def _family(family: str, results: list[CheckResult]) -> Any:
    """A family's table: a line for each vendor's impl and each impl with a problem, one line for all others.

    Each check has a column. On a screen that is too narrow for that, one column has the results of all checks.
    """
    rows: dict[tuple[str, str], list[CheckResult]] = {}
    for result in results:
        rows.setdefault((result.op, result.impl), []).append(result)
    checks = [c for c in CHECKS if any(r.check == c for r in results)]
    table = screen.table("op", "impl", *checks, title=family)
    narrow = screen.table("op", "impl", "checks", title=family)

    def add(op: Text, who: Text, cells: list[Text]) -> None:
        table.add_row(op, who, *cells)
        words = [Text.assemble(f"{check} ", cell) for check, cell in zip(checks, cells) if cell.plain]
        narrow.add_row(op, who, Text("; ").join(words))

    plain: list[list[CheckResult]] = []
    for (op, impl), results_of_impl in rows.items():
        if not results_of_impl[0].own and all(r.status == PASS for r in results_of_impl):
            plain.append(results_of_impl)
            continue
        by_check = {r.check: r for r in results_of_impl}
        who = Text(impl, "magenta" if results_of_impl[0].own else "")
        add(Text(op), who, [_cell(by_check.get(c)) for c in checks])
    if plain:
        counted = Counter(r.check for results_of_impl in plain for r in results_of_impl)
        served = Counter(r.ran[0] for results_of_impl in plain for r in results_of_impl if r.ran)
        who = ", ".join(f"{i} {n}" for i, n in served.most_common()) or DISPATCH
        count = len({f[0].op for f in plain})
        others = f"{count} {'other' if table.row_count else 'op'}{'' if count == 1 else 's'}"
        add(Text(others, "dim"), Text(who, "dim"), [_many(counted[c]) for c in checks])
    return screen.Narrow(table, narrow)


def _cell(result: CheckResult | None) -> Text:
    if result is None:
        return Text("")
    label, style = MARKS[result.status]
    if result.status == FAIL and result.tried > 1:
        label += f" {result.failed}/{result.tried}"
    elif result.status == PASS and result.tried > 1:
        label += f" {result.tried}"
    refused = sum(r.samples for r in result.refusals if r.impl == result.impl)
    if refused and result.status != REFUSED:
        label += f", {refused} refused"
    return Text(label, style)


def _many(count: int) -> Text:
    return Text(f"ok {count}", "green") if count else Text("")


# ---- where ops run --------------------------------------------------------------------------------------------------


def _coverage(record: ConformRecord) -> list[Any]:
    if not record.coverage:
        return []
    groups: dict[str, list[Covered]] = {}
    for row in record.coverage:
        groups.setdefault(f"aten: {row.family}" if _is_overload(row) else row.family, []).append(row)
    places = [w for w in WHERE if any(r.where == w for r in record.coverage) or w in record.rest_of_aten]
    right = {"justify": "right"}
    table = screen.table("where ops run", *((PLACES[p], right) for p in places))
    for name, rows in sorted(groups.items(), key=lambda item: (item[0].startswith("aten"), item[0])):
        table.add_row(name, *_figures(record.covered(rows), places))
    table.add_section()
    table.add_row(Text("together", "bold"), *_figures(record.covered(), places))
    if record.rest_of_aten:
        table.add_row(Text("the rest of ATen", "dim"), *_figures(record.rest_of_aten, places))
    on_cpu = [r.op for r in record.coverage if r.where == CPU]
    lines = [Text(f"on the CPU: {screen.some(on_cpu)}", "yellow")] if on_cpu else []
    reasons: dict[str, list[str]] = {}
    for row in record.coverage:
        if row.why is not None and row.where in (NATIVE, CPU, NOWHERE):
            reasons.setdefault(row.why, []).append(row.op)
    return [table, *lines, *(Text(f"left to torch: {screen.some(ops)} ({why})", "dim") for why, ops in reasons.items())]


def _is_overload(row: Covered) -> bool:
    return row.impl == "native" or "." in row.op or row.space == "aten"


def _figures(counts: Mapping[str, int], places: Iterable[str]) -> list[Text]:
    return [Text(str(counts.get(p) or ""), PLACE_STYLES.get(p, "")) for p in places]


# ---- refusals and failures ------------------------------------------------------------------------------------------


def _refusals(record: ConformRecord) -> list[Any]:
    """Samples that the vendor's impls refuse, and samples for which dispatch found no impl."""
    refusals: dict[tuple[str, str, str], list[ImplRefusal]] = {}
    for result in record.results:
        if result.check == "values" and (result.own or result.status == REFUSED):
            for refusal in result.refusals:
                refusals.setdefault((result.op, refusal.impl, refusal.stage), []).append(refusal)
    table = screen.table("op", "impl", ("samples", {"justify": "right"}), "dtypes", "why", title="refused")
    for (op, impl, stage), some in list(refusals.items())[:SHOWN]:
        dtypes = ", ".join(dict.fromkeys(d for refusal in some for d in refusal.dtypes))
        more = f" (and {len(some) - 1} more reasons)" if len(some) > 1 else ""
        why = Text(f"{stage}: {some[0].reason}{more}")
        table.add_row(Text(op), Text(impl), str(sum(refusal.samples for refusal in some)), dtypes, why)
    hidden = len(refusals) - table.row_count
    more_line = [Text(f"{hidden} more impls refuse some of their samples: --json and --html have them all", "dim")]
    return [table, *(more_line if hidden else [])] if refusals else []


def _gaps(record: ConformRecord) -> list[Any]:
    results = record.of(EXPECTED, UNEXPECTED)
    if not results:
        return []
    table = screen.table("op", "impl", "check", "", "why", title="known gaps")
    for result in results:
        label, style = MARKS[result.status]
        why = f"{result.gap}" + (f" ({result.reason})" if result.reason else "")
        table.add_row(Text(result.op), Text(result.impl), result.check, Text(label, style), Text(why))
    passing = len(record.of(UNEXPECTED))
    note = f"{passing} checks pass that xfail.toml expects to fail: remove these rows"
    return [table, *([Text(note, "yellow")] if passing else [])]


def failures(record: ConformRecord) -> list[tuple[CheckResult, bool]]:
    """The failures of a run. Each comes with True if its sample also fails through dispatch, as users call the op.

    That failure through dispatch is left out of the list, because it has the same sample and the same reason.
    """
    case = lambda r: (r.key, r.check, r.sample, r.dtype)
    own = {case(r) for r in record.failures if r.own and r.impl != DISPATCH}
    through = {case(r) for r in record.failures if r.impl == DISPATCH}
    distinct = [r for r in record.failures if r.impl != DISPATCH or case(r) not in own]
    return [(r, r.impl != DISPATCH and case(r) in own & through) for r in distinct]


def _failures(record: ConformRecord) -> list[Any]:
    lines: list[Any] = []
    for result, too in failures(record):
        where = " ".join(filter(None, (result.dtype, f"[{result.sample}]" if result.sample else None)))
        where += f", the first of {result.failed} failures in {result.tried} samples" if result.failed > 1 else ""
        who = f" by {result.impl}{' and so by dispatch' if too else ''}: {result.check} "
        lines.append(Text.assemble(("FAIL ", "bold red"), (result.op, "bold"), who, (where, "dim")))
        lines += [Text(f"     {result.reason}"), Text(f"     {result.reproduce}", "cyan")]
    if any(NANS in (result.reason or "") for result, _ in failures(record)):
        lines += [Text(), Text(of_nan(filled=record.facts.get("how") == SIMULATED), "yellow")]
    return [Text(), *lines, Text()] if lines else []


def without_a_kernel(record: ConformRecord) -> list[str]:
    """What a run could not check because the machine has no kernel of an op, and how to check it."""
    names = record.without_a_kernel()
    lines = []
    if names:
        lines.append(
            f"no kernel of {screen.some(names)} was checked: only the reference ran, and was compared with itself"
        )
    if record.facts.get("how") == DEVICE and record.facts.get("device") == "cpu":
        ops = " ".join(f"--op {shlex.quote(word)}" for word in record.facts["ops"])
        command = f"opmux conform --vendor nvidia --device cpu {ops}".rstrip()
        lines.append(
            "this run used the CPU, so no Triton kernel was checked. Run it on a machine with a GPU; or, with triton "
            f"installed, in the interpreter: {command}"
        )
    return lines


def of_nan(filled: bool) -> str:
    """Explains a NaN in a result. `filled`: in this run, results were filled with NaN before the kernel ran."""
    if filled:
        return (
            "NaN: results are filled with NaN before a kernel runs. So the kernel has not written this element, or has "
            "computed it from an element that was not written, or the formula itself gives NaN"
        )
    return (
        "NaN: the kernel has computed it. This run does not fill results with NaN before a kernel runs, so an element "
        "that is never written may have any value; `opmux conform --real` and simulated devices do fill them"
    )


# ---- --list ---------------------------------------------------------------------------------------------------------


def listing(plan: ConformPlan, overloads: Mapping[str, Any], rows: Iterable[VendorRow]) -> None:
    """Print what would be checked."""
    table = screen.table("op", "family", "impl", "checks")
    for subject in plan.subjects:
        who = Text(subject.id, "magenta" if subject.own else "")
        table.add_row(Text(subject.name), subject.spec.family, who, ", ".join(plan.checks(subject)))
    for row in rows:
        checks = [c for c in ("values", "mutation") if c in plan.depth.checks]
        table.add_row(Text(row.name), row.overload.family, Text(row.impl.impl_id, "magenta"), ", ".join(checks))
    console = screen.out()
    console.print(Text(str(plan.target), "bold"), soft_wrap=True)
    console.print(table)
    if plan.bare:
        console.print(Text(f"no samples to check with: {', '.join(plan.bare)}", "dim"))
    console.print(f"{len(plan.specs)} ops, {len(plan.subjects)} impls of them, {len(overloads)} overloads of ATen")
