"""`opmux warm`: compiles the kernels of a model or a script before it runs, on all cores and without a device."""
