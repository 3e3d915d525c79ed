"""ATen's matrix products: plain and batched, with an optional addend; scaled FP8; int8; grouped by rows, columns or K.

Left to torch: complex numbers and integers other than int8; factors of different dtypes; `_scaled_mm` with an FP8
result, or with MXFP8 or NVFP4 scales; dot products, which torch computes in one kernel and we would compute in two.
ATen composes `linear`, `matmul` and `einsum` from the ops here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core import get_default_manager
from ...core.adapter import adapt
from ...core.contract import FLOATS, FP8
from ...core.errors import NotSupported
from ...specs import gemm, grouped

Fn = Callable[..., Any]


def _fit(a: Tensor, b: Tensor, rank: int, c: Tensor | None = None) -> None:
    """Decline arguments that torch rejects or for which torch's result differs from ours."""
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
    """Computes the sum over the batch as one product over a longer K: [m, batch * k] by [batch * k, n]."""
    _fit(batch1, batch2, 3, self)
    (batch, m, k), n = batch1.shape, batch2.shape[2]
    wide = batch1.transpose(0, 1).reshape(m, batch * k)
    return _sum(call, self, wide, batch2.reshape(batch * k, n), beta, alpha)


@adapt("mv", over=gemm.matmul)
def mv(call: Fn, self: Tensor, vec: Tensor) -> Any:
    """Computes vec[None] times self^T, because a product with one row reads the matrix in long contiguous pieces."""
    if vec.dim() != 1:
        raise NotSupported("not a vector")
    row = vec[None]
    _fit(row, self.t() if self.dim() == 2 else self, 2)
    return call(row, self.t(), None, 1.0, 1.0, None).view(self.shape[0])


@adapt("addmv", over=gemm.matmul)
def addmv(call: Fn, self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if vec.dim() != 1 or mat.dim() != 2 or self.dim() > 1:
        raise NotSupported("self must have at most 1 dimension, mat 2 and vec 1")
    row, transposed = vec[None], mat.t()
    _fit(row, transposed, 2, self)
    return _sum(call, self, row, transposed, beta, alpha).view(mat.shape[0])


for _rank, _overloads in ((2, "mm mm.dtype"), (3, "bmm bmm.dtype")):
    adapt(*_overloads.split(), over=gemm.matmul)(product(_rank))


@adapt("_int_mm", over=gemm.int_mm)
def int_mm(call: Fn, self: Tensor, mat2: Tensor) -> Any:
    if self.dtype is not torch.int8 or mat2.dtype is not torch.int8 or self.device != mat2.device:
        raise NotSupported(f"products of {self.dtype} and {mat2.dtype} are left to torch")
    if self.dim() != 2 or mat2.dim() != 2 or self.shape[1] != mat2.shape[0]:
        raise NotSupported(f"matrices that do not fit: {tuple(self.shape)} and {tuple(mat2.shape)}")
    if self.is_cuda and (self.shape[0] <= 16 or self.shape[1] % 8 or mat2.shape[1] % 8):
        raise NotSupported("on CUDA torch needs more than 16 rows, and K and N in multiples of 8")
    return call(self, mat2)


# ---- products of FP8, and of groups ---------------------------------------------------------------------------------

BLOCK = gemm.BLOCK


def _fp8(self: Tensor, mat2: Tensor, rank: int, bias: Tensor | None, out_dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Both matrices as bytes, the second transposed to [n, k]; declines arguments that torch rejects on any chip."""
    if self.dtype not in FP8 or mat2.dtype not in FP8 or self.dtype is mat2.dtype is torch.float8_e5m2:
        raise NotSupported(f"products of {self.dtype} and {mat2.dtype} are left to torch")
    if self.dim() != 2 or mat2.dim() != rank or self.shape[1] != mat2.shape[-2] or self.device != mat2.device:
        raise NotSupported(f"matrices that do not fit: {tuple(self.shape)} and {tuple(mat2.shape)}")
    if self.stride(1) != 1 or mat2.stride(-2) != 1:
        raise NotSupported("torch needs a row-major first and a column-major second matrix")
    if self.shape[1] % 16 or mat2.shape[-1] % 16 or not self.numel() or not mat2.numel():
        raise NotSupported("torch needs K and N in multiples of 16, and no empty matrix")
    if out_dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise NotSupported(f"a result of {out_dtype or self.dtype} is left to torch")
    if bias is not None and (bias.dtype is not out_dtype or out_dtype is torch.float32 or bias.dim() != 1):
        raise NotSupported("torch adds a bias of the result's dtype, of 16 bits")
    return self.view(torch.uint8), mat2.mT.view(torch.uint8)


def _other(op: Any, *args: Any) -> Any:
    """Call another op than the adapter's `call`, through dispatch."""
    with torch.no_grad():  # autograd already records the ATen op
        return get_default_manager().call(op.spec.key, *args)


def _scales(*scales: Tensor) -> None:
    if any(s.dtype is not torch.float32 for s in scales):
        raise NotSupported("scales of another dtype than float32 are left to torch")


@adapt("_scaled_mm", over=gemm.scaled_gemm)
def scaled_mm(
    call: Fn,
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    out_dtype: Dtype,
    use_fast_accum: bool,
) -> Any:
    """Accepts one scale per matrix, one per row of a and column of b, or one per block of 1x128 or 128x128."""
    a, b = _fp8(self, mat2, 2, bias, out_dtype)
    _scales(scale_a, scale_b)
    kinds, (m, k), n = (self.dtype, mat2.dtype), a.shape, b.shape[0]
    if scale_a.numel() == scale_b.numel() == 1:
        return call(a, b, scale_a, scale_b, *kinds, bias, out_dtype, use_fast_accum)
    if out_dtype is not torch.bfloat16 or scale_a.dim() != 2 or scale_b.dim() != 2:
        raise NotSupported("several scales with a result other than bfloat16 are left to torch")
    if scale_a.shape == (m, 1) and scale_b.shape == (1, n) and scale_a.is_contiguous() and scale_b.is_contiguous():
        return call(a, b, scale_a, scale_b, *kinds, bias, out_dtype, use_fast_accum)
    rows = [r for r in (1, BLOCK) if scale_a.shape == gemm.scales_shape(a, r)]
    columns = [r for r in (1, BLOCK) if scale_b.mT.shape == gemm.scales_shape(b, r)]
    if not rows or not columns or rows[0] == columns[0] == BLOCK or use_fast_accum or k % BLOCK:
        raise NotSupported(f"scales of shapes {tuple(scale_a.shape)} and {tuple(scale_b.shape)} are left to torch")
    if (rows[0] == 1 and scale_a.stride(0) != 1) or (columns[0] == 1 and scale_b.stride(1) != 1):
        raise NotSupported("torch needs 1x128 scales in column-major order")
    return _other(gemm.block_scaled_gemm, a, b, scale_a, scale_b.mT, *kinds, bias, rows[0], columns[0], out_dtype)


def _groups(offs: Tensor | None, groups: int, bias: Tensor | None) -> Tensor:
    if offs is None or offs.dtype is not torch.int32 or offs.dim() != 1 or bias is not None:
        raise NotSupported("offs must be a 1-D int32 tensor, and bias None")
    if groups >= 0 and offs.shape[0] != groups:
        raise NotSupported(f"{offs.shape[0]} ends of {groups} groups")
    return offs


@adapt("_grouped_mm", over=grouped.grouped_mm)
def grouped_mm(call: Fn, self: Tensor, mat2: Tensor, offs: Tensor | None, bias: Tensor | None, out_dtype: Dtype) -> Any:
    """Grouped matrix products, by the dimensions of self and mat2.

    2D and 3D: each group of rows of self times one matrix of mat2. 3D and 2D: each matrix of self times one group of
    columns of mat2. 2D and 2D: one product for each group of K (columns of self and rows of mat2). 3D and 3D: a batched
    product without groups.
    """
    if self.dtype is not torch.bfloat16 or mat2.dtype is not self.dtype or out_dtype not in (None, self.dtype):
        raise NotSupported(f"grouped products of {self.dtype} and {mat2.dtype} are left to torch")
    n = mat2.shape[-1]
    ranks = (self.dim(), mat2.dim())
    if n % 8 or self.shape[-1] % 8 or (self.shape[0] % 8 and ranks == (2, 2)) or not self.numel() or not mat2.numel():
        raise NotSupported("torch pads the rows of the result to 16 bytes, and refuses some others")
    if ranks == (2, 3) and self.shape[1] == mat2.shape[1]:
        ends = _groups(offs, mat2.shape[0], bias)
        transposed = mat2.stride(1) == 1 and mat2.stride(2) != 1
        return call(self, mat2.mT if transposed else mat2, ends, transposed)
    if ranks == (2, 2) and self.shape[1] == mat2.shape[0]:
        return _other(grouped.grouped_mm_wgrad, self.t(), mat2, _groups(offs, -1, bias))
    if ranks == (3, 2) and self.shape[2] == mat2.shape[0]:  # compute the transposed product
        return call(mat2.t(), self, _groups(offs, self.shape[0], bias), True).t().contiguous()
    if ranks == (3, 3) and self.shape[0] == mat2.shape[0] and self.shape[2] == mat2.shape[1]:
        if offs is not None or bias is not None:
            raise NotSupported("torch takes neither ends of groups nor a bias with batches")
        return _other(gemm.matmul, self, mat2, None, 1.0, 1.0, None)
    raise NotSupported(f"groups of {tuple(self.shape)} and {tuple(mat2.shape)} are left to torch")


@adapt("_scaled_grouped_mm", over=grouped.scaled_grouped_mm)
def scaled_grouped_mm(
    call: Fn,
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None,
    bias: Tensor | None,
    scale_result: Tensor | None,
    out_dtype: Dtype,
    use_fast_accum: bool,
) -> Any:
    a, b = _fp8(self, mat2, 3, None, out_dtype)
    ends = _groups(offs, b.shape[0], bias)
    _scales(scale_a, scale_b)
    if out_dtype is not torch.bfloat16 or self.dtype is not mat2.dtype or scale_result is not None:
        raise NotSupported("torch multiplies groups of float8_e4m3fn, to bfloat16")
    if scale_a.shape != a.shape[:1] or scale_b.shape != b.shape[:2]:
        raise NotSupported(f"scales of shapes {tuple(scale_a.shape)} and {tuple(scale_b.shape)} are left to torch")
    return call(a, b, ends, scale_a, scale_b, self.dtype, mat2.dtype, out_dtype, use_fast_accum)
