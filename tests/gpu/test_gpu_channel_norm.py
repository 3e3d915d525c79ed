"""Group, batch and weight norm on a GPU at real sizes: every algorithm, compared with torch's functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux
from opmux.specs import channel_norm as spec

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
LOOSE = {f64: 1e-10, f32: 5e-5, f16: 5e-3, bf16: 3e-2}
by_name = {"ids": lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else str(v).removeprefix("torch.")}


def check_algorithm(x, groups, algorithm):
    """Assert that the forward uses this algorithm. Checks only contiguous bfloat16 on a chip of 132 cores."""
    from opmux.kernels import channel_norm
    from opmux.kernels.lib.rows import cores

    if algorithm and x.is_contiguous() and x.dtype is bf16 and cores(x.device) == 132:
        assert channel_norm.kernels_for(channel_norm.Extent.of(x, groups), x.dtype, x.device, False) == algorithm


def draw(shape, dtype, form=torch.contiguous_format):
    generator = torch.Generator(CUDA).manual_seed(3)
    new = lambda *n: torch.randn(n, generator=generator, device=CUDA, dtype=f64 if dtype is f64 else f32)
    x, dy = ((new(*shape) + o).to(dtype).contiguous(memory_format=form) for o in (2.0, 0.0))
    return x, dy, new(shape[1]), new(shape[1])


def close(got, want, dtype, scale=1.0):
    tol = LOOSE[dtype] * scale
    torch.testing.assert_close(got.double(), want.double(), rtol=tol, atol=tol)


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def doubles(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


GROUPS = [
    ((32, 320, 64, 64), 32, "pieces"),
    ((8, 1280, 16, 16), 32, "whole"),
    ((2, 128, 256, 256), 32, "shares"),
    ((4096, 2048), 32, "whole"),
    ((3, 30, 37, 41), 3, None),
    ((2, 24, 7, 7), 24, None),
]


@pytest.mark.parametrize("dtype", [bf16, f32], **by_name)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape, groups, algorithm", GROUPS, **by_name)
def test_group_norm_and_its_gradients_agree_with_torch(shape, groups, algorithm, last, dtype):
    if last and len(shape) != 4:
        pytest.skip("no places, no channels-last")
    form = torch.channels_last if last else torch.contiguous_format
    x, dy, w, b = draw(shape, dtype, form)
    check_algorithm(x, groups, algorithm)
    ours, true = leaves(x, w, b), doubles(x, w, b)
    y = opmux.ops.group_norm(ours[0], groups, ours[1], ours[2])[0]
    want = F.group_norm(true[0], groups, true[1], true[2])
    assert y.is_contiguous(memory_format=form)
    close(y, want, dtype)
    got = torch.autograd.grad(y, ours, dy)
    true_grads = torch.autograd.grad(want, true, dy.double())
    assert got[0].is_contiguous(memory_format=form)
    close(got[0], true_grads[0], dtype)
    n = (x.numel() // shape[1]) ** 0.5  # these gradients are sums over n * n elements
    for a, t in zip(got[1:], true_grads[1:], strict=True):
        close(a, t, f32, scale=n)


BATCHES = [
    ((64, 256, 56, 56), "shares"),
    ((64, 512, 28, 28), "pieces"),
    ((32, 512, 7, 7), "whole"),
    ((4096, 1024), None),
    ((256, 1024), "whole"),
    ((16, 2048, 7, 7), "whole"),  # several channels per program
    ((8, 2856, 4, 4), "whole"),
    ((5, 3, 37, 41), None),
    ((2, 7, 3, 5, 11), None),
]


@pytest.mark.parametrize("dtype", [bf16, f32], **by_name)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape, algorithm", BATCHES, **by_name)
def test_batch_norm_and_its_gradients_agree_with_torch(shape, algorithm, last, dtype):
    if last and len(shape) not in spec.CHANNELS_LAST:
        pytest.skip("no channels-last")
    form = spec.CHANNELS_LAST[len(shape)] if last else torch.contiguous_format
    x, dy, w, b = draw(shape, dtype, form)
    check_algorithm(x, 0, algorithm)
    for training in (True, False):
        ours, true = leaves(x, w, b), doubles(x, w, b)
        mean, var = torch.randn_like(w), torch.rand_like(w) + 0.5
        moved = [mean.double(), var.double()]
        y = spec.functional_batch_norm(ours[0], mean, var, ours[1], ours[2], training)
        want = F.batch_norm(true[0], *moved, true[1], true[2], training)
        assert y.is_contiguous(memory_format=form)
        close(y, want, dtype)
        for a, t in zip((mean, var), moved, strict=True):
            close(a, t, f32)
        got = torch.autograd.grad(y, ours, dy)
        true_grads = torch.autograd.grad(want, true, dy.double())
        assert got[0].is_contiguous(memory_format=form)
        close(got[0], true_grads[0], dtype)
        n = (x.numel() // shape[1]) ** 0.5
        for a, t in zip(got[1:], true_grads[1:], strict=True):
            close(a, t, f32, scale=n)


@pytest.mark.parametrize("shape, step", [((16, 2048, 7, 7), 1), ((8, 2856, 4, 4), 2), ((2, 4096, 3, 5), 1)], **by_name)
def test_aten_batch_norm_of_many_channels_with_few_positions_agrees(shape, step):
    x, dy, w, b = draw((*shape[:-1], shape[-1] * step), bf16)
    x, dy = x[..., ::step], dy[..., ::step]
    true = doubles(x, w, b)
    want = F.batch_norm(true[0], None, None, true[1], true[2], True)
    true_grads = torch.autograd.grad(want, true, dy.double())
    ours = leaves(x, w, b)
    with opmux.use(mode="all"):
        y = F.batch_norm(ours[0], None, None, ours[1], ours[2], True)
        got = torch.autograd.grad(y, ours, dy)
    close(y, want, bf16)
    close(got[0], true_grads[0], bf16, scale=2)
    for a, t in zip(got[1:], true_grads[1:], strict=True):
        close(a, t, f32, scale=(x.numel() // shape[1]) ** 0.5)


@pytest.mark.parametrize("dtype", [bf16, f16, f32, f64], **by_name)
@pytest.mark.parametrize("shape, dim", [
    ((4096, 4096), 0), ((4096, 4096), 1), ((1024, 40000), 0), ((512, 256, 3, 3), 0), ((512, 256, 3, 3), 1),
    ((1000, 999), None), ((37, 3, 41), 1),
], **by_name)  # fmt: skip
def test_weight_norm_and_its_gradients_agree_with_torch(shape, dim, dtype):
    v, dw, *_ = draw(shape, dtype)
    g = torch.rand_like(torch.norm_except_dim(v, 2, -1 if dim is None else dim)) + 0.5
    ours, true = leaves(v, g), doubles(v, g)
    w, norm = opmux.ops.weight_norm(*ours, dim)
    # torch._weight_norm of float64 on CUDA has only 8 correct digits.
    want = true[0] * (true[1] / torch.norm_except_dim(true[0], 2, -1 if dim is None else dim))
    close(w, want, dtype)
    close(norm, torch.norm_except_dim(true[0], 2, -1 if dim is None else dim), f64 if dtype is f64 else f32)
    got, true_grads = torch.autograd.grad(w, ours, dw), torch.autograd.grad(want, true, dw.double())
    close(got[0], true_grads[0], dtype)
    close(got[1], true_grads[1], dtype, scale=(v.numel() / g.numel()) ** 0.5)


CALLS = {
    "group_norm": ((32, 320, 32, 32), lambda x, w, b: opmux.ops.group_norm(x, 32, w, b)[0]),
    "group_norm long": ((1, 64, 256, 256), lambda x, w, b: opmux.ops.group_norm(x, 4, w, b)[0]),
    "batch_norm": ((64, 64, 56, 56), lambda x, w, b: opmux.ops.batch_norm(x, w, b)[0]),
    "batch_norm eval": ((64, 64, 56, 56), lambda x, w, b: opmux.ops.batch_norm_infer(x, b, w.abs(), w, b)),
}


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], **by_name)
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_deterministic(name, form):
    shape, call = CALLS[name]
    x, dy, w, b = draw(shape, bf16, form)
    runs = []
    for _ in range(3):
        args = leaves(x, w, b)
        y = call(*args)
        runs.append([y, *torch.autograd.grad(y, args, dy)])
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))


def test_a_large_mean_loses_no_precision():
    x, *_ = draw((64, 64, 56, 56), f32)
    x += 1e4
    close(opmux.ops.batch_norm(x)[0], F.batch_norm(x.double(), None, None, training=True), f32, scale=100)
    close(opmux.ops.group_norm(x, 4)[0], F.group_norm(x.double(), 4), f32, scale=100)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory < 40 << 30,
    reason="needs 40 GiB of memory",
)
def test_tensors_of_more_than_2_31_elements_are_normalized():
    x = torch.randn(2, 3, 1 << 29, device=CUDA, dtype=bf16)
    y, mean, _ = opmux.ops.group_norm(x, 1)
    torch.testing.assert_close(mean.flatten(), x.float().mean((1, 2)), rtol=1e-3, atol=1e-4)
    tail = (x[1, 2, -1000:].float() - mean[1, 0]) * opmux.ops.group_norm(x, 1)[2][1, 0]
    torch.testing.assert_close(y[1, 2, -1000:].float(), tail, rtol=2e-2, atol=2e-2)
    y, mean, rstd, *_ = opmux.ops.batch_norm(x)
    tail = (x[1, 2, -1000:].float() - mean[2]) * rstd[2]
    torch.testing.assert_close(y[1, 2, -1000:].float(), tail, rtol=2e-2, atol=2e-2)
