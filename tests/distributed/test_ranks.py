"""Two processes over gloo: `opmux.sync` compares the ranks' selections, or adopts those of rank 0."""

from __future__ import annotations

import os

import pytest
import ranks
import torch
import torch.distributed as dist

import opmux
from opmux.core import BackendImplKind, OpImpl, RanksDiffer, get_default_manager

MARKS = {"a": 1.0, "b": 2.0}  # each vendor's rms_norm returns its value as rstd, so the test can tell which one ran


def _impl(vendor):
    def rms_norm(x, weight, eps, offset):
        return x.clone(), torch.tensor(MARKS[vendor])

    return OpImpl("rms_norm", f"vendor.{vendor}", BackendImplKind.VENDOR, vendor, rms_norm)


def _rank(rank: int, port: int, answers) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        for case in ("same", "lacking", "adopt"):
            answers[rank, case] = _answer(rank, case)
    finally:
        dist.destroy_process_group()


def _answer(rank: int, case: str) -> str:
    vendors = {"same": "", "lacking": "a" if rank else "ab", "adopt": "ab"}[case]
    registry = get_default_manager().registry
    registry.register_many([_impl(vendor) for vendor in vendors])
    try:
        if case == "adopt" and rank == 0:
            opmux.set_policy(per_op={"rms_norm": "vendor:b"})
        try:
            result = opmux.sync(mode="error" if case == "same" else "adopt")
        except RanksDiffer as error:
            return f"RanksDiffer: {error}"
        value = opmux.ops.rms_norm(torch.ones(2), torch.ones(2))[1].item() if case == "adopt" else ""
        return f"{result} {value} {opmux.sync()}"
    finally:
        for vendor in vendors:
            registry.unregister("rms_norm", f"vendor.{vendor}")


@pytest.fixture(scope="module")
def answers():
    """The results of each rank in each case. The same two processes run all cases, because starting a process takes
    seconds.
    """
    return ranks.run(_rank)


def both(answers, case):
    return [answers[rank, case] for rank in (0, 1)]


def test_sync_returns_true_if_the_ranks_agree(answers):
    assert both(answers, "same") == ["True  True"] * 2


def test_adopt_makes_every_rank_use_the_selection_of_rank_0(answers):
    assert both(answers, "adopt") == [f"False {MARKS['b']} True"] * 2


def test_an_impl_missing_on_one_rank_raises_on_every_rank(answers):
    for message in both(answers, "lacking"):
        assert message.startswith("RanksDiffer") and "vendor.b" in message


def test_an_unknown_mode_raises_before_any_communication():
    with pytest.raises(ValueError, match="mode must be one of"):
        opmux.sync(mode="fix")
