"""Gated units and MLPs on a real GPU at the sizes of real models, compared with torch's: values, gradients, memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours
import opmux.nn as modules

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
BF16 = torch.bfloat16


def gradients(fn, *leaves):
    y = fn(*leaves)
    return y.detach(), *torch.autograd.grad(y.float().square().mean(), leaves)


def close(got, want, share):
    """Assert that the relative error of each result is at most `share`."""
    for a, b in zip(got, want, strict=True):
        assert a.dtype is BF16 and (a.double() - b).norm() <= share * b.norm()


@pytest.mark.parametrize("fn, act", [(ours.swiglu, F.silu), (ours.geglu, lambda a: F.gelu(a, approximate="tanh"))])
def test_gated_units_and_their_gradients_agree_with_torch(fn, act):
    leaves = [torch.randn(1000, 14336, device=CUDA, dtype=BF16, requires_grad=True) for _ in range(2)]
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    close(gradients(fn, *leaves), gradients(lambda a, b: act(a) * b, *doubles), 1e-2)


def test_a_gated_unit_of_one_tensor_agrees_with_torch():
    y = torch.randn(2, 500, 2 * 8192, device=CUDA, dtype=BF16, requires_grad=True)
    halves = lambda y: F.silu(y[..., :8192]) * y[..., 8192:]
    close(gradients(ours.fused_gate_up_swiglu, y), gradients(halves, y.detach().double().requires_grad_()), 1e-2)


def random_tensors(*shape, scale=1.0):
    return (torch.randn(shape, device=CUDA) * scale).to(BF16).requires_grad_()


def test_swiglu_mlp_agrees_and_saves_less_memory_than_torch():
    """Uses the sizes of Llama-3.2-1B, and measures the memory that the forward keeps for the backward."""
    leaves = (
        random_tensors(4, 512, 2048),
        *(random_tensors(8192, 2048, scale=0.02) for _ in range(2)),
        random_tensors(2048, 8192, scale=0.02),
    )
    torchs = lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d)
    want = gradients(torchs, *(t.detach().double().requires_grad_() for t in leaves))
    close(gradients(ours.swiglu_mlp, *leaves), want, 2e-2)
    saved = []
    for fn in (ours.swiglu_mlp, torchs):
        before = torch.cuda.memory_allocated()
        y = fn(*leaves)
        saved.append(torch.cuda.memory_allocated() - before)
        del y
    assert saved[0] < 0.6 * saved[1]


def test_a_tiled_mlp_agrees_with_the_whole_mlp():
    mlp = modules.TiledSwiGLUMLP(1024, 4096, num_shards=4, device=CUDA, dtype=BF16)
    x = random_tensors(2, 1000, 1024)
    leaves = (x, *mlp.parameters())
    got = gradients(lambda *_: mlp(x), *leaves)
    want = gradients(lambda *_: modules.SwiGLUMLP.forward(mlp, x), *leaves)
    close(got, [t.double() for t in want], 1e-2)
