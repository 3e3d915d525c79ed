"""Tiles on Hopper, where they differ from the defaults, most of which were tuned on an H200 for all chips."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def two_rows_ahead(args: dict[str, Any]) -> int | None:
    """With 227 KiB of shared memory a second row is loaded ahead: rms_norm_bwd gained 3 % at 4096 columns (H200)."""
    return 3 if args["STAGES"] == 2 else None


CORES = 132


def product_tiles(m: int, n: int, k: int, dtype: Any, **rest: Any) -> dict[str, Any]:
    """Tiles of matrix products with factors of 16 bits or fewer, tuned on an H200 against cuBLAS."""
    if dtype.itemsize > 2:
        return {}
    down, right = lambda size: -(-m // size), lambda size: -(-n // size)
    deep = 128 // dtype.itemsize
    if min(m, n) > 64 and down(128) * right(256) >= CORES - 32:
        return tiles_of(128, 256, deep, warps=8, stages=3, GROUP=16, IN_TURN=True)
    if min(m, n) > 64 and down(128) * right(128) >= CORES // 2:
        return tiles_of(128, 128, deep, warps=4, stages=4, IN_TURN=True)
    # If there are few tiles, K is split until every core has one.
    if min(m, n) <= 16:
        sizes = tiles_of(16 if m <= 16 else 64, 32 if m <= 16 else 16, 4 * deep, warps=4, stages=3)
    elif min(m, n) <= 64:
        sizes = tiles_of(64, 64, 2 * deep, warps=4, stages=4)
    else:
        sizes = tiles_of(64, 128, deep, warps=4, stages=4)
    tiles, splits = down(sizes["BLOCK_M"]) * right(sizes["BLOCK_N"]), 1
    while tiles * splits < CORES - 32 and k % (2 * splits * sizes["BLOCK_K"]) == 0 and k // splits >= 1024:
        splits *= 2
    return {**sizes, "SPLITS": splits}


def tiles_of(m: int, n: int, k: int, *, warps: int, stages: int, **sizes: Any) -> dict[str, Any]:
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_warps": warps, "num_stages": stages, **sizes}


# grouped_tiles, and block_tiles for more than 64 rows, were chosen by their use of registers and shared memory, and
# have not been timed.


def block_tiles(m: int, n: int, k: int, **rest: Any) -> dict[str, Any]:
    """Tiles of products with block scales: a product and the running sum are both in registers.

    Tiles of 64 rows use the instruction that cuBLAS uses, and give its bits. Row counts below 16 that cuBLAS does not
    support get smaller tiles, so that more of the matrix is in flight: 1x8192x8192 takes 25 us on an H200.
    """
    if m < 16 and m % 4:
        return tiles_of(16, 16, 128, warps=2, stages=8) if n >= 64 else {}
    if min(m, n) < 64:
        return tiles_of(64, 32 if n >= 32 else 16, 128, warps=4, stages=6)
    return tiles_of(128 if m > 64 else 64, 128, 128, warps=8 if m > 64 else 4, stages=4, IN_TURN=True)


def grouped_tiles(rows: int, n: int, groups: int, dtype: Any, **rest: Any) -> dict[str, Any]:
    """Tiles of grouped products: BLOCK_M is chosen by the average rows per group."""
    high = rows / max(groups, 1)
    if dtype.itemsize > 2 or high <= 16 or n < 128:
        return {}
    deep = 128 // dtype.itemsize
    if high > 96 and n >= 256:
        return tiles_of(128, 256, deep, warps=8, stages=3, IN_TURN=True)
    return tiles_of(128 if high > 64 else 64, 128, deep, warps=4, stages=4, IN_TURN=True)


TILES = "BLOCK_M BLOCK_N num_warps num_stages ENGINE"
# Head dim -> (BLOCK_M, BLOCK_N, warps, stages). Tuned on an H200 for causal attention in 16 bits with 4096 queries.
ATTENTION = {
    "fwd": {64: (128, 64, 8, 3), 128: (64, 64, 4, 3), 256: (128, 64, 8, 2)},
    "bwd_q": {128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
    "bwd_kv": {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (64, 64, 8, 1)},
}
# Head dims for which TMA loads the tiles, because pointers to them would not fit in registers. These dims and their
# tiles were chosen by register spills, and were not timed.
ENGINE = {"bwd_kv": {64, 128}}


def attention_tiles(kernel: str, queries: int, dim: int, dtype: Any, extra: bool, **rest: Any) -> dict[str, Any]:
    """Tiles for heads of this dim, rounded up to a power of two. With a bias or dropout: the defaults."""
    wide = max(64, 1 << (dim - 1).bit_length())
    sizes = ATTENTION[kernel].get(wide)
    if sizes is None or dtype.itemsize > 2 or queries <= 64 or extra:
        return {}
    return dict(zip(TILES.split(), (*sizes, wide in ENGINE.get(kernel, ()))))


def decode_tiles(rows: int, dim: int, dtype: Any, kept: Any, **rest: Any) -> dict[str, Any]:
    """Load as many blocks of keys ahead as shared memory holds with two or three programs per core.

    dim > 256 means MLA: its 128 heads are two tiles of 64 rows, the height of an instruction of the matrix unit.
    """
    if dtype.itemsize > 2:
        return {}
    if dim <= 256:
        return {"num_stages": 4, "PER_CORE": 3 if dim * kept.itemsize <= 128 else 2}
    if rows > 32:
        return {"BLOCK_M": 64, "num_warps": 8, "num_stages": 3, "PER_CORE": 1}
    return {"BLOCK_M": 32 if rows > 16 else 16, "num_warps": 8, "num_stages": 3}


def rules_of(tiles: Callable[..., dict[str, Any]], names: str) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """The rules of a tunable, one per size, from a function that returns all sizes."""
    return {name: lambda args, name=name: tiles(**args).get(name) for name in names.split()}


SIZES = "BLOCK_M BLOCK_N GROUP IN_TURN num_warps num_stages"
HEURISTICS_CONFIGS = {
    "norm_bwd.rows": {"STAGES": two_rows_ahead},
    "gemm.tiles": rules_of(product_tiles, f"{SIZES} BLOCK_K SPLITS"),
    "gemm.blocks": rules_of(block_tiles, SIZES),
    "grouped.product": rules_of(grouped_tiles, f"{SIZES} BLOCK_K"),
    **{
        f"attention.{kernel}": rules_of(
            partial(attention_tiles, kernel), TILES if kernel in ENGINE else TILES.removesuffix(" ENGINE")
        )
        for kernel in ATTENTION
    },
    "decode.keys": rules_of(decode_tiles, "BLOCK_M PER_CORE num_warps num_stages"),
}
