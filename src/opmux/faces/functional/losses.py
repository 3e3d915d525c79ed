"""Cross entropy, and a linear layer followed by cross entropy that never has all logits in memory.

No argument is written to. A target that is no class raises: at once on the CPU, as a device-side assertion on a GPU,
without waiting for the device.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core import autocast
from ...core.errors import BadArgument
from ...specs import gemm, loss

REDUCTIONS = ("mean", "sum", "none")
CHUNK = 256 * 2**20  # bytes of logits at a time: a product of 1024 rows by a vocabulary of 128k in 16 bits


class CrossEntropyOutput(NamedTuple):
    """The loss, and what else was asked for."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


class _How(NamedTuple):
    """The options of a loss."""

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
    """`torch.nn.functional.cross_entropy` of class indices, with a z-loss and capped logits.

    Args:
        input: the logits, float [n, classes], [classes] or [n, classes, ...].
        target: the class of each, int32 or int64, of the shape of input without classes.
        weight: the weight of each class.
        ignore_index: targets with this value have no loss; a mean does not count them.
        reduction: "mean" (by weight, as torch's), "sum" or "none".
        label_smoothing: the share of the target that is spread over all classes.
        z_loss: the weight of log(sum(exp(logits)))^2, which is added to each loss.
        softcap: logits become softcap * tanh(logits / softcap).
        return_z_loss: return the added part of the loss too, without a gradient.
        return_token_accuracy: return the share of targets that have the largest logit.
        return_predicted_tokens: return the class of the largest logit of each; ignore_index where it is ignored.

    Returns:
        The loss, in float32 (float64 for float64); a CrossEntropyOutput if more is asked for. The mean of no targets
        is NaN, as torch's.
    """
    _check_reduction("cross_entropy", reduction)
    logits = input if input.dim() < 3 else input.movedim(1, -1)
    _assert_classes("cross_entropy", target, logits.shape[-1], ignore_index)
    how = _How(ignore_index, label_smoothing, z_loss, softcap)
    losses, lse, predicted = loss.token_cross_entropy(logits, target, weight, *how)
    total = _reduced(losses, target, weight, ignore_index, reduction)
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    return _output(total, lse.detach(), predicted, target, weight, how, reduction, *wanted)


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
    """cross_entropy(input @ weight.T + bias, target), with a part of the logits in memory at a time.

    For a mean or a sum the gradients are computed in the forward, and its buffers become the gradients: a second
    backward through the same loss raises. Losses of each token ("none") are recomputed in the backward.

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
        accum_dtype: torch.float32 adds the weight's gradient up in float32; else it is added up in its own dtype.
        use_token_scaling: multiply each loss by the probability of its target, as a constant.
        return_z_loss: as in cross_entropy.
        return_token_accuracy: as in cross_entropy.
        return_predicted_tokens: as in cross_entropy.

    Returns:
        As cross_entropy.
    """
    name = "fused_linear_cross_entropy"
    _check_reduction(name, reduction)
    if input.shape[-1:] != weight.shape[1:]:
        expected = f"have shape (classes, {input.shape[-1]}), as input is {tuple(input.shape)}"
        raise BadArgument.of(name, "weight", expected, str(tuple(weight.shape)), ValueError)
    if target.shape != input.shape[:-1]:
        expected = f"have shape {tuple(input.shape[:-1])}, as input is {tuple(input.shape)}"
        raise BadArgument.of(name, "target", expected, str(tuple(target.shape)), ValueError)
    if accum_dtype not in (None, torch.float32, input.dtype):
        raise BadArgument.of(name, "accum_dtype", "be None or torch.float32", str(accum_dtype), TypeError)
    dtype = autocast.dtype_on(input.device.type)
    if dtype is not None:
        input, weight, bias = input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    _assert_classes(name, target, weight.shape[0], ignore_index)
    how = _How(ignore_index, label_smoothing, z_loss, softcap)
    losses, lse, predicted = _LinearCrossEntropy.apply(
        input.reshape(-1, input.shape[-1]), weight, bias, target.reshape(-1), ce_weight, how, reduction,
        accum_dtype or weight.dtype, use_token_scaling,
    )  # fmt: skip
    total = losses.view(target.shape) if reduction == "none" else losses
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    rows = lse.view(target.shape), predicted.view(target.shape)
    return _output(total, *rows, target, ce_weight, how, reduction, *wanted)


# ---- reductions -----------------------------------------------------------------------------------------------------


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise BadArgument.of(name, "reduction", f"be one of {', '.join(map(repr, REDUCTIONS))}", repr(reduction))


def _assert_classes(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    if target.is_floating_point() or target.is_complex():
        raise BadArgument.of(
            name, "target", "be int32 or int64 classes; for probabilities use torch's", str(target.dtype), TypeError
        )
    if target.device.type == "meta" or not target.numel():
        return
    fits = ((target >= 0) & (target < classes)) | (target == ignore_index)
    torch._assert_async(fits.all(), f"{name}: target must be from 0 to {classes - 1}, or {ignore_index}")


def _count(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """What a mean divides by: the number of targets that count, or the sum of their weights."""
    counts = target != ignore_index
    if weight is None:
        return counts.sum(dtype=dtype)
    return (weight.to(dtype)[torch.where(counts, target, 0).long()] * counts).sum()


def _reduced(losses: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / _count(target, weight, ignore_index, losses.dtype) if reduction == "mean" else total


def _output(
    total: Tensor, lse: Tensor, predicted: Tensor, target: Tensor, weight: Tensor | None, how: _How, reduction: str,
    z_wanted: bool, accuracy_wanted: bool, tokens_wanted: bool,
) -> Tensor | CrossEntropyOutput:  # fmt: skip
    if not (z_wanted or accuracy_wanted or tokens_wanted):
        return total
    counts = target != how.ignore_index
    z = accuracy = tokens = None
    if z_wanted:
        z = _reduced(how.z_loss * lse * lse * counts, target, weight, how.ignore_index, reduction)
    if accuracy_wanted:
        accuracy = ((predicted == target) & counts).sum() / counts.sum()
    if tokens_wanted:
        tokens = torch.where(counts, predicted, how.ignore_index)
    return CrossEntropyOutput(total, z, accuracy, tokens)


# ---- a part of the logits at a time ---------------------------------------------------------------------------------


class _WeightSum:
    """The gradient of a weight [classes, hidden], added up in a dtype that may be wider than its own.

    A wide sum is in two halves, so that the gradient fits into the memory of the first: a copy would need half as much
    memory again.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype):
        self.like, count = weight, weight.shape[0]
        ends = [count] if dtype is weight.dtype else [-(-count // 2), count]
        self.slices = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        new = functools.partial(torch.empty, dtype=dtype, device=weight.device)
        self.sums = [new(s.stop - s.start, weight.shape[1]) for s in self.slices]

    def add(self, dlogits: Tensor, x: Tensor, beta: float) -> None:
        for columns, total in zip(self.slices, self.sums, strict=True):
            gemm.gemm_add_(total, dlogits[:, columns], x, True, False, 1.0, beta)

    def zero(self) -> None:
        for total in self.sums:
            total.zero_()

    def result(self, factor: Tensor | None) -> Tensor:
        if factor is not None:
            for total in self.sums:
                loss.scale_(total, factor)
        first, *rest = self.sums
        if not rest:
            return first
        made = first.view(-1).view(self.like.dtype)[: self.like.numel()].view(self.like.shape)
        _narrow(first, made[self.slices[0]])
        made[self.slices[1]] = rest[0]
        return made


def _narrow(wide: Tensor, to: Tensor) -> None:
    """Round a tensor into the first half of its own memory."""
    source, target, at, end = wide.view(-1), to.view(-1), 0, min(wide.numel(), 2**20)
    while at < wide.numel():
        part = source[at:end]
        target[at:end] = part.clone() if at == 0 else part  # later parts are written to memory that was read before
        at, end = end, min(2 * end, wide.numel())


class _Sums:
    """The gradients of a linear layer, added up over parts of its rows."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, ...], dtype: torch.dtype):
        self.x, self.weight, self.bias = x, weight, bias
        self.dx = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
        self.dweight = _WeightSum(weight, dtype) if needs[1] else None
        self.dbias = torch.zeros(weight.shape[0], dtype=torch.float32, device=x.device) if needs[2] else None
        self.first = True
        if self.dweight is not None and not x.shape[0]:
            self.dweight.zero()

    def add(self, rows: slice, dlogits: Tensor) -> None:
        if self.dx is not None:
            torch.mm(dlogits, self.weight, out=self.dx[rows])
        if self.dweight is not None:
            self.dweight.add(dlogits, self.x[rows], 0.0 if self.first else 1.0)
        if self.dbias is not None:
            self.dbias += dlogits.sum(0, dtype=torch.float32)
        self.first = False

    def results(self, factor: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """The gradients, times a factor; the sums are used up."""
        for made in (self.dx, self.dbias):
            if made is not None and factor is not None:
                loss.scale_(made, factor)
        dweight = None if self.dweight is None else self.dweight.result(factor)
        dbias = None if self.dbias is None or self.bias is None else self.dbias.to(self.bias.dtype)
        return self.dx, dweight, dbias


def _parts(x: Tensor, weight: Tensor) -> list[slice]:
    """The rows whose logits are in memory at a time."""
    rows = max(1, CHUNK // max(1, weight.shape[0] * x.element_size()))
    rows = rows // 128 * 128 or rows
    return [slice(at, min(at + rows, x.shape[0])) for at in range(0, x.shape[0], rows)]


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def _probability(logits: Tensor, target: Tensor, lse: Tensor, how: _How) -> Tensor:
    """The probability of each target; of an ignored one that of class 0, which its loss of 0 is multiplied by."""
    at = torch.where(target == how.ignore_index, 0, target).long()
    own = logits.gather(1, at[:, None])[:, 0].to(lse.dtype)
    if how.softcap is not None:
        own = how.softcap * torch.tanh(own / how.softcap)
    return torch.exp(own - lse)


class _LinearCrossEntropy(torch.autograd.Function):
    """The losses (reduced or not), and for each row lse and the predicted class."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ce_weight: Tensor | None, how: _How,
        reduction: str, accum_dtype: torch.dtype, token_scaling: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        new = functools.partial(torch.empty, x.shape[0], device=x.device)
        losses, lse, predicted = new(dtype=wide), new(dtype=wide), new(dtype=torch.int64)
        needs = tuple(ctx.needs_input_grad[:3])
        now = reduction != "none" and any(needs)
        sums = _Sums(x, weight, bias, needs, accum_dtype) if now else None
        factor = torch.ones((), dtype=wide, device=x.device)
        if reduction == "mean":
            factor = factor / _count(target, ce_weight, how.ignore_index, wide)
        scales = new(dtype=wide) if token_scaling else None
        for rows in _parts(x, weight):
            logits = _logits(x[rows], weight, bias)
            losses[rows], lse[rows], predicted[rows] = loss.token_cross_entropy(logits, target[rows], ce_weight, *how)
            dloss = factor.expand(logits.shape[0])
            if scales is not None:
                scales[rows] = _probability(logits, target[rows], lse[rows], how)
                dloss = factor * scales[rows]
            if sums is not None:
                loss.token_cross_entropy_bwd_(logits, dloss, target[rows], lse[rows], ce_weight, *how)
                sums.add(rows, logits)
            del logits  # before the next part is computed
        if scales is not None:
            losses = losses * scales
        ctx.how, ctx.reduction, ctx.accum_dtype, ctx.scales = how, reduction, accum_dtype, scales
        ctx.sums = sums
        if reduction == "none":
            ctx.save_for_backward(x, weight, bias, target, ce_weight, lse)
        ctx.mark_non_differentiable(lse, predicted)
        ctx.set_materialize_grads(False)
        return losses if reduction == "none" else losses.sum() * factor, lse, predicted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        dlosses = grads[0]
        if dlosses is None:
            return (None,) * 9
        if ctx.reduction == "none":
            made = _recomputed(ctx, dlosses)
        else:
            if ctx.sums is None:
                raise RuntimeError(
                    "fused_linear_cross_entropy: a second backward through one loss: its gradients were handed over "
                    "in the first. Call it again, or use reduction='none', which recomputes them"
                )
            sums, ctx.sums = ctx.sums, None
            made = sums.results(dlosses)
        return (*made, *(None,) * 6)


def _recomputed(ctx: Any, dlosses: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the losses of each row."""
    x, weight, bias, target, ce_weight, lse = ctx.saved_tensors
    dlosses = dlosses if ctx.scales is None else dlosses * ctx.scales
    sums = _Sums(x, weight, bias, tuple(ctx.needs_input_grad[:3]), ctx.accum_dtype)
    for rows in _parts(x, weight):
        logits = _logits(x[rows], weight, bias)
        loss.token_cross_entropy_bwd_(logits, dlosses[rows], target[rows], lse[rows], ce_weight, *ctx.how)
        sums.add(rows, logits)
        del logits
    return sums.results()
