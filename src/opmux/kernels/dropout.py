"""Dropout with a bit mask.

Each thread draws the Philox words of one group, which decide eight elements in each half of x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..specs import dropout as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, Zeros, planned, strided
from .lib.launch import Launcher
from .lib.philox import interleave2, interleave4, seeded, with_seed, words
from .lib.rows import OutputSpec, wide_of


@triton.jit
def byte_kept(word, PLACE: tl.constexpr, threshold):
    return ((word >> (8 * PLACE)) & 255).to(tl.int32) >= threshold


@triton.jit
def eight(k0, k1, k2, k3, k4, k5, k6, k7):
    """Interleave eight blocks: k0[0], k1[0], ..., k7[0], k0[1], ..."""
    return interleave4(interleave2(k0, k4), interleave2(k1, k5), interleave2(k2, k6), interleave2(k3, k7))


@triton.jit
def half(b_x, y_ptr, mask_ptr, low, high, threshold, scale, left, BLOCK: tl.constexpr):
    """Apply dropout to eight elements per group, and store the mask byte of each group."""
    o = tl.arange(0, 8 * BLOCK)
    m = o < left * 8
    k0, k1 = byte_kept(low, 0, threshold), byte_kept(low, 1, threshold)
    k2, k3 = byte_kept(low, 2, threshold), byte_kept(low, 3, threshold)
    k4, k5 = byte_kept(high, 0, threshold), byte_kept(high, 1, threshold)
    k6, k7 = byte_kept(high, 2, threshold), byte_kept(high, 3, threshold)
    keep = eight(k0, k1, k2, k3, k4, k5, k6, k7)
    b_y = b_x.to(scale.dtype) * tl.where(keep, scale, 0.0)
    tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)
    bits = k0.to(tl.int32) | (k1.to(tl.int32) << 1) | (k2.to(tl.int32) << 2) | (k3.to(tl.int32) << 3)
    bits |= (k4.to(tl.int32) << 4) | (k5.to(tl.int32) << 5) | (k6.to(tl.int32) << 6) | (k7.to(tl.int32) << 7)
    o_m = tl.arange(0, BLOCK)
    tl.store(mask_ptr + o_m, bits.to(tl.uint8), mask=o_m < left)


def _dropout(
    x_ptr,
    seed_ptr,
    y_ptr,
    mask_ptr,
    groups,
    threshold,
    scale: tl.float64,
    key: tl.int64,
    counter: tl.int64,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * BLOCK
    second = tl.cast(groups, tl.int64)
    left = groups - group
    x_ptr += group * 8
    y_ptr += group * 8
    mask_ptr += group
    o = tl.arange(0, 8 * BLOCK)
    m = o < left * 8
    b_x, b_z = tl.load(x_ptr + o, mask=m), tl.load(x_ptr + second * 8 + o, mask=m)  # load both before the first store
    key, counter = seeded(seed_ptr, key, counter)
    w0, w1, w2, w3 = words(key, counter, group, BLOCK)
    s = tl.full([1], scale, WIDE)
    half(b_x, y_ptr, mask_ptr, w0, w1, threshold, s, left, BLOCK)
    half(b_z, y_ptr + second * 8, mask_ptr + second, w2, w3, threshold, s, left, BLOCK)


def _bwd(
    dy_ptr, mask_ptr, dx_ptr, eights, scale: tl.float64, WIDE: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * (TILES * BLOCK)
    left = eights - start
    o, o_m = tl.arange(0, 8 * BLOCK), tl.arange(0, BLOCK)
    b_dy, b_mask = (), ()
    for tile in tl.static_range(TILES):
        at = start + tile * BLOCK
        b_dy += (tl.load(dy_ptr + at * 8 + o, mask=o < (left - tile * BLOCK) * 8),)
        b_mask += (tl.load(mask_ptr + at + o_m, mask=o_m < left - tile * BLOCK, other=0),)
    s = tl.full([1], scale, WIDE)
    for tile in tl.static_range(TILES):
        bits = b_mask[tile].to(tl.int32)
        keep = eight(
            (bits & 1) != 0,
            (bits & 2) != 0,
            (bits & 4) != 0,
            (bits & 8) != 0,
            (bits & 16) != 0,
            (bits & 32) != 0,
            (bits & 64) != 0,
            (bits & 128) != 0,
        )
        b_dx = b_dy[tile].to(WIDE) * tl.where(keep, s, 0.0)
        dx_at = dx_ptr + (start + tile * BLOCK) * 8 + o
        tl.store(dx_at, b_dx.to(dx_ptr.dtype.element_ty), mask=o < (left - tile * BLOCK) * 8)


dropout = Launcher(_dropout, sizes="groups")
bwd = Launcher(_bwd, sizes="eights")


@tunable("dropout.bits", free="BLOCK")
def tiles(dtype: torch.dtype) -> Tiles:
    """One group per thread, so that no bits move between threads."""
    return Tiles(128, BLOCK=128)


@tunable("dropout.bits_bwd", free="TILES BLOCK")
def bwd_tiles(dtype: torch.dtype) -> Tiles:
    """One mask byte per thread and tile."""
    return Tiles(128, TILES=2, BLOCK=128)


@planned(spec.philox_dropout_bits)
def philox_dropout_bits(x: Tensor, seed: Tensor, p: float) -> Plan:
    y, mask = OutputSpec.of(x.shape, x.dtype), OutputSpec.of((x.numel() // 8,), torch.uint8)
    if not x.numel() or p == 1:
        return Plan({"y": Zeros(y), "mask": Zeros(mask)})
    sizes, groups = tiles(dtype=x.dtype), x.numel() // 16
    numbers = {"groups": groups, "threshold": spec.threshold(p), "scale": spec.scale(p)}
    launch = Launch(dropout, (-(-groups // sizes["BLOCK"]),), sizes.config(WIDE=wide_of(x.dtype)), numbers)
    return with_seed({"y": y, "mask": mask}, launch, x, seed, strided(x=x))


@planned(spec.dropout_bits_bwd)
def dropout_bits_bwd(dy: Tensor, mask: Tensor, p: float) -> Plan:
    dx = OutputSpec.of(dy.shape, dy.dtype)
    if not dy.numel() or p == 1:
        return Plan({"dx": Zeros(dx)})
    sizes, eights = bwd_tiles(dtype=dy.dtype), dy.numel() // 8
    grid = (-(-eights // (sizes["TILES"] * sizes["BLOCK"])),)
    launch = Launch(bwd, grid, sizes.config(WIDE=wide_of(dy.dtype)), {"eights": eights, "scale": spec.scale(p)})
    return Plan({"dx": dx}, [launch], strided(dy=dy, mask=mask))
