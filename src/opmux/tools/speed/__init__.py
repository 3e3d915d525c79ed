"""`opmux tune --aten`: torch's kernels against ours, overload by overload, for `opmux.enable()` to decide by."""
