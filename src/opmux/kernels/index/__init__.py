"""Ops that read or write at places that indices or masks give.

lib/cells.py generates the kernels that read (`take`) or write (`put`) one element or row per index, for any strides.
reads.py and writes.py are the ops over them; fold.py writes several elements to one place in a fixed order; masks.py
compacts the elements that a mask selects; bags.py has the gradient of embedding_bag's per_sample_weights.
"""

from . import bags, masks, reads, writes  # noqa: F401
