"""What kernels of matrix products share: the order of tiles, how a factor is read, and how float32 is rounded."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

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


NUMBERS: dict[torch.dtype, Any] = {torch.float8_e4m3fn: e4m3_numbers, torch.float8_e5m2: e5m2_numbers}


def multiplies_fp8() -> bool:
    """Whether the chip that kernels are compiled for has products of FP8 (as torch's dtypes are)."""
    if interpreting():
        return True
    told = triton.runtime.driver.active.get_current_target()
    return told.backend == "cuda" and isinstance(told.arch, int) and told.arch >= 89


def precision() -> str:
    """What torch's setting lets float32 factors be rounded to."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
