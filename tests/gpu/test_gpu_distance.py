"""Distances, cross products, fake quantization, histograms, segments, modes and Poisson numbers on a real GPU, compared
with torch on the CPU.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def ours():
    with opmux.use(mode="all"):
        yield


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def same(fn, *args, rtol=1e-4, atol=1e-4, exact=False):
    """Assert that `fn` gives the same results on the GPU as on the CPU."""
    there = [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]
    got, want = fn(*there), fn(*args)
    several = isinstance(want, (tuple, list))
    for a, b in zip(got, want, strict=True) if several else [(got, want)]:
        torch.testing.assert_close(a.cpu(), b, **(dict(rtol=0, atol=0) if exact else dict(rtol=rtol, atol=atol)))


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances_and_their_gradients_agree_with_the_cpu(p):
    mode = "donot_use_mm_for_euclid_dist"

    def all_pairs(a, b, dy):
        a = a.detach().requires_grad_()
        y = torch.cdist(a, b, p=p, compute_mode=mode)
        return [y.detach(), *(torch.autograd.grad(y, a, dy) if p else ())]

    same(all_pairs, drawn(3, 300, 65), drawn(3, 200, 65), drawn(3, 300, 200), rtol=1e-3, atol=1e-3)
    same(lambda x: F.pdist(x, p), drawn(500, 33), rtol=1e-3, atol=1e-3)


def test_cross_products_and_gradients_of_prelu_agree_with_the_cpu():
    same(lambda a, b: torch.linalg.cross(a, b), drawn(100_000, 3), drawn(1, 3))
    same(lambda a, b: torch.linalg.cross(a, b, dim=1), drawn(64, 3, 1000), drawn(64, 3, 1000))

    def slopes(x, w, dy):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(F.prelu(x, w), [x, w], dy)

    same(slopes, drawn(8, 64, 56, 56), drawn(64).abs(), drawn(8, 64, 56, 56), rtol=1e-3, atol=1e-2)


def test_fake_quantization_agrees_with_the_cpu():
    x, zeros = drawn(64, 256, 14, 14), torch.randint(-5, 5, (256,), dtype=torch.int32)
    scale = drawn(256).abs() * 0.01 + 0.005
    same(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127), x, scale, zeros)
    same(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.03, 2, 0, 255), x)


def test_histograms_modes_and_unique_agree_with_the_cpu():
    x = drawn(3000, 1000)
    same(lambda x: torch.histc(x, 100, -3, 3), x, exact=True)
    same(lambda x: torch.histc(x, 5000), x, exact=True)
    y = torch.randint(0, 50, (200, 1500))
    same(lambda y: torch.mode(y, 1).values, y, exact=True)
    same(lambda y: torch.mode(y.view(-1)).values, y, exact=True)
    same(lambda y: torch.unique(y.view(-1, 2), dim=0, return_inverse=True, return_counts=True), y, exact=True)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reductions_agree_with_the_cpu(reduce):
    lengths = torch.randint(0, 40, (1000,))

    def both(x, lengths, dy):
        x = x.detach().requires_grad_()
        y = torch.segment_reduce(x, reduce, lengths=lengths, unsafe=True, initial=1.0)
        return [y.detach(), *torch.autograd.grad(y, x, dy)]

    n = int(lengths.sum())
    same(both, drawn(n, 48), lengths, drawn(1000, 48), rtol=1e-3, atol=1e-3)


def test_gradients_of_per_sample_weights_agree_with_the_cpu():
    def slope(weight, indices, offsets, samples):
        samples = samples.detach().requires_grad_()
        y = F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=samples)
        return torch.autograd.grad(y.sum(), samples)

    indices, offsets = torch.randint(0, 5000, (4096,)), torch.arange(0, 4096, 8)
    same(slope, drawn(5000, 128), indices, offsets, drawn(4096))


def test_randperm_is_a_permutation_and_poisson_has_its_distribution():
    for n in (1, 1000, 100_003):
        assert torch.equal(torch.randperm(n, device="cuda").sort().values.cpu(), torch.arange(n))
    torch.manual_seed(3)
    first = torch.randperm(1000, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(first, torch.randperm(1000, device="cuda")) and not torch.equal(first.cpu(), torch.arange(1000))
    for rate in (0.5, 8.0, 40.0, 5000.0):
        y = torch.poisson(torch.full((1 << 20,), rate, device="cuda")).double()
        assert abs(y.mean().item() - rate) < 5 * (rate / y.numel()) ** 0.5
        assert abs(y.var().item() / rate - 1) < 0.02
