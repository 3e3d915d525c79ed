"""Runs the Python layer of NVIDIA's Transformer Engine for PyTorch on our tex. To use it, `import opmux.te`."""
