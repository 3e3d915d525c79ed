"""Activations and their gated forms: the maths of each is two device functions; four kernels serve them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import activation as spec
from .lib.config import Tiles, tunable
from .lib.launch import Launcher
from .lib.plans import plans
from .lib.rows import DEVICES, Room, wide_of

K1 = tl.constexpr(spec.K1)
K3 = tl.constexpr(spec.K3)
FAR = tl.constexpr(spec.FAR)
SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


# ---- the maths, on values that are already wide ---------------------------------------------------------------------


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def clamp(x):
    """Far out the slopes would be infinity times zero; a NaN stays one."""
    return tl.where(x > FAR, FAR, tl.where(x < -FAR, -FAR, x))


@triton.jit
def gate_slope(x, k, rate):
    """(x * sigmoid(k))', with rate = k'."""
    s = sigmoid(k)
    return s + x * rate * s * sigmoid(-k)


@triton.jit
def gelu(x):
    return x * sigmoid(x * (K1 + K3 * x * x))


@triton.jit
def gelu_slope(x):
    x = clamp(x)
    return gate_slope(x, x * (K1 + K3 * x * x), K1 + 3 * K3 * x * x)


@triton.jit
def gelu_erf(x):
    return x * (0.5 + 0.5 * tl.erf(x * SQRT_HALF))


@triton.jit
def gelu_erf_slope(x):
    return 0.5 + 0.5 * tl.erf(x * SQRT_HALF) + x * tl.exp(-0.5 * x * x) * INV_SQRT_2PI


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):
    x = clamp(x)
    return gate_slope(x, x, 1.0)


@triton.jit
def qgelu(x):
    return x * sigmoid(1.702 * x)


@triton.jit
def qgelu_slope(x):
    x = clamp(x)
    return gate_slope(x, 1.702 * x, 1.702)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def relu_slope(x):
    return tl.where(x > 0, 1.0, 0.0)


@triton.jit
def srelu(x):
    x = tl.where(x < 0, 0.0, x)
    return x * x


@triton.jit
def srelu_slope(x):
    return 2 * tl.where(x < 0, 0.0, x)


@triton.jit
def sigmoid_slope(x):
    return sigmoid(x) * sigmoid(-x)


MATHS = {
    "gelu": (gelu, gelu_slope),
    "gelu_erf": (gelu_erf, gelu_erf_slope),
    "silu": (silu, silu_slope),
    "qgelu": (qgelu, qgelu_slope),
    "relu": (relu, relu_slope),
    "srelu": (srelu, srelu_slope),
    "sigmoid": (sigmoid, sigmoid_slope),
}


# ---- the kernels ----------------------------------------------------------------------------------------------------


def _one(x_ptr, y_ptr, n, VALUE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(WIDE)
    tl.store(y_ptr + o, VALUE(b_x).to(y_ptr.dtype.element_ty), mask=m)


def _one_bwd(dy_ptr, x_ptr, dx_ptr, n, SLOPE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(WIDE)
    b_dy = tl.load(dy_ptr + o, mask=m).to(WIDE)
    tl.store(dx_ptr + o, (b_dy * SLOPE(b_x)).to(dx_ptr.dtype.element_ty), mask=m)


def _gated(a_ptr, b_ptr, y_ptr, n, VALUE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_a = tl.load(a_ptr + o, mask=m).to(WIDE)
    b_b = tl.load(b_ptr + o, mask=m).to(WIDE)
    tl.store(y_ptr + o, (VALUE(b_a) * b_b).to(y_ptr.dtype.element_ty), mask=m)


def _gated_bwd(
    dy_ptr, a_ptr, b_ptr, da_ptr, db_ptr, n,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_dy = tl.load(dy_ptr + o, mask=m).to(WIDE)
    b_a = tl.load(a_ptr + o, mask=m).to(WIDE)
    b_b = tl.load(b_ptr + o, mask=m).to(WIDE)
    tl.store(da_ptr + o, (b_dy * b_b * SLOPE(b_a)).to(da_ptr.dtype.element_ty), mask=m)
    tl.store(db_ptr + o, (b_dy * VALUE(b_a)).to(db_ptr.dtype.element_ty), mask=m)


one, one_bwd = Launcher(_one, tensors=2, sizes="n"), Launcher(_one_bwd, tensors=3, sizes="n")
gated, gated_bwd = Launcher(_gated, tensors=3, sizes="n"), Launcher(_gated_bwd, tensors=5, sizes="n")


@tunable("activation.flat")
def flat_tiles(dtype: torch.dtype) -> Tiles:
    """A block that gives each thread 16 elements: two wide loads of a 16-bit type."""
    return Tiles(128, BLOCK=2048 if dtype.itemsize <= 2 else 1024)


class Elementwise(NamedTuple):
    """What an op will do for tensors that look so."""

    out: Room
    launch: Callable[..., None] | None  # None: nothing to compute
    pack: bool


@plans
def plan(launcher: Launcher, act: str, name: str, uses: str, inputs: str, *args: Tensor) -> Elementwise:
    """Over tensors of one shape; results take the dtype of the last."""
    names = inputs.split()
    spec.check(name, **dict(sorted(zip(names, args, strict=True), key=lambda row: row[0] == "dy")))
    like = args[-1]
    n = like.numel()
    out = Room.of(like.shape, like.dtype)
    if n == 0:
        return Elementwise(out, None, False)
    tiles = flat_tiles(dtype=like.dtype)
    functions = dict(zip(("VALUE", "SLOPE"), MATHS[act], strict=True))
    config = tiles.config(even=n % 16 == 0, WIDE=wide_of(like.dtype), **{u: functions[u] for u in uses.split()})
    launch = launcher.ready((-(-n // tiles["BLOCK"]), 1, 1), (n,), config)
    return Elementwise(out, launch, not all(t.is_contiguous() for t in args))


def _run(launcher: Launcher, act: str, name: str, uses: str, inputs: str, *args: Tensor) -> Tensor:
    out, launch, pack = plan(launcher, act, name, uses, inputs, *args)
    y = out.on(args[-1])
    if launch is not None:
        launch(*(tuple(t.contiguous() for t in args) if pack else args), y)
    return y


def _run_two(launcher: Launcher, act: str, name: str, uses: str, inputs: str, *args: Tensor) -> tuple[Tensor, Tensor]:
    out, launch, pack = plan(launcher, act, name, uses, inputs, *args)
    y, z = out.on(args[-1]), out.on(args[-1])
    if launch is not None:
        launch(*(tuple(t.contiguous() for t in args) if pack else args), y, z)
    return y, z


def declare(act: str) -> None:
    """The impls of one activation: alone, gated, and the gradients of both."""
    gated_name = f"{act}_mul"

    def forward(x: Tensor) -> Tensor:
        return _run(one, act, act, "VALUE", "x", x)

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        return _run(one_bwd, act, f"{act}_bwd", "SLOPE", "dy x", dy, x)

    def forward_gated(a: Tensor, b: Tensor) -> Tensor:
        return _run(gated, act, gated_name, "VALUE", "a b", a, b)

    def backward_gated(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return _run_two(gated_bwd, act, f"{gated_name}_bwd", "VALUE SLOPE", "dy a b", dy, a, b)

    made = {gated_name: forward_gated, f"{gated_name}_bwd": backward_gated}
    if spec.ACTS[act].alone:
        made |= {act: forward, f"{act}_bwd": backward}
    for name, fn in made.items():
        fn.__name__ = fn.__qualname__ = name
        impl(getattr(spec, name), devices=DEVICES)(fn)


for _act in spec.ACTS:
    declare(_act)
