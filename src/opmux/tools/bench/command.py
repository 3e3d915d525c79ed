"""`opmux bench`: makes the plan, measures the cases, prints a line per case and a summary, and writes JSON and HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ...core.default import get_default_manager
from ...core.errors import UnknownName
from ...core.tensors import dtype_name
from .. import arguments, cpp, screen
from . import page, report
from .cases import PRESETS, BenchCase, plan, sizes
from .engine import Bench, BenchRow
from .measure import Limits
from .providers import BenchProvider, ProviderChoice
from .record import BenchRecord, facts, limits_data

# The size of the copy that measures the memory bandwidth, which must be too large for any cache.
COPY_MIB = {"cpu": 64}
COPY_MIB_OF_CHIPS = 512


@dataclass(frozen=True)
class BenchOptions:
    """The options of `opmux bench`."""

    ops: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    providers: str | None = None
    preset: str | None = None
    device: str | None = None
    json: str | None = None
    html: Path | None = None
    mib: int = 256
    dynamic: bool = False
    listing: bool = False
    source: Path | None = None  # print and draw this earlier run instead of measuring


def run(options: BenchOptions) -> int:
    screen.show_log()
    for option, path in (("--json", options.json), ("--html", options.html)):
        if path is not None and str(path) != "-" and Path(path).is_dir():  # check now, not after hours of measuring
            raise arguments.BadOption(f"{option} '{path}' is a folder. Name a file")
    if options.source is not None:
        record = BenchRecord.load(options.source)
        console = screen.beside(options.json)
        _show_again(record, console)
    else:
        at = arguments.device(options.device)
        shapes = [arguments.shape(s) for s in arguments.parts(options.shapes)]
        dtypes = [arguments.dtype(d) for d in arguments.parts(options.dtypes)]
        request = (options.ops, options.preset, shapes, dtypes, options.mib, at.type)
        try:
            todo = plan(*request)
        except UnknownName:
            get_default_manager().registry.list_operators()  # loads plugins, as one of them may define the op
            todo = plan(*request)
        if not todo.cases:
            raise arguments.BadOption(f"there is nothing to measure: {'; '.join(todo.notes)}")
        choice = ProviderChoice.of(options.providers or todo.preset.providers, at.type, todo.ops, options.dynamic)
        notes = todo.notes + choice.notes()
        if options.listing:
            _list(todo.cases, choice, notes)
            return 0
        cpp.before_measuring(at.type)
        record = BenchRecord(facts(at, todo.preset.name or None, options.mib, options.dynamic), {}, notes=notes)
        _measure(record, Bench(at, Limits(at), choice), todo.cases, options)
    screen.keep(record, options.json, options.html, page.page)
    return 1 if record.ours_is_broken() else 0


# ---- measuring ------------------------------------------------------------------------------------------------------


def _measure(record: BenchRecord, bench: Bench, cases: list[BenchCase], options: BenchOptions) -> None:
    """Measure the cases into `record`, and print a line for each case when it is done."""
    console = screen.beside(options.json)
    console.file = console.file  # assign the current stream, because the progress bar replaces sys.stdout
    columns = {p.name: None for c in {c.spec.key: c for c in cases}.values() for p in bench.choice.of_op(c.spec)}
    with screen.progress("now") as bar:
        task = bar.add_task("measuring", total=len(cases), now="limits")
        bench.limits.measure_copy(COPY_MIB.get(bench.device.type, COPY_MIB_OF_CHIPS))
        record.limits = limits_data(bench.limits)
        to = bar.console if console.is_terminal and bar.console.is_terminal else console
        to.print(report.head(record), soft_wrap=True)
        lines = report.Lines(to, (c.name for c in cases), (sizes(c.shape) for c in cases), list(columns))
        lines.head()

        def started(case: BenchCase, provider: BenchProvider) -> None:
            bar.update(task, now=f"{case} by {provider.name}")

        for rows in bench.rows(cases, started):
            record.rows += rows
            record.limits = limits_data(bench.limits)
            lines.add(rows)
            if options.json not in (None, "-"):
                screen.write(Path(options.json), record.text() + "\n")  # keeps the results of an interrupted run
            bar.update(task, advance=1)
        bar.update(task, now="done")
    console.print(report.summary(record))


def _show_again(record: BenchRecord, console: Console) -> None:
    console.print(report.head(record), soft_wrap=True)
    cases: list[list[BenchRow]] = record.cases()
    ops, shapes = (r.op for r in record.rows), (sizes(r.shape) for r in record.rows)
    lines = report.Lines(console, ops, shapes, record.providers())
    lines.head()
    for rows in cases:
        lines.add(rows)
    console.print(report.summary(record))


def _list(cases: list[BenchCase], choice: ProviderChoice, notes: list[str]) -> None:
    """Print what would be measured, and with which providers."""
    table = screen.table("op", "family", "shapes", "dtypes", "providers")
    by_op: dict[str, list[BenchCase]] = {}
    for case in cases:
        by_op.setdefault(case.name, []).append(case)
    for name, op_cases in by_op.items():
        shapes = ", ".join(dict.fromkeys(sizes(c.shape) for c in op_cases))
        dtypes = ", ".join(dict.fromkeys(dtype_name(c.dtype) for c in op_cases))
        names = ", ".join(p.name for p in choice.of_op(op_cases[0].spec))
        table.add_row(Text(name), op_cases[0].spec.family, shapes, dtypes, Text(names))
    console = screen.out()
    console.print(table)
    for note in notes:
        console.print(Text(f"note: {note}", "dim"))
    console.print(f"{len(cases)} cases; presets:")
    console.print(screen.pairs((name, preset.doc) for name, preset in PRESETS.items()))
