"""Losses: `liger_kernel`'s cross entropy and what is like it. No argument is written to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..functional import losses
from .function import LigerFunction, scaled, with_gradients
from .names import ops

IGNORED = -1  # Liger's predicted token where the target is ignored


@dataclass
class CrossEntropyOutput:
    """The loss, and what else was asked for."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


Parts = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _parts(
    made: Any, target: Tensor, ignore_index: int, reduction: str, accuracy_wanted: bool, tokens_wanted: bool
) -> Parts:
    """Liger's four results. Accuracy without a reduction is one number for each token."""
    if isinstance(made, Tensor):
        return made, None, None, None
    accuracy, tokens = made.token_accuracy, made.predicted_tokens
    counts = target != ignore_index
    if accuracy_wanted and reduction == "none":
        accuracy = ((tokens == target) & counts).float()
    tokens = torch.where(counts, tokens, IGNORED) if tokens_wanted else None
    return made.loss, made.z_loss, accuracy if accuracy_wanted else None, tokens


class LigerCrossEntropyFunction(LigerFunction):
    """(loss, z_loss, token_accuracy, predicted_tokens); the loss has the dtype of the logits."""

    @staticmethod
    def apply(
        _input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> Parts:
        made = losses.cross_entropy(
            _input, target, weight, ignore_index, reduction, label_smoothing, z_loss=lse_square_scale,
            softcap=softcap, return_z_loss=return_z_loss, return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens or return_token_accuracy,
        )  # fmt: skip
        wanted = return_token_accuracy, return_predicted_tokens
        loss, z_loss, accuracy, tokens = _parts(made, target, ignore_index, reduction, *wanted)
        z_loss = None if z_loss is None else z_loss.to(_input.dtype)
        return loss.to(_input.dtype), z_loss, accuracy, tokens


def cross_entropy_forward(
    _input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    lse_square_scale: float,
    label_smoothing: float,
    reduction: str,
    softcap: float | None,
    return_z_loss: bool,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """(loss, z_loss, token_accuracy, predicted_tokens, gradient): the gradient is a new tensor."""
    options = ignore_index, lse_square_scale, label_smoothing, reduction, softcap
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    rest: list[Any] = []

    def loss(x: Tensor) -> Tensor:
        first, *rest[:] = LigerCrossEntropyFunction.apply(x, target, weight, *options, *wanted)
        return first

    made, (gradient,) = with_gradients(loss, _input.detach().requires_grad_())
    assert gradient is not None
    return made, rest[0], rest[1], rest[2], gradient


def cross_entropy_backward(_input: Tensor, grad_output: Tensor) -> Tensor:
    """The gradient that cross_entropy_forward returned, times that of the loss."""
    made = scaled(_input, grad_output)
    assert made is not None
    return made


class LigerFusedLinearCrossEntropyFunction(LigerFunction):
    """(loss, z_loss, token_accuracy, predicted_tokens) of the logits _input @ weight.T + bias."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> Parts:
        made = losses.fused_linear_cross_entropy(
            _input, weight, target, bias, ce_weight, ignore_index, reduction, label_smoothing,
            z_loss=lse_square_scale, softcap=softcap, accum_dtype=accum_dtype, use_token_scaling=use_token_scaling,
            return_z_loss=return_z_loss, return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens or return_token_accuracy,
        )  # fmt: skip
        return _parts(made, target, ignore_index, reduction, return_token_accuracy, return_predicted_tokens)


def fused_linear_cross_entropy_forward(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    ce_weight: Tensor | None = None,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    token_grad_output: Tensor | None = None,
    compute_gradients: bool | None = None,
    weight_requires_grad: bool | None = None,
) -> tuple[Any, ...]:
    """(loss, z_loss, token_accuracy, predicted_tokens, and the gradients of _input, weight and bias or None).

    `token_grad_output` has the gradient of each token's loss, for reduction="none".
    """
    options = ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, accum_dtype
    options = *options, use_token_scaling, return_token_accuracy, return_predicted_tokens
    rest: list[Any] = []
    shown: list[Tensor] = []

    def loss(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        first, *rest[:] = LigerFusedLinearCrossEntropyFunction.apply(x, w, target, b, ce_weight, *options)
        shown[:] = [first.detach()]
        return first if token_grad_output is None else first * token_grad_output

    given = _input, weight, bias
    needs = [t is not None and t.requires_grad for t in given]
    if compute_gradients is not None:
        needs = [compute_gradients and t is not None for t in given]
    if weight_requires_grad is not None:
        needs[1] = weight_requires_grad
    own = [None if t is None else t.detach().requires_grad_(n) for t, n in zip(given, needs, strict=True)]
    _, gradients = with_gradients(loss, *own)
    return *shown, *rest, *gradients


def fused_linear_cross_entropy_backward(
    grad_output: Tensor, grad_input: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of the forward, times that of the loss, a scalar."""
    return scaled(grad_input, grad_output), scaled(grad_weight, grad_output), scaled(grad_bias, grad_output)


# ---- functions -------------------------------------------------------------------------------------------------------


def _output(made: Parts, *wanted: bool) -> Tensor | CrossEntropyOutput:
    return CrossEntropyOutput(*made) if any(wanted) else made[0]


def liger_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """torch's `cross_entropy` with Liger's options; `size_average` and `reduce` have no effect."""
    options = ignore_index, lse_square_scale, label_smoothing, reduction, softcap
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    return _output(ops.LigerCrossEntropyFunction.apply(input, target, weight, *options, *wanted), *wanted)


def liger_fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    made = ops.LigerFusedLinearCrossEntropyFunction.apply(
        input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap,
        return_z_loss, accum_dtype, use_token_scaling, return_token_accuracy, return_predicted_tokens,
    )  # fmt: skip
    return _output(made, *wanted)


# ---- modules ---------------------------------------------------------------------------------------------------------


class LigerCrossEntropyLoss(nn.Module):
    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ):
        super().__init__()
        self.weight, self.ignore_index, self.lse_square_scale = weight, ignore_index, lse_square_scale
        self.label_smoothing, self.reduction, self.softcap = label_smoothing, reduction, softcap
        self.return_z_loss, self.return_token_accuracy = return_z_loss, return_token_accuracy
        self.return_predicted_tokens = return_predicted_tokens

    def forward(self, _input: Tensor, target: Tensor) -> Tensor | CrossEntropyOutput:
        wanted = self.return_z_loss, self.return_token_accuracy, self.return_predicted_tokens
        options = self.ignore_index, self.lse_square_scale, self.label_smoothing, self.reduction, self.softcap
        return _output(ops.LigerCrossEntropyFunction.apply(_input, target, self.weight, *options, *wanted), *wanted)


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    def __init__(
        self,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ):
        super().__init__()
        self.ce_weight, self.ignore_index, self.lse_square_scale = ce_weight, ignore_index, lse_square_scale
        self.label_smoothing, self.reduction, self.softcap = label_smoothing, reduction, softcap
        self.accum_dtype, self.use_token_scaling = accum_dtype, use_token_scaling
        self.return_z_loss, self.return_token_accuracy = return_z_loss, return_token_accuracy
        self.return_predicted_tokens = return_predicted_tokens

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor | CrossEntropyOutput:
        wanted = self.return_z_loss, self.return_token_accuracy, self.return_predicted_tokens
        made = ops.LigerFusedLinearCrossEntropyFunction.apply(
            _input, lin_weight, target, bias, self.ce_weight, self.ignore_index, self.lse_square_scale,
            self.label_smoothing, self.reduction, self.softcap, self.return_z_loss, self.accum_dtype,
            self.use_token_scaling, self.return_token_accuracy, self.return_predicted_tokens,
        )  # fmt: skip
        return _output(made, *wanted)
