"""Tiles of opmux's kernels on Acme's chips, computed from the sizes of a call."""

HEURISTICS_CONFIGS = {
    "softmax.rows": {"BLOCK_M": lambda args: 2 if args["n"] <= 1024 else 1},
}
