"""ATen's reductions. What torch alone can judge, dimensions that are not there or dtypes that have no order, it gets.

Arguments are not looked at before the call, as that costs more than all else here: what the primitive refuses, its spec
is asked about afterwards. Results of ATen's reductions are contiguous whatever x is, as are the primitives'.

Left to torch: `aminmax` reads x once, and would read it twice as two of ours; `nansum` is no primitive. What ATen makes
of these by itself (`var.dim`, `linalg_norm`, `_is_all_true`) comes back here.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import reduce

Fn = Callable[..., Any]
REFUSED = (TypeError, ValueError)


def leave(op: str, x: Tensor, dim: Any, dtype: torch.dtype | None = None, ord: float = 2) -> None:
    """Decline what the spec of a primitive refuses; what it does not was an error of the implementation."""
    try:
        reduce.check(op, x, dim, dtype, ord)
    except REFUSED as error:
        raise NotSupported(str(error)) from None


# ---- one dimension, several or all ----------------------------------------------------------------------------------
# A list of one is passed as a number, by which plans are found sooner.


def cast(op: str) -> Fn:
    def fn(call: Fn, self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        try:
            return call(self, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim, dtype)
        except REFUSED:
            leave(op, self, dim, dtype)
            raise

    return fn


def plain(op: str) -> Fn:
    def fn(call: Fn, self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        try:
            return call(self, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim)
        except REFUSED:
            leave(op, self, dim)
            raise

    return fn


def listed(op: str) -> Fn:
    """`plain`, where ATen gives no result for an empty list unless dimensions are kept."""

    def fn(call: Fn, self: Tensor, dim: Any, keepdim: bool = False) -> Any:
        if not dim:
            raise NotSupported(f"{op} over no dimension")
        try:
            return call(self, dim[0] if len(dim) == 1 else dim, keepdim)
        except REFUSED:
            leave(op, self, dim)
            raise

    return fn


def truth(op: str) -> Fn:
    """ATen's `any` and `all` of uint8 are uint8 themselves."""

    def fn(call: Fn, self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        try:
            y = call(self, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim)
        except REFUSED:
            leave(op, self, dim)
            raise
        return y if self.dtype is not torch.uint8 else y.view(torch.uint8)

    return fn


def count(op: str) -> Fn:
    def fn(call: Fn, self: Tensor, dim: Any = None) -> Any:
        try:
            return call(self, dim)
        except REFUSED:
            leave(op, self, dim)
            raise

    return fn


# ---- moments --------------------------------------------------------------------------------------------------------


def moments(op: str) -> Fn:
    """Without a degree of freedom torch warns, and so has the call."""

    def fn(call: Fn, self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        less = 1 if correction is None else correction
        try:
            if dim and len(dim) == 1:
                dim = dim[0]
                free = self.shape[dim] > less
            else:
                free = (math.prod([self.shape[d] for d in dim]) if dim else self.numel()) > less
            if free:
                return call(self, dim, keepdim, less)
        except REFUSED:
            leave(op, self, dim)
            if isinstance(less, complex):
                raise NotSupported(f"correction must be real; got {less}") from None
            raise
        except IndexError:
            raise NotSupported(f"dim must be a dimension of x, which is {tuple(self.shape)}; got {dim}") from None
        raise NotSupported("no degree of freedom is left")

    return fn


# ---- norms ----------------------------------------------------------------------------------------------------------


@adapt("linalg_vector_norm", over=reduce.vector_norm)
def vector_norm(
    call: Fn, self: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if dtype is not None and not self.is_floating_point():
        raise NotSupported("torch takes norms of floats alone")
    try:
        return call(self, ord, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim, dtype)
    except REFUSED:
        if isinstance(ord, complex):
            raise NotSupported(f"ord must be real; got {ord}") from None
        leave("vector_norm", self, dim, dtype, ord)
        raise


@adapt("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype", over=reduce.vector_norm)
def norm(
    call: Fn, self: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return vector_norm(call, self, 2 if p is None else p, dim, keepdim, dtype=dtype)


# ---- the table ------------------------------------------------------------------------------------------------------

for _make, _op, _overloads in (
    (cast, "sum", "sum sum.dim_IntList"),
    (cast, "mean", "mean mean.dim"),
    (cast, "prod", "prod prod.dim_int"),
    (plain, "amax", "amax max"),
    (plain, "amin", "amin min"),
    (plain, "max_dim", "max.dim"),
    (plain, "min_dim", "min.dim"),
    (plain, "argmax", "argmax"),
    (plain, "argmin", "argmin"),
    (listed, "logsumexp", "logsumexp"),
    (truth, "any", "any any.dim any.dims"),
    (truth, "all", "all all.dim all.dims"),
    (count, "count_nonzero", "count_nonzero count_nonzero.dim_IntList"),
    (moments, "var", "var.correction"),
    (moments, "std", "std.correction"),
    (moments, "var_mean", "var_mean.correction"),
    (moments, "std_mean", "std_mean.correction"),
):
    adapt(*_overloads.split(), over=getattr(reduce, _op))(_make(_op))
