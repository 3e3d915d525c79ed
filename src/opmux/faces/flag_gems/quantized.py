"""FlagGems' functions that quantize to float8, and products of quantized matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...specs import gemm
from ...specs.quant import FP8_MAX

SUPPORTED_FP8_DTYPE = torch.float8_e4m3fn
BLOCK = 128


def per_token_group_quant_fp8(
    x: Tensor,
    group_size: int,
    eps: float = 1e-10,
    dtype: torch.dtype | None = None,
    column_major_scales: bool = False,
    scale_ue8m0: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quantize each group of `group_size` elements of a row to float8: x = result * scale.

    Args:
        x: float [..., n], with n a multiple of group_size.
        group_size: the number of elements with one scale.
        eps: the lower limit of a group's largest magnitude.
        dtype: a float8 dtype; default `SUPPORTED_FP8_DTYPE`.
        column_major_scales: store the scales by columns.
        scale_ue8m0: round scales up to powers of two.

    Returns:
        The quantized tensor, like x, and the scales, float32 [..., n / group_size].
    """
    to = SUPPORTED_FP8_DTYPE if dtype is None else dtype
    if to not in FP8_MAX:
        raise BadArgument.of("per_token_group_quant_fp8", "dtype", f"be one of {list(FP8_MAX)}", str(to), TypeError)
    if x.dim() == 0 or group_size < 1 or x.shape[-1] % group_size:
        expected = f"divide the last dimension of {{x}} {tuple(x.shape)}"
        raise BadArgument.of("per_token_group_quant_fp8", "group_size", expected, str(group_size), ValueError)
    groups = x.float().unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1).clamp(min=eps) / FP8_MAX[to]
    if scale_ue8m0:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    y = (groups / scale[..., None]).clamp(-FP8_MAX[to], FP8_MAX[to]).to(to).view(x.shape)
    return y, (scale.mT.contiguous().mT if column_major_scales and scale.dim() > 1 else scale)


def act_quant_triton(x: Tensor, block_size: int = 128, scale_fmt: str | None = None) -> tuple[Tensor, Tensor]:
    """`per_token_group_quant_fp8` with magnitudes of at least 1e-4; any `scale_fmt` rounds scales to powers of two."""
    return per_token_group_quant_fp8(x, block_size, 1e-4, scale_ue8m0=scale_fmt is not None)


def fp8_matmul(a: Tensor, a_s: Tensor, b: Tensor, b_s: Tensor, scale_dtype: torch.dtype = torch.float32) -> Tensor:
    """The product a b^T of float8 matrices, bfloat16 [..., n].

    Args:
        a: [..., k], with a scale for each 128 elements of a row.
        a_s: [..., k / 128].
        b: [n, k], with a scale for each block of 128x128.
        b_s: [n / 128, k / 128].
        scale_dtype: the dtype of the scales.
    """
    return w8a8_block_fp8_matmul(a, b, a_s.to(scale_dtype), b_s.to(scale_dtype), [BLOCK, BLOCK])


def w8a8_block_fp8_matmul(
    A: Tensor,
    B: Tensor,
    As: Tensor,
    Bs: Tensor,
    block_size: Sequence[int],
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """The product A B^T of float8 matrices. A has a scale for each block of a row, and B one for each block.

    Args:
        A: float8 [..., k].
        B: float8 [n, k].
        As: float [..., ceil(k / block_size[1])].
        Bs: float [ceil(n / block_size[0]), ceil(k / block_size[1])].
        block_size: the rows and columns of a block of B. Only 128x128 runs on a quantized kernel; for other blocks
            both matrices are converted to float32 first.
        output_dtype: the dtype of the result.
    """
    rows, columns = block_size
    a, a_s = A.reshape(-1, A.shape[-1]), As.reshape(-1, As.shape[-1]).float()
    shape = (*A.shape[:-1], B.shape[0])
    if (rows, columns) == (BLOCK, BLOCK) and output_dtype in (torch.bfloat16, torch.float16, torch.float32):
        left, right = (t.contiguous().view(torch.uint8) for t in (a, B))
        scales = a_s.contiguous(), Bs.float().contiguous()
        y = gemm.block_scaled_gemm(left, right, *scales, A.dtype, B.dtype, out_dtype=output_dtype)
        return y.view(shape)
    return (_scaled(a, a_s, 1, columns) @ _scaled(B, Bs, rows, columns).mT).to(output_dtype).view(shape)


def _scaled(x: Tensor, scale: Tensor, rows: int, columns: int) -> Tensor:
    """A quantized matrix as float32; `scale` has one element for each block."""
    each = scale.float().repeat_interleave(rows, 0)[: x.shape[0]]
    return x.float() * each.repeat_interleave(columns, 1)[:, : x.shape[1]]


@torch.no_grad()
def cutlass_scaled_mm(
    c: Tensor, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Write a_scale * b_scale * (a b) + bias to c: vLLM's product of float8 or int8 matrices.

    Args:
        c: [m, n], float16 or bfloat16; modified.
        a: [m, k], float8 or int8.
        b: [k, n], of a's dtype.
        a_scale: one element, one for each row of a ([m] or [m, 1]), or for float8 one for each 128 elements of a row.
        b_scale: one element, one for each column of b, or one for each block of 128x128 ([k / 128, n / 128]).
        bias: [n], of c's dtype.
    """
    m, n = c.shape
    by_row = a_scale.numel() in (1, m) and b_scale.numel() in (1, n)
    if a.dtype is torch.int8:
        if not by_row:
            expected = "have one element, or one for each row of a and column of b, if these are int8"
            got = f"{tuple(a_scale.shape)} and {tuple(b_scale.shape)}"
            raise BadArgument.of("cutlass_scaled_mm", "a_scale and b_scale", expected, got, ValueError)
        product = gemm.int_mm(a, b.contiguous()).float()
        y = product * a_scale.reshape(-1, 1) * b_scale.reshape(1, -1)
        return c.copy_(y if bias is None else y + bias)
    left, right = a.contiguous().view(torch.uint8), b.t().contiguous().view(torch.uint8)
    if by_row:
        scales = a_scale.float().reshape(-1), b_scale.float().reshape(-1)
        y = gemm.scaled_gemm(left, right, *scales, a.dtype, b.dtype, bias, out_dtype=c.dtype)
    else:
        scales = a_scale.float().contiguous(), b_scale.float().t().contiguous()
        y = gemm.block_scaled_gemm(left, right, *scales, a.dtype, b.dtype, bias, out_dtype=c.dtype)
    return c.copy_(y)
