"""Flash attention: each program computes one tile of queries with an online softmax; scores are never stored.

The backward recomputes the scores twice, once for dq and once for dk and dv. Each gradient tile is summed by one
program without atomics, so results are deterministic. The same kernels serve dense batches and packed sequences:
sequence starts come from `cu_q` and `cu_k` if given, else from the strides. A window limits the keys of a query to
`left` before and `right` after its own position; positions are aligned at the last query and key (AT_END) or at the
first. Causal attention is a window with right = 0. Features that a call does not use (bias, ALiBi, soft-cap, sinks,
dropout) are compiled out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import Launcher
from .philox import seeded, words_at

# ---- tiles in memory ------------------------------------------------------------------------------------------------


@triton.jit
def sequence(cu_ptr, sizes_ptr, z, length, batch_stride, row_stride):
    """The offset of sequence z and its length. Dense batch: cu_ptr is None."""
    if cu_ptr is None:
        offset = z.to(tl.int64) * batch_stride
        if sizes_ptr is None:
            return offset, length
        else:
            return offset, tl.load(sizes_ptr + z).to(tl.int32)
    else:
        begin = tl.load(cu_ptr + z).to(tl.int64)
        if sizes_ptr is None:
            return begin * row_stride, (tl.load(cu_ptr + z + 1) - begin).to(tl.int32)
        else:
            return begin * row_stride, tl.load(sizes_ptr + z).to(tl.int32)


@triton.jit
def rows(ptr, i, stride, length, size, BLOCK: tl.constexpr, FULL: tl.constexpr, INSIDE: tl.constexpr = False):
    """Load rows i of a matrix [length, size], zeros out of bounds. INSIDE: no row is out of bounds."""
    o = tl.arange(0, BLOCK)
    ptrs = ptr + i.to(tl.int64)[:, None] * stride + o[None, :]
    if INSIDE and FULL:
        return tl.load(ptrs)
    elif INSIDE:
        return tl.load(ptrs, mask=(o < size)[None, :], other=0.0)
    elif FULL:
        return tl.load(ptrs, mask=(i < length)[:, None], other=0.0)
    else:
        return tl.load(ptrs, mask=(i < length)[:, None] & (o < size)[None, :], other=0.0)


@triton.jit
def tiles_of(ptr, stride, length, size, ROWS: tl.constexpr, BLOCK: tl.constexpr, ENGINE: tl.constexpr):
    """The source that `tile_rows` loads from: a TMA descriptor if ENGINE, else the pointer."""
    if ENGINE:
        return tl.make_tensor_descriptor(ptr, [length, size], [stride, 1], [ROWS, BLOCK])
    else:
        return ptr


@triton.jit
def tile_rows(
    x,
    begin,
    stride,
    length,
    size,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
    INSIDE: tl.constexpr,
    ENGINE: tl.constexpr = False,
):
    """Load ROWS rows, starting at row `begin`. Only scalars depend on `begin`, so loops stay cheap."""
    if ENGINE:
        return x.load([begin, 0])
    else:
        ptr = x + tl.cast(begin, tl.int64) * stride  # the interpreter passes a plain int
        return rows(ptr, tl.arange(0, ROWS), stride, length - begin, size, BLOCK, FULL, INSIDE)


@triton.jit
def of_queries(b, TRANSPOSED: tl.constexpr):
    """Broadcast per-query values to a tile of scores: [queries, keys], or [keys, queries] if TRANSPOSED."""
    if TRANSPOSED:
        return b[None, :]
    else:
        return b[:, None]


@triton.jit
def put(ptr, b, i, stride, length, size, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = (i < length)[:, None] & (o < size)[None, :]
    tl.store(ptr + i.to(tl.int64)[:, None] * stride + o[None, :], b.to(ptr.dtype.element_ty), mask=m)


# ---- scores ---------------------------------------------------------------------------------------------------------


@triton.jit
def shift_of(queries, keys, AT_END: tl.constexpr):
    """The index of the key that is aligned with query 0."""
    if AT_END:
        return keys - queries
    else:
        return 0 * queries


@triton.jit
def visible(i, j, shift, keys, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Whether query i attends to key j; `shift` is the index of the key that is aligned with query 0."""
    m = j < keys
    if LEFT:
        m &= j >= i + shift - left
    if RIGHT:
        m &= j <= i + shift + right
    return m


@triton.jit
def span(begin, end, shift, keys, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """(first, full_first, full_last, last): bounds of keys for the queries in [begin, end).

    The queries attend to keys in [first, last). Blocks in [full_first, full_last) need no mask.
    """
    first = 0
    full_first = 0
    if LEFT:
        first = tl.maximum(begin + shift - left, 0) // BLOCK * BLOCK
        full_first = tl.cdiv(tl.maximum(end - 1 + shift - left, 0), BLOCK) * BLOCK
    last = keys
    full_last = keys // BLOCK * BLOCK
    if RIGHT:
        last = tl.maximum(tl.minimum(end + shift + right, keys), 0)
        full_last = tl.maximum(tl.minimum((begin + shift + right + 1), keys), 0) // BLOCK * BLOCK
    full_first = tl.minimum(full_first, tl.maximum(last, first))
    full_last = tl.maximum(full_last, full_first)
    return first, full_first, full_last, last


@triton.jit
def part_of(part: tl.constexpr, first, full_first, full_last, last):
    """One of three parts of the range of `span`: part 1 needs no mask, parts 0 and 2 do."""
    if part == 0:
        return first, full_first
    elif part == 1:
        return full_first, full_last
    else:
        return full_last, last


@triton.jit
def of_head(ptr, h, WIDE: tl.constexpr):
    """Load a per-head value and multiply it by log2(e), for use with exp2; 0 if there is no pointer."""
    if ptr is None:
        return 0.0
    else:
        return tl.load(ptr + h).to(WIDE) * 1.4426950408889634


@triton.jit
def scored(
    b_q,
    b_k,
    i_m,
    i_n,
    shift,
    queries,
    keys,
    scale,
    cap,
    bias_ptr,
    bias_row,
    slopes_ptr,
    slope,
    CAP: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    TRANSPOSED: tl.constexpr = False,
):
    """The scores of a tile, multiplied by log2(e) for exp2, and the tanh of the soft-cap.

    CAP: `scale` includes the factor 2 / cap.
    """
    if TRANSPOSED:
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION, out_dtype=WIDE) * scale
    else:
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION, out_dtype=WIDE) * scale
    i_m, i_n = of_queries(i_m, TRANSPOSED), of_queries(i_n, not TRANSPOSED)
    b_level = b_s
    if CAP:
        b_level = 1.0 - 2.0 / (tl.exp2(b_s) + 1.0)
        b_s = b_level * cap
    if bias_ptr is not None:
        m = (i_m < queries) & (i_n < keys)
        b_s += tl.load(bias_ptr + i_m.to(tl.int64) * bias_row + i_n, mask=m, other=0.0).to(WIDE) * 1.4426950408889634
    if slopes_ptr is not None:
        b_s -= slope * tl.abs(i_n - i_m - shift).to(WIDE)
    return b_s, b_level


@triton.jit
def dropout_mask(key, counter, first_row, i_m, begin, width, threshold, BLOCK_N: tl.constexpr):
    """The dropout mask of a tile. One Philox group covers four keys of a query; a row has `width` keys."""
    first = (first_row + i_m) * tl.cdiv(width, 4) + begin // 4
    group = first[:, None] + tl.arange(0, BLOCK_N // 4)[None, :]
    w0, w1, w2, w3 = words_at(key, counter, group)
    limit = threshold.to(tl.uint32)
    pairs = tl.join(tl.join(w0 >= limit, w2 >= limit), tl.join(w1 >= limit, w3 >= limit))
    return tl.reshape(pairs, [i_m.shape[0], BLOCK_N])


# ---- forward --------------------------------------------------------------------------------------------------------


@triton.jit
def attended(
    b_q, b_o, b_sum, b_top, k_ptr, v_ptr, k_row, v_row, i_m, first, last, shift, queries, keys, dim, dim_v, scale,
    left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter, first_row, width, threshold,
    MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, FUSE_SCALE: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys from `first` to `last`: updates the output, the running sum and the running maximum.

    MASKED: some keys in the range may be masked. FUSE_SCALE: multiply by `scale` in the instruction that subtracts the
    maximum; `scale` must be positive, and nothing may be added to q @ k.
    """
    for begin in range(first, last, BLOCK_N):
        i_n = begin + tl.arange(0, BLOCK_N)
        b_k = tile_rows(k_ptr, begin, k_row, keys, dim, BLOCK_N, BLOCK_D, FULL, not MASKED)
        b_s, _b_level = scored(
            b_q,
            b_k,
            i_m,
            i_n,
            shift,
            queries,
            keys,
            1.0 if FUSE_SCALE else scale,
            cap,
            bias_ptr,
            bias_row,
            slopes_ptr,
            slope,
            CAP,
            WIDE,
            PRECISION,
        )
        if MASKED:
            attends = visible(i_m[:, None], i_n[None, :], shift, keys, left, right, LEFT, RIGHT)
            b_s = tl.where(attends, b_s, -float("inf"))
        b_new = tl.maximum(b_top, tl.max(b_s, 1) * (scale if FUSE_SCALE else 1.0))
        b_to = b_new
        if MASKED or bias_ptr is not None:  # only a mask or a bias makes a score -inf
            b_to = tl.where(b_new == -float("inf"), 0.0, b_new)  # inf - inf would be NaN
        b_p = tl.exp2(b_s * (scale if FUSE_SCALE else 1.0) - b_to[:, None])
        b_less = tl.exp2(b_top - b_to)
        b_sum = b_sum * b_less + tl.sum(b_p, 1)
        if DROP:
            b_p = tl.where(dropout_mask(key, counter, first_row, i_m, begin, width, threshold, BLOCK_N), b_p, 0.0)
        b_v = tile_rows(v_ptr, begin, v_row, keys, dim_v, BLOCK_N, BLOCK_E, FULL, not MASKED)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_less[:, None], input_precision=PRECISION, out_dtype=WIDE)
        b_top = b_new
    return b_o, b_sum, b_top


def _fwd(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, sink_ptr, seed_ptr, cu_q_ptr, cu_k_ptr, q_sizes_ptr, k_sizes_ptr, o_ptr,
    lse_ptr, queries, keys, heads,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    bias_batch, bias_head, bias_row, lse_batch, lse_head, group, dim, dim_v, scale, left, right,
    cap, drop_scale, threshold: tl.int64, key: tl.int64, counter: tl.int64,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, AT_END: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    FUSE_SCALE: tl.constexpr,
):  # fmt: skip
    """The last queries run first, because with a causal mask they attend to the most keys."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    z, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    o_q, n_queries = sequence(cu_q_ptr, q_sizes_ptr, z, queries, q_batch, q_row)
    o_o, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, o_batch, o_row)
    o_lse, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, lse_batch, 1)
    o_k, n_keys = sequence(cu_k_ptr, k_sizes_ptr, z, keys, k_batch, k_row)
    o_v, _ = sequence(cu_k_ptr, k_sizes_ptr, z, keys, v_batch, v_row)
    first_m = tile * BLOCK_M
    if first_m < n_queries:
        kv = (h // group).to(tl.int64)
        q_ptr += o_q + h.to(tl.int64) * q_head
        k_ptr += o_k + kv * k_head
        v_ptr += o_v + kv * v_head
        i_m = first_m + tl.arange(0, BLOCK_M)
        shift = shift_of(n_queries, n_keys, AT_END)
        b_q = rows(q_ptr, i_m, q_row, n_queries, dim, BLOCK_D, FULL)
        b_top = tl.full([BLOCK_M], -float("inf"), WIDE)
        b_sum = tl.zeros([BLOCK_M], WIDE)
        # the sink is an extra score that has no row in v: it initializes the maximum and the sum
        if sink_ptr is not None:
            b_top = tl.zeros([BLOCK_M], WIDE) + of_head(sink_ptr, h, WIDE)
            b_sum += 1.0
        b_o = tl.zeros([BLOCK_M, BLOCK_E], WIDE)
        end = tl.minimum(first_m + BLOCK_M, n_queries)
        first, full_first, full_last, last = span(first_m, end, shift, n_keys, left, right, LEFT, RIGHT, BLOCK_N)
        slope = of_head(slopes_ptr, h, WIDE)
        if bias_ptr is not None:
            bias_ptr += z.to(tl.int64) * bias_batch + h.to(tl.int64) * bias_head
        if DROP:
            key, counter = seeded(seed_ptr, key, counter)
        first_row = tl.program_id(1).to(tl.int64) * queries
        # dropout and a bias cost more than masking, so one loop masks everywhere: it compiles 3x faster
        if DROP or bias_ptr is not None:
            b_o, b_sum, b_top = attended(
                b_q, b_o, b_sum, b_top, k_ptr, v_ptr, k_row, v_row, i_m, first, last, shift, n_queries,
                n_keys, dim, dim_v, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter,
                first_row, keys, threshold, True, LEFT, RIGHT, CAP, DROP, FULL, WIDE, PRECISION, BLOCK_N, BLOCK_D,
                BLOCK_E, FUSE_SCALE,
            )  # fmt: skip
        else:
            for part in tl.static_range(0 if LEFT else 1, 3):
                low, high = part_of(part, first, full_first, full_last, last)
                b_o, b_sum, b_top = attended(
                    b_q, b_o, b_sum, b_top, k_ptr, v_ptr, k_row, v_row, i_m, low, high, shift, n_queries, n_keys, dim,
                    dim_v, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter, first_row,
                    keys, threshold, part != 1, LEFT, RIGHT, CAP, DROP, FULL, WIDE, PRECISION, BLOCK_N, BLOCK_D,
                    BLOCK_E, FUSE_SCALE,
                )  # fmt: skip
        none = b_sum == 0.0  # true if all keys of the query are masked
        b_o /= tl.where(none, 1.0, b_sum)[:, None]
        if DROP:
            b_o *= drop_scale
        put(o_ptr + o_o + h.to(tl.int64) * o_head, b_o, i_m, o_row, n_queries, dim_v, BLOCK_E)
        b_lse = tl.where(none, -float("inf"), (b_top + tl.log2(tl.where(none, 1.0, b_sum))) * 0.6931471805599453)
        tl.store(lse_ptr + o_lse + h.to(tl.int64) * lse_head + i_m, b_lse, mask=i_m < n_queries)


# ---- backward -------------------------------------------------------------------------------------------------------


@triton.jit
def probabilities(
    b_q, b_lse, b_k, i_m, i_n, shift, queries, keys, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The probabilities of a tile before dropout, and the tanh of the soft-cap.

    MASKED: some query-key pairs of the tile may be masked.
    """
    b_s, b_level = scored(
        b_q,
        b_k,
        i_m,
        i_n,
        shift,
        queries,
        keys,
        scale,
        cap,
        bias_ptr,
        bias_row,
        slopes_ptr,
        slope,
        CAP,
        WIDE,
        PRECISION,
        TRANSPOSED,
    )
    b_to = b_lse
    if bias_ptr is not None:
        b_to = tl.where(b_lse == -float("inf"), 0.0, b_lse)  # all keys masked by the bias: avoid inf - inf = NaN
    b_p = tl.exp2(b_s - of_queries(b_to, TRANSPOSED))
    if MASKED:
        i, j = of_queries(i_m, TRANSPOSED), of_queries(i_n, not TRANSPOSED)
        attends = visible(i, j, shift, keys, left, right, LEFT, RIGHT) & (i < queries)
        b_p = tl.where(attends, b_p, 0.0)
    return b_p, b_level


@triton.jit
def score_gradients(b_p, b_dp, b_delta, b_level, CAP: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The gradient of the score after the soft-cap, and the gradient of the score before it."""
    b_ds = b_p * (b_dp - of_queries(b_delta, TRANSPOSED))
    b_raw = b_ds
    if CAP:
        b_raw = b_ds * (1.0 - b_level * b_level)
    return b_ds, b_raw


@triton.jit
def in_rows(
    b_q, b_do, b_lse, b_delta, b_k, b_v, i_m, i_n, shift, queries, keys, scale, left, right, cap, bias_ptr, bias_row,
    slopes_ptr, slope, key, counter, first_row, begin, width, threshold, drop_scale,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr = True,
):  # fmt: skip
    """`score_gradients` of a tile [queries, keys]."""
    b_p, b_level = probabilities(
        b_q, b_lse, b_k, i_m, i_n, shift, queries, keys, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr,
        slope, LEFT, RIGHT, CAP, WIDE, PRECISION, MASKED, False,
    )  # fmt: skip
    b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION, out_dtype=WIDE)
    if DROP:
        keep = dropout_mask(key, counter, first_row, i_m, begin, width, threshold, BLOCK_N)
        b_dp = tl.where(keep, b_dp * drop_scale, 0.0)
    return score_gradients(b_p, b_dp, b_delta, b_level, CAP, False)


@triton.jit
def slope_of(scale, cap, CAP: tl.constexpr):
    """d score / d (q @ k), before the soft-cap: `scale` without the factors that `scored` adds for exp2 and tanh."""
    if CAP:
        return scale * cap * 0.24022650695910072  # ln(2)^2 / 2
    else:
        return scale * 0.6931471805599453


@triton.jit
def added_to_dq(
    b_dq, b_q, b_do, b_lse, b_delta, k_ptr, v_ptr, k_row, v_row, i_m, first, last, shift, queries, keys, dim, dim_v,
    scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter, first_row, width, threshold,
    drop_scale, MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """dq plus the gradient from the keys in [first, last). MASKED: some keys in the range may be masked."""
    for begin in range(first, last, BLOCK_N):
        i_n = begin + tl.arange(0, BLOCK_N)
        b_k = tile_rows(k_ptr, begin, k_row, keys, dim, BLOCK_N, BLOCK_D, FULL, not MASKED)
        b_v = tile_rows(v_ptr, begin, v_row, keys, dim_v, BLOCK_N, BLOCK_E, FULL, not MASKED)
        _b_ds, b_ds = in_rows(
            b_q, b_do, b_lse, b_delta, b_k, b_v, i_m, i_n, shift, queries, keys, scale, left, right, cap,
            bias_ptr, bias_row, slopes_ptr, slope, key, counter, first_row, begin, width, threshold, drop_scale,
            LEFT, RIGHT, CAP, DROP, WIDE, PRECISION, BLOCK_N, MASKED,
        )  # fmt: skip
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION, out_dtype=WIDE)
    return b_dq


def _bwd_q(
    do_ptr, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, bias_ptr, slopes_ptr, seed_ptr, cu_q_ptr, cu_k_ptr, q_sizes_ptr,
    k_sizes_ptr, dq_ptr, delta_ptr, queries, keys, heads,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row, bias_batch, bias_head, bias_row, lse_batch, lse_head,
    group, dim, dim_v, scale, left, right, cap, drop_scale, threshold: tl.int64, key: tl.int64, counter: tl.int64,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, AT_END: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Computes dq, and delta = sum(do * o) of each query, which the other backward kernels need."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    z, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    o_q, n_queries = sequence(cu_q_ptr, q_sizes_ptr, z, queries, q_batch, q_row)
    o_o, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, o_batch, o_row)
    o_do, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, do_batch, do_row)
    o_dq, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, dq_batch, dq_row)
    o_lse, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, lse_batch, 1)
    o_k, n_keys = sequence(cu_k_ptr, k_sizes_ptr, z, keys, k_batch, k_row)
    o_v, _ = sequence(cu_k_ptr, k_sizes_ptr, z, keys, v_batch, v_row)
    first_m = tile * BLOCK_M
    if first_m < n_queries:
        head, kv = h.to(tl.int64), (h // group).to(tl.int64)
        i_m = first_m + tl.arange(0, BLOCK_M)
        shift = shift_of(n_queries, n_keys, AT_END)
        b_q = rows(q_ptr + o_q + head * q_head, i_m, q_row, n_queries, dim, BLOCK_D, FULL)
        b_do = rows(do_ptr + o_do + head * do_head, i_m, do_row, n_queries, dim_v, BLOCK_E, FULL)
        b_of_o = rows(o_ptr + o_o + head * o_head, i_m, o_row, n_queries, dim_v, BLOCK_E, FULL)
        b_delta = tl.sum(b_do.to(WIDE) * b_of_o.to(WIDE), 1)
        o_stat = o_lse + head * lse_head + i_m
        tl.store(delta_ptr + o_stat, b_delta, mask=i_m < n_queries)
        b_lse = tl.load(lse_ptr + o_stat, mask=i_m < n_queries, other=0.0).to(WIDE) * 1.4426950408889634
        b_do = b_do.to(q_ptr.dtype.element_ty)
        b_dq = tl.zeros([BLOCK_M, BLOCK_D], WIDE)
        end = tl.minimum(first_m + BLOCK_M, n_queries)
        first, full_first, full_last, last = span(first_m, end, shift, n_keys, left, right, LEFT, RIGHT, BLOCK_N)
        k_ptr += o_k + kv * k_head
        v_ptr += o_v + kv * v_head
        slope = of_head(slopes_ptr, h, WIDE)
        if bias_ptr is not None:
            bias_ptr += z.to(tl.int64) * bias_batch + h.to(tl.int64) * bias_head
        if DROP:
            key, counter = seeded(seed_ptr, key, counter)
        first_row = tl.program_id(1).to(tl.int64) * queries
        if DROP or bias_ptr is not None:  # see the forward kernel
            b_dq = added_to_dq(
                b_dq, b_q, b_do, b_lse, b_delta, k_ptr, v_ptr, k_row, v_row, i_m, first, last, shift, n_queries,
                n_keys, dim, dim_v, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter,
                first_row, keys, threshold, drop_scale, True, LEFT, RIGHT, CAP, DROP, FULL, WIDE, PRECISION, BLOCK_N,
                BLOCK_D, BLOCK_E,
            )  # fmt: skip
        else:
            for part in tl.static_range(0 if LEFT else 1, 3):
                low, high = part_of(part, first, full_first, full_last, last)
                b_dq = added_to_dq(
                    b_dq, b_q, b_do, b_lse, b_delta, k_ptr, v_ptr, k_row, v_row, i_m, low, high, shift, n_queries,
                    n_keys, dim, dim_v, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter,
                    first_row, keys, threshold, drop_scale, part != 1, LEFT, RIGHT, CAP, DROP, FULL, WIDE, PRECISION,
                    BLOCK_N, BLOCK_D, BLOCK_E,
                )  # fmt: skip
        b_dq *= slope_of(scale, cap, CAP)
        put(dq_ptr + o_dq + head * dq_head, b_dq, i_m, dq_row, n_queries, dim, BLOCK_D)


@triton.jit
def statistic(ptr, i, length, MASKED: tl.constexpr):
    """Load per-query values. MASKED: values out of bounds are 0."""
    if MASKED:
        return tl.load(ptr + i, mask=i < length, other=0.0)
    else:
        return tl.load(ptr + i)


@triton.jit
def added_to_dkv(
    b_dk, b_dv, b_k, b_v, q, do, lse_ptr, delta_ptr, q_row, do_row, i_n, first, last, shift, queries, keys, dim,
    dim_v, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr, slope, key, counter, first_row, first_n, width,
    threshold, drop_scale,
    MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, ENGINE: tl.constexpr,
):  # fmt: skip
    """dk and dv plus the gradient from the queries in [first, last). MASKED: some pairs in the range may be masked.

    Tiles of scores are [keys, queries], so that the left operands of the products for dk and dv stay in registers.
    """
    for begin in range(first, last, BLOCK_M):
        i_m = begin + tl.arange(0, BLOCK_M)
        b_q = tile_rows(q, begin, q_row, queries, dim, BLOCK_M, BLOCK_D, FULL, not MASKED, ENGINE)
        b_lse = statistic(lse_ptr, i_m, queries, MASKED).to(WIDE) * 1.4426950408889634
        b_p, b_level = probabilities(
            b_q, b_lse, b_k, i_m, i_n, shift, queries, keys, scale, left, right, cap, bias_ptr, bias_row, slopes_ptr,
            slope, LEFT, RIGHT, CAP, WIDE, PRECISION, MASKED, True,
        )  # fmt: skip
        b_do = tile_rows(do, begin, do_row, queries, dim_v, BLOCK_M, BLOCK_E, FULL, not MASKED, ENGINE).to(b_q.dtype)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION, out_dtype=WIDE)
        b_left = b_p
        if DROP:
            keep = dropout_mask(key, counter, first_row, i_m, first_n, width, threshold, BLOCK_N)
            b_drop = tl.trans(tl.where(keep, drop_scale, 0.0).to(WIDE))  # AMD cannot transpose a tile of booleans
            b_dp *= b_drop
            b_left *= b_drop
        b_dv = tl.dot(b_left.to(b_do.dtype), b_do, b_dv, input_precision=PRECISION, out_dtype=WIDE)
        b_delta = statistic(delta_ptr, i_m, queries, MASKED)
        _b_ds, b_ds = score_gradients(b_p, b_dp, b_delta, b_level, CAP, True)
        b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION, out_dtype=WIDE)
    return b_dk, b_dv


def _bwd_kv(
    do_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, bias_ptr, slopes_ptr, seed_ptr, cu_q_ptr, cu_k_ptr, q_sizes_ptr,
    k_sizes_ptr, dk_ptr, dv_ptr, queries, keys, heads,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, do_batch, do_head, do_row,
    dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, bias_batch, bias_head, bias_row, lse_batch, lse_head,
    group, dim, dim_v, scale, left, right, cap, drop_scale, threshold: tl.int64, key: tl.int64, counter: tl.int64,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, AT_END: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, ENGINE: tl.constexpr,
):  # fmt: skip
    """Computes dk and dv of a tile of keys, summed over the query heads that share the key head.

    `heads`: the number of key heads.
    """
    z, kv = tl.program_id(1) // heads, (tl.program_id(1) % heads).to(tl.int64)
    o_q, n_queries = sequence(cu_q_ptr, q_sizes_ptr, z, queries, q_batch, q_row)
    o_do, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, do_batch, do_row)
    o_lse, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, lse_batch, 1)
    o_k, n_keys = sequence(cu_k_ptr, k_sizes_ptr, z, keys, k_batch, k_row)
    o_v, _ = sequence(cu_k_ptr, k_sizes_ptr, z, keys, v_batch, v_row)
    o_dk, _ = sequence(cu_k_ptr, k_sizes_ptr, z, keys, dk_batch, dk_row)
    o_dv, _ = sequence(cu_k_ptr, k_sizes_ptr, z, keys, dv_batch, dv_row)
    first_n = tl.program_id(0) * BLOCK_N
    if first_n < n_keys:
        i_n = first_n + tl.arange(0, BLOCK_N)
        shift = shift_of(n_queries, n_keys, AT_END)
        k = tiles_of(k_ptr + o_k + kv * k_head, k_row, n_keys, dim, BLOCK_N, BLOCK_D, ENGINE)
        v = tiles_of(v_ptr + o_v + kv * v_head, v_row, n_keys, dim_v, BLOCK_N, BLOCK_E, ENGINE)
        b_k = tile_rows(k, first_n, k_row, n_keys, dim, BLOCK_N, BLOCK_D, FULL, False, ENGINE)
        b_v = tile_rows(v, first_n, v_row, n_keys, dim_v, BLOCK_N, BLOCK_E, FULL, False, ENGINE)
        b_dk = tl.zeros([BLOCK_N, BLOCK_D], WIDE)
        b_dv = tl.zeros([BLOCK_N, BLOCK_E], WIDE)
        if DROP:
            key, counter = seeded(seed_ptr, key, counter)
        # [first, last): queries that attend to some of these keys; [full_first, full_last): queries that attend to all
        # of them. Keys out of bounds need no mask because their gradients are not stored.
        first, last = 0, n_queries
        full_first, full_last = 0, n_queries // BLOCK_M * BLOCK_M
        if RIGHT:
            first = tl.maximum(first_n - shift - right, 0) // BLOCK_M * BLOCK_M
            full_first = tl.cdiv(tl.maximum(first_n + BLOCK_N - 1 - shift - right, 0), BLOCK_M) * BLOCK_M
        if LEFT:
            last = tl.maximum(tl.minimum(first_n + BLOCK_N - shift + left, n_queries), 0)
            full_last = tl.minimum(full_last, tl.maximum(first_n - shift + left + 1, 0) // BLOCK_M * BLOCK_M)
        full_first = tl.minimum(full_first, tl.maximum(last, first))
        full_last = tl.maximum(full_last, full_first)
        for member in range(group):
            head = kv * group + member
            q = tiles_of(q_ptr + o_q + head * q_head, q_row, n_queries, dim, BLOCK_M, BLOCK_D, ENGINE)
            do = tiles_of(do_ptr + o_do + head * do_head, do_row, n_queries, dim_v, BLOCK_M, BLOCK_E, ENGINE)
            of_stat = o_lse + head * lse_head
            slope = of_head(slopes_ptr, head, WIDE)
            of_bias = bias_ptr
            if bias_ptr is not None:
                of_bias += z.to(tl.int64) * bias_batch + head * bias_head
            first_row = (z.to(tl.int64) * heads * group + head) * queries
            if DROP or bias_ptr is not None:  # see the forward kernel
                b_dk, b_dv = added_to_dkv(
                    b_dk, b_dv, b_k, b_v, q, do, lse_ptr + of_stat, delta_ptr + of_stat, q_row, do_row, i_n,
                    first, last, shift, n_queries, n_keys, dim, dim_v, scale, left, right, cap, of_bias, bias_row,
                    slopes_ptr, slope, key, counter, first_row, first_n, keys, threshold, drop_scale, True, LEFT, RIGHT,
                    CAP, DROP, FULL, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, ENGINE,
                )  # fmt: skip
            else:
                for part in tl.static_range(0 if RIGHT else 1, 3):
                    low, high = part_of(part, first, full_first, full_last, last)
                    b_dk, b_dv = added_to_dkv(
                        b_dk, b_dv, b_k, b_v, q, do, lse_ptr + of_stat, delta_ptr + of_stat, q_row, do_row, i_n,
                        low, high, shift, n_queries, n_keys, dim, dim_v, scale, left, right, cap, of_bias, bias_row,
                        slopes_ptr, slope, key, counter, first_row, first_n, keys, threshold, drop_scale, part != 1,
                        LEFT, RIGHT, CAP, DROP, FULL, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, ENGINE,
                    )  # fmt: skip
        put(dk_ptr + o_dk + kv * dk_head, b_dk * slope_of(scale, cap, CAP), i_n, dk_row, n_keys, dim, BLOCK_D)
        put(dv_ptr + o_dv + kv * dv_head, b_dv, i_n, dv_row, n_keys, dim_v, BLOCK_E)


def _bwd_bias(
    do_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, bias_ptr, slopes_ptr, seed_ptr, cu_q_ptr, cu_k_ptr, q_sizes_ptr,
    k_sizes_ptr, dbias_ptr, queries, keys, heads,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, do_batch, do_head, do_row,
    bias_batch, bias_head, bias_row, lse_batch, lse_head, group, dim, dim_v, scale, left, right, cap, drop_scale,
    batches, own_batches, own_heads, own_rows, threshold: tl.int64, key: tl.int64, counter: tl.int64,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, AT_END: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    FULL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The gradient of a contiguous bias. One program sums a tile over all broadcast dimensions in a fixed order.

    `own_batches`, `own_heads` and `own_rows` are the sizes of the bias.
    """
    tiles = tl.cdiv(keys, BLOCK_N)
    first_n, tile_m = tl.program_id(0) % tiles * BLOCK_N, tl.program_id(0) // tiles
    own_z = (tl.program_id(1) // own_heads).to(tl.int64)
    own_h = (tl.program_id(1) % own_heads).to(tl.int64)
    i_n = first_n + tl.arange(0, BLOCK_N)
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    if DROP:
        key, counter = seeded(seed_ptr, key, counter)
    count_z = tl.where(own_batches == 1, batches, 1)
    count_h = tl.where(own_heads == 1, heads, 1)
    for pair in range(count_z * count_h):
        z, head = own_z + pair // count_h, own_h + pair % count_h
        o_q, n_queries = sequence(cu_q_ptr, q_sizes_ptr, z, queries, q_batch, q_row)
        o_do, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, do_batch, do_row)
        o_lse, _ = sequence(cu_q_ptr, q_sizes_ptr, z, queries, lse_batch, 1)
        o_k, n_keys = sequence(cu_k_ptr, k_sizes_ptr, z, keys, k_batch, k_row)
        o_v, _ = sequence(cu_k_ptr, k_sizes_ptr, z, keys, v_batch, v_row)
        shift = shift_of(n_queries, n_keys, AT_END)
        kv = head // group
        # The range of queries that attend to these keys; all queries if the bias has one row.
        first = tl.where(own_rows == 1, 0, tile_m * BLOCK_M)
        last = tl.where(own_rows == 1, n_queries, tl.minimum(first + BLOCK_M, n_queries))
        if RIGHT:
            first = tl.maximum(first, tl.maximum(first_n - shift - right, 0) // BLOCK_M * BLOCK_M)
        if LEFT:
            last = tl.minimum(last, tl.maximum(first_n + BLOCK_N - shift + left, 0))
        last = tl.where(first_n < n_keys, last, 0)
        slope = of_head(slopes_ptr, head, WIDE)
        of_bias = bias_ptr + z * bias_batch + head * bias_head
        first_row = (z * heads + head) * queries
        for begin in range(first, last, BLOCK_M):
            i_m = begin + tl.arange(0, BLOCK_M)
            b_k = rows(k_ptr + o_k + kv * k_head, i_n, k_row, n_keys, dim, BLOCK_D, FULL)
            b_v = rows(v_ptr + o_v + kv * v_head, i_n, v_row, n_keys, dim_v, BLOCK_E, FULL)
            b_q = rows(q_ptr + o_q + head * q_head, i_m, q_row, n_queries, dim, BLOCK_D, FULL)
            b_do = rows(do_ptr + o_do + head * do_head, i_m, do_row, n_queries, dim_v, BLOCK_E, FULL)
            o_stat = o_lse + head * lse_head + i_m
            b_lse = tl.load(lse_ptr + o_stat, mask=i_m < n_queries, other=0.0).to(WIDE) * 1.4426950408889634
            b_delta = tl.load(delta_ptr + o_stat, mask=i_m < n_queries, other=0.0)
            b_ds, _b_raw = in_rows(
                b_q, b_do.to(q_ptr.dtype.element_ty), b_lse, b_delta, b_k, b_v, i_m, i_n, shift, n_queries, n_keys,
                scale, left, right, cap, of_bias, bias_row, slopes_ptr, slope, key, counter, first_row, first_n, keys,
                threshold, drop_scale, LEFT, RIGHT, CAP, DROP, WIDE, PRECISION, BLOCK_N,
            )  # fmt: skip
            b_sum += b_ds
    i_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    dbias_ptr += tl.program_id(1).to(tl.int64) * own_rows * keys
    if own_rows == 1:
        at = dbias_ptr + i_n
        tl.store(at, tl.sum(b_sum, 0).to(dbias_ptr.dtype.element_ty), mask=i_n < keys)
    else:
        put(dbias_ptr + first_n, b_sum, i_m, keys, own_rows, keys - first_n, BLOCK_N)


def _bwd_sink(
    lse_ptr,
    delta_ptr,
    sink_ptr,
    dsink_ptr,
    batches,
    queries,
    lse_batch: tl.int64,
    lse_head: tl.int64,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """-sum(exp(sink - lse) * delta) of a head; delta is 0 at padding."""
    head = tl.program_id(0).to(tl.int64)
    sink = tl.load(sink_ptr + head).to(WIDE)
    b_sum = tl.zeros([BLOCK], WIDE)
    for z in range(batches):
        at = head * lse_head + z * lse_batch
        for begin in range(0, queries, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            b_lse = tl.load(lse_ptr + at + i, mask=i < queries, other=float("inf")).to(WIDE)
            b_delta = tl.load(delta_ptr + at + i, mask=i < queries, other=0.0)
            b_share = tl.where(b_lse == -float("inf"), 0.0, tl.exp(sink - b_lse))
            b_sum -= b_share * b_delta
    tl.store(dsink_ptr + head, tl.sum(b_sum, 0).to(dsink_ptr.dtype.element_ty))


# ---- launchers ------------------------------------------------------------------------------------------------------

STRIDES = "batch head row"
strides_of = lambda names: " ".join(f"{n}_{s}" for n in names.split() for s in STRIDES.split())
forward = Launcher(_fwd, sizes=strides_of("q k v o bias"))
backward_q = Launcher(_bwd_q, sizes=strides_of("q k v o do dq bias"))
backward_kv = Launcher(_bwd_kv, sizes=strides_of("q k v do dk dv bias"), descriptors=True)
backward_bias = Launcher(_bwd_bias, sizes=strides_of("q k v do bias"))
backward_sink = Launcher(_bwd_sink, sizes="")
