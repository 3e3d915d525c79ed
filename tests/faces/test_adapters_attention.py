"""ATen's fused attention by our ops: shapes and strides as torch's meta functions give them, values by the maths."""

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


def like_torchs(op, given, made, skip=()):
    want = op(*(t.to("meta") if isinstance(t, torch.Tensor) else t for t in given))
    for i, (a, b) in enumerate(zip(made, want, strict=True)):
        if isinstance(b, torch.Tensor) and i not in skip:
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), (op, i)
        elif b is None or isinstance(b, int):
            assert a == b


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_flash(contiguous, causal):
    q, do = (heads(H, S, torch.bfloat16, contiguous) for _ in range(2))
    k, v = (heads(H, S, torch.bfloat16, contiguous) for _ in range(2))
    made = adapters.flash(fwd, q, k, v, 0.0, causal)
    like_torchs(aten._scaled_dot_product_flash_attention.default, (q, k, v, 0.0, causal), made)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    exact = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    torch.testing.assert_close(made[0].double(), exact, atol=2e-2, rtol=2e-2)
    grads = adapters.flash_backward(bwd, do, q, k, v, *made[:2], *made[2:6], 0.0, causal, *made[6:8])
    for got, like, want in zip(grads, (q, k, v), torch.autograd.grad(exact, leaves, do.double()), strict=True):
        assert got.stride() == like.stride()
        torch.testing.assert_close(got.double(), want, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize(("bias", "causal"), [(None, True), ((1, H, S, 40), False), ((B, 1, 1, 40), False)])
def test_efficient(bias, causal):
    q, do, k, v = (heads(H, n, torch.float32) for n in (S, S, 40, 40))
    mask = None if bias is None else torch.randn(bias)
    made = adapters.efficient(fwd, q, k, v, mask, True, 0.0, causal)
    like_torchs(aten._scaled_dot_product_efficient_attention.default, (q, k, v, mask, True, 0.0, causal), made)
    assert made[1][..., S:].eq(torch.inf).all()
    assert adapters.efficient(fwd, q, k, v, mask, False, 0.0, causal)[1].shape == (B, H, 0)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    exact = F.scaled_dot_product_attention(*leaves, None if mask is None else mask.double(), is_causal=causal)
    torch.testing.assert_close(made[0].double(), exact, atol=1e-5, rtol=1e-5)
    given = (do, q, k, v, mask, *made, 0.0, [True, True, True, False], causal)
    grads = adapters.efficient_backward(bwd, *given)
    like_torchs(aten._scaled_dot_product_efficient_attention_backward.default, given, grads)
    for got, want in zip(grads, torch.autograd.grad(exact, leaves, do.double()), strict=False):
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


def test_what_is_left_to_torch():
    q, k = heads(H, S, torch.bfloat16), heads(H, 20, torch.bfloat16)
    for call in (
        lambda: adapters.flash(fwd, q, q, q, 0.1),
        lambda: adapters.flash(fwd, q, k, k, 0.0, True),
        lambda: adapters.flash(fwd, q.float(), q.float(), q.float()),
        lambda: adapters.efficient(fwd, q.contiguous(), q, q, None, True),
        lambda: adapters.efficient(fwd, q, q, q, None, True, 0.5),
    ):
        with pytest.raises(NotSupported):
            call()
