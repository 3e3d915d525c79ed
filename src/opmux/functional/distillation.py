"""Distillation losses, computed from the hidden states and last layers of student and teacher.

Only a part of the logits is in memory at a time. A step needs four matrix products. The gradients of both losses are
added in float32 and then rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import BadArgument
from ..specs import divergence, loss
from ..specs._checks import check_choice
from . import chunked
from .losses import assert_classes

NAME = "fused_linear_distillation"
TENSORS = 4  # this many tensors of the size of a part's logits are in memory at once, so parts must be smaller


class DistillationOutput(NamedTuple):
    """The loss, and its two terms, which have no gradient: soft (from the teacher) and hard (from the labels)."""

    loss: Tensor
    soft_loss: Tensor
    hard_loss: Tensor


def fused_linear_distillation(
    student_input: Tensor,
    student_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    true_labels: Tensor,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    *,
    kind: str = "jsd",
    weight_hard_loss: float = 0.5,
    weight_soft_loss: float = 0.5,
    beta: float = 0.5,
    temperature: float = 1.0,
    ignore_index: int = -100,
    accum_dtype: torch.dtype | None = None,
) -> DistillationOutput:
    """weight_hard_loss * cross entropy with the labels + weight_soft_loss * distance from the teacher.

    Let s and t be the logits of student and teacher, divided by temperature; q = softmax(s), p = softmax(t). The
    distance "jsd" is beta * KL(p, m) + (1 - beta) * KL(q, m), m = beta * p + (1 - beta) * q; it is KL(p, q) for
    beta = 0 and KL(q, p) for beta = 1. The distance "cosine" is beta * (1 - cosine of s and t). The cross entropy uses
    logits that are not divided by temperature. All losses are means over the rows that are not ignored. If the teacher
    has more classes than the student, the student's logits of the extra classes are 0.

    The forward computes the gradients, and the backward reuses the forward's buffers for them, so a second backward
    raises.

    Args:
        student_input: float [..., hidden].
        student_weight: float [classes, hidden], of the dtype of student_input.
        teacher_input: float [..., hidden of the teacher], with the rows of student_input.
        teacher_weight: float [classes or more, hidden of the teacher], of the dtype of teacher_input.
        true_labels: the class of each row, int32 or int64 [...].
        student_bias: float [classes].
        teacher_bias: float [classes or more], one element for each row of teacher_weight.
        kind: "jsd" or "cosine".
        weight_hard_loss: as above.
        weight_soft_loss: as above.
        beta: as above, from 0 to 1 for "jsd".
        temperature: as above.
        ignore_index: rows with this label are ignored in both losses.
        accum_dtype: the dtype in which the weight's gradient is added up: torch.float32, or None for weight's dtype.

    Returns:
        A DistillationOutput, float32 (float64 for float64); 0 if all rows are ignored. Its loss has a gradient for
        student_input, student_weight and student_bias.
    """
    check_choice(NAME, "kind", kind, KINDS)
    if kind == "jsd" and not 0 <= beta <= 1:
        raise BadArgument.of(NAME, "beta", "be from 0 to 1 for 'jsd'", str(beta))
    if not temperature > 0:
        raise BadArgument.of(NAME, "temperature", "be greater than 0", str(temperature))
    chunked.check_linear(NAME, student_input, student_weight, accum_dtype, "student_")
    chunked.check_linear(NAME, teacher_input, teacher_weight, None, "teacher_")
    if teacher_weight.shape[0] < student_weight.shape[0]:
        expected = f"have at least {student_weight.shape[0]} rows, as student_weight has"
        raise BadArgument.of(NAME, "teacher_weight", expected, str(tuple(teacher_weight.shape)))
    chunked.check_rows(NAME, "true_labels", true_labels, student_input, "student_input")
    chunked.check_rows(NAME, "true_labels", true_labels, teacher_input, "teacher_input")
    assert_classes(NAME, true_labels, student_weight.shape[0], ignore_index, "true_labels")
    inputs = (t.reshape(-1, t.shape[-1]) for t in (student_input, teacher_input.detach()))
    x, y, w, v, b, c = chunked.autocasted(
        student_input.device,
        *inputs,
        student_weight,
        teacher_weight.detach(),
        student_bias,
        None if teacher_bias is None else teacher_bias.detach(),
    )
    assert w is not None
    options = _DistillationOptions(
        kind, weight_hard_loss, weight_soft_loss, beta, temperature, ignore_index, accum_dtype or w.dtype
    )
    results = _LinearDistillation.apply(x, w, b, y, v, c, true_labels.reshape(-1), options, torch.is_grad_enabled())
    return DistillationOutput(*results)


class _DistillationOptions(NamedTuple):
    """The options of `fused_linear_distillation`."""

    kind: str
    hard: float
    soft: float
    beta: float
    temperature: float
    ignore_index: int
    accum_dtype: torch.dtype


# ---- the distance of each student row from the teacher's row --------------------------------------------------------
# These functions overwrite the student's logits with their gradient, unless dloss is None.


def _jsd(
    student: Tensor, teacher: Tensor, labels: Tensor, dloss: Tensor | None, settings: _DistillationOptions
) -> Tensor:
    options = labels, settings.beta, settings.temperature, settings.ignore_index
    losses, *saved = divergence.token_logits_jsd(student, teacher, *options)
    if dloss is not None:
        divergence.token_logits_jsd_bwd_(student, teacher, dloss, *saved, *options)
    return losses


def _cosine(
    student: Tensor, teacher: Tensor, labels: Tensor, dloss: Tensor | None, settings: _DistillationOptions
) -> Tensor:
    # Uses torch's ops: the matrix products take most of the time. The temperature cancels in a cosine.
    norm = torch.linalg.vector_norm(student, dim=-1, keepdim=True).clamp(min=1e-12)
    unit, target = student.div_(norm), F.normalize(teacher.to(student.dtype), dim=-1)
    cosine = (unit * target).sum(-1, keepdim=True)
    ignored = (labels == settings.ignore_index)[:, None]
    if dloss is not None:
        unit.mul_(cosine).sub_(target).mul_(settings.beta * dloss[:, None] / norm).masked_fill_(ignored, 0.0)
    return (settings.beta * (1 - cosine)).masked_fill(ignored, 0.0)[:, 0]


KINDS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None, _DistillationOptions], Tensor]] = {
    "jsd": _jsd,
    "cosine": _cosine,
}


# ---- a part of the logits at a time ---------------------------------------------------------------------------------


@torch.library.custom_op("opmux::_linear_distillation", mutates_args=())
def _linear_distillation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    teacher: Tensor,
    teacher_bias: Tensor | None,
    labels: Tensor,
    kind: str,
    hard: float,
    soft: float,
    beta: float,
    temperature: float,
    ignore_index: int,
    accum_dtype: torch.dtype,
    needs: list[bool],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the soft loss, the hard loss, and the gradients of their weighted sum; opaque to torch.compile."""
    settings = _DistillationOptions(kind, hard, soft, beta, temperature, ignore_index, accum_dtype)
    dtype = torch.promote_types(x.dtype, torch.float32)
    classes, more = weight.shape[0], teacher.shape[0] - weight.shape[0]
    factor = 1 / (labels != ignore_index).sum(dtype=dtype).clamp(min=1)
    soft_losses, hard_losses = (torch.empty(x.shape[0], dtype=dtype, device=x.device) for _ in range(2))
    sums = chunked.LinearSums(x, weight, needs, accum_dtype)
    for rows in chunked.parts(x, teacher, TENSORS):
        logits = chunked.logits_of(x[rows], weight, bias).to(dtype)
        teacher_logits, row_labels = chunked.logits_of(y[rows], teacher, teacher_bias), labels[rows]
        dhard, dsoft = (f.expand(logits.shape[0]) for f in (hard * factor, soft * factor))
        dsoft_logits = F.pad(logits, (0, more)) if more else logits.clone()
        soft_losses[rows] = KINDS[kind](
            dsoft_logits, teacher_logits, row_labels, dsoft if any(needs) else None, settings
        )
        hard_losses[rows], lse, _ = loss.token_cross_entropy(logits, row_labels, None, ignore_index)
        if any(needs):
            loss.token_cross_entropy_bwd_(logits, dhard, row_labels, lse, None, ignore_index)
            sums.add(rows, logits.add_(dsoft_logits[:, :classes]).to(x.dtype), row_labels == ignore_index)
        del logits, teacher_logits, dsoft_logits  # free the memory before the next part
    return soft_losses.sum() * factor, hard_losses.sum() * factor, sums.tensors()


@_linear_distillation.register_fake
def _(
    x,
    weight,
    bias,
    y,
    teacher,
    teacher_bias,
    labels,
    kind,
    hard,
    soft,
    beta,
    temperature,
    ignore_index,
    accum_dtype,
    needs,
):
    new = torch.empty((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    return new, new.clone(), chunked.LinearSums(x, weight, needs, accum_dtype).tensors()


class _LinearDistillation(torch.autograd.Function):
    """The loss, the soft loss and the hard loss."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        y: Tensor,
        teacher: Tensor,
        teacher_bias: Tensor | None,
        labels: Tensor,
        options: _DistillationOptions,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.needs = [with_grad and needed for needed in ctx.needs_input_grad[:3]]
        ctx.dtypes = x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype
        soft, hard, ctx.sums = _linear_distillation(
            x, weight, bias, y, teacher, teacher_bias, labels, *options, ctx.needs
        )
        ctx.mark_non_differentiable(soft, hard)
        ctx.set_materialize_grads(False)
        return options.hard * hard + options.soft * soft, soft, hard

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if grads[0] is None:
            return (None,) * 9
        chunked.reject_create_graph(NAME)
        results = chunked.gradients(chunked.take_sums(NAME, ctx), ctx.needs, ctx.dtypes, grads[0])
        return (*results, *(None,) * 6)
