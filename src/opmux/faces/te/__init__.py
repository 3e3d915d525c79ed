"""NVIDIA's Transformer Engine for PyTorch: its unmodified Python layer over our tex. Import it by `import opmux.te`."""
