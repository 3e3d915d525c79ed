"""ATen's ops that read or write at positions given by other tensors: index, gather, scatter, embedding, masks.

Each op has ATen's name and the arguments of all its overloads; its reference is torch's own op. For an index out of
range, a read gives NaN (0 for integers) and a write is dropped; callers must not rely on that, and torch on a GPU
aborts the process. If several elements are written to one position, it is undefined which one remains, as in torch.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..core.spec import op
from ._aten import reference

Number = bool | int | float
Indices = Sequence[Tensor | None]

AT = "self: Tensor, indices: Indices"
ALONG = "self: Tensor, dim: int, index: Tensor"

# op -> the arguments of all its overloads. Arguments that only some overloads have are None by default.
TABLE = {
    # reads
    "index": AT,
    "_unsafe_index": AT,
    "_unsafe_masked_index": "self: Tensor, mask: Tensor, indices: Indices, fill: Number",
    "index_select": ALONG,
    "gather": f"{ALONG}, *, sparse_grad: bool = False",
    "take": "self: Tensor, index: Tensor",
    "embedding": "weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, "
    "sparse: bool = False",
    # writes
    "index_put": f"{AT}, values: Tensor, accumulate: bool = False",
    "_unsafe_index_put": f"{AT}, values: Tensor, accumulate: bool = False",
    "_index_put_impl": f"{AT}, values: Tensor, accumulate: bool = False, unsafe: bool = False",
    "_unsafe_masked_index_put_accumulate": "self: Tensor, mask: Tensor, indices: Indices, values: Tensor",
    "put": "self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False",
    "index_copy": f"{ALONG}, source: Tensor",
    "index_fill": f"{ALONG}, value: Tensor | Number",
    "index_add": f"{ALONG}, source: Tensor, *, alpha: Number = 1",
    "scatter": f"{ALONG}, src: Tensor | None = None, value: Number | None = None, *, reduce: str | None = None",
    "scatter_add": f"{ALONG}, src: Tensor",
    "scatter_reduce": f"{ALONG}, src: Tensor, reduce: str, *, include_self: bool = True",
    "index_reduce": f"{ALONG}, source: Tensor, reduce: str, *, include_self: bool = True",
    "embedding_dense_backward": "grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, "
    "scale_grad_by_freq: bool",
    "_embedding_bag_dense_backward": "grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor, "
    "maximum_indices: Tensor, num_weights: int, scale_grad_by_freq: bool, mode: int, "
    "per_sample_weights: Tensor | None, padding_idx: int = -1",
    "_embedding_bag_per_sample_weights_backward": "grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, "
    "offset2bag: Tensor, mode: int, padding_idx: int = -1",
    # masks
    "nonzero": "self: Tensor",
    "nonzero_static": "self: Tensor, *, size: int, fill_value: int = -1",
    "masked_select": "self: Tensor, mask: Tensor",
    "masked_scatter": "self: Tensor, mask: Tensor, source: Tensor",
    "masked_scatter_backward": "grad_output: Tensor, mask: Tensor, sizes: Sequence[int]",
}


TYPES = {"Any": Any, "Tensor": Tensor, "Sequence": Sequence, "Number": Number, "Indices": Indices}


def declare(table: dict[str, str], module: str, outs: dict[str, str] | None = None) -> dict[str, Any]:
    """Declare the ops of a table, and return them by name; `outs` names the results of ops with several."""
    outs, names = outs or {}, {**TYPES, "__name__": module}
    return {
        name: op(reference(name, args, names), space="aten", out=outs.get(name, "y")) for name, args in table.items()
    }


ops = declare(TABLE, __name__)
