"""The interface to ATen: `opmux.enable()` overrides torch's ops with our kernels on this machine's dispatch keys."""
