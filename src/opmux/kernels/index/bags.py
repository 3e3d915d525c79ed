"""The gradient of embedding_bag's per_sample_weights: a dot product for each index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.contract import Float, Index, contiguous, one_of, same_dtype
from ...core.registry import impl
from ...core.rules import adjacent, nonempty
from ...specs import index as spec
from ..lib.cells import check_tensors
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.plans import decided
from ..lib.rows import DEVICES, OutputSpec, wide_of

SUM = 0  # the only mode of embedding_bag that takes per_sample_weights


def _dots(
    dy_ptr,
    weight_ptr,
    index_ptr,
    bag_ptr,
    y_ptr,
    k,
    n,
    limit,
    dy_step,
    weight_step,
    padding,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[i] = dy[bag[i]] . weight[index[i]]; 0 for padding and for an index out of range."""
    i = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = tl.load(index_ptr + i, mask=i < n, other=-1).to(tl.int64)
    there = (i < n) & (at != padding) & (at >= 0) & (at < limit)
    bag = tl.load(bag_ptr + i, mask=there, other=0).to(tl.int64)
    o = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_K], WIDE)
    for start in range(0, k, BLOCK_K):
        m = there[:, None] & (start + o < k)[None, :]
        dy = tl.load(dy_ptr + (bag * dy_step)[:, None] + start + o[None, :], mask=m, other=0.0)
        w = tl.load(weight_ptr + (at * weight_step)[:, None] + start + o[None, :], mask=m, other=0.0)
        total += dy.to(WIDE) * w.to(WIDE)
    tl.store(y_ptr + i, tl.sum(total, 1).to(y_ptr.dtype.element_ty), mask=i < n)


dots = Launcher(_dots, sizes="k dy_step weight_step")


@tunable("index.dots", free="BLOCK_M BLOCK_K")
def dot_tiles(k: int, dtype: torch.dtype) -> Tiles:
    across = min(256, max(16, triton.next_power_of_2(k)))
    return Tiles(128, BLOCK_M=max(1, 2048 // across), BLOCK_K=across)


@decided
def _samples(
    dy: Float[Tensor, "b n", adjacent()],
    weight: Float[Tensor, "m n", adjacent(), same_dtype("dy"), nonempty()],
    indices: Index[Tensor, "k", contiguous(), nonempty()],
    bags: Index[Tensor, "k", contiguous()],
) -> Callable[..., Tensor]:
    """A launch (dy, weight, indices, bags, padding) -> y."""
    check_tensors(dy, weight, indices=(indices, bags))
    k, n = dy.shape[1], indices.numel()
    tiles = dot_tiles(k=k, dtype=dy.dtype)
    steps = (dy.stride(0), weight.stride(0))
    config = tiles.config(even=all(s % 16 == 0 for s in (k, *steps)), WIDE=wide_of(dy.dtype))
    numbers = (k, n, weight.shape[0], *steps)
    return dots.ready((-(-n // tiles["BLOCK_M"]), 1, 1), numbers, config, {4: OutputSpec.of((n,), dy.dtype)})


@impl(spec.ops["_embedding_bag_per_sample_weights_backward"], devices=DEVICES)
def _embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: Annotated[int, one_of(SUM)],
    padding_idx: int = -1,
) -> Tensor:
    return _samples(grad, weight, indices, offset2bag)(grad, weight, indices, offset2bag, padding_idx)
