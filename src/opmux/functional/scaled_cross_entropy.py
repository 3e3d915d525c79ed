"""A linear layer followed by each token's negative log-probability and entropy."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadArgument
from ..core.tensors import opmath_dtype
from ..specs import loss
from . import chunked
from .losses import assert_classes


class ScaledCrossEntropyOutput(NamedTuple):
    """The losses [...] and the entropies [...] of the tokens."""

    nll: Tensor
    entropy: Tensor


def fused_linear_scaled_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    ignore_index: int = -100,
    return_entropy: bool = False,
    *,
    accum_dtype: torch.dtype | None = None,
) -> Tensor | ScaledCrossEntropyOutput:
    """-log_softmax(input @ weight.T / temperature)[target] for each token, with only a part of the logits in memory.

    The losses and the entropies are differentiable. The backward recomputes the logits.

    Args:
        input: float [..., hidden].
        weight: float [classes, hidden], of the dtype of input.
        target: the class of each row, int32 or int64 [...].
        temperature: logits are divided by it.
        ignore_index: tokens with this target have loss 0, entropy 0, and no gradient.
        return_entropy: also return the entropy of each token's distribution.
        accum_dtype: the dtype in which the weight's gradient is added up: torch.float32, or None for weight's dtype.

    Returns:
        The losses [...], in float32 (float64 for float64); a ScaledCrossEntropyOutput if return_entropy is set.
    """
    name = "fused_linear_scaled_cross_entropy"
    chunked.check_linear(name, input, weight, accum_dtype)
    chunked.check_rows(name, "target", target, input)
    if not temperature > 0:
        raise BadArgument.of(name, "temperature", "be greater than 0", repr(temperature), ValueError)
    assert_classes(name, target, weight.shape[0], ignore_index)
    x, w = chunked.autocasted(input.device, input.reshape(-1, input.shape[-1]), weight)
    nll, entropy = _ScaledCrossEntropy.apply(
        x, w, target.reshape(-1), ignore_index, temperature, accum_dtype or w.dtype
    )
    nll, entropy = nll.view(target.shape), entropy.view(target.shape)
    return ScaledCrossEntropyOutput(nll, entropy) if return_entropy else nll


@torch.library.custom_op("opmux::_linear_nll_entropy", mutates_args=())
def _linear_nll_entropy(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """nll, entropy and lse of each row. Opaque, so that torch.compile does not unroll the loop."""
    nll, entropy, lse = _rows_like(x)
    for rows in chunked.parts(x, weight):
        logits = chunked.logits_of(x[rows], weight)
        results = loss.token_nll_entropy(logits, target[rows], ignore_index, temperature)
        nll[rows], entropy[rows], lse[rows] = results
        del logits
    return nll, entropy, lse


@_linear_nll_entropy.register_fake
def _(x, weight, target, ignore_index, temperature):
    return _rows_like(x)


def _rows_like(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = opmath_dtype(x.dtype)
    one, two, three = (torch.empty(x.shape[0], dtype=dtype, device=x.device) for _ in range(3))
    return one, two, three


@torch.library.custom_op("opmux::_linear_nll_entropy_bwd", mutates_args=())
def _linear_nll_entropy_bwd(
    dnll: Tensor,
    dentropy: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    entropy: Tensor,
    lse: Tensor,
    ignore_index: int,
    temperature: float,
    accum_dtype: torch.dtype,
    needs: list[bool],
) -> list[Tensor]:
    sums = chunked.LinearSums(x, weight, [*needs, False], accum_dtype)
    for rows in chunked.parts(x, weight):
        logits = chunked.logits_of(x[rows], weight)
        saved = target[rows], dnll[rows], dentropy[rows], entropy[rows], lse[rows]
        loss.token_nll_entropy_bwd_(logits, *saved, ignore_index, temperature)
        sums.add(rows, logits, target[rows] == ignore_index)
        del logits
    return sums.tensors()


@_linear_nll_entropy_bwd.register_fake
def _(dnll, dentropy, x, weight, target, entropy, lse, ignore_index, temperature, accum_dtype, needs):
    return chunked.LinearSums(x, weight, [*needs, False], accum_dtype).tensors()


class _ScaledCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        ignore_index: int,
        temperature: float,
        accum_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        nll, entropy, lse = _linear_nll_entropy(x, weight, target, ignore_index, temperature)
        ctx.save_for_backward(x, weight, target, entropy, lse)
        ctx.options = ignore_index, temperature, accum_dtype
        return nll, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        chunked.reject_create_graph("fused_linear_scaled_cross_entropy")
        x, weight, *_ = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:2])
        sums = _linear_nll_entropy_bwd(*grads, *ctx.saved_tensors, *ctx.options, needs)
        dtypes = x.dtype, weight.dtype, weight.dtype
        dx, dweight, _ = chunked.gradients(sums, [*needs, False], dtypes)
        return dx, dweight, *(None,) * 4
