"""Attention of newly decoded tokens to a KV cache, and writes to that cache.

Decoding should read the cache only once, so one tile has all query heads that share a KV head, for all new tokens. The
keys of a sequence are split among programs until the chip is full. Each program writes a partial result in float32, and
a second kernel combines them. The split depends on the sequence's length, which is known only on the device: a program
without keys writes lse = -inf and returns.

MLA's latent cache has one head of keys, whose first columns are also the values. The same kernel serves it, without v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import FP8
from ..core.errors import NotSupported
from ..specs import decode as spec
from ..specs.attention import scale_of
from .lib.config import Tiles, tunable
from .lib.fp8 import cast_of, has_casts
from .lib.harness import Launch, Plan, planned, strided
from .lib.interpret import interpreting
from .lib.launch import Config, Launcher
from .lib.products import NUMBERS, multiplies_fp8, precision
from .lib.rows import OutputSpec, cores, wide_of

LOG2_E = math.log2(math.e)  # the softmax uses powers of 2, because chips have an exp2 instruction
MOST_SPLITS = 64
WIDEST = 1024  # limit of the head dimensions of the cache

# ---- device code ----------------------------------------------------------------------------------------------------


@triton.jit
def page_of(table_ptr, at, end, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The page number of a block of keys: a scalar if the block lies in one page, else one number per key.

    `at` is the position of the first key. Keys at or after `end` get 0.
    """
    if PAGE % BLOCK_N == 0:
        return tl.load(table_ptr + at // PAGE, mask=at < end, other=0).to(tl.int64)
    else:
        i_n = at + tl.arange(0, BLOCK_N)
        return tl.load(table_ptr + i_n // PAGE, mask=i_n < end, other=0).to(tl.int64)


@triton.jit
def columns(ptr, o_n, m, first, size, NUMBERS: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr):
    """Load columns of rows of the cache, from column `first` on; masked elements are 0.

    NUMBERS converts bytes to floats.
    """
    o = tl.arange(0, BLOCK)
    m = m[:, None]
    if not FULL:
        m &= (o < size)[None, :]
    ptrs = ptr + o_n[:, None] + (first + o)[None, :]
    if NUMBERS is None:
        return tl.load(ptrs, mask=m, other=0.0)
    else:
        return NUMBERS(tl.load(ptrs, mask=m, other=0))


@triton.jit
def with_sink(b_lse, b_sink):
    """log2(2^lse + 2^sink), and the fraction 2^lse of that sum."""
    b_top = tl.maximum(b_lse, b_sink)
    b_top = tl.where(b_top == -float("inf"), 0.0, b_top)
    b_part = tl.exp2(b_lse - b_top)
    b_sum = b_part + tl.exp2(b_sink - b_top)
    none = b_sum == 0.0
    b_sum = tl.where(none, 1.0, b_sum)
    return tl.where(none, -float("inf"), b_top + tl.log2(b_sum)), b_part / b_sum


def _decode(
    q_ptr, k_ptr, v_ptr, lengths_ptr, table_ptr, sinks_ptr, k_scale_ptr, v_scale_ptr, o_ptr, lse_ptr,
    queries, heads, group, tiles, splits, capacity, q_batch, q_row, q_head, k_page, k_row, k_head,
    v_page, v_row, v_head, table_row, k_scale_step, v_scale_step, dim, dim_v, scale, cap, window,
    PART: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    FULL: tl.constexpr, NUMBERS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Attention of the queries of one KV head to one split of a sequence's keys.

    A row of k is read in two blocks, PART columns in BLOCK_D and the rest in BLOCK_R: 576 columns are 512 and 64.
    Without v_ptr, the first block is also the value. PARTIAL: o and lse are partial results, [batch, splits, heads,
    queries]; lse is to base 2.
    """
    kv, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    split, z = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i_m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = i_m < queries * group
    query, head = i_m // group, kv * group + i_m % group
    length = tl.minimum(tl.load(lengths_ptr + z), capacity).to(tl.int32)
    first = 0
    if WINDOW:
        first = tl.maximum(length - queries - window, 0) // BLOCK_N * BLOCK_N
    each = tl.cdiv(tl.cdiv(tl.maximum(length - first, 0), splits), BLOCK_N) * BLOCK_N
    begin = first + split * each
    end = tl.minimum(begin + each, length)

    b_top = tl.full([BLOCK_M], -float("inf"), WIDE)
    b_sum = tl.zeros([BLOCK_M], WIDE)
    b_o = tl.zeros([BLOCK_M, BLOCK_E], WIDE)
    o_q = z * q_batch + query.to(tl.int64) * q_row + head.to(tl.int64) * q_head
    b_q = columns(q_ptr, o_q, inside, 0, PART, None, BLOCK_D, FULL)
    if BLOCK_R:
        b_qr = columns(q_ptr, o_q, inside, PART, dim - PART, None, BLOCK_R, FULL)
    factor = scale
    if k_scale_ptr is not None:
        factor = scale * tl.load(k_scale_ptr + kv * k_scale_step)
    k_ptr += kv.to(tl.int64) * k_head
    if v_ptr is not None:
        v_ptr += kv.to(tl.int64) * v_head
    position = query + (length - queries)  # the index of the key at the query's position
    page = z
    if table_ptr is not None:
        table_ptr += z * table_row
        page = page_of(table_ptr, begin, end, PAGE, BLOCK_N)
    for at in range(begin, end, BLOCK_N):
        i_n = at + tl.arange(0, BLOCK_N)
        m_n = i_n < end
        row_in_page = i_n.to(tl.int64)
        if table_ptr is not None:
            row_in_page = (i_n % PAGE).to(tl.int64)
        o_k = page * k_page + row_in_page * k_row
        b_k = columns(k_ptr, o_k, m_n, 0, PART, NUMBERS, BLOCK_D, FULL).to(b_q.dtype)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION, out_dtype=WIDE)
        if BLOCK_R:
            b_r = columns(k_ptr, o_k, m_n, PART, dim - PART, NUMBERS, BLOCK_R, FULL).to(b_q.dtype)
            b_s = tl.dot(b_qr, tl.trans(b_r), b_s, input_precision=PRECISION, out_dtype=WIDE)
        if v_ptr is not None:
            o_v = page * v_page + row_in_page * v_row
            b_v = columns(v_ptr, o_v, m_n, 0, dim_v, NUMBERS, BLOCK_E, FULL).to(b_q.dtype)
        else:
            b_v = b_k
        if table_ptr is not None:  # load the next page number now, so that the next keys need not wait for it
            page = page_of(table_ptr, at + BLOCK_N, end, PAGE, BLOCK_N)
        b_s *= factor
        if CAP:  # cap * tanh(s / cap), to base 2
            b_s = cap * (1.0 - 2.0 / (tl.exp2(b_s) + 1.0))
        visible = m_n[None, :]
        if CAUSAL:
            visible &= i_n[None, :] <= position[:, None]
        if WINDOW:
            visible &= i_n[None, :] >= position[:, None] - window
        b_s = tl.where(visible, b_s, -float("inf"))
        b_new = tl.maximum(b_top, tl.max(b_s, 1))
        b_to = tl.where(b_new == -float("inf"), 0.0, b_new)  # -inf - -inf would be NaN
        b_p = tl.exp2(b_s - b_to[:, None])
        b_less = tl.exp2(b_top - b_to)
        b_sum = b_sum * b_less + tl.sum(b_p, 1)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_less[:, None], input_precision=PRECISION, out_dtype=WIDE)
        b_top = b_new

    none = b_sum == 0.0
    b_sum = tl.where(none, 1.0, b_sum)
    b_lse = tl.where(none, -float("inf"), b_top + tl.log2(b_sum))
    b_times = 1.0 / b_sum
    if v_scale_ptr is not None:
        b_times *= tl.load(v_scale_ptr + kv * v_scale_step)
    o_e = tl.arange(0, BLOCK_E)
    inside_o = inside[:, None]
    if not FULL:
        inside_o &= (o_e < dim_v)[None, :]
    if not PARTIAL:
        if sinks_ptr is not None:
            b_sink = tl.load(sinks_ptr + head, mask=inside, other=0.0).to(WIDE) * 1.4426950408889634
            b_lse, b_share = with_sink(b_lse, b_sink)
            b_times *= b_share
        o_lse = (z * heads + head) * queries + query
        o_o = (z * queries + query) * heads + head
        tl.store(lse_ptr + o_lse, b_lse * 0.6931471805599453, mask=inside)
    else:
        o_o = ((z * splits + split) * heads + head) * queries + query
        tl.store(lse_ptr + o_o, b_lse, mask=inside)
    if not PARTIAL or begin < end:  # o of an empty split is never read
        o_ptrs = o_ptr + o_o[:, None] * dim_v + o_e[None, :]
        tl.store(o_ptrs, (b_o * b_times[:, None]).to(o_ptr.dtype.element_ty), mask=inside_o)


def _combine(
    parts_ptr,
    part_lse_ptr,
    sinks_ptr,
    o_ptr,
    lse_ptr,
    queries,
    heads,
    splits,
    dim_v,
    WIDE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """o and lse of a query and head: the sum of its splits' results, weighted by their fractions of the softmax."""
    row = tl.program_id(0).to(tl.int64)
    rows = heads * queries
    z, index = row // rows, row % rows
    head, query = index // queries, index % queries
    i_s = tl.arange(0, BLOCK_S)
    o_e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    o_s = (z * splits + i_s) * rows + index
    b_lse = tl.load(part_lse_ptr + o_s, mask=i_s < splits, other=-float("inf"))
    some = b_lse != -float("inf")
    m = some[:, None] & (o_e < dim_v)[None, :]
    b_parts = tl.load(parts_ptr + o_s[:, None] * dim_v + o_e[None, :], mask=m, other=0.0)
    top = tl.max(b_lse, 0)
    b_w = tl.exp2(b_lse - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(b_w, 0)
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    lse = tl.where(none, -float("inf"), top + tl.log2(total))
    b_o = tl.sum(b_w[:, None] * b_parts, 0) / total
    if sinks_ptr is not None:
        lse, share = with_sink(lse, tl.load(sinks_ptr + head).to(WIDE) * 1.4426950408889634)
        b_o *= share
    o_o = ((z * queries + query) * heads + head) * dim_v
    tl.store(o_ptr + o_o + o_e, b_o.to(o_ptr.dtype.element_ty), mask=o_e < dim_v)
    tl.store(lse_ptr + row, lse * 0.6931471805599453, mask=tl.program_id(1) == 0)


@triton.jit
def put(
    ptr,
    cache_ptr,
    scale_ptr,
    o_new,
    o_cache,
    head_stride,
    cache_head,
    scale_step,
    i_h,
    heads,
    size,
    CAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one token's heads, divided by their scale and cast to the cache's dtype; with CAST, to float8 bytes."""
    o = tl.arange(0, BLOCK)[None, :]
    m = (i_h < heads) & (o < size)
    b = tl.load(ptr + o_new + i_h.to(tl.int64) * head_stride + o, mask=m, other=0.0)
    if scale_ptr is not None:
        b = b.to(tl.float64 if b.dtype == tl.float64 else tl.float32)
        b_scale = tl.load(scale_ptr + i_h * scale_step, mask=i_h < heads, other=1.0).to(b.dtype)
        b = tl.div_rn(b, tl.broadcast_to(b_scale, b.shape)) if b.dtype == tl.float32 else b / b_scale
    o_to = o_cache + i_h.to(tl.int64) * cache_head + o
    if CAST is None:
        tl.store(cache_ptr + o_to, b.to(cache_ptr.dtype.element_ty), mask=m)
    else:
        tl.store(cache_ptr.to(tl.pointer_type(tl.uint8)) + o_to, CAST(b.to(tl.float32)), mask=m)


def _write(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, lengths_ptr, table_ptr, counts_ptr, k_scale_ptr, v_scale_ptr,
    tokens, heads, capacity, k_batch, k_row, k_head, v_batch, v_row, v_head, k_cache_page, k_cache_row, k_cache_head,
    v_cache_page, v_cache_row, v_cache_head, table_row, k_scale_step, v_scale_step, dim, dim_v,
    PAGE: tl.constexpr, CAST: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Write BLOCK_H heads of one new token of a sequence."""
    token, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_h = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    count = tokens
    if counts_ptr is not None:
        count = tl.load(counts_ptr + z)
    at = tl.load(lengths_ptr + z).to(tl.int64) - count + token
    if (token < count) & (at >= 0) & (at < capacity):
        page, row_in_page = z, at
        if table_ptr is not None:
            page = tl.load(table_ptr + z * table_row + at // PAGE).to(tl.int64)
            row_in_page = at % PAGE
        put(
            k_ptr,
            k_cache_ptr,
            k_scale_ptr,
            z * k_batch + token.to(tl.int64) * k_row,
            page * k_cache_page + row_in_page * k_cache_row,
            k_head,
            k_cache_head,
            k_scale_step,
            i_h,
            heads,
            dim,
            CAST,
            BLOCK_D,
        )
        if v_ptr is not None:
            put(
                v_ptr,
                v_cache_ptr,
                v_scale_ptr,
                z * v_batch + token.to(tl.int64) * v_row,
                page * v_cache_page + row_in_page * v_cache_row,
                v_head,
                v_cache_head,
                v_scale_step,
                i_h,
                heads,
                dim_v,
                CAST,
                BLOCK_E,
            )


decode = Launcher(_decode, sizes="q_batch q_row q_head k_page k_row k_head v_page v_row v_head dim_v")
combine = Launcher(_combine, sizes="dim_v")
write = Launcher(
    _write,
    sizes="k_batch k_row k_head v_batch v_row v_head k_cache_page k_cache_row k_cache_head v_cache_page v_cache_row "
    "v_cache_head dim dim_v",
)


# ---- tiles ----------------------------------------------------------------------------------------------------------


def splits_for(programs: int, keys: int, slots: int) -> int:
    """The smallest number of splits whose use of the chip is at least 90 % of the best possible.

    `programs`: the number of programs of one split; `slots`: how many programs run at a time; `keys`: the number of
    blocks of keys. A bad number leaves most of the chip idle in the last wave of programs.
    """
    most = max(1, min(MOST_SPLITS, keys, -(-2 * slots // max(programs, 1))))
    rounds = lambda splits: programs * splits / slots
    full = {splits: rounds(splits) / math.ceil(rounds(splits)) for splits in range(1, most + 1)}
    return next(splits for splits, share in full.items() if share >= 0.9 * max(full.values()))


@tunable("decode.keys", free="BLOCK_M BLOCK_N PER_CORE")
def key_tiles(rows: int, keys: int, dim: int, dtype: torch.dtype, kept: torch.dtype) -> Tiles:
    """Tiles for the attention to a cache, whose keys are split until every core has PER_CORE programs.

    BLOCK_M: rows of a tile (heads and queries of one KV head). BLOCK_N: keys per step. PER_CORE: programs that run on a
    core at a time. `keys`: the capacity of the cache per sequence; `dim`: the larger head dimension of k and v; `kept`:
    the cache's dtype.
    """
    size = dtype.itemsize
    block_n = {2: 64, 4: 32, 8: 16}[size] // (2 if dim > 128 else 1) // (2 if dim > 256 and size > 2 else 1)
    block_m = min(16 if dim > 256 or size > 4 else 64, max(16, triton.next_power_of_2(rows)))
    return Tiles(128 if size <= 2 else 256, 2, BLOCK_M=block_m, BLOCK_N=max(16, block_n), PER_CORE=2)


# ---- plans ----------------------------------------------------------------------------------------------------------


CACHE, TOKENS = ("page", "row", "head"), ("batch", "row", "head")  # names of all dimensions but the last one


def _steps(name: str, t: Tensor | None, copied: bool = False, dims: tuple[str, ...] = CACHE) -> dict[str, int]:
    """The strides of a tensor, or of its contiguous copy, by name; 0 if the tensor is absent."""
    if t is None:
        return {f"{name}_{dim}": 0 for dim in dims}
    strides = OutputSpec.of(t.shape, t.dtype).stride if copied else t.stride()
    return {f"{name}_{dim}": stride for dim, stride in zip(dims, strides)}


def _each(scale: Tensor | None) -> int:
    """The stride between the scales of heads: 0 if all heads share one scale."""
    return int(scale is not None and scale.numel() > 1)


def _loose(**tensors: Tensor | None) -> list[str]:
    """The names of the tensors whose rows are not contiguous."""
    return [name for name, t in tensors.items() if t is not None and t.stride(-1) != 1 and t.shape[-1] > 1]


def _viewed(q: Tensor, cache: Tensor, names: Collection[str]) -> tuple[dict[str, Callable[[Tensor], Tensor]], Any]:
    """For a float8 cache on a chip without float8: functions that view it as bytes, and one that converts the bytes."""
    if cache.dtype in FP8 and q.dtype is torch.float64:  # Triton 3.6 cannot compile a float64 product of bytes
        return {name: _in_float64 for name in names}, None
    if cache.dtype not in FP8 or multiplies_fp8():
        return {}, None
    return {name: _bytes for name in names}, NUMBERS[cache.dtype]


def _in_float64(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=torch.float64, device=t.device).copy_(t.float())


def _bytes(t: Tensor) -> Tensor:
    return t.view(torch.uint8)


class DecodeProblem(NamedTuple):
    """Sizes of a call. MLA has one KV head, and v is the first columns of k."""

    batch: int
    queries: int
    heads: int
    kv_heads: int
    capacity: int  # keys per sequence
    page: int
    dim: int
    dim_v: int
    shared: bool  # whether v is part of k

    @property
    def parts(self) -> tuple[int, int]:
        """Columns of k in the first block (those of v if it is part of k, else a power of two), and in the second."""
        part = self.dim_v if self.shared else self.dim if self.dim < 16 else 1 << (self.dim.bit_length() - 1)
        return part, self.dim - part

    @property
    def blocks(self) -> dict[str, int]:
        block = lambda size: max(16, triton.next_power_of_2(size))
        part, remainder = self.parts
        return dict(
            BLOCK_D=block(part),
            BLOCK_R=block(remainder) if remainder else 0,
            BLOCK_E=block(part if self.shared else self.dim_v),
        )


def _plan(
    p: DecodeProblem,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    lengths: Tensor,
    table: Tensor | None,
    scales: tuple[Tensor | None, Tensor | None],
    scale: float | None,
    softcap: float,
    window: int,
    precision: str,
    names: Mapping[str, str | None],
    copied: list[str],
) -> Plan:
    """`names`: the op's names for the kernel's tensors; `copied`: arguments that must be made contiguous."""
    stats = torch.float64 if q.dtype is torch.float64 else torch.float32
    makes = {
        "o": OutputSpec.of((p.batch, p.queries, p.heads, p.dim_v), q.dtype),
        "lse": OutputSpec.of((p.batch, p.heads, p.queries), stats),
    }
    if not (p.batch and p.queries and p.heads and p.dim_v):
        return Plan(makes)
    if max(p.dim, p.dim_v) > WIDEST:
        raise NotSupported(f"rows of more than {WIDEST} numbers; there are {p.dim} and {p.dim_v}")
    if p.batch >= 2**16:
        raise NotSupported(f"{p.batch} sequences are more than a launch can have")
    if not p.dim:
        raise NotSupported("keys without columns")
    group = p.heads // p.kv_heads
    rows, (part, remainder), blocks = group * p.queries, p.parts, p.blocks
    tiles = key_tiles(rows=rows, keys=p.capacity, dim=max(p.dim, p.dim_v), dtype=q.dtype, kept=k.dtype)
    sizes = {name: size for name, size in tiles.sizes.items() if name != "PER_CORE"}
    count = p.batch * p.kv_heads * -(-rows // tiles["BLOCK_M"])
    splits = splits_for(count, -(-p.capacity // tiles["BLOCK_N"]), cores(q.device) * tiles["PER_CORE"])
    wide = wide_of(q.dtype)
    views, numbers_of = _viewed(q, k, [name for name in dict.fromkeys((names["k"], names["v"])) if name])
    config = Config(
        dict(
            PART=part,
            PAGE=p.page,
            CAUSAL=p.queries > 1,
            WINDOW=window >= 0,
            CAP=softcap > 0,
            FULL=(part, remainder, p.dim_v) == (blocks["BLOCK_D"], blocks["BLOCK_R"], blocks["BLOCK_E"]),
            NUMBERS=numbers_of,
            WIDE=wide,
            PRECISION=precision if q.dtype is torch.float32 else "ieee",
            PARTIAL=splits > 1,
            **sizes,
            **blocks,
        ),
        tiles.threads,
        tiles.stages,
    )
    factor = scale_of(q, scale)
    numbers = dict(
        queries=p.queries,
        heads=p.heads,
        group=group,
        tiles=-(-rows // tiles["BLOCK_M"]),
        splits=splits,
        capacity=p.capacity,
        **_steps("q", q, "q" in copied, TOKENS),
        **_steps("k", k, names["k"] in copied),
        **_steps("v", v, names["v"] in copied),
        table_row=0 if table is None else table.shape[1],
        k_scale_step=_each(scales[0]),
        v_scale_step=_each(scales[1]),
        dim=p.dim,
        dim_v=p.dim_v,
        scale=factor * LOG2_E if not softcap else 2 * factor / softcap * LOG2_E,
        cap=softcap * LOG2_E,
        window=window,
    )
    grid = (p.kv_heads * numbers["tiles"], splits, p.batch)
    launch = Launch(decode, grid, config, numbers, names)
    copied = [*copied, *strided(lengths=lengths, table=table)]
    if splits == 1:
        return Plan(makes, [launch], copied, views)
    makes |= {
        "parts": OutputSpec.of((p.batch, splits, p.heads, p.queries, p.dim_v), stats),
        "part_lse": OutputSpec.of((p.batch, splits, p.heads, p.queries), stats),
    }
    block_s = triton.next_power_of_2(splits)
    block_e = min(max(16, triton.next_power_of_2(p.dim_v)), max(32, 4096 // block_s))
    last = Launch(
        combine,
        (p.batch * p.heads * p.queries, -(-p.dim_v // block_e)),
        Config(dict(WIDE=wide, BLOCK_S=block_s, BLOCK_E=block_e)),
        numbers,
        {"sinks": names["sinks"]},
    )
    return Plan(makes, [launch.named(o="parts", lse="part_lse", sinks=None), last], copied, views)


def _page(k: Tensor, table: Tensor | None) -> tuple[int, int]:
    """The keys per sequence and per page.

    Without pages, the page size is 1. It cannot be the length, because it is a constexpr and lengths vary.
    """
    return (k.shape[1], 1) if table is None else (k.shape[1] * table.shape[1], max(k.shape[1], 1))


@planned(spec.attention_decode, state={"precision": precision})
def attention_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    sinks: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    window: int,
    softcap: float,
    scale: float | None,
    precision: str,
) -> Plan:
    capacity, page = _page(k_cache, table)
    batch, queries, heads, dim = q.shape
    p = DecodeProblem(batch, queries, heads, k_cache.shape[2], capacity, page, dim, v_cache.shape[3], False)
    copied = [*_loose(q=q, k_cache=k_cache, v_cache=v_cache), *strided(sinks=sinks, k_scale=k_scale, v_scale=v_scale)]
    names, scales = {"k": "k_cache", "v": "v_cache", "sinks": "sinks"}, (k_scale, v_scale)
    return _plan(p, q, k_cache, v_cache, lengths, table, scales, scale, softcap, window, precision, names, copied)


@planned(spec.mla_decode, state={"precision": precision})
def mla_decode(
    q: Tensor,
    cache: Tensor,
    lengths: Tensor,
    rank: int,
    table: Tensor | None,
    cache_scale: Tensor | None,
    scale: float | None,
    precision: str,
) -> Plan:
    capacity, page = _page(cache, table)
    # Values come from the same tile as the keys, except in float8: Triton would keep that tile twice in shared memory,
    # once per product, and not prefetch it (3.6, sm_90). So float8 values are loaded again, from L2.
    shared = cache.dtype not in FP8
    batch, queries, heads, dim = q.shape
    p = DecodeProblem(batch, queries, heads, 1, capacity, page, dim, rank, shared)
    copied = [*_loose(q=q, cache=cache), *strided(cache_scale=cache_scale)]
    names = {"k": "cache", "v": None if shared else "cache", "sinks": None, "k_scale": "cache_scale"}
    names["v_scale"] = "cache_scale"
    one_head, scales = cache.unsqueeze(2), (cache_scale, cache_scale)
    v = None if shared else one_head[..., :rank]
    return _plan(p, q, one_head, v, lengths, table, scales, scale, 0.0, -1, precision, names, copied)


@planned(spec.write_kv_cache)
def write_kv_cache(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    lengths: Tensor,
    table: Tensor | None,
    counts: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> Plan:
    batch, tokens, heads, dim = k.shape
    capacity, page = _page(k_cache, table)
    if not (batch and tokens and heads and capacity):
        return Plan({})
    dim_v = 0 if v is None else v.shape[3]
    if batch >= 2**16:
        raise NotSupported(f"{batch} sequences are more than a launch can have")
    scaled = k_scale is not None or v_scale is not None
    if k.dtype in FP8 and (scaled or k_cache.dtype is not k.dtype):
        raise NotSupported("float8 tokens with a scale, or of another dtype than the cache")
    if _loose(k_cache=k_cache, v_cache=v_cache):
        raise NotSupported("a cache whose rows are not contiguous")
    casts = k_cache.dtype in FP8 and k.dtype not in FP8
    views = {}
    if k.dtype in FP8 or (casts and not (has_casts() or interpreting())):
        moved = ("k", "v", "k_cache", "v_cache") if k.dtype in FP8 else ("k_cache", "v_cache")
        views = {name: _bytes for name in moved if v is not None or name[0] == "k"}
    block = lambda size: max(16, triton.next_power_of_2(size))
    block_h = min(triton.next_power_of_2(heads), max(1, 4096 // block(max(dim, dim_v))))
    config = Config(
        dict(
            PAGE=page,
            CAST=cast_of(k_cache.dtype) if casts else None,
            BLOCK_H=block_h,
            BLOCK_D=block(dim),
            BLOCK_E=block(dim_v),
        )
    )
    copied = _loose(k=k, v=v)
    numbers = dict(
        tokens=tokens,
        heads=heads,
        capacity=capacity,
        **_steps("k", k, "k" in copied, TOKENS),
        **_steps("v", v, "v" in copied, TOKENS),
        **_steps("k_cache", k_cache),
        **_steps("v_cache", v_cache),
        table_row=0 if table is None else table.shape[1],
        k_scale_step=_each(k_scale),
        v_scale_step=_each(v_scale),
        dim=dim,
        dim_v=dim_v,
    )
    others = strided(lengths=lengths, table=table, counts=counts, k_scale=k_scale, v_scale=v_scale)
    grid = (tokens, batch, -(-heads // block_h))
    return Plan({}, [Launch(write, grid, config, numbers)], [*copied, *others], views)
