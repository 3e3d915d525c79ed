"""In half precision, each casting of an RMS norm rounds where the model of the same name rounds."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core.errors import BadArgument

HALVES = (torch.bfloat16, torch.float16)
EPS = 1e-5


def drawn(dtype, n=200, rows=(4, 33)):
    generator = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(dtype)
    return draw(*rows, n) * 3, draw(n), draw(*rows, n), draw(*rows, n)


def models(dtype, weight):
    """transformers' norm modules, each with the (offset, casting) that our op needs to equal it."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama").LlamaRMSNorm
    gemma = pytest.importorskip("transformers.models.gemma.modeling_gemma").GemmaRMSNorm
    for kind, options in ((llama, (0.0, "llama")), (gemma, (1.0, "gemma"))):
        module = kind(weight.numel(), eps=EPS).to(dtype)
        with torch.no_grad():
            module.weight.copy_(weight)
        yield module, options


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_castings_equal_transformers_bit_for_bit(dtype):
    x, weight, residual, _ = drawn(dtype)
    for module, options in models(dtype, weight):
        with opmux.policy("reference"):
            assert torch.equal(opmux.ops.rms_norm(x, weight, EPS, *options)[0], module(x))
            y, s, _ = opmux.ops.add_rms_norm(x, residual, weight, EPS, *options)
        assert torch.equal(s, x + residual) and torch.equal(y, module(x + residual))
        if options[1] == "llama":  # without a policy the call runs on the CPU's default impl, here the reference
            assert torch.equal(opmux.ops.rms_norm(x, weight, EPS, *options)[0], module(x))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_equal_transformers_up_to_rounding(dtype):
    x, weight, _, dy = drawn(dtype)
    for module, options in models(dtype, weight):
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        own = weight.clone().requires_grad_()
        opmux.ops.rms_norm(ours, own, EPS, *options)[0].backward(dy)
        module(theirs).backward(dy)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(own.grad, module.weight.grad, rtol=2e-2, atol=0.1)


def test_dweight_sums_rounded_values():
    """With one row, each sum has one term, so dweight equals the rounded term."""
    x, weight, _, _ = drawn(torch.bfloat16, rows=(1,))
    _, rstd = opmux.ops.rms_norm(x, weight, EPS, 0.0, "llama")
    dweight = opmux.ops.rms_norm_bwd(torch.ones_like(x), x, weight.float(), rstd, 0.0, "llama")[1]
    assert torch.equal(dweight, (x.float() * rstd[:, None]).bfloat16()[0].float())
    once = opmux.ops.rms_norm_bwd(torch.ones_like(x), x, weight.float(), rstd)[1]
    assert not torch.equal(dweight, once)


def test_casting_none_is_the_formula_in_the_dtype_of_x():
    x, weight, _, _ = drawn(torch.bfloat16)
    var = (x * x).float().mean(-1, keepdim=True).bfloat16()
    rsqrt = torch.rsqrt((var + EPS).float()).bfloat16()  # torch's bfloat16 rsqrt on a CPU also rounds the root
    want = x * rsqrt * (weight + 0.5)
    y, rstd = opmux.ops.rms_norm(x, weight, EPS, 0.5, "none")
    torch.testing.assert_close(y, want, rtol=0, atol=0)
    assert torch.equal(rstd, rstd.bfloat16().float())


@pytest.mark.parametrize("casting", ["llama", "none"])
def test_wide_dtypes_ignore_the_casting(casting):
    x, weight, _, _ = drawn(torch.float32)
    assert torch.equal(opmux.ops.rms_norm(x, weight, casting=casting)[0], opmux.ops.rms_norm.reference(x, weight)[0])


def test_an_unknown_casting_raises():
    x, weight, _, _ = drawn(torch.float32)
    with pytest.raises(BadArgument, match="casting must be one of 'gemma', 'llama', 'none'; got 'fp8'"):
        opmux.ops.rms_norm(x, weight, casting="fp8")
