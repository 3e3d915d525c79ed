"""Residual connections and neighborhood attention on a real GPU: samples, and the sizes of real models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux
import opmux.functional as ours
from opmux.core import specs
from opmux.core.spec import Tol

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]
pytest.importorskip("triton")
CUDA = torch.device("cuda")
OPS = [
    name + suffix
    for name in ("attn_res", "mhc_pre", "mhc_post_res", "sinkhorn", "neighborhood_attention")
    for suffix in ("", "_bwd")
]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_samples_agree_with_the_reference(name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, CUDA):
        with opmux.policy(strict=True):
            got = specs.functions[spec.key](*sample.args)
        as_list = lambda r: list(r) if isinstance(r, tuple) else [r]
        for a, b in zip(as_list(got), as_list(spec.reference(*sample.args)), strict=True):
            tol = spec.tol.get(b.dtype, Tol(0, 0))
            torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}")


def new(*shape, scale=1.0):
    return (torch.randn(shape, device=CUDA) * scale).bfloat16().requires_grad_()


def near(fn, plain, leaves):
    """Assert that bfloat16 results are close to torch's in float32, and that gradients are deterministic."""
    wide = [t.detach().float().requires_grad_() for t in leaves]
    got, want = fn(*leaves), plain(*wide)
    g = torch.randn_like(want)
    results = [got, *torch.autograd.grad(got, leaves, g.to(got.dtype))]
    for a, b in zip(results, (want, *torch.autograd.grad(want, wide, g)), strict=True):
        assert (a.float() - b).norm() <= 0.02 * b.norm()
    again = torch.autograd.grad(fn(*leaves), leaves, g.to(got.dtype))
    assert all(torch.equal(a, b) for a, b in zip(results[1:], again, strict=True))


def plain_attn_res(v, query, norm):
    keys = F.rms_norm(v, v.shape[-1:], norm, 1e-6)
    alpha = torch.einsum("d,n...d->n...", query, keys).softmax(0)
    return torch.einsum("n...,n...d->...d", alpha, v)


def test_attn_res_agrees_with_torch():
    near(ours.attn_res, plain_attn_res, (new(8, 2, 1024, 4096), new(4096, scale=0.02), new(4096)))


def test_mhc_agrees_with_torch():
    x, f, h_pre, h_post, h_res = (
        new(2, 1024, 4, 4096),
        new(2, 1024, 4096),
        *(new(2, 1024, *s) for s in ((4,), (4,), (4, 4))),
    )
    near(ours.mhc_pre, lambda x, h: torch.einsum("...ic,...i->...c", x, h), (x, h_pre))
    plain = lambda x, f, post, res: torch.einsum("...oi,...ic->...oc", res, x) + post[..., None] * f[..., None, :]
    near(ours.mhc_post_res, plain, (x, f, h_post, h_res))


@pytest.mark.parametrize("window, dilation", [(7, 1), (127, 1), (33, 4)])
def test_neighborhood_attention_agrees_with_torch(window, dilation):
    length = 2000

    def plain(q, k, v):
        positions = torch.arange(length, device=CUDA)
        distance = positions[:, None] - positions
        mask = (distance.abs() <= window // 2 * dilation) & (distance % dilation == 0)
        return F.scaled_dot_product_attention(q, k, v, mask)

    near(lambda *a: ours.neighborhood_attention(*a, window, dilation), plain, [new(2, 8, length, 64) for _ in range(3)])


def test_neighborhood_attention_does_not_store_all_scores():
    """For 131072 positions, the scores of one head would need 64 GiB."""
    q, k, v = (new(1, 8, 131072, 64) for _ in range(3))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours.neighborhood_attention(q, k, v, 63).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 16 * q.numel() * q.element_size()
