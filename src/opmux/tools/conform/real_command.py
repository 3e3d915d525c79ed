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
from .real import DECLINED, FAIL, PASS, UNCHECKED, Outcome, RealCase, Wanted, cases, without_cases
from .scope import OpScope

SECONDS = {"cpu": 60.0}
SECONDS_ELSEWHERE = 420.0
MOST_JOBS = 8
SHOWN = 40  # failures on the screen; the JSON file has all
MOST_KEPT = 4 << 30  # bytes of a device's memory that a process keeps between cases


@dataclass
class RealRecord(RunRecord):
    outcomes: list[Outcome] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)  # kernels of ours that have no case, and why
    left: int = 0  # cases for which the time was too short
    left_ops: list[str] = field(default_factory=list)  # ops none of whose cases were tried
    seconds: float = 0.0

    @property
    def failures(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == FAIL]


def run(asked: Any) -> int:
    """Check what `asked` (a `command.ConformOptions`) selects, on one device; returns 1 if a case fails."""
    device = _device(asked.device)
    console = screen.beside(asked.json)
    with settled():
        wanted = _wanted_by(asked)
        found = cases(wanted, device)
        if asked.listing:
            for case in found:
                console.print(f"{case.op} {case.words} {case.dtype} ({', '.join(case.models)})", soft_wrap=True)
            return 0
        if not found:
            raise arguments.BadOption("--real: no kernel of ours on this device is among what is asked for")
        record = RealRecord(_facts(device, asked), without=without_cases(found, wanted, device))
        _check(record, asked, found, device)
    for line in _report(record, asked):
        console.print(line, soft_wrap=True)
    screen.keep(record, asked.json)
    return 1 if record.failures else 0


def _device(text: str | None) -> torch.device:
    if text is not None:
        return arguments.device(text)
    there = [d for d in devices.accelerators() if d != "cpu"]
    return torch.device(there[0], 0) if there else torch.device("cpu")


@contextmanager
def settled() -> Iterator[None]:
    """Load all ops and vendors, keep one policy scope open, and restore ATen's own kernels at the end."""
    get_default_manager().registry.list_operators()  # loads families, kernels, plugins, vendors
    try:
        with policy(), launches_poisoned():
            yield
    finally:
        disable()


def _wanted_by(asked: Any) -> Wanted:
    scope = OpScope.of(asked.ops)
    dtypes = tuple(arguments.dtype(d) for d in arguments.parts(asked.dtypes))
    known = {m for c in shapes.read().calls for m in c.models} | {m for r in shapes.read().sized for m in r.models}
    for word in asked.models:
        if not set(word) & set("*?[") and word not in known:
            raise UnknownName("model", word, known)
    primitives = [s for s in scope.specs if s.space in ("opmux", "aten") and s.samples is not None]
    return Wanted(primitives, scope.overloads, dtypes, tuple(asked.models))


# ---- checking -------------------------------------------------------------------------------------------------------


def _check(record: RealRecord, asked: Any, found: list[RealCase], device: torch.device) -> None:
    start = time.monotonic()
    limit = asked.seconds if asked.seconds is not None else SECONDS.get(device.type, SECONDS_ELSEWHERE)
    jobs = asked.jobs or (1 if device.type == "cpu" else max(1, min(MOST_JOBS, (os.cpu_count() or 2) // 2)))
    done: set[int] = set()
    with screen.progress("now", "failed") as bar:
        task = bar.add_task("real shapes", total=len(found), now="", failed=0)
        for at, outcome in _workers(asked, found, device, start + limit, jobs).results():
            done.add(at)
            record.outcomes.append(_lost(found[at], outcome.why) if isinstance(outcome, Lost) else outcome)
            bar.update(task, advance=1, now=found[at].op, failed=len(record.failures))
        bar.update(task, now="done")
    record.left = len(found) - len(done)
    record.left_ops = sorted({c.op for c in found} - {found[i].op for i in done})
    record.seconds = round(time.monotonic() - start, 2)


def _workers(asked: Any, found: list[RealCase], device: torch.device, until: float, jobs: int) -> Workers:
    """Each process gets its own ops, because most of the time goes into compiling their kernels."""
    if jobs == 1:
        return Workers([partial(attempt, case, device) for case in found], 1, until)
    place = {op: i for i, op in enumerate(dict.fromkeys(c.op for c in found))}
    shares = [[i for i, c in enumerate(found) if place[c.op] % jobs == k] for k in range(jobs)]
    return Workers.fresh(partial(_tasks, asked, device), shares, until, _ends)


@contextmanager
def _tasks(asked: Any, device: torch.device) -> Iterator[Sequence[Task]]:
    """The same list of cases, built again in a worker process."""
    torch.set_num_threads(1 if device.type != "cpu" else torch.get_num_threads())
    with settled():
        yield [partial(attempt, case, device) for case in cases(_wanted_by(asked), device)]


def _ends(outcome: Any) -> bool:
    words = outcome.why if isinstance(outcome, Lost) else outcome.reason if outcome.status == FAIL else ""
    return has_broken_the_device(words or "")


def _lost(case: RealCase, why: str) -> Outcome:
    return Outcome(case.op, case.words, dtype_name(case.dtype), list(case.models), FAIL, why)


def attempt(case: RealCase, device: torch.device) -> Outcome:
    made = case.run(device)
    get_default_manager().clear_quarantine()
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > MOST_KEPT:
        torch.cuda.empty_cache()  # other processes need the memory
    return made


# ---- out ------------------------------------------------------------------------------------------------------------


def _report(record: RealRecord, asked: Any) -> Iterator[Any]:
    failures = record.failures
    if failures:
        table = screen.table("op", "dtype", "case", "models", "what is wrong")
        for o in failures[:SHOWN]:
            table.add_row(Text(o.op, "red"), o.dtype, o.case, ", ".join(o.models), o.reason or "")
        yield table
        if len(failures) > SHOWN:
            yield Text(f"and {len(failures) - SHOWN} more: --json FILE has all", "dim")
        yield Text(f"again: {_again(failures[0], asked)}", "cyan")
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
    for status, said in ((DECLINED, "left to torch by our kernels"), (UNCHECKED, "could not be tried")):
        mine = [o for o in record.outcomes if o.status == status]
        if mine:
            alone = sorted({o.op for o in mine} - ops)
            only = f"; not checked at all for that: {screen.some(alone)}" if alone else ""
            yield Text(f"{len(mine)} cases {said} ({_common(mine)}){only}", "yellow")
    if record.left:
        left = screen.some(record.left_ops)
        never = f"; never tried: {left}" if left else ", none of an op that was not tried"
        yield Text(f"{record.left} cases left when the time was up (--seconds){never}", "yellow")
    for why in dict.fromkeys(record.without.values()):
        yield Text(f"no case ({why}): {screen.some([o for o, w in record.without.items() if w == why])}", "yellow")


def _common(mine: list[Outcome]) -> str:
    reason, n = Counter(o.reason for o in mine).most_common(1)[0]
    return f"{n} times: {reason}"


def _again(o: Outcome, asked: Any) -> str:
    said = ["opmux", "conform", "--real", "--op", o.op, "--dtype", o.dtype]
    said += [w for m in o.models[:1] if m not in ("random", "samples") for w in ("--model", m)]
    return shlex.join(said + (["--device", asked.device] if asked.device else []))


def _facts(device: torch.device, asked: Any) -> dict[str, Any]:
    return {
        "device": str(device),
        "chip": chip(device),
        "arch": None if device.type == "cpu" else arch_of(device.type),
        "ops": asked.ops,
        "dtypes": asked.dtypes,
        "models": asked.models,
        **made_with(),
    }
