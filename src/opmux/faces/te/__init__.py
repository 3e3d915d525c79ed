"""NVIDIA's Transformer Engine for PyTorch, its Python untouched, over our tex. `opmux.te` is the door."""
