"""Rotary embedding, in float32: a program rotates all heads that share angles, or a block of them.

Tensors may have any strides. A program computes a sine and a cosine per angle, not per element, distributes this work
over its threads, and uses the results for all its heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..specs import rope as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, planned
from .lib.launch import Launcher
from .lib.maths import libdevice
from .lib.rows import OutputSpec, wide_of


@triton.jit
def _position(starts_ptr, cu_seqlens_ptr, i_b, i_s, length, n_edges, cp_rank, CP: tl.constexpr, BLOCK_B: tl.constexpr):
    """The row of the table of angles for token i_s of sequence i_b; -1 for a token that belongs to no sequence."""
    position = i_s
    outside = i_s < 0
    if cu_seqlens_ptr is not None:
        o_b = tl.arange(0, BLOCK_B)
        b_edges = tl.load(cu_seqlens_ptr + o_b, mask=o_b < n_edges, other=2147483647).to(tl.int64)
        b_edges = tl.where(o_b < n_edges, b_edges // CP, 9223372036854775807)
        i_b = tl.sum((b_edges <= i_s).to(tl.int32), 0) - 1
        begin = tl.max(tl.where(b_edges <= i_s, b_edges, 0), 0)
        end = tl.min(tl.where(b_edges > i_s, b_edges, 9223372036854775807), 0)
        outside = (i_b < 0) | (i_b >= n_edges - 1)
        position = i_s - begin
        length = end - begin
    if CP > 1:
        half = length // 2
        position += tl.where(position < half, cp_rank, 2 * CP - cp_rank - 2) * half
    if starts_ptr is not None:
        position += tl.load(starts_ptr + i_b, mask=outside == 0, other=0).to(tl.int64)
    return tl.where(outside, -1, position)


@triton.jit
def _spread(b_x):
    """b_x, computed only once per element: the compiler moves no layout backward through this sum of one element."""
    return tl.sum(b_x[:, None], 1)


@triton.jit
def _table(angles_ptr, sin_ptr, o, m, WIDE: tl.constexpr):
    """Cosines and sines at these offsets. Where masked they are 1 and 0, which means no rotation."""
    if sin_ptr is None:
        b_a = tl.load(angles_ptr + o, mask=m, other=0.0).to(WIDE)
        return _spread(libdevice.cos(b_a)), _spread(libdevice.sin(b_a))
    else:
        b_c = tl.load(angles_ptr + o, mask=m, other=1.0).to(WIDE)
        return b_c, tl.load(sin_ptr + o, mask=m, other=0.0).to(WIDE)


@triton.jit
def _rotate(b_u, b_v, b_ca, b_sa, b_cb, b_sb, BACK: tl.constexpr):
    b_ca, b_sa, b_cb, b_sb = b_ca[None, :], b_sa[None, :], b_cb[None, :], b_sb[None, :]
    if BACK:
        return b_u * b_ca + b_v * b_sb, b_v * b_cb - b_u * b_sa
    else:
        return b_u * b_ca - b_v * b_sa, b_v * b_cb + b_u * b_sb


@triton.jit
def _along(o, stride, ADJACENT: tl.constexpr):
    """Offsets along a row. The stride is no constexpr, because each value of a constexpr compiles another kernel."""
    return o if ADJACENT else o * tl.cast(stride, tl.int64)


@triton.jit
def _read(
    x_ptr,
    o_x,
    m_r,
    stride,
    PAIRS: tl.constexpr,
    HALF: tl.constexpr,
    ADJACENT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Load the two elements of each pair."""
    if PAIRS:
        o_p = tl.arange(0, 2 * BLOCK_D)[None, :]
        m = m_r & (o_p >= 0) if HALF == BLOCK_D else m_r & (o_p < 2 * HALF)
        b_x = tl.load(x_ptr + o_x + _along(o_p, stride, ADJACENT), mask=m, other=0.0)
        b_u, b_v = tl.split(tl.reshape(b_x, [BLOCK_R, BLOCK_D, 2]))
        return b_u, b_v
    else:
        o_p = tl.arange(0, BLOCK_D)[None, :]
        m = m_r & (o_p >= 0) if HALF == BLOCK_D else m_r & (o_p < HALF)
        b_u = tl.load(x_ptr + o_x + _along(o_p, stride, ADJACENT), mask=m, other=0.0)
        b_v = tl.load(x_ptr + o_x + _along(o_p + HALF, stride, ADJACENT), mask=m, other=0.0)
        return b_u, b_v


@triton.jit
def _write(
    y_ptr, o_y, m_r, b_u, b_v, PAIRS: tl.constexpr, HALF: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Store the two elements of each pair."""
    if PAIRS:
        o_p = tl.arange(0, 2 * BLOCK_D)[None, :]
        m = m_r & (o_p >= 0) if HALF == BLOCK_D else m_r & (o_p < 2 * HALF)
        b_y = tl.reshape(tl.join(b_u, b_v), [BLOCK_R, 2 * BLOCK_D])
        tl.store(y_ptr + o_y + o_p, b_y.to(y_ptr.dtype.element_ty), mask=m)
    else:
        o_p = tl.arange(0, BLOCK_D)[None, :]
        m = m_r & (o_p >= 0) if HALF == BLOCK_D else m_r & (o_p < HALF)
        tl.store(y_ptr + o_y + o_p, b_u.to(y_ptr.dtype.element_ty), mask=m)
        tl.store(y_ptr + o_y + o_p + HALF, b_v.to(y_ptr.dtype.element_ty), mask=m)


@triton.jit
def _copy_rest(
    x_ptr,
    y_ptr,
    o_x,
    o_y,
    m_r,
    stride,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Copy the elements that are not rotated."""
    if REST > 0:
        o_e = 2 * HALF + tl.arange(0, BLOCK_E)[None, :]
        m = m_r & (o_e < 2 * HALF + REST)
        tl.store(y_ptr + o_y + o_e, tl.load(x_ptr + o_x + _along(o_e, stride, ADJACENT), mask=m), mask=m)


def _rope(
    x_ptr, y_ptr, angles_ptr, sin_ptr, starts_ptr, cu_seqlens_ptr,
    xo, xs, xb, xh, xg, xd, yo, ys, yb, yh, yg, ab, ar, length, rows, heads, n_positions, n_edges, cp_rank,
    BACK: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, ADJACENT: tl.constexpr,
    GROUPS: tl.constexpr, APART: tl.constexpr, CP: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Program (i, j) rotates block j of the heads at position i of all sequences; APART: of one, at i % length."""
    i_s = tl.program_id(0).to(tl.int64)
    i_b = i_s * 0
    if APART:
        i_b = i_s // length
        i_s = i_s % length
    o_r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = tl.full([BLOCK_R], 1, tl.int1) if FULL else o_r < rows
    i_rb, i_h = (o_r // heads).to(tl.int64), o_r % heads
    i_g = (i_h % GROUPS).to(tl.int64)
    i_h = (i_h // GROUPS).to(tl.int64)
    x_ptr += xo + i_s * xs + i_b * xb
    y_ptr += yo + i_s * ys + i_b * yb
    o_x = (i_rb * xb + i_h * xh + i_g * xg)[:, None]
    o_y = (i_rb * yb + i_h * yh + i_g * yg)[:, None]
    m_r = m_r[:, None]
    if HALF > 0:
        o_d = tl.arange(0, BLOCK_D)
        m_d = tl.full([BLOCK_D], 1, tl.int1) if HALF == BLOCK_D else o_d < HALF
        # Load x before the angles, whose addresses depend on other loads.
        b_u, b_v = _read(x_ptr, o_x, m_r, xd, PAIRS, HALF, ADJACENT, BLOCK_R, BLOCK_D)
        position = _position(starts_ptr, cu_seqlens_ptr, i_b, i_s, length, n_edges, cp_rank, CP, BLOCK_B)
        there = (position >= 0) & (position < n_positions)
        at = tl.where(there, position, 0) * ar + i_b * ab
        b_ca, b_sa = _table(angles_ptr, sin_ptr, at + (o_d * 2 if PAIRS else o_d), m_d & there, WIDE)
        b_cb, b_sb = _table(angles_ptr, sin_ptr, at + (o_d * 2 + 1 if PAIRS else o_d + HALF), m_d & there, WIDE)
        b_u, b_v = _rotate(b_u.to(WIDE), b_v.to(WIDE), b_ca, b_sa, b_cb, b_sb, BACK)
        _write(y_ptr, o_y, m_r, b_u, b_v, PAIRS, HALF, BLOCK_R, BLOCK_D)
    _copy_rest(x_ptr, y_ptr, o_x, o_y, m_r, xd, HALF, REST, ADJACENT, BLOCK_E)


rope_kernel = Launcher(_rope, sizes="xo xs xb xh xg yo ys yb yh yg ab ar")


@tunable("rope.rows", free="BLOCK_R")
def tiles(rows: int, width: int, dtype: torch.dtype) -> Tiles:
    """BLOCK_R heads per program. More heads share one sine; fewer heads give more programs."""
    width = triton.next_power_of_2(width)  # the rotated and the copied columns are two blocks
    most = max(1, 8192 // (width * max(1, dtype.itemsize // 2)))
    block = min(triton.next_power_of_2(rows), most)
    return Tiles(min(256, max(32, block * width // 32)), BLOCK_R=block)


# ---- plans ----------------------------------------------------------------------------------------------------------


class HeadStrides(NamedTuple):
    """The memory layout of heads: the offset of the first head, and the strides of sequence, batch, head and group."""

    offset: int
    length: int
    batch: int
    head: int
    group: int = 0

    @classmethod
    def of(cls, layout: str, strides: tuple[int, ...]) -> HeadStrides:
        by = dict(zip(layout.replace("t", "s"), strides, strict=True))
        return cls(0, by["s"], by.get("b", 0), by["h"])


class RotaryShape(NamedTuple):
    batch: int
    length: int
    heads: int
    groups: int
    width: int


def _launch(
    x: Tensor,
    reads: HeadStrides,
    writes: HeadStrides,
    shape: RotaryShape,
    angles: Tensor | None,
    sin: Tensor | None,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
    back: bool,
) -> Launch:
    """Rotate the heads of x; without angles, only copy them."""
    d2, row, each, positions = 0, 0, 0, 0
    if angles is not None:
        d2, row, positions = angles.shape[-1], angles.stride(0 if angles.dim() == 4 else -2), spec.rows_of(angles)
        each = angles.stride(0) if angles.dim() == 3 and angles.shape[0] > 1 else 0
        if d2 and (angles.stride(-1) != 1 or (sin is not None and sin.stride() != angles.stride())):
            raise NotSupported("a table whose rows are not contiguous, or cosines and sines with different strides")
    apart = shape.batch > 1 and ((starts is not None and cu_seqlens is None) or each > 0)
    heads = shape.heads * shape.groups
    rows = heads if apart else heads * shape.batch
    half, rest = d2 // 2, shape.width - d2
    blocks = dict(BLOCK_D=triton.next_power_of_2(max(half, 1)), BLOCK_E=triton.next_power_of_2(max(rest, 1)))
    tile = tiles(rows=rows, width=2 * blocks["BLOCK_D"] * (half > 0) + blocks["BLOCK_E"] * (rest > 0), dtype=x.dtype)
    edges = 0 if cu_seqlens is None else cu_seqlens.shape[0]
    config = tile.config(
        BACK=back,
        PAIRS=bool(interleaved),
        HALF=half,
        REST=rest,
        ADJACENT=x.stride(-1) == 1,
        GROUPS=shape.groups,
        APART=apart,
        CP=cp_size,
        FULL=rows % tile["BLOCK_R"] == 0,
        WIDE=wide_of(x.dtype),
        BLOCK_B=triton.next_power_of_2(max(edges, 1)),
        **blocks,
    )
    grid = (shape.length * (shape.batch if apart else 1), -(-rows // tile["BLOCK_R"]))
    if grid[0] >= 2**31 or grid[1] >= 2**16:
        raise NotSupported(f"a grid of {grid[0]} x {grid[1]} programs is more than a launch can have")
    numbers = dict(zip(("xo", "xs", "xb", "xh", "xg"), reads)) | dict(zip(("yo", "ys", "yb", "yh", "yg"), writes))
    numbers |= dict(
        xd=x.stride(-1),
        ab=each,
        ar=row,
        length=shape.length,
        rows=rows,
        heads=heads,
        n_positions=positions,
        n_edges=edges,
    )
    return Launch(rope_kernel, grid, config, {**numbers, "cp_rank": cp_rank})


def _rotated(
    x: Tensor,
    angles: Tensor,
    sin: Tensor | None,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    layout: str,
    names: Mapping[str, str],
    **form: Any,
) -> Plan:
    """Rotate all heads of a tensor. `names`: what the op calls the kernel's x and y."""
    output = OutputSpec.of(x.shape, x.dtype)
    makes = {names["y"]: output}
    if not x.numel():
        return Plan(makes)
    sizes = dict(zip(layout.replace("t", "s"), x.shape, strict=True))
    shape = RotaryShape(sizes.get("b", 1), sizes["s"], sizes["h"], 1, sizes["d"])
    strides = (HeadStrides.of(layout, stride) for stride in (x.stride(), output.stride))
    return Plan(makes, [_launch(x, *strides, shape, angles, sin, starts, cu_seqlens, **form).named(**names)])


@planned(spec.rope_fwd)
def rope_fwd(
    x: Tensor,
    angles: Tensor,
    sin: Tensor | None,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    layout: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Plan:
    form = dict(interleaved=interleaved, cp_size=cp_size, cp_rank=cp_rank, back=False)
    return _rotated(x, angles, sin, starts, cu_seqlens, layout, {"x": "x", "y": "y"}, **form)


@planned(spec.rope_bwd)
def rope_bwd(
    dy: Tensor,
    angles: Tensor,
    sin: Tensor | None,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    layout: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Plan:
    form = dict(interleaved=interleaved, cp_size=cp_size, cp_rank=cp_rank, back=True)
    return _rotated(dy, angles, sin, starts, cu_seqlens, layout, {"x": "dy", "y": "dx"}, **form)


# ---- q and k together -----------------------------------------------------------------------------------------------


@triton.jit
def _offsets(o_r, rows, xb, xh, yb, yh, HEADS: tl.constexpr, FULL: tl.constexpr):
    """The offsets in x and in y of these rows, and whether each row exists. A row is one head of one sequence."""
    i_b, i_h = (o_r // HEADS).to(tl.int64), (o_r % HEADS).to(tl.int64)
    m_r = tl.full(o_r.shape, 1, tl.int1) if FULL else o_r < rows
    return (i_b * xb + i_h * xh)[:, None], (i_b * yb + i_h * yh)[:, None], m_r[:, None]


def _rope_qk(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, cos_ptr, sin_ptr,
    qs, qb, qh, qd, ks, kb, kh, kd, qos, qob, qoh, kos, kob, koh, cb, cs, cd, length, q_rows, k_rows,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, BACK: tl.constexpr, PAIRS: tl.constexpr, PER_PAIR: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr, Q_ADJACENT: tl.constexpr, K_ADJACENT: tl.constexpr,
    C_ADJACENT: tl.constexpr, APART: tl.constexpr, Q_FULL: tl.constexpr, K_FULL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Program (i, j) rotates block j of the rows of q and of k at position i, of all sequences or, if APART, of one."""
    i_s = tl.program_id(0).to(tl.int64)
    i_b = i_s * 0
    if APART:
        i_b = i_s // length
        i_s = i_s % length
    q_ptr += i_s * qs + i_b * qb
    k_ptr += i_s * ks + i_b * kb
    q_out_ptr += i_s * qos + i_b * qob
    k_out_ptr += i_s * kos + i_b * kob
    o_q = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    o_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    o_q, o_qo, m_q = _offsets(o_q, q_rows, qb, qh, qob, qoh, Q_HEADS, Q_FULL)
    o_k, o_ko, m_k = _offsets(o_k, k_rows, kb, kh, kob, koh, K_HEADS, K_FULL)
    if HALF > 0:
        # load all of q and k before computing anything
        b_qu, b_qv = _read(q_ptr, o_q, m_q, qd, PAIRS, HALF, Q_ADJACENT, BLOCK_Q, BLOCK_D)
        b_ku, b_kv = _read(k_ptr, o_k, m_k, kd, PAIRS, HALF, K_ADJACENT, BLOCK_K, BLOCK_D)
        o_d = tl.arange(0, BLOCK_D)
        m_d = tl.full([BLOCK_D], 1, tl.int1) if HALF == BLOCK_D else o_d < HALF
        at = i_s * cs + i_b * cb
        o_a = o_d * 2 if PAIRS and not PER_PAIR else o_d
        b_ca, b_sa = _table(cos_ptr, sin_ptr, at + _along(o_a, cd, C_ADJACENT), m_d, WIDE)
        b_cb, b_sb = b_ca, b_sa
        if not PER_PAIR:
            b_cb, b_sb = _table(cos_ptr, sin_ptr, at + _along(o_a + (1 if PAIRS else HALF), cd, C_ADJACENT), m_d, WIDE)
        b_qu, b_qv = _rotate(b_qu.to(WIDE), b_qv.to(WIDE), b_ca, b_sa, b_cb, b_sb, BACK)
        _write(q_out_ptr, o_qo, m_q, b_qu, b_qv, PAIRS, HALF, BLOCK_Q, BLOCK_D)
        b_ku, b_kv = _rotate(b_ku.to(WIDE), b_kv.to(WIDE), b_ca, b_sa, b_cb, b_sb, BACK)
        _write(k_out_ptr, o_ko, m_k, b_ku, b_kv, PAIRS, HALF, BLOCK_K, BLOCK_D)
    _copy_rest(q_ptr, q_out_ptr, o_q, o_qo, m_q, qd, HALF, REST, Q_ADJACENT, BLOCK_E)
    _copy_rest(k_ptr, k_out_ptr, o_k, o_ko, m_k, kd, HALF, REST, K_ADJACENT, BLOCK_E)


rope_qk_kernel = Launcher(_rope_qk, sizes="qs qb qh ks kb kh qos qob qoh kos kob koh cb cs")


@tunable("rope_qk.rows", free="BLOCK_R")
def qk_tiles(rows: int, width: int, dtype: torch.dtype) -> Tiles:
    """BLOCK_R heads of q and k per program. More heads share one sine; fewer heads give more programs."""
    width = triton.next_power_of_2(width)
    most = max(2, min(64, 8192 // (width * max(1, dtype.itemsize // 2))))
    block = min(triton.next_power_of_2(rows), most)
    return Tiles(min(256, max(32, block * width // 32)), BLOCK_R=block)


def _strides(shape: tuple[int, ...], strides: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    """Strides of sequence, batch and head. A dimension of size 1 has an arbitrary stride, so 0 is returned for it."""
    by = {name: s if n > 1 else 0 for name, n, s in zip(layout, shape, strides, strict=True)}
    return by["s"], by["b"], by["h"]


def _both(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str,
    memory: str,
    interleaved: bool,
    per_pair: bool,
    back: bool,
    names: Mapping[str, str],
) -> Plan:
    """Rotate q and k. `names`: what the op calls q, k and the results."""
    makes: dict[str, OutputSpec] = {}
    numbers: dict[str, int] = {}
    sizes = dict(zip(layout, q.shape, strict=True))
    for name, x in (("q", q), ("k", k)):
        output = OutputSpec.of(x.shape, x.dtype)
        if memory != layout:
            a, s, h, d = OutputSpec.of((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype).stride
            output = output._replace(stride=(a, h, s, d))
        makes[names[f"{name}_out"]] = output
        reads, writes = (_strides(tuple(x.shape), strides, layout) for strides in (x.stride(), output.stride))
        numbers |= dict(zip((f"{name}s", f"{name}b", f"{name}h"), reads, strict=True))
        numbers |= dict(zip((f"{name}os", f"{name}ob", f"{name}oh"), writes, strict=True))
    if not q.numel() and not k.numel():
        return Plan(makes)
    apart = sizes["b"] > 1 and cos.dim() == 3 and cos.shape[0] > 1
    q_heads, k_heads = (x.shape[layout.index("h")] for x in (q, k))
    times = 1 if apart else sizes["b"]
    q_rows, k_rows = q_heads * times, k_heads * times
    half = cos.shape[-1] if per_pair else cos.shape[-1] // 2
    rest = sizes["d"] - 2 * half
    blocks = dict(BLOCK_D=triton.next_power_of_2(max(half, 1)), BLOCK_E=triton.next_power_of_2(max(rest, 1)))
    width = 2 * blocks["BLOCK_D"] * (half > 0) + blocks["BLOCK_E"] * (rest > 0)
    tile = qk_tiles(rows=q_rows + k_rows, width=width, dtype=q.dtype)
    # Each program rotates some heads of q and some of k, so k's blocks are smaller: k has fewer heads.
    programs = triton.next_power_of_2(-(-(q_rows + k_rows) // tile["BLOCK_R"]))
    block = lambda rows: triton.next_power_of_2(max(1, -(-rows // programs)))
    q_block, k_block = block(q_rows), block(k_rows)
    strided = ["cos", "sin"] if cos.stride() != sin.stride() else []
    table = OutputSpec.of(cos.shape, cos.dtype).stride if strided else cos.stride()
    config = Tiles(tile.threads, tile.stages).config(
        Q_HEADS=max(1, q_heads),
        K_HEADS=max(1, k_heads),
        BACK=back,
        PAIRS=bool(interleaved),
        PER_PAIR=bool(per_pair),
        HALF=half,
        REST=rest,
        Q_ADJACENT=q.stride(-1) == 1,
        K_ADJACENT=k.stride(-1) == 1,
        C_ADJACENT=table[-1] == 1,
        APART=apart,
        Q_FULL=q_rows == programs * q_block,
        K_FULL=k_rows == programs * k_block,
        WIDE=wide_of(q.dtype),
        BLOCK_Q=q_block,
        BLOCK_K=k_block,
        **blocks,
    )
    grid = (sizes["s"] * (sizes["b"] if apart else 1), programs)
    if grid[0] >= 2**31 or grid[1] >= 2**16:
        raise NotSupported(f"a grid of {grid[0]} x {grid[1]} programs is more than a launch can have")
    numbers |= dict(cb=table[0] if apart else 0, cs=table[-2] if sizes["s"] > 1 else 0)
    numbers |= dict(qd=q.stride(-1), kd=k.stride(-1), cd=table[-1], length=sizes["s"], q_rows=q_rows, k_rows=k_rows)
    return Plan(makes, [Launch(rope_qk_kernel, grid, config, numbers, names)], strided)


@planned(spec.rope_qk)
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, memory: str, interleaved: bool, per_pair: bool
) -> Plan:
    names = {"q_out": "q_out", "k_out": "k_out"}
    return _both(q, k, cos, sin, layout, memory, interleaved, per_pair, False, names)


@planned(spec.rope_qk_bwd)
def rope_qk_bwd(
    dq_out: Tensor,
    dk_out: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str,
    memory: str,
    interleaved: bool,
    per_pair: bool,
) -> Plan:
    names = {"q": "dq_out", "k": "dk_out", "q_out": "dq", "k_out": "dk"}
    return _both(dq_out, dk_out, cos, sin, layout, memory, interleaved, per_pair, True, names)


# ---- packed q, k and v ----------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """q, k or v: its shape, and where its heads are in the packed tensor and in its own tensor."""

    shape: RotaryShape
    packed: HeadStrides
    own: HeadStrides
    output: OutputSpec


def _parts(layout: str, packed: tuple[int, ...], split: list[int], dtype: torch.dtype) -> list[Part]:
    """q, k and v of packed heads. `split`: how many columns of a packed head belong to q, to k and to v."""
    by = dict(zip(layout, packed, strict=True))
    strides = dict(zip(layout, OutputSpec.of(packed, dtype).stride, strict=True))
    parts, offset = [], 0
    for total, groups in zip(split, (split[0] // split[1], 1, 1), strict=True):
        width, heads = total // groups, by["h"]
        inside = HeadStrides(offset, strides["s"], strides["b"], strides["h"], width)
        output = OutputSpec.of((*packed[:2], heads * groups, width), dtype)
        at = dict(zip(layout, output.stride, strict=True))
        own = HeadStrides(0, at["s"], at["b"], groups * width, width)
        parts.append(Part(RotaryShape(by["b"], by["s"], heads, groups, width), inside, own, output))
        offset += total
    return parts


@planned(spec.rope_qkv_fwd)
def rope_qkv_fwd(
    qkv: Tensor,
    q_angles: Tensor,
    k_angles: Tensor,
    split: list[int],
    starts: Tensor | None,
    layout: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Plan:
    if not qkv.is_contiguous():
        raise NotSupported("packed heads that are not contiguous")
    q, k, v = _parts(layout, tuple(qkv.shape), split, qkv.dtype)
    makes = {"q": q.output, "k": k.output, "v": v.output}
    if not qkv.numel():
        return Plan(makes)
    form: dict[str, Any] = dict(interleaved=interleaved, cp_size=cp_size, cp_rank=cp_rank, back=False)
    read = lambda part, angles, starts: _launch(
        qkv, part.packed, part.own, part.shape, angles, None, starts, None, **form
    ).named(x="qkv")
    return Plan(
        makes,
        [
            read(q, q_angles, starts).named(y="q", angles="q_angles"),
            read(k, k_angles, starts).named(y="k", angles="k_angles"),
            read(v, None, None).named(y="v", starts=None),
        ],
    )


@planned(spec.rope_qkv_bwd)
def rope_qkv_bwd(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    q_angles: Tensor,
    k_angles: Tensor,
    split: list[int],
    starts: Tensor | None,
    layout: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Plan:
    output = OutputSpec.of((*dk.shape[:3], sum(split)), dk.dtype)
    makes = {"dqkv": output}
    if not dk.numel():
        return Plan(makes)
    form: dict[str, Any] = dict(interleaved=interleaved, cp_size=cp_size, cp_rank=cp_rank, back=True)

    def write(grad: Tensor, part: Part, angles: Tensor | None, starts: Tensor | None) -> Launch:
        at = HeadStrides.of(layout, grad.stride())
        at = at._replace(head=at.head * part.shape.groups, group=at.head)
        return _launch(grad, at, part.packed, part.shape, angles, None, starts, None, **form).named(y="dqkv")

    q, k, v = _parts(layout, output.shape, split, dk.dtype)
    return Plan(
        makes,
        [
            write(dq, q, q_angles, starts).named(x="dq", angles="q_angles"),
            write(dk, k, k_angles, starts).named(x="dk", angles="k_angles"),
            write(dv, v, None, None).named(x="dv", starts=None),
        ],
    )
