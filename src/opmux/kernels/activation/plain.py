"""Activations: alone, with a bias, and gated.

An activation is two device functions, its value and its derivative. Six kernels serve all activations.

Contiguous tensors are treated as one long row. Gated kernels and kernels with a bias read strided rows, so the halves
of [.., 2n] are read in place. With CAST the results are float8, and amax is raised to their largest magnitude.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ...core.tensors import opmath_dtype
from ...specs import activation as spec
from ..lib.activation_math import MATHS, least_gap, per_program, tile
from ..lib.column_sum import column_sum
from ..lib.config import Tiles, tunable
from ..lib.fp8 import ONE, cast_of, inverse_of_scale, note, put
from ..lib.harness import Launch, Plan, RowSizes, Zeros, planned, strided
from ..lib.launch import Launcher
from ..lib.rows import OutputSpec, cores, wide_of

# ---- the kernels ----------------------------------------------------------------------------------------------------


def _one(
    x_ptr,
    y_ptr,
    scale_ptr,
    amax_ptr,
    scale_inv_ptr,
    n,
    VALUE: tl.constexpr,
    CAST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(WIDE)
    top = put(y_ptr + o, VALUE(b_x), m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, scale_inv_ptr, scale_ptr, top)


def _one_bwd(
    dy_ptr,
    x_ptr,
    dx_ptr,
    scale_ptr,
    amax_ptr,
    scale_inv_ptr,
    n,
    SLOPE: tl.constexpr,
    CAST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(WIDE)
    b_dy = tl.load(dy_ptr + o, mask=m).to(WIDE)
    top = put(dx_ptr + o, b_dy * SLOPE(b_x), m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, scale_inv_ptr, scale_ptr, top)


def _gated(
    a_ptr,
    b_ptr,
    y_ptr,
    scale_ptr,
    amax_ptr,
    scale_inv_ptr,
    a_stride,
    b_stride,
    n_rows,
    n,
    FLAT: tl.constexpr,
    VALUE: tl.constexpr,
    CAST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Without b_ptr, b follows a in each row."""
    i_m, o_n = tile(n, FLAT, BLOCK_M, BLOCK_N)
    m = (i_m < n_rows) & (o_n < n)
    if b_ptr is None:
        b_ptr = a_ptr + n
    b_a = tl.load(a_ptr + i_m * a_stride + o_n, mask=m).to(WIDE)
    b_b = tl.load(b_ptr + i_m * b_stride + o_n, mask=m).to(WIDE)
    top = put(y_ptr + i_m * n + o_n, VALUE(b_a) * b_b, m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, scale_inv_ptr, scale_ptr, top)


def _gated_bwd(
    dy_ptr,
    a_ptr,
    b_ptr,
    da_ptr,
    db_ptr,
    scale_ptr,
    amax_ptr,
    scale_inv_ptr,
    dy_stride,
    a_stride,
    b_stride,
    d_stride,
    n_rows,
    n,
    FLAT: tl.constexpr,
    VALUE: tl.constexpr,
    SLOPE: tl.constexpr,
    CAST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Without b_ptr and db_ptr, b follows a in each row, and db follows da."""
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
        note(amax_ptr, scale_inv_ptr, scale_ptr, tl.maximum(top_a, top_b))


def _biased(
    x_ptr,
    bias_ptr,
    y_ptr,
    x_stride,
    n_rows,
    n,
    VALUE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_m, o_n = tile(n, False, BLOCK_M, BLOCK_N)
    m_n = o_n < n
    m = (i_m < n_rows) & m_n
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
    b_x += tl.load(bias_ptr + o_n, mask=m_n, other=0.0).to(WIDE)
    tl.store(y_ptr + i_m * n + o_n, VALUE(b_x).to(y_ptr.dtype.element_ty), mask=m)


def _biased_bwd(
    dy_ptr,
    x_ptr,
    bias_ptr,
    dx_ptr,
    share_ptr,
    scale_ptr,
    amax_ptr,
    scale_inv_ptr,
    dy_stride,
    x_stride,
    n_rows,
    n,
    SLOPE: tl.constexpr,
    CAST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dx, and partial sums of dx over rows. Program (i, j) computes column block i of row blocks j, j + P, j + 2 P, ...

    The next rows are loaded before the current rows are computed.
    """
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    first = tl.program_id(1) * BLOCK_M
    step = tl.num_programs(1) * BLOCK_M
    b_b = tl.zeros([1, BLOCK_N], WIDE)
    if bias_ptr is not None:
        b_b += tl.load(bias_ptr + o_n, mask=m_n, other=0.0).to(WIDE)
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
        top_of_block = put(dx_ptr + i_m * n + o_n, b_dx, m, scale_ptr, CAST)
        if CAST is not None:
            top = tl.maximum(top, top_of_block)
        b_sum += tl.where(m, b_dx, 0.0)  # masked lanes hold 0 * slope, which may be NaN
    at = tl.program_id(1).to(tl.int64) * n + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(share_ptr + at, tl.sum(b_sum, 0), mask=tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N) < n)
    if CAST is not None:
        note(amax_ptr, scale_inv_ptr, scale_ptr, top)


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
    """For contiguous tensors, which are treated as one row."""
    return Tiles(128, BLOCK_M=1, BLOCK_N=per_program(dtype))


@tunable("activation.gated_rows")
def gated_row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    block = least_gap(n, per_program(dtype))
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


# programs per core for sums over rows: with 8, dgelu with bias has 0.78 of a copy's bandwidth; with 4, 0.66 (H200)
PER_CORE = 8


@tunable("activation.bias")
def bias_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Several rows per program, so that the program reads the bias only once."""
    block = least_gap(n, 256, 64)
    return Tiles(128, BLOCK_M=per_program(dtype) // block, BLOCK_N=block)


@tunable("activation.bias_bwd")
def bias_bwd_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Wide tiles with few rows: a program loops down the rows and writes one sum per column."""
    block = least_gap(n, per_program(dtype), 64)
    return Tiles(256, BLOCK_M=2 * per_program(dtype) // block, BLOCK_N=block)


# ---- plans ----------------------------------------------------------------------------------------------------------


def functions(act: str, uses: str, fp8: torch.dtype | None = None) -> dict[str, Any]:
    """The constexprs of an activation's kernels; CAST converts results to `fp8`."""
    return {u: MATHS[act][("VALUE", "SLOPE").index(u)] for u in uses.split()} | {"CAST": fp8 and cast_of(fp8)}


def _results(fp8: torch.dtype | None, dtype: torch.dtype, **shapes: Any) -> dict[str, Any]:
    """Output specs of these shapes; with `fp8` their dtype is uint8, and scale_inv is one more output."""
    specs = {name: OutputSpec.of(shape, dtype if fp8 is None else torch.uint8) for name, shape in shapes.items()}
    return specs if fp8 is None else {**specs, "scale_inv": ONE}


def _nothing(makes: dict[str, Any]) -> Plan:
    """The plan for empty tensors."""
    return Plan(makes, [inverse_of_scale] if "scale_inv" in makes else [])


def _alone(act: str, fp8: torch.dtype | None = None, **tensors: Tensor) -> Plan:
    """f(x), or its gradient if dy is given."""
    *_, x = tensors.values()
    backward, n = "dy" in tensors, x.numel()
    makes = _results(fp8, x.dtype, **{"dx" if backward else "y": x.shape})
    if n == 0:
        return _nothing(makes)
    tiles = flat_tiles(dtype=x.dtype)
    config = tiles.config(WIDE=wide_of(x.dtype), **functions(act, "SLOPE" if backward else "VALUE", fp8))
    launch = Launch(one_bwd if backward else one, (-(-n // tiles["BLOCK"]),), config, {"n": n})
    return Plan(makes, [launch], strided(**tensors))


def _gate(act: str, fp8: torch.dtype | None = None, **tensors: Tensor) -> Plan:
    """f(a) * b, or its gradients if dy is given; a and b are two tensors or the halves of x."""
    *_, x = tensors.values()
    halves, backward, width = "x" in tensors, "dy" in tensors, x.shape[-1] if x.dim() else 1
    n = width // 2 if halves else width
    shape = x.shape if backward or not halves else (*x.shape[:-1], n)
    results = ("dx",) if halves else ("da", "db")
    makes = _results(fp8, x.dtype, **dict.fromkeys(results if backward else ["y"], shape))
    if not x.numel():
        return _nothing(makes)
    rows, count = RowSizes.of(**tensors), x.shape[:-1].numel()
    strides = dict(rows.strides)
    flat = not halves and all(t.is_contiguous() or name in rows.strided for name, t in tensors.items())
    if flat:
        count, n, width = 1, x.numel(), x.numel()
        strides = dict.fromkeys(strides, n)
    names: dict[str, str | None] = {}
    if halves:  # b is the second half of x
        names = {"a": "x", "da": "dx", "b": None, "db": None}
        strides["a"] = strides["b"] = strides.pop("x")
    tiles = gated_tiles(dtype=x.dtype) if flat else gated_row_tiles(n=n, dtype=x.dtype)
    uses = functions(act, "VALUE SLOPE" if backward else "VALUE", fp8)
    blocks = -(-count // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"])
    numbers = {**{f"{name}_stride": s for name, s in strides.items()}, "d_stride": width, "n_rows": count, "n": n}
    config = tiles.config(FLAT=flat, WIDE=wide_of(x.dtype), **uses)
    return Plan(makes, [Launch(gated_bwd if backward else gated, (blocks,), config, numbers, names)], rows.strided)


def _bias(act: str, x: Tensor, bias: Tensor) -> Plan:
    """f(x + bias)."""
    makes = {"y": OutputSpec.of(x.shape, x.dtype)}
    if not x.numel():
        return Plan(makes)
    rows = RowSizes.of(x=x)
    tiles = bias_tiles(n=rows.n, dtype=x.dtype)
    blocks = -(-rows.count // tiles["BLOCK_M"]) * -(-rows.n // tiles["BLOCK_N"])
    launch = rows.launch(biased, tiles, blocks, WIDE=wide_of(x.dtype), VALUE=MATHS[act][0])
    return Plan(makes, [launch], [*rows.strided, *strided(bias=bias)])


def _bias_bwd(act: str, dy: Tensor, x: Tensor, bias: Tensor | None, fp8: torch.dtype | None = None) -> Plan:
    """dx, and its sum over rows."""
    n, dtype = x.shape[-1], x.dtype
    makes = _results(fp8, dtype, dx=x.shape)
    dbias = OutputSpec.of((n,), dtype if bias is None else bias.dtype)
    if not x.numel():
        return _nothing({**makes, "dbias": Zeros(dbias)})
    rows = RowSizes.of(dy=dy, x=x)
    tiles = bias_bwd_tiles(n=n, dtype=dtype)
    across = -(-n // tiles["BLOCK_N"])
    parts = max(1, min(-(-rows.count // tiles["BLOCK_M"]), cores(x.device) * PER_CORE // across))
    launch = rows.launch(biased_bwd, tiles, across, parts, WIDE=wide_of(dtype), **functions(act, "SLOPE", fp8))
    makes |= {"dbias": dbias, "share": OutputSpec.of((parts, n), opmath_dtype(dtype))}
    return Plan(makes, [launch, column_sum("share", "dbias", parts, n, dtype)], [*rows.strided, *strided(bias=bias)])


# ---- the ops --------------------------------------------------------------------------------------------------------


def declare(act: str, alone: bool) -> None:
    """Register the impls of one activation."""

    def forward(x: Tensor) -> Plan:
        return _alone(act, x=x)

    def backward(dy: Tensor, x: Tensor) -> Plan:
        return _alone(act, dy=dy, x=x)

    def bias(x: Tensor, bias: Tensor) -> Plan:
        return _bias(act, x, bias)

    def bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None) -> Plan:
        return _bias_bwd(act, dy, x, bias)

    def mul(a: Tensor, b: Tensor) -> Plan:
        return _gate(act, a=a, b=b)

    def mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> Plan:
        return _gate(act, dy=dy, a=a, b=b)

    def glu(x: Tensor) -> Plan:
        return _gate(act, x=x)

    def glu_bwd(dy: Tensor, x: Tensor) -> Plan:
        return _gate(act, dy=dy, x=x)

    plans = {"_mul": mul, "_mul_bwd": mul_bwd, "_glu": glu, "_glu_bwd": glu_bwd}
    if alone:
        plans |= {"": forward, "_bwd": backward, "_bias": bias, "_bias_bwd": bias_bwd}
    for suffix, plan in plans.items():
        planned(getattr(spec, act + suffix))(plan)


for _act, _row in spec.ACTS.items():
    declare(_act, _row.alone)


@planned(spec.act_fp8)
def act_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> Plan:
    return _alone(act, dtype, x=x)


@planned(spec.act_bwd_fp8)
def act_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> Plan:
    return _alone(act, dtype, dy=dy, x=x)


@planned(spec.glu_fp8)
def glu_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> Plan:
    return _gate(act, dtype, x=x)


@planned(spec.glu_bwd_fp8)
def glu_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> Plan:
    return _gate(act, dtype, dy=dy, x=x)


@planned(spec.act_bias_bwd_fp8)
def act_bias_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> Plan:
    return _bias_bwd(act, dy, x, None, dtype)
