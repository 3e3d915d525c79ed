"""`opmux tune --aten`: times torch's kernels and ours for each overload, for `opmux.enable()` to choose by."""
