"""Scans along any dimension: each kind of scan is a few device functions, which kernels take as constexprs.

A tensor is [outer, n, inner], scanned along n. A lane is one of the outer * inner scans; a tile has some positions of
some lanes. If inner is 1, the positions of a tile are adjacent in memory, otherwise its lanes are. So loads are wide in
both cases, and nothing is transposed. There are three schedules:

- whole: a tile holds all n positions of its lanes;
- walk: a program loops over the tiles of its lanes, passes a carry on, and loads the next tile while it computes one;
- split: if there are too few lanes to fill the chip, lanes are split into spans. A first kernel computes the total of
  each span. A second one loops over a span, and starts from the totals of earlier spans, added in a fixed order.

With REVERSE the same kernel scans from the end. State, carry and totals are float32 (float64 for float64, int64 for
sums of integers); results are rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..specs import scan as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, planned
from .lib.launch import Launcher
from .lib.rows import TRITON_DTYPES, OutputSpec, Rows, cores, even_rows

# ---- kinds of scans -------------------------------------------------------------------------------------------------
# The state of a scan is two numbers, a and b. Kinds without a second number return b unchanged. Functions of a kind:
#   lift(u, v, i) -> a, b: the state of one element, from its inputs and its position; u is already wide
#   scan(a, b) over a tile, and combine(a, b of the earlier part, a, b of the later part)
#   lower(a, b, v, w, i) -> the results, from the state and the inputs


@triton.jit
def lift_one(u, v, i):
    return u, u


@triton.jit
def lift_index(u, v, i):
    return u, tl.broadcast_to(i, u.shape)


@triton.jit
def lift_key(u, v, i):
    return u, v.to(i.dtype)


@triton.jit
def lift_exp(u, v, i):
    return u, tl.full(u.shape, 1.0, u.dtype)


@triton.jit
def lift_exp_grad(u, v, i):
    return -u, v.to(u.dtype)


@triton.jit
def lift_factor(u, v, i):
    return tl.where(u == 0, 1.0, u), (u == 0).to(tl.int32)


@triton.jit
def lift_term(u, v, i):
    return tl.where(v == 0, u, 0.0), tl.where(v == 1, u, 0.0)


@triton.jit
def add(a1, b1, a2, b2):
    return a1 + a2, b2


@triton.jit
def multiply(a1, b1, a2, b2):
    return a1 * a2, b2


@triton.jit
def add_both(a1, b1, a2, b2):
    return a1 + a2, b1 + b2


@triton.jit
def multiply_and_count(a1, b1, a2, b2):
    return a1 * a2, b1 + b2


@triton.jit
def larger(a1, b1, a2, b2):
    """NaN is greater than any number; among equal elements, the later one is chosen.

    So the order of combining is irrelevant.
    """
    later = b2 > b1
    second = (a2 > a1) | ((a2 == a1) & later) | ((a2 != a2) & ((a1 == a1) | later))
    return tl.where(second, a2, a1), tl.where(second, b2, b1)


@triton.jit
def smaller(a1, b1, a2, b2):
    later = b2 > b1
    second = (a2 < a1) | ((a2 == a1) & later) | ((a2 != a2) & ((a1 == a1) | later))
    return tl.where(second, a2, a1), tl.where(second, b2, b1)


@triton.jit
def add_exps(a1, b1, a2, b2):
    """b1 * exp(a1) + b2 * exp(a2) as b * exp(a), where a is the larger one of a1 and a2; a NaN propagates to a."""
    a = tl.maximum(a1, a2, propagate_nan=tl.PropagateNan.ALL)
    rate = tl.exp(tl.minimum(-tl.abs(a1 - a2), 0.0))  # for two equal infinities this is minimum(NaN, 0), which is 0
    return a, tl.where(a2 > a1, b1 * rate + b2, b1 + b2 * rate)


@triton.jit
def add_keyed(a1, b1, a2, b2):
    """The last key, and the sum of the elements with that key. A negative key means no element."""
    same = (b1 == b2) | (b2 < 0)
    return a2 + tl.where(same, a1, 0.0), tl.where(b2 < 0, b1, b2)


@triton.jit
def scan_sum(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.cumsum(a, AXIS, REVERSE), b


@triton.jit
def scan_product(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.cumprod(a, AXIS, REVERSE), b


@triton.jit
def scan_sums(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.cumsum(a, AXIS, REVERSE), tl.cumsum(b, AXIS, REVERSE)


@triton.jit
def scan_product_and_count(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.cumprod(a, AXIS, REVERSE), tl.cumsum(b, AXIS, REVERSE)


@triton.jit
def scan_larger(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.associative_scan((a, b), AXIS, larger, REVERSE)


@triton.jit
def scan_smaller(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.associative_scan((a, b), AXIS, smaller, REVERSE)


@triton.jit
def scan_exps(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.associative_scan((a, b), AXIS, add_exps, REVERSE)


@triton.jit
def scan_keyed(a, b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    return tl.associative_scan((a, b), AXIS, add_keyed, REVERSE)


@triton.jit
def lower_state(a, b, v, w, i):
    return a, b


@triton.jit
def lower_log(a, b, v, w, i):
    return a + tl.log(b), b


@triton.jit
def lower_exp_grad(a, b, v, w, i):
    return b * tl.exp(a + w.to(a.dtype)), b


@triton.jit
def lower_key(a, b, v, w, i):
    """All indices of a run are the position where the run begins, so the run's sum is the result at that position."""
    return tl.where(v == i, a, 0.0), b


@triton.jit
def lower_term(a, b, v, w, i):
    return tl.where(b < 2, a * v.to(a.dtype), 0.0), tl.minimum(b, 2)


@triton.jit
def lower_quotient(a, b, v, w, i):
    x = w.to(a.dtype)
    return tl.where(x == 0, b, a / x), b


# ---- the kernels ----------------------------------------------------------------------------------------------------
# Inputs u, v, w; results y, z; totals of spans a, b.


@triton.jit
def _lanes(n_lanes, step, LAST: tl.constexpr, BLOCK_L: tl.constexpr):
    """This program's lanes: their outer index, the offset within it, the number of the lane, and a mask."""
    pid = tl.program_id(0)
    if LAST:
        i_o = pid.to(tl.int64) * BLOCK_L + tl.arange(0, BLOCK_L)[:, None]
        o_l = tl.zeros([1, 1], tl.int64)
        i_l = i_o
        m_l = i_o < n_lanes
    else:
        blocks = (step - 1) // BLOCK_L + 1
        i_o = (pid // blocks).to(tl.int64)
        o_l = (pid % blocks).to(tl.int64) * BLOCK_L + tl.arange(0, BLOCK_L)[None, :]
        i_l = i_o * step + o_l
        m_l = o_l < step
    return i_o, o_l, i_l, m_l


@triton.jit
def _positions(LAST: tl.constexpr, COUNT: tl.constexpr):
    return tl.arange(0, COUNT)[None, :] if LAST else tl.arange(0, COUNT)[:, None]


@triton.jit
def _offset(i, step, LAST: tl.constexpr):
    """The offset from position 0 to position i."""
    return i if LAST else i.to(tl.int64) * step


@triton.jit
def _load(ptr, instead, o, m, FILL: tl.constexpr):
    """Load an input; returns `instead` if the input is absent."""
    if ptr is None:
        b = instead
    else:
        b = tl.load(ptr + o, mask=m, other=FILL)
    return b


@triton.jit
def _store(ptr, o, b, m):
    if ptr is not None:
        tl.store(ptr + o, b.to(ptr.dtype.element_ty), mask=m)


@triton.jit
def _end(b, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    """The last state of each lane of a scanned tile.

    It is computed as a masked sum, because a tile cannot be indexed.
    """
    o_n = _positions(AXIS == 1, b.shape[AXIS])
    return tl.sum(tl.where(o_n == (0 if REVERSE else b.shape[AXIS] - 1), b, 0), AXIS, keep_dims=True)


def _whole(
    u_ptr, v_ptr, w_ptr, y_ptr, z_ptr, u_stride, v_stride, w_stride, n, step, n_lanes,
    LIFT: tl.constexpr, SCAN: tl.constexpr, LOWER: tl.constexpr, REVERSE: tl.constexpr, FILL: tl.constexpr,
    CAST: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr, LAST: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Scan all positions of some lanes."""
    AXIS: tl.constexpr = 1 if LAST else 0
    i_o, o_l, _, m_l = _lanes(n_lanes, step, LAST, BLOCK_L)
    o_n = _positions(LAST, BLOCK_N)
    o = o_l + _offset(o_n, step, LAST)
    m = m_l & (o_n < n)
    b_u = tl.load(u_ptr + i_o * u_stride + o, mask=m, other=FILL)
    b_v = _load(v_ptr, b_u, i_o * v_stride + o, m, 0)
    b_w = _load(w_ptr, b_u, i_o * w_stride + o, m, 0)
    i_n = o_n.to(INDEX)
    b_a, b_b = LIFT(b_u.to(CAST).to(WIDE), b_v, i_n)
    b_a, b_b = SCAN(b_a, b_b, AXIS, REVERSE)
    b_y, b_z = LOWER(b_a, b_b, b_v, b_w, i_n)
    o += i_o * n if LAST else i_o * n * step
    _store(y_ptr, o, b_y, m)
    _store(z_ptr, o, b_z, m)


def _walk(
    u_ptr, v_ptr, w_ptr, y_ptr, z_ptr, a_ptr, b_ptr, u_stride, v_stride, w_stride, n, step, span, n_lanes,
    LIFT: tl.constexpr, SCAN: tl.constexpr, COMBINE: tl.constexpr, LOWER: tl.constexpr, REVERSE: tl.constexpr,
    PAIR: tl.constexpr, FILL: tl.constexpr, UNIT_A: tl.constexpr, UNIT_B: tl.constexpr, CAST: tl.constexpr,
    WIDE: tl.constexpr, SECOND: tl.constexpr, INDEX: tl.constexpr, LAST: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Scan one span of some lanes, tile by tile, starting from the totals of the spans before it."""
    AXIS: tl.constexpr = 1 if LAST else 0
    i_o, o_l, i_l, m_l = _lanes(n_lanes, step, LAST, BLOCK_L)
    o_n = _positions(LAST, BLOCK_N)
    if SPLITS > 1:
        part = tl.program_id(1)
        o_k = _positions(LAST, SPLITS)
        m_k = m_l & ((o_k > part) if REVERSE else (o_k < part)) & (o_k < tl.num_programs(1))
        o_k = o_k.to(tl.int64) * n_lanes + i_l
        t_a = tl.load(a_ptr + o_k, mask=m_k, other=UNIT_A)
        t_b = _load(b_ptr, t_a, o_k, m_k, UNIT_B)
        t_a, t_b = SCAN(t_a, t_b, AXIS, REVERSE)
        c_a = _end(t_a, AXIS, REVERSE)
        c_b = _end(t_b, AXIS, REVERSE) if PAIR else c_a
        start = part.to(tl.int64) * span
        length = tl.minimum(n - start, span).to(tl.int32)
    else:
        SHAPE: tl.constexpr = [BLOCK_L, 1] if LAST else [1, BLOCK_L]
        c_a = tl.full(SHAPE, UNIT_A, WIDE)
        c_b = tl.full(SHAPE, UNIT_B, SECOND) if PAIR else c_a
        start = tl.zeros([], tl.int64)
        length = n
    o = o_l + _offset(o_n, step, LAST) + _offset(start, step, LAST)
    u_ptr += i_o * u_stride + o
    y_ptr += (i_o * n if LAST else i_o * n * step) + o
    if v_ptr is not None:
        v_ptr += i_o * v_stride + o
    if w_ptr is not None:
        w_ptr += i_o * w_stride + o
    if z_ptr is not None:
        z_ptr += (i_o * n if LAST else i_o * n * step) + o
    chunks = tl.cdiv(length, BLOCK_N)
    at = (chunks - 1) * (BLOCK_N if REVERSE else 0)
    o_at = _offset(at, step, LAST)
    m_next = m_l & (at + o_n < length)
    u_next = tl.load(u_ptr + o_at, mask=m_next, other=FILL)
    v_next = _load(v_ptr, u_next, o_at, m_next, 0)
    w_next = _load(w_ptr, u_next, o_at, m_next, 0)
    for k in range(chunks):
        at = ((chunks - 1 - k) if REVERSE else k) * BLOCK_N
        b_u, b_v, b_w = u_next, v_next, w_next
        ahead = at - BLOCK_N if REVERSE else at + BLOCK_N
        o_at = _offset(ahead, step, LAST)
        m_next = m_l & ((ahead + o_n >= 0) if REVERSE else (ahead + o_n < length))
        u_next = tl.load(u_ptr + o_at, mask=m_next, other=FILL)
        v_next = _load(v_ptr, u_next, o_at, m_next, 0)
        w_next = _load(w_ptr, u_next, o_at, m_next, 0)
        i_n = (start + at + o_n).to(INDEX)
        b_a, b_b = LIFT(b_u.to(CAST).to(WIDE), b_v, i_n)
        b_a, b_b = SCAN(b_a, b_b, AXIS, REVERSE)
        e_a = _end(b_a, AXIS, REVERSE)
        e_b = _end(b_b, AXIS, REVERSE) if PAIR else c_b
        b_a, b_b = COMBINE(c_a, c_b, b_a, b_b)
        c_a, c_b = COMBINE(c_a, c_b, e_a, e_b)
        b_y, b_z = LOWER(b_a, b_b, b_v, b_w, i_n)
        m = m_l & (at + o_n < length)
        o_at = _offset(at, step, LAST)
        _store(y_ptr, o_at, b_y, m)
        _store(z_ptr, o_at, b_z, m)


def _totals(
    u_ptr, v_ptr, a_ptr, b_ptr, u_stride, v_stride, n, step, span, n_lanes,
    LIFT: tl.constexpr, SCAN: tl.constexpr, COMBINE: tl.constexpr, REVERSE: tl.constexpr, PAIR: tl.constexpr,
    ORDERED: tl.constexpr, FILL: tl.constexpr, UNIT_A: tl.constexpr, UNIT_B: tl.constexpr, CAST: tl.constexpr,
    WIDE: tl.constexpr, SECOND: tl.constexpr, INDEX: tl.constexpr, LAST: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The total of a span of some lanes.

    Tiles are combined position by position; at the end the positions are combined. If the order matters (ORDERED), each
    tile is first reduced to one state per lane.
    """
    AXIS: tl.constexpr = 1 if LAST else 0
    i_o, o_l, i_l, m_l = _lanes(n_lanes, step, LAST, BLOCK_L)
    o_n = _positions(LAST, BLOCK_N)
    part = tl.program_id(1)
    start = part.to(tl.int64) * span
    length = tl.minimum(n - start, span).to(tl.int32)
    o = o_l + _offset(o_n, step, LAST) + _offset(start, step, LAST)
    u_ptr += i_o * u_stride + o
    if v_ptr is not None:
        v_ptr += i_o * v_stride + o
    PLACES: tl.constexpr = 1 if ORDERED else BLOCK_N
    SHAPE: tl.constexpr = [BLOCK_L, PLACES] if LAST else [PLACES, BLOCK_L]
    c_a = tl.full(SHAPE, UNIT_A, WIDE)
    c_b = tl.full(SHAPE, UNIT_B, SECOND) if PAIR else c_a
    chunks = tl.cdiv(length, BLOCK_N)
    for k in range(chunks):
        at = ((chunks - 1 - k) if REVERSE else k) * BLOCK_N
        o_at = _offset(at, step, LAST)
        m = m_l & (at + o_n < length)
        b_u = tl.load(u_ptr + o_at, mask=m, other=FILL)
        b_v = _load(v_ptr, b_u, o_at, m, 0)
        b_a, b_b = LIFT(b_u.to(CAST).to(WIDE), b_v, (start + at + o_n).to(INDEX))
        if ORDERED:
            b_a, b_b = SCAN(b_a, b_b, AXIS, REVERSE)
            b_a = _end(b_a, AXIS, REVERSE)
            b_b = _end(b_b, AXIS, REVERSE)
        if PAIR:
            c_a, c_b = COMBINE(c_a, c_b, b_a, b_b)
        else:
            c_a, _ = COMBINE(c_a, c_a, b_a, b_a)
    if not ORDERED:
        c_a, c_b = SCAN(c_a, c_b, AXIS, REVERSE)
        c_a = _end(c_a, AXIS, REVERSE)
        if PAIR:
            c_b = _end(c_b, AXIS, REVERSE)
    o = part.to(tl.int64) * n_lanes + i_l
    _store(a_ptr, o, c_a, m_l)
    _store(b_ptr, o, c_b, m_l)


whole = Launcher(_whole, sizes="u_stride v_stride w_stride n step")
walk = Launcher(_walk, sizes="u_stride v_stride w_stride n step span")
totals = Launcher(_totals, sizes="u_stride v_stride n step span")


# ---- tiles ----------------------------------------------------------------------------------------------------------

# The most positions of a lane in a tile: LONGEST along rows, by the itemsize of the state; DEEPEST along columns.
LONGEST = {4: 8192, 8: 4096}
DEEPEST = 64


@tunable("scan.whole", free="BLOCK_L")
def whole_tiles(n: int, inner: int, dtype: torch.dtype, pair: bool) -> Tiles:
    """A tile has all positions of some lanes, and a thread has 32 elements, or 16 pairs."""
    places = max(triton.next_power_of_2(n), 16)
    lanes = max(1, 2048 // places)
    if inner > 1:
        lanes = max(16, min(lanes, triton.next_power_of_2(inner)))
    threads = max(32, min(1024, lanes * places // (16 if pair else 32)))
    return Tiles(threads, BLOCK_L=lanes, BLOCK_N=places)


@tunable("scan.walk", free="BLOCK_L BLOCK_N SPLITS")
def walk_tiles(n: int, outer: int, inner: int, dtype: torch.dtype, pair: bool, chip: int) -> Tiles:
    """Tiles of `walk` are larger if there are few of them. Lanes are split into spans if they do not fill `chip` cores.

    Along columns (inner > 1), a tile is 128 bytes wide, or down to 32 bytes if there are few columns. One warp is
    preferred, because a scan across warps along columns takes four loads from shared memory per element.
    """
    lanes = 1
    if inner > 1:
        lanes = max(16, min(128 // dtype.itemsize, triton.next_power_of_2(inner)))
        while lanes > max(16, 32 // dtype.itemsize) and outer * -(-inner // lanes) < 8 * chip:
            lanes //= 2
    tiles = outer * -(-inner // lanes)
    spans = _spans(tiles, n // (4096 if inner == 1 else 128), n, 1024 if inner == 1 else 2048 // lanes, chip)
    threads, enough, busy = (128, 512, 1024) if inner == 1 else (32 if spans == 1 else 128, 128, 256)
    while threads < enough and tiles * spans * threads < busy * chip:
        threads *= 2
    each = 16 if pair or dtype.itemsize > 2 or threads > 128 else 32
    return Tiles(threads, BLOCK_L=lanes, BLOCK_N=threads * each // lanes, SPLITS=spans)


@tunable("scan.totals", free="BLOCK_L BLOCK_N")
def totals_tiles(inner: int, dtype: torch.dtype, pair: bool) -> Tiles:
    """`totals` reads its inputs, but writes only one state per span."""
    lanes = 1 if inner == 1 else max(16, min(128 // dtype.itemsize, triton.next_power_of_2(inner)))
    return Tiles(128, BLOCK_L=lanes, BLOCK_N=2048 // lanes)


def _spans(tiles: int, worth: int, n: int, most: int, chip: int) -> int:
    """The number of spans per lane, at most `worth`. With more than one, everything is read twice.

    Positions within a span must fit in 32 bits.
    """
    if n < 1 << 30 and (tiles * 3 >= chip * 2 or worth < 2):
        return 1
    return min(triton.next_power_of_2(max(2, 8 * chip // tiles, n >> 29)), triton.next_power_of_2(worth), most)


# ---- plans ----------------------------------------------------------------------------------------------------------


class ScanKind(NamedTuple):
    """A kind of scan, as the kernels' arguments."""

    lift: Any
    scan: Any
    combine: Any
    lower: Any
    fill: float = 0.0  # the value of u beyond the end
    unit: tuple[float, int] = (0.0, 0)  # the neutral element (a, b)
    second: str = ""  # dtype of b: "" (unused), "wide", "index", "count"
    reverse: bool = False
    ordered: bool = False  # whether `combine` depends on the order


INF = float("inf")
KINDS = {
    "cumsum": ScanKind(lift_one, scan_sum, add, lower_state),
    "cumprod": ScanKind(lift_one, scan_product, multiply, lower_state, fill=1.0, unit=(1.0, 0)),
    "cummax": ScanKind(lift_index, scan_larger, larger, lower_state, fill=-INF, unit=(-INF, -1), second="index"),
    "cummin": ScanKind(lift_index, scan_smaller, smaller, lower_state, fill=INF, unit=(INF, -1), second="index"),
    "logcumsumexp": ScanKind(lift_exp, scan_exps, add_exps, lower_log, fill=-INF, unit=(-INF, 0), second="wide"),
    "cumsum_bwd": ScanKind(lift_one, scan_sum, add, lower_state, reverse=True),
    # cumprod_terms: u = x, v = dy; results are the terms of two sums, and the number of the sum to which each term
    # belongs. cumprod_bwd: u and v are those results, w = x
    "cumprod_terms": ScanKind(
        lift_factor, scan_product_and_count, multiply_and_count, lower_term, fill=1.0, unit=(1.0, 0), second="count"
    ),
    "cumprod_bwd": ScanKind(lift_term, scan_sums, add_both, lower_quotient, second="wide", reverse=True),
    # u = dvalues, v = indices
    "keyed_bwd": ScanKind(
        lift_key, scan_keyed, add_keyed, lower_key, unit=(0.0, -1), second="index", reverse=True, ordered=True
    ),
    # u = y, v = dy, w = x
    "logcumsumexp_bwd": ScanKind(
        lift_exp_grad, scan_exps, add_exps, lower_exp_grad, fill=INF, unit=(-INF, 0), second="wide", reverse=True
    ),
}


class ScanShape(NamedTuple):
    outer: int
    n: int
    inner: int

    @classmethod
    def of(cls, x: Tensor, dim: int) -> ScanShape:
        if x.dim() == 0:
            return cls(1, 1, 1)
        dim %= x.dim()
        return cls(x.shape[:dim].numel(), x.shape[dim], x.shape[dim + 1 :].numel())


def _fits(x: Tensor, shape: ScanShape, dim: int) -> bool:
    """Whether the kernels can read a tensor without a copy: contiguous, or evenly spaced rows along the last dim."""
    return x.is_contiguous() or (shape.inner == 1 and dim % x.dim() == x.dim() - 1 and even_rows(x))


def _stride(x: Tensor, shape: ScanShape) -> int:
    return shape.n * shape.inner if x.is_contiguous() else Rows.of(x).stride


def _strides(shape: ScanShape, dim: int, **inputs: Tensor) -> tuple[list[int], list[str]]:
    """The outer strides of u, v and w, and the inputs to copy first: all of them, if one needs a copy."""
    copied = list(inputs) if not all(_fits(t, shape, dim) for t in inputs.values()) else []
    packed = shape.n * shape.inner
    strides = [packed if copied else _stride(t, shape) for t in inputs.values()]
    return [*strides, 0, 0][:3], copied


def _scan(
    name: str,
    shape: ScanShape,
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    names: Mapping[str, str],
    *,
    wide: torch.dtype,
    cast: torch.dtype | None = None,
) -> tuple[dict[str, OutputSpec], list[Launch]]:
    """Workspaces and launches of a scan of u, which has dtype `dtype`; computed in `wide`, after a cast to `cast`.

    `names`: what the op calls u, v, w (inputs) and y, z (results). Tensors that are not in `names` are absent.
    """
    kind, pair = KINDS[name], bool(KINDS[name].second)
    outer, n, inner = shape
    index = torch.int32 if n < 1 << 31 else torch.int64
    second = {"": wide, "wide": wide, "index": index, "count": torch.int32}[kind.second]
    bound = lambda value, of: value if abs(value) < INF else _bound(of, value > 0)
    constants = dict(
        LIFT=kind.lift,
        SCAN=kind.scan,
        REVERSE=kind.reverse,
        FILL=bound(kind.fill, dtype),
        CAST=TRITON_DTYPES[cast or wide],
        WIDE=TRITON_DTYPES[wide],
        INDEX=TRITON_DTYPES[index],
        LAST=inner == 1,
    )
    carried = constants | dict(
        COMBINE=kind.combine,
        PAIR=pair,
        UNIT_A=bound(kind.unit[0], wide),
        UNIT_B=kind.unit[1],
        SECOND=TRITON_DTYPES[second],
    )
    step = 0 if inner == 1 else inner
    lanes = outer * inner
    even = all(s % 16 == 0 for s in (*strides, step, n if inner == 1 else 0))
    numbers = dict(zip(("u_stride", "v_stride", "w_stride"), strides)) | dict(n=n, step=step, n_lanes=lanes)
    tensors: dict[str, str | None] = {**dict.fromkeys("uvwyzab"), **names}
    if n <= (LONGEST[wide.itemsize] if inner == 1 else DEEPEST) // (2 if pair else 1):
        tiles = whole_tiles(n=n, inner=inner, dtype=dtype, pair=pair)
        config = tiles.config(even=even, LOWER=kind.lower, **constants)
        return {}, [Launch(whole, _grid(shape, tiles, 1), config, numbers, tensors)]
    tiles = walk_tiles(n=n, outer=outer, inner=inner, dtype=dtype, pair=pair, chip=cores(device))
    numbers["span"] = span = -(-n // tiles["SPLITS"] // tiles["BLOCK_N"]) * tiles["BLOCK_N"]
    count = -(-n // span)
    config = tiles.config(even=even, LOWER=kind.lower, **carried)
    launch = Launch(walk, _grid(shape, tiles, count), config, numbers, tensors)
    if tiles["SPLITS"] == 1:
        return {}, [launch]
    tiles = totals_tiles(inner=inner, dtype=dtype, pair=pair)
    config = tiles.config(even=even, ORDERED=kind.ordered, **carried)
    first = Launch(totals, _grid(shape, tiles, count), config, numbers, tensors)
    held = {f"{name}_a": OutputSpec.of((count, lanes), wide)}
    if pair:
        held[f"{name}_b"] = OutputSpec.of((count, lanes), second)
    states = dict(zip("ab", held))
    return held, [first.named(**states), launch.named(**states)]


def _scanned(
    name: str,
    dim: int,
    makes: Mapping[str, OutputSpec],
    wide: torch.dtype,
    cast: torch.dtype | None = None,
    **inputs: Tensor,
) -> Plan:
    """The plan of one scan of the inputs u, v and w, in this order, with the results y and z."""
    u = next(iter(inputs.values()))
    if not u.numel():
        return Plan(makes)
    shape = ScanShape.of(u, dim)
    strides, copied = _strides(shape, dim, **inputs)
    names = {**dict(zip("uvw", inputs)), **dict(zip("yz", makes))}
    held, steps = _scan(name, shape, strides, u.dtype, u.device, names, wide=wide, cast=cast)
    return Plan({**makes, **held}, steps, copied)


def _grid(shape: ScanShape, tiles: Tiles, spans: int) -> tuple[int, int, int]:
    block = tiles["BLOCK_L"]
    return (-(-shape.outer // block) if shape.inner == 1 else shape.outer * -(-shape.inner // block), spans, 1)


def _bound(dtype: torch.dtype, largest: bool) -> float:
    """The largest or smallest number of a dtype."""
    if dtype.is_floating_point:
        return INF if largest else -INF
    if dtype is torch.bool:
        return int(largest)
    return torch.iinfo(dtype).max if largest else torch.iinfo(dtype).min


# ---- ops ------------------------------------------------------------------------------------------------------------


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums and products are accumulated."""
    return torch.float64 if dtype is torch.float64 else torch.float32 if dtype.is_floating_point else torch.int64


def _ordered(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which numbers are compared."""
    return _wide(dtype) if dtype.is_floating_point or dtype.itemsize == 8 else torch.int32


def _like(x: Tensor, dtype: torch.dtype | None = None) -> OutputSpec:
    return OutputSpec.of(x.shape, x.dtype if dtype is None else dtype)


@planned(spec.cumsum)
def cumsum(x: Tensor, dim: int, dtype: torch.dtype | None) -> Plan:
    to = spec.result_dtype(x.dtype, dtype)
    return _scanned("cumsum", dim, {"y": _like(x, to)}, _wide(to), dtype, x=x)


@planned(spec.cumsum_bwd)
def cumsum_bwd(dy: Tensor, dim: int, dtype: torch.dtype | None) -> Plan:
    wide = _wide(dy.dtype)
    return _scanned("cumsum_bwd", dim, {"dx": _like(dy, None if dtype is None else wide)}, wide, dy=dy)


@planned(spec.cumprod)
def cumprod(x: Tensor, dim: int, dtype: torch.dtype | None) -> Plan:
    to = spec.result_dtype(x.dtype, dtype)
    return _scanned("cumprod", dim, {"y": _like(x, to)}, _wide(to), dtype, x=x)


@planned(spec.cumprod_bwd)
def cumprod_bwd(dy: Tensor, x: Tensor, dim: int) -> Plan:
    """Two scans: the first computes terms, and to which of two sums each term belongs; the second computes the sums."""
    makes = {"dx": _like(x)}
    if not x.numel():
        return Plan(makes)
    shape, wide = ScanShape.of(x, dim), _wide(x.dtype)
    strides, copied = _strides(shape, dim, x=x, dy=dy)
    names = dict(u="x", v="dy", y="terms", z="which")
    held, first = _scan("cumprod_terms", shape, strides, x.dtype, x.device, names, wide=wide)
    packed, names = shape.n * shape.inner, dict(u="terms", v="which", w="x", y="dx")
    more, then = _scan("cumprod_bwd", shape, (packed, packed, strides[0]), wide, x.device, names, wide=wide)
    makes |= {"terms": _like(x, wide), "which": _like(x, torch.int8)}
    return Plan({**makes, **held, **more}, [*first, *then], copied)


@planned(spec.cummax)
def cummax(x: Tensor, dim: int) -> Plan:
    return _scanned("cummax", dim, {"values": _like(x), "indices": _like(x, torch.int64)}, _ordered(x.dtype), x=x)


@planned(spec.cummax_bwd)
def cummax_bwd(dvalues: Tensor, indices: Tensor, dim: int) -> Plan:
    makes = {"dx": _like(dvalues)}
    return _scanned("keyed_bwd", dim, makes, _wide(dvalues.dtype), dvalues=dvalues, indices=indices)


@planned(spec.cummin)
def cummin(x: Tensor, dim: int) -> Plan:
    return _scanned("cummin", dim, {"values": _like(x), "indices": _like(x, torch.int64)}, _ordered(x.dtype), x=x)


@planned(spec.cummin_bwd)
def cummin_bwd(dvalues: Tensor, indices: Tensor, dim: int) -> Plan:
    makes = {"dx": _like(dvalues)}
    return _scanned("keyed_bwd", dim, makes, _wide(dvalues.dtype), dvalues=dvalues, indices=indices)


@planned(spec.logcumsumexp)
def logcumsumexp(x: Tensor, dim: int) -> Plan:
    return _scanned("logcumsumexp", dim, {"y": _like(x)}, _wide(x.dtype), x=x)


@planned(spec.logcumsumexp_bwd)
def logcumsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int) -> Plan:
    return _scanned("logcumsumexp_bwd", dim, {"dx": OutputSpec.of(y.shape, x.dtype)}, _wide(x.dtype), y=y, dy=dy, x=x)
