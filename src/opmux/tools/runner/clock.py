"""Clocks for calls on a device, for single calls with a cold cache, and for host time."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
Device = torch.device | str

WARMUP_MS, REPEAT_MS = 10, 50
CALLS, CYCLES = 7, 2_000_000  # the device sleeps about 1 ms while the calls are queued; longer if queueing takes longer
MOST_CYCLES = 64 * CYCLES
CLEARED = 128 << 20  # bytes; caches are smaller


def wait(device: Device) -> None:
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def _elapsed(fn: Call, device: Device) -> float:
    """The seconds that a call takes until the device is done."""
    start = time.perf_counter()
    fn()
    wait(device)
    return time.perf_counter() - start


def call_ms(fn: Call, device: torch.device) -> float:
    """The median time of a call on its device."""
    if device.type != "cpu" and importlib.util.find_spec("triton") is not None:
        return median_ms(fn)
    _elapsed(fn, device)
    taken: list[float] = []
    until = time.perf_counter() + REPEAT_MS / 1e3
    while len(taken) < 3 or time.perf_counter() < until:
        taken.append(_elapsed(fn, device))
    return statistics.median(taken) * 1e3


def median_ms(fn: Call) -> float:
    """The median time of a call by Triton's clock, which clears the cache before each call."""
    from triton.testing import do_bench

    timed: Any = do_bench(fn, warmup=WARMUP_MS, rep=REPEAT_MS, return_mode="median")
    return float(timed)


def host_us(
    fn: Call,
    device: Device,
    loops: int = 100,
    repeats: int = 9,
    of: Callable[[Sequence[float]], float] = statistics.median,
) -> float:
    """The host's time for one call and its launches, without waiting for the device."""
    for _ in range(loops):
        fn()
    taken = []
    for _ in range(repeats):
        wait(device)  # otherwise the queue may be full, and the host would wait
        start = time.perf_counter()
        for _ in range(loops):
            fn()
        taken.append((time.perf_counter() - start) / loops * 1e6)
    wait(device)
    return of(taken)


class Clock:
    """Times single calls on one device type, with a cold cache.

    All calls are queued before the first one runs, so that host time does not count.
    """

    def __init__(self, device: str):
        self.device = device
        self._clear = torch.empty(CLEARED // 4, dtype=torch.int32, device=device) if device == "cuda" else None

    def device_us(self, call: Call) -> float:
        call()
        call()
        wait(self.device)
        if self._clear is None:  # the device has no events, or caches do not affect times
            return statistics.median(_elapsed(call, self.device) for _ in range(CALLS)) * 1e6
        cycles = CYCLES
        while True:
            before, *events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * CALLS + 1)]
            pairs = list(zip(events[::2], events[1::2], strict=True))
            before.record()
            torch.cuda._sleep(cycles)
            began = time.perf_counter()
            for start, end in pairs:
                self._clear.zero_()
                start.record()
                call()
                end.record()
            queued = (time.perf_counter() - began) * 1e3
            wait(self.device)
            slept = before.elapsed_time(events[0])  # also includes the first clearing, which is much shorter
            if queued < slept or cycles >= MOST_CYCLES:
                return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3
            cycles *= 4

    def host_us(self, call: Call) -> float:
        """The host's time of a call; 0 on a CPU, where it is part of the measured time."""
        return 0.0 if self.device == "cpu" else host_us(call, self.device, 40, 5, min)
