"""Tiles on Ampere and Ada, where they differ from the kernels' defaults."""

from __future__ import annotations

from typing import Any

SMALL = ("sm_86", "sm_89")  # 99 KiB of shared memory for a program, where sm_80 has 163 and Hopper 227
ROOM = 96 << 10  # of these for rows; the rest is for sums


def stages_that_fit(args: dict[str, Any]) -> int | None:
    """Rows on their way wait in shared memory, one less than STAGES of them."""
    if args["arch"] not in SMALL or "STAGES" not in args:
        return None
    row = args["BLOCK_N"] * args["dtype"].itemsize
    return min(args["STAGES"], 1 + max(1, ROOM // row))


HEURISTICS_CONFIGS = {
    "softmax.team": {"STAGES": stages_that_fit},
}
