"""Device memory that opmux holds between calls, and the one call that releases it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

V = TypeVar("V")

_release: list[Callable[[], None]] = []


def empty_cache() -> None:
    """Release all device memory that opmux holds between calls; the next calls allocate it again.

    These are small tables: which tensor of a list each part of a launch belongs to, the order of amax histories, the
    weight of ones of a norm without a weight, the random state of attention without dropout. Memory that a CUDA graph
    was captured with is kept, as nothing says when a graph is gone. To return the memory to the driver, call
    `torch.cuda.empty_cache()` afterwards.
    """
    for release in _release:
        release()


def on_empty_cache(release: Callable[[], None]) -> None:
    """Have `empty_cache` call this."""
    _release.append(release)


class Held(Generic[V]):
    """Tensors by key, at most `most`. `empty_cache` drops them, but for those that a CUDA graph was captured with."""

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
            if capturing:  # in the memory of the graph, which is not ours to keep
                return found
            while len(self.found) >= self.most:
                self.found.pop(next(iter(self.found)), None)
            self.found[key] = found
        if capturing:
            self.captured[key] = found
        return found
