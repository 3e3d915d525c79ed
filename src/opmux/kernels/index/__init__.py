"""Ops that read or write at positions given by indices or masks.

lib/cells.py generates the kernels that read (`take`) or write (`put`) one element or row per index, for any strides.
reads.py and writes.py define the ops that use them. fold.py combines several elements written to one position, in a
fixed order. masks.py compacts the elements that a mask selects. bags.py computes the gradient of embedding_bag's
per_sample_weights.
"""

from . import bags, masks, reads, writes  # noqa: F401
