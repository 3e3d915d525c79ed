"""Distances between all pairs of vectors, in tiles of pairs, so that a vector is loaded once per tile, not per pair.

One kernel serves both forwards, another both backwards. pdist returns the pairs (i, j) of one set with i < j, row by
row. A gradient is summed by one program in order, without atomics. Euclidean distances of more than 25 vectors are left
to torch: ATen composes them from matmul and pointwise ops.
"""

# Without `from __future__ import annotations`: as a string, the annotation tl.float64 of p would be ignored by Triton,
# and p would be passed as a float32.

import math
from collections.abc import Callable
from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import AnyTensor, at_least, between, dtypes, same_dtype
from ..core.errors import NotSupported
from ..core.registry import impl
from ..core.rules import nonempty
from ..specs import distance as spec
from .lib.cells import check_tensors
from .lib.config import Tiles, tunable
from .lib.launch import Launcher
from .lib.maths import div, libdevice, sqrt
from .lib.meta import on_meta
from .lib.plans import decided
from .lib.rows import DEVICES, OutputSpec

INF = tl.constexpr(float("inf"))
MATMUL = 25  # with more vectors than this, torch computes Euclidean distances by a matrix product
MODES = {None: "large", 0: "large", 1: "always", 2: "never"}  # compute_mode -> when torch uses a matrix product

# ---- device code ----------------------------------------------------------------------------------------------------


@triton.jit
def added(d, p, NORM: tl.constexpr):
    """What a difference of two elements adds to the sum."""
    if NORM == "zero":
        y = (d != 0).to(d.dtype)
    elif NORM == "two":
        y = d * d
    elif NORM == "p":
        y = libdevice.pow(tl.abs(d), p + tl.zeros_like(d))
    else:
        y = tl.abs(d)
    return y


@triton.jit
def finished(total, p, NORM: tl.constexpr):
    if NORM == "two":
        y = sqrt(total)
    elif NORM == "p":
        y = libdevice.pow(total, div(tl.zeros_like(total) + 1.0, p + tl.zeros_like(total)))
    else:
        y = total
    return y


@triton.jit
def signum(d):
    return (d > 0).to(d.dtype) - (d < 0).to(d.dtype)


@triton.jit
def slope(d, g, dist, p, NORM: tl.constexpr):
    """The gradient of one element of the first vector. torch's formulas differ for p < 1, p < 2 and p >= 2."""
    if NORM == "one":
        y = g * signum(d)
    elif NORM == "inf":
        y = g * signum(d) * (tl.abs(d) == dist).to(d.dtype)
    elif NORM == "two":
        y = tl.where(dist == 0, 0.0, div(g * d, dist + tl.zeros_like(d)))
    else:
        power = libdevice.pow(dist + tl.zeros_like(d), p - 1 + tl.zeros_like(d))
        if NORM == "below one":
            nothing = (dist == 0) | (d == 0)
            lead = signum(d) * libdevice.pow(tl.abs(d), p - 1 + tl.zeros_like(d))
        elif NORM == "below two":
            nothing = dist == 0
            lead = signum(d) * libdevice.pow(tl.abs(d), p - 1 + tl.zeros_like(d))
        else:
            nothing = dist == 0
            lead = d * libdevice.pow(tl.abs(d), p - 2 + tl.zeros_like(d))
        y = tl.where(nothing, 0.0, div(lead * g, power))
    return y


@triton.jit
def condensed(i, j, n):
    """The index of the pair (i, j) in the condensed result, which has the pairs above the diagonal, row by row."""
    low = tl.minimum(i, j).to(tl.int64)
    high = tl.maximum(i, j).to(tl.int64)
    return low * n - low * (low + 1) // 2 + high - low - 1


# ---- kernels --------------------------------------------------------------------------------------------------------


def _forward(
    a_ptr,
    b_ptr,
    y_ptr,
    k,
    m,
    n,
    p: tl.float64,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[i, j] = |a[i] - b[j]|; PAIRS: a is b, and only pairs with i < j are written."""
    batch = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(n, BLOCK_N)
    first_m = (tl.program_id(0) // across) * BLOCK_M
    first_n = (tl.program_id(0) % across) * BLOCK_N
    if (not PAIRS) | (first_n + BLOCK_N > first_m):
        wide = a_ptr.dtype.element_ty
        o_m, o_n, o_k = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        a_row = a_ptr + (batch * m + o_m.to(tl.int64))[:, None] * k + o_k[None, :]
        b_row = b_ptr + (batch * n + o_n.to(tl.int64))[:, None] * k + o_k[None, :]
        power = tl.full([], p, wide)
        total = tl.zeros([BLOCK_M, BLOCK_N], wide)
        for start in range(0, k, BLOCK_K):
            m_k = (start + o_k)[None, :] < k
            a = tl.load(a_row + start, mask=(o_m < m)[:, None] & m_k, other=0.0)
            b = tl.load(b_row + start, mask=(o_n < n)[:, None] & m_k, other=0.0)
            d = added(a[:, None, :] - b[None, :, :], power, NORM)
            if NORM == "inf":
                total = tl.maximum(total, tl.max(tl.where(d > 0, d, 0.0), 2))  # ignores NaN
            else:
                total += tl.sum(d, 2)
        i, j = o_m[:, None], o_n[None, :]
        inside = (i < m) & (j < n)
        if PAIRS:
            tl.store(y_ptr + condensed(i, j, n), finished(total, power, NORM), mask=inside & (i < j))
        else:
            tl.store(y_ptr + (batch * m + i) * n + j, finished(total, power, NORM), mask=inside)


def _backward(
    dy_ptr,
    a_ptr,
    b_ptr,
    y_ptr,
    da_ptr,
    k,
    m,
    n,
    p: tl.float64,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradient of a[i]: the sum of its terms for all b[j]."""
    batch = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(k, BLOCK_K)
    o_m = (tl.program_id(0) // across) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_k = (tl.program_id(0) % across) * BLOCK_K + tl.arange(0, BLOCK_K)
    wide = a_ptr.dtype.element_ty
    p = tl.full([], p, wide)
    o_a = (batch * m + o_m.to(tl.int64))[:, None] * k + o_k[None, :]
    m_a = (o_m < m)[:, None] & (o_k < k)[None, :]
    a = tl.load(a_ptr + o_a, mask=m_a, other=0.0)
    b_ptr += batch * n * k
    total = tl.zeros([BLOCK_M, BLOCK_K], wide)
    for j in range(n):
        if PAIRS:
            at = condensed(o_m, o_m * 0 + j, n)
            valid = (o_m < m) & (o_m != j)
        else:
            at = (batch * m + o_m.to(tl.int64)) * n + j
            valid = o_m < m
        g = tl.load(dy_ptr + at, mask=valid, other=0.0)
        dist = tl.load(y_ptr + at, mask=valid, other=0.0)
        b = tl.load(b_ptr + tl.full([], j, tl.int64) * k + o_k, mask=o_k < k, other=0.0)
        added_now = slope(a - b[None, :], g[:, None], dist[:, None], p, NORM)
        total += tl.where(valid[:, None], added_now, 0.0)
    tl.store(da_ptr + o_a, total, mask=m_a)


forward = Launcher(_forward, sizes="k")
backward = Launcher(_backward, sizes="k")


@tunable("distance.forward")
def forward_tiles(dtype: torch.dtype) -> Tiles:
    """Tiles of 32 x 32 pairs, eight elements of each vector at a time: the differences take 64 registers per thread."""
    return Tiles(128, BLOCK_M=32 if dtype.itemsize <= 4 else 16, BLOCK_N=32, BLOCK_K=8)


@tunable("distance.backward", free="BLOCK_M BLOCK_K")
def backward_tiles(k: int, dtype: torch.dtype) -> Tiles:
    across = min(128, max(16, triton.next_power_of_2(k)))
    return Tiles(128, BLOCK_M=max(1, 1024 // across), BLOCK_K=across)


# ---- plans ----------------------------------------------------------------------------------------------------------


WIDE = dtypes((torch.float32, torch.float64))
Points = AnyTensor[Tensor, "*batch n k", WIDE, nonempty()]
OnePoints = AnyTensor[Tensor, "n k", WIDE, nonempty()]
Order = Annotated[float, at_least(0)]
PositiveOrder = Annotated[float, between(0, open=True)]  # p = 0 is not supported: its gradient is zero


def _norm(p: float) -> str:
    return {0.0: "zero", 1.0: "one", 2.0: "two", math.inf: "inf"}.get(p, "p")


def _slope_norm(p: float) -> str:
    norm = _norm(p)
    return norm if norm != "p" else "below one" if p < 1 else "below two" if p < 2 else "above two"


# batch shape and its product; vectors in a and in b; elements per vector
Vectors = tuple[tuple[int, ...], int, int, int, int]


def _vectors(a: Tensor, b: Tensor) -> Vectors:
    try:
        batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    except RuntimeError as error:
        raise NotSupported(str(error)) from None
    if math.prod(batch) > 65535:
        raise NotSupported("more than 65535 batches")
    return batch, math.prod(batch), a.shape[-2], b.shape[-2], a.shape[-1]


def _launch_forward(
    dtype: torch.dtype, shape: tuple[int, ...], batches: int, m: int, n: int, k: int, norm: str, pairs: bool
) -> Callable[..., Tensor]:
    """A launch (a, b, p) -> y for contiguous vectors."""
    tiles = forward_tiles(dtype=dtype)
    config = tiles.config(even=k % 16 == 0, NORM=norm, PAIRS=pairs)
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]), batches, 1)
    return forward.ready(grid, (k, m, n), config, {2: OutputSpec.of(shape, dtype)})


def _launch_backward(
    dtype: torch.dtype, shape: tuple[int, ...], batches: int, m: int, n: int, k: int, norm: str, pairs: bool
) -> Callable[..., Tensor]:
    """A launch (dy, a, b, y, p) -> da for contiguous tensors."""
    tiles = backward_tiles(k=k, dtype=dtype)
    config = tiles.config(even=k % 16 == 0, NORM=norm, PAIRS=pairs)
    grid = (-(-m // tiles["BLOCK_M"]) * -(-k // tiles["BLOCK_K"]), batches, 1)
    return backward.ready(grid, (k, m, n), config, {4: OutputSpec.of(shape, dtype)})


def _whole(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """x, expanded to all batches and made contiguous."""
    return x.expand(*batch, *x.shape[-2:]).contiguous()


# ---- pairs of two sets ----------------------------------------------------------------------------------------------


@decided
def _cdist(
    x1: Points, x2: AnyTensor[Tensor, "... m k", same_dtype("x1"), nonempty()], p: Order, mode: int | None
) -> Callable[[Tensor, Tensor], Tensor]:
    check_tensors(x1, x2)
    on_meta(torch.ops.aten._cdist_forward, x1, x2, p, mode)
    batch, batches, m, n, k = _vectors(x1, x2)
    when = MODES.get(mode, "always")
    if p == 2 and (when == "always" or (when == "large" and max(m, n) > MATMUL)):
        raise NotSupported("a Euclidean distance by a matrix product, which ATen composes")
    run = _launch_forward(x1.dtype, (*batch, m, n), batches, m, n, k, _norm(p), False)
    return lambda x1, x2: run(_whole(x1, batch), _whole(x2, batch), p)


@impl(spec.ops["_cdist_forward"], devices=DEVICES)
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _cdist(x1, x2, float(p), compute_mode)(x1, x2)


@decided
def _cdist_bwd(
    dy: AnyTensor[Tensor, "*y", same_dtype("x1")],
    x1: Points,
    x2: AnyTensor[Tensor, "... m k", same_dtype("x1"), nonempty()],
    p: PositiveOrder,
    y: AnyTensor[Tensor, "*y", same_dtype("x1")],
) -> Callable[..., Tensor]:
    check_tensors(dy, x1, x2, y)
    batch, batches, m, n, k = _vectors(x1, x2)
    if dy.shape != (*batch, m, n):
        raise NotSupported("a gradient of another shape")
    run = _launch_backward(x1.dtype, (*batch, m, k), batches, m, n, k, _slope_norm(p), False)
    return lambda dy, x1, x2, y: run(dy.contiguous(), _whole(x1, batch), _whole(x2, batch), y.contiguous(), p)


@impl(spec.ops["_cdist_backward"], devices=DEVICES)
def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    return _cdist_bwd(grad, x1, x2, float(p), cdist)(grad, x1, x2, cdist)


# ---- pairs of one set -----------------------------------------------------------------------------------------------


def _one_set(x: Tensor) -> tuple[int, int]:
    if x.shape[0] < 2:
        raise NotSupported("no pair of vectors")
    return x.shape[0], x.shape[1]


@decided
def _pdist(x: OnePoints, p: Order) -> Callable[[Tensor], Tensor]:
    check_tensors(x)
    n, k = _one_set(x)
    run = _launch_forward(x.dtype, (n * (n - 1) // 2,), 1, n, n, k, _norm(p), True)

    def call(x: Tensor) -> Tensor:
        x = x.contiguous()
        return run(x, x, p)

    return call


@impl(spec.ops["_pdist_forward"], devices=DEVICES)
def _pdist_forward(self: Tensor, p: float = 2.0) -> Tensor:
    return _pdist(self, float(p))(self)


@decided
def _pdist_bwd(
    dy: AnyTensor[Tensor, "pairs", same_dtype("x")],
    x: OnePoints,
    p: PositiveOrder,
    y: AnyTensor[Tensor, "pairs", same_dtype("x")],
) -> Callable[..., Tensor]:
    check_tensors(dy, x, y)
    n, k = _one_set(x)
    if dy.shape != (n * (n - 1) // 2,):
        raise NotSupported("a gradient of another shape")
    run = _launch_backward(x.dtype, (n, k), 1, n, n, k, _slope_norm(p), True)

    def call(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        x = x.contiguous()
        return run(dy.contiguous(), x, x, y.contiguous(), p)

    return call


@impl(spec.ops["_pdist_backward"], devices=DEVICES)
def _pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    return _pdist_bwd(grad, self, float(p), pdist)(grad, self, pdist)
