"""Tiles on NVIDIA's chips, where they differ from the kernels' defaults: {tunable: {size: value or function(args)}}.

`args` holds what the kernel asks by (n, dtype, ...), "arch", and the sizes as they stand; None leaves a size alone.
The defaults were found on an H200, so nothing differs for all of NVIDIA's chips; the arch folders say what does.
"""

HEURISTICS_CONFIGS = {}
