"""The table of ATen's elementwise ops: signatures against ATen's schemas, gradients, compilation, errors."""

from __future__ import annotations

import inspect

import pytest
import torch

import opmux
from opmux.core import specs
from opmux.specs import pointwise

CPU = torch.device("cpu")
NAMES = sorted(pointwise.ROWS)
GRADIENTS = "add sub mul div pow exp sigmoid tanh gelu silu lerp where maximum atan2 logaddexp clamp addcmul".split()


def functional(name):
    """The overloads of an op that take a tensor, return a tensor, and write nothing."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        takes = any("Tensor" in str(a.type) and "[]" not in str(a.type) for a in schema.arguments)
        if takes and not written and [str(r.type) for r in schema.returns] == ["Tensor"]:
            yield schema


def test_the_table_has_all_elementwise_ops():
    assert len(NAMES) >= 180
    assert {s.name for s in specs if s.space == "aten" and s.family == "pointwise"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_overload_can_be_called(name):
    """Checks that our op has each argument of each functional overload, with the same name and position, and accepts
    its type.
    """
    params = specs.find(f"aten::{name}").signature.parameters
    overloads = list(functional(name))
    assert overloads, f"ATen has no op {name}"
    for schema in overloads:
        names = [a.name for a in schema.arguments]
        assert [n for n in params if n in names] == names, f"{schema}: {list(params)}"
        for a in schema.arguments:
            kind = str(a.type)
            union = inspect.formatannotation(params[a.name].annotation)
            if "Tensor" in kind:
                assert "Tensor" in union, f"{schema}: {a.name}"
            elif kind in ("number", "Optional[number]", "float", "Optional[float]"):
                assert "float" in union, f"{schema}: {a.name}"
            if a.has_default_value():
                assert params[a.name].default == a.default_value, f"{schema}: {a.name}"
        left = [p for p in params.values() if p.name not in names]
        assert all(p.default is None for p in left), f"{schema} has no {left}"


@pytest.mark.parametrize("name", NAMES)
def test_dispatch_gives_torchs_results(name):
    spec = specs.find(f"aten::{name}")
    fn = specs.functions[spec.key]
    dtype = torch.float32 if torch.float32 in pointwise.ROWS[name].dtypes | {torch.float32} else torch.int32
    dtype = torch.int32 if pointwise.ROWS[name].dtypes <= pointwise.INTS | pointwise.BOOL else dtype
    for sample in list(spec.samples(dtype, CPU))[:2]:
        args, kwargs = spec.bound((), dict(zip(spec.names, sample.args, strict=True)))
        got, want = fn(*args, **kwargs), spec.reference(*args, **kwargs)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_torchs(name):
    spec = specs.find(f"aten::{name}")
    fn = specs.functions[spec.key]
    sample = spec.samples.at((5, 7), torch.float64, CPU)
    grads = []
    for call in (fn, spec.reference):
        leaves = [
            a.detach().clone().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a
            for a in sample.args
        ]
        args, kwargs = spec.bound((), dict(zip(spec.names, leaves, strict=True)))
        call(*args, **kwargs).sin().sum().backward()
        grads.append([a.grad for a in leaves if torch.is_tensor(a) and a.requires_grad])
    assert grads[0]
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_only_the_second_argument_may_need_a_gradient():
    y = torch.ones(3, requires_grad=True)
    opmux.ops.add(torch.ones(3), y, alpha=2).sum().backward()
    assert y.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", ["add", "aten::gelu", "clamp", "div", "round"])
def test_ops_compile_without_graph_breaks(name):
    torch._dynamo.reset()
    fn = specs.functions[specs.find(name).key]
    x = torch.randn(5, 7)
    calls = {
        "add": lambda: fn(x, 2.0, alpha=3),
        "aten::gelu": lambda: fn(x, approximate="tanh"),
        "clamp": lambda: fn(x, -0.5, max=0.5),
        "div": lambda: fn(x, x + 3, rounding_mode="floor"),
        "round": lambda: fn(x),
    }
    compiled = torch.compile(calls[name], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(), calls[name](), rtol=0, atol=0)


@pytest.mark.parametrize(
    "call, native",
    [
        (lambda o: o.add(torch.ones(3), torch.ones(4)), lambda: torch.ones(3) + torch.ones(4)),
        (
            lambda o: o.sub(torch.ones(3) > 0, torch.ones(3) > 0),
            lambda: torch.sub(torch.ones(3) > 0, torch.ones(3) > 0),
        ),
        (lambda o: o.gcd(torch.ones(3), torch.ones(3)), lambda: torch.gcd(torch.ones(3), torch.ones(3))),
        (lambda o: o.pow(torch.arange(3), -1), lambda: torch.pow(torch.arange(3), -1)),
        (lambda o: o.clamp(torch.ones(3)), lambda: torch.ops.aten.clamp(torch.ones(3))),
    ],
    ids=["shapes", "bools", "floats", "negative power", "no bounds"],
)
def test_errors_equal_torchs(call, native):
    with pytest.raises(RuntimeError) as ours:
        call(opmux.ops)
    with pytest.raises(RuntimeError) as torchs:
        native()
    assert str(ours.value).split("\n")[0] == str(torchs.value).split("\n")[0]


def test_the_error_for_a_non_tensor_names_the_argument():
    with pytest.raises(TypeError, match="add: self must be a Tensor; got list"):
        opmux.ops.add([1.0], torch.ones(1))


def test_a_number_may_come_first_where_aten_takes_it():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(opmux.ops.pow(2, x), torch.pow(2, x))
    assert torch.equal(opmux.ops.where(x > 1, 5.0, x), torch.where(x > 1, 5.0, x))


def test_autocast_and_forward_mode_gradients_equal_torchs():
    """torch's dispatcher handles both; a direct call of a kernel would skip the dispatcher."""
    x = torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert opmux.ops.mul(x, 2).dtype == torch.mul(x, 2).dtype
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        y = opmux.ops.exp(forward_ad.make_dual(x, torch.ones_like(x)))
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, x.exp())
