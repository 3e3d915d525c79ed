"""`opmux tune --aten`: times torch's kernels and ours for each overload, so that `opmux.enable()` can choose."""
