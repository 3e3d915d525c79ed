"""Ops with gradients launched from C++ on the CPU: the driver is written in Python, its kernels are the references."""

from __future__ import annotations

import ctypes
import functools
import gc
import threading
import types
import weakref

import pytest
import torch
from native_launches import CALLS_TO_RECORD, KEPT, CudaLauncher, launching_by
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager, launches, specs
from opmux.core.autograd import results_of
from opmux.core.errors import BadArgument, NotSupported
from opmux.core.tensors import has_memory
from opmux.cpp import background, build, functions, launching
from opmux.cpp import library as native_library

FORWARDS = [s for s in specs if s.space == "opmux" and s.grad and s.family in functions.FAMILIES and not s.writes]


class Form:
    """A tensor's metadata, all that a kernel knows besides the address."""

    def __init__(self, t):
        self.size, self.stride, self.dtype = t.shape, t.stride(), t.dtype
        self.bytes = (sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1) * t.element_size()

    def at(self, address):
        memory = (ctypes.c_uint8 * self.bytes).from_address(address)
        return torch.frombuffer(memory, dtype=self.dtype).as_strided(self.size, self.stride)


class Kernel:
    """A compiled kernel: runs an op's reference on arguments of one key."""

    def __init__(self, name, takes, makes, body):
        self.name, self.takes, self.makes, self.body = name, takes, makes, body

    def __call__(self, *addresses):
        forms = [*self.takes, *self.makes]
        tensors = [form.at(address) for form, address in zip(forms, addresses, strict=True)]
        with _disable_current_modes(), torch.no_grad():
            values = self.body(*tensors[: len(self.takes)])
            for out, value in zip(tensors[len(self.takes) :], values, strict=True):
                out.copy_(value)


class FakeDevice:
    """CPU implementations that allocate and launch, and the driver through which C++ launches their kernels."""

    def __init__(self):
        self.kernels: list[Kernel] = []
        self.from_python: list[str] = []
        self.from_cpp: list[str] = []
        self.status = 0  # the driver returns this status
        self.staged: set[str] = set()  # ops that compute into a workspace, which a second launch copies to the result
        self.extra = lambda: None  # additional work of each implementation
        self.added: list[tuple[str, str]] = []

    def take(self, *names):
        """Register implementations of these ops and of their backwards."""
        for name in names:
            spec = specs.find(f"opmux::{name}")
            for one in (spec, spec.gradient.backward):
                fn = self._implementation(one)
                fn.__module__ = "opmux.test"  # makes it one of our own kernels, whose first calls are not checked
                fn.__signature__ = one.signature
                impl = OpImpl(one.key, "test.fake", BackendImplKind.DEFAULT, None, fn, 1000, devices={"cpu"})
                get_default_manager().registry.register_impl(impl)
                self.added.append((one.key, "test.fake"))
        return getattr(opmux.ops, names[0])

    def _implementation(self, spec):
        def fn(*args, **kwargs):
            bound = spec.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values = list(bound.arguments.values())
            self.extra()
            plain = all(has_memory(a) for a in values if isinstance(a, torch.Tensor) and a.numel())
            if not plain or torch.jit.is_tracing():
                raise NotSupported("no memory, or sizes that are no numbers")
            positions = [i for i, a in enumerate(values) if isinstance(a, torch.Tensor)]

            def body(*tensors):
                filled = list(values)
                for i, t in zip(positions, tensors, strict=True):
                    filled[i] = t
                return results_of(spec, spec.reference(*filled))

            tensors = [values[i].detach() for i in positions]
            with _disable_current_modes(), torch.no_grad():
                shapes = [(r.shape, r.dtype) for r in body(*tensors)]
            outs = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
            if spec.name in self.staged:
                spaces = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
                self.launch(spec.name, tensors, spaces, body)
                self.launch(spec.name, spaces, outs, lambda *t: t)
            else:
                self.launch(spec.name, tensors, outs, body)
            return tuple(outs) if len(outs) > 1 else outs[0]

        return fn

    def launch(self, name, takes, makes, body):
        """Replaces `Launcher.__call__` of kernels/lib/launch.py."""
        kernel = Kernel(name, [Form(t) for t in takes], [Form(t) for t in makes], body)
        self.from_python.append(name)
        kernel(*(t.data_ptr() for t in (*takes, *makes)))
        mine = launches.recording.get(threading.get_ident())
        if mine is not None:
            self.kernels.append(kernel)
            args = {f"t{i}_ptr": t for i, t in enumerate((*takes, *makes))}
            src = types.SimpleNamespace(signature=dict.fromkeys(args, "*fp32"))
            compiled = types.SimpleNamespace(
                run=CudaLauncher(), packed_metadata=(4, 1, 256), function=len(self.kernels), src=src
            )
            mine.launches.append(launches.TritonLaunch(compiled, (1, 1, 1), args))
            mine.made += makes

    def drive(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        kernel = self.kernels[function - 1]
        self.from_cpp.append(kernel.name)
        if self.status:
            return self.status
        words = ctypes.POINTER(ctypes.c_uint64)
        kernel(*(ctypes.cast(params[i], words)[0] for i in range(len(kernel.takes) + len(kernel.makes))))
        return 0

    def forget(self):
        self.from_cpp.clear()
        self.from_python.clear()


@pytest.fixture
def fake_device(monkeypatch):
    new_device = FakeDevice()
    KEPT.append(new_device)
    with launching_by(new_device.drive, monkeypatch):
        ours = [specs.entries[s.key] for s in FORWARDS]
        entries = [(e, e.globals["_g"]) for e in ours]
        for spec, entry in zip(FORWARDS, ours):
            entry.globals["_g"] = remake(spec, entry)
        yield new_device
        for entry, function in entries:
            entry.globals["_g"] = function
        for key, impl_id in new_device.added:
            get_default_manager().registry.unregister(key, impl_id)
        get_default_manager().clear_quarantine()


def remake(spec, entry):
    """Recreate the autograd function of an op, because another test may have created it without C++."""
    from opmux.core import autograd, library

    def first(*args, **kwargs):
        traced = lambda *a, **k: library.run_traceable(spec, a, k)
        backward = specs.entries[spec.gradient.backward.key]
        entry.globals["_g"] = call = autograd.make_call(spec, entry, backward, traced)
        return call(*args, **kwargs)

    return first


@pytest.fixture
def compiling(fake_device, monkeypatch):
    """Make the library count as not compiled. Returns the callbacks that the end of a background compilation would
    call.
    """
    started = []
    state = launching._LaunchingState
    monkeypatch.setattr(state, "library", state.library)  # so that monkeypatch restores it
    for name, value in {"library": None, "tried": False, "compiling": False, "waiting": []}.items():
        monkeypatch.setattr(native_library._LibraryState, name, value)
    monkeypatch.setattr(build, "is_built", lambda *_, **__: False)
    monkeypatch.setattr(background, "run", lambda program, then, env=None: started.append(then))
    fake_device.take("rms_norm")
    return started


def test_calls_run_in_python_while_the_library_is_compiled(fake_device, monkeypatch, compiling):
    """After the compilation, an entry that was created during it launches from C++."""
    x, w = leaf(4, 8), leaf(8)
    for _ in range(2 * CALLS_TO_RECORD):
        rms(x, w)
    assert len(compiling) == 1 and not fake_device.from_cpp
    compiling[0]("")
    for _ in range(2 * CALLS_TO_RECORD):
        rms(x, w)
    assert fake_device.from_cpp


def test_a_library_that_cannot_be_compiled_is_reported_once(fake_device, compiling, caplog):
    x, w = leaf(4, 8), leaf(8)
    rms(x, w)
    with caplog.at_level("WARNING"):
        compiling[0]("g++: out of memory")
    assert "g++: out of memory" in caplog.text and "Python" in caplog.text
    rms(x, w).sum().backward()
    assert len(compiling) == 1 and not fake_device.from_cpp and x.grad is not None


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def grads(y, inputs, dy):
    return torch.autograd.grad(y, inputs, dy, allow_unused=True)


def close(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def rms(x, w):
    return opmux.ops.rms_norm(x, w)[0]


def truth(x, w, dy):
    y = F.rms_norm(x, x.shape[-1:], w, 1e-6)
    return (y, *torch.autograd.grad(y, (x, w), dy))


def recorded(fake_device, call, times=CALLS_TO_RECORD + 1):
    """Call until forward and backward are recorded; the first call binds the op and is not counted."""
    for _ in range(2 * times):
        call()
    fake_device.forget()


def test_forward_and_backward_are_launched_from_cpp(fake_device):
    fake_device.take("rms_norm")
    fake_device.staged.add("rms_norm_bwd")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        close(grads(rms(x, w), (x, w), dy), truth(x, w, dy)[1:])
    assert fake_device.from_cpp[-3:] == ["rms_norm", "rms_norm_bwd", "rms_norm_bwd"]
    fake_device.forget()
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    y, rstd = opmux.ops.rms_norm(x, w)
    assert y.requires_grad and not rstd.requires_grad and not y.is_leaf
    assert y.grad_fn.name() == "RmsNormBackward" and len(y.grad_fn.next_functions) == 2
    close((y, *grads(y, (x, w), dy)), truth(x, w, dy))
    torch.testing.assert_close(rstd, x.detach().pow(2).mean(-1).add(1e-6).rsqrt())
    assert fake_device.from_cpp == ["rms_norm", "rms_norm_bwd", "rms_norm_bwd"] and not fake_device.from_python


def test_new_sizes_are_recorded_at_their_first_call_after_some_others(fake_device):
    """A new batch length then runs from Python in one layer of a model, not in all layers."""
    fake_device.take("rms_norm")
    w = leaf(8)
    call = lambda x: grads(rms(x, w), (x, w), torch.ones_like(x))
    for n in (3, 5, 7):
        recorded(fake_device, functools.partial(call, leaf(n, 8)))
    for n in range(20, 60):  # more sizes than a bucket of the table can count
        x = leaf(n, 8)
        fake_device.forget()
        for _ in range(3):
            close(call(x), truth(x, w, torch.ones_like(x))[1:])
        assert fake_device.from_python == ["rms_norm", "rms_norm_bwd", "rms_norm_bwd"]
        assert fake_device.from_cpp == ["rms_norm", "rms_norm", "rms_norm_bwd"]


@pytest.mark.parametrize("spec", FORWARDS, ids=lambda s: s.name)
def test_every_differentiable_op_of_these_families_matches_its_reference(fake_device, spec, few):
    """Compares results and gradients of the C++ launches with the reference's."""
    fake_device.take(spec.name)
    fn = getattr(opmux.ops, spec.name)
    for sample in few([s for s in spec.samples(torch.float32, torch.device("cpu")) if not s.loose], 2):
        fresh = lambda v: v.detach().clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
        args, kwargs = [fresh(a) for a in sample.args], {k: fresh(v) for k, v in sample.kwargs.items()}
        inputs = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a) and a.requires_grad]
        fake_device.forget()
        ops = []
        for _ in range(2 * CALLS_TO_RECORD + 3):
            torch.manual_seed(0)
            outs = [o for o in results_of(spec, fn(*args, **kwargs)) if o.requires_grad]
            results = grads(outs, inputs, [torch.randn_like(o) for o in outs]) if outs else ()
            ops.append((outs, results))
        for a, b in zip(ops[0][0] + list(ops[0][1]), ops[-1][0] + list(ops[-1][1]), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        # Without scales, one result of the backward comes from no kernel, so C++ does not launch the backward.
        if outs and all(t.numel() for t in (*inputs, *outs)) and "no_scales" not in sample.id:
            assert {spec.name, spec.gradient.backward.name} <= {*fake_device.from_cpp}, sample.id


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w: (leaf(2, 8), w),  # another shape
        lambda x, w: (leaf(8, 3).t(), w),  # other strides
        lambda x, w: (leaf(25)[1:].view(3, 8), w),  # a pointer that is not a multiple of 16
        lambda x, w: (leaf(3, 8, dtype=torch.float64), leaf(8, dtype=torch.float64)),
    ],
    ids=["shape", "strides", "pointer", "dtype"],
)
def test_a_call_with_another_key_runs_in_python(fake_device, change):
    fake_device.take("rms_norm")
    x, w = leaf(3, 8), leaf(8)
    recorded(fake_device, lambda: rms(x, w).backward(torch.ones(3, 8)))
    x, w = change(x, w)
    dy = torch.randn_like(x)
    close((rms(x, w), *grads(rms(x, w), (x, w), dy)), truth(x, w, dy))
    assert fake_device.from_python == ["rms_norm", "rms_norm", "rms_norm_bwd"] and not fake_device.from_cpp


def test_numbers_are_part_of_the_key(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    call = lambda **more: grads(opmux.ops.rms_norm(x, w, **more)[0], (x, w), dy)
    recorded(fake_device, call)
    for more in ({"eps": 0.5}, {"offset": 1.0}, {"casting": "llama"}, {"eps": 1}):
        first = call(**more)
        assert fake_device.from_python == ["rms_norm", "rms_norm_bwd"] and not fake_device.from_cpp
        for _ in range(2 * CALLS_TO_RECORD):
            close(call(**more), first)
        assert fake_device.from_cpp[-2:] == ["rms_norm", "rms_norm_bwd"]
        fake_device.forget()
    call()
    assert fake_device.from_cpp == ["rms_norm", "rms_norm_bwd"]


@pytest.mark.parametrize("required", [(True, False), (False, True)])
def test_a_gradient_that_is_not_required_is_not_returned(fake_device, required):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    x, w = x.detach().requires_grad_(required[0]), w.detach().requires_grad_(required[1])
    rms(x, w).backward(dy)
    assert (x.grad is not None, w.grad is not None) == required
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    full = truth(x, w, dy)[1:]
    close(grads(rms(x, w), (x,) if required[0] else (w,), dy), full[:1] if required[0] else full[1:])
    assert set(fake_device.from_cpp) == {"rms_norm", "rms_norm_bwd"} and not fake_device.from_python


def test_without_required_gradients_no_autograd_node_is_created(fake_device):
    fake_device.take("rms_norm")
    x, w = leaf(3, 8), leaf(8)
    recorded(fake_device, lambda: rms(x, w).sum().backward())
    with torch.no_grad():
        assert rms(x, w).grad_fn is None
    with torch.inference_mode():
        assert rms(x, w).is_inference()
    assert rms(x.detach(), w.detach()).grad_fn is None
    assert fake_device.from_python == ["rms_norm"] * 3 and not fake_device.from_cpp


def test_an_inference_tensor_cannot_be_saved(fake_device):
    fake_device.take("rms_norm")
    x, w = leaf(3, 8), leaf(8)
    recorded(fake_device, lambda: rms(x.detach(), w))
    with torch.inference_mode():
        inferred = torch.randn(3, 8)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        rms(inferred, w)


def test_a_missing_argument_gets_no_gradient(fake_device):
    fake_device.take("layer_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    for bias in (None, leaf(8)):
        inputs = [t for t in (x, w, bias) if t is not None]
        call = lambda bias=bias, inputs=inputs: grads(opmux.ops.layer_norm(x, w, bias)[0], inputs, dy)
        recorded(fake_device, call)
        expected = torch.autograd.grad(F.layer_norm(x, (8,), w, bias, 1e-5), inputs, dy)
        close(call(), expected)
        assert fake_device.from_cpp == ["layer_norm", "layer_norm_bwd"]


def test_the_gradient_of_an_unused_result_counts_as_zeros(fake_device):
    fake_device.take("add_rms_norm")
    x, r, w, dy = leaf(3, 8), leaf(3, 8), leaf(8), torch.randn(3, 8)

    def call(which):
        outs = opmux.ops.add_rms_norm(x, r, w)
        return grads(outs[which], (x, r, w), dy)

    for which in (0, 1):
        first = call(which)
        recorded(fake_device, lambda which=which: call(which))
        close(call(which), first)
        assert fake_device.from_cpp == ["add_rms_norm", "add_rms_norm_bwd"]
    assert grads(opmux.ops.add_rms_norm(x, r, w)[1], (x,), dy)[0].equal(dy)


def test_an_argument_of_which_only_the_shape_is_saved_may_change(fake_device):
    fake_device.take("sum")
    x = leaf(3, 8)
    dy = torch.tensor(2.0)
    recorded(fake_device, lambda: grads(opmux.ops.sum(x), (x,), dy))
    reference = weakref.ref(x)
    y = opmux.ops.sum(x)
    other = x.detach().clone().requires_grad_()
    z = opmux.ops.sum(other)
    with torch.no_grad():
        other.mul_(2)  # its values were not saved
    assert grads(z, (other,), dy)[0].eq(2).all() and fake_device.from_cpp == ["sum", "sum", "sum_bwd"]
    assert grads(y, (x,), dy)[0].eq(2).all() and reference() is x


# ---- autograd features -----------------------------------------------------------------------------------------------


def test_changing_a_saved_tensor_raises(fake_device):
    fake_device.take("rms_norm", "softmax")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: (grads(rms(x, w), (x, w), dy), grads(opmux.ops.softmax(x, -1), (x,), dy)))
    y = rms(x, w)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)
    y = opmux.ops.softmax(x, -1)  # softmax saves its result
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)
    assert set(fake_device.from_cpp) == {"rms_norm", "softmax"} and not fake_device.from_python


def test_a_second_backward_raises_unless_the_graph_is_retained(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    y = rms(x, w)
    expected = truth(x, w, dy)[1:]
    close(torch.autograd.grad(y, (x, w), dy, retain_graph=True), expected)
    close(torch.autograd.grad(y, (x, w), dy), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, (x, w), dy)
    assert not fake_device.from_python


def test_second_derivatives_match_the_reference(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8, dtype=torch.float64), leaf(8, dtype=torch.float64), torch.randn(3, 8).double()
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))

    def second(y):
        gx, gw = torch.autograd.grad(y, (x, w), dy, create_graph=True)
        return torch.autograd.grad(gx.sin().sum() + gw.cos().sum(), (x, w))

    y = rms(x, w)
    assert fake_device.from_cpp == ["rms_norm"]
    close(second(y), second(F.rms_norm(x, (8,), w, 1e-6)))
    assert torch.autograd.gradcheck(rms, (x, w))
    assert torch.autograd.gradgradcheck(rms, (x, w))


def test_tensor_and_node_hooks_are_called(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    calls = []
    y = rms(x, w)
    y.retain_grad()
    y.register_hook(lambda g: calls.append("tensor") or 2 * g)
    y.grad_fn.register_prehook(lambda g: calls.append("before"))
    y.grad_fn.register_hook(lambda gi, go: calls.append("after"))
    y.backward(dy)
    assert calls == ["tensor", "before", "after"]
    close((y.grad, x.grad, w.grad), (2 * dy, *truth(x, w, 2 * dy)[1:]))
    assert fake_device.from_cpp == ["rms_norm", "rms_norm_bwd"]


def test_saved_tensor_hooks_get_the_same_tensors_as_in_python(fake_device):
    fake_device.take("rms_norm", "sum")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    packed = []

    def call():
        packed.clear()
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t)
        with hooks:
            y, total = rms(x, w), opmux.ops.sum(x)
        close(grads(y, (x, w), dy), truth(x, w, dy)[1:])
        assert grads(total, (x,), torch.ones(()))[0].eq(1).all()
        return [(t.shape, t.dtype, t.stride()) for t in packed]

    first = call()
    recorded(fake_device, call)
    assert call() == first
    assert fake_device.from_cpp == ["rms_norm", "sum", "rms_norm_bwd", "sum_bwd"]

    def refuse(t):
        raise ValueError("my own")

    with torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t), pytest.raises(ValueError, match="my own"):
        rms(x, w)
    y = None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, refuse):
        y = rms(x, w)
    with pytest.raises(ValueError, match="my own"):
        y.backward(dy)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_works_before_during_and_after_recording(fake_device, reentrant):
    """The forward may run in Python while its recomputation runs in C++."""
    fake_device.take("rms_norm")
    w = leaf(8)
    dy = torch.randn(3, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        x = leaf(3, 8)
        y = checkpoint(rms, x, w, use_reentrant=reentrant)
        w.grad = None
        y.backward(dy)
        close((x.grad, w.grad), truth(x, w, dy)[1:])
    assert fake_device.from_cpp[-2:] == ["rms_norm", "rms_norm_bwd"]


def test_anomaly_mode_names_the_forward(fake_device):
    fake_device.take("rms_norm")
    x, w = leaf(3, 8), leaf(8)
    recorded(fake_device, lambda: rms(x, w).backward(torch.ones(3, 8)))
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="RmsNormBackward"):
        y = rms(x, w)
        with pytest.raises(RuntimeError, match="'RmsNormBackward' returned nan"):
            y.backward(torch.full((3, 8), float("nan")))


def test_a_profile_names_forward_and_backward(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        grads(rms(x, w), (x, w), dy)
    assert {"RmsNorm", "RmsNormBackward"} <= {e.name for e in profile.events()}
    assert fake_device.from_cpp == ["rms_norm", "rms_norm_bwd"]


def test_threads_may_launch_at_once(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    wrong = []

    def work():
        for _ in range(30):
            x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
            actual, expected = grads(rms(x, w), (x, w), dy), truth(x, w, dy)[1:]
            wrong.extend(a for a, b in zip(actual, expected) if not torch.allclose(a, b, atol=1e-5))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert not wrong and len(fake_device.from_cpp) == 240


def test_no_tensor_is_kept_alive_and_a_long_graph_can_be_freed(fake_device):
    fake_device.take("rms_norm", "relu")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: (grads(rms(x, w), (x, w), dy), grads(opmux.ops.relu(x), (x,), dy)))
    z = leaf(3, 8)
    y = rms(z, w)
    refs = weakref.ref(z), weakref.ref(y)
    del z, y
    gc.collect()
    assert refs[0]() is None and refs[1]() is None
    y = x
    for _ in range(20000):
        y = opmux.ops.relu(y)
    del y
    assert fake_device.from_cpp.count("relu") == 20000


@pytest.mark.slow
def test_replaced_records_are_freed_after_their_last_graph(fake_device):
    """After more forwards than the table holds, the backward of an early forward still works."""
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    y, known = rms(x, w), launching.live_records()
    for n in range(2500):
        for _ in range(CALLS_TO_RECORD):
            opmux.ops.rms_norm(x, w, 1e-6 * (n + 2))
    assert 256 < launching.live_records() - known <= 256 * 4 + 1
    fake_device.forget()
    close(grads(y, (x, w), dy), truth(x, w, dy)[1:])
    assert fake_device.from_cpp == ["rms_norm_bwd"]


# ---- policies, errors and fallbacks ----------------------------------------------------------------------------------


def test_a_policy_block_sends_calls_to_python(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    with opmux.policy("reference"):
        y = rms(x, w)
    assert not fake_device.from_cpp and not fake_device.from_python
    close(grads(y, (x, w), dy), truth(x, w, dy)[1:])  # the backward uses the policy of its forward
    assert not fake_device.from_cpp and not fake_device.from_python
    y = rms(x, w)
    with opmux.policy("reference"):
        close(grads(y, (x, w), dy), truth(x, w, dy)[1:])  # runs our backward, because the forward ran without a policy
    assert fake_device.from_cpp == ["rms_norm"] and fake_device.from_python == ["rms_norm_bwd"]


def test_set_policy_invalidates_all_records(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    y = rms(x, w)
    opmux.set_policy("reference")
    try:
        assert opmux.explain("rms_norm", x, w).chosen.impl_id == "reference.torch"
        close((rms(x, w),), (F.rms_norm(x, (8,), w, 1e-6),))
        assert fake_device.from_cpp == ["rms_norm"] and not fake_device.from_python
        close(grads(y, (x, w), dy), truth(x, w, dy)[1:])
        assert fake_device.from_cpp == ["rms_norm"] and fake_device.from_python == ["rms_norm_bwd"]
    finally:
        opmux.core.reset_global_policy()
    assert opmux.explain("rms_norm", x, w).chosen.impl_id == "test.fake"
    fake_device.forget()
    rms(x, w)
    assert fake_device.from_python == ["rms_norm"]


def test_a_launch_that_fails_runs_the_call_in_python(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    fake_device.status = 700
    y = rms(x, w)
    assert fake_device.from_cpp == ["rms_norm"] and fake_device.from_python == ["rms_norm"]
    fake_device.status = 0
    z = rms(x, w)
    fake_device.status = 700
    for one in (y, z):
        close(grads(one, (x, w), dy), truth(x, w, dy)[1:])
    assert fake_device.from_python == ["rms_norm", "rms_norm_bwd", "rms_norm_bwd"]


def test_an_implementation_that_does_more_than_launch_runs_in_python(fake_device):
    fake_device.take("rms_norm")
    fake_device.extra = lambda: torch.ones(3).add(1)
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    for _ in range(4 * CALLS_TO_RECORD):
        close(grads(rms(x, w), (x, w), dy), truth(x, w, dy)[1:])
    assert not fake_device.from_cpp


def test_an_error_during_recording_ends_the_recording(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    calls = []

    def fail():
        calls.append(1)
        if len(calls) % 5 == 0:
            raise RuntimeError("no kernel")

    fake_device.extra = fail
    for _ in range(4 * CALLS_TO_RECORD):
        close(grads(rms(x, w), (x, w), dy), truth(x, w, dy)[1:])
    assert not launches.recording and torch._C._len_torch_dispatch_stack() == 0


def test_an_error_in_a_backward_is_raised_unchanged(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    y = rms(x, w)
    error = torch.OutOfMemoryError("no")

    def fail():
        raise error

    fake_device.extra, fake_device.status = fail, 2
    with pytest.raises(torch.OutOfMemoryError) as caught:
        y.backward(dy)
    assert caught.value is error


def test_wrong_arguments_raise(fake_device):
    fake_device.take("rms_norm")
    x, w = leaf(3, 8), leaf(8)
    recorded(fake_device, lambda: rms(x, w).sum().backward())
    with pytest.raises(BadArgument, match="weight must have shape"):
        fake_device.extra = lambda: opmux.ops.rms_norm.check(x=x, weight=leaf(7), eps=1e-6, offset=0.0, casting="gemma")
        rms(x, leaf(7))
    fake_device.extra = lambda: None
    with pytest.raises((TypeError, BadArgument)):
        opmux.ops.rms_norm(x, 3.0)


# ---- other parts of torch --------------------------------------------------------------------------------------------


def test_transforms_and_dispatch_modes_see_the_op(fake_device):
    from torch.utils._python_dispatch import TorchDispatchMode

    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    f = lambda x, w: F.rms_norm(x, (8,), w, 1e-6)
    close((torch.vmap(rms, (0, None))(x, w),), (torch.vmap(f, (0, None))(x, w),))
    close(torch.func.vjp(rms, x, w)[1](dy), torch.func.vjp(f, x, w)[1](dy))
    close(torch.func.jvp(rms, (x, w), (x, w)), torch.func.jvp(f, (x, w), (x, w)))
    assert not fake_device.from_cpp

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names = []
    with Names():
        rms(x, w)
    assert "opmux.rms_norm.default" in names and not fake_device.from_cpp


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_a_trace_of_torch_jit_contains_the_op(fake_device):
    fake_device.take("rms_norm")
    x, w = leaf(3, 8), leaf(8)
    recorded(fake_device, lambda: rms(x, w))
    traced = torch.jit.trace(rms, (x, w), check_trace=False)
    assert "RmsNorm" in str(traced.graph) and not fake_device.from_cpp


def test_batched_gradients_match(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    batch = torch.randn(5, 3, 8)
    batched = torch.autograd.grad(rms(x, w), (x, w), batch, is_grads_batched=True)
    each = [truth(x, w, one)[1:] for one in batch]
    close(batched, [torch.stack(g) for g in zip(*each, strict=True)])
    assert fake_device.from_cpp == ["rms_norm"]


def test_compiled_graphs_contain_the_op(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    compiled = torch.compile(rms, backend="aot_eager", fullgraph=True)
    close((compiled(x, w), *grads(compiled(x, w), (x, w), dy)), truth(x, w, dy))
    assert not fake_device.from_cpp


def test_compiled_autograd_matches(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    y = rms(x, w)
    with torch._dynamo.compiled_autograd._enable(lambda gm: gm):
        y.backward(dy)
    close((x.grad, w.grad), truth(x, w, dy)[1:])


def test_autocast_does_not_affect_arguments_of_one_dtype(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    with torch.autocast("cpu", torch.bfloat16):
        y = rms(x, w)
    assert y.dtype is torch.float32 and fake_device.from_cpp == ["rms_norm"]


def test_settings_of_torch_are_part_of_the_key(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), leaf(8), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    torch.use_deterministic_algorithms(True)
    try:
        grads(rms(x, w), (x, w), dy)
    finally:
        torch.use_deterministic_algorithms(False)
    assert fake_device.from_python == ["rms_norm", "rms_norm_bwd"] and not fake_device.from_cpp


def test_parameters_are_launched_and_subclasses_run_in_python(fake_device):
    fake_device.take("rms_norm")
    x, w, dy = leaf(3, 8), torch.nn.Parameter(torch.randn(8)), torch.randn(3, 8)
    recorded(fake_device, lambda: grads(rms(x, w), (x, w), dy))
    close(grads(rms(x, w), (x, w), dy), truth(x, w, dy)[1:])
    assert fake_device.from_cpp == ["rms_norm", "rms_norm_bwd"]

    class Mine(torch.Tensor):
        pass

    fake_device.forget()
    rms(x.detach().as_subclass(Mine).requires_grad_(), w)
    assert not fake_device.from_cpp


# ---- without C++ -----------------------------------------------------------------------------------------------------


def test_without_cpp_the_python_function_is_used(monkeypatch):
    monkeypatch.setattr(functions._FunctionsState, "device", "cpu")
    monkeypatch.setattr(native_library._LibraryState, "library", None)
    monkeypatch.setattr(native_library._LibraryState, "tried", False)
    monkeypatch.setattr(launching._LaunchingState, "drives", True)
    spec = specs.find("opmux::rms_norm")
    accelerate = lambda: functions.accelerate(spec, None, None, torch.add, lambda apply: None)

    def fail(*args, **kwargs):
        raise build.CannotBuild("no compiler")

    monkeypatch.setattr(build, "load", fail)
    monkeypatch.setattr(build, "is_built", fail)
    assert accelerate() is torch.add and accelerate() is torch.add
    monkeypatch.setattr(native_library._LibraryState, "tried", False)
    monkeypatch.setenv("OPMUX_CPP", "0")
    monkeypatch.setattr(build, "load", lambda *a, **k: pytest.fail("was built"))
    assert accelerate() is torch.add


def test_without_cuda_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(native_library, "available", lambda: pytest.fail("was built"))
    monkeypatch.setattr(launching._LaunchingState, "drives", False)
    spec = specs.find("opmux::rms_norm")
    assert functions.accelerate(spec, None, None, torch.add, lambda apply: None) is torch.add
