"""Tiles on NVIDIA's chips, where they differ from the kernels' defaults: {tunable: {size: value or function(args)}}.

`args` has the kernel's facts (n, dtype, ...), "arch", and the current sizes; None keeps a size.
The defaults were tuned on an H200, so this file has no rules for all of NVIDIA's chips; the rules of the arch folders
use the functions below.
"""

from __future__ import annotations

from typing import Any

from . import vendor_info

SUMS = 3 << 10  # bytes of shared memory reserved for reductions; rows may use the rest


def stages_that_fit(args: dict[str, Any]) -> int | None:
    """Reduce STAGES until the STAGES - 1 rows that are loaded ahead fit in shared memory."""
    room = vendor_info.target(args["arch"]).shared_memory
    if room is None or "STAGES" not in args:
        return None
    most = 1 + (room - SUMS) // (args["BLOCK_N"] * args["dtype"].itemsize)
    return most if most < args["STAGES"] else None


HEURISTICS_CONFIGS = {}
