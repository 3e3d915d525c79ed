"""Tiles on VENDOR_TITLE's chips, where they differ from the defaults: {tunable: {size: value or function(args)}}.

`args` has the facts that the kernel passes (n, dtype, ...), "arch", and the current sizes; None leaves a size
unchanged. `opmux tune --list` shows every tunable. If each program of the chip has its own buffer, start from
`opmux.backends.buffers.rules(vendor_info)`.
"""

from __future__ import annotations

from typing import Any


def block(args: dict[str, Any]) -> int | None:
    """Twice the default block for 16-bit dtypes: as many bytes as for 32-bit ones."""
    return 2 * args["BLOCK"] if args["dtype"].itemsize == 2 else None


HEURISTICS_CONFIGS = {"VENDOR_NAME.silu_mul": {"BLOCK": block}}
