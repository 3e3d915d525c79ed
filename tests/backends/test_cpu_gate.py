"""The C++ kernels access memory directly, so every kernel must decline a tensor that has no memory of its own, or whose
memory does not match its metadata. The check is in the kernel itself, so it applies to every caller.
"""

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

pytestmark = pytest.mark.usefixtures("cpu_kernels")
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NAMES = sorted(ops.OPS)
KERNEL = {name: native.function(name, *ops.OPS[name], ops.ALL) for name in NAMES}


class Wrapper(torch.Tensor):
    """A wrapper subclass, like Transformer Engine's Float8Tensor and DTensor: a shape without memory."""

    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.size(), dtype=t.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("not to be called by a kernel")


class Logged(torch.Tensor):
    """A subclass that has memory and handles every op itself."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("not to be called by a kernel")


def freed(t):
    """A parameter whose storage was freed, as FSDP does after sharding."""
    result = t.clone()
    result.untyped_storage().resize_(0)
    return result


def cut(t):
    result = t.clone()
    result.untyped_storage().resize_(result.untyped_storage().nbytes() - 1)
    return result


def negative(t):
    result = torch.complex(t, t).conj().imag if t.is_floating_point() else torch._neg_view(t.char())
    assert result.is_neg()
    return result


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
    """All arguments of a call that the kernel accepts, with a mask and a bias where the op has one."""
    spec = specs.find(f"opmux::{name}")
    args = list(spec.bound(spec.samples.at((3, 8), torch.float32, CPU).args, {})[0])
    # without parameters that were added to the op later
    args = args[: len(getattr(torch.ops.opmux_cpu, name).default._schema.arguments)]
    for i, parameter in enumerate(spec.names):
        if parameter == "mask":
            args[i] = torch.zeros(3, 8, dtype=torch.bool)
        elif parameter == "bias":
            args[i] = torch.ones(8)
    return args


def optional(name, index):
    return specs.find(f"opmux::{name}").names[index] in ("mask", "bias") and not name.endswith("_bias")


def declines(name, args):
    """Check that the kernel declines when called through torch.ops and through its Python wrapper."""
    result = getattr(torch.ops.opmux_cpu, name).default(*args)
    assert all(r is None for r in (result if isinstance(result, tuple) else (result,))), name
    with pytest.raises(NotSupported, match=f"^{name}: "):
        KERNEL[name](*args)


def each_tensor():
    """Yield (op, arguments, index of a tensor argument) for each tensor argument of each kernel."""
    for name in NAMES:
        args = plain_args(name)
        KERNEL[name](*args)  # must not raise: the kernel accepts these arguments
        yield from ((name, args, i) for i, a in enumerate(args) if torch.is_tensor(a))


@pytest.mark.filterwarnings("ignore:.*(nested|quantized|quantization|sparse).*:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_declines_tensors_without_plain_memory(kind):
    count = 0
    for name, args, index in each_tensor():
        skips = kind == "undefined" and optional(name, index)
        if skips or (kind in ("mkldnn", "quantized") and not args[index].is_floating_point()):
            continue
        declines(name, [*args[:index], KINDS[kind](args[index]), *args[index + 1 :]])
        count += 1
    assert count > 60


WRAPPING = {
    "grad": lambda f, t: torch.func.grad(lambda t: f(t).sum())(t),
    "jvp": lambda f, t: torch.func.jvp(f, (t,), (torch.ones_like(t),)),
}
UNWRAPPING = {
    "vmap": lambda f, t: torch.vmap(f)(torch.stack((t, t))),
    "functionalize": lambda f, t: torch.func.functionalize(f)(t),
}


def each_float():
    return ((name, args, index) for name, args, index in each_tensor() if args[index].is_floating_point())


@pytest.mark.parametrize("transform", WRAPPING)
def test_every_kernel_declines_what_functorch_wraps(transform):
    calls = []
    for name, args, index in each_float():

        def inside(t, name=name, args=args, index=index):
            declines(name, [*args[:index], t, *args[index + 1 :]])
            calls.append(name)
            return t

        WRAPPING[transform](inside, args[index])
    assert len(calls) > 60


@pytest.mark.parametrize("transform", UNWRAPPING)
def test_kernels_run_under_vmap_and_functionalize(transform):
    """vmap and functionalize have no rule for the op, so they unwrap its tensors: the kernel gets plain ones."""
    for name, args, index in each_float():
        run = KERNEL[name]
        got = UNWRAPPING[transform](
            lambda t, run=run, args=args, index=index: run(*args[:index], t, *args[index + 1 :]), args[index]
        )
        want = run(*args)
        for a, b in zip(*((v,) if torch.is_tensor(v) else v for v in (got, want)), strict=True):
            torch.testing.assert_close(a, b.expand_as(a))


def test_kernels_accept_plain_tensors_of_every_origin():
    """Parameters, views, inference tensors, shared memory, lazy clones, and tensors that require grad."""
    want = torch.nn.functional.silu(torch.ones(4))
    with torch.inference_mode():
        inference_tensor = torch.ones(4)
    base = torch.ones(3, 9)
    for x in (
        inference_tensor,
        torch.nn.Parameter(torch.ones(4)),
        torch.ones(4, requires_grad=True) * 1,
        base[1:, 2:6][1],
        base.view(27)[23:],  # up to the last byte of the storage
        torch.ones(4).share_memory_(),
        torch._lazy_clone(torch.ones(4)),
        torch.from_numpy(torch.ones(4).numpy()),
        torch.frombuffer(bytearray(torch.ones(4).numpy().tobytes()), dtype=torch.float32),
    ):
        torch.testing.assert_close(torch.ops.opmux_cpu.silu(x.detach()), want)
    with torch.autocast("cpu"):
        torch.testing.assert_close(torch.ops.opmux_cpu.silu(torch.ones(4)), want)
    assert torch.ops.opmux_cpu.silu(torch.ones(0, 4)).shape == (0, 4)


def test_the_reference_computes_calls_that_the_kernel_declines():
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


def test_a_model_can_be_exported_and_traced_by_aot_autograd():
    result = fresh.run(
        [sys.executable, "-c", TRACED],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=240,
    )
    assert (result.returncode, result.stdout.split()[-1:]) == (0, ["right"]), result.stderr[-3000:]
