"""Faces: other libraries' interfaces (ATen, tex, Transformer Engine) over our ops.

A face never calls a kernel directly.
"""
