"""Runs tasks in several processes. If a process dies or hangs, its current task is lost, and a new process replaces it.

Processes are forked, because importing everything takes as long as the checks. A free process takes the next task. For
a GPU, new processes are started instead, because a CUDA context does not survive a fork; each of them builds the task
list again.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ...cpp import background

Task = Callable[[], Any]
Tasks = Callable[[], AbstractContextManager[Sequence[Task]]]

PATIENCE = 300.0  # seconds after which a task counts as hanging


class Lost:
    """The outcome of a task that could not be finished; `why` is the reason."""

    def __init__(self, why: str):
        self.why = why


def cores() -> int:
    """The number of workers to use."""
    if not hasattr(os, "fork") or sys.platform == "darwin":  # macOS: system libraries fail after a fork
        return 1
    return background.usable_cores()


def attempt(task: Task) -> Any:
    """The result of a task; Lost if the task raises."""
    try:
        return task()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Lost(f"raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})")


@dataclass
class Member:
    """A process, the numbers of the tasks that it takes, and the task that it is running."""

    process: Any
    queue: deque[int]  # several processes may share a queue
    at: int | None = None
    since: float = 0.0
    began: bool = False


class Workers:
    """Processes that work on a list of tasks. They start immediately. `results` yields the outcomes."""

    def __init__(self, tasks: Sequence[Task], workers: int, until: float = math.inf):
        """Fork the workers; if `workers` is 1, this process works. No task starts after `until` (monotonic clock)."""
        self._here, self._until = tasks, until
        self._members: dict[Connection, Member] = {}
        if workers > 1:
            importlib.import_module("torch._dynamo")  # fake tensors need it; import it here, not in each worker
            queue = deque(range(len(tasks)))
            self._start("fork", partial(_on_one_core, tasks), [queue] * min(workers, len(tasks)))

    @classmethod
    def fresh(
        cls,
        tasks: Tasks,
        queues: Sequence[Sequence[int]],
        until: float,
        ends: Callable[[Any], bool],
        patience: float | None = None,
    ) -> Workers:
        """Start a process per queue of task numbers. If `ends` is true for an outcome, a new process continues."""
        workers = cls((), 1, until)
        workers._start("spawn", tasks, [deque(q) for q in queues if q], ends, patience)
        return workers

    def _start(
        self,
        method: str,
        tasks: Tasks,
        queues: list[deque[int]],
        ends: Callable[[Any], bool] = lambda outcome: False,
        patience: float | None = None,
    ) -> None:
        self._context: Any = multiprocessing.get_context(method)
        self._tasks, self._ends, self._patience = tasks, ends, patience or PATIENCE
        for queue in queues:
            self._hire(queue)

    def results(self, started: Callable[[int], None] = lambda at: None) -> Iterator[tuple[int, Any]]:
        """Yields the index and outcome of each task when it is done."""
        if not self._members:
            for at, task in enumerate(self._here):
                if time.monotonic() >= self._until:
                    return
                started(at)
                yield at, attempt(task)
        try:
            while self._members:
                for pipe in wait(list(self._members), timeout=1.0):
                    assert isinstance(pipe, Connection)
                    yield from self._hear(pipe, started)
                for late in [m for m in self._members.values() if self._is_late(m)]:
                    late.process.kill()  # that closes the pipe, which `_hear` notices
        finally:
            for member in self._members.values():
                member.process.kill()
                member.process.join()

    def _is_late(self, member: Member) -> bool:
        return member.at is not None and time.monotonic() - member.since > self._patience

    def _hear(self, pipe: Connection, started: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
        member = self._members[pipe]
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            yield from self._left(pipe)
            return
        done, member.at, member.began = member.at, None, True
        if member.queue and time.monotonic() < self._until and not (message and self._ends(message[0])):
            member.at, member.since = member.queue.popleft(), time.monotonic()
            started(member.at)
        with contextlib.suppress(OSError):  # if the process died, the next wait notices the closed pipe
            pipe.send(member.at)
        if message:
            yield done or 0, message[0]

    def _left(self, pipe: Connection) -> Iterator[tuple[int, Any]]:
        """Handle a worker that has exited, either because its work is done or during a task."""
        member = self._members.pop(pipe)
        member.process.join()
        pipe.close()
        if member.at is not None:
            code = member.process.exitcode
            died = f"took its process down ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
            yield member.at, Lost(f"was stopped after {self._patience:.0f} s" if self._is_late(member) else died)
        if member.began and member.queue and time.monotonic() < self._until:
            self._hire(member.queue)

    def _hire(self, queue: deque[int]) -> None:
        own_end, child_end = self._context.Pipe()
        inherited = [*self._members, own_end] if self._context.get_start_method() == "fork" else []
        process = self._context.Process(target=_work, args=(self._tasks, child_end, inherited), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # no thread holds a lock that a task needs
            process.start()
        child_end.close()
        self._members[own_end] = Member(process, queue)


def _work(tasks: Tasks, pipe: Connection, inherited: Sequence[Connection]) -> None:
    """The main function of a process: reports that it is ready, then runs the tasks whose numbers it gets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for end in inherited:
        end.close()  # otherwise the pipes would stay open when the parent ends
    with tasks() as work:
        pipe.send(None)
        while (at := pipe.recv()) is not None:
            pipe.send((attempt(work[at]),))


@contextlib.contextmanager
def _on_one_core(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    torch.set_num_threads(1)  # several workers that each use every core are slower than one
    yield tasks
