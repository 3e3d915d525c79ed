"""Tiles on Intel's GPUs, where they differ from the defaults: more lanes per row, because a lane has few registers.

A warp of 32 lanes is a thread of the hardware, with 128 registers of 64 bytes (32 on Arc A): 64 four-byte numbers per
lane, where a thread of NVIDIA's chips may have 255. 64 elements per thread, which suit NVIDIA's chips, would spill.
"""

from __future__ import annotations

from typing import Any

A_LANE = 16  # elements per lane: each needs registers for its input, the widened value and the result
MOST = 32  # warps: a work group has 1024 lanes


def spread(args: dict[str, Any]) -> int | None:
    elements = args["BLOCK_M"] * args["BLOCK_N"]
    warps = 1 << max(0, elements // (A_LANE * 32) - 1).bit_length()
    return min(warps, MOST) if min(warps, MOST) > args["num_warps"] else None


HELD = ("softmax.rows", "masked_softmax.rows", "norm.rows", "norm_bwd.rows", "reduce.rows")
HEURISTICS_CONFIGS = {name: {"num_warps": spread} for name in HELD}
