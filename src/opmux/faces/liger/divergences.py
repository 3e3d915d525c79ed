"""Divergences and other losses: `liger_kernel`'s kl_div, jsd, tvd, fused_linear_jsd and cross entropies of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ...functional import divergences, scaled_cross_entropy, vocab_parallel
from ...nn.losses import JSD, FusedLinearJSD, TVDLoss, VocabParallelCrossEntropy
from .function import Alias, LigerFunction, LigerModule, functional, scaled, with_gradients
from .names import ops

# ---- Kullback-Leibler and total variation ----------------------------------------------------------------------------


class LigerKLDivLossFunction(
    LigerFunction,
    calls=divergences.kl_div,
    takes="y_pred, y_true, reduction='batchmean', log_target=False, eps=1e-10",
    y_pred="input",
    y_true="target",
):
    """KL(y_true || exp(y_pred))."""


liger_kl_div = functional(
    "liger_kl_div",
    LigerKLDivLossFunction,
    "input, target, size_average=True, reduce=True, reduction='mean', log_target=False, eps=1e-10",
    input="y_pred",
    target="y_true",
)


class LigerKLDIVLoss(nn.KLDivLoss):
    """`torch.nn.KLDivLoss` with Liger's first argument, eps; calls `LigerKLDivLossFunction`."""

    def __init__(self, eps: float = 1e-10, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ops.LigerKLDivLossFunction.apply(y_pred, y_true, self.reduction, self.log_target, self.eps)


def kldiv_forward_triton(y_pred: Tensor, y_true: Tensor, log_target: bool, reduction: str, eps: float) -> Tensor:
    """KL(y_true || exp(y_pred)), reduced, in float32 or wider."""
    wide = y_pred.to(torch.promote_types(y_pred.dtype, torch.float32))
    return divergences.kl_div(wide, y_true, reduction=reduction, log_target=log_target, eps=eps)


def kldiv_backward_triton(target: Tensor, grad_output: Tensor, new_grads: Tensor, log_target: bool) -> Tensor:
    """Writes the gradient of the sum to new_grads, and returns it times grad_output."""
    loss = lambda x: divergences.kl_div(x, target, reduction="sum", log_target=log_target)
    _, (gradient,) = with_gradients(loss, torch.zeros_like(new_grads).requires_grad_())
    assert gradient is not None
    return new_grads.copy_(gradient) * grad_output


class LigerTVDLossFunction(
    LigerFunction,
    calls=divergences.tvd,
    takes="p, q, shift_labels=None, reduction='batchmean', ignore_index=-100",
):
    """Total variation distance: half the sum of |p - q|."""


def tv_distance_forward_triton(
    p: Tensor, q: Tensor, shift_labels: Tensor | None, reduction: str, ignore_index: int, has_label: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns the distance, in float32 or wider, and the gradient of p."""
    marked = shift_labels if has_label else None
    loss = lambda x: divergences.tvd(x, q, marked, reduction=reduction, ignore_index=ignore_index)
    result, (gradient,) = with_gradients(loss, p.detach().requires_grad_())
    return result.to(torch.promote_types(p.dtype, torch.float32)), gradient


def tvd_backward_triton(grad_output: Tensor, grads: Tensor) -> Tensor:
    """The gradient that the forward returned, times the gradient of the loss."""
    return grads * grad_output


liger_tvd = functional(
    "liger_tvd",
    LigerTVDLossFunction,
    "input, target, shift_labels=None, reduction='mean', ignore_index=-100",
    input="p",
    target="q",
)


class LigerTVDLoss(
    LigerModule,
    TVDLoss,
    function=LigerTVDLossFunction,
    options="reduction, ignore_index",
    inputs="p, q, shift_labels",
):
    """`LigerTVDLossFunction` with its options as attributes."""


# ---- Jensen-Shannon --------------------------------------------------------------------------------------------------


class LigerJSDFunction(
    LigerFunction,
    calls=divergences.jsd,
    takes="_input, target, shift_labels=None, beta=0.5, ignore_index=-100",
):
    """The Jensen-Shannon divergence; inputs are log-probabilities, and the loss has the dtype of the input."""

    @classmethod
    def call(cls, args: dict[str, Any]) -> Tensor:
        return super().call(args).to(args["input"].dtype)


liger_jsd = functional("liger_jsd", LigerJSDFunction, "input, target, shift_labels=None, beta=0.5, ignore_index=-100")


class LigerJSD(
    LigerModule,
    JSD,
    function=LigerJSDFunction,
    options="beta, ignore_index",
    inputs="log_q, log_p, shift_labels",
    log_q="input",
    log_p="target",
):
    """`LigerJSDFunction` with its options as attributes."""


def jsd_forward(
    _input: Tensor, target: Tensor, shift_labels: Tensor | None, beta: float, ignore_index: int, has_label: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns the loss and the gradient of the input."""
    marked = shift_labels if has_label else None
    loss = lambda x: LigerJSDFunction.apply(x, target, marked, beta, ignore_index)
    result, (gradient,) = with_gradients(loss, _input.detach().requires_grad_())
    return result, gradient


def jsd_backward(dX: Tensor, grad_output: Tensor) -> Tensor | None:
    """The gradient that the forward returned, times the gradient of the loss."""
    return scaled(dX, grad_output)


class LigerFusedLinearJSDFunction(
    LigerFunction,
    calls=divergences.fused_linear_jsd,
    takes="student_input, student_weight, teacher_input, teacher_weight, shift_labels=None, jsd_beta=0.5, "
    "ignore_index=-100, temperature=1.0, accum_dtype=None",
):
    """The Jensen-Shannon divergence of a student from a teacher, computed from hidden states."""


liger_fused_linear_jsd = functional("liger_fused_linear_jsd", LigerFusedLinearJSDFunction)


class LigerFusedLinearJSD(
    LigerModule,
    FusedLinearJSD,
    function=LigerFusedLinearJSDFunction,
    options="jsd_beta, ignore_index, temperature, accum_dtype",
    inputs="student_input, student_weight, teacher_input, teacher_weight, shift_labels=required",
):
    """`LigerFusedLinearJSDFunction` with its options as attributes."""


def fused_linear_jsd_forward(
    student_input: Tensor,
    student_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    shift_labels: Tensor | None,
    jsd_beta: float,
    ignore_index: int,
    has_label: bool,
    temperature: float,
    accum_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns the loss and the gradients of student_input and student_weight; a gradient that is not needed is None."""
    options = shift_labels if has_label else None, jsd_beta, ignore_index, temperature, accum_dtype
    loss = lambda x, w: LigerFusedLinearJSDFunction.apply(x, w, teacher_input, teacher_weight, *options)
    result, (dx, dw) = with_gradients(loss, student_input, student_weight)
    return result, dx, dw


def fused_linear_jsd_backward(
    grad_output: Tensor, grad_input: Tensor | None, grad_weight: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients that the forward returned, times the gradient of the loss."""
    return scaled(grad_input, grad_output), scaled(grad_weight, grad_output)


# ---- cross entropies of rows -----------------------------------------------------------------------------------------


class LigerFusedLinearScaledCrossEntropyFunction(
    LigerFunction,
    calls=scaled_cross_entropy.fused_linear_scaled_cross_entropy,
    takes="_input, weight, target, temperature=1.0, ignore_index=-100, m_tiles_per_cluster=1, return_entropy=False",
):
    """Returns the loss of each token; with `return_entropy` also its entropy. `m_tiles_per_cluster` has no effect."""

    @classmethod
    def call(cls, args: dict[str, Any]) -> Tensor | tuple[Tensor, Tensor]:
        output = super().call(args)
        return output if isinstance(output, Tensor) else (output.nll, output.entropy)


class LigerVocabParallelCEFunction(
    LigerFunction,
    calls=vocab_parallel.vocab_parallel_cross_entropy,
    takes="vocab_parallel_logits, target, tp_group, ignore_index, label_smoothing, label_smoothing_formula, "
    "label_smoothing_mode",
    vocab_parallel_logits="logits",
    tp_group="group",
    label_smoothing_formula="formula",
    label_smoothing_mode="mode",
):
    """Returns the loss of each token; the classes of the logits are split over the processes of a group."""


def validate_formula_and_mode(label_smoothing_formula: str, label_smoothing_mode: str) -> None:
    for name, value, allowed in (
        ("label_smoothing_formula", label_smoothing_formula, vocab_parallel.FORMULAS),
        ("label_smoothing_mode", label_smoothing_mode, vocab_parallel.MODES),
    ):
        if value not in allowed:
            raise BadArgument.of("vocab-parallel cross entropy", name, f"be one of {allowed}", repr(value))


class LigerVocabParallelCrossEntropy(
    LigerModule,
    VocabParallelCrossEntropy,
    function=LigerVocabParallelCEFunction,
    options="ignore_index=-100, label_smoothing=0.0, reduction='none', label_smoothing_formula='pytorch', "
    "label_smoothing_mode='global'",
    inputs="vocab_parallel_logits, target, tp_group=None",
):
    """Returns the loss of each token; the logits are [length, batch, classes of this process]."""

    label_smoothing_formula, label_smoothing_mode = Alias("formula"), Alias("mode")

    def check(self) -> None:
        if self.reduction != "none":
            raise BadArgument.of(type(self).__name__, "reduction", "be 'none'", repr(self.reduction))
        validate_formula_and_mode(self.label_smoothing_formula, self.label_smoothing_mode)
