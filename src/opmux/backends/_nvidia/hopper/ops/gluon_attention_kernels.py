"""Attention for Hopper in Gluon, Triton's lower-level language: one warp copies, two warpgroups multiply.

Three parts of a program work concurrently. The producer is one warp: it lets TMA load tiles into rings of shared
memory, and waits only for a free slot of a ring. Each of the two consumers has 64 rows of the tile: while one computes
exponentials, the other one's products are on the matrix unit. A `full` barrier completes when a tile has arrived, an
`empty` barrier when both consumers have read it. Programs are persistent: one per core loops over tiles of the result,
in sections of heads that fit L2.

Dense batches and packed sequences use the same kernel: `cu_q_ptr` and `cu_k_ptr` are None, or say where a sequence
begins. `_describe` explains how TMA is restricted to the rows of one sequence.

ptxas would move a wait for products up to where they are issued, before the exponentials that should overlap with them;
but it moves nothing across a branch. `_over` is such a branch: a wait for a barrier that has already completed.
"""

# ruff: noqa: RUF059 - each part of a program unpacks all shared values

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .....kernels.lib.launch import Launcher

HALF = gl.constexpr(64)  # rows of a consumer
FAR, WRAP = gl.constexpr(2**30), gl.constexpr(2**34)  # see _describe
LOG2_E = gl.constexpr(1.4426950408889634)
# in Triton 3.6 the name begins with an underscore
PUBLIC = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
LN_2 = gl.constexpr(0.6931471805599453)
# renamed in Triton 3.9
_copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
_copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@gluon.constexpr_function
def _rows(columns):
    """The layout, over four warps, of the result of a product of 64 rows."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def _over(barrier, phase):
    mbarrier.wait(barrier, phase)


@gluon.jit
def _turns(tiles, SNAKE: gl.constexpr):
    """The number of tiles that this program processes."""
    rest = tiles % gl.num_programs(0)
    turns = tiles // gl.num_programs(0)
    return turns + (_nth(turns, SNAKE) % gl.num_programs(0) < rest).to(gl.int32)


@gluon.jit
def _nth(turn, SNAKE: gl.constexpr):
    """The number of the tile that this program processes in round `turn`; SNAKE: every other round in reverse order."""
    at = gl.program_id(0)
    if SNAKE:
        at = gl.where(turn % 2 == 0, at, gl.num_programs(0) - 1 - at)
    return turn * gl.num_programs(0) + at


@gluon.jit
def _place(tile, rows, all_heads, SECTION: gl.constexpr):
    """A tile's row of tiles, and its head. Tiles are numbered by section of heads, then by row, then by head."""
    section = tile // (rows * SECTION)
    inside = tile % (rows * SECTION)
    wide = gl.minimum(SECTION, all_heads - section * SECTION)
    return inside // wide, section * SECTION + inside % wide


@gluon.jit
def _begin(cu_ptr, i, batch, rows):
    """The first token of sequence i.

    Sequence 0 has the tokens before `cu_ptr[0]`, sequence batch + 1 those after `cu_ptr[batch]`.
    """
    at = gl.load(cu_ptr + gl.minimum(gl.maximum(i - 1, 0), batch)).to(gl.int32)
    return gl.where(i == 0, 0, gl.where(i > batch + 1, rows, at))


@gluon.jit
def _sequence(at, cu_ptr, batch, rows, BLOCK: gl.constexpr):
    """The sequence of a row of tiles, how many rows of tiles follow in that sequence, and whether `cu_ptr` lists it.

    Sequence i has the rows of tiles from begin // BLOCK + i on. They cover the sequence; at most one of them is left
    over, which sees no key and writes nothing.
    """
    low = 0
    high = batch + 2
    while high - low > 1:
        middle = (low + high) // 2
        later = _begin(cu_ptr, middle, batch, rows) // BLOCK + middle > at
        low = gl.where(later, low, middle)
        high = gl.where(later, middle, high)
    left = _begin(cu_ptr, low + 1, batch, rows) // BLOCK + low - at
    return low, left, (low > 0) & (low <= batch)


@gluon.jit
def _describe(ptr, cu_ptr, batch, heads, rows, z, h, r, BLOCK: gl.constexpr, DIM: gl.constexpr):
    """A TMA descriptor of a tensor [batch, heads, rows, DIM]: rows out of bounds read as zero and are not written.

    Packed sequences: one dimension is the token at which a sequence ends; another one counts the `FAR` rows before that
    end. A sequence of n rows is the last n of these rows, so TMA's bounds check stops at its end. Otherwise 0 times a
    NaN of the next sequence would be NaN. The first dimension, whose index is always FAR, subtracts FAR rows from the
    address: addresses are modulo 2**64, and FAR * WRAP * 2 bytes are 0. (A base address FAR rows before the tensor
    would do as well, but TMA faults if there is no memory at it.)
    """
    if cu_ptr is None:
        layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
        return tma.make_tensor_descriptor(ptr, [batch, heads, rows, DIM], [z, h, r, 1], [1, 1, BLOCK, DIM], layout)
    else:
        packed: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=5)
        back = WRAP - r.to(gl.int64)
        return tma.make_tensor_descriptor(
            ptr, [FAR + 1, rows + 1, heads, FAR, DIM], [back, r, h, r, 1], [1, 1, 1, BLOCK, DIM], packed
        )


@gluon.jit
def _place_of(cu_ptr, i, batch, rows):
    """A packed sequence: its coordinates in a descriptor (its end, and its row 0), its length, and where it begins."""
    begin = _begin(cu_ptr, i, batch, rows)
    end = _begin(cu_ptr, i + 1, batch, rows)
    return (end, FAR - (end - begin)), end - begin, begin


@gluon.jit
def _as_in(desc, tile):
    """A tile of shared memory with as many dimensions as the descriptor has."""
    shape: gl.constexpr = desc.block_shape
    if PUBLIC:
        return tile.reinterpret(desc.dtype, shape, desc.layout)
    else:
        return tile._reinterpret(desc.dtype, shape, desc.layout)


@gluon.jit
def _at(desc, place, h, row):
    if len(desc.block_shape) == 4:
        return [place[0], h, row, 0]
    else:
        return [FAR, place[0], h, place[1] + row, 0]


@gluon.jit
def _read(desc, place, h, row, full, to):
    _copy_in(desc, _at(desc, place, h, row), full, _as_in(desc, to))


@gluon.jit
def _write(desc, place, h, row, at):
    _copy_out(desc, _at(desc, place, h, row), _as_in(desc, at))


@gluon.jit
def _tiles(dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, DIM: gl.constexpr):
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return gl.allocate_shared_memory(dtype, [COUNT, ROWS, DIM], layout)


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


# ---- forward --------------------------------------------------------------------------------------------------------


@gluon.jit
def _fwd_tile(tile, sizes, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, SECTION: gl.constexpr):
    """A tile's first query, its head, how many blocks of keys it sees, and its sequence. The longest tiles come first.

    Of the sequence: the number of queries and keys, the coordinates in descriptors, the offset of lse, and whether
    `cu_q_ptr` lists it.
    """
    queries, keys, heads, batch, group, tiles, cu_q_ptr, cu_k_ptr = sizes
    if cu_q_ptr is None:
        rows = gl.cdiv(queries, BLOCK_M)
        at, head = _place(tile, rows, heads * batch, SECTION)
        row = (rows - 1 - at) * BLOCK_M
        z = head // heads
        head = head % heads
        sequence = (queries, keys, (z, 0), (z, 0), (z.to(gl.int64) * heads + head) * queries, True)
    else:
        at, head = _place(tile, tiles // heads, heads, SECTION)
        i, left, listed = _sequence(at, cu_q_ptr, batch, queries, BLOCK_M)
        row = left * BLOCK_M
        q_place, n_queries, begin = _place_of(cu_q_ptr, i, batch, queries)
        k_place, n_keys, _begin_k = _place_of(cu_k_ptr, i, batch, keys)
        n_keys = gl.where(listed & (row < n_queries), n_keys, 0)
        sequence = (n_queries, n_keys, q_place, k_place, head.to(gl.int64) * queries + begin, listed)
    blocks = gl.cdiv(sequence[1], BLOCK_N)
    if CAUSAL:
        blocks = gl.minimum(blocks, gl.cdiv(gl.maximum(row + BLOCK_M + sequence[1] - sequence[0], 0), BLOCK_N))
    return row, head, blocks, sequence


@gluon.jit
def _fwd_produce(
    shared,
    CAUSAL: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    SECTION: gl.constexpr,
    SNAKE: gl.constexpr,
):
    descs, smem, bars, sizes = shared
    q_desc, k_desc, v_desc, o_desc = descs
    q_smem, k_smem, v_smem, o_smem = smem
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = bars
    group, tiles = sizes[4], sizes[5]
    q_bytes: gl.constexpr = BLOCK_M * q_smem.shape[2] * 2
    k_bytes: gl.constexpr = BLOCK_N * q_smem.shape[2] * 2
    count = 0
    for turn in range(_turns(tiles, SNAKE)):
        row, h, blocks, sequence = _fwd_tile(_nth(turn, SNAKE), sizes, CAUSAL, BLOCK_M, BLOCK_N, SECTION)
        q_place, k_place = sequence[2], sequence[3]
        mbarrier.wait(q_empty.index(0), (turn & 1) ^ 1)
        mbarrier.expect(q_full.index(0), q_bytes)
        _read(q_desc, q_place, h, row, q_full.index(0), q_smem.index(0))
        for j in range(blocks):
            key = (blocks - 1 - j) * BLOCK_N
            at = count % STAGES
            free = ((count // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(at), free)
            mbarrier.expect(k_full.index(at), k_bytes)
            _read(k_desc, k_place, h // group, key, k_full.index(at), k_smem.index(at))
            mbarrier.wait(v_empty.index(at), free)
            mbarrier.expect(v_full.index(at), k_bytes)
            _read(v_desc, k_place, h // group, key, v_full.index(at), v_smem.index(at))
            count += 1


@gluon.jit
def _softmax(s, top, total, scale, row, key, keys, shift, MASK: gl.constexpr, CAUSAL: gl.constexpr):
    """Exponentials of a block of scores, the new maximum and sum, and the factor that rescales earlier sums."""
    if MASK:
        at = key + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
        visible = at[None, :] < keys
        if CAUSAL:
            visible = visible & (at[None, :] <= row[:, None] + shift)
        s = gl.where(visible, s, -float("inf"))
    new = gl.maximum(top, gl.max(s, 1) * scale)
    base = new
    if MASK:  # a row may have no visible key so far
        base = gl.where(new == -float("inf"), 0.0, new)
    p = gl.exp2(s * scale - base[:, None])
    factor = gl.exp2(top - base)
    return p, new, total * factor + gl.sum(p, 1), factor


@gluon.jit
def _fwd_step(
    q, smem, bars, state, count, row, key, keys, shift, scale, WHICH: gl.constexpr, MASK: gl.constexpr,
    CAUSAL: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the scores of a block of keys, while the product with the values of the previous block is accumulated."""
    q_smem, k_smem, v_smem, o_smem = smem
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = bars
    o, p, top, total = state
    k_at = count % STAGES
    v_at = (count - 1) % STAGES
    v_phase = ((count - 1) // STAGES) & 1
    mbarrier.wait(k_full.index(k_at), (count // STAGES) & 1)
    mbarrier.wait(turns.index(WHICH), count & 1)
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    zero = gl.zeros([HALF, BLOCK_N], gl.float32, layout=_rows(BLOCK_N))
    s = warpgroup_mma(q, k_smem.index(k_at).permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(v_at), v_phase)
    o = warpgroup_mma(p, v_smem.index(v_at), o, is_async=True)
    mbarrier.arrive(turns.index(1 - WHICH), count=1)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(k_at), count=1)
    new, top, total, factor = _softmax(s, top, total, scale, row, key, keys, shift, MASK, CAUSAL)
    _over(v_full.index(v_at), v_phase)
    o, total, factor = warpgroup_mma_wait(0, deps=[o, total, factor])
    mbarrier.arrive(v_empty.index(v_at), count=1)
    o = o * gl.convert_layout(factor, gl.SliceLayout(1, o.type.layout))[:, None]
    return o, gl.convert_layout(new.to(q.dtype), p.type.layout), top, total


@gluon.jit
def _fwd_consume(
    WHICH: gl.constexpr, shared, lse_ptr, scale, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr, SECTION: gl.constexpr, SNAKE: gl.constexpr,
):  # fmt: skip
    descs, smem, bars, sizes = shared
    q_desc, k_desc, v_desc, o_desc = descs
    q_smem, k_smem, v_smem, o_smem = smem
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = bars
    tiles, cu_q_ptr = sizes[5], sizes[6]
    scores: gl.constexpr = _rows(BLOCK_N)
    result: gl.constexpr = _rows(DIM)
    factors: gl.constexpr = gl.DotOperandLayout(0, result, 2)
    each: gl.constexpr = gl.SliceLayout(1, scores)
    dtype: gl.constexpr = o_desc.dtype
    q = q_smem.index(0).slice(WHICH * HALF, HALF)
    count = 0
    for turn in range(_turns(tiles, SNAKE)):
        row0, h, blocks, sequence = _fwd_tile(_nth(turn, SNAKE), sizes, CAUSAL, BLOCK_M, BLOCK_N, SECTION)
        queries, keys, q_place, k_place, at_row, listed = sequence
        shift = keys - queries
        row0 = row0 + WHICH * HALF
        row = row0 + gl.arange(0, HALF, layout=each)
        top = gl.full([HALF], -float("inf"), gl.float32, layout=each)
        total = gl.full([HALF], 0.0, gl.float32, layout=each)
        o = gl.zeros([HALF, DIM], gl.float32, layout=result)
        mbarrier.wait(q_full.index(0), turn & 1)
        if blocks > 0:
            clean = keys // BLOCK_N  # fully unmasked blocks
            if CAUSAL:
                clean = gl.minimum(clean, gl.maximum(row0 + shift + 1, 0) // BLOCK_N)
            at = count % STAGES
            mbarrier.wait(k_full.index(at), (count // STAGES) & 1)
            mbarrier.wait(turns.index(WHICH), count & 1)
            zero = gl.zeros([HALF, BLOCK_N], gl.float32, layout=scores)
            s = warpgroup_mma(q, k_smem.index(at).permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.arrive(turns.index(1 - WHICH), count=1)
            s = warpgroup_mma_wait(0, deps=[s])
            mbarrier.arrive(k_empty.index(at), count=1)
            key = (blocks - 1) * BLOCK_N
            p, top, total, factor = _softmax(s, top, total, scale, row, key, keys, shift, True, CAUSAL)
            p = gl.convert_layout(p.to(dtype), factors)
            count += 1
            masked = gl.maximum(blocks - 1 - clean, 0)
            for j in range(masked):
                o, p, top, total = _fwd_step(
                    q, smem, bars, (o, p, top, total), count, row, key - (j + 1) * BLOCK_N, keys, shift, scale, WHICH,
                    True, CAUSAL, STAGES,
                )  # fmt: skip
                count += 1
            for _j in range(masked, blocks - 1):
                o, p, top, total = _fwd_step(
                    q, smem, bars, (o, p, top, total), count, row, key, keys, shift, scale, WHICH, False, CAUSAL, STAGES
                )
                count += 1
            mbarrier.arrive(q_empty.index(0), count=1)
            at = (count - 1) % STAGES
            mbarrier.wait(v_full.index(at), ((count - 1) // STAGES) & 1)
            o = warpgroup_mma(p, v_smem.index(at), o, is_async=True)
            o = warpgroup_mma_wait(0, deps=[o])
            mbarrier.arrive(v_empty.index(at), count=1)
        else:
            mbarrier.arrive(q_empty.index(0), count=1)
        total = gl.where(total > 0.0, total, 1.0)
        lse = (top + gl.log2(total)) * LN_2
        if cu_q_ptr is not None:
            lse = gl.where(listed, lse, 0.0)  # tokens outside of the listed sequences see no key, so their o is 0
        gl.store(lse_ptr + at_row + row, lse, mask=row < queries)
        o = o * gl.convert_layout(1.0 / total, gl.SliceLayout(1, result))[:, None]
        mine = o_smem.index(WHICH)
        tma.store_wait(0)
        mine.store(o.to(dtype))
        fence_async_shared()
        _write(o_desc, q_place, h, row0, mine)
    tma.store_wait(0)


def _fwd(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, o_ptr, lse_ptr, queries, keys, heads, batch, group, tiles, scale,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
    SECTION: gl.constexpr, SNAKE: gl.constexpr,
):  # fmt: skip
    kv_heads = heads // group
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    descs = (
        _describe(q_ptr, cu_q_ptr, batch, heads, queries, q_batch, q_head, q_row, BLOCK_M, DIM),
        _describe(k_ptr, cu_k_ptr, batch, kv_heads, keys, k_batch, k_head, k_row, BLOCK_N, DIM),
        _describe(v_ptr, cu_k_ptr, batch, kv_heads, keys, v_batch, v_head, v_row, BLOCK_N, DIM),
        _describe(o_ptr, cu_q_ptr, batch, heads, queries, o_batch, o_head, o_row, HALF, DIM),
    )
    smem = (
        _tiles(dtype, 1, BLOCK_M, DIM),
        _tiles(dtype, STAGES, BLOCK_N, DIM),
        _tiles(dtype, STAGES, BLOCK_N, DIM),
        _tiles(dtype, 2, HALF, DIM),
    )
    turns = _barriers(2, 1)  # which consumer issues products next
    bars = (
        _barriers(1, 1),
        _barriers(1, 2),
        _barriers(STAGES, 1),
        _barriers(STAGES, 2),
        _barriers(STAGES, 1),
        _barriers(STAGES, 2),
        turns,
    )
    mbarrier.arrive(turns.index(0), count=1)
    fence_async_shared()
    shared = (descs, smem, bars, (queries, keys, heads, batch, group, tiles, cu_q_ptr, cu_k_ptr))
    gl.warp_specialize(
        [
            (
                _fwd_consume,
                (0, shared, lse_ptr, scale, CAUSAL, BLOCK_M, BLOCK_N, DIM, STAGES, SECTION, SNAKE),
            ),
            (
                _fwd_consume,
                (1, shared, lse_ptr, scale, CAUSAL, BLOCK_M, BLOCK_N, DIM, STAGES, SECTION, SNAKE),
            ),
            (_fwd_produce, (shared, CAUSAL, BLOCK_M, BLOCK_N, STAGES, SECTION, SNAKE)),
        ],
        [4, 1],
        [240, 24],
    )


# ---- dq -------------------------------------------------------------------------------------------------------------


@gluon.jit
def _q_produce(
    shared,
    CAUSAL: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    SECTION: gl.constexpr,
    SNAKE: gl.constexpr,
):
    descs, smem, bars, sizes = shared
    q_desc, do_desc, k_desc, v_desc, dq_desc = descs
    q_smem, do_smem, k_smem, v_smem, d_smem = smem
    q_full, q_empty, full, empty = bars
    group, tiles = sizes[4], sizes[5]
    row_bytes: gl.constexpr = q_smem.shape[2] * 2
    count = 0
    for turn in range(_turns(tiles, SNAKE)):
        row, h, blocks, sequence = _fwd_tile(_nth(turn, SNAKE), sizes, CAUSAL, BLOCK_M, BLOCK_N, SECTION)
        q_place, k_place = sequence[2], sequence[3]
        mbarrier.wait(q_empty.index(0), (turn & 1) ^ 1)
        mbarrier.expect(q_full.index(0), 2 * BLOCK_M * row_bytes)
        _read(q_desc, q_place, h, row, q_full.index(0), q_smem.index(0))
        _read(do_desc, q_place, h, row, q_full.index(0), do_smem.index(0))
        for j in range(blocks):
            at = count % STAGES
            mbarrier.wait(empty.index(at), ((count // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(at), 2 * BLOCK_N * row_bytes)
            _read(k_desc, k_place, h // group, (blocks - 1 - j) * BLOCK_N, full.index(at), k_smem.index(at))
            _read(v_desc, k_place, h // group, (blocks - 1 - j) * BLOCK_N, full.index(at), v_smem.index(at))
            count += 1


@gluon.jit
def _q_step(
    q, do, smem, bars, dq, lse, delta, count, row, key, keys, shift, scale, MASK: gl.constexpr, CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Accumulate dq of 64 queries over a block of keys."""
    q_smem, do_smem, k_smem, v_smem, d_smem = smem
    q_full, q_empty, full, empty = bars
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    scores: gl.constexpr = _rows(BLOCK_N)
    factors: gl.constexpr = gl.DotOperandLayout(0, _rows(k_smem.shape[2]), 2)
    at = count % STAGES
    phase = (count // STAGES) & 1
    k = k_smem.index(at)
    mbarrier.wait(full.index(at), phase)
    zero = gl.zeros([HALF, BLOCK_N], gl.float32, layout=scores)
    s = warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
    dp = warpgroup_mma(do, v_smem.index(at).permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    p = gl.exp2(s * scale - lse[:, None])
    if MASK:
        column = key + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, scores))
        visible = column[None, :] < keys
        if CAUSAL:
            visible = visible & (column[None, :] <= row[:, None] + shift)
        p = gl.where(visible, p, 0.0)
    _over(full.index(at), phase)
    dp, p = warpgroup_mma_wait(0, deps=[dp, p])
    ds = gl.convert_layout((p * (dp - delta[:, None])).to(q.dtype), factors)
    dq = warpgroup_mma(ds, k, dq, is_async=True)
    dq = warpgroup_mma_wait(0, deps=[dq])
    mbarrier.arrive(empty.index(at), count=1)
    return dq


@gluon.jit
def _q_consume(
    WHICH: gl.constexpr, shared, rest, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    DIM: gl.constexpr, STAGES: gl.constexpr, SECTION: gl.constexpr, SNAKE: gl.constexpr,
):  # fmt: skip
    descs, smem, bars, sizes = shared
    q_desc, do_desc, k_desc, v_desc, dq_desc = descs
    q_smem, do_smem, k_smem, v_smem, d_smem = smem
    q_full, q_empty, full, empty = bars
    tiles, cu_q_ptr = sizes[5], sizes[6]
    o_ptr, lse_ptr, delta_ptr, scale, out_scale, o_batch, o_head, o_row = rest
    result: gl.constexpr = _rows(DIM)
    each: gl.constexpr = gl.SliceLayout(1, _rows(BLOCK_N))
    dtype: gl.constexpr = dq_desc.dtype
    q = q_smem.index(0).slice(WHICH * HALF, HALF)
    do = do_smem.index(0).slice(WHICH * HALF, HALF)
    count = 0
    for turn in range(_turns(tiles, SNAKE)):
        row0, h, blocks, sequence = _fwd_tile(_nth(turn, SNAKE), sizes, CAUSAL, BLOCK_M, BLOCK_N, SECTION)
        queries, keys, q_place, k_place, at_row, listed = sequence
        shift = keys - queries
        row0 = row0 + WHICH * HALF
        row = row0 + gl.arange(0, HALF, layout=each)
        o_rows = row0 + gl.arange(0, HALF, layout=gl.SliceLayout(1, result))
        if cu_q_ptr is None:
            o_at = o_ptr + q_place[0].to(gl.int64) * o_batch
        else:
            o_at = o_ptr + (q_place[0] - queries).to(gl.int64) * o_row
        o_at = o_at + h.to(gl.int64) * o_head + o_rows.to(gl.int64)[:, None] * o_row
        o_at = o_at + gl.arange(0, DIM, layout=gl.SliceLayout(0, result))[None, :]
        o = gl.load(o_at, mask=(o_rows < queries)[:, None], other=0.0)
        lse = gl.load(lse_ptr + at_row + row, mask=row < queries, other=float("inf")) * LOG2_E
        mbarrier.wait(q_full.index(0), turn & 1)
        delta = gl.convert_layout(gl.sum(o.to(gl.float32) * do.load(result).to(gl.float32), 1), each)
        gl.store(delta_ptr + at_row + row, delta, mask=row < queries)
        dq = gl.zeros([HALF, DIM], gl.float32, layout=result)
        clean = keys // BLOCK_N  # fully unmasked blocks
        if CAUSAL:
            clean = gl.minimum(clean, gl.maximum(row0 + shift + 1, 0) // BLOCK_N)
        masked = gl.maximum(blocks - clean, 0)
        for j in range(masked):
            key = (blocks - 1 - j) * BLOCK_N
            dq = _q_step(q, do, smem, bars, dq, lse, delta, count, row, key, keys, shift, scale, True, CAUSAL, STAGES)
            count += 1
        for _j in range(masked, blocks):
            dq = _q_step(q, do, smem, bars, dq, lse, delta, count, row, 0, keys, shift, scale, False, CAUSAL, STAGES)
            count += 1
        mbarrier.arrive(q_empty.index(0), count=1)
        mine = d_smem.index(WHICH)
        tma.store_wait(0)
        mine.store((dq * out_scale).to(dtype))
        fence_async_shared()
        _write(dq_desc, q_place, h, row0, mine)
    tma.store_wait(0)


def _bwd_q(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, queries, keys, heads, batch,
    group, tiles, scale, out_scale, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    o_batch, o_head, o_row, do_batch, do_head, do_row, dq_batch, dq_head, dq_row,
    CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
    SECTION: gl.constexpr, SNAKE: gl.constexpr,
):  # fmt: skip
    kv_heads = heads // group
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    descs = (
        _describe(q_ptr, cu_q_ptr, batch, heads, queries, q_batch, q_head, q_row, BLOCK_M, DIM),
        _describe(do_ptr, cu_q_ptr, batch, heads, queries, do_batch, do_head, do_row, BLOCK_M, DIM),
        _describe(k_ptr, cu_k_ptr, batch, kv_heads, keys, k_batch, k_head, k_row, BLOCK_N, DIM),
        _describe(v_ptr, cu_k_ptr, batch, kv_heads, keys, v_batch, v_head, v_row, BLOCK_N, DIM),
        _describe(dq_ptr, cu_q_ptr, batch, heads, queries, dq_batch, dq_head, dq_row, HALF, DIM),
    )
    smem = (
        _tiles(dtype, 1, BLOCK_M, DIM),
        _tiles(dtype, 1, BLOCK_M, DIM),
        _tiles(dtype, STAGES, BLOCK_N, DIM),
        _tiles(dtype, STAGES, BLOCK_N, DIM),
        _tiles(dtype, 2, HALF, DIM),
    )
    bars = (_barriers(1, 1), _barriers(1, 2), _barriers(STAGES, 1), _barriers(STAGES, 2))
    fence_async_shared()
    shared = (descs, smem, bars, (queries, keys, heads, batch, group, tiles, cu_q_ptr, cu_k_ptr))
    rest = (o_ptr, lse_ptr, delta_ptr, scale, out_scale, o_batch, o_head, o_row)
    gl.warp_specialize(
        [
            (_q_consume, (0, shared, rest, CAUSAL, BLOCK_M, BLOCK_N, DIM, STAGES, SECTION, SNAKE)),
            (_q_consume, (1, shared, rest, CAUSAL, BLOCK_M, BLOCK_N, DIM, STAGES, SECTION, SNAKE)),
            (_q_produce, (shared, CAUSAL, BLOCK_M, BLOCK_N, STAGES, SECTION, SNAKE)),
        ],
        [4, 1],
        [240, 24],
    )


# ---- dk and dv ------------------------------------------------------------------------------------------------------


@gluon.jit
def _kv_tile(tile, sizes, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, SECTION: gl.constexpr):
    """A tile's first key, its head, the range of blocks of queries that see the tile, and its sequence.

    Of the sequence: the number of queries and keys, the coordinates in descriptors, and the offset of lse for head 0.
    """
    queries, keys, kv_heads, batch, group, tiles, cu_q_ptr, cu_k_ptr = sizes
    if cu_k_ptr is None:
        at, head = _place(tile, gl.cdiv(keys, BLOCK_N), kv_heads * batch, SECTION)
        key = at * BLOCK_N
        z = head // kv_heads
        head = head % kv_heads
        sequence = (queries, keys, (z, 0), (z, 0), z.to(gl.int64) * (kv_heads * group) * queries)
    else:
        at, head = _place(tile, tiles // kv_heads, kv_heads, SECTION)
        i, left, listed = _sequence(at, cu_k_ptr, batch, keys, BLOCK_N)
        q_place, n_queries, begin = _place_of(cu_q_ptr, i, batch, queries)
        k_place, n_keys, begin_k = _place_of(cu_k_ptr, i, batch, keys)
        key = ((begin_k + n_keys) // BLOCK_N - begin_k // BLOCK_N - left) * BLOCK_N
        n_queries = gl.where(listed & (key < n_keys), n_queries, 0)
        sequence = (n_queries, n_keys, q_place, k_place, begin.to(gl.int64))
    first = 0
    if CAUSAL:
        first = gl.minimum(gl.maximum(key - (sequence[1] - sequence[0]), 0), sequence[0]) // BLOCK_M
    return key, head, first, gl.cdiv(sequence[0], BLOCK_M), sequence


@gluon.jit
def _kv_produce(
    shared,
    lse_ptr,
    delta_ptr,
    CAUSAL: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    SECTION: gl.constexpr,
    SNAKE: gl.constexpr,
):
    descs, smem, bars, sizes = shared
    q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc = descs
    q_smem, do_smem, k_smem, v_smem, lse_smem, delta_smem, d_smem = smem
    full, empty, row_full, kv_full, kv_empty = bars
    all_queries, group, tiles = sizes[0], sizes[4], sizes[5]
    row_bytes: gl.constexpr = q_smem.shape[2] * 2
    lanes: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    count = 0
    for turn in range(_turns(tiles, SNAKE)):
        key, h, first, last, sequence = _kv_tile(_nth(turn, SNAKE), sizes, CAUSAL, BLOCK_M, BLOCK_N, SECTION)
        queries, keys, q_place, k_place, number = sequence
        mbarrier.wait(kv_empty.index(0), (turn & 1) ^ 1)
        mbarrier.expect(kv_full.index(0), 2 * BLOCK_N * row_bytes)
        _read(k_desc, k_place, h, key, kv_full.index(0), k_smem.index(0))
        _read(v_desc, k_place, h, key, kv_full.index(0), v_smem.index(0))
        for g in range(group):
            at_row = number + (h * group + g).to(gl.int64) * all_queries
            for j in range(first, last):
                at = count % STAGES
                mbarrier.wait(empty.index(at), ((count // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(at), 2 * BLOCK_M * row_bytes)
                _read(q_desc, q_place, h * group + g, j * BLOCK_M, full.index(at), q_smem.index(at))
                _read(do_desc, q_place, h * group + g, j * BLOCK_M, full.index(at), do_smem.index(at))
                row = j * BLOCK_M + gl.arange(0, BLOCK_M, layout=lanes)
                there = row < queries
                lse = gl.load(lse_ptr + at_row + row, mask=there, other=float("inf"))
                lse_smem.index(at).store(lse * LOG2_E)
                delta_smem.index(at).store(gl.load(delta_ptr + at_row + row, mask=there, other=0.0))
                mbarrier.arrive(row_full.index(at), count=1)
                count += 1


@gluon.jit
def _kv_step(k, v, smem, bars, dk, dv, count, row, key, scale, shift, MASK: gl.constexpr, STAGES: gl.constexpr):
    """Accumulate dk and dv of 64 keys over a block of queries. Scores are transposed: each row belongs to a key."""
    q_smem, do_smem, k_smem, v_smem, lse_smem, delta_smem, d_smem = smem
    full, empty, row_full, kv_full, kv_empty = bars
    BLOCK_M: gl.constexpr = q_smem.shape[1]
    scores: gl.constexpr = _rows(BLOCK_M)
    factors: gl.constexpr = gl.DotOperandLayout(0, _rows(q_smem.shape[2]), 2)
    each: gl.constexpr = gl.SliceLayout(0, scores)
    at = count % STAGES
    phase = (count // STAGES) & 1
    q = q_smem.index(at)
    do = do_smem.index(at)
    mbarrier.wait(full.index(at), phase)
    zero = gl.zeros([HALF, BLOCK_M], gl.float32, layout=scores)
    s = warpgroup_mma(k, q.permute((1, 0)), zero, use_acc=False, is_async=True)
    dp = warpgroup_mma(v, do.permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.wait(row_full.index(at), phase)
    p = gl.exp2(s * scale - lse_smem.index(at).load(each)[None, :])
    if MASK:
        query = row + gl.arange(0, BLOCK_M, layout=each)
        p = gl.where(key[:, None] <= query[None, :] + shift, p, 0.0)
    _over(row_full.index(at), phase)
    dp, p = warpgroup_mma_wait(0, deps=[dp, p])
    ds = p * (dp - delta_smem.index(at).load(each)[None, :])
    p = gl.convert_layout(p.to(q.dtype), factors)
    ds = gl.convert_layout(ds.to(q.dtype), factors)
    dv = warpgroup_mma(p, do, dv, is_async=True)
    dk = warpgroup_mma(ds, q, dk, is_async=True)
    dk, dv = warpgroup_mma_wait(0, deps=[dk, dv])
    mbarrier.arrive(empty.index(at), count=1)
    return dk, dv


@gluon.jit
def _kv_consume(
    WHICH: gl.constexpr, shared, scale, out_scale, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr, SECTION: gl.constexpr, SNAKE: gl.constexpr,
):  # fmt: skip
    descs, smem, bars, sizes = shared
    q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc = descs
    q_smem, do_smem, k_smem, v_smem, lse_smem, delta_smem, d_smem = smem
    full, empty, row_full, kv_full, kv_empty = bars
    group, tiles = sizes[4], sizes[5]
    result: gl.constexpr = _rows(DIM)
    dtype: gl.constexpr = dk_desc.dtype
    k = k_smem.index(0).slice(WHICH * HALF, HALF)
    v = v_smem.index(0).slice(WHICH * HALF, HALF)
    count = 0
    for turn in range(_turns(tiles, SNAKE)):
        key0, h, first, last, sequence = _kv_tile(_nth(turn, SNAKE), sizes, CAUSAL, BLOCK_M, BLOCK_N, SECTION)
        queries, keys, q_place, k_place, number = sequence
        shift = keys - queries
        key0 = key0 + WHICH * HALF
        key = key0 + gl.arange(0, HALF, layout=gl.SliceLayout(1, _rows(BLOCK_M)))
        dk = gl.zeros([HALF, DIM], gl.float32, layout=result)
        dv = gl.zeros([HALF, DIM], gl.float32, layout=result)
        mbarrier.wait(kv_full.index(0), turn & 1)
        clean = first  # from here on every query sees every key
        if CAUSAL:
            clean = gl.minimum(gl.maximum(gl.cdiv(key0 + HALF - 1 - shift, BLOCK_M), first), last)
        for _g in range(group):
            for j in range(first, clean):
                dk, dv = _kv_step(k, v, smem, bars, dk, dv, count, j * BLOCK_M, key, scale, shift, True, STAGES)
                count += 1
            for j in range(clean, last):
                dk, dv = _kv_step(k, v, smem, bars, dk, dv, count, j * BLOCK_M, key, scale, shift, False, STAGES)
                count += 1
        mbarrier.arrive(kv_empty.index(0), count=1)
        dk_smem = d_smem.index(2 * WHICH)
        dv_smem = d_smem.index(2 * WHICH + 1)
        tma.store_wait(0)
        dk_smem.store((dk * out_scale).to(dtype))
        dv_smem.store(dv.to(dtype))
        fence_async_shared()
        _write(dk_desc, k_place, h, key0, dk_smem)
        _write(dv_desc, k_place, h, key0, dv_smem)
    tma.store_wait(0)


def _bwd_kv(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, queries, keys, kv_heads, batch,
    group, tiles, scale, out_scale, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row,
    CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
    SECTION: gl.constexpr, SNAKE: gl.constexpr,
):  # fmt: skip
    heads = kv_heads * group
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    descs = (
        _describe(q_ptr, cu_q_ptr, batch, heads, queries, q_batch, q_head, q_row, BLOCK_M, DIM),
        _describe(do_ptr, cu_q_ptr, batch, heads, queries, do_batch, do_head, do_row, BLOCK_M, DIM),
        _describe(k_ptr, cu_k_ptr, batch, kv_heads, keys, k_batch, k_head, k_row, BLOCK_N, DIM),
        _describe(v_ptr, cu_k_ptr, batch, kv_heads, keys, v_batch, v_head, v_row, BLOCK_N, DIM),
        _describe(dk_ptr, cu_k_ptr, batch, kv_heads, keys, dk_batch, dk_head, dk_row, HALF, DIM),
        _describe(dv_ptr, cu_k_ptr, batch, kv_heads, keys, dv_batch, dv_head, dv_row, HALF, DIM),
    )
    smem = (
        _tiles(dtype, STAGES, BLOCK_M, DIM),
        _tiles(dtype, STAGES, BLOCK_M, DIM),
        _tiles(dtype, 1, BLOCK_N, DIM),
        _tiles(dtype, 1, BLOCK_N, DIM),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], line),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], line),
        _tiles(dtype, 4, HALF, DIM),
    )
    bars = (_barriers(STAGES, 1), _barriers(STAGES, 2), _barriers(STAGES, 1), _barriers(1, 1), _barriers(1, 2))
    fence_async_shared()
    shared = (descs, smem, bars, (queries, keys, kv_heads, batch, group, tiles, cu_q_ptr, cu_k_ptr))
    gl.warp_specialize(
        [
            (
                _kv_consume,
                (0, shared, scale, out_scale, CAUSAL, BLOCK_M, BLOCK_N, DIM, STAGES, SECTION, SNAKE),
            ),
            (
                _kv_consume,
                (1, shared, scale, out_scale, CAUSAL, BLOCK_M, BLOCK_N, DIM, STAGES, SECTION, SNAKE),
            ),
            (_kv_produce, (shared, lse_ptr, delta_ptr, CAUSAL, BLOCK_M, BLOCK_N, STAGES, SECTION, SNAKE)),
        ],
        [4, 1],
        [232, 40],
    )


_STRIDES = "{0}_batch {0}_head {0}_row"


def _strides(names: str) -> str:
    return " ".join(_STRIDES.format(name) for name in names.split())


forward = Launcher(_fwd, sizes=_strides("q k v o"), descriptors=True, jit=gluon.jit)
backward_q = Launcher(_bwd_q, sizes=_strides("q k v o do dq"), descriptors=True, jit=gluon.jit)
backward_kv = Launcher(_bwd_kv, sizes=_strides("q k v do dk dv"), descriptors=True, jit=gluon.jit)
