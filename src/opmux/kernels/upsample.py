"""Resampling: along each dimension, a result is a weighted sum of some input elements.

One kernel gathers, for each result, the inputs that it reads. The kernel of the gradient gathers, for each input, the
results that read it, in a fixed order and without atomics. Kernels compute the weights themselves, without a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..specs import upsample as spec
from .lib.harness import Plan, planned_by
from .lib.launch import Launcher
from .lib.meta import output_specs
from .lib.planes import Planes, check_floats, lanes, per_axis, per_element, plane, unravel
from .lib.rows import wide_of

# ---- indices and weights --------------------------------------------------------------------------------------------


@triton.jit
def cubic(x, A: tl.constexpr):
    """The kernel function of cubic convolution, which is 0 at distances of 2 and more."""
    x = tl.abs(x)
    near = ((A + 2) * x - (A + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * A - 4 * A
    return tl.where(x < 1, near, tl.where(x < 2, far, 0.0))


@triton.jit
def antialiasing_weight(x, MODE: tl.constexpr):
    if MODE == "antialiased cubic":
        return cubic(x, -0.5)
    else:
        return tl.maximum(1 - tl.abs(x), 0.0)


@triton.jit
def position(at, scale, MODE: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """The position of a result in the input. As in torch, nearest modes compute it in float32."""
    if MODE == "nearest":
        return at.to(tl.float32) * scale.to(tl.float32)
    elif MODE == "exact":
        return (at.to(tl.float32) + 0.5) * scale.to(tl.float32)
    elif MODE == "antialiased linear" or MODE == "antialiased cubic":
        return (at.to(WIDE) + 0.5) * scale
    elif ALIGN:
        return at.to(WIDE) * scale
    else:
        there = (at.to(WIDE) + 0.5) * scale - 0.5
        return tl.maximum(there, 0.0) if MODE == "linear" else there


@triton.jit
def span(there, scale, n_in, MODE: tl.constexpr, WIDE: tl.constexpr):
    """For antialiased modes: the first input index that a result reads, and the index after the last one."""
    half = (2.0 if MODE == "antialiased cubic" else 1.0) * tl.maximum(scale, 1.0)
    first = tl.maximum((there - half + 0.5).to(tl.int32), 0)
    return first, tl.minimum((there + half + 0.5).to(tl.int32), n_in)


@triton.jit
def total(there, scale, n_in, T, MODE: tl.constexpr, WIDE: tl.constexpr):
    """For antialiased modes: the sum of the weights, by which each weight is divided."""
    first, end = span(there, scale, n_in, MODE, WIDE)
    sums = there * 0
    for k in range(T):
        at = first + k
        by = (at.to(WIDE) - there + 0.5) / tl.maximum(scale, 1.0)
        sums += tl.where(at < end, antialiasing_weight(by, MODE), 0.0)
    return tl.where(end > first, sums, 1.0)


@triton.jit
def tap(there, k, scale, n_in, whole, MODE: tl.constexpr, WIDE: tl.constexpr):
    """The k-th input index that a result reads, and its weight."""
    if MODE == "nearest" or MODE == "exact":
        return tl.minimum(tl.floor(there).to(tl.int32), n_in - 1), tl.full(there.shape, 1, WIDE)
    elif MODE == "linear":
        low = there.to(tl.int32)
        part = there - low.to(WIDE)
        low = tl.minimum(low, n_in - 1)
        return tl.where(k == 0, low, tl.minimum(low + 1, n_in - 1)), tl.where(k == 0, 1 - part, part)
    elif MODE == "cubic":
        low = tl.floor(there)
        at = low.to(tl.int32) + (k - 1)
        return tl.minimum(tl.maximum(at, 0), n_in - 1), cubic(there - low - (k - 1), -0.75)
    else:
        first, end = span(there, scale, n_in, MODE, WIDE)
        at = first + k
        by = (at.to(WIDE) - there + 0.5) / tl.maximum(scale, 1.0)
        weight = antialiasing_weight(by, MODE) / whole
        return tl.minimum(at, n_in - 1), tl.where(at < end, weight, 0.0)


@triton.jit
def results(at, scale, n_in, n_out, MODE: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """The first and the last result that may read an input index.

    The first and the last input index are also read for positions outside the input. A result at position p reads
    indices from p - high to p + low; positions are scale * (o + a) - b.
    """
    a = 0.0 if ALIGN or MODE == "nearest" else 0.5
    b = 0.5 if (MODE == "linear" or MODE == "cubic") and not ALIGN else 0.0
    if MODE == "nearest" or MODE == "exact":
        low = 0.0
        high = 1.0
    elif MODE == "linear":
        low = 1.0
        high = 1.0
    elif MODE == "cubic":
        low = 2.0
        high = 2.0
    else:
        low = (2.0 if MODE == "antialiased cubic" else 1.0) * tl.maximum(scale, 1.0)
        high = low + 1.0
    step = tl.maximum(scale, 1e-9)
    first = (at.to(WIDE) - low + b) / step - a
    last = (at.to(WIDE) + high + b) / step - a
    first = tl.ceil(first - 0.01 - tl.abs(first) * 1e-6)  # allow for rounding errors of positions
    last = tl.floor(last + 0.01 + tl.abs(last) * 1e-6)
    first = tl.where(at == 0, 0.0, tl.maximum(first, 0.0))
    last = tl.where(at == n_in - 1, n_out - 1.0, tl.minimum(last, n_out - 1.0))
    return tl.minimum(first, n_out - 1.0).to(at.dtype), tl.maximum(last, -1.0).to(at.dtype)


@triton.jit
def weight_of(at, o, scale, n_in, T, MODE: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """The weight of an input index in a result."""
    there = position(o, scale, MODE, ALIGN, WIDE)
    if MODE == "antialiased linear" or MODE == "antialiased cubic":
        first, end = span(there, scale, n_in, MODE, WIDE)
        by = (at.to(WIDE) - there + 0.5) / tl.maximum(scale, 1.0)
        whole = total(there, scale, n_in, T, MODE, WIDE)
        return tl.where((at >= first) & (at < end), antialiasing_weight(by, MODE) / whole, 0.0)
    else:
        weights = tl.full(there.shape, 0, WIDE)
        for k in range(T):
            read, weight = tap(there, k, scale, n_in, 1.0, MODE, WIDE)
            weights += tl.where(read == at, weight, 0.0)
        return weights


# ---- kernels --------------------------------------------------------------------------------------------------------


def _resample(x_ptr, y_ptr, n, n_c, n_z, n_y, n_x, i_z, i_y, i_x, x_sn, x_sc, x_sz, x_sy, x_sx,
              scale_z: tl.float64, scale_y: tl.float64, scale_x: tl.float64,
              TZ: tl.constexpr, TY: tl.constexpr, TX: tl.constexpr, MODE: tl.constexpr, ALIGN: tl.constexpr,
              RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr, FULL: tl.constexpr,
              WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """T: how many inputs a result reads along a dimension, at most."""
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    scale_z = tl.full([BLOCK], scale_z, WIDE)
    scale_y = tl.full([BLOCK], scale_y, WIDE)
    scale_x = tl.full([BLOCK], scale_x, WIDE)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    base = plane(b, c, x_sn, x_sc, TIGHT)
    at_z = position(z, scale_z, MODE, ALIGN, WIDE)
    at_y = position(y, scale_y, MODE, ALIGN, WIDE)
    at_x = position(x, scale_x, MODE, ALIGN, WIDE)
    if MODE == "nearest" or MODE == "exact":
        q_x, w_x = tap(at_x, 0, scale_x, i_x, 1.0, MODE, WIDE)
        at = base + q_x * x_sx
        if RANK > 1:
            q_y, w_y = tap(at_y, 0, scale_y, i_y, 1.0, MODE, WIDE)
            at += q_y * x_sy
        if RANK > 2:
            q_z, w_z = tap(at_z, 0, scale_z, i_z, 1.0, MODE, WIDE)
            at += q_z * x_sz
        tl.store(y_ptr + o, tl.load(x_ptr + at, mask=inside), mask=inside)
    else:
        acc = tl.full([BLOCK], 0, WIDE)
        all_y = tl.full([BLOCK], 1, WIDE)
        all_x = tl.full([BLOCK], 1, WIDE)
        if MODE == "antialiased linear" or MODE == "antialiased cubic":
            all_y = total(at_y, scale_y, i_y, TY, MODE, WIDE)
            all_x = total(at_x, scale_x, i_x, TX, MODE, WIDE)
        for k_z in range(TZ):
            row_z = base
            w_z = tl.full([BLOCK], 1, WIDE)
            if RANK > 2:
                q_z, w_z = tap(at_z, k_z, scale_z, i_z, 1.0, MODE, WIDE)
                row_z = base + q_z * x_sz
            for k_y in range(TY):
                row = row_z
                w_y = w_z
                if RANK > 1:
                    q_y, by_y = tap(at_y, k_y, scale_y, i_y, all_y, MODE, WIDE)
                    row = row_z + q_y * x_sy
                    w_y = w_z * by_y
                for k_x in range(TX):
                    q_x, w_x = tap(at_x, k_x, scale_x, i_x, all_x, MODE, WIDE)
                    acc += w_y * w_x * tl.load(x_ptr + row + q_x * x_sx, mask=inside, other=0.0).to(WIDE)
        tl.store(y_ptr + o, acc, mask=inside)


def _resample_bwd(dy_ptr, dx_ptr, n, n_c, n_z, n_y, n_x, o_z, o_y, o_x, dy_sn, dy_sc, dy_sz, dy_sy, dy_sx,
                  scale_z: tl.float64, scale_y: tl.float64, scale_x: tl.float64,
                  TZ: tl.constexpr, TY: tl.constexpr, TX: tl.constexpr, MODE: tl.constexpr, ALIGN: tl.constexpr,
                  RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr,
                  FULL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    scale_z = tl.full([BLOCK], scale_z, WIDE)
    scale_y = tl.full([BLOCK], scale_y, WIDE)
    scale_x = tl.full([BLOCK], scale_x, WIDE)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    base = plane(b, c, dy_sn, dy_sc, TIGHT)
    f_x, l_x = results(x, scale_x, n_x, o_x, MODE, ALIGN, WIDE)
    f_y, l_y = results(y, scale_y, n_y, o_y, MODE, ALIGN, WIDE)
    f_z, l_z = results(z, scale_z, n_z, o_z, MODE, ALIGN, WIDE)
    acc = tl.full([BLOCK], 0, WIDE)
    for k_z in range(tl.max(l_z - f_z, 0) + 1 if RANK > 2 else 1):
        q_z = f_z + k_z
        m_z = inside
        w_z = tl.full([BLOCK], 1, WIDE)
        if RANK > 2:
            m_z = inside & (q_z <= l_z)
            w_z = weight_of(z, q_z, scale_z, n_z, TZ, MODE, ALIGN, WIDE)
        for k_y in range(tl.max(l_y - f_y, 0) + 1 if RANK > 1 else 1):
            q_y = f_y + k_y
            m_y = m_z
            w_y = w_z
            if RANK > 1:
                m_y = m_z & (q_y <= l_y)
                w_y = w_z * weight_of(y, q_y, scale_y, n_y, TY, MODE, ALIGN, WIDE)
            m_y = m_y & (w_y != 0)
            for k_x in range(tl.max(l_x - f_x, 0) + 1):
                q_x = f_x + k_x
                w = weight_of(x, q_x, scale_x, n_x, TX, MODE, ALIGN, WIDE)
                m = m_y & (q_x <= l_x) & (w != 0)
                at = base + q_z * dy_sz + q_y * dy_sy + q_x * dy_sx
                acc += w_y * tl.where(m, w, 0.0) * tl.load(dy_ptr + at, mask=m, other=0.0).to(WIDE)
    tl.store(dx_ptr + o, acc, mask=inside)


resample = Launcher(_resample, sizes="n n_c x_sn x_sz x_sy x_sx")
resample_bwd = Launcher(_resample_bwd, sizes="n n_c dy_sn dy_sz dy_sy dy_sx")


# ---- plans ----------------------------------------------------------------------------------------------------------

TAPS = {"nearest": 1, "exact": 1, "linear": 2, "cubic": 4}


def _scale(n_in: int, n_out: int, align: bool, scale: float | None, wide: torch.dtype) -> float:
    """Input pixels per result pixel, rounded as in torch."""
    number = lambda v: torch.tensor(float(v), dtype=wide)
    if align:
        return (number(n_in - 1) / number(n_out - 1)).item() if n_out > 1 else 0.0
    if scale is not None and scale > 0:
        return number(1.0 / scale).item()
    return (number(n_in) / number(n_out)).item()


def _shared(
    mode: str,
    rank: int,
    wide: torch.dtype,
    n_in: Sequence[int],
    n_out: Sequence[int],
    align: bool,
    given_scales: Sequence[Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The constexprs and numbers that both kernels have."""
    if mode.startswith("antialiased") and align:
        raise NotSupported("antialiasing with aligned corners")
    scales = [_scale(i, o, align, g, wide) for i, o, g in zip(n_in, n_out, (*[None] * (3 - rank), *given_scales))]
    if mode in TAPS:
        taps = [TAPS[mode]] * 3
    else:
        taps = [int((4 if "cubic" in mode else 2) * max(s, 1.0)) + 2 for s in scales]
    taps = [t if axis >= 3 - rank else 1 for axis, t in enumerate(taps)]
    return {**per_axis("T", taps), "MODE": mode, "ALIGN": align}, per_axis("scale_", scales)


def _wide(mode: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 and mode not in ("nearest", "exact") else torch.float32


def _forward(name: str, self: Tensor, output_size: list[int], align_corners: bool = False, **scales: Any) -> Plan:
    rank, mode = spec.MODES[name]
    moved = mode in ("nearest", "exact") and self.dtype is torch.uint8
    if not moved:
        check_floats(self)
    more = () if mode in ("nearest", "exact") else (align_corners,)
    (output,) = output_specs(getattr(torch.ops.aten, name), self, output_size, *more, *scales.values())
    x, out = Planes.of(self, rank), Planes.of(output, rank)
    if not out.count or not x.count:
        raise NotSupported("an empty tensor")
    wide = _wide(mode, self.dtype)
    shared, numbers = _shared(mode, rank, wide, x.space, out.space, align_corners, list(scales.values()))
    launch = per_element(
        resample,
        rank,
        self.dtype,
        out,
        {"x": x},
        numbers | per_axis("i_", x.space),
        {"x": "self"},
        WIDE=wide_of(self.dtype),
        **shared,
    )
    return Plan({"y": output}, [launch])


def _backward(
    name: str,
    grad_output: Tensor,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool = False,
    **scales: Any,
) -> Plan:
    check_floats(grad_output)
    rank, mode = spec.MODES[name.removesuffix("_backward")]
    more = () if mode in ("nearest", "exact") else (align_corners,)
    (output,) = output_specs(
        getattr(torch.ops.aten, name), grad_output, output_size, input_size, *more, *scales.values()
    )
    dy, out = Planes.of(grad_output, rank), Planes.of(output, rank)
    if not out.count or not dy.count:
        raise NotSupported("an empty tensor")
    wide = _wide(mode, grad_output.dtype)
    shared, numbers = _shared(mode, rank, wide, out.space, dy.space, align_corners, list(scales.values()))
    launch = per_element(
        resample_bwd,
        rank,
        grad_output.dtype,
        out,
        {"dy": dy},
        numbers | per_axis("o_", dy.space),
        {"dy": "grad_output"},
        WIDE=wide_of(grad_output.dtype),
        **shared,
    )
    return Plan({"dx": output}, [launch])


for _name in spec.MODES:
    planned_by(_forward, spec.ops[_name])
    planned_by(_backward, spec.ops[f"{_name}_backward"])
