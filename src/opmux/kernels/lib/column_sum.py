"""Deterministic sums over rows: programs write partial sums, and a second kernel adds them in a fixed order."""

from __future__ import annotations

import torch
import triton.language as tl

from .config import Tiles, tunable
from .harness import Launch
from .launch import Launcher
from .rows import wide_of


def _add_up(share_ptr, total_ptr, n_parts, n, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Adds the partial sums [n_parts, n]."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    b_total = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, n_parts, BLOCK_M):
        i_m = at + tl.arange(0, BLOCK_M)[:, None]
        b_total += tl.load(share_ptr + i_m.to(tl.int64) * n + o_n, mask=(i_m < n_parts) & (o_n < n), other=0.0)
    o = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(total_ptr + o, tl.sum(b_total, 0).to(total_ptr.dtype.element_ty), mask=o < n)


add_up = Launcher(_add_up, sizes="n")


@tunable("column_sum")
def tiles_of(n: int, dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK_M=64, BLOCK_N=32)


def column_sum(partial: str, total: str, n_parts: int, n: int, dtype: torch.dtype) -> Launch:
    """The launch that adds partial sums [n_parts, n].

    `partial`, `total`: names of tensors; `dtype`: the dtype of the op's tensors.
    """
    tiles = tiles_of(n=n, dtype=dtype)
    grid, numbers = (-(-n // tiles["BLOCK_N"]),), {"n_parts": n_parts, "n": n}
    return Launch(add_up, grid, tiles.config(WIDE=wide_of(dtype)), numbers, {"share": partial, "total": total})
