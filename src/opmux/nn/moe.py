"""The experts of a mixture-of-experts layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..functional.moe import fused_moe


class Experts(nn.Module):
    """`opmux.functional.fused_moe` with its weights. The experts are gated MLPs; a few of them process each token.

    The parameters and the arguments of forward are the same as in `transformers` (Mixtral, Qwen3-MoE, ...):
    gate_up_proj [experts, 2 * intermediate, hidden] and down_proj [experts, hidden, intermediate].

    Args:
        num_experts: the number of experts.
        hidden_dim: the size of a token.
        intermediate_dim: the size of an expert's gate.
        activation: the gate's activation, as in `fused_moe`.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_dim: int,
        intermediate_dim: int,
        activation: str = "silu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.num_experts, self.hidden_dim, self.intermediate_dim = num_experts, hidden_dim, intermediate_dim
        self.activation = activation
        new = lambda *shape: nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.gate_up_proj = new(num_experts, 2 * intermediate_dim, hidden_dim)
        self.down_proj = new(num_experts, hidden_dim, intermediate_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each expert as `torch.nn.Linear` does."""
        for weight in (self.gate_up_proj, self.down_proj):
            bound = 1 / math.sqrt(weight.shape[-1]) if weight.shape[-1] else 0.0
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return fused_moe(hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, self.activation)

    def extra_repr(self) -> str:
        return f"{self.num_experts}, {self.hidden_dim}, {self.intermediate_dim}, activation={self.activation!r}"
