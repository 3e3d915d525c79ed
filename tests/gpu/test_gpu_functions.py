"""Differentiable ops launched from C++ on the GPU: the same bits as from Python, on the current stream."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import opmux
from opmux.core import specs
from opmux.core.autograd import results_of
from opmux.cpp import functions, launching
from opmux.cpp import library as native_library

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SIGHTINGS = 6
FORWARDS = [s for s in specs if s.space == "opmux" and s.grad and s.family in functions.FAMILIES and not s.writes]
# For contiguous tensors of usual sizes, forward and backward of these ops consist of launches only.
LAUNCHED = {
    "rms_norm": lambda x, w: opmux.ops.rms_norm(x, w)[0],
    "layer_norm": lambda x, w: opmux.ops.layer_norm(x, w, w)[0],
    "add_rms_norm": lambda x, w: opmux.ops.add_rms_norm(x, x, w)[0],
    "softmax": lambda x, w: opmux.ops.softmax(x, -1),
    "log_softmax": lambda x, w: opmux.ops.log_softmax(x, -1),
    "gelu": lambda x, w: opmux.ops.gelu(x),
    "silu_mul": lambda x, w: opmux.ops.silu_mul(x, x),
    "silu_glu": lambda x, w: opmux.ops.silu_glu(x),
}


@pytest.fixture(autouse=True, scope="module")
def compiled():
    if not launching.drives() or not native_library.available():
        pytest.skip("the native library cannot be compiled here, or there is no driver")


@contextlib.contextmanager
def in_python():
    launching.pause("tested", True)
    try:
        yield
    finally:
        launching.pause("tested", False)


def leaf(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=CUDA, dtype=dtype, requires_grad=True)


def both(call, inputs, dy):
    y = call(*inputs)
    return y, *torch.autograd.grad(y, inputs, dy, allow_unused=True)


def equal(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", LAUNCHED)
def test_forward_and_backward_are_launched_from_cpp(name, dtype):
    x, w = leaf(8, 1024, dtype=dtype), leaf(1024, dtype=dtype)
    call = LAUNCHED[name]
    dy = torch.randn_like(call(x, w))
    for _ in range(2 * SIGHTINGS + 2):
        both(call, (x, w), dy)
    x, w, dy = leaf(8, 1024, dtype=dtype), leaf(1024, dtype=dtype), torch.randn_like(dy)
    before = launching.launched()
    results = both(call, (x, w), dy)
    assert launching.launched() >= before + 2
    with in_python():
        equal(results, both(call, (x, w), dy))


@pytest.mark.parametrize("spec", FORWARDS, ids=lambda s: s.name)
def test_every_op_of_these_families_gives_the_bits_of_python(spec, few):
    fn = getattr(opmux.ops, spec.name)
    fresh = lambda v: v.detach().clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
    for sample in few([s for s in spec.samples(torch.float32, CUDA) if not s.loose], 4):
        args, kwargs = [fresh(a) for a in sample.args], {k: fresh(v) for k, v in sample.kwargs.items()}
        inputs = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a) and a.requires_grad]

        def call(args=args, kwargs=kwargs, inputs=inputs):
            torch.manual_seed(0)
            outs = [o for o in results_of(spec, fn(*args, **kwargs)) if o.requires_grad]
            dy = [torch.randn_like(o) for o in outs]
            return *outs, *(torch.autograd.grad(outs, inputs, dy, allow_unused=True) if outs else ())

        with in_python():
            expected = call()
        for _ in range(2 * SIGHTINGS + 2):
            results = call()
        equal(results, expected)


def test_launches_from_cpp_follow_streams_graphs_and_checkpoints():
    x, w = leaf(8, 1024), leaf(1024)
    call, dy = LAUNCHED["rms_norm"], torch.randn(8, 1024, device=CUDA, dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2 * SIGHTINGS + 2):
            results = both(call, (x, w), dy)
    torch.cuda.current_stream().wait_stream(side)
    equal(results, both(call, (x, w), dy))
    graph = torch.cuda.CUDAGraph()
    before = launching.launched()
    with torch.cuda.graph(graph):
        results = both(call, (x, w), dy)
    assert launching.launched() > before
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    equal(results, both(call, (x, w), dy))
    y = checkpoint(call, x, w, use_reentrant=False)
    equal((y, *torch.autograd.grad(y, (x, w), dy)), results)


def test_an_expanded_gradient_gives_the_bits_of_python():
    """Python handles this call, because the gradient must be made contiguous first."""
    x, w = leaf(8, 1024, dtype=torch.float64), leaf(1024, dtype=torch.float64)
    for _ in range(3 * SIGHTINGS):
        gx, gw = torch.autograd.grad(LAUNCHED["rms_norm"](x, w).sum(), (x, w))
    ex, ew = torch.autograd.grad(F.rms_norm(x, (1024,), w, 1e-6).sum(), (x, w))
    torch.testing.assert_close(gx, ex)
    torch.testing.assert_close(gw, ew)
