"""The router kernels, called through their wrappers on meta tensors, compile to machine code for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_numbered_chips

from opmux.kernels import router as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
META = torch.device("meta")


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device=META)


def build(chip, score, experts, groups, form, dtype):
    """Compile all kernels of the family: top-k and its backward, the scores for the loss, a histogram, the loss."""
    logits, bias = empty(64, experts, dtype=dtype), None if score == "softmax" else empty(experts)
    saved, counts = empty(64, experts), empty(experts, dtype=torch.int32)
    indices = empty(64, 8, dtype=torch.int64) if form == 2 else None
    few = min(form, 1)
    with compiling_for(chip) as built:
        _, routing_map, _ = kernels.fused_topk_with_score_function_fwd(
            logits, 8, False, groups, groups and 4, 2.5, score, bias, few, indices
        )
        kernels.fused_topk_with_score_function_bwd(
            routing_map, saved, logits, logits, 8, False, 2.5, score, form == 2, few
        )
        kernels.fused_score_for_moe_aux_loss_fwd(logits, 8, score, few)
        kernels.fused_score_for_moe_aux_loss_bwd(saved, saved, logits, 8, score)
        if score == "sigmoid":
            histogram, bounds = empty(experts, 100, dtype=torch.int32), empty(2)
            kernels.fused_topk_with_score_function_qb_fwd(
                logits, 8, 2.5, bias, few, indices, histogram, bounds, 0, True
            )
            total = empty(dtype=torch.int64)
            _, const = kernels.fused_moe_aux_loss_fwd_graph_safe(logits, counts, total, experts, 64, experts, 8, 0.1)
            kernels.fused_moe_aux_loss_bwd(const, counts, 64, experts, empty(dtype=dtype))
    assert len(built) == (8 if score == "sigmoid" else 4)
    assert all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    return built


ROWS = (("softmax", 60, 6, 0), ("sigmoid", 256, 8, 1), ("sqrtsoftplus", 100, None, 2), ("sigmoid", 1500, None, 2))


@over_numbered_chips
def test_every_kernel_compiles(number, chip):
    build(chip, *ROWS[number], (torch.bfloat16, torch.float32, torch.float16)[number % 3])


def test_nothing_spills(slow):
    for row in ROWS[:3] if slow else ROWS[1:2]:
        for kernel in build("sm_90", *row, torch.bfloat16):
            assert kernel.spills() == 0, f"{row}: {kernel.name}"
