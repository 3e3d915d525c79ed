"""Rotary embeddings and gated units are one launch in each direction, and allocate only their results."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import BackendImplKind, get_default_manager, specs
from opmux.kernels.lib import launch

MODE = "interpret"
HALVES = torch.randn(4, 32)
A, B, DY = HALVES[:, :16], HALVES[:, 16:], torch.randn(4, 16)
Q, K = torch.randn(2, 3, 4, 8).transpose(1, 2), torch.randn(2, 3, 1, 8).transpose(1, 2)
TABLE = torch.randn(1, 3, 8)


CALLS = {
    "silu_mul": (A, B),
    "silu_mul_bwd": (DY, A, B),
    "gelu_tanh_mul": (A, B),
    "gelu_tanh_mul_bwd": (DY, A, B),
    "silu_glu": (HALVES,),
    "silu_glu_bwd": (DY, HALVES),
    "rope_qk": (Q, K, TABLE, TABLE, "bhsd", "bshd", False, False),
    "rope_qk_bwd": (Q, K, TABLE, TABLE, "bhsd", "bshd", False, False),
}


@pytest.mark.parametrize("name", CALLS)
def test_rope_and_gated_units_take_one_launch(name, monkeypatch):
    manager = get_default_manager()
    manager.prepare()
    specs.load_implementers(specs.find(name).family)
    impls = manager.registry.get_implementations(f"opmux::{name}") or []
    (fn,) = (i.fn for i in impls if i.kind is BackendImplKind.DEFAULT and i.vendor is None)
    launches, allocated, call, empty = [], [], launch.Launcher.__call__, torch.empty_strided
    monkeypatch.setattr(launch.Launcher, "__call__", lambda *args: (launches.append(args), call(*args))[1])
    monkeypatch.setattr(torch, "empty_strided", lambda *a, **k: (allocated.append(a), empty(*a, **k))[1])
    got = fn(*CALLS[name])
    assert len(launches) == 1 and len(allocated) == (len(got) if isinstance(got, tuple) else 1)
