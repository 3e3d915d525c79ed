"""tex's functions: NVIDIA's names and signatures over the ops of `opmux.specs`, one file a family."""
