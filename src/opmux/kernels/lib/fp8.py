"""Saturating casts to float8 (e4m3 and e5m2), and the amax of the values before the cast.

Results are bytes: Transformer Engine stores float8 as uint8, and kernels that store bytes also compile for chips
without float8. Chips with a conversion instruction (NVIDIA from sm_89 on) use it; other chips compute the bits with
integer arithmetic. Both give the same bits as torch's cast of a value clamped to the largest finite number. NaN stays
NaN.

    CAST = cast_of(torch.float8_e4m3fn)                  # in a plan: a constexpr of the kernel, None for no cast
    top = put(y_ptr + o, b_y, m, scale_ptr, CAST)        # in the kernel: y_ptr points to uint8
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .interpret import interpreting
from .rows import OutputSpec

E4M3_MAX = tl.constexpr(448.0)
E5M2_MAX = tl.constexpr(57344.0)


@triton.jit
def clamped(x, MOST: tl.constexpr):
    return tl.where(x > MOST, MOST, tl.where(x < -MOST, -MOST, x))  # NaN stays NaN, because its comparisons are false


@triton.jit
def bits_of(x, MOST: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    """float32 to a float8 byte, rounded to nearest even, with integer arithmetic."""
    u = clamped(x, MOST).to(tl.int32, bitcast=True)
    sign = (u >> 24) & 0x80
    u = u & 0x7FFFFFFF
    drop: tl.constexpr = 23 - MANTISSA
    # Subnormals: after adding this power of two, float32 rounds to a multiple of the smallest float8 number.
    magic: tl.constexpr = (127 - BIAS + 1 + drop) << 23
    small = (u.to(tl.float32, bitcast=True) + tl.full(u.shape, magic, tl.int32).to(tl.float32, bitcast=True)).to(
        tl.int32, bitcast=True
    ) - magic
    odd = (u >> drop) & 1
    large = (u - ((127 - BIAS) << 23) + ((1 << (drop - 1)) - 1) + odd) >> drop
    b = tl.where(u < ((127 - BIAS + 1) << 23), small, large)
    b = tl.where(u > 0x7F800000, 0x7F, b)
    return (b | sign).to(tl.uint8)


@triton.jit
def e4m3_bits(x):
    return bits_of(x, E4M3_MAX, 3, 7)


@triton.jit
def e5m2_bits(x):
    return bits_of(x, E5M2_MAX, 2, 15)


# Inline PTX, because Triton's own cast misplaces bytes after a transposed layout (3.6, sm_90).
CVT = """{{
    .reg .b16 a, b;
    cvt.rn.satfinite.{0}x2.f32 a, $2, $1;
    cvt.rn.satfinite.{0}x2.f32 b, $4, $3;
    mov.b32 $0, {{a, b}};
}}"""
E4M3_CVT = tl.constexpr(CVT.format("e4m3"))
E5M2_CVT = tl.constexpr(CVT.format("e5m2"))


@triton.jit
def e4m3_native(x):
    return tl.inline_asm_elementwise(E4M3_CVT, "=r,f,f,f,f", [x], dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def e5m2_native(x):
    return tl.inline_asm_elementwise(E5M2_CVT, "=r,f,f,f,f", [x], dtype=tl.uint8, is_pure=True, pack=4)


CASTS = {
    torch.float8_e4m3fn: (e4m3_bits, e4m3_native),
    torch.float8_e5m2: (e5m2_bits, e5m2_native),
}


def has_casts() -> bool:
    """Whether the chip that kernels are compiled for has a float8 conversion instruction."""
    if interpreting():
        return False
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and isinstance(target.arch, int) and target.arch >= 89


def cast_of(dtype: torch.dtype) -> Any:
    """A constexpr for kernels: the function that casts float32 to bytes of this float8 on the current chip."""
    return CASTS[dtype][has_casts()]


ONE = OutputSpec.of((1,), torch.float32)


def inverse_of_scale(scale_inv: Tensor, scale: Tensor) -> None:
    """scale_inv = 1 / scale, for empty input; no kernel is launched."""
    torch.div(torch.ones_like(scale), scale, out=scale_inv.view_as(scale))


@triton.jit
def put(y_ptr, b_y, m, scale_ptr, CAST: tl.constexpr):
    """Store a block of results: cast to the dtype of y, or with CAST multiplied by the scale and cast to float8.

    Returns the largest magnitude before scaling, ignoring NaN, as the bits of a float32: nonnegative floats sort like
    their bits. Returns 0 without CAST.
    """
    if CAST is None:
        tl.store(y_ptr, b_y.to(y_ptr.dtype.element_ty), mask=m)
        return 0
    else:
        b_y = b_y.to(tl.float32)
        tl.store(y_ptr, CAST(b_y * tl.load(scale_ptr)), mask=m)
        return tl.max(tl.where(m & (b_y == b_y), tl.abs(b_y).to(tl.int32, bitcast=True), 0))


@triton.jit
def note(amax_ptr, inv_ptr, scale_ptr, top):
    """amax = max(amax, top) and inv = 1 / scale. amax: a nonnegative float32 in memory; top: bits from `put`.

    Most programs skip the atomic, because memory already has a value at least as large.
    """
    if amax_ptr is not None:
        word_ptr = amax_ptr.to(tl.pointer_type(tl.int32))
        if top > tl.load(word_ptr):
            tl.atomic_max(word_ptr, top, sem="relaxed")
    if inv_ptr is not None:
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.store(inv_ptr, tl.div_rn(1.0, tl.load(scale_ptr)))
