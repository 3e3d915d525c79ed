"""Activations, alone, with a bias and gated: the maths of each is two device functions; six kernels serve them all.

What is one shape in one piece is a single long row. Gated kernels and those with a bias take rows with gaps between
them, as the halves of [.., 2n] are, so these are read where they lie. With CAST results are float8, and their largest
magnitude goes to amax (`fused_quant`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import activation as spec
from .lib.activation_math import (
    clamp,
    gate_slope,
    gelu,
    gelu_slope,
    least_gap,
    per_program,
    sigmoid,
    silu,
    silu_slope,
    srelu,
    srelu_slope,
    tile,
)  # fmt: skip
from .lib.column_sum import adding_up, share_of
from .lib.config import Tiles, tunable
from .lib.fp8 import cast_of, inverse_scale, note, put
from .lib.launch import Launcher
from .lib.plans import check, plans
from .lib.rows import DEVICES, OutputSpec, Rows, cores, even_rows, packed, wide_of

SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


# ---- the maths, on values that are already wide ---------------------------------------------------------------------


@triton.jit
def gelu_erf(x):
    return x * (0.5 + 0.5 * tl.erf(x * SQRT_HALF))


@triton.jit
def gelu_erf_slope(x):
    return 0.5 + 0.5 * tl.erf(x * SQRT_HALF) + x * tl.exp(-0.5 * x * x) * INV_SQRT_2PI


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


def _one(
    x_ptr, y_ptr, scale_ptr, amax_ptr, inv_ptr, n,
    VALUE: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(WIDE)
    top = put(y_ptr + o, VALUE(b_x), m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


def _one_bwd(
    dy_ptr, x_ptr, dx_ptr, scale_ptr, amax_ptr, inv_ptr, n,
    SLOPE: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(WIDE)
    b_dy = tl.load(dy_ptr + o, mask=m).to(WIDE)
    top = put(dx_ptr + o, b_dy * SLOPE(b_x), m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


def _gated(
    a_ptr, b_ptr, y_ptr, scale_ptr, amax_ptr, inv_ptr, a_stride, b_stride, n_rows, n,
    FLAT: tl.constexpr, VALUE: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Without b, each row of a is followed by its b."""
    i_m, o_n = tile(n, FLAT, BLOCK_M, BLOCK_N)
    m = (i_m < n_rows) & (o_n < n)
    if b_ptr is None:
        b_ptr = a_ptr + n
    b_a = tl.load(a_ptr + i_m * a_stride + o_n, mask=m).to(WIDE)
    b_b = tl.load(b_ptr + i_m * b_stride + o_n, mask=m).to(WIDE)
    top = put(y_ptr + i_m * n + o_n, VALUE(b_a) * b_b, m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


def _gated_bwd(
    dy_ptr, a_ptr, b_ptr, da_ptr, db_ptr, scale_ptr, amax_ptr, inv_ptr,
    dy_stride, a_stride, b_stride, d_stride, n_rows, n,
    FLAT: tl.constexpr, VALUE: tl.constexpr, SLOPE: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Without b and db, each row of a and da is followed by its b and db."""
    i_m, o_n = tile(n, FLAT, BLOCK_M, BLOCK_N)
    m = (i_m < n_rows) & (o_n < n)
    if b_ptr is None:
        b_ptr = a_ptr + n
        db_ptr = da_ptr + n
    b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m).to(WIDE)
    b_a = tl.load(a_ptr + i_m * a_stride + o_n, mask=m).to(WIDE)
    b_b = tl.load(b_ptr + i_m * b_stride + o_n, mask=m).to(WIDE)
    top_a = put(da_ptr + i_m * d_stride + o_n, b_dy * b_b * SLOPE(b_a), m, scale_ptr, CAST)
    top_b = put(db_ptr + i_m * d_stride + o_n, b_dy * VALUE(b_a), m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, tl.maximum(top_a, top_b))


def _biased(
    x_ptr, b_ptr, y_ptr, x_stride, n_rows, n,
    VALUE: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i_m, o_n = tile(n, False, BLOCK_M, BLOCK_N)
    m_n = o_n < n
    m = (i_m < n_rows) & m_n
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
    b_x += tl.load(b_ptr + o_n, mask=m_n, other=0.0).to(WIDE)
    tl.store(y_ptr + i_m * n + o_n, VALUE(b_x).to(y_ptr.dtype.element_ty), mask=m)


def _biased_bwd(
    dy_ptr, x_ptr, b_ptr, dx_ptr, share_ptr, scale_ptr, amax_ptr, inv_ptr, dy_stride, x_stride, n_rows, n,
    SLOPE: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dx, and shares of its sums: program (i, j) takes the columns of block i and every P-th block of rows from j on.

    The next rows are on their way while these are computed.
    """
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    first = tl.program_id(1) * BLOCK_M
    step = tl.num_programs(1) * BLOCK_M
    b_b = tl.zeros([1, BLOCK_N], WIDE)
    if b_ptr is not None:
        b_b += tl.load(b_ptr + o_n, mask=m_n, other=0.0).to(WIDE)
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    top = 0
    i_m = (first + o_m).to(tl.int64)
    m = (i_m < n_rows) & m_n
    x_next = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0)
    dy_next = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0)
    for at in range(first, n_rows, step):
        i_m = (at + o_m).to(tl.int64)
        m = (i_m < n_rows) & m_n
        b_x, b_dy = x_next.to(WIDE), dy_next.to(WIDE)
        i_next = i_m + step
        m_next = (i_next < n_rows) & m_n
        x_next = tl.load(x_ptr + i_next * x_stride + o_n, mask=m_next, other=0.0)
        dy_next = tl.load(dy_ptr + i_next * dy_stride + o_n, mask=m_next, other=0.0)
        b_dx = b_dy * SLOPE(b_x + b_b)
        more = put(dx_ptr + i_m * n + o_n, b_dx, m, scale_ptr, CAST)
        if CAST is not None:
            top = tl.maximum(top, more)
        b_sum += tl.where(m, b_dx, 0.0)  # beyond the rows it is 0 times a slope that need not be finite
    at = tl.program_id(1).to(tl.int64) * n + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(share_ptr + at, tl.sum(b_sum, 0), mask=tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N) < n)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


one, one_bwd = Launcher(_one, sizes="n"), Launcher(_one_bwd, sizes="n")
gated = Launcher(_gated, sizes="a_stride b_stride n")
gated_bwd = Launcher(_gated_bwd, sizes="dy_stride a_stride b_stride d_stride n")
biased = Launcher(_biased, sizes="x_stride n")
biased_bwd = Launcher(_biased_bwd, sizes="dy_stride x_stride n")


# ---- tiles ----------------------------------------------------------------------------------------------------------


@tunable("activation.flat")
def flat_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=per_program(dtype))


@tunable("activation.gated")
def gated_tiles(dtype: torch.dtype) -> Tiles:
    """Contiguous tensors, as one row."""
    return Tiles(128, BLOCK_M=1, BLOCK_N=per_program(dtype))


@tunable("activation.gated_rows")
def gated_row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    block = least_gap(n, per_program(dtype))
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


PER_CORE = 8  # programs per core that add up rows: dgelu with a bias reaches 0.78 of a copy, 0.66 with 4 (H200)


@tunable("activation.bias")
def bias_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Several rows at once, so that the bias is read once for them."""
    block = least_gap(n, 256, 64)
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


@tunable("activation.bias_bwd")
def bias_bwd_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Wide tiles of few rows: a program goes down the rows and writes one sum per column."""
    block = least_gap(n, per_program(dtype), 64)
    return Tiles(256, BLOCK_M=2 * per_program(dtype) // block, BLOCK_N=block)


# ---- one tensor after the other -------------------------------------------------------------------------------------


def functions(act: str, uses: str, fp8: torch.dtype | None = None) -> dict[str, Any]:
    """The constants for the activation and for the cast."""
    return {u: MATHS[act][("VALUE", "SLOPE").index(u)] for u in uses.split()} | {"CAST": fp8 and cast_of(fp8)}


def room_of(shape: Any, dtype: torch.dtype, fp8: torch.dtype | None) -> OutputSpec:
    return OutputSpec.of(shape, dtype if fp8 is None else torch.uint8)


class Elementwise(NamedTuple):
    """The launch of an op for tensors of such shapes, dtypes and strides."""

    out: OutputSpec
    launch: Callable[..., None] | None  # None: nothing to compute
    pack: bool


@plans
def _plan_one(act: str, *args: Tensor) -> Elementwise:
    return plan_one(f"{act}_bwd" if len(args) == 2 else act, act, None, *args)


def plan_one(op: str, act: str, fp8: torch.dtype | None, *args: Tensor) -> Elementwise:
    """The plan of f(x) or, with dy before x, of its gradient; with `fp8`, of a float8 result."""
    x = args[-1]
    backward = len(args) == 2
    check(op, x=x, **({"dy": args[0]} if backward else {}))
    n = x.numel()
    out = room_of(x.shape, x.dtype, fp8)
    if n == 0:
        return Elementwise(out, None, False)
    tiles = flat_tiles(dtype=x.dtype)
    uses = functions(act, "SLOPE" if backward else "VALUE", fp8)
    config = tiles.config(even=n % 16 == 0, WIDE=wide_of(x.dtype), **uses)
    launch = (one_bwd if backward else one).ready((-(-n // tiles["BLOCK"]), 1, 1), (n,), config)
    return Elementwise(out, launch, not all(t.is_contiguous() for t in args))


def one_impls(act: str) -> dict[str, Callable[..., Any]]:
    def forward(x: Tensor) -> Tensor:
        out, launch, pack = _plan_one(act, x)
        y = out.empty(x)
        if launch is not None:
            launch(x.contiguous() if pack else x, y, None, None, None)
        return y

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        out, launch, pack = _plan_one(act, dy, x)
        dx = out.empty(x)
        if launch is not None:
            if pack:
                dy, x = dy.contiguous(), x.contiguous()
            launch(dy, x, dx, None, None, None)
        return dx

    return {act: forward, f"{act}_bwd": backward}


# ---- gated ----------------------------------------------------------------------------------------------------------


@plans
def _plan_gated(act: str, halves: bool, backward: bool, *args: Tensor) -> Elementwise:
    name = act + ("_glu" if halves else "_mul") + ("_bwd" if backward else "")
    return plan_gated(name, act, None, halves, backward, *args)


def plan_gated(
    name: str, act: str, fp8: torch.dtype | None, halves: bool, backward: bool, *args: Tensor
) -> Elementwise:
    """The plan of f(a) * b or, with dy before them, of its gradients; a and b are two tensors, or the halves of one."""
    x = args[-1]
    named = {"x": x} if halves else {"a": args[-2], "b": x}
    check(name, **named, **({"dy": args[0]} if backward else {}))
    parts = 2 if halves else 1
    shape = (*x.shape[:-1], x.shape[-1] // 2) if halves and not backward else x.shape
    out = room_of(shape, x.dtype, fp8)
    if not x.numel():
        return Elementwise(out, None, False)
    lie = [packed(t) for t in args]
    flat = not halves and all(t.is_contiguous() for t in lie)
    if flat:
        count, n, strides = 1, x.numel(), [x.numel()] * len(args)
    else:
        at = [Rows.of(t) for t in lie]
        count, n, strides = at[0].count, x.shape[-1] // parts, [r.stride for r in at]
    if halves:
        strides.append(strides[-1])  # b is the second half of x
    if backward:
        strides.append(parts * n)
    tiles = gated_tiles(dtype=x.dtype) if flat else gated_row_tiles(n=n, dtype=x.dtype)
    even = n % 16 == 0 and all(s % 16 == 0 for s in strides)
    uses = functions(act, "VALUE SLOPE" if backward else "VALUE", fp8)
    config = tiles.config(even=even, FLAT=flat, WIDE=wide_of(x.dtype), **uses)
    blocks = -(-count // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"])
    launch = (gated_bwd if backward else gated).ready((blocks, 1, 1), (*strides, count, n), config)
    return Elementwise(out, launch, not all(even_rows(t) for t in args))


def mul_impls(act: str) -> dict[str, Callable[..., Any]]:
    def forward(a: Tensor, b: Tensor) -> Tensor:
        out, launch, pack = _plan_gated(act, False, False, a, b)
        y = out.empty(a)
        if launch is not None:
            if pack:
                a, b = packed(a), packed(b)
            launch(a, b, y, None, None, None)
        return y

    def backward(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        out, launch, pack = _plan_gated(act, False, True, dy, a, b)
        da, db = out.empty(a), out.empty(a)
        if launch is not None:
            if pack:
                dy, a, b = packed(dy), packed(a), packed(b)
            launch(dy, a, b, da, db, None, None, None)
        return da, db

    return {f"{act}_mul": forward, f"{act}_mul_bwd": backward}


def glu_impls(act: str) -> dict[str, Callable[..., Any]]:
    def forward(x: Tensor) -> Tensor:
        out, launch, pack = _plan_gated(act, True, False, x)
        y = out.empty(x)
        if launch is not None:
            launch(packed(x) if pack else x, None, y, None, None, None)
        return y

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        out, launch, pack = _plan_gated(act, True, True, dy, x)
        dx = out.empty(x)
        if launch is not None:
            if pack:
                dy, x = packed(dy), packed(x)
            launch(dy, x, None, dx, None, None, None, None)
        return dx

    return {f"{act}_glu": forward, f"{act}_glu_bwd": backward}


# ---- with a bias ----------------------------------------------------------------------------------------------------


@plans
def _plan_biased(act: str, x: Tensor, bias: Tensor) -> Elementwise:
    check(f"{act}_bias", x=x, bias=bias)
    out = OutputSpec.of(x.shape, x.dtype)
    if not x.numel():
        return Elementwise(out, None, False)
    at, n = Rows.of(packed(x)), x.shape[-1]
    tiles = bias_tiles(n=n, dtype=x.dtype)
    even = n % 16 == 0 and at.stride % 16 == 0
    config = tiles.config(even=even, WIDE=wide_of(x.dtype), VALUE=MATHS[act][0])
    blocks = -(-at.count // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"])
    launch = biased.ready((blocks, 1, 1), (at.stride, at.count, n), config)
    return Elementwise(out, launch, not (even_rows(x) and bias.is_contiguous()))


class BiasedBackward(NamedTuple):
    """The launches of the gradient with a bias, for tensors of such shapes, dtypes and strides."""

    dx: OutputSpec
    dbias: OutputSpec
    shares: OutputSpec | None
    launch: Callable[..., None] | None  # None: nothing to compute
    total: Callable[..., None] | None
    pack: bool


@plans
def _plan_biased_bwd(act: str, dy: Tensor, x: Tensor, bias: Tensor | None) -> BiasedBackward:
    return plan_biased_bwd(f"{act}_bias_bwd", act, None, dy, x, bias)


def plan_biased_bwd(
    op: str, act: str, fp8: torch.dtype | None, dy: Tensor, x: Tensor, bias: Tensor | None
) -> BiasedBackward:
    check(op, dy=dy, x=x, bias=bias)
    n, dtype = x.shape[-1], x.dtype
    dx, dbias = room_of(x.shape, dtype, fp8), OutputSpec.of((n,), dtype if bias is None else bias.dtype)
    if not x.numel():
        return BiasedBackward(dx, dbias, None, None, None, False)
    to, at = Rows.of(packed(dy)), Rows.of(packed(x))
    tiles = bias_bwd_tiles(n=n, dtype=dtype)
    across = -(-n // tiles["BLOCK_N"])
    parts = max(1, min(-(-at.count // tiles["BLOCK_M"]), cores(x.device) * PER_CORE // across))
    even = all(size % 16 == 0 for size in (n, to.stride, at.stride))
    config = tiles.config(even=even, WIDE=wide_of(dtype), **functions(act, "SLOPE", fp8))
    launch = biased_bwd.ready((across, parts, 1), (to.stride, at.stride, at.count, n), config)
    shares = OutputSpec.of((parts, n), share_of(dtype))
    pack = not (even_rows(dy) and even_rows(x) and (bias is None or bias.is_contiguous()))
    return BiasedBackward(dx, dbias, shares, launch, adding_up(parts, n, dtype), pack)


def bias_impls(act: str) -> dict[str, Callable[..., Any]]:
    def forward(x: Tensor, bias: Tensor) -> Tensor:
        out, launch, pack = _plan_biased(act, x, bias)
        y = out.empty(x)
        if launch is not None:
            if pack:
                x, bias = packed(x), bias.contiguous()
            launch(x, bias, y)
        return y

    def backward(dy: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        plan = _plan_biased_bwd(act, dy, x, bias)
        dx, dbias = plan.dx.empty(x), plan.dbias.empty(x)
        if plan.launch is None or plan.total is None or plan.shares is None:
            return dx, dbias.zero_()
        if plan.pack:
            dy, x, bias = packed(dy), packed(x), None if bias is None else bias.contiguous()
        shares = plan.shares.empty(x)
        plan.launch(dy, x, bias, dx, shares, None, None, None)
        plan.total(shares, dbias)
        return dx, dbias

    return {f"{act}_bias": forward, f"{act}_bias_bwd": backward}


# ---- the ops --------------------------------------------------------------------------------------------------------


for _act, _row in spec.ACTS.items():
    _made = mul_impls(_act) | glu_impls(_act)
    if _row.alone:
        _made |= one_impls(_act) | bias_impls(_act)
    for _name, _fn in _made.items():
        _fn.__name__ = _fn.__qualname__ = _name
        impl(getattr(spec, _name), devices=DEVICES)(_fn)


# ---- with a float8 result -------------------------------------------------------------------------------------------


@plans
def _plan_act(
    op: str, act: str, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, halves: bool, *args: Tensor
) -> Elementwise:
    check(op, x=args[-1], scale=scale, amax=amax, dtype=dtype, act=act)
    if halves:
        return plan_gated(op, act, dtype, True, len(args) == 2, *args)
    return plan_one(op, act, dtype, *args)


@impl(spec.act_fp8, devices=DEVICES)
def act_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    how = _plan_act("act_fp8", act, scale, amax, dtype, False, x)
    y, inv = how.out.empty(x), inverse_scale(how.launch is None, x, scale)
    if how.launch is not None:
        how.launch(x.contiguous() if how.pack else x, y, scale, amax, inv)
    return y, inv


@impl(spec.act_bwd_fp8, devices=DEVICES)
def act_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor]:
    how = _plan_act("act_bwd_fp8", act, scale, amax, dtype, False, dy, x)
    dx, inv = how.out.empty(x), inverse_scale(how.launch is None, x, scale)
    if how.launch is not None:
        if how.pack:
            dy, x = dy.contiguous(), x.contiguous()
        how.launch(dy, x, dx, scale, amax, inv)
    return dx, inv


@impl(spec.glu_fp8, devices=DEVICES)
def glu_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    how = _plan_act("glu_fp8", act, scale, amax, dtype, True, x)
    y, inv = how.out.empty(x), inverse_scale(how.launch is None, x, scale)
    if how.launch is not None:
        how.launch(packed(x) if how.pack else x, None, y, scale, amax, inv)
    return y, inv


@impl(spec.glu_bwd_fp8, devices=DEVICES)
def glu_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor]:
    how = _plan_act("glu_bwd_fp8", act, scale, amax, dtype, True, dy, x)
    dx, inv = how.out.empty(x), inverse_scale(how.launch is None, x, scale)
    if how.launch is not None:
        if how.pack:
            dy, x = packed(dy), packed(x)
        how.launch(dy, x, None, dx, None, scale, amax, inv)
    return dx, inv


@plans
def _plan_bias(
    act: str, dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype
) -> BiasedBackward:
    check("act_bias_bwd_fp8", x=x, scale=scale, amax=amax, dtype=dtype, act=act)
    return plan_biased_bwd("act_bias_bwd_fp8", act, dtype, dy, x, None)


@impl(spec.act_bias_bwd_fp8, devices=DEVICES)
def act_bias_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    how = _plan_bias(act, dy, x, scale, amax, dtype)
    dx, dbias, inv = how.dx.empty(x), how.dbias.empty(x), inverse_scale(how.launch is None, x, scale)
    if how.launch is None or how.total is None or how.shares is None:
        return dx, inv, dbias.zero_()
    if how.pack:
        dy, x = packed(dy), packed(x)
    shares = how.shares.empty(x)
    how.launch(dy, x, None, dx, shares, scale, amax, inv)
    how.total(shares, dbias)
    return dx, inv, dbias
