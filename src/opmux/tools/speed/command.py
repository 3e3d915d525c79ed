"""`opmux tune --aten`: compiles in many processes, measures in one, stores the times, and prints a report."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ...core.errors import OpmuxError
from ...faces.aten import decisions, engine
from ...faces.aten.decisions import Speed
from ...faces.aten.overloads import Overload, functional, table
from ...tuning.speed_files import chip_of
from .. import arguments, screen
from ..runner.check import has_broken_the_device
from ..runner.pool import Lost, Workers
from .measure import tasks

WARM_SHARE = 0.45  # compiling may take this share of the time limit
WORKERS = 16  # at most this many processes compile; each has its own context on the device
SLOW = 0.8  # overloads with a smaller ratio are listed
QUIET_S = 120.0  # a process that takes longer for one overload is killed

# Measure functional overloads first, then in-place, then `out=`, so that rare ones are missing if the time runs out.
ORDER = {"functional": 0, "inplace": 1, "out": 2}


def stood_for(known: Mapping[str, Overload]) -> dict[str, str]:
    """In-place or `out=` overload -> the functional overload whose measured times also decide for it."""
    plain = {n: functional(o) if _foreach(o) else decisions.standing_in(o) for n, o in known.items()}
    return {n: p.name for n, p in plain.items() if p is not None and p.name in known}


def _foreach(overload: Overload) -> bool:
    """Whether `decisions` always leaves the overload to torch, however fast ours is."""
    return overload.shape.packet.startswith("_foreach_")


def chosen(known: Mapping[str, Overload], forms: Mapping[str, str], only: Iterable[str]) -> list[str]:
    """The overloads to measure; those that models call come first. Overloads in `forms` are omitted.

    If `only` names overloads or ops (`add_`: all its overloads), these are measured instead.
    """
    called = {forms.get(n, n) for calls in decisions.traces().values() for n in calls}
    names = sorted(known, key=lambda n: (n not in called, _foreach(known[n]), ORDER.get(known[n].shape.kind, 3), n))
    if not (requested := set(only)):
        return [n for n in names if n not in forms]
    own = lambda n: n not in forms or known[n].shape.packet != known[forms[n]].shape.packet
    return [n for n in names if n in requested or (known[n].shape.packet in requested and own(n))]


def run(device: str | None, minutes: float, file: Path | None, only: Iterable[str]) -> int:
    """Measure every overload that can be overridden here. Write the times to the cache, or to `file` if given."""
    at = arguments.device(device).type
    known = engine.choosable().get(at, {})
    forms = stood_for(known)
    names = chosen(known, forms, only)
    if not names:
        raise arguments.BadOption(f"there is nothing to measure on {at}: no overload has a kernel of ours there")
    console, chip, start = screen.out(), chip_of(at), time.monotonic()
    until = start + 60 * minutes
    if at != "cpu" and len(names) > WORKERS:
        _warm(names, at, start + 60 * minutes * WARM_SHARE)
    measured = _measured(names, at, until)
    speeds = {n: Speed.of_data(f) for n, f in measured.items() if "skipped" not in f}
    skipped = {n: f["skipped"] for n, f in measured.items() if "skipped" in f}
    more = {"seconds": round(time.monotonic() - start), "skipped": dict(skipped)}
    skipped |= {n: "the time ran out" for n in names if n not in measured}
    if file is not None:
        file.write_text(decisions.FILES.text(chip, speeds, more), encoding="utf-8")
        stored: Path | None = file
    else:
        stored = decisions.store(chip, speeds, more)
    _report(console, speeds, skipped, forms)
    console.print(
        f"stored in {stored}" if stored is not None else "not stored: there is no home directory", style="dim"
    )
    return 0


# ---- processes ------------------------------------------------------------------------------------------------------


def _warm(names: list[str], device: str, until: float) -> None:
    """Compile the kernels of all overloads in many processes. Ignore failures, as the measurement will report them."""
    count = min(WORKERS, os.cpu_count() or 1)
    shares = [range(i, len(names), count) for i in range(count)]  # each share starts with its most important overloads
    for _ in _outcomes("compiling", names, device, shares, until):
        pass


def _measured(names: list[str], device: str, until: float) -> dict[str, Any]:
    """Measure in one process at a time. If an overload makes the process end, a new process continues."""
    return dict(_outcomes("measuring", names, device, [range(len(names))], until))


def _outcomes(
    title: str, names: list[str], device: str, shares: Sequence[Sequence[int]], until: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    with tempfile.NamedTemporaryFile() as report_file, screen.progress("now") as bar:
        task, lines = bar.add_task(title, total=len(names), now=""), Path(report_file.name)
        build = partial(tasks, names, device, len(shares) > 1, report_file.name)
        workers = Workers.fresh(build, shares, until, _ends, QUIET_S)
        for at, outcome in workers.results(lambda at: bar.update(task, now=names[at])):
            bar.advance(task)
            lost = isinstance(outcome, Lost)
            yield names[at], {"skipped": f"it {outcome.why}: {_last_line(lines)}"} if lost else outcome
        if not bar.tasks[task].completed and time.monotonic() < until:
            raise OpmuxError(f"{title} cannot start: {_last_line(lines)}")


def _ends(outcome: Any) -> bool:
    return has_broken_the_device(outcome.why if isinstance(outcome, Lost) else outcome.get("skipped", ""))


def _last_line(file: Path) -> str:
    """The last line that a process printed, usually an error."""
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


# ---- the report -----------------------------------------------------------------------------------------------------


def ratios(speed: Speed) -> list[float]:
    """For each dtype, torch's time divided by ours at the largest size."""
    return [rows[-1].native / rows[-1].ours for rows in speed.times.values() if rows and rows[-1].ours]


def mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _report(
    console: Console, speeds: Mapping[str, Speed], skipped: Mapping[str, str], forms: Mapping[str, str]
) -> None:
    all_of = {n: mean(ratios(s)) for n, s in speeds.items() if ratios(s)}
    right = {"justify": "right"}
    shown = screen.table("family", ("overloads", right), ("torch's time / ours", right), ("below 0.8", right))
    families: dict[str, list[str]] = {}
    for name in all_of:
        families.setdefault(table()[name].family, []).append(name)
    for family, names in sorted(families.items()):
        slow = sum(all_of[n] < SLOW for n in names)
        shown.add_row(family, str(len(names)), f"{mean(all_of[n] for n in names):.3f}", str(slow or ""))
    console.print(shown)
    slow = sorted((r, n) for n, r in all_of.items() if r < SLOW)
    for ratio, name in slow:
        console.print(f"  {ratio:.2f}  {name}")
    wins = sum(any(s.smallest(d) != decisions.NEVER for d in s.times) for s in speeds.values())
    console.print(
        f"{len(all_of)} overloads, geometric mean {mean(all_of.values()):.3f} on the device at the largest sizes; "
        f"{len(slow)} below {SLOW}; {wins} are faster from some size on; {len(skipped)} not measured",
        style="bold",
    )
    if standing := {n: plain for n, plain in forms.items() if plain in speeds and n not in speeds}:
        console.print(f"{len(set(standing.values()))} of them decide for {len(standing)} in-place and out= overloads")
