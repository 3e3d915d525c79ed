"""Times torch's kernels and ours, one overload after the other.

This runs in a separate process, so that a kernel that ends the process loses no other measurements. Host time is
measured on a small tensor.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core.errors import OpmuxError
from ...core.tensors import dtype_name
from ...faces.aten import engine, record, switch
from ...faces.aten.overloads import Overload, table
from ..runner.check import has_broken_the_device, in_one_line
from ..runner.clock import Clock
from ..runner.pool import Task
from .cases import SMALL, OverloadCase, Sources
from .programs import REFUSALS

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 27)
DTYPES = ("bfloat16", "float32", "int64")
SIZES_OF = {"int64": (1 << 20, 1 << 24)}
SLOW_US = 4_000.0  # after a call slower than this, larger sizes are not measured
UNKNOWN_HOST = [5.0, 15.0]  # host us of torch and ours if there is no small case; assumes that ours is much slower


def _alone(overload: Overload) -> str:
    """A name that selects only this overload, because `relu` would also select `relu_`."""
    return overload.name if "." in overload.name else f"{overload.name}.default"


class Switches:
    """Contexts that enable the override of one overload, with and without recording which kernel runs."""

    def __init__(self, overload: Overload):
        self.name = overload.name
        self.on = switch.use(include=_alone(overload), mode="all")
        self._recording = switch.use(include=_alone(overload), mode="all", record=io.StringIO())

    def declined(self, calls: Iterable[Callable[[], Any]]) -> list[str]:
        """For each call, why torch's own kernel runs although the override is on; "" if ours runs."""
        with self._recording:  # once for all calls, because all overrides are bound again on entry and exit
            return [self._why(call, record.live[-1].calls) for call in calls]

    def _why(self, call: Callable[[], Any], counted: Counter[record.CountedCall]) -> str:
        counted.clear()
        call()
        calls = [c for c in counted if c.overload == self.name]
        if not calls:
            return "the call did not reach the override"
        return next((c.why or "torch's own kernel ran" for c in calls if c.impl == "native"), "")


@contextlib.contextmanager
def tasks(names: Iterable[str], device: str, warm: bool, report_file: str) -> Iterator[list[Task]]:
    """A task for each overload. The output of this process goes to `report_file`."""
    with Path(report_file).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    yield tasks_here(names, device, warm)


def tasks_here(names: Iterable[str], device: str, warm: bool = False) -> list[Task]:
    """A task for each overload, which measures it. With `warm`, it only runs each case once, to compile the kernel."""
    dtypes = [getattr(torch, d) for d in DTYPES]
    sources, clock = Sources(table(), device, dtypes), Clock(device)
    return [partial(_attempted, table()[n], sources, None if warm else clock) for n in names]


def _attempted(overload: Overload, sources: Sources, clock: Clock | None) -> dict[str, Any]:
    try:
        return _compile(overload, sources) if clock is None else _overload(overload, sources, clock)
    except Exception as error:  # anything that a kernel, a compiler or torch raises
        if isinstance(error, torch.OutOfMemoryError):
            torch.accelerator.empty_cache()
        return {"skipped": in_one_line(error)}


def _compile(overload: Overload, sources: Sources) -> dict[str, Any]:
    off = switch.use(include=(), mode="all")
    with torch.no_grad(), switch.use(include=_alone(overload), mode="all"):
        for dtype in sources.dtypes(overload):
            for numel in SIZES_OF.get(dtype_name(dtype), SIZES[:3]):
                with off:
                    cases = list(_cases(sources, overload, numel, dtype))
                for case in cases:
                    _attempt(overload, case)
    return {}


def _overload(overload: Overload, sources: Sources, clock: Clock) -> dict[str, Any]:
    """{"host": [native, ours], dtype: [[size, native, ours], ...]}, or {"skipped": why}."""
    switches = Switches(overload)
    out: dict[str, Any] = {}
    refused = sources.refused.get(overload.name)
    why = "no arguments are known for it" if refused is None else f"torch refuses its arguments: {refused}"
    for dtype in sources.dtypes(overload):
        rows: list[list[float]] = []
        for numel in SIZES_OF.get(dtype_name(dtype), SIZES):
            try:
                with torch.no_grad():
                    row, why_not = _worst(overload, sources, clock, numel, dtype, switches)
            except torch.OutOfMemoryError as error:  # smaller sizes were measured before
                row, why_not = None, in_one_line(error)
            if row is None:
                why = why_not or why
                break
            rows.append(row)
            if max(row[1:]) > SLOW_US:
                break
        if rows:
            out[dtype_name(dtype)] = rows
    if out:
        with torch.no_grad():
            dtype = getattr(torch, next(iter(out)))
            out["host"] = _host(overload, sources, clock, dtype, switches) or UNKNOWN_HOST
    return out or {"skipped": why}


def _worst(
    overload: Overload, sources: Sources, clock: Clock, numel: int, dtype: torch.dtype, switches: Switches
) -> tuple[list[float] | None, str]:
    """The worst ratio of the cases of a size, as [size, native, ours]. If none can be timed: None and the reason."""
    cases = list(_cases(sources, overload, numel, dtype))
    calls = [_call(overload, case) for case in cases]
    why = switches.declined(calls) if calls else [""]
    timed = [i for i in range(len(calls)) if not why[i]]  # other calls run torch's kernel even with the override
    if not timed:
        return None, why[0]
    native = [clock.device_us(calls[i]) for i in timed]
    with switches.on:
        ours = [clock.device_us(calls[i]) for i in timed]
    rows = [[cases[i].numel, round(n, 2), round(o, 2)] for i, n, o in zip(timed, native, ours, strict=True)]
    return max(rows, key=lambda r: r[2] / r[1]), ""


def _host(
    overload: Overload, sources: Sources, clock: Clock, dtype: torch.dtype, switches: Switches
) -> list[float] | None:
    case = next(_cases(sources, overload, SMALL, dtype), None)
    if case is None:
        return None
    call = _call(overload, case)
    engine.remove()  # a leftover override would be part of torch's time
    native = clock.host_us(call)
    with switches.on:
        return [round(native, 2), round(clock.host_us(call), 2)]


def _cases(sources: Sources, overload: Overload, numel: int, dtype: torch.dtype) -> Iterator[OverloadCase]:
    """The cases that torch's own kernel accepts."""
    for case in sources.cases(overload, numel, dtype):
        if _attempt(overload, case) is None:
            yield case


def _attempt(overload: Overload, case: OverloadCase) -> Exception | None:
    try:
        _call(overload, case)()
    except (*REFUSALS, OpmuxError) as error:
        if isinstance(error, torch.OutOfMemoryError) or has_broken_the_device(error):
            raise
        return error
    return None


def _call(overload: Overload, case: OverloadCase) -> Callable[[], Any]:
    op, args, kwargs = overload.shape.op, case.args, case.kwargs
    return lambda: op(*args, **kwargs)
