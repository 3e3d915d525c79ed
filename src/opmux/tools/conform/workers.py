"""Many small tasks on all cores. Interpreted kernels are Python, and one process is one core.

Workers are forked, as loading everything takes as long as checking it, and take tasks as they become free. One that
dies (a kernel that writes out of bounds) loses its current task, and another one replaces it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ...runtime import background

Task = Callable[[], Any]

PATIENCE = 300.0  # seconds that a task may take in a worker: a kernel may hang


class Lost:
    """The outcome of a task that could not be finished, in words."""

    def __init__(self, why: str):
        self.why = why


def cores() -> int:
    """How many workers are worth having."""
    if not hasattr(os, "fork") or sys.platform == "darwin":  # its system libraries do not stand being forked
        return 1
    return background.usable_cores()


def attempt(task: Task) -> Any:
    """What a task returns; any exception loses only this task."""
    try:
        return task()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Lost(f"raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})")


class Workers:
    """Workers over a list of tasks. They start immediately; `results` yields the outcomes."""

    def __init__(self, tasks: Sequence[Task], workers: int):
        self._tasks = tasks
        self._context = multiprocessing.get_context("fork") if workers > 1 else None
        self._members: dict[Connection, Any] = {}
        self._at: dict[Connection, tuple[int, float]] = {}  # the task that a worker is at, and since when
        if self._context is not None:
            importlib.import_module("torch._dynamo")  # fake tensors need it: seconds, once instead of per worker
            self._next = self._context.Value("l", 0)
            for _ in range(min(workers, len(tasks))):
                self._hire()

    def results(self, started: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
        """Yields the index and outcome of each task when it is done."""
        if self._context is None:
            for at, task in enumerate(self._tasks):
                started(at)
                yield at, attempt(task)
            return
        try:
            while self._members:
                for heard in wait(list(self._members), timeout=1.0):
                    assert isinstance(heard, Connection)
                    yield from self._hear(heard, started)
                for late in [w for w, (_, since) in self._at.items() if time.monotonic() - since > PATIENCE]:
                    self._members[late].kill()  # its pipe ends, and that is heard
        finally:
            self._stop()

    def _hear(self, worker: Connection, started: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
        try:
            at, outcome = worker.recv()
        except (EOFError, OSError):
            yield from self._left(worker)
            return
        if outcome is None:
            self._at[worker] = at, time.monotonic()
            started(at)
        else:
            del self._at[worker]
            yield at, outcome[0]

    def _left(self, worker: Connection) -> Iterator[tuple[int, Any]]:
        """Handle a worker that has exited, with its work done or during a task."""
        member = self._members.pop(worker)
        member.join()
        worker.close()
        if worker in self._at:
            (at, since), code = self._at.pop(worker), member.exitcode
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            late = time.monotonic() - since > PATIENCE
            yield at, Lost(f"was stopped after {PATIENCE:.0f} s" if late else f"took its process down ({how})")
            self._hire()

    def _hire(self) -> None:
        assert self._context is not None
        ours: Any
        ours, theirs = self._context.Pipe(duplex=False)
        member = self._context.Process(target=self._work, args=(theirs,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: none holds a lock that a task takes
            member.start()
        theirs.close()
        self._members[ours] = member

    def _work(self, to: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
        torch.set_num_threads(1)  # several workers that each use every core are slower than one
        while (at := self._take()) < len(self._tasks):
            to.send((at, None))
            to.send((at, (attempt(self._tasks[at]),)))

    def _take(self) -> int:
        with self._next.get_lock():
            self._next.value += 1
            return self._next.value - 1

    def _stop(self) -> None:
        for member in self._members.values():
            member.terminate()
            member.join(timeout=5)
