"""The specs' samples on a real GPU, and what only a GPU can test: autograd's device threads, CUDA graphs, out of
memory.
"""

from __future__ import annotations

import threading

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, OpImpl, OpManager, OpRegistry, get_default_manager, specs
from opmux.core.machine import arch_of

pytestmark = pytest.mark.gpu

VENDOR, REFERENCE = BackendImplKind.VENDOR, BackendImplKind.REFERENCE
PRIMITIVES = [s for s in specs if s.space == "opmux"]
CUDA = torch.device("cuda")
by_name = {"ids": lambda v: getattr(v, "name", str(v).removeprefix("torch."))}


def tensors(results):
    return [t for t in (results if isinstance(results, (tuple, list)) else [results]) if torch.is_tensor(t)]


def calls(spec, dtype):
    """Yield (arguments, description) of each call. In the samples amax is None or larger than all values, so an extra
    call starts with an amax of zero, which must rise.
    """
    for sample in spec.samples(dtype, CUDA):
        yield sample.args, sample.id
        if "amax" in spec.mutates:
            zero = torch.zeros(1, device=CUDA)
            yield [zero if n == "amax" else a for n, a in zip(spec.names, sample.args)], f"{sample.id}, amax from zero"


def written(spec, args):
    """The tensors among the arguments that the op writes to."""
    return [a for name, a in zip(spec.names, args, strict=True) if name in spec.mutates and a is not None]


def tolerance(spec, dtype, result):
    """The looser of two tolerances: for the call's dtype and for the result's. They differ: float64 inputs have a
    float32 amax.
    """
    tolerances = [spec.tol[dtype], spec.tol.get(result.dtype, spec.tol[dtype])]
    return {"rtol": max(t.rtol for t in tolerances), "atol": max(t.atol for t in tolerances)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], **by_name)
@pytest.mark.parametrize("spec", PRIMITIVES, **by_name)
def test_every_sample_agrees_with_the_cpu(spec, dtype):
    compared = 0
    for args, what in calls(spec, dtype):
        theirs = [a.to("cpu", copy=True) if torch.is_tensor(a) else a for a in args]
        got = tensors(getattr(opmux.ops, spec.name)(*args))
        assert all(a.is_cuda and a.is_contiguous() for a in got)
        expected = tensors(spec.reference(*theirs))
        got += written(spec, args)
        expected += written(spec, theirs)
        for a, b in zip(got, expected, strict=True):
            tol = tolerance(spec, dtype, b)
            torch.testing.assert_close(a.cpu(), b, **tol, msg=lambda m, w=what: f"{w}: {m}")
        compared += len(got)
    assert compared, "nothing was compared"


@pytest.mark.parametrize("spec", [s for s in PRIMITIVES if s.grad], **by_name)
def test_every_op_compiles_with_inductor_and_keeps_its_gradients(spec):
    torch._dynamo.reset()
    fn = getattr(opmux.ops, spec.name)
    sample = next(iter(spec.samples(torch.float32, CUDA)))
    runs = []
    for call in (fn, torch.compile(fn, fullgraph=True)):
        fresh = lambda a: a.detach().clone().requires_grad_(a.is_floating_point()) if torch.is_tensor(a) else a
        args = [fresh(a) for a in sample.args]
        outs = tensors(call(*args))
        sum(o.sin().sum() for o in outs if o.requires_grad).backward()
        grads = [a.grad for a in args if torch.is_tensor(a) and a.requires_grad]
        runs.append([*(o.detach() for o in outs), *grads])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_device_of_the_tensors_selects_the_impl_of_each_call():
    registry = OpRegistry()
    registry.register_impl(OpImpl("own", "chip", VENDOR, "nvidia", lambda x: "chip", devices={"cuda"}))
    registry.register_impl(OpImpl("own", "new", VENDOR, "nvidia", lambda x: "new", priority=1, min_arch="sm_999"))
    registry.register_impl(OpImpl("own", "ref", REFERENCE, None, lambda x: "ref"))
    manager = OpManager(registry)
    for _ in range(2):
        assert manager.call("own", torch.ones(1)) == "ref"
        assert manager.call("own", torch.ones(1, device=CUDA)) == "chip"
    assert manager.explain("own", torch.ones(1, device=CUDA)).chosen.impl_id == "chip"
    assert str(arch_of("cuda")).startswith(("sm_", "gfx"))


def test_a_cuda_backward_uses_the_policy_scope_of_its_forward():
    """On CUDA the backward runs on autograd's device thread, where our context variables have no values."""
    calls = []

    def backward(dy, x, weight, rstd, offset):
        calls.append(threading.current_thread() is threading.main_thread())
        return torch.full_like(x, 7.0), torch.full_like(weight, 7.0)

    registry = get_default_manager().registry
    registry.register_impl(OpImpl("rms_norm_bwd", "vendor.seven", VENDOR, "seven", backward))
    try:
        x, w = (torch.randn(*s, device=CUDA, requires_grad=True) for s in ((3, 8), (8,)))
        with opmux.policy("reference"):
            opmux.ops.rms_norm(x, w)[0].sum().backward()
        assert calls == [] and not x.grad.eq(7).any()
        x.grad = None
        with opmux.policy("vendor"):
            y, _ = opmux.ops.rms_norm(x, w)
        with opmux.policy("reference"):
            y.sum().backward()
        assert len(calls) == 1 and x.grad.eq(7).all()
    finally:
        registry.unregister("rms_norm_bwd", "vendor.seven")


def test_ops_can_be_captured_in_a_cuda_graph():
    x, w = torch.randn(64, 1024, device=CUDA), torch.randn(1024, device=CUDA)
    opmux.ops.rms_norm(x, w)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        y, _ = opmux.ops.rms_norm(x, w)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, opmux.ops.rms_norm(x, w)[0])


def test_a_mutating_op_does_not_fall_back_during_graph_capture():
    def fails(x):
        x.add_(1)
        raise RuntimeError("late")

    registry = OpRegistry()
    registry.register_impl(OpImpl("own", "bad", VENDOR, "v", fails))
    registry.register_impl(OpImpl("own", "ref", REFERENCE, None, lambda x: x.add_(1)))
    manager = OpManager(registry)
    x = torch.zeros(4, device=CUDA)
    with pytest.raises(RuntimeError, match="^late"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        manager.call("own", x)
    torch.cuda.synchronize()
    manager.call("own", x)
    assert x.eq(1).all()


def test_out_of_memory_is_never_retried():
    calls = []

    def too_much(x):
        return torch.empty(1 << 50, dtype=torch.uint8, device=CUDA)

    registry = OpRegistry()
    registry.register_impl(OpImpl("own", "big", VENDOR, "v", too_much))
    registry.register_impl(OpImpl("own", "ref", REFERENCE, None, lambda x: calls.append(1)))
    with pytest.raises(torch.OutOfMemoryError):
        OpManager(registry).call("own", torch.zeros(1, device=CUDA))
    assert calls == []
