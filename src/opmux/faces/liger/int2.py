"""`liger_kernel.ops.experimental.mm_int8int2`: products of int8 with weights of -1, 0 and 1, four in a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.errors import BadArgument


def _check_bits(name: str, bits: int) -> None:
    if bits != 2:
        raise BadArgument.of(name, "bits", "be 2", str(bits))


def pack_weights(intweights: Tensor, bits: int = 2) -> Tensor:
    """uint8 [rows / 4, ...] of weights [rows, ...] from -1 to 2, which are not modified.

    Byte i has the weights i, i + n, i + 2n, i + 3n for n = rows / 4 (rounded up), the first in its lowest bits.
    """
    _check_bits("pack_weights", bits)
    count = -(-intweights.shape[0] // 4)
    missing = 4 * count - intweights.shape[0]
    codes = torch.cat([intweights + 1, intweights.new_zeros(missing, *intweights.shape[1:])]).to(torch.uint8)
    parts = codes.view(4, count, *intweights.shape[1:])
    return parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6


def unpack_weights(packed: Tensor, bits: int = 2) -> Tensor:
    """The weights as int32 [4 * rows, ...]."""
    _check_bits("unpack_weights", bits)
    return torch.cat([(packed >> shift & 3).to(torch.int32) - 1 for shift in (0, 2, 4, 6)])


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ unpack_weights(b) in int32, for a of int8 [m, k] and b of uint8 [k / 4, n]."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != 4 * b.shape[0]:
        expected = f"have 4 times as many columns as b {tuple(b.shape)} has rows"
        raise BadArgument.of("matmul", "a", expected, str(tuple(a.shape)))
    if a.is_cuda:  # no product of int32 on CUDA; float64 is exact below 2^53
        return (a.double() @ unpack_weights(b).double()).to(torch.int32)
    return a.to(torch.int32) @ unpack_weights(b)
