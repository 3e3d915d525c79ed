"""Neighborhood attention: a program computes a tile of positions, and reads the tiles of keys in their windows.

Only positions whose distance is a multiple of the dilation attend to each other. So a sequence is split into `dilation`
shorter sequences, whose windows have no gaps. Softmax is computed tile by tile, as in flash attention; scores are not
stored. The backward recomputes the scores twice, once for dq and once for dk and dv. One program sums each tile of a
gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.tensors import opmath_dtype
from ..specs import neighborhood as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, planned, strided
from .lib.launch import Launcher
from .lib.products import precision
from .lib.rows import OutputSpec, wide_of

WIDEST = 256  # limit of a head's columns


@triton.jit
def _position(length, dilation, BLOCK: tl.constexpr):
    """This program's shorter sequence (its head, first position and length), and the program's first index in it."""
    tiles = tl.cdiv(tl.cdiv(length, dilation), BLOCK)
    program = tl.program_id(0)
    head = (program // tiles // dilation).to(tl.int64)
    first = program // tiles % dilation
    return head, first, (length - first + dilation - 1) // dilation, program % tiles * BLOCK


@triton.jit
def _rows(i, head, first, length, dilation):
    """The rows in memory of the indices i of a shorter sequence."""
    return head * length + first + i.to(tl.int64) * dilation


@triton.jit
def _load(ptr, i_rows, m_rows, d, BLOCK_D: tl.constexpr):
    o_d = tl.arange(0, BLOCK_D)
    return tl.load(ptr + i_rows[:, None] * d + o_d[None, :], mask=m_rows[:, None] & (o_d < d)[None, :], other=0.0)


@triton.jit
def _store(ptr, b, i_rows, m_rows, d, BLOCK_D: tl.constexpr):
    o_d = tl.arange(0, BLOCK_D)
    inside = m_rows[:, None] & (o_d < d)[None, :]
    tl.store(ptr + i_rows[:, None] * d + o_d[None, :], b.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _neighbors(
    x_ptr, z_ptr, i_m, at, half, head, first, count, length, dilation, d, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Tiles of x and z from index `at`, their rows in memory, the rows' mask, and which positions attend to which."""
    i_n = at + tl.arange(0, BLOCK_N)
    r_n, m_n = _rows(i_n, head, first, length, dilation), i_n < count
    distance = i_m[:, None] - i_n[None, :]
    near = (distance <= half) & (-distance <= half) & m_n[None, :]
    return _load(x_ptr, r_n, m_n, d, BLOCK_D), _load(z_ptr, r_n, m_n, d, BLOCK_D), r_n, m_n, near


def _fwd(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    length,
    dilation,
    half,
    d,
    SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head, first, count, begin = _position(length, dilation, BLOCK_M)
    i_m = begin + tl.arange(0, BLOCK_M)
    r_m, m_m = _rows(i_m, head, first, length, dilation), i_m < count
    b_q = _load(q_ptr, r_m, m_m, d, BLOCK_D)
    b_top = tl.full([BLOCK_M], -float("inf"), WIDE)
    b_sum = tl.zeros([BLOCK_M], WIDE)
    b_o = tl.zeros([BLOCK_M, BLOCK_D], WIDE)
    for at in range(tl.maximum(begin - half, 0), tl.minimum(begin + BLOCK_M + half, count), BLOCK_N):
        b_k, b_v, _, _, near = _neighbors(
            k_ptr, v_ptr, i_m, at, half, head, first, count, length, dilation, d, BLOCK_N, BLOCK_D
        )
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION, out_dtype=WIDE) * SCALE
        b_s = tl.where(near, b_s, -float("inf"))
        b_new = tl.maximum(b_top, tl.max(b_s, 1))
        b_to = tl.where(b_new == -float("inf"), 0.0, b_new)  # -inf - -inf would be NaN
        b_p = tl.exp(b_s - b_to[:, None])
        b_less = tl.exp(b_top - b_to)
        b_sum = b_sum * b_less + tl.sum(b_p, 1)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_less[:, None], input_precision=PRECISION, out_dtype=WIDE)
        b_top = b_new
    b_sum = tl.where(m_m, b_sum, 1.0)
    _store(o_ptr, b_o / b_sum[:, None], r_m, m_m, d, BLOCK_D)
    tl.store(lse_ptr + r_m, b_top + tl.log(b_sum), mask=m_m)


def _bwd_q(
    do_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    dq_ptr,
    delta_ptr,
    length,
    dilation,
    half,
    d,
    SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dq, and delta = do . o of each position, which `_bwd_kv` also needs."""
    head, first, count, begin = _position(length, dilation, BLOCK_M)
    i_m = begin + tl.arange(0, BLOCK_M)
    r_m, m_m = _rows(i_m, head, first, length, dilation), i_m < count
    b_q, b_g = _load(q_ptr, r_m, m_m, d, BLOCK_D), _load(do_ptr, r_m, m_m, d, BLOCK_D)
    b_delta = tl.sum(b_g.to(WIDE) * _load(o_ptr, r_m, m_m, d, BLOCK_D).to(WIDE), 1)
    tl.store(delta_ptr + r_m, b_delta, mask=m_m)
    b_lse = tl.load(lse_ptr + r_m, mask=m_m, other=0.0).to(WIDE)
    b_dq = tl.zeros([BLOCK_M, BLOCK_D], WIDE)
    for at in range(tl.maximum(begin - half, 0), tl.minimum(begin + BLOCK_M + half, count), BLOCK_N):
        b_k, b_v, _, _, near = _neighbors(
            k_ptr, v_ptr, i_m, at, half, head, first, count, length, dilation, d, BLOCK_N, BLOCK_D
        )
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION, out_dtype=WIDE) * SCALE
        b_p = tl.where(near & m_m[:, None], tl.exp(b_s - b_lse[:, None]), 0.0)
        b_dp = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION, out_dtype=WIDE)
        b_ds = (b_p * (b_dp - b_delta[:, None]) * SCALE).to(b_k.dtype)
        b_dq = tl.dot(b_ds, b_k, b_dq, input_precision=PRECISION, out_dtype=WIDE)
    _store(dq_ptr, b_dq, r_m, m_m, d, BLOCK_D)


def _bwd_kv(
    do_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    length,
    dilation,
    half,
    d,
    SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dk and dv of a tile of keys, from the tiles of positions whose windows contain some of these keys."""
    head, first, count, begin = _position(length, dilation, BLOCK_M)
    i_m = begin + tl.arange(0, BLOCK_M)
    r_m, m_m = _rows(i_m, head, first, length, dilation), i_m < count
    b_k, b_v = _load(k_ptr, r_m, m_m, d, BLOCK_D), _load(v_ptr, r_m, m_m, d, BLOCK_D)
    b_dk = tl.zeros([BLOCK_M, BLOCK_D], WIDE)
    b_dv = tl.zeros([BLOCK_M, BLOCK_D], WIDE)
    for at in range(tl.maximum(begin - half, 0), tl.minimum(begin + BLOCK_M + half, count), BLOCK_N):
        b_q, b_g, r_n, m_n, near = _neighbors(
            q_ptr, do_ptr, i_m, at, half, head, first, count, length, dilation, d, BLOCK_N, BLOCK_D
        )
        b_lse = tl.load(lse_ptr + r_n, mask=m_n, other=0.0).to(WIDE)
        b_delta = tl.load(delta_ptr + r_n, mask=m_n, other=0.0).to(WIDE)
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION, out_dtype=WIDE) * SCALE
        b_p = tl.where(near & m_m[:, None], tl.exp(b_s - b_lse[None, :]), 0.0)
        b_dv = tl.dot(b_p.to(b_g.dtype), b_g, b_dv, input_precision=PRECISION, out_dtype=WIDE)
        b_dp = tl.dot(b_v, tl.trans(b_g), input_precision=PRECISION, out_dtype=WIDE)
        b_ds = (b_p * (b_dp - b_delta[None, :]) * SCALE).to(b_q.dtype)
        b_dk = tl.dot(b_ds, b_q, b_dk, input_precision=PRECISION, out_dtype=WIDE)
    _store(dk_ptr, b_dk, r_m, m_m, d, BLOCK_D)
    _store(dv_ptr, b_dv, r_m, m_m, d, BLOCK_D)


fwd, bwd_q, bwd_kv = (Launcher(kernel, sizes="d") for kernel in (_fwd, _bwd_q, _bwd_kv))


@tunable("neighborhood", free="BLOCK_M BLOCK_N")
def tiles_of(length: int, window: int, d: int, dtype: torch.dtype) -> Tiles:
    """Tiles of keys are no wider than the window, so that few products are masked."""
    most = 64 if d * dtype.itemsize <= 256 else 32 if d * dtype.itemsize <= 512 else 16
    side = lambda n: min(most, max(16, triton.next_power_of_2(n)))
    threads = 128 if d <= 64 else 256  # with 128 threads, dk and dv of 128 columns would not fit in registers
    return Tiles(threads, 2, BLOCK_M=side(length), BLOCK_N=side(min(length, window)))


def _launch(kernel: Launcher, q: Tensor, window: int, dilation: int, scale: float | None, precision: str) -> Launch:
    batch, heads, length, d = q.shape
    shorter = -(-length // dilation)
    tiles = tiles_of(length=shorter, window=window, d=d, dtype=q.dtype)
    config = tiles.config(
        SCALE=spec.scale_of(q, scale),
        WIDE=wide_of(q.dtype),
        PRECISION=precision if q.dtype is torch.float32 else "ieee",
        BLOCK_D=max(16, triton.next_power_of_2(d)),
    )
    numbers = dict(length=length, dilation=dilation, half=min(window // 2, length), d=d)
    return Launch(kernel, (batch * heads * dilation * -(-shorter // tiles["BLOCK_M"]),), config, numbers)


def _step(q: Tensor, dilation: int) -> int:
    """The dilation, limited to the length: with any larger one, each position attends only to itself."""
    if q.shape[3] > WIDEST:
        raise NotSupported(f"heads of {q.shape[3]} columns; up to {WIDEST} fit")
    return max(1, min(dilation, q.shape[2]))


def _lse(q: Tensor) -> OutputSpec:
    return OutputSpec.of(q.shape[:3], opmath_dtype(q.dtype))


@planned(spec.neighborhood_attention, state={"precision": precision})
def neighborhood_attention(
    q: Tensor, k: Tensor, v: Tensor, kernel_size: int, dilation: int, scale: float | None, precision: str
) -> Plan:
    makes = {"o": OutputSpec.of(q.shape, q.dtype), "lse": _lse(q)}
    step = _step(q, dilation)
    if not q.numel():
        return Plan(makes)
    return Plan(makes, [_launch(fwd, q, kernel_size, step, scale, precision)], strided(q=q, k=k, v=v))


@planned(spec.neighborhood_attention_bwd, state={"precision": precision})
def neighborhood_attention_bwd(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    kernel_size: int,
    dilation: int,
    scale: float | None,
    precision: str,
) -> Plan:
    makes = {name: OutputSpec.of(q.shape, q.dtype) for name in ("dq", "dk", "dv")}
    step = _step(q, dilation)
    if not q.numel():
        return Plan(makes)
    if do.dtype is not q.dtype:
        raise NotSupported(f"a gradient of {do.dtype} for queries of {q.dtype}")
    steps = [_launch(kernel, q, kernel_size, step, scale, precision) for kernel in (bwd_q, bwd_kv)]
    return Plan({**makes, "delta": _lse(q)}, steps, strided(do=do, q=q, k=k, v=v, o=o, lse=lse))
