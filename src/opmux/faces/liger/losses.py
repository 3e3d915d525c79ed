"""`liger_kernel`'s cross_entropy and fused_linear_cross_entropy. No argument is modified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional import losses
from ...nn.losses import CrossEntropyLoss, FusedLinearCrossEntropyLoss
from .function import Alias, LigerFunction, LigerModule, functional, scaled, with_gradients

IGNORED = -1  # for ignored targets, Liger returns this as the predicted token


@dataclass
class CrossEntropyOutput:
    """The loss, and the other requested results."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


Parts = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


class FunctionOfFourResults(LigerFunction):
    """Returns (loss, z_loss, token_accuracy, predicted_tokens), with None for results that were not requested.

    Without a reduction the accuracy has one element per token.
    """

    @classmethod
    def call(cls, args: dict[str, Any]) -> Parts:
        target, with_accuracy, with_tokens = (
            args[name] for name in ("target", "return_token_accuracy", "return_predicted_tokens")
        )
        output = cls.calls(**cls.passed(args) | {"return_predicted_tokens": with_tokens or with_accuracy})
        if isinstance(output, Tensor):
            return output, None, None, None
        accuracy, tokens = output.token_accuracy, output.predicted_tokens
        counts = target != args["ignore_index"]
        if with_accuracy and args["reduction"] == "none":
            accuracy = ((tokens == target) & counts).float()
        tokens = torch.where(counts, tokens, IGNORED) if with_tokens else None
        return output.loss, output.z_loss, accuracy if with_accuracy else None, tokens


def _output(parts: Parts) -> Tensor | CrossEntropyOutput:
    """The loss, or a CrossEntropyOutput if other results were requested."""
    return parts[0] if all(part is None for part in parts[1:]) else CrossEntropyOutput(*parts)


# ---- cross entropy ---------------------------------------------------------------------------------------------------


class LigerCrossEntropyFunction(
    FunctionOfFourResults,
    calls=losses.cross_entropy,
    takes="_input, target, weight, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction='mean', "
    "softcap=None, return_z_loss=False, return_token_accuracy=False, return_predicted_tokens=False",
    lse_square_scale="z_loss",
):
    """Returns (loss, z_loss, token_accuracy, predicted_tokens). The loss has the dtype of the logits."""

    @classmethod
    def call(cls, args: dict[str, Any]) -> Parts:
        loss, z_loss, accuracy, tokens = super().call(args)
        dtype = args["input"].dtype
        return loss.to(dtype), None if z_loss is None else z_loss.to(dtype), accuracy, tokens


liger_cross_entropy = functional(
    "liger_cross_entropy",
    LigerCrossEntropyFunction,
    "input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean', "
    "label_smoothing=0.0, lse_square_scale=0.0, softcap=None, return_z_loss=False, return_token_accuracy=False, "
    "return_predicted_tokens=False",
    _output,
)


class LigerCrossEntropyLoss(
    LigerModule,
    CrossEntropyLoss,
    function=LigerCrossEntropyFunction,
    options="weight=None, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, "
    "return_token_accuracy, return_predicted_tokens",
    inputs="_input, target",
):
    """`LigerCrossEntropyFunction` with its options as attributes. Returns the loss, or a CrossEntropyOutput."""

    result, lse_square_scale = staticmethod(_output), Alias("z_loss")


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
    """Returns (loss, z_loss, token_accuracy, predicted_tokens, gradient). The gradient is a new tensor."""
    options = ignore_index, lse_square_scale, label_smoothing, reduction, softcap
    requested = return_z_loss, return_token_accuracy, return_predicted_tokens
    extras: list[Any] = []

    def loss(x: Tensor) -> Tensor:
        first, *extras[:] = LigerCrossEntropyFunction.apply(x, target, weight, *options, *requested)
        return first

    result, (gradient,) = with_gradients(loss, _input.detach().requires_grad_())
    assert gradient is not None
    return result, extras[0], extras[1], extras[2], gradient


def cross_entropy_backward(_input: Tensor, grad_output: Tensor) -> Tensor:
    """The gradient that cross_entropy_forward returned, times the gradient of the loss."""
    gradient = scaled(_input, grad_output)
    assert gradient is not None
    return gradient


# ---- cross entropy of a linear layer ---------------------------------------------------------------------------------


class LigerFusedLinearCrossEntropyFunction(
    FunctionOfFourResults,
    calls=losses.fused_linear_cross_entropy,
    takes="_input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, "
    "label_smoothing=0.0, reduction='mean', softcap=None, return_z_loss=False, accum_dtype=None, "
    "use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False",
    lse_square_scale="z_loss",
):
    """Returns (loss, z_loss, token_accuracy, predicted_tokens) for the logits _input @ weight.T + bias."""


liger_fused_linear_cross_entropy = functional(
    "liger_fused_linear_cross_entropy",
    LigerFusedLinearCrossEntropyFunction,
    "input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, "
    "reduction='mean', softcap=None, return_z_loss=False, accum_dtype=None, use_token_scaling=False, "
    "return_token_accuracy=False, return_predicted_tokens=False",
    _output,
)


class LigerFusedLinearCrossEntropyLoss(
    LigerModule,
    FusedLinearCrossEntropyLoss,
    function=LigerFusedLinearCrossEntropyFunction,
    options="ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, "
    "accum_dtype, use_token_scaling, return_token_accuracy, return_predicted_tokens",
    inputs="lin_weight, _input, target, bias",
    lin_weight="weight",
):
    """`LigerFusedLinearCrossEntropyFunction` with options as attributes. Returns the same as LigerCrossEntropyLoss."""

    result, lse_square_scale = staticmethod(_output), Alias("z_loss")


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
    """Returns (loss, z_loss, token_accuracy, predicted_tokens) and the gradients of _input, weight and bias (or None).

    `token_grad_output` is the gradient of each token's loss, for reduction="none".
    """
    options = ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, accum_dtype
    options = *options, use_token_scaling, return_token_accuracy, return_predicted_tokens
    extras: list[Any] = []
    outputs: list[Tensor] = []

    def loss(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        first, *extras[:] = LigerFusedLinearCrossEntropyFunction.apply(x, w, target, b, ce_weight, *options)
        outputs[:] = [first.detach()]
        return first if token_grad_output is None else first * token_grad_output

    inputs = _input, weight, bias
    needs = [t is not None and t.requires_grad for t in inputs]
    if compute_gradients is not None:
        needs = [compute_gradients and t is not None for t in inputs]
    if weight_requires_grad is not None:
        needs[1] = weight_requires_grad
    leaves = [None if t is None else t.detach().requires_grad_(n) for t, n in zip(inputs, needs, strict=True)]
    _, gradients = with_gradients(loss, *leaves)
    return *outputs, *extras, *gradients


def fused_linear_cross_entropy_backward(
    grad_output: Tensor, grad_input: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients that the forward returned, times the gradient of the loss, which is a scalar."""
    return scaled(grad_input, grad_output), scaled(grad_weight, grad_output), scaled(grad_bias, grad_output)
