"""Every primitive through every entry point: dispatch, autograd, torch.ops, torch.compile. Tests the references and a
loopback backend. That backend forwards each op to its reference and counts calls, to show that the selected impl runs.
"""

from __future__ import annotations

import fresh
import pytest
import torch
from torch.utils._pytree import tree_map_only

import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager, specs
from opmux.core.library import fake_call, packet

PRIMITIVES = [s for s in specs if s.space == "opmux"]
FORWARDS = [s for s in PRIMITIVES if s.grad]
CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
by_name = {"ids": lambda v: getattr(v, "name", str(v).removeprefix("torch."))}


def samples(spec, dtype=torch.float32, most=None):
    all_samples = list(spec.samples(dtype, CPU))
    assert all_samples, f"{spec.key} has no sample"
    return all_samples[:most]


def leaves(sample):
    """The sample with its floating-point tensors as new leaves that require gradients."""
    fresh = lambda v: v.detach().clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
    return tuple(map(fresh, sample.args)), {k: fresh(v) for k, v in sample.kwargs.items()}


def tensors(results):
    return [t for t in (results if isinstance(results, (tuple, list)) else [results]) if torch.is_tensor(t)]


def same(got, expected):
    for a, b in zip(tensors(got), tensors(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


class Loopback:
    """A vendor whose impls are the references; it counts their calls."""

    def __init__(self):
        self.calls: dict[str, int] = {}
        for spec in PRIMITIVES:
            get_default_manager().registry.register_impl(
                OpImpl(spec.key, "vendor.loopback", BackendImplKind.VENDOR, "loopback", self._count(spec))
            )

    def _count(self, spec):
        def fn(*args):
            self.calls[spec.name] = self.calls.get(spec.name, 0) + 1
            return spec.reference(*args)

        return fn

    def remove(self):
        for spec in PRIMITIVES:
            get_default_manager().registry.unregister(spec.key, "vendor.loopback")


@pytest.fixture(scope="module")
def loopback():
    mode = Loopback()
    yield mode
    mode.remove()


def test_every_family_has_ops():
    assert {s.family for s in PRIMITIVES} >= {"norm", "activation"}
    assert {"rms_norm", "layer_norm", "add_rms_norm", "gelu", "silu", "relu", "srelu", "qgelu"} <= {
        s.name for s in FORWARDS
    }
    assert {s.grad for s in FORWARDS} <= {s.name for s in PRIMITIVES}


def outcome(spec, fn, sample):
    """Return the results of a call and the arguments that it writes, without changing the sample."""
    args = tree_map_only(torch.Tensor, torch.clone, sample.args) if spec.mutates else sample.args
    results = tensors(fn(*args, **sample.kwargs))
    written = [a for n, a in zip(spec.names, args) if n in spec.mutates and a is not None]
    return [*results, *written]


@pytest.mark.parametrize("spec", PRIMITIVES, **by_name)
def test_dispatch_runs_the_impl_that_the_policy_selects(spec, loopback, few):
    fn = getattr(opmux.ops, spec.name)
    for dtype in DTYPES:
        all_samples = samples(spec, dtype)
        for sample in few(all_samples, 2 if dtype is torch.float32 else 1):
            before = loopback.calls.get(spec.name, 0)
            expected = outcome(spec, spec.reference, sample)
            same(outcome(spec, fn, sample), expected)
            with opmux.policy("reference"):
                same(outcome(spec, fn, sample), expected)
            # By default the vendor's impl runs before the reference, but it declines a call that sets an option added
            # to the op later.
            arguments = spec.signature.bind(*sample.args, **sample.kwargs).arguments
            defaults = {n: spec.signature.parameters[n].default for n in spec.added}
            new = any(arguments.get(n, default) != default for n, default in defaults.items())
            assert loopback.calls.get(spec.name, 0) == before + (not new)


@pytest.mark.parametrize("spec", PRIMITIVES, **by_name)
def test_inputs_are_unchanged_and_results_do_not_alias_them(spec, few):
    for sample in few(samples(spec), 4):
        named = {**dict(zip(spec.names, sample.args)), **sample.kwargs}
        inputs = [t for n, t in named.items() if torch.is_tensor(t) and n not in spec.mutates]
        before = [t.clone() for t in inputs]
        results = tensors(getattr(opmux.ops, spec.name)(*sample.args, **sample.kwargs))
        same(inputs, before)
        addresses = [t.data_ptr() for t in (*inputs, *results) if t.numel()]
        assert len(set(addresses)) == len(addresses) or len(inputs) != len({t.data_ptr() for t in inputs}), sample.id
        assert all(t.is_contiguous() for t in results) or "seq_first" in sample.id, sample.id


@pytest.mark.parametrize("spec", PRIMITIVES, **by_name)
def test_fake_kernels_agree_with_the_reference(spec, few):
    for sample in few(samples(spec), 2):  # a fake call takes as long as 20 real ones
        real = tensors(getattr(opmux.ops, spec.name)(*sample.args, **sample.kwargs))
        fake = tensors(fake_call(spec, sample.args, sample.kwargs))
        facts = lambda ts: [(t.shape, t.dtype, t.stride(), t.device) for t in ts]
        assert facts(real) == facts(fake), sample.id
        assert spec.bytes_moved(*sample.args, **sample.kwargs) >= sum(t.nbytes for t in real)


@pytest.mark.parametrize("spec", PRIMITIVES, **by_name)
def test_wrong_arguments_raise_with_the_ops_name(spec):
    errors = list(spec.errors(CPU))
    assert errors, f"{spec.key} has no bad sample"
    for bad in errors:
        with pytest.raises(bad.error, match=bad.match):
            getattr(opmux.ops, spec.name)(*bad.args, **bad.kwargs)
    first = spec.names[0]
    with pytest.raises(TypeError, match=f"{spec.name}: {first} must be a Tensor; got list"):
        getattr(opmux.ops, spec.name)([1.0], *samples(spec)[0].args[1:])


@pytest.mark.parametrize("spec", PRIMITIVES, **by_name)
def test_opcheck_passes(spec, few, slow):
    """Runs torch's checks of schema, autograd registration and fake kernel. With --slow it also runs the AOT check,
    which takes 0.4 s per op.
    """
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    more = ("test_aot_dispatch_dynamic",) if slow else ()
    for sample in few(samples(spec, most=3), 1):
        args, kwargs = leaves(sample) if spec.grad else (sample.args, sample.kwargs)
        torch.library.opcheck(packet(spec).default, args, kwargs, test_utils=checks + more)


@pytest.mark.parametrize("spec", FORWARDS, **by_name)
@pytest.mark.few(20)
def test_forward_and_backward_compile_without_graph_breaks(spec):
    torch._dynamo.reset()  # all ops share the lambda's code object, so they also share its recompile limit
    fn = getattr(opmux.ops, spec.name)
    compiled = torch.compile(lambda *a, **k: fn(*a, **k), fullgraph=True, backend="aot_eager", dynamic=False)
    sample = samples(spec, torch.float32)[0]
    runs = []
    for call in (fn, compiled):
        args, kwargs = leaves(sample)
        outs = tensors(call(*args, **kwargs))
        torch.manual_seed(1)
        loss = sum((o.double() * torch.randn_like(o.double())).sum() for o in outs if o.requires_grad)
        loss.backward()
        inputs = (*args, *kwargs.values())
        grads = [inputs[i].grad for i in spec.gradient.targets if torch.is_tensor(inputs[i])]
        runs.append([*(o.detach() for o in outs), *grads])
    assert all(t is not None for t in runs[0])
    same(runs[1], runs[0])


def test_gradients_are_right_if_defaults_are_left_out():
    """torch.ops drops trailing defaults; compiled gradients must handle that."""
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    y, *_ = torch.compile(opmux.ops.layer_norm, fullgraph=True, backend="aot_eager")(x, w)
    expected = torch.nn.functional.layer_norm(x, (8,), w)
    got, expected_grads = (torch.autograd.grad(o.sin().sum(), (x, w)) for o in (y, expected))
    torch.testing.assert_close(got, expected_grads)


def test_compiled_code_follows_a_policy_switch_without_recompiling(loopback):
    traces = []

    def backend(graph, inputs):
        traces.append(graph)
        return graph.forward

    f = torch.compile(lambda x, w: opmux.ops.rms_norm(x, w)[0] * 2, fullgraph=True, backend=backend)
    x, w = torch.randn(3, 8), torch.randn(8)
    counts = []
    for scope in ("vendor", "reference", "vendor"):
        with opmux.policy(scope):
            f(x, w)
        counts.append(loopback.calls.get("rms_norm", 0))
    assert counts[1] == counts[0] and counts[2] == counts[0] + 1 and len(traces) == 1


def test_the_first_call_of_a_process_may_be_compiled():
    """The call runs in a new process, before any eager call. Also tests the op imported from its family's module."""
    import sys

    script = (
        "import torch, opmux\n"
        "from opmux.specs.activation import silu_mul\n"
        "f = torch.compile(lambda a, b: silu_mul(a, b) + opmux.ops.gelu(a), fullgraph=True, backend='aot_eager')\n"
        "a, b = torch.randn(4, requires_grad=True), torch.randn(4)\n"
        "y = f(a, b); y.sum().backward()\n"
        "F = torch.nn.functional\n"
        "torch.testing.assert_close(y, F.silu(a) * b + F.gelu(a))\n"
        "print(a.grad.isfinite().all())\n"
    )
    result = fresh.run([sys.executable, "-c", script], timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "tensor(True)"


@pytest.mark.parametrize("hooks", [True, False])
def test_ops_compile_with_and_without_dynamos_hooks(monkeypatch, hooks):
    """If torch has no hooks for us, the function checks whether it is being compiled."""
    from opmux.core import library, op

    assert library.dynamo_has_hooks()
    monkeypatch.setattr(library, "dynamo_has_hooks", lambda: hooks)

    def hook_test(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    fn = op(hook_test)
    try:
        assert hasattr(fn, "_torchdynamo_inline") is hooks
        for call in (fn, lambda x: fn(x) * 1):
            torch._dynamo.reset()
            y = torch.compile(call, fullgraph=True, backend="aot_eager")(torch.ones(3))
            assert y.eq(2).all() and fn(torch.ones(3)).eq(2).all()
    finally:
        specs.remove(fn.spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", FORWARDS, **by_name)
def test_ops_compile_with_inductor(spec):
    torch._dynamo.reset()
    fn = getattr(opmux.ops, spec.name)
    compiled = torch.compile(lambda *a, **k: fn(*a, **k), fullgraph=True)
    sample = samples(spec)[0]
    same(compiled(*sample.args, **sample.kwargs), fn(*sample.args, **sample.kwargs))
