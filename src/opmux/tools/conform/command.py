"""`opmux conform`: finds the vendor and a device on which its impls can run, checks the impls, and prints a report."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ...core import knobs, log
from ...core.default import get_default_manager
from ...core.machine import arch_of
from ...core.tensors import dtype_name
from ...faces.aten.switch import disable, use
from .. import arguments, cpp, screen
from ..runner.pool import Lost, Workers, cores
from ..runner.record import chip, made_with
from ..simulator.launch import VARIABLE
from . import coverage, gaps, opinfo, page, report, rows
from .plan import ConformPlan, Depth, check_names
from .record import DISPATCH, FAIL, CheckResult, ConformRecord, Covered, Unchecked
from .rows import VendorRow
from .scope import OpScope
from .subject import extras_of
from .target import ConformTarget, NeedsFreshProcess, find, ready

PACKAGE = "(package)"  # stands for the op in results about a vendor's files


@dataclass(frozen=True)
class ConformOptions:
    """The options of `opmux conform`."""

    vendor: str | None = None
    ops: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    device: str | None = None
    json: str | None = None
    html: Path | None = None
    full: bool = False
    listing: bool = False
    checks: list[str] = field(default_factory=list)
    sample: str | None = None
    real: bool = False
    models: list[str] = field(default_factory=list)
    seconds: float | None = None
    jobs: int | None = None

    def as_arguments(self) -> list[str]:
        """These options as arguments for a command line."""
        words = ["--vendor", self.vendor] if self.vendor else []
        for option, values in (("--op", self.ops), ("--dtype", self.dtypes), ("--check", self.checks)):
            words += [w for value in values for w in (option, value)]
        for option, value in (("--device", self.device), ("--sample", self.sample), ("--json", self.json)):
            words += [option, value] if value is not None else []
        words += ["--html", str(self.html)] if self.html is not None else []
        return [*words, *(["--full"] if self.full else []), *(["--list"] if self.listing else [])]


def run(options: ConformOptions) -> int:
    if options.real:
        from . import real_command

        return real_command.run(options)
    if options.models or options.seconds is not None or options.jobs is not None:
        raise arguments.BadOption("--model, --seconds and --jobs go with --real")
    dtypes = tuple(arguments.dtype(d) for d in arguments.parts(options.dtypes))
    depth = Depth(options.full, dtypes, check_names(options.checks), options.sample)
    with WarningCollector() as collector:
        target = find(options.vendor, options.device)
        try:
            with ready(target) as target:
                return _run(replace(options, vendor=target.package.name), target, depth, collector)
        except NeedsFreshProcess:
            pass
    return _rerun_interpreted(options)


def _rerun_interpreted(options: ConformOptions) -> int:
    """Run the same command in a new process that interprets Triton kernels from the start."""
    if os.environ.get(VARIABLE) == "1":  # this already is the new process
        raise arguments.BadOption(f"triton compiles its kernels although {VARIABLE}=1, and none can be interpreted")
    env = {**os.environ, VARIABLE: "1"}
    return subprocess.run(
        [sys.executable, "-m", "opmux", "conform", *options.as_arguments()], env=env, check=False
    ).returncode


def _run(options: ConformOptions, target: ConformTarget, depth: Depth, collector: WarningCollector) -> int:
    start = time.perf_counter()
    get_default_manager().registry.list_operators()  # loads families, kernels, plugins, vendors
    cpp.before_measuring(target.device.type)
    vendor_rows, untried = rows.served(target)  # before OpScope.of, which needs the overloads that `served` declares
    scope = OpScope.of(options.ops)
    plan = ConformPlan.of(scope.specs, target, depth)
    known = gaps.read(target.package.folder)
    if options.listing:
        report.listing(plan, scope.overloads, [r for r in vendor_rows if scope.includes(r.name)])
        return 0
    record = ConformRecord(_facts(options, target), notes=[*gaps.unknown_ops(known)])
    if plan.bare:
        record.notes.append(f"no samples to check with: {', '.join(plan.bare)}")
    record.unchecked += plan.unchecked
    record.unchecked += [entry for entry in untried if scope.includes(entry.op)]
    for name in () if scope.words else extras_of(target):
        record.unchecked.append(Unchecked(name, target.package.name, "it is no op of opmux, so there is no reference"))
    record.results += collector.loading(target, depth)
    record.unchecked += _untried_tunables(target) if "load" in depth.checks else []
    try:
        _check(record, plan, scope, [r for r in vendor_rows if scope.includes(r.name)], screen.beside(options.json))
    finally:
        disable()
    for result in record.failures:
        result.reproduce = _reproduce(options, target, result)
    gaps.apply(known, record.results)
    record.seconds = round(time.perf_counter() - start, 2)
    screen.beside(options.json).print(report.report(record, known))
    screen.keep(record, options.json, options.html, page.page)
    return 1 if record.failures else 0


def _untried_tunables(target: ConformTarget) -> list[Unchecked]:
    """The tunables in the vendor's files whose tiles cannot be checked without running their kernel."""
    if importlib.util.find_spec("triton") is None:
        return []
    from .. import tile_checks

    why = f"its tiles depend on something else than {', '.join(tile_checks.FACTS)}"
    return [Unchecked(name, target.package.name, why) for name in tile_checks.untried(target.package)]


def _check(
    record: ConformRecord, plan: ConformPlan, scope: OpScope, vendor_rows: list[VendorRow], console: Console
) -> None:
    """Run all checks and add their results to the record."""
    target = plan.target
    console.print(Text(str(target), "bold"), soft_wrap=True)
    if not scope.words and plan.subjects:
        console.print(Text(announcement(plan), "dim"), soft_wrap=True)
    names = [f"{s.name} by {s.id}" for s in plan.subjects]
    _warm(plan)
    covered: dict[str, Covered] = {}
    for at, done in _run_tasks("checking", [partial(plan.run, s) for s in plan.subjects], names, target):
        results, where = (plan.lost(plan.subjects[at], done.why), None) if isinstance(done, Lost) else done
        record.results += results
        untried = plan.untried(plan.subjects[at], results)
        record.unchecked += [] if untried is None else [untried]
        covered |= {where.key: where} if where is not None else {}
    if vendor_rows and {"values", "mutation"} & set(plan.depth.checks):
        _check_rows(record, plan, vendor_rows)
    if "opinfo" in plan.depth.checks and not target.direct:
        _check_aten(record, plan, scope)
    order = {s.spec.key: i for i, s in enumerate(plan.subjects, 1)}
    record.results.sort(key=lambda r: (0 if r.op == PACKAGE else order.get(r.key, len(order) + 1), r.impl == DISPATCH))
    with coverage.as_if_there(target):
        record.coverage = [covered.get(s.key) or coverage.predicted(s, target) for s in scope.specs]
        record.coverage += coverage.of_aten(target, scope.overloads.values())
    record.rest_of_aten = {} if scope.words or target.direct else coverage.rest_of_aten(target)


def announcement(plan: ConformPlan) -> str:
    """What a run over all ops will do, and how long that takes."""
    ops = screen.count(len({s.spec.key for s in plan.subjects}), "op")
    how_long = "can take hours" if plan.depth.full else "takes about a minute on two cores"
    if plan.target.interpreted and not plan.depth.full:
        how_long = "takes minutes, because kernels are interpreted"
    return f"checks {ops}; this {how_long}. --op rms_norm checks one op, --list prints what would be checked"


def _warm(plan: ConformPlan) -> None:
    """Import torch's tracer before the workers fork. In a worker, the import would take 3 s.

    Nothing may be computed here, because a forked worker hangs if it uses a thread pool of the parent.
    """
    if plan.target.interpreted and {"fake", "opcheck", "compile"} & set(plan.depth.checks):
        import torch._dynamo
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            torch.empty(2, 2).abs()


def _check_rows(record: ConformRecord, plan: ConformPlan, vendor_rows: list[VendorRow]) -> None:
    """Check each of the vendor's functions for overloads of ATen by calling it directly."""
    absent = opinfo.absent()
    if absent is not None:
        record.unchecked += [Unchecked(r.name, r.impl.impl_id, absent) for r in vendor_rows]
        return
    tasks, names = [partial(r.run, plan.depth) for r in vendor_rows], [r.name for r in vendor_rows]
    for at, done in _run_tasks("the vendor's rows", tasks, names, plan.target):
        results, unchecked = (vendor_rows[at].lost(done.why), None) if isinstance(done, Lost) else done
        record.results += results
        record.unchecked += [] if unchecked is None else [unchecked]


def _check_aten(record: ConformRecord, plan: ConformPlan, scope: OpScope) -> None:
    absent = opinfo.absent()
    if absent is not None:
        record.notes.append(absent)
        return
    chosen = [o for n, o in opinfo.overloads(plan.target).items() if n in scope.overloads]
    infos = opinfo.infos(chosen, plan.target)
    with use(mode="all"):  # install the overrides once, before the workers fork
        pass
    names = [f"aten::{i.packet}" for i in infos]
    for at, done in _run_tasks("under ATen", [partial(i.run, plan.depth) for i in infos], names, plan.target):
        result = infos[at].lost(done.why) if isinstance(done, Lost) else done
        record.results += [result] if result is not None else []


def _run_tasks(title: str, tasks: list[Any], names: list[str], target: ConformTarget) -> Iterator[tuple[int, Any]]:
    """Run the tasks, and yield their outcomes, with a progress bar."""
    # Fork the workers before the progress bar starts its thread: workers must not inherit a thread.
    workers = Workers(tasks, cores() if target.interpreted else 1)
    with screen.progress("now") as bar:
        task = bar.add_task(title, total=len(tasks), now="")
        for at, done in workers.results(lambda at: bar.update(task, now=names[at])):
            bar.update(task, advance=1)
            yield at, done
        bar.update(task, now="done")


# ---- options --------------------------------------------------------------------------------------------------------


def _reproduce(options: ConformOptions, target: ConformTarget, result: CheckResult) -> str:
    """A command line that reproduces only this failure."""
    env = [f"{k.name}={shlex.quote(os.environ[k.name])}" for k in (knobs.PLUGIN_MODULES,) if k.name in os.environ]
    narrowed = ConformOptions(
        vendor=target.package.name,
        ops=[] if result.op == PACKAGE else [result.key],
        dtypes=[result.dtype] if result.dtype else [],
        device=options.device,
        checks=[result.check],
        sample=result.sample if result.sample and result.check != "errors" else None,
    )
    return " ".join([*env, shlex.join(["opmux", "conform", *narrowed.as_arguments()])])


def _facts(options: ConformOptions, target: ConformTarget) -> dict:
    info, direct = target.package.info, target.direct
    return {
        "vendor": info.vendor_name,
        "device": str(target.device),
        "how": target.how,
        "where": str(target),
        "chip": chip(target.device),
        "arch": None if direct else arch_of(target.device.type),
        "verified": info.statement,
        "folder": None if target.package.folder is None else str(target.package.folder),
        "depth": "full" if options.full else "quick",
        "dtypes": [dtype_name(arguments.dtype(d)) for d in arguments.parts(options.dtypes)],
        "ops": options.ops,
        **made_with(),
    }


# ---- warnings while a package is loaded -----------------------------------------------------------------------------


class WarningCollector(logging.Handler):
    """Collects opmux's warnings, because they report skipped parts of a vendor's package."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[record.getMessage().splitlines()[0]] = None

    def __enter__(self) -> WarningCollector:
        self._level = log.logger.level
        log.show("CRITICAL")  # log lines would break the progress bar; the report shows them
        log.from_knobs()
        shown = log.logger.level
        log.logger.setLevel(min(shown, logging.WARNING))
        self._handlers = [(handler, handler.level) for handler in log.logger.handlers]
        for handler, level in self._handlers:
            handler.setLevel(max(level, shown))
        log.logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        log.logger.removeHandler(self)
        for handler, level in self._handlers:
            handler.setLevel(level)
        log.logger.setLevel(self._level)

    def loading(self, target: ConformTarget, depth: Depth) -> Iterator[CheckResult]:
        """The result of the check `load`, which fails if a part of the vendor's package was skipped."""
        if "load" not in depth.checks or not target.package.module:
            return
        marks = (target.package.module, str(target.package.folder), f"{target.package.name}'s ")
        problems = [line for line in self.lines if any(m in line for m in marks)]
        if importlib.util.find_spec("triton") is not None:
            from .. import tile_checks

            problems += tile_checks.faults(target.package)
        name = target.package.module
        result = CheckResult(PACKAGE, name, PACKAGE, name, True, "load", tried=1, failed=min(len(problems), 1))
        if problems:
            result.status, result.reason = FAIL, "; ".join(problems)
        yield result
