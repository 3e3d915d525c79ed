"""Device functions that the matrix product kernels share: the order of tiles, loads of operands, FP8, and TMA.

FP8 operands are multiplied directly if the chip supports it, else converted to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .interpret import interpreting

BLOCK_K = {1: 64, 2: 64, 4: 32, 8: 16}  # bytes per element -> columns of K per tile


@triton.jit
def tile(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The tile of a program: GROUP tiles down, then one to the right, so that concurrent programs share operands."""
    down = tl.cdiv(m, BLOCK_M)
    wide = tl.cdiv(n, BLOCK_N)
    first = program // (GROUP * wide) * GROUP
    rows = tl.minimum(down - first, GROUP)
    index = program % (GROUP * wide)
    return first + index % rows, index // rows


@triton.jit
def at(ptr, i_r, o_k, ld, TRANSPOSED: tl.constexpr):
    """Pointers to the elements of an operand, as [rows, K]. ld is the stride of rows or, if TRANSPOSED, of K."""
    if TRANSPOSED:
        return ptr + o_k.to(tl.int64) * ld + i_r
    else:
        return ptr + i_r.to(tl.int64) * ld + o_k


@triton.jit
def e4m3_numbers(x):
    """e4m3 bytes to bfloat16.

    The bits, shifted to bfloat16's fields, have an exponent that is 120 too small; multiplying by 2^120 is exact.
    """
    b = x.to(tl.int16)
    magnitude = ((b & 0x7F) << 4).to(tl.bfloat16, bitcast=True).to(tl.float32) * 1.329227995784916e36
    magnitude = tl.where((b & 0x7F) == 0x7F, float("nan"), magnitude)
    return tl.where((b & 0x80) != 0, -magnitude, magnitude).to(tl.bfloat16)


@triton.jit
def e5m2_numbers(x):
    return (x.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32).to(tl.bfloat16)


@triton.jit
def factor(ptr, m, NUMBERS: tl.constexpr):
    if NUMBERS is None:
        return tl.load(ptr, mask=m, other=0.0)
    else:
        return NUMBERS(tl.load(ptr, mask=m, other=0))


@triton.jit
def multiply(b_a, b_b, b_y, WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr):
    """b_y + b_a b_b.

    EXACT: add FP8 products to a float32 sum every 128 columns, because the sums of sm_90's matrix unit have fewer bits.
    """
    if EXACT:
        MOST: tl.constexpr = 128 if b_a.shape[1] >= 128 else b_a.shape[1]
        return tl.dot(b_a, b_b, b_y, input_precision=PRECISION, max_num_imprecise_acc=MOST, out_dtype=WIDE)
    else:
        return tl.dot(b_a, b_b, b_y, input_precision=PRECISION, out_dtype=WIDE)


@triton.jit
def described(ptr, rows, k, ld, TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """A TMA descriptor of an operand; TMA needs no masks and no address registers."""
    if TRANSPOSED:
        return tl.make_tensor_descriptor(ptr, [k, rows], [ld, 1], [BLOCK_K, BLOCK])
    else:
        return tl.make_tensor_descriptor(ptr, [rows, k], [ld, 1], [BLOCK, BLOCK_K])


@triton.jit
def taken(x, first, begin, TRANSPOSED: tl.constexpr):
    """Load a tile [rows, K] of an operand by TMA."""
    if TRANSPOSED:
        return x.load([begin, first]).T
    else:
        return x.load([first, begin])


def precision() -> str:
    """The precision of float32 operands that torch's setting permits."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


# ---- FP8 and TMA on the host ----------------------------------------------------------------------------------------

NUMBERS: dict[torch.dtype, Any] = {torch.float8_e4m3fn: e4m3_numbers, torch.float8_e5m2: e5m2_numbers}


def multiplies_fp8() -> bool:
    """Whether the chip that kernels are compiled for multiplies FP8 (torch's float8 types)."""
    if interpreting():
        return True
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and isinstance(target.arch, int) and target.arch >= 89


Kinds = tuple[torch.dtype, torch.dtype]  # FP8 dtypes of two operands that are stored as bytes


def _view_as(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.view(dtype)


def read_as(kinds: Kinds | None) -> tuple[dict[str, Callable[[Tensor], Tensor]], dict[str, Any]]:
    """How kernels read FP8 operands: as FP8 views if the chip multiplies FP8, else as bytes that they convert."""
    if kinds is None:
        return {}, {"A_NUMBERS": None, "B_NUMBERS": None}
    if multiplies_fp8():
        return {"a": _view_as(kinds[0]), "b": _view_as(kinds[1])}, {"A_NUMBERS": None, "B_NUMBERS": None}
    return {}, {"A_NUMBERS": NUMBERS[kinds[0]], "B_NUMBERS": NUMBERS[kinds[1]]}


def aligned_copy(view: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    """A function that applies `view` to a tensor, and copies the result unless its address is a multiple of 16."""

    def begun(x: Tensor) -> Tensor:
        x = x if view is None else view(x)
        return x if x.data_ptr() % 16 == 0 else _moved(x)

    return begun


def _moved(x: Tensor) -> Tensor:
    """A copy with the same strides, gaps included: the launch is bound to these strides."""
    size = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride())) if x.numel() else 0
    copy = x.new_empty(size).as_strided(x.shape, x.stride())
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())  # copy expanded dimensions only once
    copy[once].copy_(x[once])
    return copy
