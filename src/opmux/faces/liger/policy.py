"""GRPO over logits: `liger_kernel`'s grpo_loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ..functional import grpo
from .function import LigerFunction

Numbers = tuple[Tensor, Tensor | None, Tensor]


class GrpoLossFunction(LigerFunction):
    """(loss, divergence from the reference or None, what was clipped): of each token, or reduced.

    With `inplace` the backward writes the gradient over the logits, and a second one raises.
    """

    @staticmethod
    def apply(
        logits: Tensor,
        old_logp: Tensor | None,
        ref_logp: Tensor | None,
        completion_ids: Tensor,
        advantages: Tensor,
        completion_mask: Tensor | None,
        temperature: float,
        beta: float,
        eps_low: float,
        eps_high: float,
        inplace: bool,
        loss_type: str = "grpo",
        max_completion_length: int | None = None,
        reduce: bool = True,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        vllm_is_ratio: Tensor | None = None,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        num_items_in_batch: Tensor | float | None = None,
        phi_seq: Tensor | None = None,
    ) -> Numbers:
        if phi_seq is not None or loss_type == "vespo":
            expected = "be another one: for 'vespo' call triton_grpo_loss, which computes phi_seq"
            raise BadArgument.of("GrpoLossFunction", "loss_type", expected, repr(loss_type))
        made = grpo.grpo_loss(
            logits, old_logp, ref_logp, completion_ids, advantages, completion_mask, vllm_is_ratio,
            loss_type=loss_type, beta=beta, eps_low=eps_low, eps_high=eps_high, delta=delta, temperature=temperature,
            importance_sampling_level=importance_sampling_level, use_bias_correction_kl=use_bias_correction_kl,
            sapo_temperature_pos=sapo_temperature_pos, sapo_temperature_neg=sapo_temperature_neg,
            max_completion_length=max_completion_length, num_items_in_batch=num_items_in_batch,
            reduction="mean" if reduce else "none", in_place=inplace,
        )  # fmt: skip
        return made.loss, made.kl, made.clipped.to(made.loss.dtype)


def fused_selective_log_softmax(
    logits: Tensor, input_ids: Tensor, temperature: float = 0.9, mask: Tensor | None = None
) -> Tensor:
    """The log-probabilities of the last tokens of input_ids, [batch, length] for logits [batch, length + 1, classes].

    0 where the mask is 0. Without a gradient.
    """
    length = logits.shape[1] - 1
    ids = input_ids[:, input_ids.shape[1] - length :]
    if mask is not None:
        ids = torch.where(mask[:, mask.shape[1] - length :] != 0, ids, -100)
    with torch.no_grad():
        return grpo.token_log_probs(logits, ids, temperature)


def triton_grpo_loss(
    logits: Tensor,
    old_logp: Tensor | None,
    ref_logp: Tensor | None,
    completion_ids: Tensor,
    advantages: Tensor,
    completion_mask: Tensor | None = None,
    temperature: float = 0.9,
    beta: float = 0.04,
    eps_low: float = 0.2,
    eps_high: float = 0.4,
    inplace: bool = True,
    loss_type: str = "dapo",
    max_completion_length: int | None = None,
    importance_sampling_level: str = "token",
    reduce: bool = False,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    vllm_is_ratio: Tensor | None = None,
    delta: float | None = None,
    use_bias_correction_kl: bool = False,
    num_items_in_batch: Tensor | float | None = None,
    vespo_k_pos: float = 2.0,
    vespo_lambda_pos: float = 3.0,
    vespo_k_neg: float = 3.0,
    vespo_lambda_neg: float = 2.0,
) -> Any:
    """(loss, [divergence, share of clipped tokens]), or without `reduce` (loss, divergence, clipped) of each token.

    `inplace`, which is the default, has no effect: the logits are not written to.
    """
    made = grpo.grpo_loss(
        logits, old_logp, ref_logp, completion_ids, advantages, completion_mask, vllm_is_ratio, loss_type=loss_type,
        beta=beta, eps_low=eps_low, eps_high=eps_high, delta=delta, temperature=temperature,
        importance_sampling_level=importance_sampling_level, use_bias_correction_kl=use_bias_correction_kl,
        sapo_temperature_pos=sapo_temperature_pos, sapo_temperature_neg=sapo_temperature_neg, vespo_k_pos=vespo_k_pos,
        vespo_lambda_pos=vespo_lambda_pos, vespo_k_neg=vespo_k_neg, vespo_lambda_neg=vespo_lambda_neg,
        max_completion_length=max_completion_length, num_items_in_batch=num_items_in_batch,
        reduction="mean" if reduce else "none",
    )  # fmt: skip
    clipped = made.clipped.to(made.loss.dtype)
    if reduce:
        return made.loss, [clipped] if made.kl is None else [made.kl, clipped]
    return made.loss, made.kl, clipped
