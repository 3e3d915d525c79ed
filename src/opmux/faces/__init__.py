"""Other libraries' interfaces (ATen, tex, Transformer Engine, ...), implemented by our ops.

These packages never call a kernel directly.
"""
