"""ATen's reductions. Calls that the primitive refuses are left to torch: invalid dimensions, dtypes without an order.

Results are contiguous for any strides of x, in ATen and in our primitives.

`aminmax` is left to torch, because we would need two reductions, which read x twice. Ops that ATen composes from the
ops here (`var.dim`, `linalg_norm`, `_is_all_true`) call our overrides.
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

# ---- one dimension, several or all ----------------------------------------------------------------------------------
# A one-element list is passed as a number, which makes a cheaper cache key.


def cast(call: Fn, self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return call(self, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim, dtype)


def plain(call: Fn, self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return call(self, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim)


def listed(call: Fn, self: Tensor, dim: Any, keepdim: bool = False) -> Any:
    """Like `plain`, for overloads where ATen raises for an empty list of dimensions unless keepdim is set."""
    if not dim:
        raise NotSupported("a reduction over no dimension")
    return call(self, dim[0] if len(dim) == 1 else dim, keepdim)


def truth(call: Fn, self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """ATen's `any` and `all` of uint8 inputs return uint8, not bool."""
    y = call(self, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim)
    return y if self.dtype is not torch.uint8 else y.view(torch.uint8)


def count(call: Fn, self: Tensor, dim: Any = None) -> Any:
    return call(self, dim)


# ---- moments --------------------------------------------------------------------------------------------------------


def moments(call: Fn, self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Declines if no degrees of freedom are left, because torch then warns."""
    less = 1 if correction is None else correction
    try:
        if dim and len(dim) == 1:
            dim = dim[0]
            free = self.shape[dim] > less and self.numel()
        else:
            free = (math.prod([self.shape[d] for d in dim]) if dim else self.numel()) > less and self.numel()
    except IndexError:
        raise NotSupported(f"dim must be a dimension of x, which is {tuple(self.shape)}; got {dim}") from None
    except TypeError:  # complex numbers have no order
        raise NotSupported(f"correction must be real; got {less}") from None
    if not free:
        raise NotSupported("no degrees of freedom are left")
    return call(self, dim, keepdim, less)


# ---- norms ----------------------------------------------------------------------------------------------------------


@adapt("linalg_vector_norm", over=reduce.vector_norm)
def vector_norm(
    call: Fn, self: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if dtype is not None and not self.is_floating_point():
        raise NotSupported("torch computes norms of floats only")
    return call(self, ord, dim[0] if type(dim) is list and len(dim) == 1 else dim, keepdim, dtype)


@adapt("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype", over=reduce.vector_norm)
def norm(
    call: Fn, self: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return vector_norm(call, self, 2 if p is None else p, dim, keepdim, dtype=dtype)


# ---- the table ------------------------------------------------------------------------------------------------------

for _make, _op, _overloads in (
    (cast, "sum", "sum sum.dim_IntList"),
    (cast, "nansum", "nansum"),
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
    adapt(*_overloads.split(), over=getattr(reduce, _op))(_make)
