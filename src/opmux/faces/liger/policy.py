"""`liger_kernel`'s grpo_loss: GRPO from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...functional import grpo
from .bases import RejectedByAssertion, importance_of_sequences
from .function import LigerFunction, functional


def as_liger_checks(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """Reject arguments for which Liger raises an AssertionError; the other errors are those of opmux's function.

    Temperatures of "sapo" are read, and checked, only for that loss.
    """
    for argument in ("logits", "completion_ids", "advantages"):
        if args[argument] is None:
            raise RejectedByAssertion(name, argument, "be given", "None")
    if args["importance_sampling_level"] not in grpo.LEVELS:
        allowed = "be " + " or ".join(map(repr, grpo.LEVELS))
        raise RejectedByAssertion(name, "importance_sampling_level", allowed, repr(args["importance_sampling_level"]))
    if args["beta"] and args["ref_logp"] is None:
        raise RejectedByAssertion(name, "ref_logp", f"be given for beta = {args['beta']}", "None")
    checked = {"vllm_is_ratio": importance_of_sequences(name, args["vllm_is_ratio"], args["completion_ids"].shape)}
    if args["loss_type"] != "sapo":
        checked |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.0}
    return args | checked


class TokenGRPO(LigerFunction):
    """Returns (loss, divergence from the reference or None, clipped), reduced or, without `reduce`, per token."""

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        args = as_liger_checks("triton_grpo_loss" if cls is LogitsGRPO else cls.__name__, args)
        output = cls.calls(**cls.passed(args), reduction="mean" if args["reduce"] else "none")
        return output.loss, output.kl, output.clipped.to(output.loss.dtype)


class GrpoLossFunction(
    TokenGRPO,
    calls=grpo.grpo_loss,
    takes="logits, old_logp, ref_logp, completion_ids, advantages, completion_mask, temperature, beta, eps_low, "
    "eps_high, inplace, loss_type='grpo', max_completion_length=None, reduce=True, importance_sampling_level='token', "
    "sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vllm_is_ratio=None, delta=None, "
    "use_bias_correction_kl=False, num_items_in_batch=None, phi_seq=None",
    reads="reduce phi_seq",
    inplace="in_place",
):
    """Returns (loss, divergence from the reference or None, clipped), reduced or, without `reduce`, per token.

    With `inplace` the backward overwrites the logits with their gradient, and a second backward raises.
    """

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        return super().call(_weighted(args) if args["loss_type"] == "vespo" else args)


def _weighted(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments of "cispo" that give the loss of "vespo" with the weights phi_seq.

    Without old log-probabilities the ratio of "cispo" is 1, so its loss is -advantage * log-probability.
    """
    name, phi, advantages = "GrpoLossFunction", args["phi_seq"], args["advantages"]
    if phi is None:
        expected = "be given for loss_type='vespo': call triton_grpo_loss, which computes it"
        raise BadArgument.of(name, "phi_seq", expected, "None")
    if tuple(phi.shape) not in ((len(advantages),), (len(advantages), 1)):
        raise RejectedByAssertion(name, "phi_seq", "have shape (batch,) or (batch, 1)", str(tuple(phi.shape)))
    if args["delta"] is not None or args["importance_sampling_level"] == "sequence":
        expected = "be another one for delta, or for importance_sampling_level='sequence'"
        raise BadArgument.of(name, "loss_type", expected, "'vespo'")
    if args["beta"] and args["use_bias_correction_kl"]:
        expected = "be False for loss_type='vespo' with beta: call triton_grpo_loss"
        raise BadArgument.of(name, "use_bias_correction_kl", expected, "True")
    changed = {"loss_type": "cispo", "eps_high": float("inf"), "old_logp": None, "vllm_is_ratio": None}
    return args | changed | {"advantages": advantages * phi.reshape(-1).to(advantages.dtype)}


def fused_selective_log_softmax(
    logits: Tensor, input_ids: Tensor, temperature: float = 0.9, mask: Tensor | None = None
) -> Tensor:
    """The log-probabilities of the last tokens of input_ids, [batch, length] for logits [batch, length + 1, classes].

    The result is 0 where the mask is 0. It has no gradient.
    """
    length = logits.shape[1] - 1
    ids = input_ids[:, input_ids.shape[1] - length :]
    if mask is not None:
        ids = torch.where(mask[:, mask.shape[1] - length :] != 0, ids, -100)
    with torch.no_grad():
        return grpo.token_log_probs(logits, ids, temperature)


# ---- terms of the loss -----------------------------------------------------------------------------------------------


def k3_loss_fn(log_p: Tensor, log_q: Tensor) -> Tensor:
    """An estimate of KL(q || p): exp(d) - d - 1 for d = log_p - log_q."""
    return grpo.k3(log_p - log_q)


def sapo_loss_fn(importance_ratio: Tensor, temperature: float) -> Tensor:
    """4 / temperature * sigmoid(temperature * (importance_ratio - 1))."""
    if not temperature > 0:
        raise BadArgument.of("sapo_loss_fn", "temperature", "be greater than 0", str(temperature))
    return grpo.sapo_gate(importance_ratio, temperature)


def clip_coef_fn(
    coef: Tensor, epsilon_low: float, epsilon_high: float, loss_type: str
) -> tuple[Tensor | None, Tensor | bool, Tensor | bool]:
    """Returns the clipped ratio, and where it is clipped at the lower and at the upper bound.

    For "cispo" only epsilon_high is a bound, and the result has no gradient. "sapo" and "vespo" do not clip.
    """
    if loss_type in ("sapo", "vespo"):
        nowhere = torch.zeros_like(coef, dtype=torch.bool)
        return None, nowhere, nowhere.clone()
    if loss_type == "cispo":
        return coef.clamp(max=epsilon_high).detach(), False, coef > epsilon_high
    low, high = 1 - epsilon_low, 1 + epsilon_high
    return coef.clamp(low, high), coef < low, coef > high


@torch.no_grad()
def get_gamma_weights(
    advantages: Tensor,
    log_ratio_per_token: Tensor,
    mask: Tensor,
    importance_sampling_ratio: Tensor | None = None,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> Tensor:
    """VESPO's weight of each sequence, [batch, 1]."""
    log_ratio = log_ratio_per_token.clamp(-20.0, 20.0) * mask
    parameters = k_pos, lambda_pos, k_neg, lambda_neg
    weights = grpo.vespo_weight(log_ratio, advantages.unsqueeze(-1), importance_sampling_ratio, *parameters)
    return weights.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


class LogitsGRPO(
    TokenGRPO,
    calls=grpo.grpo_loss,
    takes="logits, old_logp, ref_logp, completion_ids, advantages, completion_mask=None, temperature=0.9, beta=0.04, "
    "eps_low=0.2, eps_high=0.4, inplace=True, loss_type='dapo', max_completion_length=None, "
    "importance_sampling_level='token', reduce=False, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, "
    "vllm_is_ratio=None, delta=None, use_bias_correction_kl=False, num_items_in_batch=None, vespo_k_pos=2.0, "
    "vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0",
    reads="inplace reduce",
):
    """Returns (loss, [divergence, share of clipped tokens]); without `reduce`, (loss, divergence, clipped) per token.

    `inplace`, which is True by default, has no effect: the logits are not modified.
    """

    in_ops = False

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        loss, kl, clipped = super().call(args)
        if args["reduce"]:
            return loss, [clipped] if kl is None else [kl, clipped]
        return loss, kl, clipped


triton_grpo_loss = functional("triton_grpo_loss", LogitsGRPO)
