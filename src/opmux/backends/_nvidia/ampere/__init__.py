"""Compute capability 8: A100, A10, RTX 30 and 40, L4, L40."""
