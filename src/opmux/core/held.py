"""Device memory that opmux holds between calls, and the one call that releases it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

V = TypeVar("V")

_release: list[Callable[[], None]] = []


def empty_cache() -> None:
    """Release all device memory that opmux holds between calls; the next calls allocate it again.

    These are small tables: the tensor of a list that each part of a launch belongs to, the order of amax histories, the
    weight of ones of a norm without a weight, and the random state of attention without dropout. Tables used by a CUDA
    graph are kept, because nothing reports when a graph is gone. To return the memory to the driver, call
    `torch.cuda.empty_cache()` afterwards.
    """
    for release in _release:
        release()


def on_empty_cache(release: Callable[[], None]) -> None:
    """Make `empty_cache` call `release`."""
    _release.append(release)


class HeldTensors(Generic[V]):
    """Tensors by key, at most `most`. `empty_cache` drops all except those that a CUDA graph was captured with."""

    def __init__(self, most: int = 256):
        self.most = most
        self.found: dict[Hashable, V] = {}
        self.captured: dict[Hashable, V] = {}
        on_empty_cache(self.found.clear)

    def get(self, key: Hashable, make: Callable[[], V], *, cuda: bool) -> V:
        """The tensors of this key, or those that `make` makes; `cuda` says whether they are on a CUDA device."""
        capturing = cuda and torch.cuda.is_current_stream_capturing()
        found = self.found.get(key)
        if found is None:
            found = self.captured.get(key)
        if found is None:
            found = make()
            if capturing:  # allocated in the graph's memory pool, so it must not be cached
                return found
            while len(self.found) >= self.most:
                self.found.pop(next(iter(self.found)), None)
            self.found[key] = found
        if capturing:
            self.captured[key] = found
        return found
