"""`opmux tune --providers`: times every implementation of the compute-bound ops, so that dispatch can choose."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.text import Text

from ...core.default import get_default_manager, policy
from ...core.errors import UnknownName
from ...core.policy import PolicyScope
from ...core.registry import BackendImplKind
from ...core.spec import Spec, specs
from ...tuning import provider_speed
from ...tuning.provider_speed import MARGIN, Times
from ...tuning.speed_classes import CLASSES
from ...tuning.speed_files import chip_of
from .. import arguments, screen
from ..runner.check import DeviceLost, has_broken_the_device, in_one_line
from ..runner.clock import Clock
from .provider_cases import TIMED, TimedCall, calls

ROUNDS = 3  # interleaved, so that a drifting clock does not affect the comparison


class CallTimes(NamedTuple):
    """The measurement of one call: the label of its class, the times by impl_id, and why other impls have no time."""

    label: str
    times: Times
    refused: dict[str, str]


def run(
    ops: Sequence[str],
    shapes: Sequence[str],
    dtypes: Sequence[str],
    device: str | None,
    minutes: float,
    file: Path | None,
) -> int:
    """Time the calls. Write the times to the cache, or to `file` if given."""
    names = [_op(name) for name in ops] or list(TIMED)
    if shapes and not ops:
        raise arguments.BadOption("--shape needs an OP: its sizes have another meaning for each op")
    at, kinds = arguments.device(device), [arguments.dtype(d, _DTYPES) for d in dtypes or ("bfloat16",)]
    todo = list(calls(names, list(shapes), kinds))
    console, start = screen.out(), time.monotonic()
    chip, clock, rows = chip_of(at.type), Clock(at.type), list[tuple[TimedCall, CallTimes]]()
    console.print(f"[bold]{len(todo)} calls on {chip}[/]")
    lost = ""
    with screen.progress("now") as bar:
        task = bar.add_task("measuring", total=len(todo), now="")
        for call in todo:
            if time.monotonic() - start > 60 * minutes:
                break
            bar.update(task, now=str(call))
            try:
                rows.append((call, measure(call, at, clock)))
            except DeviceLost as error:
                lost = f"{call}: {error}"
                break
            bar.advance(task)
    times = merged(row for _, row in rows)
    more = {"seconds": round(time.monotonic() - start)}
    stored: Path | None = file
    if file is not None:
        screen.write(file, provider_speed.FILES.text(chip, times, more))
    elif times:
        stored = provider_speed.store(chip, times, more)
    _report(console, rows)
    unmeasured = len(todo) - len(rows)
    console.print(
        f"{len(rows)} calls measured, {len(times)} classes with a choice"
        + (f"; no time for {unmeasured} calls" if unmeasured else ""),
        style="bold",
    )
    message = f"stored in {stored}" if stored is not None else "not stored: there is no home directory"
    console.print(
        message if times or file is not None else "nothing to store: no op has two implementations here", style="dim"
    )
    if lost:
        raise DeviceLost(f"the device is lost; the measurements before that are stored: {lost}")
    return 0


_DTYPES = ("bfloat16", "float16", "float32", "float64")


def _op(name: str) -> str:
    plain = name.strip().removeprefix("opmux::")
    if plain not in TIMED:
        raise UnknownName("op with implementations to choose among", name, list(TIMED))
    return plain


def measure(call: TimedCall, device: torch.device, clock: Clock) -> CallTimes:
    """Time each implementation that accepts a call, one at a time, in interleaved rounds."""
    spec = specs.find(f"opmux::{call.op}")
    try:
        with torch.no_grad():
            args = call.arguments(device)
    except RuntimeError as error:  # includes out of memory
        _check_device(error)
        return CallTimes("", {}, {"its arguments": in_one_line(error)})
    trial = Trial(spec, args, clock)
    impls = get_default_manager().registry.get_implementations(spec.key)
    references = [i.impl_id for i in impls if i.kind is BackendImplKind.REFERENCE]
    usable = [i.impl_id for i in impls if i.impl_id not in references and trial.runs(i.impl_id)]
    if len(usable) < 2:  # references are slow, so time them only if fewer than two others run
        usable += [impl_id for impl_id in references if trial.runs(impl_id)]
    for _ in range(ROUNDS):
        for impl_id in usable:
            trial.time(impl_id)
    known = CLASSES[spec.key]
    times = {impl_id: round(statistics.median(trial.us[impl_id]), 3) for impl_id in usable if trial.us.get(impl_id)}
    return CallTimes(known.label(call.op, known.of(*args)), times, trial.refused)


@dataclass
class Trial:
    """Runs the implementations of an op on the same arguments, one at a time."""

    spec: Spec
    args: tuple
    clock: Clock
    us: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def runs(self, impl_id: str) -> bool:
        """Whether the implementation accepts and runs the call. The first run also compiles it."""
        with self._alone(impl_id):
            explanation = get_default_manager().explain(self.spec.key, *self.args)
        if explanation.chosen is None:
            self.refused[impl_id] = next(v.reason for v in explanation.verdicts if v.impl.impl_id == impl_id)
            return False
        return self._attempt(impl_id, lambda call: call()) is not None

    def time(self, impl_id: str) -> None:
        us = self._attempt(impl_id, self.clock.device_us) if impl_id not in self.refused else None
        if us is not None:
            self.us.setdefault(impl_id, []).append(us)

    def _attempt(self, impl_id: str, run: Callable[[Callable[[], Any]], Any]) -> Any:
        """The result of `run`. If the implementation fails, returns None and stores the reason in `refused`."""
        fn = specs.functions[self.spec.key]
        try:
            with self._alone(impl_id), torch.no_grad():
                return run(lambda: fn(*self.args))
        except Exception as error:  # anything that a kernel, a compiler or torch raises
            _check_device(error)
            self.refused[impl_id] = in_one_line(error)
            self.us.pop(impl_id, None)
            if isinstance(error, torch.OutOfMemoryError):
                torch.accelerator.empty_cache()
            return None

    def _alone(self, impl_id: str) -> PolicyScope:
        return policy(per_op={self.spec.key: f"impl:{impl_id}"}, strict=True)


def _check_device(error: Exception) -> None:
    if has_broken_the_device(error):  # nothing more can be measured in this process
        raise DeviceLost(in_one_line(error)) from error


def merged(rows: Iterable[CallTimes]) -> dict[str, Times]:
    """Label of a class -> the mean times of its calls. Calls that only one implementation runs are left out."""
    by_class: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for impl_id, us in row.times.items() if len(row.times) > 1 else ():
            by_class.setdefault(row.label, {}).setdefault(impl_id, []).append(us)
    return {
        label: {impl_id: round(statistics.mean(us), 3) for impl_id, us in times.items()}
        for label, times in by_class.items()
    }


def _report(console: Console, rows: list[tuple[TimedCall, CallTimes]]) -> None:
    table = screen.table("call", "fastest", ("us", {"justify": "right"}), "others, times as long")
    for call, row in rows:
        first, *others = sorted(row.times.items(), key=lambda item: item[1]) or [("", 0.0)]
        near = lambda us, best=first[1]: "bold" if us <= MARGIN * best else ""
        ratios = Text(", ").join(Text(f"{i} {us / first[1]:.2f}x", near(us)) for i, us in others)
        table.add_row(str(call), first[0], f"{first[1]:.1f}" if first[0] else "", ratios)
    console.print(table)
    for why in dict.fromkeys(f"{call.op}: {i}: {why}" for call, row in rows for i, why in row.refused.items()):
        console.print(Text(f"  not timed: {why[:200]}", "yellow"))
