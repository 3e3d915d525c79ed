"""Reading and writing where other tensors say.

cells.py generates the kernels that read (`take`) or write (`put`) one element or row per index, for any strides;
reads.py and writes.py are the ops over them; masks.py compacts the elements that a mask selects; bags.py has
the gradient of weights of samples.
"""

from . import bags, masks, reads, writes  # noqa: F401
