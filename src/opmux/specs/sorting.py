"""ATen's ops that sort, select, search and count: sort, topk, mode, median, unique, searchsorted, histograms, segments.

Each op has ATen's name and the arguments of all its overloads; its reference is torch's own op. NaN is larger than any
number. Equal elements stay in the order of their indices; in torch their order is undefined.
"""

from .index import declare

DIM_AND_KEEPDIM = "dim: int = -1, keepdim: bool = False"
SEARCH = "*, out_int32: bool = False, right: bool = False"

TABLE = {
    "sort": "self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None",
    "topk": "self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True",
    "kthvalue": f"self: Tensor, k: int, {DIM_AND_KEEPDIM}",
    "median": "self: Tensor, dim: int | None = None, keepdim: bool | None = None",
    "nanmedian": "self: Tensor, dim: int | None = None, keepdim: bool | None = None",
    "searchsorted": f"sorted_sequence: Tensor, self: Tensor | Number, {SEARCH}, side: str | None = None, "
    "sorter: Tensor | None = None",
    "isin": "elements: Tensor | None = None, test_elements: Tensor | None = None, "
    "element: Number | None = None, test_element: Number | None = None, *, assume_unique: bool = False, "
    "invert: bool = False",
    "_unique2": "self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False",
    "unique_consecutive": "self: Tensor, return_inverse: bool = False, return_counts: bool = False, "
    "dim: int | None = None",
    "bincount": "self: Tensor, weights: Tensor | None = None, minlength: int = 0",
    "histc": "self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0",
    "mode": f"self: Tensor, {DIM_AND_KEEPDIM}",
    "unique_dim": "self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, "
    "return_counts: bool = False",
    "segment_reduce": "data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None, "
    "offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: Number | None = None",
    "_segment_reduce_backward": "grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, "
    "lengths: Tensor | None = None, offsets: Tensor | None = None, axis: int = 0, initial: Number | None = None",
    "equal": "self: Tensor, other: Tensor",
    "bucketize": f"self: Tensor | Number, boundaries: Tensor, {SEARCH}",
}
OUTS = {
    **dict.fromkeys(("sort", "topk", "kthvalue", "mode"), "values indices"),
    **dict.fromkeys(("_unique2", "unique_consecutive", "unique_dim"), "values inverse counts"),
}

ops = declare(TABLE, __name__, OUTS)
