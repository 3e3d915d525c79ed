"""The cases of `opmux conform --real` in several processes: most of their time goes into compiling kernels.

Each process has ops of its own. One that dies costs the case it was at; one whose device a kernel has broken (after an
illegal access every call fails) leaves by itself; another takes its place either way. They are started afresh, not
forked: a CUDA context does not survive that.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ...core.default import get_default_manager
from ...core.tensors import dtype_name
from .asked import settled, wanted_by
from .real import FAIL, Case, Outcome, cases

BROKEN = ("CUDA error", "AcceleratorError", "HIP error", "device-side assert")  # words of errors that stay
MOST_KEPT = 4 << 30  # bytes of a device's memory that a process keeps between cases
PATIENCE = 300.0  # seconds that one case may take


def outcomes(
    asked: Any, found: Sequence[Case], device: torch.device, until: float, jobs: int
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each case with its number, until the time is up."""
    if jobs == 1:
        for at, case in enumerate(found):
            if time.time() >= until:
                return
            yield at, attempt(case, device)
        return
    place = {op: i for i, op in enumerate(dict.fromkeys(c.op for c in found))}
    shares = [[i for i, c in enumerate(found) if place[c.op] % jobs == k] for k in range(jobs)]
    members = [Member.start(asked, device, share, until) for share in shares if share]
    try:
        while members:
            for heard in wait([m.pipe for m in members], timeout=1.0):
                member = next(m for m in members if m.pipe is heard)
                try:
                    at, outcome = member.pipe.recv()
                except (EOFError, OSError):
                    members.remove(member)
                    lost = member.left(found)
                    yield from [lost] if lost is not None else []
                    members += member.again(until)
                else:
                    member.at, member.since = (at, time.time()) if outcome is None else (None, 0.0)
                    if outcome is not None:
                        member.share = member.share[member.share.index(at) + 1 :]
                        yield at, outcome
            for late in [m for m in members if m.at is not None and time.time() - m.since > PATIENCE]:
                late.process.kill()  # its pipe ends, and that is heard
    finally:
        for member in members:
            member.process.kill()
            member.process.join()


def attempt(case: Case, device: torch.device) -> Outcome:
    made = case.run(device)
    get_default_manager().clear_quarantine()
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > MOST_KEPT:
        torch.cuda.empty_cache()  # other processes need it
    return made


@dataclass
class Member:
    """A process and the numbers of the cases it still has to do."""

    asked: Any
    device: torch.device
    share: list[int]
    pipe: Connection
    process: Any
    at: int | None = None  # the case it is at
    since: float = 0.0

    @classmethod
    def start(cls, asked: Any, device: torch.device, share: list[int], until: float) -> Member:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(asked, str(device), share, until, theirs), daemon=True)
        process.start()
        theirs.close()
        return cls(asked, device, share, ours, process)

    def left(self, found: Sequence[Case]) -> tuple[int, Outcome] | None:
        """The case during which a process died."""
        self.process.join()
        if self.at is None:
            return None
        case, at = found[self.at], self.at
        self.share = self.share[self.share.index(at) + 1 :]
        why = f"took its process down (exit code {self.process.exitcode})"
        return at, Outcome(case.op, case.words, dtype_name(case.dtype), list(case.models), FAIL, why)

    def again(self, until: float) -> list[Member]:
        """Another process for the rest; none where there is no rest, no time, or where it never began."""
        began = self.at is not None or self.process.exitcode == 0
        if not self.share or time.time() >= until or not began:
            return []
        return [Member.start(self.asked, self.device, self.share, until)]


def work(asked: Any, device: str, share: list[int], until: float, to: Connection) -> None:
    """One process: the same list of cases, made again, and these numbers of it."""
    there = torch.device(device)
    torch.set_num_threads(1 if there.type != "cpu" else torch.get_num_threads())
    with settled():
        found = cases(wanted_by(replace(asked, device=device)), there)
        for at in share:
            if time.time() >= until:
                return
            to.send((at, None))
            outcome = attempt(found[at], there)
            to.send((at, outcome))
            if outcome.status == FAIL and any(word in (outcome.reason or "") for word in BROKEN):
                sys.exit(0)
