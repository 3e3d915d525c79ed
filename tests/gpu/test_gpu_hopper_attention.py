"""Attention in Gluon on a Hopper chip, compared with float64 and torch's kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from impls import refusal

from opmux.core import get_default_manager
from opmux.specs import attention as spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="not a Hopper chip"
    ),
]
CUDA = torch.device("cuda")
GLUON = "default.flagos.nvidia.hopper"


def gluon(op, *args):
    impls = get_default_manager().registry.get_implementations(op)
    impl = next(i for i in impls if i.impl_id == GLUON)
    assert refusal(impl, *args) is None
    return impl.fn(*args)


def new(b, h, s, d, dtype, layout):
    if layout == "heads first":
        return torch.randn(b, h, s, d, device=CUDA, dtype=dtype)
    if layout == "sequence first":
        return torch.randn(b, s, h, d, device=CUDA, dtype=dtype).transpose(1, 2)
    if layout == "odd start":
        return torch.randn(1 + b * h * s * d, device=CUDA, dtype=dtype)[1:].view(b, h, s, d)
    if layout == "odd rows":
        return torch.randn(b, h, s, d + 1, device=CUDA, dtype=dtype)[..., :d]
    assert layout == "one head for all"
    return torch.randn(b, 1, s, d, device=CUDA, dtype=dtype).expand(b, h, s, d)


def exact(do, q, k, v, causal):
    """Compute outputs and gradients in float64; a query that attends to no key has the output 0."""
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
    if causal:
        visible = torch.ones(scores.shape[-2:], device=CUDA, dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        scores = scores.masked_fill(~visible, -torch.inf)
    o = torch.nan_to_num(scores.softmax(-1)) @ v.repeat_interleave(group, 1)
    return [o, scores.logsumexp(-1), *torch.autograd.grad(o, (q, k, v), do.double())]


SIZES = [(256, 256), (1000, 1000), (333, 777), (777, 333), (1, 4000), (130, 1), (4096, 4096)]


@pytest.mark.parametrize("layout", ["heads first", "sequence first"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_dense_attention_is_close_to_float64(queries, keys, dim, causal, layout):
    dtype = torch.float16 if queries == 1000 else torch.bfloat16
    q, do = (new(2, 4, queries, dim, dtype, layout) for _ in range(2))
    k, v = (new(2, 2, keys, dim, dtype, layout) for _ in range(2))
    o, lse = gluon("attention", q, k, v, causal, None)
    result = (o, lse, *gluon("attention_bwd", do, q, k, v, o, lse, causal, None))
    expected = spec.attention.reference(q, k, v, causal, None)
    assert o.stride() == expected[0].stride()
    unseen = torch.isneginf(expected[1])
    assert torch.equal(torch.isneginf(lse), unseen)
    for name, got, want in zip(("o", "lse", "dq", "dk", "dv"), result, exact(do, q, k, v, causal), strict=True):
        want = want.masked_fill(unseen, -torch.inf) if name == "lse" else want.nan_to_num()
        got, want = (t.double().nan_to_num(neginf=0.0) for t in (got, want))
        assert (got - want).norm() <= 0.004 * want.norm() + 1e-4, name


@pytest.mark.parametrize("layout", ["odd start", "odd rows", "one head for all"])
def test_strided_tensors_give_the_bits_of_contiguous_ones(layout):
    q, k, v, do = (new(2, 8, 600, 128, torch.bfloat16, layout) for _ in range(4))
    before = [t.clone() for t in (q, k, v, do)]
    o, lse = gluon("attention", q, k, v, True, 0.1)
    result = (o, *gluon("attention_bwd", do, q, k, v, o, lse, True, 0.1))
    plain = [t.contiguous().clone() for t in (q, k, v, do)]
    o2, lse2 = gluon("attention", *plain[:3], True, 0.1)
    expected = (o2, *gluon("attention_bwd", plain[3], *plain[:3], o2, lse2, True, 0.1))
    assert all(torch.equal(a, b) for a, b in zip((lse, *result), (lse2, *expected), strict=True))
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, do), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_is_as_close_to_float64_as_torchs(dtype, causal, dim):
    q, do = (torch.randn(2, 8, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, 2, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    native = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    torchs = (native.detach(), *torch.autograd.grad(native, leaves, do))
    want = exact(do, q, k, v, causal)
    o, lse = gluon("attention", q, k, v, causal, None)
    result = (o, *gluon("attention_bwd", do, q, k, v, o, lse, causal, None))
    for name, got, theirs, x in zip(("o", "dq", "dk", "dv"), result, torchs, (want[0], *want[2:]), strict=True):
        error = [(t.double() - x).norm() / x.norm() for t in (got, theirs)]
        assert error[0] <= 1.1 * error[1], (name, error)


def test_the_backward_is_deterministic():
    q, do = (torch.randn(4, 16, 777, 128, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(4, 4, 777, 128, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    runs = []
    for _ in range(3):
        o, lse = gluon("attention", q, k, v, True, None)
        runs.append((o, lse, *gluon("attention_bwd", do, q, k, v, o, lse, True, None)))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_nan_in_other_batches_or_masked_keys_does_not_spread():
    """Loads past the end of a sequence read the next sequence. NaN there must not reach the results of the first
    sequence.
    """
    q, do = (torch.randn(2, 4, 200, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(2, 4, 200, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    for t in (q, k, v, do):
        t[1], t[0, 2:] = torch.nan, torch.inf
    o, lse = gluon("attention", q, k, v, True, None)
    for t in (o, lse, *gluon("attention_bwd", do, q, k, v, o, lse, True, None)):
        assert t[0, :2].isfinite().all()


def test_a_declined_call_says_what_is_supported():
    impl = next(i for i in get_default_manager().registry.get_implementations("attention") if i.impl_id == GLUON)
    q = torch.randn(1, 2, 64, 80, device=CUDA, dtype=torch.bfloat16)
    assert refusal(impl, q, q, q, True, None) == "takes heads of 64 or 128 numbers; there are 80 and 80"
    q = q[..., :64].contiguous()
    assert refusal(impl, q.float(), q.float(), q.float(), True, None) == "takes float16 and bfloat16"
    assert refusal(impl, q, q, q, True, -1.0) == "takes a scale above 0; it is -1.0"


# ---- packed sequences -----------------------------------------------------------------------------------------------

LENGTHS = [
    ((300, 0, 1, 517, 128, 129, 64), (300, 5, 700, 33, 128, 129, 0)),
    ((1, 1, 0, 0, 1000), (2000, 1, 3, 0, 1)),
    ((4096, 37, 1024), (4096, 37, 1024)),
    ((16,) * 200, (16,) * 200),
    ((640,), (640,)),
]


def begins(lengths, dtype=torch.int32, first=0):
    return torch.tensor([first, *lengths], device=CUDA).cumsum(0).to(dtype)


def packed(lengths, keys, heads, kv_heads, dim, dtype=torch.bfloat16, before=0, after=0):
    """Return q, k, v, do and the cumulative lengths of queries and keys. Tokens before the first sequence and after the
    last one are NaN.
    """
    parts = []
    for sizes, count in ((lengths, heads), (keys, kv_heads), (keys, kv_heads), (lengths, heads)):
        t = torch.randn(before + sum(sizes) + after, count, dim, device=CUDA, dtype=dtype)
        t[:before], t[t.shape[0] - after :] = torch.nan, torch.nan
        parts.append(t)
    return (*parts, begins(lengths, first=before), begins(keys, first=before))


def by_sequence(q, k, v, do, cu_q, cu_k, causal):
    """Compute outputs and gradients of each sequence in float64. They are 0 for tokens outside of all sequences."""
    o, dq, dk, dv = (torch.zeros_like(t, dtype=torch.float64) for t in (q, q, k, v))
    lse = torch.zeros(q.shape[1], q.shape[0], device=CUDA, dtype=torch.float64)
    for a, b, c, d in zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), cu_k[:-1].tolist(), cu_k[1:].tolist(), strict=True):
        some = [t[span].transpose(0, 1)[None] for t, span in zip((do, q, k, v), map(slice, (a, a, c, c), (b, b, d, d)))]
        if a == b:
            continue
        if c == d:
            lse[:, a:b] = -torch.inf
            continue
        results = exact(*some, causal)
        lse[:, a:b] = results[1][0]
        for to, at, got in zip((o, dq, dk, dv), map(slice, (a, a, c, c), (b, b, d, d)), (results[0], *results[2:])):
            to[at] = got[0].nan_to_num().transpose(0, 1)
    return o, lse, dq, dk, dv


def compared(results, expected):
    for name, got, want in zip(("o", "lse", "dq", "dk", "dv"), results, expected, strict=False):
        assert torch.equal(torch.isneginf(got), torch.isneginf(want)), name
        got, want = (t.double().masked_fill(torch.isneginf(t), 0.0) for t in (got, want))
        assert (got - want).norm() <= 0.004 * want.norm() + 1e-4, name


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dim", "heads", "kv_heads"), [(64, 4, 4), (128, 8, 2)])
@pytest.mark.parametrize(("lengths", "keys"), LENGTHS)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 300), (5, 1)])
def test_packed_attention_is_close_to_float64(lengths, keys, dim, heads, kv_heads, causal, before, after):
    """Input tokens outside of all sequences are NaN; their outputs and gradients are 0."""
    q, k, v, do, cu_q, cu_k = packed(lengths, keys, heads, kv_heads, dim, before=before, after=after)
    rest = (cu_q, cu_k, max(lengths), max(keys), -1, 0 if causal else -1, None)
    o, lse = gluon("attention_varlen", q, k, v, *rest)
    expected = by_sequence(q, k, v, do, cu_q, cu_k, causal)
    compared((o, lse), expected)
    compared((o, lse, *gluon("attention_varlen_bwd", do, q, k, v, o, lse, *rest)), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_in_neighbouring_sequences_does_not_spread(bad):
    lengths = (100, 200, 60, 130)
    q, k, v, do, cu, _ = packed(lengths, lengths, 4, 2, 128)
    rest = (cu, cu, 200, 200, -1, 0, None)
    clean = gluon("attention_varlen", q, k, v, *rest)
    clean = (*clean, *gluon("attention_varlen_bwd", do, q, k, v, *clean, *rest))
    for t in (q, k, v, do):
        t[:100], t[300:360] = bad, bad
    o, lse = gluon("attention_varlen", q, k, v, *rest)
    with_nan = (o, lse, *gluon("attention_varlen_bwd", do, q, k, v, o, lse, *rest))
    for name, got, want in zip(("o", "lse", "dq", "dk", "dv"), with_nan, clean, strict=True):
        for span in (slice(100, 300), slice(360, 490)):
            a, b = (t[:, span] if name == "lse" else t[span] for t in (got, want))
            assert torch.equal(a, b), name


def test_strided_packed_tensors_give_the_bits_of_contiguous_ones():
    """Tests views of one tensor, unaligned and expanded tensors, and strided int64 cumulative lengths."""
    lengths = (300, 77, 1, 400)
    qkv = torch.randn(sum(lengths), 3, 8, 64, device=CUDA, dtype=torch.float16)
    q, k, v = qkv.unbind(1)
    cu = begins(lengths, torch.int64).repeat_interleave(2)[::2]
    odd = torch.randn(1 + q.numel(), device=CUDA, dtype=torch.float16)[1:].view(q.shape)
    one = q[:, :1].expand(-1, 8, -1)
    for args in ((q, k, v), (odd, k, v), (q, odd[:, :2], v[:, 1:3]), (q, one, v), (one, k, odd)):
        o, lse = gluon("attention_varlen", *args, cu, cu, 400, 400, -1, 0, 0.2)
        result = (o, lse, *gluon("attention_varlen_bwd", q, *args, o, lse, cu, cu, 400, 400, -1, 0, 0.2))
        plain = [t.contiguous().clone() for t in args]
        o, lse = gluon("attention_varlen", *plain, cu.int(), cu.int(), 400, 400, -1, 0, 0.2)
        bwd = (q.contiguous(), *plain, o, lse, cu.int(), cu.int(), 400, 400, -1, 0, 0.2)
        expected = (o, lse, *gluon("attention_varlen_bwd", *bwd))
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_packed_attention_is_deterministic():
    lengths = (777, 1500, 3, 900)
    q, k, v, do, cu, _ = packed(lengths, lengths, 16, 4, 128)
    rest = (cu, cu, 1500, 1500, -1, 0, None)
    runs = []
    for _ in range(3):
        o, lse = gluon("attention_varlen", q, k, v, *rest)
        runs.append((o, lse, *gluon("attention_varlen_bwd", do, q, k, v, o, lse, *rest)))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_one_packed_sequence_has_the_bits_of_a_dense_batch_of_one():
    q, k, v, do, cu, _ = packed((1000,), (1000,), 8, 2, 128)
    rest = (cu, cu, 1000, 1000, -1, 0, None)
    o, lse = gluon("attention_varlen", q, k, v, *rest)
    result = (o, *gluon("attention_varlen_bwd", do, q, k, v, o, lse, *rest))
    dense = [t.transpose(0, 1)[None] for t in (do, q, k, v)]
    o2, lse2 = gluon("attention", *dense[1:], True, None)
    expected = (o2, *gluon("attention_bwd", *dense, o2, lse2, True, None))
    assert torch.equal(lse, lse2[0])
    assert all(torch.equal(a, b[0].transpose(0, 1)) for a, b in zip(result, expected, strict=True))
