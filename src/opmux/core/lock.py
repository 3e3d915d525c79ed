"""Locks that are replaced after a fork, and `lock`, core's own.

Core holds its lock while registrations or bindings change, but never during an op's call or a compilation. Use it as
`with lock.held:`, which enters the C lock directly. With a Python `__enter__`, a Ctrl-C between acquiring the lock and
the first line of the block would leave it locked forever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet


class ForkSafeLock:
    """A re-entrant lock. A forked child gets a new one: the thread that holds the old one is not in the child."""

    def __init__(self) -> None:
        self.held = threading.RLock()
        self.after_fork: list[Callable[[], None]] = []  # run in the child, with the lock free
        self._armed = False

    def arm(self) -> ForkSafeLock:
        """Register the fork handler; call it before the first use."""
        if not self._armed:
            self._armed = True
            os.register_at_fork(after_in_child=self._renew)
        return self

    def _renew(self) -> None:
        self.held = threading.RLock()
        for callback in tuple(self.after_fork):
            callback()


lock = ForkSafeLock()


class Attempt:
    """This thread's attempt to do some work. It holds the lock while it works, and releases it if any line raises."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        self.thread = threading.current_thread()
        self.threads = WeakSet(threading.enumerate())  # the threads that existed when the attempt began

    def is_running(self) -> bool:
        return self.held.locked() and self.thread in threading.enumerate()  # False in a fork made by another thread


if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:
        """functools.cached_property without a lock. Python 3.11's has one lock per class, held while the value is
        computed. A child forked at that moment would wait for the lock forever.
        """

        def __init__(self, compute: Callable[[Any], Any]):
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))


__all__ = ["Attempt", "ForkSafeLock", "cached_property", "lock"]
