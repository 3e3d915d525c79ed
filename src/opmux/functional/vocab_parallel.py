"""Cross entropy of logits whose classes are split over the processes of a group (tensor parallelism)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.errors import BadArgument
from ..specs import loss
from ..specs._checks import check_choice
from ..specs._numeric import wide
from . import chunked
from .losses import REDUCTIONS, assert_classes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

FORMULAS = ("pytorch", "megatron")
MODES = ("global", "partition")


class _Smoothing(NamedTuple):
    """Label smoothing: the part `share` of the target probability is spread over `classes` classes."""

    share: float
    classes: int
    everywhere: bool  # whether `classes` counts the classes of all processes


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    group: ProcessGroup | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    formula: str = "pytorch",
    mode: str = "global",
    reduction: str = "none",
) -> Tensor:
    """Cross entropy of logits whose classes are split evenly over the processes of a group.

    The forward needs one all-gather of three numbers per row; the backward needs no communication. All processes get
    the same loss (except with mode "partition"), and each process gets the gradient of its own logits.

    Args:
        logits: float [..., classes / size of the group]; this process's first class is rank * logits.shape[-1].
        target: the class of each row, counted over all processes, int32 or int64 [...]; the same on all processes.
        group: the processes; None for logits of all classes.
        ignore_index: targets with this value have loss 0.
        label_smoothing: the share of the target probability that is spread over classes.
        formula: "pytorch" spreads label_smoothing over all classes, "megatron" over all classes except the target.
        mode: "global" spreads label_smoothing over the classes of all processes; "partition" only over the process's
            own classes, as Megatron-LM does, so losses differ between processes.
        reduction: "none", "mean" (over targets that are not ignored) or "sum".

    Returns:
        The loss, in float32 (float64 for float64).
    """
    name = "vocab_parallel_cross_entropy"
    check_choice(name, "reduction", reduction, REDUCTIONS)
    chunked.check_rows(name, "target", target, logits, "logits")
    check_choice(name, "formula", formula, FORMULAS)
    check_choice(name, "mode", mode, MODES)
    if not 0 <= label_smoothing <= 1:
        raise BadArgument.of(name, "label_smoothing", "be between 0 and 1", repr(label_smoothing), ValueError)
    columns = logits.shape[-1]
    total = columns * (1 if group is None else dist.get_world_size(group))
    assert_classes(name, target, total, ignore_index)
    classes = total if mode == "global" else columns
    share = label_smoothing
    if formula == "megatron" and classes > 1:
        share = label_smoothing * classes / (classes - 1)
    smoothing = _Smoothing(share, classes, mode == "global")
    losses = _VocabParallel.apply(logits.reshape(-1, columns), target.reshape(-1), group, ignore_index, smoothing)
    if reduction == "none":
        return losses.view(target.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / (target != ignore_index).sum()


class _VocabParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, group: Any, ignore_index: int, smoothing: _Smoothing
    ) -> Tensor:
        columns = logits.shape[-1]
        first = 0 if group is None else columns * dist.get_rank(group)
        index = target.long() - first
        local = (index >= 0) & (index < columns)
        index = torch.where(local, index, 0)
        # with label smoothing 1 the loss is lse - mean(logits)
        loss_of_mean, lse, _ = loss.token_cross_entropy(logits, index, None, -100, 1.0 if smoothing.share else 0.0)
        logit = wide(logits.gather(-1, index[:, None])[:, 0]).masked_fill(~local, 0.0)
        each = _gathered(torch.stack([lse, logit, lse - loss_of_mean]), group)
        lse, logit = torch.logsumexp(each[:, 0], 0), each[:, 1].sum(0)
        losses = lse - logit
        if smoothing.share:
            mean = each[:, 2].mean(0) if smoothing.everywhere else each[first // columns, 2]
            losses = (1 - smoothing.share) * losses + smoothing.share * (lse - mean)
        ctx.save_for_backward(logits, target, lse)
        ctx.first, ctx.ignore_index, ctx.smoothing = first, ignore_index, smoothing
        return losses.masked_fill(target == ignore_index, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        chunked.reject_create_graph("vocab_parallel_cross_entropy")
        logits, target, lse = ctx.saved_tensors
        share, classes, _ = ctx.smoothing
        dlogits = loss.token_shard_cross_entropy_bwd(
            grads[0], logits, target, lse, ctx.first, ctx.ignore_index, 1 - share, share / classes
        )
        return dlogits, None, None, None, None


def _gathered(rows: Tensor, group: Any) -> Tensor:
    """Gather the rows of all processes: [processes, *rows.shape]."""
    if group is None:
        return rows[None]
    gathered = rows.new_empty(dist.get_world_size(group), *rows.shape)
    if rows.numel():
        dist.all_gather(list(gathered.unbind()), rows, group=group)
    return gathered
