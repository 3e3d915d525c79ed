"""What kernels of matrix products share: the order of tiles, how a factor is read, and how float32 is rounded.

FP8 is multiplied as it is where the chip has such products, else converted to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .interpret import interpreting

BLOCK_K = {1: 64, 2: 64, 4: 32, 8: 16}  # by the bytes of an element


@triton.jit
def tile(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The tile of a program: down GROUP tiles, then to the right, so that what runs together shares its factors."""
    down = tl.cdiv(m, BLOCK_M)
    wide = tl.cdiv(n, BLOCK_N)
    first = program // (GROUP * wide) * GROUP
    rows = tl.minimum(down - first, GROUP)
    place = program % (GROUP * wide)
    return first + place % rows, place // rows


@triton.jit
def at(ptr, i_r, o_k, ld, TURNED: tl.constexpr):
    """Where the elements of a factor are: rows down, K to the right. TURNED: K is what is ld apart."""
    if TURNED:
        return ptr + o_k.to(tl.int64) * ld + i_r
    else:
        return ptr + i_r.to(tl.int64) * ld + o_k


@triton.jit
def e4m3_numbers(x):
    """The bfloat16 numbers of bytes: shifted, their exponent is 120 too small; a product with 2^120 is exact."""
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
    """b_y + b_a b_b; EXACT: every 128 products of FP8 are added in float32 (NVIDIA's 9.x keep fewer bits else)."""
    if EXACT:
        MOST: tl.constexpr = 128 if b_a.shape[1] >= 128 else b_a.shape[1]
        return tl.dot(b_a, b_b, b_y, input_precision=PRECISION, max_num_imprecise_acc=MOST, out_dtype=WIDE)
    else:
        return tl.dot(b_a, b_b, b_y, input_precision=PRECISION, out_dtype=WIDE)


@triton.jit
def described(ptr, rows, k, ld, TURNED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """A factor for the chip's copy engine (TMA), which needs no masks and no threads to wait for it."""
    if TURNED:
        return tl.make_tensor_descriptor(ptr, [k, rows], [ld, 1], [BLOCK_K, BLOCK])
    else:
        return tl.make_tensor_descriptor(ptr, [rows, k], [ld, 1], [BLOCK, BLOCK_K])


@triton.jit
def taken(x, first, begin, TURNED: tl.constexpr):
    """A tile of a factor, rows down."""
    if TURNED:
        return x.load([begin, first]).T
    else:
        return x.load([first, begin])


def precision() -> str:
    """What torch's setting lets float32 factors be rounded to."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


# ---- FP8 and the copy engine on the host --------------------------------------------------------------------------

NUMBERS: dict[torch.dtype, Any] = {torch.float8_e4m3fn: e4m3_numbers, torch.float8_e5m2: e5m2_numbers}


def multiplies_fp8() -> bool:
    """Whether the chip that kernels are compiled for has products of FP8 (as torch's dtypes are)."""
    if interpreting():
        return True
    told = triton.runtime.driver.active.get_current_target()
    return told.backend == "cuda" and isinstance(told.arch, int) and told.arch >= 89


Kinds = tuple[torch.dtype, torch.dtype]  # of two factors of bytes


def _view_as(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.view(dtype)


def read_as(kinds: Kinds | None) -> tuple[dict[str, Callable[[Tensor], Tensor]], dict[str, Any]]:
    """Bytes as FP8 where the chip multiplies it; else the functions that make numbers of them, as constants."""
    if kinds is None:
        return {}, {"A_NUMBERS": None, "B_NUMBERS": None}
    if multiplies_fp8():
        return {"a": _view_as(kinds[0]), "b": _view_as(kinds[1])}, {"A_NUMBERS": None, "B_NUMBERS": None}
    return {}, {"A_NUMBERS": NUMBERS[kinds[0]], "B_NUMBERS": NUMBERS[kinds[1]]}


def aligned_copy(view: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    """A function that views a tensor so, and copies one which does not begin at a multiple of 16 bytes."""

    def begun(x: Tensor) -> Tensor:
        x = x if view is None else view(x)
        return x if x.data_ptr() % 16 == 0 else _moved(x)

    return begun


def _moved(x: Tensor) -> Tensor:
    """A copy with the same strides, gaps included: kernels were bound for them."""
    size = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride())) if x.numel() else 0
    made = x.new_empty(size).as_strided(x.shape, x.stride())
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())  # of what is expanded
    made[once].copy_(x[once])
    return made
