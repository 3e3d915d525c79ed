"""Rotary embeddings: `liger_kernel`'s rope, qwen2vl_mrope and llama4_rope. q and k are not modified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...functional import rotary
from .function import LigerFunction
from .names import ops

Pair = tuple[Tensor, Tensor]


class LigerRopeFunction(LigerFunction):
    """Rotates q and k; pairs element i with i + d/2, as transformers does. `position_ids` has no effect."""

    @staticmethod
    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1) -> Pair:
        return rotary.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


def rope_forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns q and k, rotated, and cos and sin."""
    return *rotary.apply_rotary_pos_emb(q, k, cos, sin), cos, sin


def rope_backward(dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Returns the gradients of q and k: dq and dk rotated back."""
    return rotary.apply_rotary_pos_emb(dq, dk, cos, -sin)


def liger_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> Pair:
    return ops.LigerRopeFunction.apply(q, k, cos, sin, position_ids, unsqueeze_dim)


liger_rotary_pos_emb = liger_rope


def liger_rotary_pos_emb_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Rotates q and k of shape [patches, heads, d]."""
    return rotary.apply_rotary_pos_emb_vision(q, k, cos, sin)


class LigerQwen2VLMRopeFunction(LigerFunction):
    """Rotates q and k with separate tables for time, height and width."""

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: Sequence[int], unsqueeze_dim: int = 1
    ) -> Pair:
        return rotary.apply_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim)


def qwen2vl_mrope_forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns q and k, rotated, and cos and sin."""
    return *rotary.apply_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section), cos, sin


def qwen2vl_mrope_backward(dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor, mrope_section: Sequence[int]) -> Pair:
    """Returns the gradients of q and k: dq and dk rotated back."""
    return rotary.apply_multimodal_rotary_pos_emb(dq, dk, cos, -sin, mrope_section)


def liger_qwen2vl_mrope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: Sequence[int], unsqueeze_dim: int = 1
) -> Pair:
    return ops.LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, mrope_section, unsqueeze_dim)


liger_multimodal_rotary_pos_emb = liger_qwen2vl_mrope


class LigerLlama4RopeFunction(LigerFunction):
    """Multiplies q and k [batch, length, heads, d], as complex numbers, by freqs_cis. `BLOCK_SIZE` has no effect."""

    @staticmethod
    def apply(q: Tensor, k: Tensor, freqs_cis: Tensor, BLOCK_SIZE: int | None = None) -> Pair:
        return llama4_rope_forward(q, k, freqs_cis)


def llama4_rope_forward(
    q: Tensor, k: Tensor, freqs_cis: Tensor, BLOCK_SIZE: int | None = None, imag_sign: float = 1.0
) -> Pair:
    """freqs_cis is complex, or has a last dimension (cos, sin). imag_sign=-1.0 rotates back."""
    freqs = freqs_cis if freqs_cis.is_complex() else torch.view_as_complex(freqs_cis.float())
    length, batch = q.shape[1], q.shape[0]
    rows = freqs.numel() // freqs.shape[-1]
    if rows > length and rows != batch * length:  # the table is longer than the sequence
        freqs = freqs.reshape(rows, -1)[:length]
    return rotary.apply_rotary_emb(q, k, freqs if imag_sign > 0 else freqs.conj().resolve_conj())


def liger_llama4_text_rotary_pos_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> Pair:
    return ops.LigerLlama4RopeFunction.apply(xq, xk, freqs_cis)


def liger_llama4_vision_rotary_pos_emb(query: Tensor, key: Tensor, freqs_ci: Tensor) -> Pair:
    """freqs_ci may be real if a cast of the model has dropped the imaginary part; transformers accepts that too."""
    freqs = freqs_ci if freqs_ci.is_complex() else torch.complex(freqs_ci.float(), torch.zeros_like(freqs_ci.float()))
    return ops.LigerLlama4RopeFunction.apply(query, key, freqs.to(query.device))


def apply_liger_llama4_rope_full(modeling_module: Any) -> None:
    """Replace both rotary functions in transformers' module of Llama 4."""
    modeling_module.apply_rotary_emb = liger_llama4_text_rotary_pos_emb
    modeling_module.vision_apply_rotary_emb = liger_llama4_vision_rotary_pos_emb
