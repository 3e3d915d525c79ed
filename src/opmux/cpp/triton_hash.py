"""Computes the hash of Triton's files in a thread.

The hash is part of every key in Triton's cache, so the first launch in a process needs it. Computing it reads 500 MB
and takes 0.3 to 1 s. `start` is called as soon as it is known that kernels will be launched. Importing this module does
not import Triton.
"""

from __future__ import annotations

import functools
import threading

from ..core.lock import ForkSafeLock
from . import background


class _State:
    lock = ForkSafeLock().arm()
    started = False
    running: threading.Event | None = None  # set when the thread has computed the hash


def start() -> None:
    """Compute the hash in a thread, once in a process."""
    with _State.lock.held:
        if _State.started:
            return
        _State.started, _State.running = True, threading.Event()
    try:
        background.later(0.0, functools.partial(_run, _State.running))
    except RuntimeError:  # no more threads can be started, or Python is ending
        _State.running = None


def wait() -> None:
    """Wait until the thread, if one was started, has computed the hash: else Triton would compute it a second time."""
    if (running := _State.running) is not None:
        running.wait()


def compute() -> None:
    """Compute the hash now. Triton keeps it for the rest of the process."""
    try:
        from triton.runtime.cache import triton_key
    except ImportError:  # Triton is not installed, or has another name for it
        return
    triton_key()


def _run(finished: threading.Event) -> None:
    try:
        compute()
    finally:
        finished.set()


def _forget() -> None:
    _State.running = None  # a forked child does not have the thread


_State.lock.after_fork.append(_forget)
