"""The attention reference against the definition in double precision, one query at a time, and against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opmux
from opmux.core.spec import Tol, specs
from opmux.specs import attention as family

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
FORWARD, BACKWARD = specs.find("attention"), specs.find("attention_bwd")


def naive(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """The definition: for one query at a time, softmax over the keys that the query attends to."""
    b, h, sq, d = q.shape
    sk, per = k.shape[2], h // k.shape[1]
    scale = max(d, 1) ** -0.5 if scale is None else scale
    outs, lses = [], []
    for n in range(b):
        for head in range(h):
            for i in range(sq):
                visible = min(max(i + 1 + sk - sq, 0), sk) if causal else sk
                keys, values = k[n, head // per, :visible], v[n, head // per, :visible]
                s = keys @ q[n, head, i] * scale
                outs.append(
                    torch.softmax(s, 0) @ values if visible else q[n, head, i].sum() * 0 + v.new_zeros(v.shape[3])
                )
                lses.append(s.exp().sum().log() if visible and s.max() < 100 else torch.logsumexp(s, 0))
    lse = torch.stack(lses).reshape(b, h, sq) if lses else q.new_zeros(b, h, sq)
    return (torch.stack(outs) if outs else q.new_zeros(0)).reshape(b, h, sq, v.shape[3]), lse


def close(got: Tensor, want: Tensor, what: str, atol: float = 2e-5) -> None:
    """Assert equality up to one rounding of the result and the rounding errors of float32 before it."""
    halves = {d: Tol(0.51 * torch.finfo(d).eps, atol) for d in (torch.float16, torch.bfloat16)}
    tol = {**halves, torch.float64: Tol(1e-10, 1e-10), torch.float32: Tol(1e-5, atol)}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{what}: {m}")


def small(samples):
    """Samples small enough for the slow definition."""
    return [s for s in samples if s.args[0].numel() <= 6000]


@every_dtype
def test_forward_equals_the_definition(dtype):
    for sample in small(FORWARD.samples(dtype, CPU)):
        q, k, v, *options = sample.args
        got, lse = FORWARD.reference(*sample.args)
        want, want_lse = naive(q.double(), k.double(), v.double(), *options)
        assert got.dtype is dtype and lse.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        close(got, want, sample.id)
        close(lse, want_lse, f"{sample.id}: lse")


@every_dtype
def test_backward_is_the_gradient_of_the_definition(dtype):
    for sample in small(BACKWARD.samples(dtype, CPU)):
        do, q, k, v, _, _, *options = sample.args
        leaves = [t.double().requires_grad_() for t in (q, k, v)]
        o = naive(*leaves, *options)[0] + sum(t.sum() for t in leaves) * 0  # o has a graph even if all keys are masked
        want = torch.autograd.grad(o, leaves, do.double())
        got = BACKWARD.reference(*sample.args)
        for name, g, w in zip(BACKWARD.out, got, want, strict=True):
            # The backward gets the rounded o as an argument, and its rounding error reaches the gradients of q and k.
            close(g, w, f"{sample.id}: {name}", atol={torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 3e-5))


@pytest.mark.parametrize("keys", [9, 21])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_torchs(causal, keys):
    """torch aligns causal masks to the top left, so the test passes our mask to torch as a tensor."""
    q, k, v = torch.randn(2, 6, 9, 16), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
    mask = torch.ones(9, keys, dtype=torch.bool).tril(keys - 9) if causal else None
    want = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(opmux.ops.attention(q, k, v, causal=causal, scale=0.3)[0], want)
    if keys == 9:
        want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        torch.testing.assert_close(opmux.ops.attention(q, k, v, causal)[0], want)


def test_backward_agrees_with_finite_differences():
    """Calls the op through autograd, as users do."""
    q, k, v = (torch.randn(1, h, s, 3, dtype=torch.float64, requires_grad=True) for h, s in ((4, 3), (2, 5), (2, 5)))
    assert torch.autograd.gradcheck(lambda *t: opmux.ops.attention(*t, True, 0.7)[0], (q, k, v))


def test_queries_without_keys_give_zeros():
    q, k, v = torch.randn(1, 2, 6, 8), torch.randn(1, 1, 2, 8), torch.randn(1, 1, 2, 8)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    o, lse = opmux.ops.attention(*leaves, causal=True)
    assert o[:, :, :4].eq(0).all() and lse[:, :, :4].eq(-torch.inf).all()
    assert o[:, :, 4:].ne(0).all() and lse[:, :, 4:].isfinite().all()
    torch.testing.assert_close(o[:, :, 4], v[:, 0, :1].expand(1, 2, 8))  # this query attends to one key
    o.sum().backward()
    assert q.grad[:, :, :4].eq(0).all() and all(t.grad.isfinite().all() for t in leaves)


def as_seq_first(t: Tensor) -> Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def test_results_have_the_layout_of_their_inputs():
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    packed = FORWARD.reference(q, k, v)
    mixed = (as_seq_first(q), k, as_seq_first(v))
    o, lse = FORWARD.reference(*mixed)
    assert packed[0].is_contiguous() and o.transpose(1, 2).is_contiguous() and lse.is_contiguous()
    torch.testing.assert_close((o, lse), packed)
    dq, dk, dv = BACKWARD.reference(torch.randn_like(o), *mixed, o, lse, False, None)
    assert dq.transpose(1, 2).is_contiguous() and dk.is_contiguous() and dv.transpose(1, 2).is_contiguous()


def test_results_keep_a_layout_with_the_batch_inside():
    """Tests [seq, batch, heads, dim] in memory, also for a slice of a larger tensor."""
    packed = [torch.randn(7, 2, h, 8).permute(1, 2, 0, 3) for h in (4, 2, 2)]
    sliced = [t.permute(1, 2, 0, 3) for t in torch.randn(7, 2, 4, 3, 8).unbind(3)]
    for q, k, v in (packed, sliced):
        o, lse = FORWARD.reference(q, k, v, True)
        results = (o, *BACKWARD.reference(torch.randn_like(o), q, k, v, o, lse, True, None))
        assert all(t.permute(2, 0, 1, 3).is_contiguous() for t in results)
        torch.testing.assert_close(o, FORWARD.reference(*(t.contiguous() for t in (q, k, v)), True)[0])


def test_lse_may_cover_more_keys_than_are_passed():
    q, k, v, do = (torch.randn(1, 2, 6, 8, dtype=torch.float64) for _ in range(4))
    o, lse = FORWARD.reference(q, k, v)
    want = BACKWARD.reference(do, q, k, v, o, lse, False, None)
    parts = [BACKWARD.reference(do, q, k[:, :, h], v[:, :, h], o, lse, False, None) for h in (slice(4), slice(4, 6))]
    torch.testing.assert_close(parts[0][0] + parts[1][0], want[0])
    for i in (1, 2):
        torch.testing.assert_close(torch.cat([parts[0][i], parts[1][i]], 2), want[i])


def test_the_backward_accepts_another_forwards_results():
    """The backward takes o and lse from any implementation."""
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    want = BACKWARD.reference(torch.ones(1, 2, 5, 8), q, k, v, *FORWARD.reference(q, k, v, True), True, None)
    o, lse = naive(q.double(), k.double(), v.double(), True)
    got = BACKWARD.reference(torch.ones(1, 2, 5, 8), q, k, v, o.float(), lse.float(), True, None)
    torch.testing.assert_close(got, want)


def test_flops_count_only_unmasked_pairs():
    q, k, v = torch.empty(2, 4, 8, 16), torch.empty(2, 1, 8, 16), torch.empty(2, 1, 8, 16)
    assert FORWARD.flops(q, k, v) == 4 * 2 * 4 * 8 * 8 * 16
    assert FORWARD.flops(q, k, v, True) == 4 * 2 * 4 * 36 * 16
    lse = torch.empty(2, 4, 8)
    assert BACKWARD.flops(q, q, k, v, q, lse, True, None) == 10 * 2 * 4 * 36 * 16


def test_mismatched_heads_raise_with_the_arguments_name():
    q, k = torch.randn(1, 6, 4, 8), torch.randn(1, 4, 4, 8)
    with pytest.raises(ValueError, match="attention: k must have heads that divide the 6 of q; got 4"):
        opmux.ops.attention(q, k, k)
    with pytest.raises(ValueError, match=r"v must have shape \(1, 2, 4, dim_v\), .* is .*; got \(1, 3, 4, 8\)"):
        opmux.ops.attention(q, q[:, :2], q[:, :3])


def test_a_projection_has_seq_first_layout():
    x = torch.randn(2, 5, 4 * 8)
    assert family.order(x.view(2, 5, 4, 8).transpose(1, 2)) == (0, 2, 1, 3)
    assert family.order(x.view(5, 2, 4, 8).permute(1, 2, 0, 3)) == (2, 0, 1, 3)
    assert family.order(x.view(2, 4, 5, 8)) == family.order(torch.empty(8).expand(2, 4, 5, 8)) == (0, 1, 2, 3)
