"""tex's functions: NVIDIA's names and signatures, implemented by the ops of `opmux.specs`; one file for each family."""
