"""GRPO and losses derived from it, computed from hidden states (fused_linear_grpo) or from logits (grpo_loss).

Both compute the log-probability of each token of the completions, and then apply the same formulas. Tokens outside the
mask have no loss and no gradient, whatever the other tensors contain at their positions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.errors import BadArgument
from ..specs import loss
from ..specs._checks import check_choice
from .losses import assert_classes
from .preference import LogProbs

LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo")
UNCLIPPED = ("cispo", "sapo", "vespo")  # loss types whose ratios are not clipped on both sides
LEVELS = ("token", "sequence")


class GRPOOutput(NamedTuple):
    """The loss, the divergence from the reference model (None without one), and which tokens were clipped.

    Only the loss has a gradient. With reduction="mean" each field has one element: loss_type says how the loss is
    reduced; the other fields are means over the tokens of the mask. With reduction="none" each field is
    [batch, length], and 0 or False outside the mask.
    """

    loss: Tensor
    kl: Tensor | None
    clipped: Tensor


class _GRPOOptions(NamedTuple):
    """The options of the formulas; `name` is the name of the public function in errors."""

    name: str
    loss_type: str
    beta: float
    eps_low: float
    eps_high: float
    delta: float | None
    importance_sampling_level: str
    use_bias_correction_kl: bool
    sapo_temperature_pos: float
    sapo_temperature_neg: float
    vespo_k_pos: float
    vespo_lambda_pos: float
    vespo_k_neg: float
    vespo_lambda_neg: float
    max_completion_length: int | None
    num_items_in_batch: Tensor | float | None
    reduction: str


class _Tokens(NamedTuple):
    """The arguments that have a value for each token or each sequence of the completions."""

    ids: Tensor
    mask: Tensor | None
    advantages: Tensor
    old: Tensor | None
    ref: Tensor | None
    vllm_is_ratio: Tensor | None

    def targets(self) -> Tensor:
        """The token ids, with -100 outside the mask."""
        return self.ids if self.mask is None else torch.where(self.mask != 0, self.ids, -100)


def fused_linear_grpo(
    input: Tensor,
    weight: Tensor,
    completion_ids: Tensor,
    advantages: Tensor,
    completion_mask: Tensor | None = None,
    bias: Tensor | None = None,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    vllm_is_ratio: Tensor | None = None,
    *,
    loss_type: str = "dapo",
    beta: float = 0.0,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    delta: float | None = None,
    temperature: float = 1.0,
    importance_sampling_level: str = "token",
    use_bias_correction_kl: bool = False,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    vespo_k_pos: float = 2.0,
    vespo_lambda_pos: float = 3.0,
    vespo_k_neg: float = 3.0,
    vespo_lambda_neg: float = 2.0,
    max_completion_length: int | None = None,
    num_items_in_batch: Tensor | float | None = None,
    reduction: str = "mean",
    accum_dtype: torch.dtype | None = None,
) -> GRPOOutput:
    """Group relative policy optimization from hidden states, with only a part of the logits in memory at a time.

    For a token with log-probability x, advantage A and ratio = exp(x - old), the loss is
    -min(min(ratio, delta) * A, clip(ratio, 1 - eps_low, 1 + eps_high) * A) * vllm_is_ratio
    + beta * (exp(ref - x) - (ref - x) - 1).

    Other loss types replace the first line of the formula:
    cispo: -min(ratio, eps_high) * A * x * vllm_is_ratio, where the ratio is a constant (the bound is not 1 + eps_high);
    sapo: -4 / t * sigmoid(t * (ratio - 1)) * A * vllm_is_ratio, t = sapo_temperature_pos if A > 0 else
    sapo_temperature_neg;
    vespo: -phi * A * x, where phi = e^l * w^k * e^(-l * w) is a constant and w is the ratio of the whole sequence times
    vllm_is_ratio; k, l are vespo_k_pos, vespo_lambda_pos if A >= 0, else vespo_k_neg, vespo_lambda_neg.

    The tokens' losses are reduced by loss type:
    grpo and sapo: the mean over sequences of each sequence's mean;
    bnpo: the mean over all tokens;
    dapo, cispo and vespo: the sum divided by num_items_in_batch;
    dr_grpo: the sum divided by batch * max_completion_length;
    luspo: each loss is multiplied by the length of its sequence; then the mean over sequences if
    importance_sampling_level is "sequence" (as in its paper), else over all batch * length positions.

    Args:
        input: float [batch, length, hidden]: input[b, t] predicts completion_ids[b, t].
        weight: float [classes, hidden], of the dtype of input.
        completion_ids: int32 or int64 [batch, length].
        advantages: float [batch], or [batch, length].
        completion_mask: [batch, length], 0 where there is not a token; None if all positions are tokens.
        bias: float [classes].
        old_logp: the log-probabilities of the policy that generated the completions, [batch, length]; None: the current
            log-probabilities, as constants.
        ref_logp: the log-probabilities of the reference model, [batch, length]; None: computed from the next three.
        ref_input: the hidden states of the reference model.
        ref_weight: the weight of the reference model's last layer.
        ref_bias: the bias of the reference model's last layer.
        vllm_is_ratio: corrects for completions that another engine generated: [batch, length], [batch, 1] or [batch].
        loss_type: "grpo", "dapo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo" or "vespo".
        beta: the weight of the divergence from the reference model, which must then be given.
        eps_low: as above.
        eps_high: as above.
        delta: as above (two-sided clipping); None for no bound. Not for cispo, sapo, vespo.
        temperature: divides the logits of both models.
        importance_sampling_level: "token", or "sequence": the ratio is exp(mean(x - old)) over a sequence (GSPO); not
            for cispo, sapo, vespo.
        use_bias_correction_kl: multiply the divergence by the ratio.
        sapo_temperature_pos: as above.
        sapo_temperature_neg: as above.
        vespo_k_pos: as above.
        vespo_lambda_pos: as above.
        vespo_k_neg: as above.
        vespo_lambda_neg: as above.
        max_completion_length: for dr_grpo; None for length.
        num_items_in_batch: for dapo, cispo and vespo: the number of tokens of all micro-batches and processes; the
            function divides it by the number of processes. None: the tokens of this batch, averaged over the processes.
            With torch.distributed the average is an all_reduce, so every process must call the function.
        reduction: "mean" (as loss_type defines), or "none": the loss of each token.
        accum_dtype: as in linear_log_probs.

    Returns:
        A GRPOOutput. Only its loss has a gradient, for input, weight and bias.
    """
    options = _GRPOOptions(
        "fused_linear_grpo",
        loss_type,
        beta,
        eps_low,
        eps_high,
        delta,
        importance_sampling_level,
        use_bias_correction_kl,
        sapo_temperature_pos,
        sapo_temperature_neg,
        vespo_k_pos,
        vespo_lambda_pos,
        vespo_k_neg,
        vespo_lambda_neg,
        max_completion_length,
        num_items_in_batch,
        reduction,
    )
    tokens = _Tokens(completion_ids, completion_mask, advantages, old_logp, ref_logp, vllm_is_ratio)
    _check(options, tokens, referenced=ref_logp is not None or ref_input is not None)
    model = LogProbs(options.name, temperature, accum_dtype=accum_dtype, target="completion_ids")
    target = tokens.targets()
    if ref_logp is None and beta:
        tokens = tokens._replace(ref=model.reference(target, ref_input, ref_weight, ref_bias))
    return _loss(options, tokens, model.tokens(input, weight, target, bias))


def grpo_loss(
    logits: Tensor,
    old_logp: Tensor | None,
    ref_logp: Tensor | None,
    completion_ids: Tensor,
    advantages: Tensor,
    completion_mask: Tensor | None = None,
    vllm_is_ratio: Tensor | None = None,
    *,
    loss_type: str = "dapo",
    beta: float = 0.0,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    delta: float | None = None,
    temperature: float = 1.0,
    importance_sampling_level: str = "token",
    use_bias_correction_kl: bool = False,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    vespo_k_pos: float = 2.0,
    vespo_lambda_pos: float = 3.0,
    vespo_k_neg: float = 3.0,
    vespo_lambda_neg: float = 2.0,
    max_completion_length: int | None = None,
    num_items_in_batch: Tensor | float | None = None,
    reduction: str = "mean",
    in_place: bool = False,
) -> GRPOOutput:
    """Group relative policy optimization from logits. For the formulas see fused_linear_grpo.

    Args:
        logits: float [batch, length + 1, classes]: logits[b, t] predicts completion_ids[b, t]. The logits at the last
            position are not used; [batch, length, classes] is accepted too.
        old_logp: as in fused_linear_grpo.
        ref_logp: as in fused_linear_grpo.
        completion_ids: as in fused_linear_grpo.
        advantages: as in fused_linear_grpo.
        completion_mask: as in fused_linear_grpo.
        vllm_is_ratio: as in fused_linear_grpo.
        loss_type: as in fused_linear_grpo.
        beta: as in fused_linear_grpo.
        eps_low: as in fused_linear_grpo.
        eps_high: as in fused_linear_grpo.
        delta: as in fused_linear_grpo.
        temperature: divides the logits.
        importance_sampling_level: as in fused_linear_grpo.
        use_bias_correction_kl: as in fused_linear_grpo.
        sapo_temperature_pos: as in fused_linear_grpo.
        sapo_temperature_neg: as in fused_linear_grpo.
        vespo_k_pos: as in fused_linear_grpo.
        vespo_lambda_pos: as in fused_linear_grpo.
        vespo_k_neg: as in fused_linear_grpo.
        vespo_lambda_neg: as in fused_linear_grpo.
        max_completion_length: as in fused_linear_grpo.
        num_items_in_batch: as in fused_linear_grpo.
        reduction: as in fused_linear_grpo.
        in_place: the backward overwrites the logits, which must be contiguous, with their gradient instead of
            allocating memory; a second backward raises.

    Returns:
        A GRPOOutput. Only its loss has a gradient, for logits.
    """
    options = _GRPOOptions(
        "grpo_loss",
        loss_type,
        beta,
        eps_low,
        eps_high,
        delta,
        importance_sampling_level,
        use_bias_correction_kl,
        sapo_temperature_pos,
        sapo_temperature_neg,
        vespo_k_pos,
        vespo_lambda_pos,
        vespo_k_neg,
        vespo_lambda_neg,
        max_completion_length,
        num_items_in_batch,
        reduction,
    )
    tokens = _Tokens(completion_ids, completion_mask, advantages, old_logp, ref_logp, vllm_is_ratio)
    _check(options, tokens, referenced=ref_logp is not None)
    return _loss(options, tokens, _token_log_probs(options.name, logits, tokens.targets(), temperature, -100, in_place))


def token_log_probs(
    logits: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    ignore_index: int = -100,
    *,
    in_place: bool = False,
) -> Tensor:
    """The log-probability of each target under softmax(logits / temperature).

    Args:
        logits: float [batch, length, classes]. Its length may exceed target's; the gradient of the extra positions is
            0.
        target: int32 or int64 [batch, length].
        temperature: divides the logits, in float32.
        ignore_index: targets with this value have log-probability 0, and no gradient.
        in_place: the backward overwrites the logits, which must be contiguous, with their gradient instead of
            allocating memory; a second backward raises.

    Returns:
        The log-probabilities, float32 [batch, length] (float64 for float64), differentiable in logits.
    """
    return _token_log_probs("token_log_probs", logits, target, temperature, ignore_index, in_place)


# ---- arguments ------------------------------------------------------------------------------------------------------


def _check(options: _GRPOOptions, tokens: _Tokens, referenced: bool) -> None:
    for argument, value, allowed in (
        ("loss_type", options.loss_type, LOSS_TYPES),
        ("importance_sampling_level", options.importance_sampling_level, LEVELS),
        ("reduction", options.reduction, ("mean", "none")),
    ):
        check_choice(options.name, argument, value, allowed)
    if options.loss_type in UNCLIPPED and options.importance_sampling_level != "token":
        raise BadArgument.of(
            options.name, "importance_sampling_level", f"be 'token' for {options.loss_type!r}", "'sequence'"
        )
    if options.loss_type in UNCLIPPED and options.delta is not None:
        raise BadArgument.of(options.name, "delta", f"be None for {options.loss_type!r}", str(options.delta))
    for argument in ("sapo_temperature_pos", "sapo_temperature_neg"):
        if not getattr(options, argument) > 0:
            raise BadArgument.of(options.name, argument, "be greater than 0", str(getattr(options, argument)))
    if options.beta and not referenced:
        raise BadArgument.of(options.name, "ref_logp", f"be given for beta = {options.beta}", "None")
    shape = tuple(tokens.ids.shape)
    if len(shape) != 2:
        raise BadArgument.of(options.name, "completion_ids", "have shape (batch, length)", str(shape))
    sequence, by_sequence = shape[:1], (shape[0], 1)
    for argument, value, allowed in (
        ("completion_mask", tokens.mask, (shape,)),
        ("advantages", tokens.advantages, (sequence, shape)),
        ("old_logp", tokens.old, (shape,)),
        ("ref_logp", tokens.ref, (shape,)),
        ("vllm_is_ratio", tokens.vllm_is_ratio, (shape, by_sequence, sequence)),
    ):
        if value is not None and tuple(value.shape) not in allowed:
            expected = f"have shape {' or '.join(map(str, allowed))}, as completion_ids is {shape}"
            raise BadArgument.of(options.name, argument, expected, str(tuple(value.shape)))


# ---- formulas -------------------------------------------------------------------------------------------------------


def _loss(options: _GRPOOptions, tokens: _Tokens, x: Tensor) -> GRPOOutput:
    """Compute the output from the log-probability x of each token."""
    mask = torch.ones_like(x) if tokens.mask is None else tokens.mask.to(x.dtype)
    keep = mask != 0
    constant = lambda value: value.detach().to(x.dtype)
    # Other tensors have undefined values in the padding; x is 0 there.
    in_mask = lambda value, other=0.0: torch.where(keep, constant(value), other)
    advantage = in_mask(tokens.advantages if tokens.advantages.dim() == 2 else tokens.advantages[:, None])
    log_ratio = x - (x.detach() if tokens.old is None else in_mask(tokens.old))
    if options.importance_sampling_level == "sequence":
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    ratio = log_ratio.exp()
    correction, importance = None, tokens.vllm_is_ratio
    if importance is not None:
        correction = in_mask(importance, 1.0) if importance.shape == x.shape else constant(importance).reshape(-1, 1)
    clipped = torch.zeros_like(keep)
    if options.loss_type == "cispo":
        losses = -ratio.detach().clamp(max=options.eps_high) * advantage * x
        clipped = (ratio > options.eps_high) & (advantage > 0)
    elif options.loss_type == "sapo":
        slope = _chosen(advantage > 0, options.sapo_temperature_pos, options.sapo_temperature_neg, x.dtype)
        losses = -sapo_gate(ratio, slope) * advantage
    elif options.loss_type == "vespo":
        parameters = options.vespo_k_pos, options.vespo_lambda_pos, options.vespo_k_neg, options.vespo_lambda_neg
        losses = -vespo_weight(log_ratio.detach(), advantage, correction, *parameters) * advantage * x
        correction = None  # the weight already includes the correction
    else:
        low, high = 1 - options.eps_low, 1 + options.eps_high
        bounded = ratio if options.delta is None else ratio.clamp(max=options.delta)
        losses = -torch.minimum(bounded * advantage, ratio.clamp(low, high) * advantage)
        clipped = ((ratio < low) & (advantage < 0)) | ((ratio > high) & (advantage > 0))
    if correction is not None:
        losses = losses * correction
    kl = None
    if options.beta and tokens.ref is not None:
        kl = k3(in_mask(tokens.ref) - x)
        kl = kl * ratio if options.use_bias_correction_kl else kl
        losses = losses + options.beta * kl
    losses, clipped = losses * mask, clipped & keep  # the product also expands a sequence's value to its tokens
    kl = None if kl is None else kl.detach() * mask
    if options.reduction == "none":
        return GRPOOutput(losses, kl, clipped)
    count = mask.sum().clamp(min=1)
    means = None if kl is None else kl.sum() / count, (clipped * mask).sum() / count
    return GRPOOutput(_reduced(options, losses, mask), *means)


def k3(difference: Tensor) -> Tensor:
    """An estimate of a divergence, exp(d) - d - 1, without the rounding error of that near d = 0."""
    return torch.expm1(difference) - difference


def sapo_gate(ratio: Tensor, slope: Tensor | float) -> Tensor:
    """4 / slope * sigmoid(slope * (ratio - 1)): SAPO's replacement of a clipped ratio."""
    return 4 / slope * torch.sigmoid(slope * (ratio - 1))


def vespo_weight(
    log_ratio: Tensor,
    advantage: Tensor,
    correction: Tensor | None,
    k_pos: float,
    lambda_pos: float,
    k_neg: float,
    lambda_neg: float,
) -> Tensor:
    """phi(w) = e^l * w^k * e^(-l * w), which is 1 for w = 1. The clamps are the same as in TRL's trainer."""
    minimum = math.log(1e-8)
    log_w = log_ratio.clamp(-20.0, 20.0).sum(-1, keepdim=True)
    if correction is not None:
        log_w = log_w + correction.log().clamp(minimum, 20.0).sum(-1, keepdim=True)
    log_w = log_w.clamp(minimum, 20.0)
    k = _chosen(advantage >= 0, k_pos, k_neg, log_w.dtype)
    slope = _chosen(advantage >= 0, lambda_pos, lambda_neg, log_w.dtype).clamp(min=1e-4)
    return torch.exp(slope + k * log_w - slope * log_w.exp())


def _chosen(condition: Tensor, yes: float, no: float, dtype: torch.dtype) -> Tensor:
    """torch.where for two numbers, in a given dtype (torch.where itself would use the default dtype)."""
    return torch.where(condition, torch.full_like(condition, yes, dtype=dtype), no)


def _reduced(options: _GRPOOptions, losses: Tensor, mask: Tensor) -> Tensor:
    batch, length = losses.shape
    lengths = mask.sum(-1, keepdim=True)
    if options.loss_type in ("grpo", "sapo"):
        return (losses / lengths.clamp(min=1)).sum() / batch
    if options.loss_type == "bnpo":
        return losses.sum() / lengths.sum().clamp(min=1)
    if options.loss_type == "dr_grpo":
        longest = length if options.max_completion_length is None else options.max_completion_length
        return losses.sum() / (batch * longest)
    if options.loss_type == "luspo":
        if options.importance_sampling_level == "sequence":
            return losses.sum() / batch  # each loss is already divided by the length, so the sum is a mean
        return (losses * lengths).sum() / (batch * length)
    return losses.sum() / tokens_of_a_process(lengths.sum(), options.num_items_in_batch)


def tokens_of_a_process(local: Tensor, total: Tensor | float | None) -> Tensor | float:
    """The number of tokens of the batch, averaged over processes, at least 1."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if distributed else 1
    if total is None:
        total = local.clone()
        if distributed:
            torch.distributed.all_reduce(total)
    if isinstance(total, Tensor):
        return (total.to(local, non_blocking=True) / processes).clamp(min=1)
    return max(total / processes, 1.0)  # a Python number, because a copy to the device would synchronize


# ---- log-probabilities of logits ------------------------------------------------------------------------------------


def _token_log_probs(
    name: str, logits: Tensor, target: Tensor, temperature: float, ignore_index: int, in_place: bool
) -> Tensor:
    if logits.dim() != 3 or logits.shape[:1] != target.shape[:1] or logits.shape[1] < target.shape[-1]:
        expected = f"have shape (batch, length, classes) with a target {tuple(target.shape)}"
        raise BadArgument.of(name, "logits", expected, str(tuple(logits.shape)))
    if not temperature > 0:
        raise BadArgument.of(name, "temperature", "be greater than 0", str(temperature))
    if in_place and not logits.is_contiguous():
        raise BadArgument.of(name, "logits", "be contiguous for in_place=True", f"strides {logits.stride()}")
    assert_classes(name, target, logits.shape[-1], ignore_index)
    return _TokenLogProbs.apply(name, logits, target, temperature, ignore_index, in_place)


class _TokenLogProbs(torch.autograd.Function):
    """token_log_probs for one sequence at a time: a slice of the whole batch would have to be copied."""

    @staticmethod
    def forward(
        ctx: Any, name: str, logits: Tensor, target: Tensor, temperature: float, ignore_index: int, in_place: bool
    ) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        losses, lse = (torch.empty(target.shape, dtype=dtype, device=logits.device) for _ in range(2))
        for b, labels in enumerate(target):
            losses[b], _, lse[b] = loss.token_nll_entropy(logits[b, : len(labels)], labels, ignore_index, temperature)
        ctx.options, ctx.written = (name, temperature, ignore_index, in_place), False
        ctx.save_for_backward(logits, target, lse)
        return -losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        name, temperature, ignore_index, in_place = ctx.options
        if ctx.written:
            raise RuntimeError(f"{name}: a second backward with in_place=True: the first wrote over the logits")
        logits, target, lse = ctx.saved_tensors
        dlogits = logits.detach() if in_place else logits.clone(memory_format=torch.contiguous_format)
        ctx.written, zeros = in_place, torch.zeros_like(lse)  # the entropy has no gradient
        for b, labels in enumerate(target):
            rows = dlogits[b, : len(labels)]
            loss.token_nll_entropy_bwd_(rows, labels, -grad[b], zeros[b], zeros[b], lse[b], ignore_index, temperature)
        dlogits[:, target.shape[1] :] = 0
        return None, dlogits, None, None, None, None
