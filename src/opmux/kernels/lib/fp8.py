"""Casts to float8 (e4m3 and e5m2) that saturate, and the largest magnitude of what was cast.

Results are bytes: tex keeps float8 data as uint8, and kernels then compile for chips without the type. Chips that
convert by an instruction (NVIDIA's from sm_89) use it; for all others the bits are made by integer arithmetic. Both are
torch's cast of a value clamped to the largest finite number, bit for bit; a NaN stays one.

    CAST = cast_of(torch.float8_e4m3fn)                  # in a plan: a constant of the kernel, None for no cast
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
    return tl.where(x > MOST, MOST, tl.where(x < -MOST, -MOST, x))  # false for a NaN


@triton.jit
def bits_of(x, MOST: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    """The byte of a float32, rounded to nearest even, by integer arithmetic alone."""
    u = clamped(x, MOST).to(tl.int32, bitcast=True)
    sign = (u >> 24) & 0x80
    u = u & 0x7FFFFFFF
    drop: tl.constexpr = 23 - MANTISSA
    # to a multiple of the least number of the format: adding 2^k makes float32's own rounding do it
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


# By PTX of our own: Triton's cast of float32 puts bytes in wrong places where its layout was transposed (3.6, sm_90).
# satfinite: what is too large is the largest.
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
    """Whether the chip that kernels are compiled for converts to float8 by an instruction of its own."""
    if interpreting():
        return False
    told = triton.runtime.driver.active.get_current_target()
    return told.backend == "cuda" and isinstance(told.arch, int) and told.arch >= 89


def cast_of(dtype: torch.dtype) -> Any:
    """The device function from float32 to bytes of this float8, for the chip at hand: a constant for kernels."""
    return CASTS[dtype][has_casts()]


ONE = OutputSpec.of((1,), torch.float32)


def inverse_of_scale(scale_inv: Tensor, scale: Tensor) -> None:
    """scale_inv = 1 / scale, for a call without anything to cast, of which no kernel runs."""
    torch.div(torch.ones_like(scale), scale, out=scale_inv.view_as(scale))


@triton.jit
def put(y_ptr, b_y, m, scale_ptr, CAST: tl.constexpr):
    """Store a block of a result: rounded to the result's type or, with CAST, times the scale and cast to bytes.

    Gives the bits of the largest magnitude of what was cast, before the scale, as an int32: of numbers without a sign
    they have the order of the numbers themselves. NaN is left out.
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
    """amax = max(amax, top), of a float32 in memory that is not negative and the bits of another; inv = 1 / scale.

    Most programs see that theirs is not the largest, and leave the one word in peace.
    """
    if amax_ptr is not None:
        word_ptr = amax_ptr.to(tl.pointer_type(tl.int32))
        if top > tl.load(word_ptr):
            tl.atomic_max(word_ptr, top, sem="relaxed")
    if inv_ptr is not None:
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.store(inv_ptr, tl.div_rn(1.0, tl.load(scale_ptr)))
