"""How ops are computed by default: Triton kernels, in modules named like the families of specs."""
