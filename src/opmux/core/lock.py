"""The one lock of core: taken to change what is registered or bound, never on a call's path, replaced after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


class ForkSafeLock:
    """A re-entrant lock. A child process gets a new one: the thread that held the old one does not exist there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hooked = False
        self.after_fork: list[Callable[[], None]] = []  # run in the child, with nothing locked

    def __enter__(self) -> ForkSafeLock:
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._renew)
        self._lock.acquire()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()
        for callback in tuple(self.after_fork):
            callback()


lock = ForkSafeLock()
