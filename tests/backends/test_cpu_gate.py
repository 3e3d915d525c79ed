"""The C++ kernels read memory. A tensor that has none, or whose memory is not what it says, never gets that far: every
kernel declines it by itself, whoever calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fresh
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import opmux
from opmux.backends._cpu import ops
from opmux.backends._cpu.ops import native
from opmux.core import specs
from opmux.core.errors import NotSupported

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NAMES = sorted(ops.OPS)
KERNEL = {name: native.function(name, *ops.OPS[name], ops.ALL) for name in NAMES}


@pytest.fixture(scope="module", autouse=True)
def built():
    try:
        native.load("rms_norm")
    except NotSupported as error:
        pytest.skip(str(error))


class Wrapper(torch.Tensor):
    """As Transformer Engine's Float8Tensor and DTensor are made: a shape, no memory."""

    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.size(), dtype=t.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("not to be called by a kernel")


class Logged(torch.Tensor):
    """Has memory, and wants to see every op."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("not to be called by a kernel")


def freed(t):
    """What FSDP leaves of a parameter that it has sharded."""
    made = t.clone()
    made.untyped_storage().resize_(0)
    return made


def cut(t):
    made = t.clone()
    made.untyped_storage().resize_(made.untyped_storage().nbytes() - 1)
    return made


def negative(t):
    made = torch.complex(t, t).conj().imag if t.is_floating_point() else torch._neg_view(t.char())
    assert made.is_neg()
    return made


def quantized(t):
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8)


KINDS = {
    "fake": FakeTensorMode().from_tensor,
    "meta": lambda t: t.to("meta"),
    "two": lambda t: TwoTensor(t, t.clone()),
    "wrapper": Wrapper,
    "logged": lambda t: t.as_subclass(Logged),
    "negative": negative,
    "zeros of forward AD": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "functional": torch._to_functional_tensor,
    "freed": freed,
    "cut": cut,
    "sparse": lambda t: t.to_sparse(),
    "quantized": quantized,
    "mkldnn": lambda t: t.float().to_mkldnn(),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "undefined": lambda t: None,
}


def plain_args(name):
    """Arguments that a kernel takes, in full: with a mask and a bias where there may be one."""
    spec = specs.find(f"opmux::{name}")
    args = list(spec.bound(spec.samples.at((3, 8), torch.float32, CPU).args, {})[0])
    args = args[: len(getattr(torch.ops.opmux_cpu, name).default._schema.arguments)]  # without those added since
    for at, parameter in enumerate(spec.names):
        if parameter == "mask":
            args[at] = torch.zeros(3, 8, dtype=torch.bool)
        elif parameter == "bias":
            args[at] = torch.ones(8)
    return args


def optional(name, at):
    return specs.find(f"opmux::{name}").names[at] in ("mask", "bias") and not name.endswith("_bias")


def declines(name, given):
    """Called by its name in torch.ops, and as the dispatcher calls it."""
    found = getattr(torch.ops.opmux_cpu, name).default(*given)
    assert all(r is None for r in (found if isinstance(found, tuple) else (found,))), name
    with pytest.raises(NotSupported, match=f"^{name}: "):
        KERNEL[name](*given)


def each_tensor():
    """(op, arguments, place of a tensor among them), for all tensor arguments of all kernels."""
    for name in NAMES:
        args = plain_args(name)
        KERNEL[name](*args)  # is taken
        yield from ((name, args, at) for at, a in enumerate(args) if torch.is_tensor(a))


@pytest.mark.filterwarnings("ignore:.*(nested|quantized|quantization|sparse).*:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_declines_in_every_argument(kind):
    tried = 0
    for name, args, at in each_tensor():
        skips = kind == "undefined" and optional(name, at)
        if skips or (kind in ("mkldnn", "quantized") and not args[at].is_floating_point()):
            continue
        declines(name, [*args[:at], KINDS[kind](args[at]), *args[at + 1 :]])
        tried += 1
    assert tried > 60


WRAPPING = {
    "grad": lambda f, t: torch.func.grad(lambda t: f(t).sum())(t),
    "jvp": lambda f, t: torch.func.jvp(f, (t,), (torch.ones_like(t),)),
}
UNWRAPPING = {
    "vmap": lambda f, t: torch.vmap(f)(torch.stack((t, t))),
    "functionalize": lambda f, t: torch.func.functionalize(f)(t),
}


def each_float():
    return ((name, args, at) for name, args, at in each_tensor() if args[at].is_floating_point())


@pytest.mark.parametrize("transform", WRAPPING)
def test_every_kernel_declines_what_functorch_wraps(transform):
    seen = []
    for name, args, at in each_float():

        def inside(t, name=name, args=args, at=at):
            declines(name, [*args[:at], t, *args[at + 1 :]])
            seen.append(name)
            return t

        WRAPPING[transform](inside, args[at])
    assert len(seen) > 60


@pytest.mark.parametrize("transform", UNWRAPPING)
def test_what_functorch_unwraps_first_is_computed(transform):
    """Before these two call an op that they do not know, they take their wrapper off: plain tensors arrive."""
    for name, args, at in each_float():
        run = KERNEL[name]
        got = UNWRAPPING[transform](lambda t, run=run, args=args, at=at: run(*args[:at], t, *args[at + 1 :]), args[at])
        want = run(*args)
        for a, b in zip(*((v,) if torch.is_tensor(v) else v for v in (got, want)), strict=True):
            torch.testing.assert_close(a, b.expand_as(a))


def test_plain_tensors_of_every_origin_are_taken():
    """The gate is no wall: parameters, views, inference tensors, shared memory, lazy clones, with a gradient."""
    want = torch.nn.functional.silu(torch.ones(4))
    with torch.inference_mode():
        made = torch.ones(4)
    base = torch.ones(3, 9)
    for x in (
        made,
        torch.nn.Parameter(torch.ones(4)),
        torch.ones(4, requires_grad=True) * 1,
        base[1:, 2:6][1],
        base.view(27)[23:],  # up to the last byte
        torch.ones(4).share_memory_(),
        torch._lazy_clone(torch.ones(4)),
        torch.from_numpy(torch.ones(4).numpy()),
        torch.frombuffer(bytearray(torch.ones(4).numpy().tobytes()), dtype=torch.float32),
    ):
        torch.testing.assert_close(torch.ops.opmux_cpu.silu(x.detach()), want)
    with torch.autocast("cpu"):
        torch.testing.assert_close(torch.ops.opmux_cpu.silu(torch.ones(4)), want)
    assert torch.ops.opmux_cpu.silu(torch.ones(0, 4)).shape == (0, 4)


def test_the_reference_computes_what_is_declined():
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(opmux.ops.silu(x), torch.nn.functional.silu(x))
    torch.testing.assert_close(opmux.ops.softmax(x, -1), torch.softmax(x, -1))


TRACED = """
import torch, opmux
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop
from torch._subclasses.fake_tensor import FakeTensorMode

class M(torch.nn.Module):
    def forward(self, x):
        return opmux.ops.silu(x) + opmux.ops.softmax(x, -1)

x = torch.randn(3, 8)
want = torch.nn.functional.silu(x) + torch.softmax(x, -1)
with FakeTensorMode():
    assert opmux.ops.silu(torch.empty(3)).shape == (3,)
torch.testing.assert_close(torch.export.export(M(), (x,), strict=False).module()(x), want)
torch.testing.assert_close(aot_function(M(), nop)(x), want)
print("right")
"""


def test_export_and_aot_of_a_model():
    done = fresh.run(
        [sys.executable, "-c", TRACED],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=240,
    )
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["right"]), done.stderr[-3000:]
