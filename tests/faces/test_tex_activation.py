"""tex's activations match autograd in float64: quantized outputs, gates with parameters, and row factors."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from tex_quantized import QUANTIZERS, same

from opmux.core import specs
from opmux.faces.tex.ops import activation as tex_activation
from opmux.faces.tex.ops import scaled_activation as tex_scaled_activation
from opmux.faces.tex.quantized import (
    OPS,
    Float8Quantizer,
    MXFP8Quantizer,
    quantized,
)

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


# ---- quantized outputs ----------------------------------------------------------------------------------------------

TEX = [*tex_activation.OPS, "situglu", "dsituglu", "clamped_swiglu", "clamped_dswiglu"]


def called(name, grad, x, quantizer):
    """Calls a forward on x, or a backward on grad and x; returns the quantized result, and dbias or None."""
    module = tex_activation if name in tex_activation.OPS else tex_scaled_activation
    fn = getattr(module, name)
    gated, forward = "glu" in name, "input" in fn.spec.names
    args = (x if gated else x[:, :128],) if forward else (grad, x if gated else x[:, :128])
    result = fn(*args, quantizer)
    return (result[1], result[0]) if name.startswith("dbias") else (result, None)


def pair(dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(3)
    return torch.randn(64, 128, generator=g).to(dtype), (2 * torch.randn(64, 256, generator=g)).to(dtype)


@pytest.mark.parametrize("kind", QUANTIZERS)
@pytest.mark.parametrize("name", TEX)
def test_activations_accept_every_quantizer(name, kind):
    quantizer, again, (grad, x) = QUANTIZERS[kind](), QUANTIZERS[kind](), pair()
    got, dbias = called(name, grad, x, quantizer)
    fused = kind == "delayed" and name in tex_activation.OPS
    y, _ = called(name, grad.float(), x.float(), None) if fused else called(name, grad, x, None)
    want = quantized(OPS, y, again)
    want._dtype = torch.bfloat16
    same(got, want)
    if kind == "delayed":
        assert torch.equal(quantizer.amax, torch.clamp(y.float().abs().amax(), min=0.25).reshape(1))
    if dbias is not None:
        assert dbias.dtype is torch.bfloat16 and torch.equal(dbias, called(name, grad, x, None)[1])


def test_shapes_that_mxfp8_does_not_support_raise():
    x = torch.zeros(32, 32)
    assert tex_activation.gelu(x, MXFP8Quantizer()).shape == x.shape
    with pytest.raises(ValueError, match="^swiglu: input must have rows and columns in multiples of 32"):
        tex_activation.swiglu(x, MXFP8Quantizer())  # the result would have 16 columns
    with pytest.raises(ValueError, match="^situglu: input must have rows and columns in multiples of 32"):
        tex_scaled_activation.situglu(x, MXFP8Quantizer())
    with pytest.raises(ValueError, match=r"^gelu: quantizer.scale must be a single number; got \(2,\)"):
        tex_activation.gelu(x, Float8Quantizer(torch.ones(2), torch.ones(1)))


def test_dgelu_is_the_derivative_of_the_tanh_gelu():
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(F.gelu(leaf, approximate="tanh").sum(), leaf)
    torch.testing.assert_close(tex_activation.dgelu(torch.ones_like(x), x, None), want)
    for dtype in (torch.bfloat16, torch.float16):
        got = tex_activation.dgelu(torch.ones_like(x, dtype=dtype), x.to(dtype), None)
        leaf = x.to(dtype).double().requires_grad_()
        (want,) = torch.autograd.grad(F.gelu(leaf, approximate="tanh").sum(), leaf)
        torch.testing.assert_close(got, want.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-5)


# ---- gates with parameters, and row factors -------------------------------------------------------------------------


def untransposed(x, k):
    return x if not k else torch.cat([x.unflatten(-1, (-1, 2, k))[..., i, :].flatten(-2) for i in (0, 1)], -1)


def situ(x, beta1=4.0, beta2=25.0):
    a, b = x.chunk(2, -1)
    return beta1 * torch.tanh(a / beta1) * torch.sigmoid(a) * beta2 * torch.tanh(b / beta2)


def clamped(x, limit=7.0, alpha=1.702, glu_linear_offset=1.0):
    a, b = x.chunk(2, -1)
    a = a.clamp(max=limit)
    return a * torch.sigmoid(alpha * a) * (b.clamp(-limit, limit) + glu_linear_offset)


def swiglu(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


TRUTH = {
    "situglu": situ,
    "clamped_swiglu": clamped,
    "scaled_swiglu": swiglu,
    "scaled_situglu": situ,
    "scaled_clamped_swiglu": clamped,
    "scaled_srelu": lambda x: F.relu(x) ** 2,
}
GRAD = {n: n.replace("situglu", "dsituglu").replace("swiglu", "dswiglu").replace("srelu", "dsrelu") for n in TRUTH}
SCALED = [s for s in specs.by_key.values() if s.family == "tex_scaled_activation"]
over_scaled = pytest.mark.parametrize("spec", SCALED, ids=lambda s: s.name)


def true_results(spec, args):
    arguments = dict(zip(spec.names, args, strict=True))
    forward = spec.name in TRUTH
    f = TRUTH[spec.name if forward else {v: k for k, v in GRAD.items()}[spec.name]]
    numbers = {n: arguments[n] for n in ("beta1", "beta2", "limit", "alpha", "glu_linear_offset") if n in arguments}
    x = arguments["input" if forward else "fwd_input"].double().requires_grad_()
    s = arguments["act_scales"].double().requires_grad_() if "act_scales" in arguments else None
    y = f(untransposed(x, arguments.get("glu_interleave_size", 0)), **numbers)
    if s is not None:
        y = y * s.reshape(*x.shape[:-1], 1)
    if forward:
        return [y.detach()]
    leaves = [x] if s is None else [x, s]
    return list(torch.autograd.grad(y, leaves, arguments["grad"].double(), materialize_grads=True))


SIGNATURES = {
    "situglu": "input quantizer beta1=4.0 beta2=25.0",
    "dsituglu": "grad fwd_input quantizer beta1=4.0 beta2=25.0",
    "clamped_swiglu": "input quantizer limit=7.0 alpha=1.702 glu_linear_offset=1.0",
    "clamped_dswiglu": "grad fwd_input quantizer limit=7.0 alpha=1.702 glu_linear_offset=1.0",
    "scaled_swiglu": "input act_scales quantizer glu_interleave_size=0",
    "scaled_situglu": "input act_scales quantizer beta1=4.0 beta2=25.0 glu_interleave_size=0",
    "scaled_clamped_swiglu": (
        "input act_scales quantizer limit=7.0 alpha=1.702 glu_linear_offset=1.0 glu_interleave_size=0"
    ),
    "scaled_srelu": "input act_scales quantizer",
    "scaled_dswiglu": "grad fwd_input act_scales quantizer glu_interleave_size=0 compute_scale_grad=True",
    "scaled_dsituglu": (
        "grad fwd_input act_scales quantizer beta1=4.0 beta2=25.0 glu_interleave_size=0 compute_scale_grad=True"
    ),
    "scaled_clamped_dswiglu": (
        "grad fwd_input act_scales quantizer limit=7.0 alpha=1.702 glu_linear_offset=1.0 glu_interleave_size=0 "
        "compute_scale_grad=True"
    ),
    "scaled_dsrelu": "grad fwd_input act_scales quantizer compute_scale_grad=True",
}


def test_signatures_match_nvidias():
    assert {s.name for s in SCALED} == set(SIGNATURES) == {*TRUTH, *GRAD.values()}
    for spec in SCALED:
        params = inspect.signature(spec.reference).parameters.values()
        text = " ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in params)
        assert text == SIGNATURES[spec.name]


@every_dtype
@over_scaled
def test_gated_activations_with_row_factors_match_autograd(spec, dtype):
    for sample in spec.samples(dtype, CPU):
        before = [a.clone() for a in sample.args if torch.is_tensor(a)]
        got = spec.reference(*sample.args)
        assert isinstance(got, tuple) == (len(spec.out) == 2)
        for g, w in zip(got if isinstance(got, tuple) else (got,), true_results(spec, sample.args), strict=True):
            tol = spec.tol[g.dtype]
            torch.testing.assert_close(
                g.double(), w, rtol=tol.rtol, atol=max(tol.atol, 1e-5), msg=f"{sample.id} {g} {w}"
            )
            assert g.is_contiguous() and not g.requires_grad
        after = [a for a in sample.args if torch.is_tensor(a)]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@over_scaled
def test_errors_name_the_argument_also_through_dispatch(spec):
    fn = getattr(tex_scaled_activation, spec.name)
    for bad in spec.errors(CPU):
        with pytest.raises(bad.error, match=bad.match) as raised:
            fn(*bad.args)
        assert str(raised.value).startswith(f"{spec.name}: "), bad.id
    good = dict(zip(spec.names, spec.samples.at((5, 64), torch.float32, CPU).args, strict=True))
    for name in set(good) & {"beta1", "beta2", "limit", "alpha", "glu_linear_offset", "glu_interleave_size"}:
        for wrong in (None, "text"):
            with pytest.raises(TypeError, match=f"^{spec.name}: {name} must be "):
                fn(**{**good, name: wrong})
    if "act_scales" in good:
        with pytest.raises(TypeError, match=f"^{spec.name}: .*act_scales"):
            fn(**{**good, "act_scales": None})


def test_the_gradient_of_row_factors_is_optional():
    x, grad, s = torch.randn(4, 64), torch.randn(4, 32), torch.rand(2, 2).bfloat16()
    dx, ds = tex_scaled_activation.scaled_dswiglu(grad, x, s, None)
    assert ds.shape == (2, 2) and ds.dtype is torch.bfloat16
    again, nothing = tex_scaled_activation.scaled_dswiglu(grad, x, s, None, compute_scale_grad=False)
    assert nothing is None and torch.equal(dx, again)


def test_clamped_elements_have_no_gradient():
    x = torch.tensor([[8.0, 7.0, -8.0, 1.0, 8.0, 7.0, -8.0, -7.0]])
    dx = tex_scaled_activation.clamped_dswiglu(torch.ones(1, 4), x, None)[0]
    assert (dx == 0).tolist() == [True, False, False, False, True, False, True, False]
