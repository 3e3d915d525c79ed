"""`liger_kernel.transformers.moe`: experts whose weights are arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from .names import ops


class LigerExpertParallelFusedMoe(nn.Module):
    """For each token the weighted sum of its experts, SwiGLU MLPs; all experts are on this process."""

    def __init__(self, process_group: Any = None):
        super().__init__()
        if process_group is not None and torch.distributed.get_world_size(process_group) > 1:
            expected = "be None or a group of one process: opmux does not exchange tokens between processes"
            raise BadArgument.of("LigerExpertParallelFusedMoe", "process_group", expected, repr(process_group))
        self.process_group = process_group

    def forward(
        self,
        hidden_states: Tensor,
        expert_indices: Tensor,
        expert_weights: Tensor,
        all_B: Tensor,
        all_C: Tensor,
        all_A: Tensor,
        num_experts: int,
    ) -> Tensor:
        """The gates all_B and inputs all_C are [experts, width, hidden], the outputs all_A [experts, hidden, width]."""
        if all_B.shape[0] != num_experts:
            expected = f"have num_experts = {num_experts} experts"
            raise BadArgument.of("LigerExpertParallelFusedMoe", "all_B", expected, str(tuple(all_B.shape)))
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        index, weights = (t.reshape(-1, t.shape[-1]) for t in (expert_indices, expert_weights))
        gate_up = torch.cat([all_B, all_C], 1)
        output = ops.LigerFusedMoEFunction.apply(rows, gate_up, all_A, index.int(), weights)
        return output.view(hidden_states.shape)
