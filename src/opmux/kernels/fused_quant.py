"""Activations and norms with FP8 results: one pass computes, casts and writes tiles, their transpose and scales.

Current scaling computes the result twice, once for its amax and once for the cast. So the inputs are read twice, but no
intermediate result is written or read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from ..core.tensors import opmath_dtype
from ..specs import fused_quant as spec
from ..specs.quant import matrix
from .lib.activation_math import MATHS
from .lib.column_sum import column_sum
from .lib.harness import Launch, Plan, Step, planned, strided
from .lib.quant_tiles import amax_of, amax_of_tiles, blocks_launch, cast_launch, mx_launch, normed, sides, strides
from .lib.rows import OutputSpec, programs, wide_of

Buffer = Tensor | None
FEW = 256  # at most this many programs compute an amax, because each program of the cast reads all their results


def _constants(x: Tensor, act: str, gated: bool, backward: bool, rounds: bool) -> dict[str, Any]:
    """The constexprs that say how kernels compute an activation or its gradient."""
    value, slope = (None, None) if act == spec.NONE else MATHS[act]
    return dict(
        VALUE=value if gated or not backward else None,
        SLOPE=slope if backward else None,
        GATED=gated,
        ROUND=rounds,
        WIDE=wide_of(x.dtype),
    )


def _with_sums(
    makes: dict[str, OutputSpec], steps: list[Step], x: Tensor, dbias: Buffer, shape: Any, copied: Any
) -> Plan:
    """The plan of these steps.

    If dbias is requested, the last step also writes partial column sums, and one more launch adds these.
    """
    if dbias is None:
        return Plan(makes, steps, copied)
    *before, last = steps
    assert isinstance(last, Launch)
    n, parts = matrix(shape)[1], last.grid[1]
    makes["share"] = OutputSpec.of((parts, n), opmath_dtype(x.dtype))
    return Plan(makes, [*before, last, column_sum("share", "dbias", parts, n, x.dtype)], copied)


def _amax(x: Tensor, shape: Any, source: dict[str, Any]) -> Launch:
    """Write the amax of each program's tiles to `parts`. The number of programs is a power of two."""
    (m, n), tiles = matrix(shape), amax_of_tiles(dtype=x.dtype)
    down, across = sides(tiles)
    count = programs(x.device, triton.cdiv(m, down) * triton.cdiv(n, across), 8)
    count = min(FEW, triton.next_power_of_2(count) // (2 if count & (count - 1) else 1))
    config = tiles.config(FULL=m % down == 0 and n % across == 0, **source)
    return Launch(amax_of, (count,), config, {"n_rows": m, "n": n, "offset": 0.0})


def _nothing(reference: Callable[..., Any]) -> Plan:
    """The plan for empty tensors: runs the reference, which writes the scalars and the sums."""
    return Plan({}, [reference])


@planned(spec.act_fp8_cast_into)
def act_fp8_cast_into(
    x: Tensor,
    dy: Buffer,
    scale: Tensor,
    y: Buffer,
    yt: Buffer,
    scale_inv: Buffer,
    amax: Buffer,
    dbias: Buffer,
    dtype: torch.dtype,
    act: str,
    gated: bool,
) -> Plan:
    if not x.numel():
        return _nothing(spec.act_fp8_cast_into.reference)
    shape, source = spec.result_shape(x, dy, gated), _constants(x, act, bool(gated), dy is not None, False)
    launch = cast_launch(shape, x.dtype, dtype, 0, False, {"offset": 0.0, "eps": 0.0}, source)
    return _with_sums({}, [launch], x, dbias, shape, strided(x=x, dy=dy))


@planned(spec.act_fp8_current_into)
def act_fp8_current_into(
    x: Tensor,
    dy: Buffer,
    y: Buffer,
    yt: Buffer,
    scale_inv: Buffer,
    dbias: Buffer,
    dtype: torch.dtype,
    act: str,
    gated: bool,
    pow2: bool,
) -> Plan:
    if not x.numel():
        return _nothing(spec.act_fp8_current_into.reference)
    shape, source = spec.result_shape(x, dy, gated), _constants(x, act, bool(gated), dy is not None, True)
    parts = _amax(x, shape, source)
    launch = cast_launch(shape, x.dtype, dtype, parts.grid[0], bool(pow2), {"offset": 0.0}, source).named(scale="parts")
    makes = {"parts": OutputSpec.of(parts.grid, torch.float32)}
    return _with_sums(makes, [parts, launch], x, dbias, shape, strided(x=x, dy=dy))


@planned(spec.act_fp8_blocks_into)
def act_fp8_blocks_into(
    x: Tensor,
    dy: Buffer,
    y: Buffer,
    y_scale: Buffer,
    yt: Buffer,
    yt_scale: Buffer,
    dbias: Buffer,
    dtype: torch.dtype,
    act: str,
    gated: bool,
    two_d: bool,
    pow2: bool,
) -> Plan:
    if not x.numel():
        return _nothing(spec.act_fp8_blocks_into.reference)
    shape, source = spec.result_shape(x, dy, gated), _constants(x, act, bool(gated), dy is not None, True)
    numbers = {"offset": 0.0, **strides(y=y_scale, yt=yt_scale)}
    launch = blocks_launch(shape, x.dtype, dtype, bool(two_d), bool(pow2), numbers, source)
    return _with_sums({}, [launch], x, dbias, shape, strided(x=x, dy=dy))


@planned(spec.act_mxfp8_into)
def act_mxfp8_into(
    x: Tensor,
    dy: Buffer,
    y: Buffer,
    y_scale: Buffer,
    yc: Buffer,
    yc_scale: Buffer,
    dbias: Buffer,
    dtype: torch.dtype,
    act: str,
    gated: bool,
    two_d: bool,
) -> Plan:
    if not x.numel():
        return _nothing(spec.act_mxfp8_into.reference)
    shape, source = spec.result_shape(x, dy, gated), _constants(x, act, bool(gated), dy is not None, True)
    numbers = {"offset": 0.0, **strides(y=y_scale, yc=yc_scale)}
    launch = mx_launch(shape, x.dtype, dtype, bool(two_d), numbers, source)
    return _with_sums({}, [launch], x, dbias, shape, strided(x=x, dy=dy))


@planned(spec.norm_fp8_current_into)
def norm_fp8_current_into(
    x: Tensor,
    weight: Tensor,
    bias: Buffer,
    mean: Buffer,
    rstd: Tensor,
    amax: Tensor,
    y: Buffer,
    yt: Buffer,
    scale_inv: Buffer,
    dtype: torch.dtype,
    pow2: bool,
) -> Plan:
    if not x.numel():
        return _nothing(spec.norm_fp8_current_into.reference)
    launch = cast_launch(x.shape, x.dtype, dtype, 1, bool(pow2), {}, normed(x.dtype)).named(scale="amax", amax=None)
    return Plan({}, [launch], strided(x=x, weight=weight, bias=bias, mean=mean, rstd=rstd))


@planned(spec.norm_fp8_blocks_into)
def norm_fp8_blocks_into(
    x: Tensor,
    weight: Tensor,
    bias: Buffer,
    mean: Buffer,
    rstd: Tensor,
    y: Buffer,
    y_scale: Buffer,
    yt: Buffer,
    yt_scale: Buffer,
    dtype: torch.dtype,
    two_d: bool,
    pow2: bool,
) -> Plan:
    if not x.numel():
        return Plan({})
    numbers = strides(y=y_scale, yt=yt_scale)
    launch = blocks_launch(x.shape, x.dtype, dtype, bool(two_d), bool(pow2), numbers, normed(x.dtype))
    return Plan({}, [launch], strided(x=x, weight=weight, bias=bias, mean=mean, rstd=rstd))


@planned(spec.norm_mxfp8_into)
def norm_mxfp8_into(
    x: Tensor,
    weight: Tensor,
    bias: Buffer,
    mean: Buffer,
    rstd: Tensor,
    y: Buffer,
    y_scale: Buffer,
    yc: Buffer,
    yc_scale: Buffer,
    dtype: torch.dtype,
    two_d: bool,
) -> Plan:
    if not x.numel():
        return Plan({})
    launch = mx_launch(x.shape, x.dtype, dtype, bool(two_d), strides(y=y_scale, yc=yc_scale), normed(x.dtype))
    return Plan({}, [launch], strided(x=x, weight=weight, bias=bias, mean=mean, rstd=rstd))
