"""Divergences and further losses: `liger_kernel`'s kl_div, jsd, tvd, fused_linear_jsd and cross entropies of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ..functional import divergences, scaled_cross_entropy, vocab_parallel
from .function import LigerFunction, scaled, with_gradients
from .names import ops

# ---- functions -------------------------------------------------------------------------------------------------------


class LigerKLDivLossFunction(LigerFunction):
    """KL of y_true from exp(y_pred)."""

    @staticmethod
    def apply(
        y_pred: Tensor, y_true: Tensor, reduction: str = "batchmean", log_target: bool = False, eps: float = 1e-10
    ) -> Tensor:
        return divergences.kl_div(y_pred, y_true, reduction, log_target, eps)


class LigerTVDLossFunction(LigerFunction):
    """Half the sum of |p - q|."""

    @staticmethod
    def apply(
        p: Tensor,
        q: Tensor,
        shift_labels: Tensor | None = None,
        reduction: str = "batchmean",
        ignore_index: int = -100,
    ) -> Tensor:
        return divergences.tvd(p, q, shift_labels, reduction, ignore_index)


class LigerJSDFunction(LigerFunction):
    """The Jensen-Shannon divergence of logarithms of probabilities; the loss has the dtype of the input."""

    @staticmethod
    def apply(
        _input: Tensor,
        target: Tensor,
        shift_labels: Tensor | None = None,
        beta: float = 0.5,
        ignore_index: int = -100,
    ) -> Tensor:
        return divergences.jsd(_input, target, shift_labels, beta, ignore_index).to(_input.dtype)


def jsd_forward(
    _input: Tensor, target: Tensor, shift_labels: Tensor | None, beta: float, ignore_index: int, has_label: bool
) -> tuple[Tensor, Tensor | None]:
    """(loss, the gradient of the input)."""
    marked = shift_labels if has_label else None
    loss = lambda x: LigerJSDFunction.apply(x, target, marked, beta, ignore_index)
    made, (gradient,) = with_gradients(loss, _input.detach().requires_grad_())
    return made, gradient


def jsd_backward(dX: Tensor, grad_output: Tensor) -> Tensor | None:
    """The gradient of the forward, times that of the loss."""
    return scaled(dX, grad_output)


class LigerFusedLinearJSDFunction(LigerFunction):
    """The Jensen-Shannon divergence of a student from a teacher, over hidden states."""

    @staticmethod
    def apply(
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,
    ) -> Tensor:
        layers = student_input, student_weight, teacher_input, teacher_weight
        return divergences.fused_linear_jsd(*layers, shift_labels, jsd_beta, ignore_index, temperature, accum_dtype)


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
    """(loss, and the gradients of student_input and student_weight, or None)."""
    options = shift_labels if has_label else None, jsd_beta, ignore_index, temperature, accum_dtype
    loss = lambda x, w: LigerFusedLinearJSDFunction.apply(x, w, teacher_input, teacher_weight, *options)
    made, (dx, dw) = with_gradients(loss, student_input, student_weight)
    return made, dx, dw


def fused_linear_jsd_backward(
    grad_output: Tensor, grad_input: Tensor | None, grad_weight: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the forward, times that of the loss."""
    return scaled(grad_input, grad_output), scaled(grad_weight, grad_output)


class LigerFusedLinearScaledCrossEntropyFunction(LigerFunction):
    """The loss of each token, and with `return_entropy` its entropy. `m_tiles_per_cluster` has no effect."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        temperature: float = 1.0,
        ignore_index: int = -100,
        m_tiles_per_cluster: int = 1,
        return_entropy: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        made = scaled_cross_entropy.fused_linear_scaled_cross_entropy(
            _input, weight, target, temperature, ignore_index, return_entropy
        )
        return made if isinstance(made, Tensor) else (made.nll, made.entropy)


class LigerVocabParallelCEFunction(LigerFunction):
    """The loss of each token, of logits whose classes are spread over the processes of a group."""

    @staticmethod
    def apply(
        vocab_parallel_logits: Tensor,
        target: Tensor,
        tp_group: Any,
        ignore_index: int,
        label_smoothing: float,
        label_smoothing_formula: str,
        label_smoothing_mode: str,
    ) -> Tensor:
        smoothing = label_smoothing, label_smoothing_formula, label_smoothing_mode
        return vocab_parallel.vocab_parallel_cross_entropy(
            vocab_parallel_logits, target, tp_group, ignore_index, *smoothing
        )


def validate_formula_and_mode(label_smoothing_formula: str, label_smoothing_mode: str) -> None:
    for name, given, allowed in (
        ("label_smoothing_formula", label_smoothing_formula, vocab_parallel.FORMULAS),
        ("label_smoothing_mode", label_smoothing_mode, vocab_parallel.MODES),
    ):
        if given not in allowed:
            raise BadArgument.of("vocab-parallel cross entropy", name, f"be one of {allowed}", repr(given))


def liger_kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool = True,
    reduce: bool = True,
    reduction: str = "mean",
    log_target: bool = False,
    eps: float = 1e-10,
) -> Tensor:
    """`size_average` and `reduce` have no effect."""
    return ops.LigerKLDivLossFunction.apply(input, target, reduction, log_target, eps)


def liger_tvd(
    input: Tensor,
    target: Tensor,
    shift_labels: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    return ops.LigerTVDLossFunction.apply(input, target, shift_labels, reduction, ignore_index)


def liger_jsd(
    input: Tensor,
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    return ops.LigerJSDFunction.apply(input, target, shift_labels, beta, ignore_index)


def liger_fused_linear_jsd(
    student_input: Tensor,
    student_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    shift_labels: Tensor | None = None,
    jsd_beta: float = 0.5,
    ignore_index: int = -100,
    temperature: float = 1.0,
    accum_dtype: torch.dtype | None = None,
) -> Tensor:
    layers = student_input, student_weight, teacher_input, teacher_weight
    options = shift_labels, jsd_beta, ignore_index, temperature, accum_dtype
    return ops.LigerFusedLinearJSDFunction.apply(*layers, *options)


# ---- modules ---------------------------------------------------------------------------------------------------------


class LigerKLDIVLoss(nn.KLDivLoss):
    def __init__(self, eps: float = 1e-10, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ops.LigerKLDivLossFunction.apply(y_pred, y_true, self.reduction, self.log_target, self.eps)


class LigerTVDLoss(nn.Module):
    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100):
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, p: Tensor, q: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return ops.LigerTVDLossFunction.apply(p, q, shift_labels, self.reduction, self.ignore_index)


class LigerJSD(nn.Module):
    def __init__(self, beta: float = 0.5, ignore_index: int = -100):
        super().__init__()
        self.beta, self.ignore_index = beta, ignore_index

    def forward(self, log_q: Tensor, log_p: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return ops.LigerJSDFunction.apply(log_q, log_p, shift_labels, self.beta, self.ignore_index)


class LigerFusedLinearJSD(nn.Module):
    def __init__(
        self,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.jsd_beta, self.ignore_index = jsd_beta, ignore_index
        self.temperature, self.accum_dtype = temperature, accum_dtype

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None,
    ) -> Tensor:
        layers = student_input, student_weight, teacher_input, teacher_weight
        options = shift_labels, self.jsd_beta, self.ignore_index, self.temperature, self.accum_dtype
        return ops.LigerFusedLinearJSDFunction.apply(*layers, *options)


class LigerVocabParallelCrossEntropy(nn.Module):
    """The loss of each token; the logits are [length, batch, classes of this process]."""

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "none",
        label_smoothing_formula: str = "pytorch",
        label_smoothing_mode: str = "global",
    ):
        super().__init__()
        if reduction != "none":
            raise BadArgument.of(type(self).__name__, "reduction", "be 'none'", repr(reduction))
        validate_formula_and_mode(label_smoothing_formula, label_smoothing_mode)
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction
        self.label_smoothing_formula, self.label_smoothing_mode = label_smoothing_formula, label_smoothing_mode

    def forward(self, vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any = None) -> Tensor:
        smoothing = self.label_smoothing, self.label_smoothing_formula, self.label_smoothing_mode
        options = tp_group, self.ignore_index, *smoothing
        return ops.LigerVocabParallelCEFunction.apply(vocab_parallel_logits, target, *options)
