"""Gates with parameters and a factor for each row: the maths of each is four device functions; three kernels serve all.

Parameters are constants of the kernels: a model has one set of them. The gradient of the factors is a sum over a row,
so there a program walks along its rows; without factors it is a tile as in `activation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import scaled_activation as spec
from .lib.activation_math import (
    clamp,
    gate_slope,
    least_gap,
    per_program,
    sigmoid,
    silu,
    silu_slope,
    srelu,
    srelu_slope,
    tile,
)
from .lib.config import Tiles, tunable
from .lib.launch import Launcher
from .lib.maths import libdevice
from .lib.plans import check, plans
from .lib.rows import DEVICES, OutputSpec, Rows, even_rows, packed, wide_of

# ---- the maths, on values that are already wide, and up to three parameters -----------------------------------------


@triton.jit
def silu_value(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return silu(a)


@triton.jit
def silu_gate_slope(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return silu_slope(a)


@triton.jit
def same(b, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return b


@triton.jit
def ones(b, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return b * 0 + 1


@triton.jit
def srelu_value(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return srelu(a)


@triton.jit
def srelu_gate_slope(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return srelu_slope(a)


@triton.jit
def situ_value(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return P * libdevice.tanh(a / P) * sigmoid(a)


@triton.jit
def situ_slope(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    t = libdevice.tanh(a / P)
    s = sigmoid(a)
    return (1 - t * t) * s + P * t * s * sigmoid(-a)


@triton.jit
def situ_up(b, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return Q * libdevice.tanh(b / Q)


@triton.jit
def situ_up_slope(b, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    t = libdevice.tanh(b / Q)
    return 1 - t * t


@triton.jit
def clamped_value(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    a = tl.where(a > P, P, a)
    return a * sigmoid(Q * a)


@triton.jit
def clamped_slope(a, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    near = clamp(a)
    return tl.where(a > P, 0.0, gate_slope(near, Q * near, Q))


@triton.jit
def clamped_up(b, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return tl.where(b > P, P, tl.where(b < -P, -P, b)) + R


@triton.jit
def clamped_up_slope(b, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    return tl.where(tl.abs(b) > P, 0.0, 1.0)


MATHS: dict[str, tuple[Any, ...]] = {
    "silu": (silu_value, silu_gate_slope, same, ones),
    "srelu": (srelu_value, srelu_gate_slope, None, None),
    "situ": (situ_value, situ_slope, situ_up, situ_up_slope),
    "clamped": (clamped_value, clamped_slope, clamped_up, clamped_up_slope),
}


# ---- the kernels ----------------------------------------------------------------------------------------------------


@triton.jit
def _first(o_n, TURNS: tl.constexpr):
    """Where in a row the a of a column is, if a and b lie in turns; each b is TURNS (or half a row) further."""
    if TURNS:
        return o_n + (o_n // TURNS) * TURNS
    else:
        return o_n


@triton.jit
def _grads(
    dy_ptr, x_ptr, dx_ptr, b_s, o_y, o_x, o_dx, o_n, n, m,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, UP: tl.constexpr, UP_SLOPE: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, TURNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a tile, whose rows begin at these offsets; give dy times the unscaled result."""
    o_a = _first(o_n, TURNS)
    b_dy = tl.load(dy_ptr + o_y + o_n, mask=m, other=0.0).to(WIDE)
    b_a = tl.load(x_ptr + o_x + o_a, mask=m, other=0.0).to(WIDE)
    b_f = VALUE(b_a, P, Q, R)
    b_g = b_dy * b_s
    to = dx_ptr.dtype.element_ty
    if UP is None:
        tl.store(dx_ptr + o_dx + o_n, (b_g * SLOPE(b_a, P, Q, R)).to(to), mask=m)
        return tl.where(m, b_dy * b_f, 0.0)
    else:
        o_b = o_a + (TURNS if TURNS else n)
        b_b = tl.load(x_ptr + o_x + o_b, mask=m, other=0.0).to(WIDE)
        b_u = UP(b_b, P, Q, R)
        tl.store(dx_ptr + o_dx + o_a, (b_g * b_u * SLOPE(b_a, P, Q, R)).to(to), mask=m)
        tl.store(dx_ptr + o_dx + o_b, (b_g * b_f * UP_SLOPE(b_b, P, Q, R)).to(to), mask=m)
        return tl.where(m, b_dy * b_f * b_u, 0.0)


def _fwd(
    x_ptr, s_ptr, y_ptr, x_stride, n_rows, n,
    VALUE: tl.constexpr, UP: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, TURNS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i_m, o_n = tile(n, False, BLOCK_M, BLOCK_N)
    m_m = i_m < n_rows
    m = m_m & (o_n < n)
    o_a = _first(o_n, TURNS)
    x_ptr += i_m * x_stride
    b_y = VALUE(tl.load(x_ptr + o_a, mask=m, other=0.0).to(WIDE), P, Q, R)
    if UP is not None:
        b_y *= UP(tl.load(x_ptr + o_a + (TURNS if TURNS else n), mask=m, other=0.0).to(WIDE), P, Q, R)
    if s_ptr is not None:
        b_y *= tl.load(s_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _bwd(
    dy_ptr, x_ptr, dx_ptr, dy_stride, x_stride, d_stride, n_rows, n,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, UP: tl.constexpr, UP_SLOPE: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, TURNS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Without factors: tiles, as each element is its own."""
    i_m, o_n = tile(n, False, BLOCK_M, BLOCK_N)
    m = (i_m < n_rows) & (o_n < n)
    _grads(
        dy_ptr, x_ptr, dx_ptr, 1.0, i_m * dy_stride, i_m * x_stride, i_m * d_stride, o_n, n, m,
        VALUE, SLOPE, UP, UP_SLOPE, P, Q, R, TURNS, WIDE,
    )  # fmt: skip


def _bwd_scaled(
    dy_ptr, x_ptr, s_ptr, dx_ptr, ds_ptr, dy_stride, x_stride, d_stride, n_rows, n,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, UP: tl.constexpr, UP_SLOPE: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, TURNS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows from one end to the other: the gradient of a row's factor is a sum along it."""
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    m_m = i_m < n_rows
    b_s = tl.load(s_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        o_n = at + tl.arange(0, BLOCK_N)[None, :]
        m = m_m & (o_n < n)
        b_sum += _grads(
            dy_ptr, x_ptr, dx_ptr, b_s, i_m * dy_stride, i_m * x_stride, i_m * d_stride, o_n, n, m,
            VALUE, SLOPE, UP, UP_SLOPE, P, Q, R, TURNS, WIDE,
        )  # fmt: skip
    tl.store(ds_ptr + i_m, tl.sum(b_sum, 1)[:, None].to(ds_ptr.dtype.element_ty), mask=m_m)


fwd = Launcher(_fwd, sizes="x_stride n")
bwd = Launcher(_bwd, sizes="dy_stride x_stride d_stride n")
bwd_scaled = Launcher(_bwd_scaled, sizes="dy_stride x_stride d_stride n")


@tunable("scaled_activation.tiles")
def tile_tiles(n: int, dtype: torch.dtype) -> Tiles:
    block = least_gap(n, per_program(dtype))
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


@tunable("scaled_activation.rows")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Pieces of whole rows, one after the other."""
    block = least_gap(n, per_program(dtype))
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


# ---- launching ------------------------------------------------------------------------------------------------------


class Gated(NamedTuple):
    """The launch of an op for tensors of such shapes, dtypes and strides."""

    out: OutputSpec
    scales: OutputSpec | None  # of their gradient
    launch: Callable[..., None] | None  # None: nothing to compute
    pack: bool


@plans
def _plan(op: str, gate: str, interleave: int, dy: Tensor | None, x: Tensor, scales: Tensor | None, *p: float) -> Gated:
    value, slope, up, up_slope = MATHS[gate]
    gated, backward = up is not None, dy is not None
    check(op, x=x, scales=scales, interleave=interleave, **({} if dy is None else {"dy": dy}))
    n = x.shape[-1] // (2 if gated else 1)
    out = OutputSpec.of(x.shape if backward else (*x.shape[:-1], n), x.dtype)
    dscales = None if scales is None or not backward else OutputSpec.of(scales.shape, scales.dtype)
    if not x.numel():
        return Gated(out, dscales, None, False)
    at = Rows.of(packed(x))
    strides = (*((Rows.of(packed(dy)).stride,) if dy is not None else ()), at.stride)
    strides = (*strides, x.shape[-1]) if backward else strides
    given = dict(zip("PQR", (*map(float, p), 0.0, 0.0, 0.0)))
    constants: dict[str, Any] = dict(**given, TURNS=interleave, WIDE=wide_of(x.dtype), VALUE=value, UP=up)
    if backward:
        constants |= dict(SLOPE=slope, UP_SLOPE=up_slope)
    even = all(size % 16 == 0 for size in (n, *strides)) and interleave % 16 == 0
    walks = backward and scales is not None
    tiles = (row_tiles if walks else tile_tiles)(n=n, dtype=x.dtype)
    blocks = -(-at.count // tiles["BLOCK_M"]) * (1 if walks else -(-n // tiles["BLOCK_N"]))
    launcher = (bwd_scaled if walks else bwd) if backward else fwd
    launch = launcher.ready((blocks, 1, 1), (*strides, at.count, n), tiles.config(even=even, **constants))
    pack = not all(even_rows(t) for t in (x, dy) if t is not None)
    return Gated(out, dscales, launch, pack or not (scales is None or scales.is_contiguous()))


def _forward(how: Gated, x: Tensor, scales: Tensor | None) -> Tensor:
    y = how.out.empty(x)
    if how.launch is not None:
        if how.pack:
            x, scales = packed(x), None if scales is None else scales.contiguous()
        how.launch(x, scales, y)
    return y


def _backward(how: Gated, dy: Tensor, x: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor]:
    dx = how.out.empty(x)
    if scales is None or how.scales is None:
        if how.launch is not None:
            dy, x = (packed(dy), packed(x)) if how.pack else (dy, x)
            how.launch(dy, x, dx)
        return dx, NOTHING[x.dtype is torch.float64].empty(x)
    dscales = how.scales.empty(x)
    if how.launch is None:
        return dx, dscales.zero_()
    if how.pack:
        dy, x, scales = packed(dy), packed(x), scales.contiguous()
    how.launch(dy, x, scales, dx, dscales)
    return dx, dscales


NOTHING = (OutputSpec.of((0,), torch.float32), OutputSpec.of((0,), torch.float64))


# ---- the ops --------------------------------------------------------------------------------------------------------


@impl(spec.silu_glu_scaled, devices=DEVICES)
def silu_glu_scaled(x: Tensor, scales: Tensor, interleave: int) -> Tensor:
    return _forward(_plan("silu_glu_scaled", "silu", interleave, None, x, scales), x, scales)


@impl(spec.silu_glu_scaled_bwd, devices=DEVICES)
def silu_glu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor, interleave: int) -> tuple[Tensor, Tensor]:
    return _backward(_plan("silu_glu_scaled_bwd", "silu", interleave, dy, x, scales), dy, x, scales)


@impl(spec.srelu_scaled, devices=DEVICES)
def srelu_scaled(x: Tensor, scales: Tensor) -> Tensor:
    return _forward(_plan("srelu_scaled", "srelu", 0, None, x, scales), x, scales)


@impl(spec.srelu_scaled_bwd, devices=DEVICES)
def srelu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return _backward(_plan("srelu_scaled_bwd", "srelu", 0, dy, x, scales), dy, x, scales)


@impl(spec.situ_glu, devices=DEVICES)
def situ_glu(x: Tensor, scales: Tensor | None, beta1: float, beta2: float, interleave: int) -> Tensor:
    return _forward(_plan("situ_glu", "situ", interleave, None, x, scales, beta1, beta2), x, scales)


@impl(spec.situ_glu_bwd, devices=DEVICES)
def situ_glu_bwd(
    dy: Tensor, x: Tensor, scales: Tensor | None, beta1: float, beta2: float, interleave: int
) -> tuple[Tensor, Tensor]:
    return _backward(_plan("situ_glu_bwd", "situ", interleave, dy, x, scales, beta1, beta2), dy, x, scales)


@impl(spec.clamped_glu, devices=DEVICES)
def clamped_glu(x: Tensor, scales: Tensor | None, limit: float, alpha: float, offset: float, interleave: int) -> Tensor:
    return _forward(_plan("clamped_glu", "clamped", interleave, None, x, scales, limit, alpha, offset), x, scales)


@impl(spec.clamped_glu_bwd, devices=DEVICES)
def clamped_glu_bwd(
    dy: Tensor, x: Tensor, scales: Tensor | None, limit: float, alpha: float, offset: float, interleave: int
) -> tuple[Tensor, Tensor]:
    how = _plan("clamped_glu_bwd", "clamped", interleave, dy, x, scales, limit, alpha, offset)
    return _backward(how, dy, x, scales)
