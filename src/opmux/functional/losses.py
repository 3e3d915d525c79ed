"""Cross entropy, and a linear layer followed by cross entropy that never has all logits in memory.

No argument is modified. A target that is not a valid class raises: on the CPU immediately, on a GPU by a device-side
assertion, which does not synchronize.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadArgument
from ..core.tensors import opmath_dtype
from ..specs import loss
from ..specs._checks import check_choice
from . import chunked

REDUCTIONS = ("mean", "sum", "none")


class CrossEntropyOutput(NamedTuple):
    """The loss, and the other requested results."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


class _CrossEntropyOptions(NamedTuple):
    """Options of the per-token loss."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """`torch.nn.functional.cross_entropy` of class indices, with an optional z-loss and softcap.

    Args:
        input: the logits, float [n, classes], [classes] or [n, classes, ...].
        target: class indices, int32 or int64, of the shape of input without classes.
        weight: the weight of each class.
        ignore_index: targets with this value have loss 0 and do not count in the mean.
        reduction: "mean" (weighted, as in torch), "sum" or "none".
        label_smoothing: the share of the target probability that is spread evenly over all classes.
        z_loss: the weight of log(sum(exp(logits)))^2, which is added to each loss.
        softcap: logits become softcap * tanh(logits / softcap).
        return_z_loss: also return the z-loss term, without a gradient.
        return_token_accuracy: also return the share of targets whose class has the largest logit.
        return_predicted_tokens: also return the class with the largest logit of each row; ignore_index for ignored
            targets.

    Returns:
        The loss, in float32 (float64 for float64); a CrossEntropyOutput if more is requested. The mean is NaN
        if all targets are ignored, as in torch.
    """
    check_choice("cross_entropy", "reduction", reduction, REDUCTIONS)
    logits = input if input.dim() < 3 else input.movedim(1, -1)
    assert_classes("cross_entropy", target, logits.shape[-1], ignore_index)
    options = _CrossEntropyOptions(ignore_index, label_smoothing, z_loss, softcap)
    losses, lse, predicted = loss.token_cross_entropy(logits, target, weight, *options)
    total = _reduced(losses, target, weight, ignore_index, reduction)
    requested = return_z_loss, return_token_accuracy, return_predicted_tokens
    return _output(total, lse.detach(), predicted, target, weight, options, reduction, *requested)


def fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float | None = None,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """cross_entropy(input @ weight.T + bias, target), with only a part of the logits in memory at a time.

    For a mean or a sum the forward computes the gradients, and the backward reuses the forward's buffers for them, so a
    second backward through the same loss raises. With reduction "none" the backward recomputes the logits.

    Args:
        input: float [..., hidden].
        weight: float [classes, hidden], of the dtype of input.
        target: the class of each row, int32 or int64 [...].
        bias: float [classes].
        ce_weight: the weight of each class.
        ignore_index: as in cross_entropy.
        reduction: as in cross_entropy.
        label_smoothing: as in cross_entropy.
        z_loss: as in cross_entropy.
        softcap: as in cross_entropy.
        accum_dtype: the dtype in which the weight's gradient is added up: torch.float32, or None for weight's dtype.
        use_token_scaling: multiply each loss by the probability of its target, as a constant.
        return_z_loss: as in cross_entropy.
        return_token_accuracy: as in cross_entropy.
        return_predicted_tokens: as in cross_entropy.

    Returns:
        The same as cross_entropy.
    """
    name = "fused_linear_cross_entropy"
    check_choice(name, "reduction", reduction, REDUCTIONS)
    chunked.check_linear(name, input, weight, accum_dtype)
    chunked.check_rows(name, "target", target, input)
    x, w, b = chunked.autocasted(input.device, input.reshape(-1, input.shape[-1]), weight, bias)
    assert_classes(name, target, weight.shape[0], ignore_index)
    options = _CrossEntropyOptions(ignore_index, label_smoothing, z_loss, softcap)
    losses, lse, predicted = _LinearCrossEntropy.apply(
        x,
        w,
        b,
        target.reshape(-1),
        ce_weight,
        options,
        reduction,
        accum_dtype or w.dtype,
        use_token_scaling,
        torch.is_grad_enabled(),
    )
    total = losses.view(target.shape) if reduction == "none" else losses
    requested = return_z_loss, return_token_accuracy, return_predicted_tokens
    rows = lse.view(target.shape), predicted.view(target.shape)
    return _output(total, *rows, target, ce_weight, options, reduction, *requested)


# ---- reductions -----------------------------------------------------------------------------------------------------


def assert_classes(name: str, target: Tensor, classes: int, ignore_index: int, argument: str = "target") -> None:
    if target.is_floating_point() or target.is_complex():
        expected = "be int32 or int64 classes; for probabilities use torch's"
        raise BadArgument.of(name, argument, expected, str(target.dtype), TypeError)
    if target.device.type == "meta" or not target.numel():
        return
    valid = ((target >= 0) & (target < classes)) | (target == ignore_index)
    torch._assert_async(valid.all(), f"{name}: {argument} must be from 0 to {classes - 1}, or {ignore_index}")


def _count(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """The divisor of a mean: the number of targets that are not ignored, or the sum of their weights."""
    counts = target != ignore_index
    if weight is None:
        return counts.sum(dtype=dtype)
    return (weight.to(dtype).take(torch.where(counts, target, 0).long()) * counts).sum()


def _reduced(losses: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / _count(target, weight, ignore_index, losses.dtype) if reduction == "mean" else total


def _output(
    total: Tensor,
    lse: Tensor,
    predicted: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: _CrossEntropyOptions,
    reduction: str,
    with_z: bool,
    with_accuracy: bool,
    with_tokens: bool,
) -> Tensor | CrossEntropyOutput:
    if not (with_z or with_accuracy or with_tokens):
        return total
    counts = target != options.ignore_index
    z = accuracy = tokens = None
    if with_z:
        z_losses = (options.z_loss * lse * lse).masked_fill(~counts, 0.0)
        z = _reduced(z_losses, target, weight, options.ignore_index, reduction)
    if with_accuracy:
        accuracy = ((predicted == target) & counts).sum() / counts.sum()
    if with_tokens:
        tokens = torch.where(counts, predicted, options.ignore_index)
    return CrossEntropyOutput(total, z, accuracy, tokens)


# ---- a part of the logits at a time ---------------------------------------------------------------------------------


def _probability(logits: Tensor, target: Tensor, lse: Tensor, options: _CrossEntropyOptions) -> Tensor:
    """The probability of each target; 0 for ignored targets."""
    ignored = target == options.ignore_index
    index = torch.where(ignored, 0, target).long()
    logit = logits.gather(1, index[:, None])[:, 0].to(lse.dtype)
    if options.softcap is not None:
        logit = options.softcap * torch.tanh(logit / options.softcap)
    return torch.exp(logit - lse).masked_fill(ignored, 0.0)


@torch.library.custom_op("opmux::_linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ce_weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    reduction: str,
    accum_dtype: torch.dtype,
    token_scaling: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """Returns losses (reduced or not); each row's lse, predicted class and scale; and gradients if the loss is reduced.

    One opaque op, so that torch.compile neither unrolls the loop nor plans its memory.
    """
    options = _CrossEntropyOptions(ignore_index, label_smoothing, z_loss, softcap)
    losses, lse, predicted, scales = _rows_like(x, token_scaling)
    sums = chunked.LinearSums(x, weight, needs, accum_dtype)
    factor = torch.ones((), dtype=losses.dtype, device=x.device)
    if reduction == "mean":
        factor = factor / _count(target, ce_weight, ignore_index, losses.dtype)
    for rows in chunked.parts(x, weight):
        logits = chunked.logits_of(x[rows], weight, bias)
        losses[rows], lse[rows], predicted[rows] = loss.token_cross_entropy(logits, target[rows], ce_weight, *options)
        dloss = factor.expand(logits.shape[0])
        if token_scaling:
            scales[rows] = _probability(logits, target[rows], lse[rows], options)
            dloss = factor * scales[rows]
        if any(needs):
            loss.token_cross_entropy_bwd_(logits, dloss, target[rows], lse[rows], ce_weight, *options)
            sums.add(rows, logits, target[rows] == ignore_index)
        del logits  # free the memory before the next part
    if token_scaling:
        losses = losses * scales
    if reduction != "none":
        losses = losses.sum() * factor
    return losses, lse, predicted, scales, sums.tensors()


@_linear_cross_entropy.register_fake
def _(
    x,
    weight,
    bias,
    target,
    ce_weight,
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    reduction,
    accum_dtype,
    token_scaling,
    needs,
):
    losses, lse, predicted, scales = _rows_like(x, token_scaling)
    sums = chunked.LinearSums(x, weight, needs, accum_dtype).tensors()
    return losses if reduction == "none" else losses.new_empty(()), lse, predicted, scales, sums


def _rows_like(x: Tensor, token_scaling: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialized tensors for the rows' losses, lse, predicted classes and scales."""
    dtype = opmath_dtype(x.dtype)
    new = functools.partial(torch.empty, x.shape[0], device=x.device)
    scales = new(dtype=dtype) if token_scaling else torch.empty(0, dtype=dtype, device=x.device)
    return new(dtype=dtype), new(dtype=dtype), new(dtype=torch.int64), scales


@torch.library.custom_op("opmux::_linear_cross_entropy_bwd", mutates_args=())
def _linear_cross_entropy_bwd(
    dlosses: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ce_weight: Tensor | None,
    lse: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    accum_dtype: torch.dtype,
    needs: list[bool],
) -> list[Tensor]:
    """The gradients of losses that are not reduced. Recomputes the logits."""
    options = _CrossEntropyOptions(ignore_index, label_smoothing, z_loss, softcap)
    sums = chunked.LinearSums(x, weight, needs, accum_dtype)
    for rows in chunked.parts(x, weight):
        logits = chunked.logits_of(x[rows], weight, bias)
        loss.token_cross_entropy_bwd_(logits, dlosses[rows], target[rows], lse[rows], ce_weight, *options)
        sums.add(rows, logits, target[rows] == ignore_index)
        del logits
    return sums.tensors()


@_linear_cross_entropy_bwd.register_fake
def _(
    dlosses, x, weight, bias, target, ce_weight, lse, ignore_index, label_smoothing, z_loss, softcap, accum_dtype, needs
):
    return chunked.LinearSums(x, weight, needs, accum_dtype).tensors()


class _LinearCrossEntropy(torch.autograd.Function):
    """The losses (reduced or not), and each row's lse and predicted class."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        ce_weight: Tensor | None,
        options: _CrossEntropyOptions,
        reduction: str,
        accum_dtype: torch.dtype,
        token_scaling: bool,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.needs = [with_grad and needed for needed in ctx.needs_input_grad[:3]]
        ctx.dtypes = x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype
        ctx.options, ctx.accum_dtype, ctx.token_scaling = options, accum_dtype, token_scaling
        needs_now = [needed and reduction != "none" for needed in ctx.needs]
        losses, lse, predicted, scales, sums = _linear_cross_entropy(
            x, weight, bias, target, ce_weight, *options, reduction, accum_dtype, token_scaling, needs_now
        )
        ctx.reduced, ctx.sums = reduction != "none", sums
        if not ctx.reduced:
            ctx.save_for_backward(x, weight, bias, target, ce_weight, lse, scales)
        ctx.mark_non_differentiable(lse, predicted)
        ctx.set_materialize_grads(False)
        return losses, lse, predicted

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        dlosses = grads[0]
        if dlosses is None:
            return (None,) * 10
        chunked.reject_create_graph("fused_linear_cross_entropy")
        if ctx.reduced:
            sums = chunked.take_sums("fused_linear_cross_entropy", ctx)
            results = chunked.gradients(sums, ctx.needs, ctx.dtypes, dlosses)
        else:
            *saved, scales = ctx.saved_tensors
            dlosses = dlosses * scales if ctx.token_scaling else dlosses
            sums = _linear_cross_entropy_bwd(dlosses, *saved, *ctx.options, ctx.accum_dtype, ctx.needs)
            results = chunked.gradients(sums, ctx.needs, ctx.dtypes)
        return (*results, *(None,) * 7)
