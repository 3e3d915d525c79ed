"""The rope kernels, interpreted, also as parts of tex's functions: samples, invalid arguments, and other cases."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton")
from opmux.core.errors import BadArgument
from opmux.faces.tex.ops import rope as tex
from opmux.kernels import rope as kernels
from opmux.specs import rope as spec

MODE = "interpret"
CPU = torch.device("cpu")
TEX = (
    tex.fused_rope_forward,
    tex.fused_rope_backward,
    tex.fused_qkv_rope_forward,
    tex.fused_qkv_rope_backward,
)
by_name = {"ids": lambda v: v.spec.name}


def ours(op):
    """Our kernel of an op. For a tex function, return that function with our kernels as its parts."""
    adapter = op.spec.adapter
    if adapter is None:
        return getattr(kernels, op.spec.name)
    return adapter.bind({s.key: getattr(kernels, s.name) for s in adapter.over})


def same(op, *args):
    got, want = ours(op)(*args), op.spec.reference(*args)
    assert type(got) is type(want)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for a, b in pairs:
        tol = op.spec.tol[b.dtype]
        assert a.is_contiguous()
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)


@pytest.mark.parametrize("op", TEX, **by_name)
def test_tex_functions_agree_with_the_references(op):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for sample in op.spec.samples(dtype, CPU):
            same(op, *sample.args)
    for bad in (b for b in op.spec.errors(CPU) if b.typed):
        with pytest.raises(BadArgument) as raised:
            ours(op)(*bad.args)
        assert re.search(bad.match, str(op.spec.adapter.rename(raised.value))), bad.id


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape, d2", [((3, 2, 5, 24), 24), ((2, 3, 40, 10), 6), ((2, 1, 1, 2), 2), ((2, 2, 2, 7), 0)])
def test_heads_that_fill_no_block_agree_with_the_reference(shape, d2, interleaved):
    x = torch.randn(shape)
    angles = torch.randn(shape[0], d2) * 100
    for op in (spec.rope_fwd, spec.rope_bwd):
        same(op, x, angles, None, None, None, "sbhd", interleaved, 1, 0)


def test_views_are_not_copied():
    """Tests heads inside a packed tensor, every other element, and a dimension with stride 0."""
    packed = torch.randn(4, 2, 3, 40)
    angles = torch.randn(4, 16)
    views = (packed[..., 8:24], packed[..., ::2][..., :16], packed[:, :1, :, 4:20].expand(4, 2, 3, 16))
    for x in views:
        for op in (spec.rope_fwd, spec.rope_bwd):
            same(op, x, angles, None, None, None, "sbhd", False, 1, 0)


def test_positions_beyond_the_table_are_not_rotated():
    x, angles = torch.randn(2, 4, 3, 8), torch.randn(5, 8)
    starts = torch.tensor([3, -2], dtype=torch.int32)
    same(spec.rope_fwd, x, angles, None, starts, None, "bshd", False, 1, 0)
    got = kernels.rope_fwd(x, angles, None, starts, None, "bshd", False, 1, 0)
    assert torch.equal(got[0, 2:], x[0, 2:]) and torch.equal(got[1, :2], x[1, :2])
    assert not torch.equal(got[0, 0], x[0, 0])


def test_tokens_without_a_sequence_are_not_rotated():
    x, angles = torch.randn(9, 2, 8), torch.randn(9, 8)
    edges = torch.tensor([2, 5, 5, 7])
    same(spec.rope_fwd, x, angles, None, None, edges, "thd", True, 1, 0)
    got = kernels.rope_fwd(x, angles, None, None, edges, "thd", True, 1, 0)
    assert torch.equal(got[:2], x[:2]) and torch.equal(got[7:], x[7:])


def test_cu_seqlens_are_ignored_in_formats_without_them():
    x, freqs = torch.randn(4, 2, 3, 8), torch.randn(4, 1, 1, 8)
    edges = torch.tensor([0, 4, 8], dtype=torch.int32)
    same(tex.fused_rope_forward, x, freqs, None, 0, False, edges, 1, 0)


@pytest.mark.parametrize("op, dtype", [(spec.rope_qk, torch.float32), (spec.rope_qk_bwd, torch.bfloat16)])
def test_q_and_k_may_have_results_in_another_layout(op, dtype):
    """Runs every sample with the dimensions of heads and sequence exchanged in the memory layout of the results."""
    for sample in op.spec.samples(dtype, CPU):
        q, k, cos, sin, layout, _, *options = sample.args
        args = q, k, cos, sin, layout, "bshd" if layout == "bhsd" else "bhsd", *options
        for x, got, want in zip((q, k), ours(op)(*args), op.spec.reference(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=op.spec.tol[dtype].rtol, atol=op.spec.tol[dtype].atol)
            assert got.transpose(1, 2).is_contiguous() and got.shape == x.shape and got.dtype is dtype


def test_many_heads_take_several_programs():
    """q and k have more rows than fit in a block, and no power of two of them. Tests one table for all sequences, and
    one per sequence.
    """
    q, k = torch.randn(3, 2, 40, 128), torch.randn(3, 2, 5, 128)
    for b in (1, 3):
        cos, sin = torch.randn(b, 2, 96), torch.randn(b, 2, 96)
        args = q, k, cos, sin, "bshd", "bshd", False, False
        torch.testing.assert_close(kernels.rope_qk(*args), spec.rope_qk.reference(*args))


def test_tables_with_any_strides_agree_with_the_reference():
    q, k, cos = torch.randn(2, 3, 4, 8), torch.randn(2, 1, 4, 8), torch.randn(1, 4, 8)
    sin = torch.randn(1, 8, 4).transpose(1, 2)
    args = q, k, cos, sin, "bhsd", "bhsd", False, False
    torch.testing.assert_close(kernels.rope_qk(*args), spec.rope_qk.reference(*args))
