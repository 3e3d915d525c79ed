"""Preference losses from hidden states and the last layer's weight: DPO and its variants, CPO, SimPO, ORPO, KTO.

Each loss is a formula over the log-probabilities of sequences. `linear_log_probs` has only a part of the logits in
memory at a time, and its backward recomputes the logits. So forward and backward need four matrix products; if the
forward computed the gradients, three would do. In return the formulas are plain differentiable torch code, a part of
the logits may end within a sequence, and a second backward gives the same gradients.

A batch of pairs has the chosen sequences in its first half, and the rejected sequences, in the same order, in its
second half. Targets are not shifted: `target[b, t]` is the token that `input[b, t]` predicts. The reference model gets
no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..core.errors import BadArgument
from ..specs._checks import check_choice
from .losses import fused_linear_cross_entropy
from .scaled_cross_entropy import fused_linear_scaled_cross_entropy


class PreferenceOutput(NamedTuple):
    """The loss of a batch of pairs, and values for logging, which have no gradient."""

    loss: Tensor
    chosen_log_probs: Tensor  # [pairs]: one per chosen sequence
    rejected_log_probs: Tensor
    chosen_mean_logit: Tensor  # mean over all positions (also ignored ones) and all classes
    rejected_mean_logit: Tensor
    nll_loss: Tensor  # cross entropy of the chosen sequences; 0 if the loss does not include it
    chosen_rewards: Tensor  # [pairs]: beta * the log-ratio to the reference model
    rejected_rewards: Tensor
    log_odds_ratio: Tensor | None = None  # ORPO: mean of log(sigmoid(log_odds))
    log_odds_chosen: Tensor | None = None  # ORPO: mean of log_odds


class KTOOutput(NamedTuple):
    """The loss of a batch, and sums over chosen and over rejected sequences; the sums have no gradient."""

    loss: Tensor
    chosen_log_probs_sum: Tensor
    rejected_log_probs_sum: Tensor
    chosen_logits_sum: Tensor  # over all positions (also ignored ones) and all classes
    rejected_logits_sum: Tensor
    chosen_rewards_sum: Tensor
    rejected_rewards_sum: Tensor


# ---- log-probabilities ----------------------------------------------------------------------------------------------


def linear_log_probs(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    ignore_index: int = -100,
    *,
    accum_dtype: torch.dtype | None = None,
) -> Tensor:
    """The log-probability of each target under softmax((input @ weight.T + bias) / temperature).

    Only a part of the logits is in memory at a time; the backward recomputes the logits.

    Args:
        input: float [..., hidden].
        weight: float [classes, hidden], of the dtype of input.
        target: the class of each row, int32 or int64 [...].
        bias: float [classes].
        temperature: divides the logits.
        ignore_index: targets with this value have log-probability 0, and no gradient.
        accum_dtype: the dtype in which the weight's gradient is added up: torch.float32, or None for weight's dtype.

    Returns:
        The log-probabilities, float32 [...] (float64 for float64), differentiable in input, weight and bias.
    """
    model = LogProbs("linear_log_probs", temperature, ignore_index, accum_dtype)
    return model.tokens(input, weight, target, bias)


class LogProbs(NamedTuple):
    """Options for computing log-probabilities; `name` is the name of the public function in errors."""

    name: str
    temperature: float = 1.0
    ignore_index: int = -100
    accum_dtype: torch.dtype | None = None
    target: str = "target"  # the public function's name for its targets, in errors

    def tokens(self, input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, prefix: str = "") -> Tensor:
        """The log-probability of each target; errors put `prefix` before the names of the arguments."""
        if not self.temperature > 0:
            raise BadArgument.of(self.name, "temperature", "be greater than 0", str(self.temperature))
        options: dict[str, Any] = dict(ignore_index=self.ignore_index, accum_dtype=self.accum_dtype)
        try:
            if self.temperature != 1.0 and bias is None:
                losses = fused_linear_scaled_cross_entropy(input, weight, target, self.temperature, **options)
            else:
                # With a bias, divide input and bias by the temperature; half precision is rounded once more.
                if self.temperature != 1.0:
                    input, bias = input / self.temperature, None if bias is None else bias / self.temperature
                losses = fused_linear_cross_entropy(input, weight, target, bias, reduction="none", **options)
        except BadArgument as error:
            names = {"input": prefix + "input", "weight": prefix + "weight", "target": self.target}
            raise error.renamed(self.name, names) from None
        return -cast(Tensor, losses)

    def reference(
        self, target: Tensor, input: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor | None:
        """Log-probabilities under the reference model, without a gradient; None if there is no reference model."""
        if input is None or weight is None:
            if input is not None or weight is not None:
                one, other = ("ref_weight", "ref_input") if weight is None else ("ref_input", "ref_weight")
                raise BadArgument.of(self.name, one, f"be given, as {other} is", "None")
            return None
        with torch.no_grad():
            return self.tokens(input, weight, target, bias, "ref_")


class SequenceBatch:
    """The log-probabilities of a batch of sequences, and the log-ratios to the reference model if there is one."""

    def __init__(
        self,
        model: LogProbs,
        average: bool,
        input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        *reference: Tensor | None,
    ):
        if target.dim() != 2:
            raise BadArgument.of(model.name, "target", "have shape (batch, sequence)", str(tuple(target.shape)))
        self.tokens = model.tokens(input, weight, target, bias)
        self.counts = (target != model.ignore_index).sum(-1).clamp(min=1)  # an empty sequence gets 0 / 1, not 0 / 0
        of_sequences = lambda tokens: tokens.sum(-1) / self.counts if average else tokens.sum(-1)
        self.log_probs = of_sequences(self.tokens)
        of_reference = model.reference(target, *reference)
        self.log_ratios = self.log_probs if of_reference is None else self.log_probs - of_sequences(of_reference)
        with torch.no_grad():  # the sum of logits needs no logits: sum(x @ w.T) = sum(x) @ sum(w).T
            dtype = self.tokens.dtype
            # Not a matmul, because autocast would round the matmul's inputs and products.
            products = input.sum(1, dtype=dtype) * weight.sum(0, dtype=dtype)
            self.logits_sum = products.sum(-1)
            if bias is not None:
                self.logits_sum += target.shape[1] * bias.sum(dtype=dtype)


# ---- pairs ----------------------------------------------------------------------------------------------------------


class _Pairs(NamedTuple):
    """The options common to all losses of pairs."""

    model: LogProbs
    beta: float
    nll: bool  # the loss includes alpha * the cross entropy of the chosen sequences
    alpha: float = 1.0
    average: bool = False  # a sequence's log-probability is the mean over its tokens, not the sum
    average_ratio: bool = False  # like `average`, but only in the formula, not for logging


def _pair_loss(
    options: _Pairs,
    formula: Callable[[Tensor, Tensor], Tensor],
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    *reference: Tensor | None,
    nll_target: Tensor | None = None,
) -> PreferenceOutput:
    """The loss and values for logging; `formula` maps the log-ratios of chosen and rejected sequences to losses."""
    model, pairs = options.model, target.shape[0] // 2
    if target.shape[0] % 2:
        expected = "have an even batch: the chosen sequences, then the rejected ones"
        raise BadArgument.of(model.name, "target", expected, str(tuple(target.shape)))
    batch = SequenceBatch(model, options.average, input, weight, target, bias, *reference)
    ratios = batch.log_ratios / batch.counts if options.average_ratio and not options.average else batch.log_ratios
    loss = formula(ratios[:pairs], ratios[pairs:]).mean()
    nll = loss.new_zeros(())
    if options.nll:
        labels, tokens = target[:pairs], batch.tokens[:pairs]
        if nll_target is not None:
            labels = nll_target[:pairs]
            tokens = model.tokens(input[:pairs], weight, labels, bias)
        nll = -tokens.sum() / (labels != model.ignore_index).sum()
        loss = loss + options.alpha * nll
    rewards = options.beta * batch.log_ratios.detach()
    log_probs, logits = batch.log_probs.detach(), batch.logits_sum / (target.shape[1] * weight.shape[0])
    return PreferenceOutput(
        loss,
        log_probs[:pairs],
        log_probs[pairs:],
        logits[:pairs].mean(),
        logits[pairs:].mean(),
        nll.detach(),
        rewards[:pairs],
        rewards[pairs:],
    )


class _DPO(NamedTuple):
    """The options of DPO's formulas."""

    beta: float
    smoothing: float
    tau: float


def _smoothed(margin: Tensor, smoothing: float) -> Tensor:
    """-log(sigmoid(margin)), under the assumption that a share `smoothing` of the labels is swapped."""
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


def _exo_pair(c: Tensor, r: Tensor, o: _DPO) -> Tensor:
    # KL divergence of the policy's preference from the labels (1 - smoothing, smoothing)
    term = lambda margin, label: torch.sigmoid(margin) * (logsigmoid(margin) - math.log(label))
    return term(o.beta * (c - r), 1 - o.smoothing) + term(o.beta * (r - c), o.smoothing)


def _discopop(c: Tensor, r: Tensor, o: _DPO) -> Tensor:
    margin = o.beta * (c - r)
    share = torch.sigmoid(margin / o.tau)
    return -(1 - share) * logsigmoid(margin) + share * torch.exp(-margin)


# The loss of each pair, from the log-ratio c of its chosen sequence and r of its rejected sequence.
DPO_LOSSES: dict[str, Callable[[Tensor, Tensor, _DPO], Tensor]] = {
    "sigmoid": lambda c, r, o: _smoothed(o.beta * (c - r), o.smoothing),
    "hinge": lambda c, r, o: torch.relu(1 - o.beta * (c - r)),
    "ipo": lambda c, r, o: (c - r - 0.5 / o.beta) ** 2,  # log-ratios are means over tokens
    "exo_pair": _exo_pair,
    "nca_pair": lambda c, r, o: -logsigmoid(o.beta * c) - 0.5 * logsigmoid(-o.beta * c) - 0.5 * logsigmoid(-o.beta * r),
    "robust": lambda c, r, o: (
        ((o.smoothing - 1) * logsigmoid(o.beta * (c - r)) + o.smoothing * logsigmoid(o.beta * (r - c)))
        / (1 - 2 * o.smoothing)
    ),
    "bco_pair": lambda c, r, o: -logsigmoid(o.beta * c) - logsigmoid(-o.beta * r),
    "sppo_hard": lambda c, r, o: (c - 0.5 / o.beta) ** 2 + (r + 0.5 / o.beta) ** 2,
    "apo_zero": lambda c, r, o: torch.sigmoid(-o.beta * c) + torch.sigmoid(o.beta * r),
    "apo_down": lambda c, r, o: torch.sigmoid(o.beta * c) + torch.sigmoid(o.beta * (r - c)),
    "discopop": _discopop,
}


def fused_linear_dpo(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    *,
    loss_type: str = "sigmoid",
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    discopop_tau: float = 0.05,
    compute_nll_loss: bool = False,
    alpha: float = 1.0,
    average_log_prob: bool = False,
    ignore_index: int = -100,
    accum_dtype: torch.dtype | None = None,
) -> PreferenceOutput:
    """Direct preference optimization or a variant: -log(sigmoid(beta * (c - r))) for the log-ratios c, r of a pair.

    A log-ratio is the log-probability of a sequence, minus its log-probability under the reference model if there is
    one.

    Args:
        input: float [batch, sequence, hidden]; the chosen sequences, then the same number of rejected sequences.
        weight: float [classes, hidden], of the dtype of input.
        target: the class of each position, int32 or int64 [batch, sequence].
        bias: float [classes].
        ref_input: like input, for the reference model; its hidden size may differ.
        ref_weight: like weight, for the reference model.
        ref_bias: like bias, for the reference model.
        loss_type: "sigmoid" (https://arxiv.org/abs/2305.18290), "hinge" (2305.10425), "ipo" (2310.12036, over means
            of tokens), "exo_pair" (2402.00856), "nca_pair" (2402.05369), "robust" (2403.00409), "bco_pair"
            (2404.04656, without its running mean), "sppo_hard" (2405.00675), "apo_zero" and "apo_down" (2408.06266),
            "discopop" (2406.08414).
        beta: the scale of log-ratios.
        label_smoothing: the assumed share of swapped labels, for "sigmoid", "robust" (less than 0.5) and
            "exo_pair" (more than 0).
        discopop_tau: the temperature of "discopop".
        compute_nll_loss: add alpha times the mean cross entropy of the chosen sequences.
        alpha: as above.
        average_log_prob: a sequence's log-probability is the mean over its tokens instead of the sum.
        ignore_index: targets with this value are ignored.
        accum_dtype: as in linear_log_probs.

    Returns:
        A PreferenceOutput. Only its loss has a gradient.
    """
    name = "fused_linear_dpo"
    check_choice(name, "loss_type", loss_type, DPO_LOSSES)
    if loss_type in ("ipo", "sppo_hard") and not beta > 0:
        raise BadArgument.of(name, "beta", f"be greater than 0 for {loss_type!r}", str(beta))
    if loss_type == "exo_pair" and not 0 < label_smoothing < 1:
        expected = "be greater than 0 and less than 1 for 'exo_pair' (its paper has 1e-3)"
        raise BadArgument.of(name, "label_smoothing", expected, str(label_smoothing))
    if loss_type == "robust" and not 0 <= label_smoothing < 0.5:
        expected = "be at least 0 and less than 0.5 for 'robust'"
        raise BadArgument.of(name, "label_smoothing", expected, str(label_smoothing))
    formula, options = DPO_LOSSES[loss_type], _DPO(beta, label_smoothing, discopop_tau)
    model = LogProbs(name, 1.0, ignore_index, accum_dtype)
    pairs = _Pairs(model, beta, compute_nll_loss, alpha, average_log_prob, average_ratio=loss_type == "ipo")
    pair_formula = lambda c, r: formula(c, r, options)
    return _pair_loss(pairs, pair_formula, input, weight, target, bias, ref_input, ref_weight, ref_bias)


def fused_linear_cpo(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    compute_nll_loss: bool = True,
    alpha: float = 1.0,
    average_log_prob: bool = False,
    ignore_index: int = -100,
    accum_dtype: torch.dtype | None = None,
) -> PreferenceOutput:
    """Contrastive preference optimization (https://arxiv.org/abs/2401.08417), which needs no reference model.

    -log(sigmoid(beta * (c - r))) for a pair's log-probabilities c, r, plus alpha * cross entropy of the chosen
    sequence.

    Args:
        input: as in fused_linear_dpo.
        weight: as in fused_linear_dpo.
        target: as in fused_linear_dpo.
        bias: as in fused_linear_dpo.
        beta: the scale of log-probabilities.
        label_smoothing: the assumed share of swapped labels.
        compute_nll_loss: as in fused_linear_dpo.
        alpha: as in fused_linear_dpo.
        average_log_prob: as in fused_linear_dpo.
        ignore_index: as in fused_linear_dpo.
        accum_dtype: as in linear_log_probs.

    Returns:
        A PreferenceOutput. Only its loss has a gradient.
    """
    model = LogProbs("fused_linear_cpo", 1.0, ignore_index, accum_dtype)
    options = _Pairs(model, beta, compute_nll_loss, alpha, average_log_prob)
    return _pair_loss(options, lambda c, r: _smoothed(beta * (c - r), label_smoothing), input, weight, target, bias)


def fused_linear_simpo(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    beta: float = 0.1,
    gamma: float = 0.5,
    label_smoothing: float = 0.0,
    compute_nll_loss: bool = False,
    alpha: float = 1.0,
    ignore_index: int = -100,
    accum_dtype: torch.dtype | None = None,
) -> PreferenceOutput:
    """Simple preference optimization (https://arxiv.org/abs/2405.14734), which needs no reference model.

    -log(sigmoid(beta * (c - r) - gamma)) for a pair's mean log-probabilities per token c, r.

    Args:
        input: as in fused_linear_dpo.
        weight: as in fused_linear_dpo.
        target: as in fused_linear_dpo.
        bias: as in fused_linear_dpo.
        beta: the scale of log-probabilities.
        gamma: the margin.
        label_smoothing: the assumed share of swapped labels.
        compute_nll_loss: as in fused_linear_dpo.
        alpha: as in fused_linear_dpo.
        ignore_index: as in fused_linear_dpo.
        accum_dtype: as in linear_log_probs.

    Returns:
        A PreferenceOutput. Only its loss has a gradient.
    """
    model = LogProbs("fused_linear_simpo", 1.0, ignore_index, accum_dtype)
    options = _Pairs(model, beta, compute_nll_loss, alpha, average=True)
    pair_formula = lambda c, r: _smoothed(beta * (c - r) - gamma, label_smoothing)
    return _pair_loss(options, pair_formula, input, weight, target, bias)


def fused_linear_orpo(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    nll_target: Tensor | None = None,
    *,
    beta: float = 0.1,
    compute_nll_loss: bool = True,
    ignore_index: int = -100,
    accum_dtype: torch.dtype | None = None,
) -> PreferenceOutput:
    """Odds ratio preference optimization (https://arxiv.org/abs/2403.07691), which needs no reference model.

    -beta * log(sigmoid(log_odds(c) - log_odds(r))), log_odds(x) = x - log(1 - exp(x)), for a pair's mean
    log-probabilities per token c, r, plus the cross entropy of the chosen sequence.

    Args:
        input: as in fused_linear_dpo.
        weight: as in fused_linear_dpo.
        target: as in fused_linear_dpo.
        bias: as in fused_linear_dpo.
        nll_target: the targets of the cross entropy, [batch, sequence]; only the chosen half is used. None means
            target. With any other tensor, the chosen half's logits are computed twice.
        beta: the weight of the odds ratio.
        compute_nll_loss: add the mean cross entropy of the chosen sequences.
        ignore_index: as in fused_linear_dpo.
        accum_dtype: as in linear_log_probs.

    Returns:
        A PreferenceOutput with log_odds_ratio and log_odds_chosen. Only its loss has a gradient.
    """
    log_odds = lambda c, r: _log_odds(c) - _log_odds(r)
    model = LogProbs("fused_linear_orpo", 1.0, ignore_index, accum_dtype)
    options = _Pairs(model, beta, compute_nll_loss, average=True)
    pair_formula = lambda c, r: -beta * logsigmoid(log_odds(c, r))
    output = _pair_loss(options, pair_formula, input, weight, target, bias, nll_target=nll_target)
    odds = log_odds(output.chosen_log_probs, output.rejected_log_probs)
    return output._replace(log_odds_ratio=logsigmoid(odds).mean(), log_odds_chosen=odds.mean())


def _log_odds(x: Tensor) -> Tensor:
    """log(p / (1 - p)) for x = log(p); finite even for p = 1, the probability of an empty sequence."""
    return x - torch.log(-torch.expm1(x.clamp(max=-torch.finfo(x.dtype).tiny)))


# ---- single sequences -----------------------------------------------------------------------------------------------


def fused_linear_kto(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    preference_labels: Tensor,
    bias: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    kl: Tensor | None = None,
    *,
    beta: float = 0.1,
    average_log_prob: bool = False,
    ignore_index: int = -100,
    accum_dtype: torch.dtype | None = None,
) -> KTOOutput:
    """Kahneman-Tversky optimization (https://arxiv.org/abs/2402.01306) of sequences that are not in pairs.

    The loss is the mean over the batch. A chosen sequence with log-ratio x adds 1 - sigmoid(beta * (x - kl)), a
    rejected sequence adds 1 - sigmoid(beta * (kl - x)).

    Args:
        input: float [batch, sequence, hidden].
        weight: float [classes, hidden], of the dtype of input.
        target: the class of each position, int32 or int64 [batch, sequence].
        preference_labels: bool [batch]: whether a sequence is chosen.
        bias: float [classes].
        ref_input: like input, for the reference model; its hidden size may differ.
        ref_weight: like weight, for the reference model.
        ref_bias: like bias, for the reference model.
        kl: an estimate of the divergence from the reference model, one element or [batch]; None means 0.
        beta: the scale of log-ratios.
        average_log_prob: a sequence's log-probability is the mean over its tokens instead of the sum.
        ignore_index: targets with this value are ignored.
        accum_dtype: as in linear_log_probs.

    Returns:
        A KTOOutput. Only its loss has a gradient.
    """
    name = "fused_linear_kto"
    if preference_labels.shape != target.shape[:1]:
        expected = f"have shape {tuple(target.shape[:1])}, one for each sequence of target"
        raise BadArgument.of(name, "preference_labels", expected, str(tuple(preference_labels.shape)))
    if kl is not None and kl.numel() != 1 and kl.shape != target.shape[:1]:
        expected = f"have one element, or shape {tuple(target.shape[:1])}"
        raise BadArgument.of(name, "kl", expected, str(tuple(kl.shape)))
    model = LogProbs(name, 1.0, ignore_index, accum_dtype)
    batch = SequenceBatch(model, average_log_prob, input, weight, target, bias, ref_input, ref_weight, ref_bias)
    chosen = preference_labels.bool()
    gain = batch.log_ratios
    if kl is not None:
        gain = gain - (kl.reshape(()) if kl.numel() == 1 else kl).detach()
    loss = torch.sigmoid(-beta * torch.where(chosen, gain, -gain)).mean()  # 1 - sigmoid(x) = sigmoid(-x)
    logged = batch.log_probs.detach(), batch.logits_sum, beta * batch.log_ratios.detach()
    return KTOOutput(loss, *(torch.where(kind, values, 0.0).sum() for values in logged for kind in (chosen, ~chosen)))
