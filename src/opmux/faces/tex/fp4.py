"""NVFP4: pairs of E2M1 numbers, an E4M3 scale for each block of 16, and one float32 amax for a matrix.

It is written in plain PyTorch: none of our test chips supports the format, so there is no kernel yet. Each arithmetic
step is the same as NVIDIA's, because scales must be bitwise equal.
"""

import torch
from torch import Tensor

from ...specs.quant import FLOAT_MAX, bytes_of, magnitudes

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LARGEST = 6.0
E4M3 = torch.float8_e4m3fn
BLOCK = 16


def global_scale(amax: Tensor, e4m3_max: float = 448.0) -> Tensor:
    """The scale that maps amax to the largest product of an E4M3 scale and an E2M1 number; 1 if amax is 0 or inf."""
    scale = (torch.full_like(amax, e4m3_max * LARGEST) / amax).clamp_max(FLOAT_MAX)
    return torch.where((amax == 0) | (scale == 0), torch.ones_like(scale), scale)


def codes(x: Tensor, stochastic: bool = False) -> Tensor:
    """Encode numbers to four bits, rounded to nearest even, or stochastically (without bias)."""
    a = x.abs().clamp_max(LARGEST)
    if stochastic:
        level = sum(((a >= v).to(torch.uint8) for v in LEVELS[1:-1]), torch.zeros_like(a, dtype=torch.uint8))
        low, high = value_of(level), value_of(level + 1)
        level = level + (torch.rand_like(a) < (a - low) / (high - low)).to(torch.uint8)
    else:
        steps = (a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0)
        level = sum((s.to(torch.uint8) for s in steps), torch.zeros_like(a, dtype=torch.uint8))
    level = torch.where(x.isnan(), torch.full_like(level, 7), level)
    return level | (torch.signbit(x).to(torch.uint8) << 3)


def packed(code: Tensor) -> Tensor:
    return code[..., ::2] | (code[..., 1::2] << 4)


def value_of(code: Tensor) -> Tensor:
    """Decode four-bit codes to float32, by arithmetic, because a lookup table would be copied from the host."""
    level = (code & 7).to(torch.int32)
    half = (level & 1).float() * 0.5
    size = torch.where(level < 2, half, (1.0 + half) * (1 << ((level >> 1) - 1).clamp_min(0)))
    return torch.where(code > 7, -size, size)


def unpacked(data: Tensor) -> Tensor:
    """Unpack and decode pairs of codes to float32."""
    return value_of(torch.stack((data & 15, data >> 4), -1).flatten(-2))


def block_amax(x: Tensor, two_d: bool) -> Tensor:
    """The amax of each 1x16 block, [M, K/16]; with `two_d`, the amax of the 16x16 tile that contains the block."""
    m, k = x.shape
    rows = magnitudes(x).view(m, k // BLOCK, BLOCK).amax(-1)
    if not two_d:
        return rows
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -m % BLOCK))
    return padded.view(-1, BLOCK, k // BLOCK).amax(1).repeat_interleave(BLOCK, 0)[:m]


def _with_scales(x: Tensor, target: Tensor, decode_scale: Tensor, stochastic: bool) -> tuple[Tensor, Tensor]:
    """Encode blocks [M, K/16, 16]; return codes, and the scales, which are `target` rounded to E4M3, as bytes."""
    scale = bytes_of(target, E4M3)
    used = scale.view(E4M3).float() * decode_scale
    encode = (torch.ones_like(used) / used).clamp_max(FLOAT_MAX)
    return codes((x * encode[..., None]).clamp(-LARGEST, LARGEST), stochastic), scale


def _errors(
    x: Tensor, code: Tensor, scale: Tensor, amax: Tensor, e4m3_max: float, squares: bool, two_d: bool
) -> Tensor:
    """The quantization error of each block; elements are summed in NVIDIA's order."""
    values = unpacked(packed(code)) * scale.view(E4M3).float()[..., None] * amax
    error = values / torch.full_like(values, LARGEST * e4m3_max) - x
    error = error * error if squares else error.abs()
    total = torch.zeros_like(error[..., 0])
    for i in range(BLOCK):
        total = total + error[..., i]
    if not two_d:
        return total
    rows = total.view(-1, BLOCK, total.shape[-1])
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0].repeat_interleave(BLOCK, 0)


def encoded(
    x: Tensor,
    amax: Tensor,
    two_d: bool = False,
    stochastic: bool = False,
    e4m3_max: float = 448.0,
    four_over_six: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Encode a matrix [M, K] to pairs [M, K/2] and scales [M, K/16], both bytes; amax is [1] or [M].

    `four_over_six` ("MAE" or "MSE") tries two scales for each block, which map its amax to 6 and to 4, and uses the
    scale with the smaller error.
    """
    m, k = x.shape
    amax = amax.float().reshape(-1, 1)
    encode_scale = global_scale(amax, e4m3_max)
    decode_scale = torch.ones_like(encode_scale) / encode_scale
    tops = block_amax(x, two_d)
    blocks = x.float().view(m, k // BLOCK, BLOCK)
    if four_over_six is None:
        sixth = torch.ones_like(encode_scale) / torch.full_like(encode_scale, LARGEST)
        target = (tops * (encode_scale * sixth)).clamp_max(FLOAT_MAX)
        code, scale = _with_scales(blocks, target, decode_scale, stochastic)
        return packed(code.view(m, k)), scale
    target = tops / torch.full_like(tops, LARGEST) * encode_scale
    four, six = (_with_scales(blocks, target * part, decode_scale, stochastic) for part in (1.5, 1.0))
    squares = four_over_six == "MSE"
    options = amax[..., None], e4m3_max, squares, two_d
    better = _errors(blocks, *four, *options) < _errors(blocks, *six, *options)
    code = torch.where(better[..., None], four[0], six[0])
    return packed(code.view(m, k)), torch.where(better, four[1], six[1])


def decoded(data: Tensor, scales: Tensor, amax: Tensor, e4m3_max: float = 448.0) -> Tensor:
    """Decode pairs [M, K/2] with scales of at least [M, K/16] to a float32 matrix [M, K]."""
    m, k = data.shape[0], 2 * data.shape[1]
    scale = scales[:m, : k // BLOCK].contiguous().view(E4M3).float() * amax.reshape(-1, 1)
    scale = scale * torch.full_like(scale, 1.0 / (LARGEST * e4m3_max))
    return (unpacked(data).view(m, k // BLOCK, BLOCK) * scale[..., None]).view(m, k)


def rotated(x: Tensor, matrix: Tensor, inverse: bool = False) -> Tensor:
    """Multiply every 16 elements of a row by a Hadamard matrix (`inverse`: by its inverse), in x's dtype."""
    rotation = matrix.to(x.dtype)
    return (x.reshape(-1, BLOCK) @ (rotation.t() if inverse else rotation)).view(x.shape)
