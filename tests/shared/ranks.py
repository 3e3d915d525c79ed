"""Start processes as the ranks of a group, each forked from a process that has imported torch."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

mp.set_forkserver_preload(["torch"])  # otherwise every rank spends two to three seconds on the import


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(rank: Callable[[int, int, Any], None], count: int = 2) -> dict[Any, Any]:
    """Run `rank(number, port, answers)` in each rank; return the dict `answers` that they fill."""
    with mp.get_context("forkserver").Manager() as manager:
        answers = manager.dict()
        mp.start_processes(rank, (port(), answers), nprocs=count, start_method="forkserver")
        return dict(answers)
