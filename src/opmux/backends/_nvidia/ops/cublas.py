"""Matrix products through cuBLAS, as torch calls it.

One call of cuBLAS computes as much as torch allows: it adds a bias (epilogue), adds to the output (beta), and computes
float32 results of 16-bit factors. Activations and their derivatives are a separate pass over the product, which is
rounded first, as in torch: torch does not expose the epilogue of cuBLAS that also returns the values before the
activation.
"""

import functools
import importlib.util
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....kernels.lib.plans import checks
from ....specs import activation
from ....specs import gemm as spec
from .tags import library
from .tags import torchs as _torchs

F32, HALVES = torch.float32, (torch.float16, torch.bfloat16)
E5M2 = torch.float8_e5m2
# matrix products of 16-bit tensors with a float32 result, in torch since 2.8
_mm: Any = torch.ops.aten.mm
_addmm: Any = torch.ops.aten.addmm
WIDE_MM = getattr(_mm, "dtype", None)
WIDE_ADDMM = getattr(_addmm, "dtype_out", None)

check_linear, check_linear_bwd = checks(spec.linear), checks(spec.linear_bwd)
check_linear_act = checks(spec.linear_act)
check_gemm, check_gemm_gelu, check_gemm_dgelu = checks(spec.gemm), checks(spec.gemm_gelu), checks(spec.gemm_dgelu)
check_gemm_add_ = checks(spec.gemm_add_)
check_scaled_gemm, check_block_scaled_gemm = checks(spec.scaled_gemm), checks(spec.block_scaled_gemm)


def faster() -> str | None:
    """Why cuBLAS is ranked before our kernels; None if Triton interprets kernels or only compiles them."""
    from ....kernels.lib.launch import runs_on_chip  # only called if there is Triton

    return "cuBLAS is faster" if runs_on_chip() else None


def _shaped(y: Tensor, x: Tensor) -> Tensor:
    """y with the leading dimensions of x.

    Not a view: autograd forbids writing to a view that a custom function returns.
    """
    return y if x.dim() == 2 else torch.ops.aten._unsafe_view(y, (*x.shape[:-1], y.shape[-1]))


@library("linear", "cublas")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    check_linear(x, weight, bias)
    if x.dim() == 2:
        return F.linear(x, weight, bias)
    # flattened to rows: with more dimensions torch may round the product before it adds the bias
    return _shaped(F.linear(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight, bias), x)


@library("linear_bwd", "cublas")
def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_bwd(dy, x, weight)
    m, (n, k) = math.prod(x.shape[:-1]), weight.shape
    g = dy.to(x.dtype).reshape(m, n)
    return _shaped(torch.mm(g, weight), x), torch.mm(g.t(), x.reshape(m, k)), g.sum(0)


@library("linear_act", "cublas")
def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    act: str | None = None,
    glu: bool = False,
    save: bool = True,
) -> tuple[Tensor, Tensor]:
    """At most two passes follow the product: the activation with its gate, and the residual.

    For a residual of float32 the product is float32 too, and the values before the activation are rounded after it.
    """
    check_linear_act(x, weight, bias, residual, act, glu, save)
    if residual is None or residual.dtype is x.dtype:
        y = pre = linear(x, weight, bias)
    else:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y = pre = _shaped(_product(rows, weight.t(), bias, 1.0, residual.dtype), x)
    if glu and act is None:
        y = torch.mul(*activation.halves(pre))
    elif act is not None:
        y = getattr(activation, f"{act}_glu" if glu else act)(pre)
    if residual is not None:
        y.add_(residual)  # in place: y is new or, without activation and gate, pre, which is not returned then
    return y, pre.to(x.dtype) if save and (glu or act is not None) else x.new_empty(0)


# ---- gemm -----------------------------------------------------------------------------------------------------------


def _product(x: Tensor, w: Tensor, bias: Tensor | None, alpha: float, dtype: torch.dtype) -> Tensor:
    """alpha * (x @ w) + bias in `dtype`, rounded once."""
    if dtype is x.dtype and (bias is None or bias.dtype is dtype):
        if bias is not None:
            return torch.addmm(bias, x, w, alpha=alpha)
        return torch.mm(x, w) if alpha == 1.0 else torch.addmm(x.new_empty(()), x, w, beta=0, alpha=alpha)
    y = _wide_product(x, w)
    y = y if alpha == 1.0 else y.mul_(alpha)
    y = y if bias is None else y.add_(bias)
    return y.to(dtype)


def _wide_product(x: Tensor, w: Tensor) -> Tensor:
    """x @ w in a new tensor: float32 for 16-bit factors, else their dtype."""
    if x.dtype not in HALVES:
        return torch.mm(x, w)
    if WIDE_MM is None or not x.is_cuda:
        return torch.mm(x.float(), w.float())
    return WIDE_MM(x, w, F32)


def _factors(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[Tensor, Tensor]:
    return a.t() if trans_a else a, b.t() if trans_b else b


@library("gemm", "cublas")
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check_gemm(a, b, bias, trans_a, trans_b, alpha, out_dtype)
    # skips the conversions of `_product`
    if out_dtype is None and alpha == 1.0 and (bias is None or bias.dtype is a.dtype):
        x = a.t() if trans_a else a
        if trans_b:
            return F.linear(x, b, bias)
        return torch.mm(x, b) if bias is None else torch.addmm(bias, x, b)
    return _product(*_factors(a, b, trans_a, trans_b), bias, alpha, out_dtype or a.dtype)


@library("gemm_gelu", "cublas")
def gemm_gelu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    check_gemm_gelu(a, b, bias, trans_a, trans_b, alpha, out_dtype)
    pre = _product(*_factors(a, b, trans_a, trans_b), bias, alpha, out_dtype or a.dtype)
    return F.gelu(pre, approximate="tanh"), pre


@library("gemm_dgelu", "cublas")
def gemm_dgelu(
    a: Tensor,
    b: Tensor,
    pre: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check_gemm_dgelu(a, b, pre, trans_a, trans_b, alpha, out_dtype)
    dtype = out_dtype or a.dtype
    y = _product(*_factors(a, b, trans_a, trans_b), None, alpha, dtype)
    return torch.ops.aten.gelu_backward.grad_input(y, pre.to(dtype), approximate="tanh", grad_input=y)


@library("gemm_add_", "cublas")
def gemm_add_(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    check_gemm_add_(c, a, b, trans_a, trans_b, alpha, beta)
    x, w = _factors(a, b, trans_a, trans_b)
    if not x.shape[1]:
        c.zero_() if beta == 0.0 else c.mul_(beta)
    elif c.dtype is x.dtype:
        torch.addmm(c, x, w, beta=beta, alpha=alpha, out=c)
    elif c.dtype is F32 and WIDE_ADDMM is not None and x.is_cuda:
        WIDE_ADDMM(c, x, w, F32, beta=beta, alpha=alpha, out=c)
    else:
        y = _wide_product(x, w)
        y = y if alpha == 1.0 else y.mul_(alpha)
        c.copy_(y if beta == 0.0 else y.add_(c, alpha=beta))


# ---- FP8 ------------------------------------------------------------------------------------------------------------


def scaled_when(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fast: bool = False,
) -> bool | str:
    check_scaled_gemm(a, b, a_scale, b_scale, a_dtype, b_dtype, bias, out_dtype, fast)
    if (a_scale.numel() > 1 or b_scale.numel() > 1) and not by_rows(a, b, a_scale, b_scale, out_dtype):
        return "takes one scale per matrix, or one per row of both matrices with a bfloat16 result"
    return fp8_limits(a, b, a_dtype is b_dtype is E5M2, bias, out_dtype)


def by_rows(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> bool:
    """Whether torch has a product with one scale per row (CUTLASS's, for Hopper and later)."""
    both = a_scale.numel() == a.shape[0] and b_scale.numel() == b.shape[0]
    return both and a.is_cuda and out_dtype is torch.bfloat16 and torch.cuda.get_device_capability(a.device)[0] >= 9


def fp8_limits(a: Tensor, b: Tensor, both_e5m2: bool, bias: Tensor | None, out_dtype: torch.dtype) -> bool | str:
    """Whether cuBLAS, as torch calls it, multiplies a and b in FP8: rows of multiples of 16 bytes, not both e5m2."""
    (m, k), n = a.shape, b.shape[0]
    if k % 16 or n % 16 or not (m and n and k):
        return f"takes an inner size and columns in multiples of 16, and at least one row; there are {k}, {n} and {m}"
    if both_e5m2:
        return "takes at most one matrix of float8_e5m2"
    if bias is not None and bias.dtype is not out_dtype:
        return "takes a bias of the result's dtype"
    if a.stride() != (k, 1) or b.stride() != (k, 1):
        return "takes contiguous matrices"
    return True


@library("scaled_gemm", "cublas", when=scaled_when, min_arch="sm_89")
def scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fast: bool = False,
) -> Tensor:
    if bias is not None and out_dtype is F32:  # torch refuses a bias for float32 results
        return _scaled(a.view(a_dtype), b.view(b_dtype), a_scale, b_scale, None, F32, fast).add_(bias)
    return _scaled(a.view(a_dtype), b.view(b_dtype), a_scale, b_scale, bias, out_dtype, fast)


def _scaled(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None, dtype: torch.dtype, fast: bool
) -> Tensor:
    if a_scale.numel() > 1 or b_scale.numel() > 1:
        a_scale, b_scale = a_scale.reshape(-1, 1).contiguous(), b_scale.reshape(1, -1).contiguous()
    return _torchs(torch._scaled_mm, a, b.t(), a_scale, b_scale, bias=bias, out_dtype=dtype, use_fast_accum=fast)


@library("scaled_gemm", "cublas_plain", priority=-1)
def scaled_gemm_plain(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fast: bool = False,
) -> Tensor:
    """For sizes, dtypes and chips without FP8 products: multiply in bfloat16, which represents every FP8 number."""
    check_scaled_gemm(a, b, a_scale, b_scale, a_dtype, b_dtype, bias, out_dtype, fast)
    y = _wide_product(a.view(a_dtype).to(torch.bfloat16), b.view(b_dtype).to(torch.bfloat16).t())
    y = y.mul_(a_scale.reshape(-1, 1) * b_scale.reshape(1, -1))
    return (y if bias is None else y.add_(bias)).to(out_dtype)


def block_when(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    a_rows: int = 1,
    b_rows: int = 128,
    out_dtype: torch.dtype = torch.bfloat16,
) -> bool | str:
    check_block_scaled_gemm(a, b, a_scale, b_scale, a_dtype, b_dtype, bias, a_rows, b_rows, out_dtype)
    m, k = a.shape
    if a_rows == b_rows == 128:
        return "takes at most one matrix with scales of 128x128"
    if m % 4:  # cuBLAS needs scales of rows that are aligned to 16 bytes
        return f"takes rows in multiples of 4; there are {m}"
    supported = fp8_limits(a, b, a_dtype is b_dtype is E5M2, None, out_dtype)
    if supported is not True:
        return supported
    works = blockwise(a_rows, b_rows, a_dtype, b_dtype, k % 512 == 0, out_dtype, a.device)
    return True if works else "this torch or chip has no such product"


@functools.cache
def blockwise(
    a_rows: int,
    b_rows: int,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    whole: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Whether torch multiplies such blocks on this machine: the layout of 128x128 scales depends on torch's version."""
    if device.type != "cuda":
        return False
    n, k = 256, 512 if whole else 384  # two blocks in each dimension: with one, strides do not matter
    a, b = (torch.ones(n, k, device=device).to(dtype_of_factor) for dtype_of_factor in (a_dtype, b_dtype))
    scale = lambda rows: torch.ones(-(-n // rows), k // 128, device=device)
    try:
        y = _block_scaled(a, b, scale(a_rows), scale(b_rows), a_rows, b_rows, dtype)
    except (RuntimeError, ValueError):
        return False
    return y.shape == (n, n)


def _block_scaled(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_rows: int, b_rows: int, dtype: torch.dtype
) -> Tensor:
    (sa, kind_a), (sb, kind_b) = _cublas_layout(a_scale, a_rows), _cublas_layout(b_scale, b_rows)
    return _torchs(F.scaled_mm, a, b.t(), sa, kind_a, sb, kind_b, output_dtype=dtype, use_fast_accum=False)


def _cublas_layout(scale: Tensor, rows: int) -> tuple[Tensor, Any]:
    """Scales in cuBLAS's layout, and torch's name for them.

    Scales of 1x128 blocks are [rows, blocks of K] with adjacent rows. Scales of 128x128 blocks are [blocks of K, blocks
    of rows] with adjacent blocks of K, whose number is padded to a multiple of four.
    """
    count, blocks = scale.shape
    if rows == 1:
        adjacent = scale.stride() == (1, count)
        return scale if adjacent else scale.t().contiguous().t(), F.ScalingType.BlockWise1x128
    pitch = -(-blocks // 4) * 4
    if pitch != blocks or scale.stride() != (blocks, 1):
        padded = scale.new_zeros(count, pitch)
        padded[:, :blocks].copy_(scale)
        scale = padded
    return scale.t(), F.ScalingType.BlockWise128x128


@library("block_scaled_gemm", "cublas", when=block_when, min_arch="sm_90")
def block_scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    a_rows: int = 1,
    b_rows: int = 128,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    a, b = a.view(a_dtype), b.view(b_dtype)
    if bias is None:
        return _block_scaled(a, b, a_scale, b_scale, a_rows, b_rows, out_dtype)
    return _block_scaled(a, b, a_scale, b_scale, a_rows, b_rows, F32).add_(bias).to(out_dtype)


def plain_block_when(a: Tensor, *rest: Any) -> bool | str:
    check_block_scaled_gemm(a, *rest)
    return "our kernel adds up FP8 products as cuBLAS does, and this one does not" if adds_as_cublas(a.device) else True


@functools.cache
def adds_as_cublas(device: torch.device) -> bool:
    """Whether our kernel gives the same bits as cuBLAS here: on Hopper, if there is Triton."""
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return hopper and importlib.util.find_spec("triton") is not None


@library("block_scaled_gemm", "cublas_plain", priority=-1, when=plain_block_when)
def block_scaled_gemm_plain(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    a_rows: int = 1,
    b_rows: int = 128,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Multiply dequantized factors in bfloat16, or in float32 if the result has more bits than bfloat16.

    That is exact if scales are powers of two, as they usually are. FP8 products on Hopper have less precise sums: the
    matrix unit adds 128 products in about 14 bits, so 4 % of the bfloat16 results differ by one unit in the last place.
    """
    compute_dtype = torch.bfloat16 if out_dtype is torch.bfloat16 else F32
    x = _dequantized(a.view(a_dtype), a_scale, a_rows, compute_dtype)
    w = _dequantized(b.view(b_dtype), b_scale, b_rows, compute_dtype)
    return _product(x, w.t(), bias, 1.0, out_dtype)


def _dequantized(x: Tensor, scale: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    return (x.to(F32) * spec.each(scale, rows, x.shape)).to(dtype)


IMPLS: dict[str, Any] = {
    fn.__name__: fn
    for fn in (
        linear,
        linear_bwd,
        linear_act,
        gemm,
        gemm_gelu,
        gemm_dgelu,
        gemm_add_,
        scaled_gemm,
        scaled_gemm_plain,
        block_scaled_gemm,
        block_scaled_gemm_plain,
    )
}
