"""ATen's face: `opmux.enable()` overrides torch's ops with our kernels, on the dispatch keys of this machine."""
