"""`opmux warm`: compiles the kernels that a model or a script needs before it runs, on all cores, without a device."""
