"""The backward of attention in the interpreter, with tiles loaded through pointers and through TMA."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import attention as kernels
from opmux.kernels import attention_general as general_kernels
from opmux.kernels.lib import attention as lib
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget
from opmux.specs import attention as spec
from opmux.specs import attention_general as general_spec

MODE = "interpret"


@pytest.fixture(params=[False, True], ids=["pointers", "engine"], autouse=True)
def engine(monkeypatch, request):
    tiles = Tiles(128, 2, BLOCK_M=16, BLOCK_N=16, ENGINE=request.param)
    launched = []
    launch = lib.AttentionProblem.launch

    def seen(self, kernel, tiles, *rest):
        launched.append((kernel, tiles["ENGINE"] if "ENGINE" in tiles.sizes else False))
        return launch(self, kernel, tiles, *rest)

    monkeypatch.setattr(lib, "bwd_kv_tiles", lambda **facts: tiles)
    monkeypatch.setattr(lib.AttentionProblem, "launch", seen)
    forget()
    yield lambda: [by for kernel, by in launched if kernel is lib.backward_kv] == [request.param]
    forget()


def close(got, want):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


def dense(batch, heads, length, dim, seq_first):
    if seq_first:
        return torch.randn(batch, length, heads, dim).transpose(1, 2)
    return torch.randn(batch, heads, length, dim)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seq_first", [True, False])
def test_dense_batches_agree_with_the_reference(engine, causal, seq_first):
    """Tests lengths that are no multiples of a tile, and two query heads per key head."""
    q, do = (dense(2, 4, 37, 16, seq_first) for _ in range(2))
    k, v = (dense(2, 2, 45, 16, seq_first) for _ in range(2))
    o, lse = spec.attention.reference(q, k, v, causal, None)
    args = (do, q, k, v, o, lse, causal, None)
    close(kernels.attention_bwd(*args), spec.attention_bwd.reference(*args))
    assert engine()


def test_unaligned_tensors_are_copied_for_tma(engine):
    """The kernel's wrapper makes the copy: the caller's tensor does not change."""
    whole = torch.randn(1 + 2 * 20 * 16)
    q = whole[1:].view(1, 2, 20, 16)
    k, v, do = (dense(1, 2, 20, 16, False) for _ in range(3))
    o, lse = spec.attention.reference(q, k, v, True, None)
    args, before = (do, q, k, v, o, lse, True, None), whole.clone()
    close(kernels.attention_bwd(*args), spec.attention_bwd.reference(*args))
    assert engine() and torch.equal(whole, before)


def test_packed_sequences_in_a_window_agree_with_the_reference(engine):
    cu = torch.tensor([0, 19, 19, 50], dtype=torch.int32)
    q, do = torch.randn(50, 4, 16), torch.randn(50, 4, 16)
    k, v = torch.randn(50, 2, 16), torch.randn(50, 2, 16)
    options = (cu, cu, 31, 31, 9, 0, None)
    o, lse = spec.attention_varlen.reference(q, k, v, *options)
    args = (do, q, k, v, o, lse, *options)
    close(kernels.attention_varlen_bwd(*args), spec.attention_varlen_bwd.reference(*args))
    assert engine()


def test_sinks_and_soft_caps_agree_with_the_reference(engine):
    q, do, k, v = (dense(1, 2, 33, 16, False) for _ in range(4))
    nothing = (None,) * 5
    options = (0, 0, -1, 0, True, 5.0, 0.0, None)
    sink = torch.randn(2)
    o, lse = general_spec.attention_general.reference(q, k, v, None, None, sink, *nothing, *options, False)
    args = (do, q, k, v, o, lse, None, None, sink, *nothing, *options, False, False)
    got, want = general_kernels.attention_general_bwd(*args), general_spec.attention_general_bwd.reference(*args)
    close(got, want)
    assert engine()


@pytest.mark.parametrize("why", ["rows that repeat", "rows between 16 bytes", "a dim that is no power of 2"])
def test_tensors_that_tma_cannot_load_are_loaded_through_pointers(engine, why, request):
    q, k, v = (dense(1, 2, 20, 12 if "dim" in why else 16, False) for _ in range(3))
    if why == "rows that repeat":
        k = k[:, :, :1].expand(k.shape)
    elif why == "rows between 16 bytes":
        v = torch.randn(1, 2, 20, 17)[..., :16]
    o, lse = spec.attention.reference(q, k, v, True, None)
    args = (torch.randn_like(o), q, k, v, o, lse, True, None)
    close(kernels.attention_bwd(*args), spec.attention_bwd.reference(*args))
    assert engine() == ("engine" not in request.node.name.partition("[")[2])
