"""Sampling at grid positions: the forward gathers; the backward adds to the input's gradient with atomics.

Only the grid's values say which positions read an input element. So the input's gradient cannot be gathered, and is
added up with atomics, as torch does. If deterministic algorithms are requested, the backward is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import AnyTensor, dtypes, one_of
from ..core.errors import NotSupported
from ..specs import grid_sampler as spec
from .lib.harness import Launch, Plan, Zeros, planned
from .lib.indexing import LARGEST, index_dtype, reach
from .lib.launch import Launcher
from .lib.maths import libdevice
from .lib.planes import (
    Planes,
    check_floats,
    lanes,
    per_axis,
    per_element,
    plane,
    plane_tiles,
    sizes_of,
    unravel,
    unravel_positions,
)
from .lib.rows import OutputSpec, wide_of


@triton.jit
def clipped(u, slope, n_in):
    """Clamp a coordinate to the input; where it was outside, the slope becomes 0."""
    last = (n_in - 1).to(u.dtype)
    slope = tl.where((u > 0) & (u < last), slope, 0.0)
    return tl.minimum(tl.maximum(u, 0.0), last), slope


@triton.jit
def coordinate(v, n_in, PADDING: tl.constexpr, ALIGN: tl.constexpr):
    """Map a grid coordinate from [-1, 1] to an input index; also return the slope of that map."""
    length = tl.full(v.shape, n_in, v.dtype)
    if ALIGN:
        u = (v + 1) * 0.5 * (length - 1)
        slope = 0.5 * (length - 1)
    else:
        u = ((v + 1) * length - 1) * 0.5
        slope = 0.5 * length
    if PADDING == 1:
        u, slope = clipped(u, slope, n_in)
    elif PADDING == 2:
        low = 0.0 if ALIGN else -0.5
        span = length - 1 if ALIGN else length
        far = tl.abs(u - low)
        slope = tl.where(u < low, -slope, slope)
        flips = tl.floor(far / tl.maximum(span, 1.0))
        rest = far - flips * span
        even = flips - 2 * tl.floor(flips * 0.5) == 0
        u = tl.where(even, rest + low, span - rest + low)
        slope = tl.where(even, slope, -slope)
        u, slope = clipped(u, slope, n_in)
    return tl.where(tl.abs(u) < 1e9, u, -100.0), slope  # NaN and infinity become -100, which reads nothing


@triton.jit
def tap(u, k, n_in, NEAREST: tl.constexpr):
    """The k-th index that a coordinate reads, its weight, the sign of the weight's slope, and whether it exists."""
    if NEAREST:
        at = libdevice.rint(u).to(tl.int32)
        weight = tl.full(u.shape, 1, u.dtype)
        sign = 0.0
    else:
        low = tl.floor(u)
        at = low.to(tl.int32) + k
        weight = 1 - (u - low) if k == 0 else u - low
        sign = -1.0 if k == 0 else 1.0
    return at, weight, sign, (at >= 0) & (at < n_in)


def _sample(x_ptr, grid_ptr, y_ptr, n, n_c, n_z, n_y, n_x, i_z, i_y, i_x, x_sn, x_sc, x_sz, x_sy, x_sx,
            g_sn, g_sz, g_sy, g_sx, g_sk, NEAREST: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr,
            RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr, FULL: tl.constexpr,
            WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    at = grid_ptr + b * g_sn + z * g_sz + y * g_sy + x * g_sx
    u_x, _s_x = coordinate(tl.load(at, mask=inside, other=0.0).to(WIDE), i_x, PADDING, ALIGN)
    u_y, _s_y = coordinate(tl.load(at + g_sk, mask=inside, other=0.0).to(WIDE), i_y, PADDING, ALIGN)
    u_z = u_x
    if RANK > 2:
        u_z, _s_z = coordinate(tl.load(at + 2 * g_sk, mask=inside, other=0.0).to(WIDE), i_z, PADDING, ALIGN)
    base = x_ptr + plane(b, c, x_sn, x_sc, TIGHT)
    acc = tl.full([BLOCK], 0, WIDE)
    for k_z in tl.static_range(1 if NEAREST or RANK < 3 else 2):
        row_z = base
        in_z = inside
        w_z = tl.full([BLOCK], 1, WIDE)
        if RANK > 2:
            q_z, w_z, _d_z, in_z = tap(u_z, k_z, i_z, NEAREST)
            row_z = base + q_z * x_sz
            in_z = in_z & inside
        for k_y in tl.static_range(1 if NEAREST else 2):
            q_y, w_y, _d_y, in_y = tap(u_y, k_y, i_y, NEAREST)
            for k_x in tl.static_range(1 if NEAREST else 2):
                q_x, w_x, _d_x, in_x = tap(u_x, k_x, i_x, NEAREST)
                v = tl.load(row_z + q_y * x_sy + q_x * x_sx, mask=in_z & in_y & in_x, other=0.0).to(WIDE)
                acc += w_z * w_y * w_x * v
    tl.store(y_ptr + o, acc, mask=inside)


def _sample_bwd(dy_ptr, x_ptr, grid_ptr, dx_ptr, dgrid_ptr, n, n_c, n_z, n_y, n_x, i_z, i_y, i_x,
                dy_sn, dy_sc, dy_sz, dy_sy, dy_sx, x_sn, x_sc, x_sz, x_sy, x_sx, dx_sn, dx_sc, dx_sz, dx_sy, dx_sx,
                g_sn, g_sz, g_sy, g_sx, g_sk, NEAREST: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr,
                RANK: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One lane per grid position; it loops over all channels."""
    o, inside = lanes(n, INDEX, False, BLOCK)
    b, z, y, x = unravel_positions(o, n_z, n_y, n_x, RANK)
    at = grid_ptr + b * g_sn + z * g_sz + y * g_sy + x * g_sx
    u_x, s_x = coordinate(tl.load(at, mask=inside, other=0.0).to(WIDE), i_x, PADDING, ALIGN)
    u_y, s_y = coordinate(tl.load(at + g_sk, mask=inside, other=0.0).to(WIDE), i_y, PADDING, ALIGN)
    u_z = u_x
    s_z = s_x
    if RANK > 2:
        u_z, s_z = coordinate(tl.load(at + 2 * g_sk, mask=inside, other=0.0).to(WIDE), i_z, PADDING, ALIGN)
    dg_x = tl.full([BLOCK], 0, WIDE)
    dg_y = tl.full([BLOCK], 0, WIDE)
    dg_z = tl.full([BLOCK], 0, WIDE)
    for k_c in range(n_c):
        c = o * 0 + k_c
        g_at = b * dy_sn + z * dy_sz + y * dy_sy + x * dy_sx + c * dy_sc
        g = tl.load(dy_ptr + g_at, mask=inside, other=0.0).to(WIDE)
        x_base = x_ptr + b * x_sn + c * x_sc
        dx_base = b * dx_sn + c * dx_sc
        for k_z in tl.static_range(1 if NEAREST or RANK < 3 else 2):
            q_z = z * 0
            in_z = inside
            w_z = tl.full([BLOCK], 1, WIDE)
            d_z = 0.0
            if RANK > 2:
                q_z, w_z, d_z, in_z = tap(u_z, k_z, i_z, NEAREST)
                in_z = in_z & inside
            for k_y in tl.static_range(1 if NEAREST else 2):
                q_y, w_y, d_y, in_y = tap(u_y, k_y, i_y, NEAREST)
                for k_x in tl.static_range(1 if NEAREST else 2):
                    q_x, w_x, d_x, in_x = tap(u_x, k_x, i_x, NEAREST)
                    m = in_z & in_y & in_x
                    if dx_ptr is not None:
                        dx_at = dx_base + q_z * dx_sz + q_y * dx_sy + q_x * dx_sx
                        tl.atomic_add(dx_ptr + dx_at, w_z * w_y * w_x * g, mask=m, sem="relaxed")
                    if not NEAREST:
                        v = tl.load(x_base + q_z * x_sz + q_y * x_sy + q_x * x_sx, mask=m, other=0.0).to(WIDE) * g
                        dg_x += d_x * w_y * w_z * v
                        dg_y += d_y * w_x * w_z * v
                        dg_z += d_z * w_x * w_y * v
    tl.store(dgrid_ptr + o * RANK, dg_x * s_x, mask=inside)
    tl.store(dgrid_ptr + o * RANK + 1, dg_y * s_y, mask=inside)
    if RANK > 2:
        tl.store(dgrid_ptr + o * RANK + 2, dg_z * s_z, mask=inside)


sample = Launcher(_sample, sizes="n n_c")
sample_bwd = Launcher(_sample_bwd, sizes="n")


Mode = Annotated[int, one_of(spec.LINEAR, spec.NEAREST)]  # cubic is left to torch
Padding = Annotated[int, one_of(spec.ZEROS, spec.BORDER, spec.REFLECTION)]
# 16 bits are left to torch: it computes the gradients of 16-bit positions in 16 bits, so ours would differ.
Wide = AnyTensor[Tensor, "...", dtypes((torch.float32, torch.float64))]


def _check(rank: int, x: Tensor, grid: Tensor) -> tuple[Planes, dict[str, int]]:
    """The input's planes and the grid's strides; raises NotSupported for mismatched shapes."""
    check_floats(x, grid)
    fits = x.dim() == grid.dim() == rank + 2 and grid.shape[-1] == rank and grid.shape[0] == x.shape[0]
    if not fits or not x.numel() or not grid.numel():
        raise NotSupported(f"an input of shape {tuple(x.shape)}, a grid of shape {tuple(grid.shape)}")
    strides = (*[0] * (3 - rank), *grid.stride()[1:-1])
    return Planes.of(x, rank), {"g_sn": grid.stride(0), **per_axis("g_s", strides), "g_sk": grid.stride(-1)}


def _forward(rank: int) -> Callable[..., Plan]:
    def plan(input: Tensor, grid: Tensor, interpolation_mode: Mode, padding_mode: Padding, align_corners: bool) -> Plan:
        x, strides = _check(rank, input, grid)
        output = OutputSpec.of((*input.shape[:2], *grid.shape[1:-1]), input.dtype)
        if reach(grid.shape, grid.stride()) > LARGEST:
            raise NotSupported("a grid of more than 2^31 elements")
        launch = per_element(
            sample,
            rank,
            input.dtype,
            Planes.of(output, rank),
            {"x": x},
            per_axis("i_", x.space) | strides,
            {"x": "input"},
            NEAREST=interpolation_mode == spec.NEAREST,
            PADDING=padding_mode,
            ALIGN=align_corners,
            WIDE=wide_of(input.dtype),
        )
        return Plan({"y": output}, [launch])

    return plan


def _backward(rank: int) -> Callable[..., Plan]:
    def plan(
        grad_output: Tensor,
        input: Wide,
        grid: Tensor,
        interpolation_mode: Mode,
        padding_mode: Padding,
        align_corners: bool,
        output_mask: list[bool],
        deterministic: bool,
    ) -> Plan:
        if deterministic and output_mask[0]:
            raise NotSupported("atomics, while deterministic algorithms are enabled")
        x, strides = _check(rank, input, grid)
        check_floats(input, grad_output)
        if grad_output.shape != (*input.shape[:2], *grid.shape[1:-1]):
            raise NotSupported(f"grad_output has shape {tuple(grad_output.shape)}")
        dy, tiles = Planes.of(grad_output, rank), plane_tiles(last=False, dtype=input.dtype)
        dinput = OutputSpec.of(input.shape, input.dtype)
        count = grid.numel() // rank
        ends = (x.reach, dy.reach, reach(grid.shape, grid.stride()), input.numel())
        config = tiles.config(
            NEAREST=interpolation_mode == spec.NEAREST,
            PADDING=padding_mode,
            ALIGN=align_corners,
            RANK=rank,
            WIDE=wide_of(input.dtype),
            INDEX=index_dtype(*ends, grid.numel() + tiles["BLOCK"] * rank),
        )
        numbers = {
            **sizes_of(dy),
            "n": count,
            **per_axis("i_", x.space),
            **dy.numbers("dy"),
            **x.numbers("x"),
            **Planes.of(dinput, rank).numbers("dx"),
            **strides,
        }
        input_grad = output_mask[0]
        names = {"dy": "grad_output", "x": "input", "dx": "dinput" if input_grad else None}
        launch = Launch(sample_bwd, (-(-count // tiles["BLOCK"]),), config, numbers, names)
        makes: dict[str, OutputSpec | Zeros] = {"dgrid": OutputSpec.of(grid.shape, grid.dtype)}
        if not input_grad:
            return Plan(makes, [launch], returns=["None", "dgrid"])
        return Plan({"dinput": Zeros(dinput), **makes}, [launch])

    return plan


for _rank in (2, 3):
    planned(spec.ops[f"grid_sampler_{_rank}d"])(_forward(_rank))
    planned(
        spec.ops[f"grid_sampler_{_rank}d_backward"], state={"deterministic": torch.are_deterministic_algorithms_enabled}
    )(_backward(_rank))
