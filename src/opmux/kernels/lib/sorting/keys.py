"""Converts elements to integers that sort in torch's order: -inf < ... < -0 = 0 < ... < inf < NaN."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....core.errors import NotSupported

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INFINITY = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
}
_INTS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Bits(NamedTuple):
    """The integer dtype that kernels read elements of a dtype as, and constants of the sort order."""

    dtype: torch.dtype
    infinity: int  # the bits of infinity; 0 for integers
    largest: int  # the bits of the largest integer of this width

    @property
    def sign(self) -> int:
        """The mask to XOR with, so that signed integers sort as unsigned ones; 0 for unsigned dtypes."""
        return -self.largest - 1 if self.dtype.is_signed else 0

    @property
    def narrow(self) -> bool:
        """Whether a key and an index fit in 32 bits together."""
        return self.dtype.itemsize <= 2


def bits_of(dtype: torch.dtype) -> Bits:
    if dtype not in _INFINITY and dtype not in _INTS:
        raise NotSupported(f"{dtype} cannot be sorted")
    as_int = dtype if dtype in _INTS and dtype is not torch.bool else _BITS[dtype.itemsize]
    return Bits(as_int, _INFINITY.get(dtype, 0), (1 << (8 * dtype.itemsize - 1)) - 1)


def as_bits(x: Tensor) -> Tensor:
    dtype = bits_of(x.dtype).dtype
    return x if x.dtype is dtype else x.view(dtype)


@triton.jit
def key_of(b, INFINITY: tl.constexpr, LARGEST: tl.constexpr, DESCENDING: tl.constexpr):
    """The sort key of an element's bits, int32 or int64. DESCENDING inverts the key, so that the sort stays stable."""
    if b.dtype.primitive_bitwidth == 64:
        key = b.to(tl.int64)
    else:
        key = b.to(tl.int32)
    if INFINITY > 0:
        magnitude = key & LARGEST
        key = tl.where(key < 0, -magnitude, magnitude)
        key = tl.where(magnitude > INFINITY, LARGEST, key)
    return ~key if DESCENDING else key
