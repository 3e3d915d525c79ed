"""tex's norms: quantized outputs and statistics; a rejected call writes nothing."""

from __future__ import annotations

import pytest
import torch
from tex_quantized import QUANTIZERS, held, same

from opmux.faces.tex.ops import norm as tex_norm
from opmux.faces.tex.quantized import (
    OPS,
    Float8Quantizer,
    MXFP8Quantizer,
    quantized,
)

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
every_quantizer = pytest.mark.parametrize("kind", QUANTIZERS)


def tensors(shape=(64, 128), dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(1)
    draw = lambda *s: torch.randn(*s, generator=g).to(dtype)
    return draw(*shape) * 3 + 1, draw(shape[-1]), draw(shape[-1])


def forward(name, x, w, b, *, eps=1e-5, ln_out=None, quantizer=None, otype=None, zero_centered=False):
    between = (b,) if name == "layernorm_fwd" else ()
    return getattr(tex_norm, name)(x, w, *between, eps, ln_out, quantizer, otype, 0, zero_centered)


def wide_result(name, x, w, b, **more):
    """The result of the norm before it is rounded."""
    return forward(name, x.float(), w.float(), b.float(), **more)[0]


norms = pytest.mark.parametrize("name", ["rmsnorm_fwd", "layernorm_fwd"])


@every_quantizer
@norms
def test_norms_accept_every_quantizer(name, kind):
    x, w, b = tensors()
    quantizer, again = QUANTIZERS[kind](), QUANTIZERS[kind]()
    y = wide_result(name, x, w, b) if kind == "delayed" else forward(name, x, w, b)[0]
    want = quantized(OPS, y, again)
    out, mu, rsigma = forward(name, x, w, b, quantizer=quantizer, otype=torch.bfloat16)
    if kind == "delayed":
        want._dtype = torch.bfloat16  # cast from float32, but the tensor reports bfloat16
        assert torch.equal(quantizer.amax, again.amax) and quantizer.amax > 0.25
    same(out, want)
    plain, plain_mu, plain_rsigma = forward(name, x, w, b)
    assert torch.equal(rsigma, plain_rsigma) and (mu is None or torch.equal(mu, plain_mu))
    if kind != "nvfp4":  # other tests cover nvfp4's dequantization
        torch.testing.assert_close(out.dequantize(dtype=torch.float32), plain.float(), rtol=0.13, atol=0.1)


@norms
def test_delayed_scaling_casts_without_an_intermediate_rounding(name):
    """If y were rounded to bfloat16 first, more than 1 % of the bytes would differ."""
    x, w, b = tensors((256, 256))
    quantizer, again = QUANTIZERS["delayed"](), QUANTIZERS["delayed"]()
    out = forward(name, x, w, b, quantizer=quantizer, otype=torch.bfloat16)[0]
    rounded = quantized(OPS, forward(name, x, w, b)[0], again)
    y = wide_result(name, x, w, b)
    assert torch.equal(out._data, (y * 7).clamp(-448, 448).to(E4M3).view(torch.uint8))
    assert (out._data != rounded._data).float().mean() > 0.01
    assert torch.equal(quantizer.amax, y.abs().amax().reshape(1))
    assert torch.equal(out._scale_inv, torch.ones(1) / 7)


@pytest.mark.parametrize("rows, cols", [(True, True), (True, False), (False, True)])
def test_delayed_scaling_creates_only_the_requested_usages(rows, cols):
    x, w, b = tensors((2, 16, 32))
    quantizer = Float8Quantizer(torch.ones(1), torch.zeros(1), E5M2, rowwise=rows, columnwise=cols)
    out = forward("rmsnorm_fwd", x, w, b, quantizer=quantizer)[0]
    both = forward("rmsnorm_fwd", x, w, b, quantizer=Float8Quantizer(torch.ones(1), torch.zeros(1), E5M2))[0]
    assert (out._data is not None, out._transpose is not None) == (rows, cols)
    assert out.shape == x.shape and both._transpose.shape == (32, 2, 16)
    assert not rows or torch.equal(out._data, both._data)
    assert not cols or torch.equal(out._transpose, both._data.reshape(32, 32).t().reshape(32, 2, 16))


@every_quantizer
@norms
def test_ln_out_may_be_a_quantized_tensor(name, kind):
    x, w, b = tensors()
    quantizer = QUANTIZERS[kind]()
    target = quantized(OPS, torch.zeros_like(x), quantizer)
    buffers = {n: t.data_ptr() for n, t in held(target).items()}
    out = forward(name, x, w, b, quantizer=quantizer, ln_out=target)[0]
    assert out is target and {n: t.data_ptr() for n, t in held(out).items()} == buffers
    same(out, quantized(OPS, forward(name, x, w, b)[0], QUANTIZERS[kind]()))


@norms
def test_an_invalid_output_raises_before_anything_is_written(name):
    x, w, b = tensors()
    quantizer = QUANTIZERS["delayed"]()
    for wrong in (torch.zeros_like(x), object(), quantized(OPS, x, QUANTIZERS["mxfp8"]())):
        with pytest.raises(TypeError, match=f"^{name}: ln_out must be None or a Float8Tensor; got "):
            forward(name, x, w, b, quantizer=quantizer, ln_out=wrong)
    with pytest.raises(TypeError, match=f"^{name}: ln_out must be a Tensor or None; got Float8Tensor"):
        forward(name, x, w, b, ln_out=quantized(OPS, x, QUANTIZERS["delayed"]()))
    with pytest.raises(TypeError, match=f"^{name}: quantizer must be None or one of .*; got str"):
        forward(name, x, w, b, quantizer="fp8")
    with pytest.raises(ValueError, match=f"^{name}: input must have rows and columns in multiples of 32"):
        forward(name, x[:5], w, b, quantizer=MXFP8Quantizer())
    for bad in (dict(eps=None), dict(eps="1"), dict(otype="float32")):
        with pytest.raises(TypeError, match=f"^{name}: {next(iter(bad))} must be "):
            forward(name, x, w, b, **bad)
        with pytest.raises(TypeError, match=f"^{name}: {next(iter(bad))} must be "):
            forward(name, x, w, b, quantizer=quantizer, **bad)
    assert torch.equal(quantizer.amax, torch.full((1,), 0.25))


@every_dtype
@norms
def test_statistics_are_float32_with_one_value_per_row(name, dtype):
    for shape in ((2, 3, 16), (6, 16), (16,), (0, 16)):
        x, w, b = tensors(shape, dtype)
        for quantizer in (None, QUANTIZERS["delayed"]()):
            _, mu, rsigma = forward(name, x, w, b, quantizer=quantizer)
            count = x[..., 0].numel()
            assert rsigma.dtype is torch.float32 and rsigma.shape == (count,)
            assert (mu is None) == (name == "rmsnorm_fwd")
            assert mu is None or (mu.dtype is torch.float32 and mu.shape == (count,))
        v = x.double() if name == "rmsnorm_fwd" else x.double() - x.double().mean(-1, keepdim=True)
        want = ((v * v).mean(-1) + 1e-5).rsqrt().reshape(-1).float()
        torch.testing.assert_close(rsigma, want, rtol=1e-5, atol=1e-6)


@every_dtype
@pytest.mark.parametrize("otype", DTYPES, ids=str)
def test_layernorm_returns_the_requested_dtype(dtype, otype):
    x, w, b = tensors((5, 64), dtype)
    out, mu, rsigma = forward("layernorm_fwd", x, w, b, otype=otype)
    want = torch.nn.functional.layer_norm(x.double(), (64,), w.double(), b.double())
    assert out.dtype is otype and mu.dtype is rsigma.dtype is torch.float32
    tol = {torch.float64: 1e-5, torch.float32: 1e-5}.get(min(dtype, otype, key=lambda d: torch.finfo(d).bits), 8e-3)
    torch.testing.assert_close(out.double(), want, rtol=tol, atol=tol)


def test_norms_of_empty_input_return_empty_quantized_tensors():
    x, w, b = tensors((0, 32))
    quantizer = QUANTIZERS["delayed"]()
    out, _, rsigma = forward("rmsnorm_fwd", x, w, b, quantizer=quantizer)
    assert out._data.shape == (0, 32) and out._transpose.shape == (32, 0) and rsigma.shape == (0,)
    assert torch.equal(out._scale_inv, torch.ones(1) / 7) and torch.equal(quantizer.amax, torch.full((1,), 0.25))


def test_delayed_scaling_accepts_an_amax_of_inference_mode():
    with torch.inference_mode():
        scale, amax = torch.ones(1), torch.zeros(1)
    x, w, b = tensors()
    forward("layernorm_fwd", x, w.requires_grad_(), b, quantizer=Float8Quantizer(scale, amax))
    assert amax > 0


def test_errors_of_the_backwards_name_the_argument():
    x, w, _ = tensors((5, 64), torch.float32)
    stat = torch.ones(5)
    calls = {
        "rmsnorm_bwd": lambda **k: tex_norm.rmsnorm_bwd(**dict(dz=x, x=x, rsigma=stat, gamma=w) | k, **TAIL),
        "rmsnorm_bwd_add": lambda **k: tex_norm.rmsnorm_bwd_add(
            **dict(dz=x, x=x, add=x, rsigma=stat, gamma=w) | k, **TAIL
        ),
        "layernorm_bwd": lambda **k: tex_norm.layernorm_bwd(
            **dict(dz=x, x=x, mu=stat, rsigma=stat, gamma=w) | k, **TAIL
        ),
    }
    for name, call in calls.items():
        invalid = dict(dz=x[:4], rsigma=stat[:4], gamma=w[:3]) | ({"add": x[:, :3]} if "add" in name else {})
        invalid |= {"mu": stat[:2]} if name == "layernorm_bwd" else {}
        for argument, value in invalid.items():
            with pytest.raises(ValueError, match=f"^{name}: {argument} must have shape"):
                call(**{argument: value})
            for wrong in (None, "text"):
                with pytest.raises(TypeError, match=f"^{name}: {argument} must be a Tensor"):
                    call(**{argument: wrong})
        deep = call(**{n: t.reshape(5, 2, 32) for n, t in dict(dz=x, x=x).items()},
                    **({"add": x.reshape(5, 2, 32)} if "add" in name else {}), gamma=w[:32], rsigma=torch.ones(10),
                    **({"mu": torch.ones(10)} if name == "layernorm_bwd" else {}))  # fmt: skip
        assert isinstance(deep, list) and deep[0].shape == (5, 2, 32) and deep[1].shape == (32,)


TAIL = dict(sm_margin=0, zero_centered_gamma=False)
