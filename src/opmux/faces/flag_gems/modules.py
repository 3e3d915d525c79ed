"""`flag_gems.modules`: FlagGems' nn.Modules, implemented by opmux's functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .configs import has_c_extension as has_c_extension
from .fused import apply_rotary_pos_emb, fused_add_rms_norm, rms_norm, silu_and_mul

__all__ = [
    "GemsDeepseekYarnRoPE",
    "GemsRMSNorm",
    "GemsRope",
    "GemsSiluAndMul",
    "gems_rms_forward",
    "gems_rope_forward",
    "gems_silu_and_mul",
]

gems_silu_and_mul = silu_and_mul
gems_rope_forward = apply_rotary_pos_emb


def gems_rms_forward(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    """rms_norm(x); with a residual, fused_add_rms_norm, which modifies x and residual."""
    if residual is None:
        return rms_norm(x, weight.shape, weight, eps)
    return fused_add_rms_norm(x, residual, weight.shape, weight, eps)


class GemsSiluAndMul(nn.Module):
    """silu(x) * y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return silu_and_mul(x, y)


class GemsRMSNorm(nn.Module):
    """RMS norm over the last dimensions. With a residual: writes x + residual to it, and the norm of the sum to x."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        ones = torch.ones(self.normalized_shape, device=device, dtype=dtype) if elementwise_affine else None
        self.weight = None if ones is None else nn.Parameter(ones)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        weight = self.weight if self.weight is not None else x.new_ones(self.normalized_shape)
        return gems_rms_forward(x, residual, weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GemsRope(nn.Module):
    """Rotary embedding with tables for `max_position_embeddings` positions."""

    def __init__(
        self,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        rotary_interleaved: bool,
        dtype: torch.dtype,
        device: Any,
    ):
        super().__init__()
        self.rotary_dim, self.max_position_embeddings, self.base = rotary_dim, max_position_embeddings, base
        self.rotary_interleaved, self.dtype, self.device = rotary_interleaved, dtype, device
        positions = torch.arange(max_position_embeddings, dtype=torch.float32, device=device)
        angles, factor = torch.outer(positions, self._frequencies()), self._scale()
        self.register_buffer("cos_cached", (angles.cos() * factor).to(dtype), persistent=False)
        self.register_buffer("sin_cached", (angles.sin() * factor).to(dtype), persistent=False)

    def _frequencies(self) -> Tensor:
        """The angle between neighbouring positions, for each pair of dimensions."""
        pairs = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device=self.device)
        return self.base ** (-pairs / self.rotary_dim)

    def _scale(self) -> float:
        """The factor by which cosines and sines are multiplied."""
        return 1.0

    def forward(
        self, query: Tensor, key: Tensor, position_ids: Tensor | None = None, inplace: bool = False
    ) -> tuple[Tensor, Tensor]:
        tables = self.cos_cached, self.sin_cached
        return apply_rotary_pos_emb(query, key, *tables, position_ids, self.rotary_interleaved, inplace)  # type: ignore[arg-type]


def yarn_find_correction_dim(
    num_rotations: float, dim: int, base: float = 10000, max_position_embeddings: int = 2048
) -> float:
    """The dimension of a rotary embedding that makes this many rotations over all positions."""
    return dim * math.log(max_position_embeddings / (2 * math.pi * num_rotations)) / (2 * math.log(base))


def yarn_find_correction_range(
    low_rot: float, high_rot: float, dim: int, base: float = 10000, max_position_embeddings: int = 2048
) -> tuple[int, int]:
    """The dimensions between which YaRN passes from extrapolation to interpolation."""
    low, high = (yarn_find_correction_dim(r, dim, base, max_position_embeddings) for r in (low_rot, high_rot))
    return max(math.floor(low), 0), min(math.ceil(high), dim - 1)


def yarn_get_mscale(scale: float = 1, mscale: float = 1) -> float:
    """The factor by which YaRN multiplies cosines and sines when it extends the context `scale` times."""
    return 1.0 + 0.1 * mscale * math.log(scale) if scale > 1 else 1.0


def yarn_linear_ramp_mask(min: float, max: float, dim: int) -> Tensor:
    """0 for dimensions up to `min`, 1 from `max`, and linear between them."""
    width = max - min if max != min else 0.001
    return ((torch.arange(dim, dtype=torch.float32) - min) / width).clamp(0, 1)


class GemsDeepseekYarnRoPE(GemsRope):
    """YaRN's rotary embedding, as in DeepSeek's models: positions beyond the trained length are interpolated.

    Dimensions that rotate more than beta_fast times over the trained length keep their frequencies; those that rotate
    less than beta_slow times have them divided by scaling_factor; in between, frequencies are interpolated linearly.
    """

    def __init__(
        self,
        rotary_dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000,
        rotary_interleaved: bool = False,
        dtype: torch.dtype = torch.float32,
        device: Any = None,
        scaling_factor: float = 1.0,
        original_max_position_embeddings: int = 4096,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        mscale: float = 1.0,
        mscale_all_dim: float = 0.0,
    ):
        self._yarn = beta_fast, beta_slow, rotary_dim, base, original_max_position_embeddings
        self._factors = scaling_factor, mscale, mscale_all_dim
        super().__init__(rotary_dim, max_position_embeddings, base, rotary_interleaved, dtype, device)
        self.scaling_factor, self.original_max_position_embeddings = scaling_factor, original_max_position_embeddings
        self.beta_fast, self.beta_slow = beta_fast, beta_slow
        self.mscale, self.mscale_all_dim = mscale, mscale_all_dim

    def _frequencies(self) -> Tensor:
        frequencies = super()._frequencies()
        slow = yarn_linear_ramp_mask(*yarn_find_correction_range(*self._yarn), frequencies.numel())
        return torch.lerp(frequencies, frequencies / self._factors[0], slow.to(frequencies.device))

    def _scale(self) -> float:
        factor, mscale, mscale_all_dim = self._factors
        return yarn_get_mscale(factor, mscale) / yarn_get_mscale(factor, mscale_all_dim)
