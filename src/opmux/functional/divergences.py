"""Kullback-Leibler, Jensen-Shannon and total variation distances between distributions.

`fused_linear_jsd` computes the logits by two linear layers, and has only a part of them in memory at a time. No
function modifies its arguments or synchronizes with the device. Our kernels compute the gradient of the first argument;
in kl_div, jsd and tvd the backward needs only the arguments. If the second argument also needs a gradient, or the loss
is not reduced, torch's ops compute the loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadArgument
from ..core.tensors import opmath_dtype
from ..specs import divergence
from ..specs._checks import check_choice
from ..specs._numeric import wide
from . import chunked

REDUCTIONS = ("mean", "batchmean", "sum", "none")


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False, eps: float = 1e-10
) -> Tensor:
    """`torch.nn.functional.kl_div`: sum(target * (log(max(target, eps)) - input)).

    Args:
        input: logarithms of probabilities, float [..., classes].
        target: probabilities, of the shape of input; their logarithms if log_target is set.
        reduction: "mean" (over all elements), "batchmean" (over the first dimension), "sum" or "none".
        log_target: whether target contains logarithms.
        eps: smaller probabilities are replaced by eps before the logarithm.

    Returns:
        The loss, in float32 (float64 for float64). Classes with target probability 0 add 0.
    """
    check_choice("kl_div", "reduction", reduction, REDUCTIONS)
    if reduction == "none" or _needs_gradient(target):
        _check(divergence.token_kl_div, input=input, target=target, eps=eps)
        x = wide(input)
        elements = divergence.kl_elements(x, target.to(x.dtype), log_target, eps)
        if reduction == "none":
            return elements
        total = elements.sum()
    else:
        total = divergence.token_kl_div(input, target, log_target, eps).sum()
    if reduction == "sum":
        return total
    return total / (input.numel() if reduction == "mean" else input.shape[0])


def jsd(
    input: Tensor,
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    """The mean over rows of the generalized Jensen-Shannon divergence of q = exp(input) and p = exp(target).

    beta * KL(p || m) + (1 - beta) * KL(q || m), m = beta * p + (1 - beta) * q. beta = 0 is KL(p || q), beta = 1 is
    KL(q || p).

    Args:
        input: logarithms of the student's probabilities, float [..., classes].
        target: logarithms of the teacher's probabilities, of the shape of input.
        shift_labels: the class of each row, int32 or int64 [...]; rows with ignore_index are ignored.
        beta: the weight of the teacher in m, from 0 to 1.
        ignore_index: the label of rows that are ignored.

    Returns:
        The loss, in float32 (float64 for float64); 0 if all rows are ignored. Classes with probability 0 add 0.
    """
    if _needs_gradient(target):
        _check(divergence.token_jsd, input=input, target=target, labels=shift_labels, beta=beta)
        x = wide(input)
        rows = divergence.jsd_elements(x, target.to(x.dtype), beta).sum(-1)
        rows = divergence.counted(shift_labels, ignore_index, rows)
    else:
        rows = divergence.token_jsd(input, target, shift_labels, beta, ignore_index)
    return rows.sum() / _count(shift_labels, ignore_index, rows)


def tvd(
    p: Tensor,
    q: Tensor,
    shift_labels: Tensor | None = None,
    reduction: str = "batchmean",
    ignore_index: int = -100,
) -> Tensor:
    """The total variation distance of two distributions: sum(|p - q|) / 2.

    Args:
        p: probabilities, float [..., classes].
        q: probabilities, of the shape of p.
        shift_labels: the class of each row, int32 or int64 [...]; rows with ignore_index are ignored.
        reduction: "batchmean" (mean over the rows that are not ignored), "mean" (over the elements of these rows),
            "sum" or "none".
        ignore_index: the label of rows that are ignored.

    Returns:
        The loss, in float32 (float64 for float64); a mean is 0 if all rows are ignored.
    """
    check_choice("tvd", "reduction", reduction, REDUCTIONS)
    if reduction == "none" or _needs_gradient(q):
        _check(divergence.token_tvd, input=p, target=q, labels=shift_labels)
        x = wide(p)
        elements = divergence.counted(shift_labels, ignore_index, (x - q.to(x.dtype)).abs() / 2)
        if reduction == "none":
            return elements
        rows = elements.sum(-1)
    else:
        rows = divergence.token_tvd(p, q, shift_labels, ignore_index)
    if reduction == "sum":
        return rows.sum()
    count = _count(shift_labels, ignore_index, rows)
    return rows.sum() / (count * max(1, p.shape[-1]) if reduction == "mean" else count)


def fused_linear_jsd(
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
    """jsd between log_softmax(input @ weight.T / temperature) of student and teacher, computed in parts.

    Only a part of the logits is in memory. The forward computes the student's gradients, and the backward reuses the
    forward's buffers for them, so a second backward through the same loss raises. The teacher gets no gradient.

    Args:
        student_input: float [..., hidden].
        student_weight: float [classes, hidden].
        teacher_input: float [..., the teacher's hidden], with as many rows as student_input.
        teacher_weight: float [classes, the teacher's hidden].
        shift_labels: as in jsd.
        jsd_beta: beta of jsd.
        ignore_index: as in jsd.
        temperature: logits are divided by it.
        accum_dtype: the dtype in which the weight's gradient is added up: torch.float32, or None for weight's dtype.

    Returns:
        The loss, in float32 (float64 for float64); 0 if all rows are ignored.
    """
    name = "fused_linear_jsd"
    chunked.check_linear(name, student_input, student_weight, accum_dtype, "student_")
    chunked.check_linear(name, teacher_input, teacher_weight, None, "teacher_")
    if teacher_weight.shape[0] != student_weight.shape[0]:
        expected = f"have {student_weight.shape[0]} rows, as student_weight"
        raise BadArgument.of(name, "teacher_weight", expected, str(teacher_weight.shape[0]), ValueError)
    if teacher_input.shape[:-1] != student_input.shape[:-1]:
        expected = f"have as many rows as student_input, {tuple(student_input.shape[:-1])}"
        raise BadArgument.of(name, "teacher_input", expected, str(tuple(teacher_input.shape[:-1])), ValueError)
    if shift_labels is not None:
        chunked.check_rows(name, "shift_labels", shift_labels, student_input, "student_input")
        shift_labels = shift_labels.reshape(-1)
    layers = (
        student_input.reshape(-1, student_input.shape[-1]),
        student_weight,
        teacher_input.reshape(-1, teacher_input.shape[-1]),
        teacher_weight,
    )
    layers = chunked.autocasted(student_input.device, *layers)
    return _LinearJSD.apply(
        *layers,
        shift_labels,
        jsd_beta,
        temperature,
        ignore_index,
        accum_dtype or layers[1].dtype,
        torch.is_grad_enabled(),
    )


# ---- shared code ----------------------------------------------------------------------------------------------------


def _check(op: Any, **args: Any) -> None:
    """Check a composed loss's arguments by an op's rules; not under torch.compile, which cannot trace the check."""
    if not torch.compiler.is_compiling():
        op.spec.contract.check(args)


def _needs_gradient(target: Tensor) -> bool:
    return target.requires_grad and torch.is_grad_enabled()


def _count(labels: Tensor | None, ignore_index: int, rows: Tensor) -> Tensor | int:
    """The number of rows that are not ignored, at least 1."""
    if labels is None:
        return max(1, rows.numel())
    return (labels != ignore_index).sum(dtype=rows.dtype).clamp(min=1)


# ---- a part of the logits at a time ---------------------------------------------------------------------------------


@torch.library.custom_op("opmux::_linear_jsd", mutates_args=())
def _linear_jsd(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    labels: Tensor | None,
    beta: float,
    temperature: float,
    ignore_index: int,
    accum_dtype: torch.dtype,
    needs: list[bool],
) -> tuple[Tensor, list[Tensor]]:
    """The loss and the student's gradients. Opaque, so that torch.compile does not unroll the loop."""
    losses = _losses_like(x)
    sums = chunked.LinearSums(x, weight, [*needs, False], accum_dtype)
    factor = torch.ones((), dtype=losses.dtype, device=x.device) / _count(labels, ignore_index, losses)
    for rows in chunked.parts(x, weight, tensors=2):
        student = chunked.logits_of(x[rows], weight)
        teacher = chunked.logits_of(teacher_x[rows], teacher_weight)
        row_labels = None if labels is None else labels[rows]
        losses[rows], *saved = divergence.token_logits_jsd(
            student, teacher, row_labels, beta, temperature, ignore_index
        )
        if any(needs):
            divergence.token_logits_jsd_bwd_(
                student, teacher, factor.expand(student.shape[0]), *saved, row_labels, beta, temperature, ignore_index
            )
            sums.add(rows, student, None if row_labels is None else row_labels == ignore_index)
        del student, teacher  # free the memory before the next part
    return losses.sum() * factor, sums.tensors()


@_linear_jsd.register_fake
def _(x, weight, teacher_x, teacher_weight, labels, beta, temperature, ignore_index, accum_dtype, needs):
    return _losses_like(x).new_empty(()), chunked.LinearSums(x, weight, [*needs, False], accum_dtype).tensors()


def _losses_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape[0], dtype=opmath_dtype(x.dtype), device=x.device)


class _LinearJSD(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        teacher_x: Tensor,
        teacher_weight: Tensor,
        labels: Tensor | None,
        beta: float,
        temperature: float,
        ignore_index: int,
        accum_dtype: torch.dtype,
        with_grad: bool,
    ) -> Tensor:
        ctx.needs = [with_grad and needed for needed in ctx.needs_input_grad[:2]]
        ctx.dtypes = x.dtype, weight.dtype, weight.dtype
        loss, ctx.sums = _linear_jsd(
            x, weight, teacher_x, teacher_weight, labels, beta, temperature, ignore_index, accum_dtype, ctx.needs
        )
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        chunked.reject_create_graph("fused_linear_jsd")
        sums = chunked.take_sums("fused_linear_jsd", ctx)
        dx, dweight, _ = chunked.gradients(sums, [*ctx.needs, False], ctx.dtypes, grads[0])
        return dx, dweight, *(None,) * 8
