"""Products of groups of rows: a program finds its tile's group on the device, from the ends of all groups.

The host knows the number of rows and groups, but not the length of a group. A group of s rows has ceil(s / BLOCK_M)
tiles, so all groups have at most ceil(rows / BLOCK_M) + groups tiles. That many programs are launched; those without a
tile return at once. Persistent programs count the tiles on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.registry import impl
from ..specs import grouped as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, RowSizes, planned, strided
from .lib.launch import Launcher
from .lib.plans import checks
from .lib.products import (
    BLOCK_K,
    Kinds,
    aligned_copy,
    at,
    described,
    factor,
    multiply,
    precision,
    read_as,
    taken,
    tile,
)
from .lib.rows import DEVICES, OutputSpec, programs, wide_of

# ---- the kernels ----------------------------------------------------------------------------------------------------


@triton.jit
def groups_of(ends_ptr, n_rows, n_groups, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """For each group: its first row, its end, its number of tiles, and the running sum of these numbers."""
    o = tl.arange(0, GROUPS)
    b_begin = tl.maximum(tl.load(ends_ptr + o - 1, mask=(o > 0) & (o < n_groups), other=0), 0)
    b_end = tl.minimum(tl.load(ends_ptr + o, mask=o < n_groups, other=0), n_rows)
    b_tiles = tl.cdiv(tl.maximum(b_end - b_begin, 0), BLOCK_M)
    return b_begin, b_end, b_tiles, tl.cumsum(b_tiles, 0)


@triton.jit
def rows_of(i_tile, b_begin, b_end, b_tiles, b_last, n_groups, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """The group of a tile (n_groups if there is no such tile), its first row, and the end of the group."""
    o = tl.arange(0, GROUPS)
    group = tl.sum(((b_last <= i_tile) & (o < n_groups)).to(tl.int32), 0)
    mine = o == group
    first = tl.sum(tl.where(mine, b_begin + (i_tile - b_last + b_tiles) * BLOCK_M, 0), 0)
    return group, first, tl.sum(tl.where(mine, b_end, 0), 0)


@triton.jit
def put(
    y_ptr,
    b_y,
    a_scale_ptr,
    b_scale_ptr,
    group,
    first,
    end,
    first_n,
    n,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Multiply a tile by its scales, if there are any (one per row, and one per column of the group), and store it."""
    i_m, i_n = first + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    m_m, m_n = i_m < end, i_n < n
    if a_scale_ptr is not None:
        b_y *= tl.load(a_scale_ptr + i_m, mask=m_m, other=0.0).to(WIDE)[:, None]
        b_y *= tl.load(b_scale_ptr + group.to(tl.int64) * n + i_n, mask=m_n, other=0.0).to(WIDE)[None, :]
    o_y = i_m.to(tl.int64)[:, None] * n + i_n[None, :]
    tl.store(y_ptr + o_y, b_y.to(y_ptr.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


def _product(
    a_ptr, b_ptr, ends_ptr, a_scale_ptr, b_scale_ptr, y_ptr, m, n, k, n_rows, n_groups, a_stride, b_group, b_stride,
    B_TRANSPOSED: tl.constexpr, A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, EXACT: tl.constexpr, FULL: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    IN_TURN: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """IN_TURN: persistent programs, one per core, with tensor descriptors; matrices must be adjacent in memory."""
    b_begin, b_end, b_tiles, b_last = groups_of(ends_ptr, n_rows, n_groups, BLOCK_M, GROUPS)
    if IN_TURN:
        a = described(a_ptr, n_rows, k, a_stride, False, BLOCK_M, BLOCK_K)
        b = described(
            b_ptr,
            n if B_TRANSPOSED else n_groups * n,
            n_groups * k if B_TRANSPOSED else k,
            b_stride,
            B_TRANSPOSED,
            BLOCK_N,
            BLOCK_K,
        )
        down = tl.sum(b_tiles, 0)
        for program in tl.range(tl.program_id(0), down * tl.cdiv(n, BLOCK_N), PROGRAMS, flatten=True):
            i_tile, j_tile = tile(program, down * BLOCK_M, n, BLOCK_M, BLOCK_N, GROUP)
            group, first, end = rows_of(i_tile, b_begin, b_end, b_tiles, b_last, n_groups, BLOCK_M, GROUPS)
            first_n = j_tile * BLOCK_N
            row = first_n if B_TRANSPOSED else group * n + first_n
            skip = group * k if B_TRANSPOSED else 0
            b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
            for begin in range(0, k, BLOCK_K):
                b_a, b_b = taken(a, first, begin, False), taken(b, row, skip + begin, B_TRANSPOSED)
                b_y = multiply(b_a, b_b.T, b_y, WIDE, PRECISION, EXACT)
            put(y_ptr, b_y, a_scale_ptr, b_scale_ptr, group, first, end, first_n, n, WIDE, BLOCK_M, BLOCK_N)
    else:
        i_tile, j_tile = tile(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
        group, first, end = rows_of(i_tile, b_begin, b_end, b_tiles, b_last, n_groups, BLOCK_M, GROUPS)
        if group < n_groups:
            i_m = first + tl.arange(0, BLOCK_M)
            i_n = j_tile * BLOCK_N + tl.arange(0, BLOCK_N)
            o_k = tl.arange(0, BLOCK_K)
            m_m, m_n = (i_m < end)[:, None], (i_n < n)[None, :]
            pa = at(a_ptr, i_m[:, None], o_k[None, :], a_stride, False)
            pb = at(b_ptr + group.to(tl.int64) * b_group, i_n[None, :], o_k[:, None], b_stride, B_TRANSPOSED)
            step_b = BLOCK_K * b_stride if B_TRANSPOSED else BLOCK_K
            b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
            for begin in range(0, k, BLOCK_K):
                if FULL:
                    b_a, b_b = factor(pa, m_m, A_NUMBERS), factor(pb, m_n, B_NUMBERS)
                else:
                    m_k = begin + o_k < k
                    b_a = factor(pa, m_m & m_k[None, :], A_NUMBERS)
                    b_b = factor(pb, m_n & m_k[:, None], B_NUMBERS)
                b_y = multiply(b_a, b_b, b_y, WIDE, PRECISION, EXACT)
                pa += BLOCK_K
                pb += step_b
            put(y_ptr, b_y, a_scale_ptr, b_scale_ptr, group, first, end, j_tile * BLOCK_N, n, WIDE, BLOCK_M, BLOCK_N)


def _wgrad(
    a_ptr,
    b_ptr,
    ends_ptr,
    c_ptr,
    m,
    n,
    n_rows,
    a_stride,
    b_stride,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute a tile of the sum over a group's rows. One program computes the whole sum, so it is deterministic."""
    group = tl.program_id(1)
    i_tile, j_tile = tile(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = j_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m_m, m_n = (i_m < m)[:, None], (i_n < n)[None, :]
    first = tl.maximum(tl.load(ends_ptr + group - 1, mask=group > 0, other=0), 0)
    end = tl.minimum(tl.load(ends_ptr + group), n_rows)
    b_c = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for begin in range(first, end, BLOCK_K):
        o_k = begin + tl.arange(0, BLOCK_K)
        pa = at(a_ptr, i_m[:, None], o_k[None, :], a_stride, True)
        pb = at(b_ptr, i_n[None, :], o_k[:, None], b_stride, True)
        b_a = tl.load(pa, mask=m_m & (o_k < end)[None, :], other=0.0)
        b_b = tl.load(pb, mask=m_n & (o_k < end)[:, None], other=0.0)
        b_c = tl.dot(b_a, b_b, b_c, input_precision=PRECISION, out_dtype=WIDE)
    o_c = (group.to(tl.int64) * m + i_m.to(tl.int64)[:, None]) * n + i_n[None, :]
    tl.store(c_ptr + o_c, b_c.to(c_ptr.dtype.element_ty), mask=m_m & m_n)


product = Launcher(_product, sizes="n k a_stride b_group b_stride", descriptors=True)
wgrad = Launcher(_wgrad, sizes="m n a_stride b_stride")


# ---- tiles ----------------------------------------------------------------------------------------------------------


def _side(length: int, dtype: torch.dtype) -> int:
    return min(64 if dtype.itemsize > 4 else 128, max(16, triton.next_power_of_2(length)))


@tunable("grouped.product", free="BLOCK_M BLOCK_N BLOCK_K")
def product_tiles(rows: int, n: int, k: int, groups: int, dtype: torch.dtype) -> Tiles:
    """BLOCK_M is about the average number of rows of a group: in higher tiles, most rows would be masked.

    IN_TURN: persistent, one program per core loops over tiles.
    """
    block_m, block_n = _side(-(-rows // max(groups, 1)), dtype), _side(n, dtype)
    threads = 128 if block_m * block_n <= 64 * 128 else 256
    stages = 3 if dtype.itemsize == 2 else 2
    sizes = dict(BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=BLOCK_K[dtype.itemsize], GROUP=8)
    return Tiles(threads, stages, **sizes, IN_TURN=False)


@tunable("grouped.wgrad", free="BLOCK_M BLOCK_N BLOCK_K")
def wgrad_tiles(rows: int, m: int, n: int, groups: int, dtype: torch.dtype) -> Tiles:
    block_m, block_n = _side(m, dtype), _side(n, dtype)
    threads = 128 if block_m * block_n <= 64 * 128 else 256
    stages = 3 if dtype.itemsize == 2 else 2
    return Tiles(threads, stages, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=BLOCK_K[dtype.itemsize], GROUP=8)


# ---- the ops --------------------------------------------------------------------------------------------------------


class Matrices(NamedTuple):
    """How the kernel reads matrices [groups, n, k]: the strides of groups, and of rows (of columns if `transposed`)."""

    group: int
    step: int
    transposed: bool  # whether columns are contiguous instead of rows
    copied: bool = False

    @classmethod
    def of(cls, b: Tensor, transposed: bool) -> Matrices:
        """How to read b, or its transposes if `transposed`. b must be copied unless one dimension is contiguous."""
        _, rows, columns = b.shape
        group, down, right = b.stride()
        if right == 1 or columns == 1:
            return cls(group, down, transposed)
        if down == 1 or rows == 1:
            return cls(group, right, not transposed)
        return cls(rows * columns, columns, transposed, True)


def _products(
    a: Tensor,
    b: Tensor,
    ends: Tensor,
    trans_b: bool,
    precision: str,
    dtype: torch.dtype,
    *,
    kinds: Kinds | None = None,
    exact: bool = False,
) -> Plan:
    """The plan of grouped products with results of `dtype`.

    `kinds`: the FP8 dtypes of inputs that are passed as bytes.
    """
    sizes, groups = RowSizes.of(a=a), b.shape[0]
    rows, k, n = sizes.count, sizes.n, b.shape[1 if trans_b else 2]
    makes = {"y": OutputSpec.of((rows, n), dtype)}
    if not (rows and n and groups):
        return Plan(makes)
    matrices = Matrices.of(b, not trans_b)
    tiles = product_tiles(rows=rows, n=n, k=k, groups=groups, dtype=a.dtype)
    views, read = read_as(kinds)
    spaced = (sizes.strides["a"] | matrices.step) * a.element_size() % 16 == 0
    follow = matrices.group == matrices.step * (k if matrices.transposed else n)
    # With contiguous columns, a last block of K that is not full would read into the next matrix.
    whole = not matrices.transposed or k % tiles["BLOCK_K"] == 0
    in_turn = tiles["IN_TURN"] and spaced and follow and whole and read["A_NUMBERS"] is None and k > 0
    block_n = min(tiles["BLOCK_N"], 128) if exact else tiles["BLOCK_N"]  # registers hold product and sum
    tiles = tiles.changed({"IN_TURN": in_turn, "BLOCK_N": block_n}, "grouped.product")
    most = -(-rows // tiles["BLOCK_M"]) + groups
    count = most * -(-n // tiles["BLOCK_N"])
    running = programs(a.device, count, 1) if in_turn else count
    config = tiles.config(
        B_TRANSPOSED=matrices.transposed,
        WIDE=wide_of(a.dtype),
        FULL=k % tiles["BLOCK_K"] == 0,
        PRECISION=precision if a.dtype is torch.float32 else "ieee",
        GROUPS=triton.next_power_of_2(groups),
        EXACT=exact and bool(views),
        PROGRAMS=running if in_turn else 0,
        **read,
    )
    numbers = dict(
        m=most * tiles["BLOCK_M"],
        n=n,
        k=k,
        n_rows=rows,
        n_groups=groups,
        a_stride=sizes.strides["a"],
        b_group=matrices.group,
        b_stride=matrices.step,
    )
    launch = Launch(product, (running,), config, numbers)
    copied = [*sizes.strided, *(["b"] if matrices.copied else []), *strided(ends=ends)]
    before = dict(views)
    if in_turn:
        before |= {name: aligned_copy(views.get(name)) for name in "ab" if name not in copied}
    return Plan(makes, [launch], copied, before)


@planned(spec.grouped_mm, state={"precision": precision})
def grouped_mm(a: Tensor, b: Tensor, ends: Tensor, trans_b: bool, precision: str) -> Plan:
    return _products(a, b, ends, trans_b, precision, a.dtype)


@planned(spec.scaled_grouped_mm)
def scaled_grouped_mm(
    a: Tensor,
    b: Tensor,
    ends: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    out_dtype: torch.dtype,
    fast: bool,
) -> Plan:
    plan = _products(a, b, ends, True, "ieee", out_dtype, kinds=(a_dtype, b_dtype), exact=not fast)
    plan.strided = [*plan.strided, *strided(a_scale=a_scale, b_scale=b_scale)]
    return plan


@planned(spec.grouped_mm_wgrad, state={"precision": precision})
def grouped_mm_wgrad(a: Tensor, b: Tensor, ends: Tensor, precision: str) -> Plan:
    (rows, m), n, groups = a.shape, b.shape[1], ends.shape[0]
    makes = {"c": OutputSpec.of((groups, m, n), a.dtype)}
    if not (groups and m and n):
        return Plan(makes)
    if groups >= 2**16:
        raise NotSupported(f"{groups} groups are more than a launch can have")
    of_a, of_b = RowSizes.of(a=a), RowSizes.of(b=b)
    tiles = wgrad_tiles(rows=rows, m=m, n=n, groups=groups, dtype=a.dtype)
    config = tiles.config(WIDE=wide_of(a.dtype), PRECISION=precision if a.dtype is torch.float32 else "ieee")
    numbers = dict(m=m, n=n, n_rows=rows, a_stride=of_a.strides["a"], b_stride=of_b.strides["b"])
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]), groups)
    launch = Launch(wgrad, grid, config, numbers)
    return Plan(makes, [launch], [*of_a.strided, *of_b.strided, *strided(ends=ends)])


check_bwd = checks(spec.grouped_mm_bwd)


@impl(spec.grouped_mm_bwd, devices=DEVICES)
def grouped_mm_bwd(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool) -> tuple[Tensor, Tensor]:
    check_bwd(dy, a, b, ends, trans_b)
    return spec.backward_of(grouped_mm, grouped_mm_wgrad, dy, a, b, ends, trans_b)
