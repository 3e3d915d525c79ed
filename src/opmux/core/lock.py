"""Locks that are replaced after a fork, and the one of core: taken to change what is registered or bound, never on a
call's path, nor while something is compiled.

Use it as `with lock.held:`. That enters a lock made in C: between taking it and the first line of the block there is no
Python code in which Ctrl-C could arrive and leave it taken for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any


class ForkSafeLock:
    """A re-entrant lock. A child process gets a new one: the thread that held the old one does not exist there."""

    def __init__(self) -> None:
        self.held = threading.RLock()
        self.after_fork: list[Callable[[], None]] = []  # run in the child, with nothing locked
        self._armed = False

    def arm(self) -> ForkSafeLock:
        """Ask to be told of forks; once is enough, and before the first use is early enough."""
        if not self._armed:
            self._armed = True
            os.register_at_fork(after_in_child=self._renew)
        return self

    def _renew(self) -> None:
        self.held = threading.RLock()
        for callback in tuple(self.after_fork):
            callback()


lock = ForkSafeLock()


if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:
        """functools.cached_property without a lock. In Python 3.11 it has one for all objects of a class, taken while
        the value is computed: a child process whose parent was computing one would wait for ever."""

        def __init__(self, compute: Callable[[Any], Any]):
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))


__all__ = ["ForkSafeLock", "cached_property", "lock"]
