"""Gates with parameters and a factor for each row. A gate is four device functions; three kernels serve all gates.

Gate parameters are constexprs, because a model uses the same values everywhere. The gradient of a factor is a sum over
its row, so with factors the backward loops along rows. Without factors, a program computes one tile, as in `plain`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.tensors import opmath_dtype
from ...specs import activation as spec
from ..lib.activation_math import (
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
from ..lib.config import Tiles, tunable
from ..lib.harness import Launch, Plan, RowSizes, Zeros, planned, strided
from ..lib.launch import Launcher
from ..lib.maths import libdevice
from ..lib.rows import OutputSpec, wide_of

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
def _first(o_n, INTERLEAVE: tl.constexpr):
    """The column of a for output column o_n; b is INTERLEAVE columns (or half a row) to its right.

    a and b alternate in groups of INTERLEAVE columns. INTERLEAVE = 0: a is the first half of the row.
    """
    if INTERLEAVE:
        return o_n + (o_n // INTERLEAVE) * INTERLEAVE
    else:
        return o_n


@triton.jit
def _grads(
    dy_ptr,
    x_ptr,
    dx_ptr,
    b_s,
    o_y,
    o_x,
    o_dx,
    o_n,
    n,
    m,
    VALUE: tl.constexpr,
    SLOPE: tl.constexpr,
    UP: tl.constexpr,
    UP_SLOPE: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Store the gradients of a tile whose rows begin at o_y, o_x and o_dx; return dy times the unscaled result."""
    o_a = _first(o_n, INTERLEAVE)
    b_dy = tl.load(dy_ptr + o_y + o_n, mask=m, other=0.0).to(WIDE)
    b_a = tl.load(x_ptr + o_x + o_a, mask=m, other=0.0).to(WIDE)
    b_f = VALUE(b_a, P, Q, R)
    b_g = b_dy * b_s
    dx_dtype = dx_ptr.dtype.element_ty
    if UP is None:
        tl.store(dx_ptr + o_dx + o_n, (b_g * SLOPE(b_a, P, Q, R)).to(dx_dtype), mask=m)
        return tl.where(m, b_dy * b_f, 0.0)
    else:
        o_b = o_a + (INTERLEAVE if INTERLEAVE else n)
        b_b = tl.load(x_ptr + o_x + o_b, mask=m, other=0.0).to(WIDE)
        b_u = UP(b_b, P, Q, R)
        tl.store(dx_ptr + o_dx + o_a, (b_g * b_u * SLOPE(b_a, P, Q, R)).to(dx_dtype), mask=m)
        tl.store(dx_ptr + o_dx + o_b, (b_g * b_f * UP_SLOPE(b_b, P, Q, R)).to(dx_dtype), mask=m)
        return tl.where(m, b_dy * b_f * b_u, 0.0)


def _fwd(
    x_ptr,
    scales_ptr,
    y_ptr,
    x_stride,
    n_rows,
    n,
    VALUE: tl.constexpr,
    UP: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_m, o_n = tile(n, False, BLOCK_M, BLOCK_N)
    m_m = i_m < n_rows
    m = m_m & (o_n < n)
    o_a = _first(o_n, INTERLEAVE)
    x_ptr += i_m * x_stride
    b_y = VALUE(tl.load(x_ptr + o_a, mask=m, other=0.0).to(WIDE), P, Q, R)
    if UP is not None:
        b_y *= UP(tl.load(x_ptr + o_a + (INTERLEAVE if INTERLEAVE else n), mask=m, other=0.0).to(WIDE), P, Q, R)
    if scales_ptr is not None:
        b_y *= tl.load(scales_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _bwd(
    dy_ptr,
    x_ptr,
    dx_ptr,
    dy_stride,
    x_stride,
    d_stride,
    n_rows,
    n,
    VALUE: tl.constexpr,
    SLOPE: tl.constexpr,
    UP: tl.constexpr,
    UP_SLOPE: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Backward without factors: a program computes a tile."""
    i_m, o_n = tile(n, False, BLOCK_M, BLOCK_N)
    m = (i_m < n_rows) & (o_n < n)
    _grads(
        dy_ptr,
        x_ptr,
        dx_ptr,
        1.0,
        i_m * dy_stride,
        i_m * x_stride,
        i_m * d_stride,
        o_n,
        n,
        m,
        VALUE,
        SLOPE,
        UP,
        UP_SLOPE,
        P,
        Q,
        R,
        INTERLEAVE,
        WIDE,
    )


def _bwd_scaled(
    dy_ptr,
    x_ptr,
    scales_ptr,
    dx_ptr,
    dscales_ptr,
    dy_stride,
    x_stride,
    d_stride,
    n_rows,
    n,
    VALUE: tl.constexpr,
    SLOPE: tl.constexpr,
    UP: tl.constexpr,
    UP_SLOPE: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Backward with factors: a program loops along whole rows, because a factor's gradient is a sum over its row."""
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    m_m = i_m < n_rows
    b_s = tl.load(scales_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        o_n = at + tl.arange(0, BLOCK_N)[None, :]
        m = m_m & (o_n < n)
        b_sum += _grads(
            dy_ptr,
            x_ptr,
            dx_ptr,
            b_s,
            i_m * dy_stride,
            i_m * x_stride,
            i_m * d_stride,
            o_n,
            n,
            m,
            VALUE,
            SLOPE,
            UP,
            UP_SLOPE,
            P,
            Q,
            R,
            INTERLEAVE,
            WIDE,
        )
    tl.store(dscales_ptr + i_m, tl.sum(b_sum, 1)[:, None].to(dscales_ptr.dtype.element_ty), mask=m_m)


fwd = Launcher(_fwd, sizes="x_stride n")
bwd = Launcher(_bwd, sizes="dy_stride x_stride d_stride n")
bwd_scaled = Launcher(_bwd_scaled, sizes="dy_stride x_stride d_stride n")


def _tiles(n: int, dtype: torch.dtype) -> Tiles:
    block = least_gap(n, per_program(dtype))
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


@tunable("scaled_activation.tiles")
def tile_tiles(n: int, dtype: torch.dtype) -> Tiles:
    return _tiles(n, dtype)


@tunable("scaled_activation.rows")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program processes whole rows, BLOCK_N columns at a time."""
    return _tiles(n, dtype)


# ---- the ops --------------------------------------------------------------------------------------------------------


def _gate(gate: str, interleave: int, dy: Tensor | None, x: Tensor, scales: Tensor | None, *p: float) -> Plan:
    """The result, or the gradients if dy is given; `p` are the gate's parameters."""
    value, slope, up, up_slope = MATHS[gate]
    n = x.shape[-1] // (1 if up is None else 2)
    makes: dict[str, Any] = {"y": OutputSpec.of((*x.shape[:-1], n), x.dtype)}
    if dy is not None:
        empty = OutputSpec.of((0,), opmath_dtype(x.dtype))
        makes = {
            "dx": OutputSpec.of(x.shape, x.dtype),
            "dscales": empty if scales is None else OutputSpec.of(scales.shape, scales.dtype),
        }
    if not x.numel():
        return Plan({name: Zeros(o) if name == "dscales" else o for name, o in makes.items()})
    rows = RowSizes.of(x=x, dy=dy)
    constants: dict[str, Any] = dict(zip("PQR", (*map(float, p), 0.0, 0.0, 0.0)))
    constants |= dict(INTERLEAVE=interleave, WIDE=wide_of(x.dtype), VALUE=value, UP=up)
    if dy is not None:
        constants |= dict(SLOPE=slope, UP_SLOPE=up_slope)
    along = dy is not None and scales is not None
    tiles = (row_tiles if along else tile_tiles)(n=n, dtype=x.dtype)
    blocks = -(-rows.count // tiles["BLOCK_M"]) * (1 if along else -(-n // tiles["BLOCK_N"]))
    kernel = fwd if dy is None else bwd_scaled if along else bwd
    numbers = {**rows.numbers, "n": n, "d_stride": x.shape[-1]}
    launch = Launch(kernel, (blocks,), tiles.config(**constants), numbers)
    return Plan(makes, [launch], [*rows.strided, *strided(scales=scales)])


@planned(spec.silu_glu_scaled)
def silu_glu_scaled(x: Tensor, scales: Tensor, interleave: int) -> Plan:
    return _gate("silu", interleave, None, x, scales)


@planned(spec.silu_glu_scaled_bwd)
def silu_glu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor, interleave: int) -> Plan:
    return _gate("silu", interleave, dy, x, scales)


@planned(spec.srelu_scaled)
def srelu_scaled(x: Tensor, scales: Tensor) -> Plan:
    return _gate("srelu", 0, None, x, scales)


@planned(spec.srelu_scaled_bwd)
def srelu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor) -> Plan:
    return _gate("srelu", 0, dy, x, scales)


@planned(spec.situ_glu)
def situ_glu(x: Tensor, scales: Tensor | None, beta1: float, beta2: float, interleave: int) -> Plan:
    return _gate("situ", interleave, None, x, scales, beta1, beta2)


@planned(spec.situ_glu_bwd)
def situ_glu_bwd(dy: Tensor, x: Tensor, scales: Tensor | None, beta1: float, beta2: float, interleave: int) -> Plan:
    return _gate("situ", interleave, dy, x, scales, beta1, beta2)


@planned(spec.clamped_glu)
def clamped_glu(x: Tensor, scales: Tensor | None, limit: float, alpha: float, offset: float, interleave: int) -> Plan:
    return _gate("clamped", interleave, None, x, scales, limit, alpha, offset)


@planned(spec.clamped_glu_bwd)
def clamped_glu_bwd(
    dy: Tensor, x: Tensor, scales: Tensor | None, limit: float, alpha: float, offset: float, interleave: int
) -> Plan:
    return _gate("clamped", interleave, dy, x, scales, limit, alpha, offset)
