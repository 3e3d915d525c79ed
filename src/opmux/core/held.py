"""Device memory that opmux holds between calls, and the one call that releases it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

V = TypeVar("V")

_release: list[Callable[[], None]] = []


def empty_cache() -> None:
    """Release all device memory that opmux holds between calls; the next calls allocate it again.

    The memory holds small tensors: tables that assign each program of a launch to a tensor of a list, the order of amax
    histories, weights of ones for norms without a weight, and random states for attention without dropout. Tensors that
    a CUDA graph uses are kept, because nothing reports when a graph is freed. To return the memory to the driver, call
    `torch.cuda.empty_cache()` afterwards.
    """
    for release in _release:
        release()


def on_empty_cache(release: Callable[[], None]) -> None:
    """Make `empty_cache` call `release`."""
    _release.append(release)


class HeldTensors(Generic[V]):
    """A cache of tensors for at most `most` keys. `empty_cache` keeps only tensors that a captured CUDA graph uses."""

    def __init__(self, most: int = 256):
        self.most = most
        self.cached: dict[Hashable, V] = {}
        self.captured: dict[Hashable, V] = {}
        on_empty_cache(self.cached.clear)

    def get(self, key: Hashable, make: Callable[[], V], *, cuda: bool) -> V:
        """The cached tensors of this key, else those that `make` returns. `cuda`: whether they are on a CUDA device."""
        capturing = cuda and torch.cuda.is_current_stream_capturing()
        value = self.cached.get(key)
        if value is None:
            value = self.captured.get(key)
        if value is None:
            value = make()
            if capturing:  # allocated in the graph's memory pool, so it must not be cached
                return value
            while len(self.cached) >= self.most:
                self.cached.pop(next(iter(self.cached)), None)
            self.cached[key] = value
        if capturing:
            self.captured[key] = value
        return value
