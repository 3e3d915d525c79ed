"""Activations on a GPU at real sizes: gated units of the two halves of a tensor, biases, and deterministic sums."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import specs
from opmux.faces.tex.ops import activation as tex_activation

pytestmark = pytest.mark.gpu

DTYPES = (torch.bfloat16, torch.float32)
SHAPES = [(4096, 8192), (2, 1023, 11008), (70_000, 40), (3, 100_000)]


def check(name, *args):
    """Compare two calls with the reference; the second call uses the bound launch."""
    spec = specs.by_key[f"opmux::{name}"]
    want = spec.reference(*args)
    want = want if isinstance(want, tuple) else (want,)
    for _ in range(2):
        got = getattr(opmux.ops, name)(*args)
        for a, b in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            tol = spec.tol[b.dtype]
            torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_units_of_halves_agree_with_the_reference(shape, dtype):
    with opmux.policy("flagos", strict=True):
        n = shape[-1]
        x, dy = (torch.randn(*shape[:-1], k * n, device="cuda", dtype=dtype) for k in (2, 1))
        check("silu_glu", x)
        check("gelu_tanh_glu_bwd", dy, x)
        check("silu_mul", *x.chunk(2, -1))
        check("gelu_tanh_mul_bwd", dy, *x.chunk(2, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations_with_a_bias_agree_and_bias_gradients_are_deterministic(shape, dtype):
    with opmux.policy("flagos", strict=True):
        x, dy = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
        bias = torch.randn(shape[-1], device="cuda", dtype=dtype)
        check("gelu_tanh_bias", x, bias)
        spec = specs.by_key["opmux::silu_bias_bwd"]
        for b in (bias, None):
            (dx, dbias), (true_dx, _) = opmux.ops.silu_bias_bwd(dy, x, b), spec.reference(dy, x, b)
            torch.testing.assert_close(dx, true_dx, rtol=spec.tol[dtype].rtol, atol=spec.tol[dtype].atol)
            _, sums = spec.reference(dy.double(), x.double(), None if b is None else b.double())
            rows = x.numel() // shape[-1]
            torch.testing.assert_close(dbias.double(), sums, rtol=spec.tol[dtype].rtol, atol=1e-6 * rows)
            assert all(torch.equal(opmux.ops.silu_bias_bwd(dy, x, b)[1], dbias) for _ in range(5))


def test_tex_activations_agree_with_torch():
    x, dy = torch.randn(512, 2048, device="cuda"), torch.randn(512, 1024, device="cuda")
    leaf = x.clone().requires_grad_()
    a, b = leaf.chunk(2, -1)
    y = torch.nn.functional.silu(a) * b
    torch.testing.assert_close(tex_activation.swiglu(x, None), y.detach())
    torch.testing.assert_close(tex_activation.dswiglu(dy, x, None), torch.autograd.grad(y, leaf, dy)[0])
    dbias, dact = tex_activation.dbias_drelu(x, x, None)
    torch.testing.assert_close(dact, x.clamp(min=0))
    torch.testing.assert_close(dbias, x.clamp(min=0).double().sum(0).float())
