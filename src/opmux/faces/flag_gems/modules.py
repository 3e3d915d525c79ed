"""`flag_gems.modules`: FlagGems' nn.Modules, implemented by opmux's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .fused import apply_rotary_pos_emb, fused_add_rms_norm, rms_norm, silu_and_mul

__all__ = ["GemsRMSNorm", "GemsRope", "GemsSiluAndMul", "gems_rms_forward", "gems_rope_forward", "gems_silu_and_mul"]

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
        pairs = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device)
        positions = torch.arange(max_position_embeddings, dtype=torch.float32, device=device)
        angles = torch.outer(positions, base ** (-pairs / rotary_dim))
        self.register_buffer("cos_cached", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sin_cached", angles.sin().to(dtype), persistent=False)

    def forward(
        self, query: Tensor, key: Tensor, position_ids: Tensor | None = None, inplace: bool = False
    ) -> tuple[Tensor, Tensor]:
        tables = self.cos_cached, self.sin_cached
        return apply_rotary_pos_emb(query, key, *tables, position_ids, self.rotary_interleaved, inplace)  # type: ignore[arg-type]
