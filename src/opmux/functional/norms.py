"""Norms of tensors with any strides, computed in float32 (float64 for float64). No argument is modified.

Gradients are the same in every run, and a second backward through the same result gives the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..core.errors import BadArgument
from ..specs import channel_norm, norm, norm_variant

NAMES = {"x": "input"}  # the ops' name of an argument -> the functions' name, for errors


def rms_norm(
    input: Tensor, weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0, casting: str = "llama"
) -> Tensor:
    """RMS norm over the last dimension: input * rsqrt(mean(input^2) + eps) * (weight + offset).

    Args:
        input: float [..., n].
        weight: float [n]; None for ones, to which the offset is added too.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight (Gemma).
        casting: what is rounded to half precision. "llama": first the normalised value, then its product with the
            weight, as in transformers' Llama, Mistral and Qwen. "gemma": only the result. "none": the result of each
            step.

    Returns:
        A tensor of the shape and dtype of input.
    """
    if weight is None:
        weight = _ones(input)
    try:
        return norm.rms_norm(input, weight, eps, offset, casting)[0]
    except BadArgument as error:
        raise error.renamed("rms_norm", NAMES) from None


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: str = "llama",
) -> tuple[Tensor, Tensor]:
    """Compute rms_norm(input + residual), and the sum, in one kernel.

    Args:
        input: float [..., n], the output of a block.
        residual: added to input, of the shape and dtype of input.
        weight: as in rms_norm.
        eps: as in rms_norm.
        offset: as in rms_norm.
        casting: as in rms_norm.

    Returns:
        The normalised sum and the sum, both of the shape and dtype of input.
    """
    if weight is None:
        weight = _ones(input)
    try:
        y, s, _ = norm.add_rms_norm(input, residual, weight, eps, offset, casting)
    except BadArgument as error:
        raise error.renamed("add_rms_norm", NAMES) from None
    return y, s


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.layer_norm`: (input - mean) * rsqrt(var + eps) * weight + bias over the last dimensions.

    Args:
        input: float [..., *normalized_shape].
        normalized_shape: the last dimensions of input.
        weight: float [*normalized_shape]; None for ones.
        bias: float [*normalized_shape].
        eps: added to the variance.

    Returns:
        A tensor of the shape and dtype of input.
    """
    dims = tuple(normalized_shape)
    if not dims or input.shape[-len(dims) :] != dims:
        expected = f"be the last dimensions of {{input}}, {tuple(input.shape)}"
        raise BadArgument.of("layer_norm", "normalized_shape", expected, str(dims), ValueError)
    n = math.prod(dims)
    lead = input.shape[: input.dim() - len(dims)]
    scale = _ones(input, n) if weight is None else _flat("weight", weight, dims)
    bias = None if bias is None else _flat("bias", bias, dims)
    try:
        y = norm.layer_norm(input.reshape(*lead, n), scale, bias, eps)[0]
    except BadArgument as error:
        raise error.renamed("layer_norm", NAMES) from None
    return y.view(input.shape)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`torch.nn.functional.group_norm`: normalizes each group of channels of each sample.

    Args:
        input: float [samples, channels, ...].
        num_groups: the number of groups, a divisor of channels.
        weight: float [channels]; None for ones.
        bias: float [channels].
        eps: added to the variance.

    Returns:
        A tensor of the shape and dtype of input.
    """
    try:
        return channel_norm.group_norm(input, num_groups, weight, bias, eps)[0]
    except BadArgument as error:
        raise error.renamed("group_norm", NAMES) from None


def _ones(x: Tensor, n: int | None = None) -> Tensor:
    return x.new_ones(x.shape[-1:] if n is None else (n,))


def _flat(name: str, value: Tensor, dims: tuple[int, ...]) -> Tensor:
    if value.shape != dims:
        raise BadArgument.of("layer_norm", name, f"have shape {dims}", str(tuple(value.shape)), ValueError)
    return value.reshape(-1)


# ---- variants of norms ----------------------------------------------------------------------------------------------


def modulated_rms_norm(
    input: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: str = "llama",
) -> Tensor:
    """rms_norm(input, weight) * (1 + scale) + shift, for conditioned models (AdaLN).

    Args:
        input: float [..., n].
        weight: as in rms_norm.
        scale: float [n] or [1, n] for all rows, [batch, n] for each sample of input [batch, ..., n], or [rows, n] (or
            the shape of input) for each row.
        shift: of the shape and dtype of scale.
        eps: as in rms_norm.
        offset: as in rms_norm.
        casting: as in rms_norm; "none" rounds each step of the modulation, otherwise it is rounded once.

    Returns:
        A tensor of the shape and dtype of input.
    """
    if weight is None:
        weight = _ones(input)
    if shift is not None and shift.shape != scale.shape:
        expected = f"have the shape of {{scale}}, {tuple(scale.shape)}"
        raise BadArgument.of("modulated_rms_norm", "shift", expected, str(tuple(shift.shape)), ValueError)
    by_group = lambda t: t.reshape(-1, t.shape[-1]) if t.dim() else t
    modulation = by_group(scale), None if shift is None else by_group(shift)
    try:
        return norm_variant.modulated_rms_norm(input, weight, *modulation, eps, offset, casting)[0]
    except BadArgument as error:
        raise error.renamed("modulated_rms_norm", NAMES) from None


def poly_norm(input: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """PolyNorm: weight[0] * n(input^3) + weight[1] * n(input^2) + weight[2] * n(input) + bias.

    n(p) = p * rsqrt(mean(p^2) + eps), over the last dimension.

    Args:
        input: float [..., n].
        weight: float [3].
        bias: one element, of weight's dtype.
        eps: added to the mean squares.

    Returns:
        A tensor of the shape and dtype of input.
    """
    try:
        return norm_variant.poly_norm(input, weight, bias, eps)[0]
    except BadArgument as error:
        raise error.renamed("poly_norm", NAMES) from None


def dyt(input: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None = None) -> Tensor:
    """Dynamic tanh: tanh(alpha * input) * gamma + beta.

    Args:
        input: float [..., n].
        alpha: one element.
        gamma: float [n].
        beta: float [n], of gamma's dtype.

    Returns:
        A tensor of the shape and dtype of input.
    """
    try:
        return norm_variant.dyt(input, alpha, gamma, beta)
    except BadArgument as error:
        raise error.renamed("dyt", NAMES) from None
