"""tex's activations against torch's functions and autograd in double precision, and activations with a bias."""

from __future__ import annotations

import inspect
import pickle

import pytest
import torch
import torch.nn.functional as F
from bad_arguments import assert_rejected

import opmux
from opmux.core import specs
from opmux.faces.tex.ops import activation as tex_activation
from opmux.specs import activation

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
TEX = [s for s in specs if s.family == "tex_activation"]
over_tex = pytest.mark.parametrize("spec", TEX, ids=lambda s: s.name)

ONE = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "srelu": lambda x: F.relu(x) ** 2,
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
}
GATE = {"geglu": "gelu", "swiglu": "silu", "reglu": "relu", "sreglu": "srelu", "qgeglu": "qgelu"}


def gate(f):
    def glu(x):
        a, b = x.split([x.shape[-1] // 2] * 2, -1)
        return f(a) * b

    return glu


FORWARD = {**ONE, **{name: gate(ONE[act]) for name, act in GATE.items()}, "glu": gate(torch.sigmoid)}
NAMES = {*FORWARD, *(f"d{n}" for n in FORWARD), *(f"dbias_d{n}" for n in ONE)}


def true_results(spec, args):
    if spec.name in FORWARD:
        return [FORWARD[spec.name](args[0].double())]
    grad, x = args[0].double(), args[1].double().requires_grad_()
    (dx,) = torch.autograd.grad(FORWARD[spec.name.removeprefix("dbias_")[1:]](x), x, grad)
    if not spec.name.startswith("dbias"):
        return [dx]
    return [dx.reshape(dx.shape[:-1].numel(), dx.shape[-1]).sum(0), dx]


def as_list(results):
    return results if isinstance(results, list) else [results]


def test_every_tex_activation_is_listed():
    assert {s.name for s in TEX} == NAMES == set(tex_activation.OPS)
    for spec in TEX:
        forward = spec.name in FORWARD
        assert " ".join(spec.names) == ("input quantizer" if forward else "grad fwd_input quantizer")
        assert all(p.default is p.empty for p in inspect.signature(spec.reference).parameters.values())
        ours = [p.name for p in spec.parts.values() if p.family == "activation"]
        assert len(ours) == 2 and sum(n.endswith("_fp8") for n in ours) == 1
        fn = getattr(tex_activation, spec.name)
        assert fn.spec is spec and pickle.loads(pickle.dumps(fn)) is fn


@every_dtype
@over_tex
def test_tex_activations_equal_torch_in_double_precision(spec, dtype):
    samples = list(spec.samples(dtype, CPU))
    assert len(samples) > 5
    for sample in samples:
        tensors = [a for a in sample.args if torch.is_tensor(a)]
        before = [a.clone() for a in tensors]
        results = spec.reference(*sample.args)
        assert isinstance(results, list) == spec.name.startswith("dbias")
        for got, want in zip(as_list(results), true_results(spec, sample.args), strict=True):
            tol = spec.tol[dtype]
            torch.testing.assert_close(
                got.double(), want.detach(), rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}"
            )
            assert got.dtype is dtype and got.is_contiguous() and not got.requires_grad
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True)), sample.id


@over_tex
def test_wrong_tex_arguments_raise_with_the_ops_name(spec):
    assert_rejected(spec, spec.reference)


@over_tex
def test_tex_functions_record_no_gradient_and_use_dispatch(spec):
    for sample in list(spec.samples(torch.float32, CPU))[:4]:
        args = [a.detach().clone().requires_grad_() if torch.is_tensor(a) else a for a in sample.args]
        got = as_list(getattr(tex_activation, spec.name)(*args))
        for a, b in zip(got, as_list(spec.reference(*sample.args)), strict=True):
            assert not a.requires_grad
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_an_unknown_quantizer_is_declined_with_a_reason():
    for name in ("swiglu", "gelu"):
        with pytest.raises(TypeError, match=f"^{name}: quantizer must be None or one of Float8Quantizer, .*; got str"):
            getattr(tex_activation, name)(torch.ones(2, 4), "fp8")


def test_opmux_ops_prefers_our_op_to_a_tex_op_of_the_same_name():
    for name in ONE:
        assert getattr(opmux.ops, name).spec.key == f"opmux::{name}"
        assert specs.find(name).key == f"tex::{name}"
    assert opmux.ops.swiglu is tex_activation.swiglu


def test_a_bias_gradient_sums_unrounded_values():
    """If each of the thousands of values were rounded up first, their sum would differ."""
    x = torch.full((4096, 2), 1.0, dtype=torch.bfloat16)
    dy = torch.full((4096, 2), 1.00390625, dtype=torch.bfloat16)
    dx, dbias = opmux.ops.silu_bias_bwd(dy, x, torch.zeros(2))
    want = 4096 * dy[0].double() * torch.sigmoid(torch.tensor(1.0)).double() * (1 + torch.sigmoid(torch.tensor(-1.0)))
    torch.testing.assert_close(dbias.double(), want, rtol=1e-6, atol=0)
    assert (dx.double().sum(0) - want).abs().min() > 1


def test_gradients_with_biases_and_gates_equal_autograds():
    """Tests a bias of another dtype, the gated halves of a tensor, and rows with gaps."""
    x, bias = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float32)
    for act, f in {**ONE, "gelu": F.gelu, "gelu_tanh": ONE["gelu"]}.items():
        leaves = [t.clone().requires_grad_() for t in (x, bias)]
        doubles = [t.double().requires_grad_() for t in (x, bias)]
        got = torch.autograd.grad(getattr(opmux.ops, f"{act}_bias")(*leaves).sin().sum(), leaves)
        want = torch.autograd.grad(f(doubles[0] + doubles[1]).sin().sum(), doubles)
        assert [g.dtype for g in got] == [torch.float64, torch.float32]
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g.double(), w, rtol=1e-6, atol=1e-6)
        leaf, double = x.clone().requires_grad_(), x.clone().requires_grad_()
        (got,) = torch.autograd.grad(getattr(opmux.ops, f"{act}_glu")(leaf[:, :2]).sin().sum(), leaf)
        (want,) = torch.autograd.grad(gate(f)(double[:, :2]).sin().sum(), double)
        torch.testing.assert_close(got, want)


def test_a_glu_is_the_product_of_its_halves():
    x = torch.randn(5, 6)
    for act in activation.ACTS:
        y = getattr(opmux.ops, f"{act}_glu")(x)
        torch.testing.assert_close(y, getattr(opmux.ops, f"{act}_mul")(x[:, :3], x[:, 3:]))
