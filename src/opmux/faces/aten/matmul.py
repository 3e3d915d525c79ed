"""ATen's matrix products: each is one product of matrices or of batches of them, with something added.

Left to torch: integers and complex numbers; factors of different dtypes. Dot products stay torch's, one kernel there
and two of ours. `linear`, `matmul` and `einsum` are composed of these by ATen.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.contract import FLOATS
from ...core.errors import NotSupported
from ...specs import gemm

Fn = Callable[..., Any]


def _fit(a: Tensor, b: Tensor, rank: int, c: Tensor | None = None) -> None:
    """Decline what torch refuses, or computes in another way than we do."""
    if a.dim() != rank or b.dim() != rank or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise NotSupported(f"matrices that do not fit: {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dtype not in FLOATS or b.dtype is not a.dtype or a.device != b.device:
        raise NotSupported(f"products of {a.dtype} and {b.dtype} are left to torch")
    exact = a.dtype is torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    if a.is_cuda and exact and a.shape[-2] != 1 and b.shape[-1] != 1:
        raise NotSupported("float32 products without TF32 are left to cuBLAS, which is twice as fast")
    if c is not None and (c.dtype not in (a.dtype, torch.float32) or c.device != a.device):
        raise NotSupported(f"{c.dtype} is not added to a product of {a.dtype}")


def _sum(
    call: Fn, self: Tensor, a: Tensor, b: Tensor, beta: Any, alpha: Any, out_dtype: torch.dtype | None = None
) -> Any:
    """alpha a b + beta self; self is expanded to the shape of the product."""
    if out_dtype is None and self.dtype is not a.dtype:
        raise NotSupported("self has another dtype than the factors")
    if isinstance(beta, complex) or isinstance(alpha, complex):
        raise NotSupported("complex factors")
    result = (*a.shape[:-1], b.shape[-1])
    behind = zip(reversed(self.shape), reversed(result))
    if self.dim() > len(result) or any(own not in (1, wanted) for own, wanted in behind):
        raise NotSupported(f"self of shape {tuple(self.shape)} is added to a product of shape {result}")
    return call(a, b, self.expand(result), float(alpha), float(beta), out_dtype)


def product(rank: int) -> Fn:
    def mm(call: Fn, self: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None) -> Any:
        _fit(self, mat2, rank)
        return call(self, mat2, None, 1.0, 1.0, out_dtype)

    return mm


Dtype = torch.dtype | None


@adapt("addmm", "addmm.dtype", over=gemm.matmul)
def addmm(
    call: Fn, self: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: Dtype = None, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    _fit(mat1, mat2, 2, self)
    return _sum(call, self, mat1, mat2, beta, alpha, out_dtype)


@adapt("baddbmm", "baddbmm.dtype", over=gemm.matmul)
def baddbmm(
    call: Fn, self: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: Dtype = None, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    _fit(batch1, batch2, 3, self)
    return _sum(call, self, batch1, batch2, beta, alpha, out_dtype)


@adapt("addbmm", over=gemm.matmul)
def addbmm(call: Fn, self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A sum of products is one product over all of K: [m, batch k] by [batch k, n]."""
    _fit(batch1, batch2, 3, self)
    (batch, m, k), n = batch1.shape, batch2.shape[2]
    wide = batch1.transpose(0, 1).reshape(m, batch * k)
    return _sum(call, self, wide, batch2.reshape(batch * k, n), beta, alpha)


@adapt("mv", over=gemm.matmul)
def mv(call: Fn, self: Tensor, vec: Tensor) -> Any:
    """The vector is the row of a matrix: a tile of few rows reads the matrix in long pieces."""
    if vec.dim() != 1:
        raise NotSupported("not a vector")
    row = vec[None]
    _fit(row, self.t() if self.dim() == 2 else self, 2)
    return call(row, self.t(), None, 1.0, 1.0, None).view(self.shape[0])


@adapt("addmv", over=gemm.matmul)
def addmv(call: Fn, self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if vec.dim() != 1 or mat.dim() != 2 or self.dim() > 1:
        raise NotSupported("not a vector, a matrix and a vector")
    row, turned = vec[None], mat.t()
    _fit(row, turned, 2, self)
    return _sum(call, self, row, turned, beta, alpha).view(mat.shape[0])


for _rank, _overloads in ((2, "mm mm.dtype"), (3, "bmm bmm.dtype")):
    adapt(*_overloads.split(), over=gemm.matmul)(product(_rank))
