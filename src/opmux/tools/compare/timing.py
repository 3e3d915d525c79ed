"""Times the variants of a step in blocks that rotate, and measures the peak memory of a step."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ...faces.aten import gate

BLOCK = (5, 2)  # timed steps in a block, and untimed steps before them, if steps are fast
SLOW_BLOCK = (2, 1)  # the same if LEAST blocks of BLOCK would take too long
LEAST, MOST = 3, 60  # minimum and maximum number of rounds; in a round, each variant runs one block
WARM = 14  # untimed steps of a variant before the first block (on a CPU 2); C++ launches a call after twelve steps
WARM_SECONDS = 3.0  # after two untimed steps, run more of them only until this much time has passed
MEASURED = 3  # steps whose peak memory is measured

Show = Callable[[str, int, int], None]  # the name of the current stage, its finished steps, and all its steps


class Pace(NamedTuple):
    """The median time of a variant's steps, and its speed relative to the first variant's."""

    ms: float
    speed: float
    speed_error: float  # standard error of `speed`
    rounds: int


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def timed(step: Callable[[], None], device: torch.device) -> float:
    """Milliseconds of a step."""
    wait(device)
    start = time.perf_counter()
    step()
    wait(device)
    return (time.perf_counter() - start) * 1e3


def warmed(step: Callable[[], None], device: torch.device) -> float:
    """Run untimed steps until kernels are compiled and planned; returns the milliseconds of the last one."""
    start = time.perf_counter()
    for number in itertools.count(1):
        ms = timed(step, device)
        over = number >= (2 if device.type == "cpu" else WARM) or (
            number >= 2 and time.perf_counter() - start > WARM_SECONDS
        )
        if over and not gate.waiting():
            return ms
    raise AssertionError


def rotated(count: int, number: int) -> Iterator[int]:
    """The order of `count` variants in a round: each round begins with the next variant."""
    return (i % count for i in range(number, number + count))


def paces(
    step: Callable[[], None],
    switches: Sequence[Callable[[], None]],
    device: torch.device,
    typical: float,
    seconds: float,
    show: Show,
) -> list[Pace]:
    """Time all variants. `switches[i]()` switches to variant i; a step takes roughly `typical` milliseconds.

    Each round runs a block of steps of each variant. Rounds end after `seconds`, but there are at least LEAST.
    """
    budget = seconds * 1e3 / (typical * len(switches))  # steps of a variant
    steps, untimed = BLOCK if budget >= LEAST * sum(BLOCK) else SLOW_BLOCK
    rounds = min(max(int(budget / (steps + untimed)), LEAST), MOST)
    blocks: list[list[list[float]]] = [[] for _ in switches]
    end = time.perf_counter() + seconds
    collecting = gc.isenabled()
    try:
        for number in range(rounds):
            show("timing", number, rounds)
            if number >= LEAST and time.perf_counter() > end:
                break
            for at in rotated(len(switches), number):
                switches[at]()
                torch.manual_seed(number)  # variants that use torch's random numbers drop the same elements
                gc.collect()
                gc.disable()
                for _ in range(untimed):
                    timed(step, device)
                while gate.waiting():
                    timed(step, device)
                blocks[at].append([timed(step, device) for _ in range(steps)])
                if collecting:
                    gc.enable()
    finally:
        if collecting:
            gc.enable()
    return _summary(blocks)


def _summary(blocks: list[list[list[float]]]) -> list[Pace]:
    medians = [[statistics.median(block) for block in of] for of in blocks]
    natives = medians[0]
    found = [Pace(statistics.median(natives), 1.0, 0.0, len(natives))]
    for ours in medians[1:]:
        # Compare a block with native's blocks of the same round and of the next round, between which the block ran.
        ratios = [native / block for i, block in enumerate(ours) for native in natives[i : i + 2]]
        low, _, high = statistics.quantiles(ratios, n=4)
        # The standard error of the median if ratios are normally distributed: their quartiles are 1.35 deviations
        # apart.
        error = 1.25 * (high - low) / 1.35 / math.sqrt(len(ours))
        found.append(Pace(statistics.median(ours), statistics.median(ratios), error, len(ours)))
    return found


# ---- memory ---------------------------------------------------------------------------------------------------------

STATUS, PEAKS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(step: Callable[[], None], device: torch.device) -> int | None:
    """The most bytes that a step adds to the memory in use before it; None if they cannot be measured.

    On an accelerator these are the bytes of tensors, which torch counts. On a CPU they are the process's resident
    memory, which only Linux can measure; the result is the median of several steps.
    """
    if device.type != "cpu":
        return _on_device(step, device)
    if not PEAKS.exists():
        return None
    return round(statistics.median(_resident(step) for _ in range(MEASURED)))


def free_memory(device: torch.device) -> int | None:
    """The bytes that are free on a device; None if that is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _on_device(step: Callable[[], None], device: torch.device) -> int | None:
    memory = getattr(torch, device.type)
    if not hasattr(memory, "max_memory_allocated"):
        return None
    wait(device)
    memory.reset_peak_memory_stats(device)
    before = memory.memory_allocated(device)
    step()
    wait(device)
    return memory.max_memory_allocated(device) - before


def _resident(step: Callable[[], None]) -> int:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's: returns freed memory to the system
    if trim is not None:
        trim(0)
    PEAKS.write_text("5", encoding="ascii")  # 5 sets the peak to the present value
    before = _status("VmRSS")
    step()
    return max(_status("VmHWM") - before, 0)


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
