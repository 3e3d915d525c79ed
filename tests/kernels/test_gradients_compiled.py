"""Our kernels for ops with gradients, launched from C++ (native/functions.cpp): compiled for sm_90, run on the CPU.

The kernels' host code and the C++ code really run, but a fake driver launches nothing, so results are undefined.
"""

from __future__ import annotations

import functools

import pytest
import torch

pytest.importorskip("triton")
from native_launches import CALLS_TO_RECORD, launching_by

import opmux
from opmux.core import BackendImplKind, OpImpl, autograd, get_default_manager, library, specs
from opmux.cpp import functions, launching
from opmux.kernels.lib.compile_only import compiling_for

MODE = "compile"
OPS = [s for s in specs if s.space == "opmux" and s.grad and s.family in functions.FAMILIES and not s.writes]
VIEW, COMPOSITION = "its backward is a view, by torch", "its backward is a composition of torch's ops"
# Ops whose forward is launched from C++ and whose backward is not, with the reason.
FORWARD_ALONE = {"sum": VIEW, **dict.fromkeys("nansum mean prod amax amin max_dim min_dim".split(), COMPOSITION)}
# Only these ops are tested without --slow, because each kernel takes half a second to compile.
FIRST = "rms_norm layer_norm add_rms_norm softmax gelu silu_mul token_cross_entropy rope_fwd group_norm var".split()


class Driver:
    """Counts launches instead of running them."""

    def __init__(self):
        self.launched = 0

    def launch(self, *_):
        self.launched += 1
        return 0

    def of(self, call):
        """The result of a call, and how many kernels C++ launched during it."""
        before = self.launched
        result = call()
        return result, self.launched - before


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(launching, "LAUNCHERS", {"_Launcher"})
    new_driver = Driver()
    with launching_by(new_driver.launch, monkeypatch), compiling_for("sm_90"):
        yield new_driver


@pytest.fixture
def ours(driver):
    """`ours(spec)`: make the CPU run our kernels of an op and of its backward."""
    manager, added, entries = get_default_manager(), [], []

    def take(spec):
        for one in (spec, spec.gradient.backward):
            opmux.explain(one.key)  # registers the kernels of its family
            impl = next((i for i in manager.registry.impls(one.key) if i.impl_id == "default.flagos"), None)
            if impl is None:
                continue
            on_cpu = OpImpl(one.key, "test.ours", BackendImplKind.DEFAULT, None, impl.fn, 1000, devices={"cpu"})
            manager.registry.register_impl(on_cpu)
            added.append(one.key)
        entry, backward = specs.entries[spec.key], specs.entries[spec.gradient.backward.key]
        entries.append((entry, entry.globals["_g"]))
        traced = lambda *args, **kwargs: library.run_traceable(spec, args, kwargs)
        entry.globals["_g"] = autograd.make_call(spec, entry, backward, traced)

    yield take
    for entry, function in entries:
        entry.globals["_g"] = function
    for key in added:
        manager.registry.unregister(key, "test.ours")


def launched_by_cpp(driver, spec, dtype):
    """How many kernels C++ launches in a sample's forward and backward, after both calls have been recorded."""
    usable = lambda s: not s.loose and "no_scales" not in s.id and all(t.numel() for t in tensors(s))
    sample = next(s for s in spec.samples(dtype, torch.device("cpu")) if usable(s))
    leaf = lambda v: v.detach().clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
    args, kwargs = [leaf(a) for a in sample.args], {k: leaf(v) for k, v in sample.kwargs.items()}
    inputs = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a) and a.requires_grad]
    fn = getattr(opmux.ops, spec.name)
    for _ in range(3 * CALLS_TO_RECORD + 2):
        result, forward = driver.of(lambda: fn(*args, **kwargs))
        outs = [o for o in autograd.results_of(spec, result) if o.requires_grad]
        grads = [torch.ones_like(o) for o in outs]
        _, backward = driver.of(functools.partial(torch.autograd.grad, outs, inputs, grads, allow_unused=True))
    return forward, backward


def tensors(sample):
    return [a for a in (*sample.args, *sample.kwargs.values()) if torch.is_tensor(a)]


CASES = [
    pytest.param(spec, dtype, id=f"{spec.name}-{dtype}".replace("torch.", ""), marks=() if first else pytest.mark.slow)
    for spec in OPS
    for dtype in (torch.float32, torch.bfloat16)
    for first in [spec.name in FIRST and dtype is torch.float32]
]


@pytest.mark.parametrize("spec, dtype", CASES)
def test_cpp_launches_forward_and_backward_of_every_op(driver, ours, spec, dtype):
    ours(spec)
    forward, backward = launched_by_cpp(driver, spec, dtype)
    assert forward, "the forward is not launched from C++"
    if spec.name in FORWARD_ALONE:
        assert not backward, "the backward is launched from C++: take it off the list"
    else:
        assert backward, "the backward is not launched from C++"


def test_the_lists_in_this_file_name_real_ops():
    assert {*FIRST, *FORWARD_ALONE} <= {spec.name for spec in OPS}
