"""Two processes over gloo: bindings are compared, and rank 0's adopted."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import opmux
from opmux.core import BackendImplKind, OpImpl, RanksDiffer, get_default_manager


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


MARKS = {"a": 1.0, "b": 2.0}  # what each vendor's rms_norm returns as rstd, to tell which one ran


def _impl(vendor):
    def rms_norm(x, weight, eps, offset):
        return x.clone(), torch.tensor(MARKS[vendor])

    return OpImpl("rms_norm", f"vendor.{vendor}", BackendImplKind.VENDOR, vendor, rms_norm)


def _rank(rank: int, port: int, case: str, answers) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    registry = get_default_manager().registry
    try:
        if case != "same":
            registry.register_many([_impl("a"), _impl("b")] if case != "lacking" or rank == 0 else [_impl("a")])
        if case == "adopt" and rank == 0:
            opmux.set_policy(per_op={"rms_norm": "vendor:b"})
        try:
            result = opmux.sync(mode="adopt" if case in ("adopt", "lacking") else "error")
        except RanksDiffer as error:
            answers[rank] = f"RanksDiffer: {error}"
            return
        ran = opmux.ops.rms_norm(torch.ones(2), torch.ones(2))[1].item() if case == "adopt" else ""
        answers[rank] = f"{result} {ran} {opmux.sync()}"
    finally:
        dist.destroy_process_group()


def run(case: str) -> list[str]:
    answers = mp.get_context("spawn").Manager().dict()
    mp.spawn(_rank, (_port(), case, answers), nprocs=2)
    return [answers[0], answers[1]]


def test_ranks_that_agree():
    assert run("same") == ["True  True"] * 2


def test_adopting_rank_0():
    assert run("adopt") == [f"False {MARKS['b']} True"] * 2


def test_an_impl_that_a_rank_lacks_is_an_error_on_every_rank():
    for said in run("lacking"):
        assert said.startswith("RanksDiffer") and "vendor.b" in said


def test_a_wrong_mode_is_said_before_anything_is_sent():
    with pytest.raises(ValueError, match="mode must be one of"):
        opmux.sync(mode="fix")
