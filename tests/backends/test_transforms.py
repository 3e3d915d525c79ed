"""Every differentiable op under torch's transforms and tracers, with the CPU's C++ kernels in place.

The reference is plain PyTorch, which torch can differentiate, batch and trace. Each transform of an op must give the
same result as the transform of its reference.
"""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager
from opmux.core.spec import specs

CPU = torch.device("cpu")
DIFFERENTIABLE = [s for s in specs if s.grad and s.space == "opmux"]
by_name = {"ids": lambda s: s.name}


def every_op(test):
    return pytest.mark.parametrize("spec", DIFFERENTIABLE, **by_name)(test)


class Case:
    """An op as a function of only its differentiable inputs: `ours` calls the public op, `reference` its reference."""

    def __init__(self, spec, sample):
        self.spec = spec
        bound = spec.signature.bind(*sample.args, **sample.kwargs)
        bound.apply_defaults()
        self.args = list(bound.arguments.values())
        takes = sorted(set(spec.gradient.targets))
        self.at = [i for i in takes if isinstance(self.args[i], torch.Tensor) and self.args[i].is_floating_point()]
        self.inputs = [self.args[i].detach().clone() for i in self.at]
        self.results = [i for i, d in enumerate(spec.gradient.differentiable) if d]

    def _call(self, fn, inputs):
        args = list(self.args)
        for i, value in zip(self.at, inputs, strict=True):
            args[i] = value
        results = fn(*args)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return tuple(results[i] for i in self.results if results[i].is_floating_point())

    def ours(self, *inputs):
        return self._call(specs.functions[self.spec.key], inputs)

    def reference(self, *inputs):
        return self._call(self.spec.reference, inputs)


@pytest.fixture(autouse=True)
def bound():
    """Call every op once, so that its entry is bound to an impl: the checks of the entry depend on that impl."""
    for spec in DIFFERENTIABLE:
        if not specs.entries[spec.key].bound:
            case = cases(spec, 1)[0]
            with torch.no_grad():
                case.ours(*case.inputs)


def cases(spec, count=2):
    """Small float64 samples with at least one differentiable input."""
    cases = []
    for sample in spec.samples(torch.float64, CPU):
        case = Case(spec, sample)
        if case.inputs and all(0 < t.numel() <= 4096 for t in case.inputs):
            cases.append(case)
        if len(cases) == count:
            break
    assert cases, f"no sample of {spec.key} can be differentiated"
    return cases


def like(tensors, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in tensors)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


def gradients(results, inputs):
    total = sum((y * w).sum() for y, w in zip(results, like(results, 3), strict=True))
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


@every_op
def test_forward_mode_ad_and_jvp_agree_with_the_reference(spec):
    for case in cases(spec):
        tangents = like(case.inputs, 1)
        expected = torch.func.jvp(case.reference, tuple(case.inputs), tangents)
        close(torch.func.jvp(case.ours, tuple(case.inputs), tangents), expected)
        with fwd.dual_level():
            duals = [fwd.make_dual(t, d) for t, d in zip(case.inputs, tangents, strict=True)]
            got = [fwd.unpack_dual(y) for y in case.ours(*duals)]
        # A result that does not depend on the inputs has no tangent, or a zero one.
        close(tuple(g.primal if g.tangent is None else g.tangent for g in got if g.tangent is not None),
              tuple(t for t, g in zip(expected[1], got, strict=True) if g.tangent is not None))  # fmt: skip
        assert all(g.tangent is not None or not t.any() for t, g in zip(expected[1], got, strict=True))


@every_op
def test_functorch_vjp_agrees_with_the_reference(spec):
    for case in cases(spec, 1):
        expected, pull = torch.func.vjp(case.reference, *case.inputs)
        outs, ours = torch.func.vjp(case.ours, *case.inputs)
        close(outs, expected)
        close(ours(like(outs, 2)), pull(like(outs, 2)))


@every_op
def test_vmap_keeps_values_and_gradients(spec):
    for case in cases(spec, 1):
        batch = [torch.stack([t, t.flip(0) if t.dim() else t, t]).requires_grad_() for t in case.inputs]
        got = torch.vmap(case.ours)(*batch)
        expected = torch.vmap(case.reference)(*batch)
        close(got, expected)
        assert [y.requires_grad for y in got] == [y.requires_grad for y in expected]
        close(gradients(got, batch), gradients(expected, batch))


@every_op
def test_second_derivatives_agree_with_the_reference(spec):
    for case in cases(spec):
        leaves = [t.clone().requires_grad_() for t in case.inputs]

        def second(fn, leaves=leaves):
            ys = fn(*leaves)
            first = sum((y * w).sum() for y, w in zip(ys, like(ys, 4), strict=True))
            # Make the gradient nonlinear in the inputs, so that a missing part changes the second derivative.
            grads = torch.autograd.grad(first, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
            mixed = sum((g * w).sum() for g, w in zip(grads, like(grads, 5), strict=True))
            mixed = mixed + sum((t**3).sum() for t in leaves)
            return grads, torch.autograd.grad(mixed, leaves, allow_unused=True, materialize_grads=True)

        close(second(case.ours), second(case.reference))


@every_op
def test_make_fx_and_fake_tensors_trace_the_op(spec):
    [case] = cases(spec, 1)
    graph = make_fx(case.ours)(*case.inputs)
    assert f"opmux.{spec.name}.default" in graph.code
    others = [t * 0.5 for t in case.inputs]
    close(tuple(graph(*others)), case.ours(*others))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in case.inputs]
        case.args = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in case.args]
        assert all(isinstance(y, FakeTensor) for y in case.ours(*fakes))


@pytest.mark.parametrize("spec", [s for s in specs if s.space == "opmux" and not s.mutates], **by_name)
def test_every_op_runs_under_a_dispatch_mode_and_on_fake_tensors(spec):
    class Saw(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(str(func))
            return func(*args, **(kwargs or {}))

    sample = next(iter(spec.samples(torch.float32, CPU)))
    with Saw() as mode:
        specs.functions[spec.key](*sample.args, **sample.kwargs)
    assert f"opmux.{spec.name}.default" in mode.names


class Mine(torch.Tensor):
    """A subclass that has its own memory and changes no behaviour."""


SUBCLASSES = {"two": lambda x: TwoTensor(x, x.clone()), "as_subclass": lambda x: x.as_subclass(Mine)}


@pytest.mark.parametrize("make", SUBCLASSES.values(), ids=SUBCLASSES)
@pytest.mark.parametrize("name", ["silu", "silu_bias", "gelu_tanh_mul", "rms_norm", "softmax", "scaled_softmax", "sum"])
def test_tensor_subclasses_give_the_same_values(name, make):
    spec = specs.by_key[f"opmux::{name}"]
    case = cases(spec, 1)[0]
    expected = case.ours(*case.inputs)
    got = case.ours(*(make(t) for t in case.inputs))
    close(tuple(getattr(y, "a", y).as_subclass(torch.Tensor) for y in got), expected)


def test_hessians_and_jacobians_agree_with_torch():
    x = torch.tensor([0.5, -1.0], dtype=torch.float64)
    for ours, torchs in (
        (opmux.ops.silu, torch.nn.functional.silu),
        (lambda t: opmux.ops.softmax(t, -1), lambda t: t.softmax(-1)),
    ):
        f = lambda fn: lambda t: (fn(t).sin() + t**3).sum()
        close(torch.autograd.functional.hessian(f(ours), x), torch.autograd.functional.hessian(f(torchs), x))
        close(torch.func.hessian(f(ours))(x), torch.func.hessian(f(torchs))(x))
        close(torch.func.jacfwd(ours)(x), torch.func.jacfwd(torchs)(x))
        close(torch.func.jacrev(ours)(x), torch.func.jacrev(torchs)(x))


def test_an_op_can_be_exported():
    class Model(torch.nn.Module):
        def forward(self, x):
            return opmux.ops.silu(x) * 2

    x = torch.randn(3, 4)
    program = torch.export.export(Model(), (x,), strict=False)
    assert "opmux.silu.default" in str(program.graph)
    close(program.module()(x), Model()(x))


def test_a_registered_impl_is_called_with_plain_tensors_only():
    met = []

    def silu(x):
        met.append(type(x))
        return torch.nn.functional.silu(x)

    registry = get_default_manager().registry
    registry.register_impl(OpImpl("opmux::silu", "vendor.seen", BackendImplKind.VENDOR, "seen", silu))
    try:
        with opmux.policy("vendor:seen"):
            x = torch.randn(3, 4)
            torch.func.jvp(opmux.ops.silu, (x,), (x,))
            make_fx(opmux.ops.silu)(x)
            with FakeTensorMode() as mode:
                opmux.ops.silu(mode.from_tensor(x))
            torch.vmap(opmux.ops.silu)(x)
            opmux.ops.silu(TwoTensor(x, x))
            assert all(kind is torch.Tensor for kind in met)
            opmux.ops.silu(x)
        assert met and all(kind is torch.Tensor for kind in met)
    finally:
        registry.unregister("opmux::silu", "vendor.seen")
