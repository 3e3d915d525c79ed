"""Attention residual, hyper-connections, multi-token and neighborhood attention match the formulas in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours
import opmux.nn
from opmux.core.errors import BadArgument

N, B, T, D, S = 4, 2, 5, 12, 3


def new(*shape, dtype=torch.float64, scale=1.0):
    return (torch.randn(shape, dtype=dtype) * scale).requires_grad_()


def same(mine, theirs, leaves):
    """Compare results and gradients in float64, and again in bfloat16 within the rounding error of bfloat16."""
    originals = [t.detach().clone() for t in leaves]
    listed = lambda y: y if isinstance(y, tuple) else (y,)
    loss = lambda ys: sum((y * y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum() for y in ys)
    got, want = listed(mine(*leaves)), listed(theirs(*leaves))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    dx, true = torch.autograd.grad(loss(got), leaves), torch.autograd.grad(loss(want), leaves)
    for a, b in zip(dx, true, strict=True):
        torch.testing.assert_close(a, b)
    assert all(torch.equal(a, b) for a, b in zip(leaves, originals, strict=True))
    short = [t.detach().bfloat16().requires_grad_() for t in leaves]
    exact = [t.detach().double().requires_grad_() for t in short]
    got, want = listed(mine(*short)), listed(theirs(*exact))
    grads = [torch.autograd.grad(loss([y.double() for y in ys]), t) for ys, t in ((got, short), (want, exact))]
    for a, b in zip((*got, *grads[0]), (*want, *grads[1]), strict=True):
        assert (a.double() - b).norm() <= 0.03 * b.norm()


# ---- attention residual ---------------------------------------------------------------------------------------------


def plain_attn_res(v, query, norm, eps=1e-6):
    keys = F.rms_norm(v, v.shape[-1:], norm, eps)
    alpha = torch.einsum("d,n...d->n...", query, keys).softmax(0)
    return torch.einsum("n...,n...d->...d", alpha, v)


def test_attn_res_matches_the_formula():
    leaves = new(N, B, T, D), new(D), new(D)
    same(ours.attn_res, plain_attn_res, leaves)
    v, query, norm = leaves
    assert torch.equal(ours.attn_res(list(v), query, norm), ours.attn_res(v, query, norm))
    assert ours.attn_res(v[:, :0], query, norm).shape == (0, T, D)
    with pytest.raises(BadArgument, match="V must have at least one block"):
        ours.attn_res([], query, norm)
    with pytest.raises(BadArgument, match="w_query"):
        ours.attn_res(v, query[1:], norm)


# ---- hyper-connections ----------------------------------------------------------------------------------------------


def plain_coeffs(x, phi, b, a_pre, a_post, a_res, tmax=20, eps=1e-6, pre_eps=0.0, sinkhorn_eps=1e-6, post_mult=2.0):
    *lead, s, c = x.shape
    flat = x.reshape(*lead, s * c)
    mix = flat @ phi / (flat.square().mean(-1, keepdim=True) + eps).sqrt()
    h_res = (a_res * mix[..., 2 * s :] + b[2 * s :]).view(*lead, s, s).exp()
    h_res = h_res / h_res.sum(-1, keepdim=True) + sinkhorn_eps
    for i in range(tmax):
        h_res = h_res / (h_res.sum(-1, keepdim=True) + sinkhorn_eps) if i else h_res
        h_res = h_res / (h_res.sum(-2, keepdim=True) + sinkhorn_eps)
    h_pre = torch.sigmoid(a_pre * mix[..., :s] + b[:s]) + pre_eps
    return h_pre, torch.sigmoid(a_post * mix[..., s : 2 * s] + b[s : 2 * s]) * post_mult, h_res


def coefficients():
    size = S * S + 2 * S
    return new(S * D, size, scale=0.2), new(size), new(), new(), new()


@pytest.mark.parametrize("options", [{}, {"tmax": 1, "pre_eps": 0.1, "sinkhorn_eps": 1e-2, "post_mult": 1.5}], ids=str)
def test_mhc_coeffs_match_the_formula(options):
    leaves = new(B, T, S, D), *coefficients()
    same(lambda *a: ours.mhc_coeffs(*a, **options), lambda *a: plain_coeffs(*a, **options), leaves)
    h_res = ours.mhc_coeffs(*leaves)[2]
    torch.testing.assert_close(h_res.sum(-1), torch.ones(B, T, S, dtype=torch.float64), rtol=0, atol=1e-3)


def test_mhc_coeffs_support_functional_transforms():
    leaves = new(B, T, S, D), *coefficients()
    loss = lambda fn: lambda *args: sum(h.sin().sum() for h in fn(*args))
    want = torch.autograd.grad(loss(plain_coeffs)(*leaves), leaves)
    for a, b in zip(torch.func.grad(loss(ours.mhc_coeffs), tuple(range(6)))(*leaves), want, strict=True):
        torch.testing.assert_close(a, b)


def plain_post(x, f, h_post, h_res):
    return torch.einsum("...oi,...ic->...oc", h_res, x) + h_post[..., None] * f[..., None, :]


def test_mhc_stream_functions_match_the_formula():
    x, f, h_pre, h_post, h_res = new(B, T, S, D), new(B, T, D), new(B, T, S), new(B, T, S), new(B, T, S, S)
    same(ours.mhc_pre, lambda x, h: torch.einsum("...ic,...i->...c", x, h), (x, h_pre))
    same(ours.mhc_post_res, plain_post, (x, f, h_post, h_res))
    y, x_in = ours.mhc_apply(x, f, h_pre, h_post, h_res, return_x_in=True)
    assert torch.equal(y, ours.mhc_apply(x, f, h_pre, h_post, h_res))
    assert torch.equal(x_in, ours.mhc_pre(x, h_pre))
    transposed = x.detach().transpose(0, 1)
    torch.testing.assert_close(ours.mhc_pre(transposed, h_pre.transpose(0, 1)).transpose(0, 1), x_in)


def test_mhc_module_matches_the_functions():
    layer = torch.nn.Linear(D, D)
    module = opmux.nn.MHC(layer, streams=S, channels=D)
    assert set(module.state_dict()) == {
        "phi", "b", "alpha_pre", "alpha_post", "alpha_res", "layer.weight", "layer.bias"
    }  # fmt: skip
    x = torch.randn(B, T, S, D, requires_grad=True)
    names = ("phi", "b", "alpha_pre", "alpha_post", "alpha_res")
    h_pre, h_post, h_res = plain_coeffs(x, *(getattr(module, name) for name in names))
    want = plain_post(x, layer(torch.einsum("...ic,...i->...c", x, h_pre)), h_post, h_res)
    got = module(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    leaves = [x, *module.parameters()]
    for a, b in zip(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    y, coeffs = ours.mhc_forward(x.bfloat16(), layer, *(getattr(module, n) for n in names), return_coeffs=True)
    assert y.dtype is torch.bfloat16 and all(h.dtype is torch.float32 for h in coeffs)
    assert module(x[:0]).shape == (0, T, S, D)
    with pytest.raises(BadArgument, match=r"x must have shape \[..., 3, 12\]"):
        module(x[..., 1:])
    with pytest.raises(BadArgument, match="phi must have shape"):
        ours.mhc_coeffs(x[..., 1:], *(getattr(module, n) for n in names))


# ---- multi-token attention ------------------------------------------------------------------------------------------


def plain_sparsemax(x):
    """Finds the threshold by bisection."""
    low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(60):
        middle = (low + high) / 2
        over = (x - middle).clamp(min=0).sum(-1, keepdim=True) > 1
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    support = (x > high).to(x.dtype)
    t = (torch.where(support > 0, x, 0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    return (x - t).clamp(min=0)


@pytest.mark.parametrize("sparse", [False, True], ids=["softmax", "sparsemax"])
@pytest.mark.parametrize("options", [(1, 1, 1, 1), ((1, 1), (2, 2), 2, 2), (2, 1, 1, 1)], ids=str)
def test_multi_token_attention_matches_the_formula(options, sparse):
    stride, padding, dilation, groups = options
    leaves = new(B, 4, 8, 8), new(6, 4 // groups, 3, 3), new(6)

    def plain(scores, weight, bias):
        causal = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
        probs = plain_sparsemax(causal) if sparse else causal.softmax(-1)
        y = F.conv2d(probs, weight, bias, stride, padding, dilation, groups)
        return y * torch.ones(y.shape[-2:], dtype=y.dtype).tril()

    same(lambda *a: ours.multi_token_attention(*a, *options, sparse), plain, leaves)
    module = opmux.nn.MultiTokenAttention(4, 6, 3, stride, padding, dilation, groups, sparse=sparse).double()
    module.load_state_dict({"weight": leaves[1], "bias": leaves[2]})
    assert torch.equal(module(leaves[0]), ours.multi_token_attention(*leaves, *options, sparse))
    with pytest.raises(BadArgument, match="scores must have shape"):
        ours.multi_token_attention(leaves[0][..., 1:], leaves[1])


# ---- neighborhood attention -----------------------------------------------------------------------------------------


def plain_neighborhood(q, k, v, kernel_size=7, dilation=1, scale=None):
    positions = torch.arange(q.shape[-2])
    distance = positions[:, None] - positions
    in_window = (distance.abs() <= kernel_size // 2 * dilation) & (distance % dilation == 0)
    return F.scaled_dot_product_attention(q, k, v, in_window, scale=scale)


@pytest.mark.parametrize("options", [{}, {"kernel_size": 5, "dilation": 3, "scale": 0.7}, {"kernel_size": 99}], ids=str)
def test_neighborhood_attention_matches_the_formula(options):
    leaves = [new(B, 2, 19, 8) for _ in range(3)]
    same(lambda *a: ours.neighborhood_attention(*a, **options), lambda *a: plain_neighborhood(*a, **options), leaves)


def test_neighborhood_modules_match_the_function():
    module = opmux.nn.NeighborhoodAttention(16, 2, kernel_size=3, dilation=2)
    x = torch.randn(B, 9, 16)
    heads = lambda y: y.view(B, 9, 2, 8).transpose(1, 2)
    want = plain_neighborhood(*(heads(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj)), 3, 2)
    torch.testing.assert_close(module(x), module.out_proj(want.transpose(1, 2).reshape(B, 9, 16)))
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    for wrong in ({"num_heads": 3}, {"kernel_size": 4}, {"dilation": 0}):
        with pytest.raises(BadArgument, match=next(iter(wrong))):
            opmux.nn.NeighborhoodAttention(**{"hidden_size": 16, "num_heads": 2, **wrong})


def test_attention_functions_compile_to_one_graph():
    """Forward and backward compile without a graph break."""
    v, query, norm = new(N, T, D), new(D), new(D)
    x, f, h_pre, h_post, h_res = new(T, S, D), new(T, D), new(T, S), new(T, S), new(T, S, S)
    q = new(1, 2, 9, 8)

    def all_of_them(v, query, norm, x, f, h_pre, h_post, h_res, q):
        results = ours.attn_res(v, query, norm), ours.mhc_post_res(x, f, h_post, h_res), ours.mhc_pre(x, h_pre)
        return sum(y.sin().sum() for y in (*results, ours.neighborhood_attention(q, q, q)))

    leaves = (v, query, norm, x, f, h_pre, h_post, h_res, q)
    compiled = torch.compile(all_of_them, backend="aot_eager", fullgraph=True)
    for a, b in zip(*(torch.autograd.grad(fn(*leaves), leaves) for fn in (compiled, all_of_them)), strict=True):
        torch.testing.assert_close(a, b)
