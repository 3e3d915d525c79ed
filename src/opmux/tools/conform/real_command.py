"""`opmux conform --real` from its words to its files."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

import torch
from rich.text import Text

from ...core.machine import arch_of
from ...runtime import devices
from .. import arguments, doctor, screen
from ..bench.record import chip, commit
from . import crowd
from .asked import settled, wanted_by
from .real import DECLINED, FAIL, PASS, UNCHECKED, Case, Outcome, cases, without_cases

SCHEMA = 1
SECONDS = {"cpu": 60.0}
SECONDS_ELSEWHERE = 420.0
MOST_JOBS = 8
SHOWN = 40  # failures on the screen; the JSON file has all


@dataclass
class Record:
    """A run as data."""

    facts: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)  # kernels of ours that have no case, and why
    left: int = 0  # cases that the time did not suffice for
    left_ops: list[str] = field(default_factory=list)  # ops none of whose cases were tried
    seconds: float = 0.0

    @property
    def failures(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == FAIL]

    def text(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False)


def run(asked: Any) -> int:
    """What `asked` (a `command.Asked`) says, on one device; 1 where a case fails."""
    device = _device(asked.device)
    console = screen.beside(asked.json)
    with settled():
        wanted = wanted_by(asked)
        found = cases(wanted, device)
        if asked.listing:
            for case in found:
                console.print(f"{case.op} {case.words} {case.dtype} ({', '.join(case.models)})", soft_wrap=True)
            return 0
        if not found:
            raise arguments.BadArgument("--real: no kernel of ours on this device is among what is asked for")
        record = Record(_facts(device, asked), without=without_cases(found, wanted, device))
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


def _check(record: Record, asked: Any, found: list[Case], device: torch.device) -> None:
    start = time.time()
    limit = asked.seconds if asked.seconds is not None else SECONDS.get(device.type, SECONDS_ELSEWHERE)
    jobs = asked.jobs or (1 if device.type == "cpu" else max(1, min(MOST_JOBS, (os.cpu_count() or 2) // 2)))
    done: set[int] = set()
    with screen.progress("now", "failed") as bar:
        task = bar.add_task("real shapes", total=len(found), now="", failed=0)
        for at, outcome in crowd.outcomes(asked, found, device, start + limit, jobs):
            done.add(at)
            record.outcomes.append(outcome)
            bar.update(task, advance=1, now=outcome.op, failed=len(record.failures))
        bar.update(task, now="done")
    record.left = len(found) - len(done)
    record.left_ops = sorted({c.op for c in found} - {found[i].op for i in done})
    record.seconds = round(time.time() - start, 2)


# ---- out ------------------------------------------------------------------------------------------------------------


def _report(record: Record, asked: Any) -> Iterator[Any]:
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


def _unchecked(record: Record, ops: set[str]) -> Iterator[Text]:
    """What was not checked, aloud."""
    for status, said in ((DECLINED, "left to torch by our kernels"), (UNCHECKED, "could not be tried")):
        mine = [o for o in record.outcomes if o.status == status]
        if mine:
            alone = sorted({o.op for o in mine} - ops)
            only = f"; not checked at all for that: {_some(alone)}" if alone else ""
            yield Text(f"{len(mine)} cases {said} ({_common(mine)}){only}", "yellow")
    if record.left:
        never = f"; never tried: {_some(record.left_ops)}" if record.left_ops else ", none of an op that was not tried"
        yield Text(f"{record.left} cases left when the time was up (--seconds){never}", "yellow")
    for why in dict.fromkeys(record.without.values()):
        yield Text(f"no case ({why}): {_some([o for o, w in record.without.items() if w == why])}", "yellow")


def _some(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
        **doctor.versions(),
        "commit": commit(),
        "date": date.today().isoformat(),
    }
