"""Tiles for chips whose programs compute in a local buffer: blocks are copied in, computed on, and copied out.

Such a chip has few cores and starts programs slowly, so a block should fill the buffer; if it does not fit, the
compiler refuses it. A vendor says how large the buffer is (`Target.shared_memory`) and uses the rules unchanged:

    HEURISTICS_CONFIGS = buffers.rules(vendor_info)

The buffers of each kernel were counted in its source; nothing was measured on a chip.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..machine.vendors import VendorInfoBase

COPIES = 2  # double buffering of loads and stores


class TileBuffers(NamedTuple):
    """What a kernel stores per element of its tile, and which tile size the rules may change."""

    size: str
    tensors: int  # how many values of the tensors' dtype are loaded or stored
    wide: int  # how many 32-bit temporaries there are
    grows: bool = True  # whether a larger tile is faster; if not, the size is only reduced until it fits


HELD = {
    "activation.flat": (TileBuffers("BLOCK", 3, 3),),
    "activation.gated": (TileBuffers("BLOCK_N", 5, 5),),
    "activation.gated_rows": (TileBuffers("BLOCK_M", 5, 5),),
    "activation.bias": (TileBuffers("BLOCK_M", 5, 5),),
    "activation.bias_bwd": (TileBuffers("BLOCK_M", 5, 5),),
    "pointwise.flat": (TileBuffers("BLOCK", 4, 4),),
    "softmax.rows": (TileBuffers("BLOCK_M", 3, 3),),
    "softmax.pieces": (TileBuffers("BLOCK_N", 3, 5, False),),
    "masked_softmax.rows": (TileBuffers("BLOCK_M", 4, 4),),
    "masked_softmax.pieces": (TileBuffers("BLOCK_N", 4, 5, False),),
    "norm.rows": (TileBuffers("BLOCK_M", 6, 5),),
    "norm.pieces": (TileBuffers("HOLD", 6, 6, False), TileBuffers("BLOCK_N", 6, 6, False)),
    "norm_bwd.rows": (TileBuffers("BLOCK_M", 6, 7),),
    "norm_bwd.pieces": (TileBuffers("BLOCK_N", 5, 5, False),),
    "norm_bwd.columns": (TileBuffers("BLOCK_M", 4, 4, False),),
    "reduce.rows": (TileBuffers("BLOCK_N", 1, 4, False),),
    "reduce.columns": (TileBuffers("BLOCK_M", 1, 4, False),),
}


def filling(info: VendorInfoBase, arch: str | None, held: TileBuffers, itemsize: int) -> int | None:
    """The largest number of elements of a tile, a power of two; None if the buffer's size is unknown."""
    room = info.target(arch).shared_memory
    if room is None:
        return None
    return 1 << (room // (COPIES * held.tensors * itemsize + 4 * held.wide)).bit_length() - 1


def rules(info: VendorInfoBase, most: int = 16_384) -> dict[str, dict[str, Callable[..., Any]]]:
    """A vendor's HEURISTICS_CONFIGS. Tiles grow up to `most` elements, where starting programs costs little."""
    return {
        name: {held.size: functools.partial(_cut, info, most, held) for held in every} for name, every in HELD.items()
    }


def _cut(info: VendorInfoBase, most: int, held: TileBuffers, args: dict[str, Any]) -> int | None:
    elements = filling(info, args["arch"], held, args["dtype"].itemsize)
    if elements is None:
        return None
    usual = args[held.size]
    of_block = held.size.startswith("BLOCK")
    others = math.prod(v for k, v in args.items() if of_block and k.startswith("BLOCK") and k != held.size)
    size = max(1, elements // others)
    if size <= usual:
        return size
    size = max(usual, min(size, most // others)) if held.grows else usual
    lengths = [v for k, v in args.items() if k.islower() and type(v) is int]
    # a tile that was shorter than a row must stay so: the kernel may rely on it
    while any(usual < n < size for n in lengths):
        size //= 2
    return size
