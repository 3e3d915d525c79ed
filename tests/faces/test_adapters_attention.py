"""ATen's fused attention through our ops: shapes and strides match torch's meta functions, values match the formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opmux.core.errors import NotSupported
from opmux.faces.aten import attention as adapters
from opmux.specs.attention_general import attention_general, attention_general_bwd

B, H, S, D = 2, 3, 37, 16
fwd, bwd = attention_general.reference, attention_general_bwd.reference
aten = torch.ops.aten


def heads(count, length, dtype, contiguous=False):
    t = torch.randn(B, length, count, D, dtype=torch.float32).to(dtype).transpose(1, 2)
    return t.contiguous() if contiguous else t


def like_torchs(op, args, results, skip=()):
    want = op(*(t.to("meta") if isinstance(t, torch.Tensor) else t for t in args))
    for i, (a, b) in enumerate(zip(results, want, strict=True)):
        if isinstance(b, torch.Tensor) and i not in skip:
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), (op, i)
        elif b is None or isinstance(b, int):
            assert a == b


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_matches_the_formula(contiguous, causal):
    q, do = (heads(H, S, torch.bfloat16, contiguous) for _ in range(2))
    k, v = (heads(H, S, torch.bfloat16, contiguous) for _ in range(2))
    result = adapters.flash(fwd, q, k, v, 0.0, causal)
    like_torchs(aten._scaled_dot_product_flash_attention.default, (q, k, v, 0.0, causal), result)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    exact = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    torch.testing.assert_close(result[0].double(), exact, atol=2e-2, rtol=2e-2)
    grads = adapters.flash_backward(bwd, do, q, k, v, *result[:2], *result[2:6], 0.0, causal, *result[6:8])
    for got, like, want in zip(grads, (q, k, v), torch.autograd.grad(exact, leaves, do.double()), strict=True):
        assert got.stride() == like.stride()
        torch.testing.assert_close(got.double(), want, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(("bias", "causal"), [(None, True), ((1, H, S, 40), False), ((B, 1, 1, 40), False)])
def test_efficient_attention_matches_the_formula(bias, causal, contiguous):
    """Results have the memory layout of [batch, seq, heads, dim] whatever layout q, k and v have."""
    q, do, k, v = (heads(H, n, torch.float32, contiguous) for n in (S, S, 40, 40))
    mask = None if bias is None else torch.randn(bias)
    result = adapters.efficient(fwd, q, k, v, mask, True, 0.0, causal)
    like_torchs(aten._scaled_dot_product_efficient_attention.default, (q, k, v, mask, True, 0.0, causal), result)
    assert result[1][..., S:].eq(torch.inf).all()
    assert adapters.efficient(fwd, q, k, v, mask, False, 0.0, causal)[1].shape == (B, H, 0)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    exact = F.scaled_dot_product_attention(*leaves, None if mask is None else mask.double(), is_causal=causal)
    torch.testing.assert_close(result[0].double(), exact, atol=1e-5, rtol=1e-5)
    args = (do, q, k, v, mask, *result, 0.0, [True, True, True, False], causal)
    grads = adapters.efficient_backward(bwd, *args)
    like_torchs(aten._scaled_dot_product_efficient_attention_backward.default, args, grads)
    for got, want in zip(grads, torch.autograd.grad(exact, leaves, do.double()), strict=False):
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


# ---- [batch, seq, heads, dim], and packed sequences ------------------------------------------------------------------


def attended(q, k, v, do, visible):
    """o, lse and the gradients of a sequence [seq, heads, dim], by the formula; `visible` [queries, keys] is a mask."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    x, y, z = (t.transpose(0, 1) for t in leaves)
    y, z = (t.repeat_interleave(x.shape[0] // t.shape[0], 0) for t in (y, z))
    s = (x @ y.mT * q.shape[-1] ** -0.5).masked_fill(~visible, -torch.inf)
    o = (s.softmax(-1).nan_to_num(0.0) @ z).transpose(0, 1)  # a fully masked query gives 0
    lse = s.logsumexp(-1)
    return (
        o.detach(),
        lse.detach().masked_fill(lse == -torch.inf, torch.inf),
        *torch.autograd.grad(o, leaves, do.double()),
    )


def window(queries, keys, left=-1, right=-1, at_end=True):
    i, j = torch.arange(queries)[:, None] + (keys - queries if at_end else 0), torch.arange(keys)
    visible = torch.ones(queries, keys, dtype=torch.bool)
    return (visible if left < 0 else visible & (j >= i - left)) & (True if right < 0 else j <= i + right)


def close(got, want, tolerance):
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


WINDOWS = {
    "all": (False, None, None, dict()),
    "causal": (True, None, None, dict(right=0)),
    "window": (False, 3, 2, dict(left=3, right=2)),
    "left": (False, 4, None, dict(left=4)),
    "wide": (True, 1000, 1000, dict(right=0)),
}


@pytest.mark.parametrize(("causal", "left", "right", "limits"), WINDOWS.values(), ids=WINDOWS)
def test_flash_attention_accepts_sequence_first_layout(causal, left, right, limits):
    q, k, v, do = (heads(n, S, torch.bfloat16).transpose(1, 2) for n in (4, 2, 2, 4))
    args = (q, k, v, None, None, S, S, 0.0, causal, False)
    sides = dict(window_size_left=left, window_size_right=right)
    result = adapters.flash_attention_forward(fwd, *args, **sides)
    like_torchs(aten._flash_attention_forward.default, args, result)
    dq, dk, dv = adapters.flash_attention_backward(
        bwd, do, q, k, v, *result[:2], None, None, S, S, 0.0, causal, *result[2:4], **sides
    )  # fmt: skip
    assert [t.stride() for t in (dq, dk, dv)] == [t.stride() for t in (q, k, v)]
    for b in range(B):
        want = attended(q[b], k[b], v[b], do[b], window(S, S, **limits))
        for got, exact in zip((*result[:2], dq, dk, dv), want, strict=True):
            close(got[b], exact, 3e-2)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(("causal", "left", "right", "limits"), WINDOWS.values(), ids=WINDOWS)
def test_flash_attention_accepts_packed_sequences(causal, left, right, limits, used):
    """Some sequences have fewer keys than queries, or none; with `used`, seqused_k hides the last keys of sequences."""
    lengths, keys = (5, 9, 3, 4), (5, 12, 2, 0)
    counted = (4, 12, 1, 0) if used else keys
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (lengths, keys))
    q, k, v, do = (torch.randn(sum(n), h, D).bfloat16() for n, h in ((lengths, 4), (keys, 2), (keys, 2), (lengths, 4)))
    args = (q, k, v, cu_q, cu_k, max(lengths), max(keys), 0.0, causal, False)
    sides = dict(window_size_left=left, window_size_right=right)
    result = adapters.flash_attention_forward(
        fwd, *args, **sides, seqused_k=torch.tensor(counted, dtype=torch.int32) if used else None
    )
    like_torchs(aten._flash_attention_forward.default, args, result)
    grads = adapters.flash_attention_backward(
        bwd, do, q, k, v, *result[:2], cu_q, cu_k, max(lengths), max(keys), 0.0, causal, *result[2:4], **sides
    )  # fmt: skip
    assert [t.stride() for t in grads] == [t.stride() for t in (q, k, v)]
    for i in range(len(lengths)):
        rows, cols = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i] + counted[i])
        if left == 4:
            # With only a left window, up to max(keys) keys after the query's position are visible.
            limits = dict(left=4, right=max(keys))
        want = attended(q[rows], k[cols], v[cols], do[rows], window(lengths[i], counted[i], **limits))
        close(result[0][rows], want[0], 3e-2)
        close(result[1][:, rows], want[1], 3e-2)
        if not used:  # torch's backward has no seqused_k
            for got, exact, kept_rows in zip(grads, want[2:], (rows, cols, cols), strict=True):
                close(got[kept_rows], exact, 3e-2)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mask", [adapters.NO_MASK, adapters.TOP_LEFT, adapters.BOTTOM_RIGHT])
def test_efficient_attention_backward_accepts_sequence_first_layout(mask, shared):
    keys = S if shared else 40
    q, do, k, v = (heads(H, n, torch.float32).transpose(1, 2) for n in (S, S, keys, keys))
    bias = torch.randn(B, H, S, keys) if mask == adapters.NO_MASK else None
    right = -1 if mask == adapters.NO_MASK else 0
    options = (None, None, None, *adapters.WHOLE, -1, right, mask == adapters.BOTTOM_RIGHT, 0.0, 0.0, None, False, True)
    o, lse = fwd(*(t.transpose(1, 2) for t in (q, k, v)), bias, *options)
    padded = F.pad(lse, (0, 64 - S), value=torch.inf)
    result = adapters.efficient_attention_backward(
        bwd, do, q, k, v, bias, o.transpose(1, 2), None, None, S, keys, padded, 0.0, None, None, mask, False,
        shared_storage_dqdkdv=shared,
    )  # fmt: skip
    want = bwd(*(t.transpose(1, 2) for t in (do, q, k, v)), o, lse, bias, *options)
    strides = (S * 3 * H * D, 3 * H * D, D, 1) if shared else None
    for got, exact in zip(result[:3], want[:3], strict=True):
        torch.testing.assert_close(got, exact.transpose(1, 2))
        assert got.stride() == strides if shared else got.is_contiguous()
    assert result[3] is None
    assert not shared or result[1].data_ptr() == result[0].data_ptr() + H * D * 4


@pytest.mark.parametrize("mask", [adapters.NO_MASK, adapters.TOP_LEFT, adapters.BOTTOM_RIGHT])
def test_efficient_attention_backward_accepts_packed_sequences(mask):
    lengths, keys = (5, 9, 3), (6, 12, 2)
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (lengths, keys))
    # one extra token that belongs to no sequence
    q, k, v, do = (torch.randn(sum(n) + 1, H, D) for n in (lengths, keys, keys, lengths))
    o, lse = torch.zeros_like(q), torch.full((3, H, 32), torch.inf)
    wants = []
    for i, (m, n) in enumerate(zip(lengths, keys, strict=True)):
        rows, cols = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        right = -1 if mask == adapters.NO_MASK else 0
        visible = window(m, n, right=right, at_end=mask == adapters.BOTTOM_RIGHT)
        o[rows], lse[i, :, :m], *grads = attended(q[rows], k[cols], v[cols], do[rows], visible)
        wants.append(zip((rows, cols, cols), grads, strict=True))
    args = (do[None], q[None], k[None], v[None], None, o[None], cu_q, cu_k, max(lengths), max(keys), lse)
    result = adapters.efficient_attention_backward(bwd, *args, 0.0, None, None, mask, False)
    for want in wants:
        for got, (row_slice, exact) in zip(result, want, strict=False):
            close(got[0, row_slice], exact, 1e-4)


def test_fused_attention_leaves_unsupported_calls_to_torch():
    q, k = heads(H, S, torch.bfloat16), heads(H, 20, torch.bfloat16)
    x, y = q.transpose(1, 2), k.transpose(1, 2)
    rows, cu = x.flatten(0, 1), torch.tensor([0, S, 2 * S], dtype=torch.int32)
    plain = (None, None, S, S, 0.0, False, False)
    packed = lambda cu_q, cu_k: (cu_q, cu_k, S, S, 0.0, True, False)
    lse = torch.zeros(B, H, S)
    flash, flash_bwd = adapters.flash_attention_forward, adapters.flash_attention_backward
    mem_bwd = lambda *args, **options: adapters.efficient_attention_backward(
        bwd, x, x, x, x, None, x, None, None, S, S, lse, *args, **options
    )
    for reason, call in (
        ("random numbers", lambda: adapters.flash(fwd, q, q, q, 0.1)),
        ("see no key", lambda: adapters.flash(fwd, q, k, k, 0.0, True)),
        ("float32", lambda: adapters.flash(fwd, q.float(), q.float(), q.float())),
        ("random numbers", lambda: adapters.efficient(fwd, q, q, q, None, True, 0.5)),
        ("debug mask", lambda: flash(fwd, x, x, x, *plain[:-1], True)),
        ("random numbers", lambda: flash(fwd, x, x, x, None, None, S, S, 0.1, False, False)),
        ("see no key", lambda: flash(fwd, x, y, y, None, None, S, 20, 0.0, True, False)),
        ("see no key", lambda: flash(fwd, x, y, y, *plain, window_size_left=2)),
        ("ALiBi", lambda: flash(fwd, x, x, x, *plain, alibi_slopes=torch.ones(H))),
        ("paged", lambda: flash(fwd, x, x, x, *plain, block_table=torch.zeros(B, 1, dtype=torch.int32))),
        ("not packed", lambda: flash(fwd, x, x, x, *plain, seqused_k=torch.ones(B, dtype=torch.int32))),
        ("3 dimensions", lambda: flash(fwd, x, x, x, *packed(cu, cu))),
        ("int32", lambda: flash(fwd, rows, rows, rows, *packed(cu.long(), cu))),
        ("offsets", lambda: flash(fwd, rows, rows, rows, *packed(cu, None))),
        ("dims", lambda: flash(fwd, *[x[..., :12]] * 3, *plain)),
        ("no gradient", lambda: flash_bwd(bwd, None, x, x, x, x, lse, *plain[:-1], None, None)),
        ("statistics", lambda: flash_bwd(bwd, x, x, x, x, x, lse[..., 1:], *plain[:-1], None, None)),
        ("random numbers", lambda: mem_bwd(0.5, None, None, 0, False)),
        ("padded to 16", lambda: mem_bwd(0.0, None, None, 0, True)),
        ("window", lambda: mem_bwd(0.0, None, None, 1, False, window_size=4)),
    ):
        with pytest.raises(NotSupported, match=reason):
            call()
