"""NVIDIA's Transformer Engine for PyTorch: its unmodified Python layer on our tex. To use it, `import opmux.te`."""
