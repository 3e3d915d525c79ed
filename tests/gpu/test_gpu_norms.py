"""Norms and row functions on a GPU at model shapes, compared with torch in float32; gradients are deterministic."""

from __future__ import annotations

import pytest
import torch

import opmux.functional as F

pytestmark = pytest.mark.gpu
CUDA, BF16 = torch.device("cuda"), torch.bfloat16


def draw(*shape, dtype=BF16):
    return torch.randn(shape, device=CUDA, dtype=torch.float32).to(dtype)


def rms(x, weight, offset=0.0, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (weight + offset)


def checked(fn, truth, *args):
    """Assert that result and gradients are close to those in float32, and bitwise equal in a second run."""
    runs = []
    for call, dtype in ((fn, None), (fn, None), (truth, torch.float32)):
        leaves = [a.detach().to(dtype or a.dtype).requires_grad_() for a in args]
        y = call(*leaves)
        torch.manual_seed(0)
        dy = torch.randn(y.shape, device=CUDA).to(BF16).to(y.dtype)
        runs.append([y.detach(), *torch.autograd.grad(y, leaves, dy)])
    for first, second, want in zip(*runs, strict=True):
        assert torch.equal(first, second)
        error = (first.float() - want).norm() / want.norm().clamp(min=1e-6)
        assert error < 0.01, error


@pytest.mark.parametrize("casting", ["llama", "gemma", "none"])
@pytest.mark.parametrize("n", [2048, 4096, 65536])
def test_each_casting_of_rms_norm_agrees_with_float32(casting, n):
    x, weight = draw(4, 512, n), draw(n)
    limit = 0.03 if casting == "none" else 0.01
    got = F.rms_norm(x, weight, casting=casting)
    want = rms(x.float(), weight.float())
    assert (got.float() - want).norm() / want.norm() < limit
    if casting != "none":
        checked(lambda x, w: F.rms_norm(x, w, casting=casting), rms, x[:1], weight)
    y, s = F.add_rms_norm(x, x, weight, casting=casting)
    assert torch.equal(s, x + x)
    torch.testing.assert_close(y, F.rms_norm(s, weight, casting=casting), rtol=2e-2, atol=1e-2)


def test_rms_norm_equals_llamas_in_nearly_all_bits():
    """Our kernel and torch sum the squares in different orders, so a few elements per million round differently."""
    x, weight = draw(2048, 4096), draw(4096)
    theirs = weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(BF16)
    assert (F.rms_norm(x, weight, 1e-5) != theirs).float().mean() < 1e-3


@pytest.mark.parametrize("groups", [1, 8, 8 * 256])
def test_modulated_rms_norm_agrees_with_its_formula(groups):
    n = 1152
    x, weight, scale, shift = draw(8, 256, n), draw(n), draw(groups, n), draw(groups, n)

    def truth(x, weight, scale, shift):
        y = rms(x, weight).view(groups, -1, n)
        return (y * (1 + scale[:, None]) + shift[:, None]).view(x.shape)

    checked(lambda *args: F.modulated_rms_norm(*args, casting="gemma"), truth, x, weight, scale, shift)


def test_poly_norm_and_dyt_agree_with_their_formulas():
    x = draw(2048, 4096)
    truth = lambda x, w, b: w[0] * rms(x**3, 1.0) + w[1] * rms(x**2, 1.0) + w[2] * rms(x, 1.0) + b
    checked(F.poly_norm, truth, x, draw(3), draw(1))
    alpha = torch.full((1,), 0.5, device=CUDA, dtype=BF16)
    checked(F.dyt, lambda x, a, g, b: torch.tanh(a * x) * g + b, x, alpha, draw(4096), draw(4096))


@pytest.mark.parametrize("n", [197, 4096, 128256])
def test_sparsemax_and_softmax_rows_sum_to_one(n):
    x = draw(256, n, dtype=torch.float32)
    for y in (F.sparsemax(x), F.softmax(x)):
        torch.testing.assert_close(y.sum(-1), torch.ones(256, device=CUDA), rtol=1e-4, atol=1e-4)
    y = F.sparsemax(x.requires_grad_())
    tau = (x - y).detach()[y > 0]  # the threshold: one value per row
    rows = (y > 0).sum(-1).tolist()
    assert all(part.max() - part.min() < 1e-5 for part in tau.split(rows))
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(dx.sum(-1), torch.zeros(256, device=CUDA), rtol=0, atol=1e-4)


def test_the_gradient_of_embedding_is_deterministic():
    table, rows = draw(1000, 512).requires_grad_(), torch.randint(1000, (8, 1024), device=CUDA)
    dy = draw(8, 1024, 512)
    grads = [torch.autograd.grad(F.embedding(rows, table), table, dy)[0] for _ in range(3)]
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])
