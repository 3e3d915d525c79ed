"""`opmux conform --real`: selects the cases, runs them in several processes, and reports."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich.text import Text

from ...core.default import get_default_manager, policy
from ...core.errors import UnknownName
from ...core.machine import arch_of
from ...core.tensors import dtype_name
from ...faces.aten.switch import disable
from ...machine import devices
from .. import arguments, screen
from ..runner.check import has_broken_the_device
from ..runner.pool import Lost, Task, Workers
from ..runner.record import RunRecord, chip, made_with
from . import shapes
from .poison import launches_poisoned
from .real import DECLINED, FAIL, PASS, UNCHECKED, CaseSelection, Outcome, RealCase, cases, without_cases
from .report import NANS, of_nan
from .scope import OpScope

SECONDS = {"cpu": 60.0}
SECONDS_ELSEWHERE = 420.0
MOST_JOBS = 8
SHOWN = 40  # failures that are printed; the JSON file has all
MOST_KEPT = 4 << 30  # device memory (bytes) that a process may keep between cases


@dataclass
class RealRecord(RunRecord):
    outcomes: list[Outcome] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)  # op with a kernel of ours but without a case -> the reason
    left: int = 0  # number of cases that were not tried in time
    left_ops: list[str] = field(default_factory=list)  # ops without a case that was tried
    seconds: float = 0.0

    @property
    def failures(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == FAIL]


def run(options: Any) -> int:
    """Check what `options` (a `command.ConformOptions`) select, on one device. Returns 1 if a case fails, else 0."""
    device = _device(options.device)
    console = screen.beside(options.json)
    with settled():
        selection = _selection_of(options)
        chosen = cases(selection, device)
        if options.listing:
            for case in chosen:
                console.print(f"{case.op} {case.words} {case.dtype} ({', '.join(case.models)})", soft_wrap=True)
            return 0
        if not chosen:
            raise arguments.BadOption("--real: no kernel of ours on this device matches these options")
        record = RealRecord(_facts(device, options), without=without_cases(chosen, selection, device))
        _check(record, options, chosen, device)
    for line in _report(record, options):
        console.print(line, soft_wrap=True)
    screen.keep(record, options.json)
    return 1 if record.failures else 0


def _device(text: str | None) -> torch.device:
    if text is not None:
        return arguments.device(text)
    accelerators = [d for d in devices.accelerators() if d != "cpu"]
    return torch.device(accelerators[0], 0) if accelerators else torch.device("cpu")


@contextmanager
def settled() -> Iterator[None]:
    """Load all ops and vendors, keep one policy scope open, and restore ATen's own kernels at the end."""
    get_default_manager().registry.list_operators()  # loads families, kernels, plugins, vendors
    try:
        with policy(), launches_poisoned():
            yield
    finally:
        disable()


def _selection_of(options: Any) -> CaseSelection:
    scope = OpScope.of(options.ops)
    dtypes = tuple(arguments.dtype(d) for d in arguments.parts(options.dtypes))
    known = {m for c in shapes.read().calls for m in c.models} | {m for r in shapes.read().sized for m in r.models}
    for model in options.models:
        if not set(model) & set("*?[") and model not in known:
            raise UnknownName("model", model, known)
    primitives = [s for s in scope.specs if s.space in ("opmux", "aten") and s.samples is not None]
    return CaseSelection(primitives, scope.overloads, dtypes, tuple(options.models))


# ---- checking -------------------------------------------------------------------------------------------------------


def _check(record: RealRecord, options: Any, chosen: list[RealCase], device: torch.device) -> None:
    start = time.monotonic()
    limit = options.seconds if options.seconds is not None else SECONDS.get(device.type, SECONDS_ELSEWHERE)
    jobs = options.jobs or (1 if device.type == "cpu" else max(1, min(MOST_JOBS, (os.cpu_count() or 2) // 2)))
    done: set[int] = set()
    with screen.progress("now", "failed") as bar:
        task = bar.add_task("real shapes", total=len(chosen), now="", failed=0)
        for at, outcome in _workers(options, chosen, device, start + limit, jobs).results():
            done.add(at)
            record.outcomes.append(_lost(chosen[at], outcome.why) if isinstance(outcome, Lost) else outcome)
            bar.update(task, advance=1, now=chosen[at].op, failed=len(record.failures))
        bar.update(task, now="done")
    record.left = len(chosen) - len(done)
    record.left_ops = sorted({c.op for c in chosen} - {chosen[i].op for i in done})
    record.seconds = round(time.monotonic() - start, 2)


def _workers(options: Any, chosen: list[RealCase], device: torch.device, until: float, jobs: int) -> Workers:
    """Worker processes. All cases of an op run in one process, because compiling its kernels takes most of the time."""
    if jobs == 1:
        return Workers([partial(attempt, case, device) for case in chosen], 1, until)
    position = {op: i for i, op in enumerate(dict.fromkeys(c.op for c in chosen))}
    shares = [[i for i, c in enumerate(chosen) if position[c.op] % jobs == k] for k in range(jobs)]
    return Workers.fresh(partial(_tasks, options, device), shares, until, _ends)


@contextmanager
def _tasks(options: Any, device: torch.device) -> Iterator[Sequence[Task]]:
    """Build the same list of cases again, in a worker process."""
    torch.set_num_threads(1 if device.type != "cpu" else torch.get_num_threads())
    with settled():
        yield [partial(attempt, case, device) for case in cases(_selection_of(options), device)]


def _ends(outcome: Any) -> bool:
    reason = outcome.why if isinstance(outcome, Lost) else outcome.reason if outcome.status == FAIL else ""
    return has_broken_the_device(reason or "")


def _lost(case: RealCase, why: str) -> Outcome:
    return Outcome(case.op, case.words, dtype_name(case.dtype), list(case.models), FAIL, why)


def attempt(case: RealCase, device: torch.device) -> Outcome:
    outcome = case.run(device)
    get_default_manager().clear_quarantine()
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > MOST_KEPT:
        torch.cuda.empty_cache()  # other processes need the memory
    return outcome


# ---- out ------------------------------------------------------------------------------------------------------------


def _report(record: RealRecord, options: Any) -> Iterator[Any]:
    failures = record.failures
    if failures:
        table = screen.table("op", "dtype", "case", "models", "what is wrong")
        for o in failures[:SHOWN]:
            table.add_row(Text(o.op, "red"), o.dtype, o.case, ", ".join(o.models), o.reason or "")
        yield table
        if len(failures) > SHOWN:
            yield Text(f"and {len(failures) - SHOWN} more: --json FILE has all", "dim")
        if any(NANS in (o.reason or "") for o in failures):
            yield Text(of_nan(filled=True), "yellow")
        yield Text(f"to repeat the first: {_command_line(failures[0], options)}", "cyan")
    counts = Counter(o.status for o in record.outcomes)
    ops = {o.op for o in record.outcomes if o.status in (PASS, FAIL)}
    yield Text.assemble(
        (f"{counts[PASS]} right, ", "green"),
        (f"{counts[FAIL]} wrong", "bold red" if failures else "green"),
        f" of {len(ops)} ops in {record.seconds:.0f} s, on {record.facts['chip']}",
    )
    yield from _unchecked(record, ops)


def _unchecked(record: RealRecord, ops: set[str]) -> Iterator[Text]:
    """Report what was not checked."""
    for status, what in ((DECLINED, "left to torch by our kernels"), (UNCHECKED, "could not be tried")):
        outcomes = [o for o in record.outcomes if o.status == status]
        if outcomes:
            alone = sorted({o.op for o in outcomes} - ops)
            only = f"; ops without any other case: {screen.some(alone)}" if alone else ""
            yield Text(f"{len(outcomes)} cases {what} ({_common(outcomes)}){only}", "yellow")
    if record.left:
        left = screen.some(record.left_ops)
        never = f"; ops without any case: {left}" if left else "; each op has had a case"
        yield Text(f"{record.left} cases were not run in the time limit (--seconds){never}", "yellow")
    for why in dict.fromkeys(record.without.values()):
        yield Text(f"no case ({why}): {screen.some([o for o, w in record.without.items() if w == why])}", "yellow")


def _common(outcomes: list[Outcome]) -> str:
    reason, n = Counter(o.reason for o in outcomes).most_common(1)[0]
    return f"{n} times: {reason}"


def _command_line(o: Outcome, options: Any) -> str:
    command = ["opmux", "conform", "--real", "--op", o.op, "--dtype", o.dtype]
    command += [w for m in o.models[:1] if m not in ("random", "samples") for w in ("--model", m)]
    return shlex.join(command + (["--device", options.device] if options.device else []))


def _facts(device: torch.device, options: Any) -> dict[str, Any]:
    return {
        "device": str(device),
        "chip": chip(device),
        "arch": None if device.type == "cpu" else arch_of(device.type),
        "ops": options.ops,
        "dtypes": options.dtypes,
        "models": options.models,
        **made_with(),
    }
