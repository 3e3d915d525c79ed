"""Mixture of experts: `liger_kernel`'s fused_moe."""

from __future__ import annotations

from torch import Tensor

from ..functional import moe
from .function import LigerFunction


class LigerFusedMoEFunction(LigerFunction):
    """The weighted sum of each token's experts, which are SwiGLU MLPs."""

    @staticmethod
    def apply(x: Tensor, gate_up_proj: Tensor, down_proj: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return moe.fused_moe(x, gate_up_proj, down_proj, top_k_index, top_k_weights)
