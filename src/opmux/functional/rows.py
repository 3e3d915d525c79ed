"""Softmax, sparsemax, squared ReLU and embedding. No argument is modified."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..core.errors import BadArgument
from ..specs import activation
from ..specs import softmax as softmax_spec
from ..specs import sparsemax as sparsemax_spec

NAMES = {"x": "input"}  # the ops' name of an argument -> the functions' name, for errors


def softmax(input: Tensor, dim: int = -1) -> Tensor:
    """`torch.softmax`, for any number of columns.

    Args:
        input: float, of any shape.
        dim: the dimension that sums to 1.

    Returns:
        A tensor of the shape and dtype of input. Computed in float32 (float64 for float64).
    """
    try:
        return softmax_spec.softmax(input, dim)
    except BadArgument as error:
        raise error.renamed("softmax", NAMES) from None


def sparsemax(input: Tensor, dim: int = -1) -> Tensor:
    """The nearest point on the probability simplex: max(input - tau, 0), where tau makes the sum along dim 1.

    Args:
        input: float, of any shape.
        dim: the dimension that sums to 1; it may have any size.

    Returns:
        A tensor of the shape and dtype of input, in which small elements are exactly 0.
    """
    if not input.dim() or not -input.dim() <= dim < input.dim():
        expected = f"be a dimension of {{input}}, {tuple(input.shape)}"
        raise BadArgument.of("sparsemax", "dim", expected, str(dim), ValueError)
    last = dim in (-1, input.dim() - 1)
    try:
        y = sparsemax_spec.sparsemax(input if last else input.movedim(dim, -1))
    except BadArgument as error:
        raise error.renamed("sparsemax", NAMES) from None
    return y if last else y.movedim(-1, dim)


def relu_squared(input: Tensor) -> Tensor:
    """relu(input)^2.

    Args:
        input: float, of any shape.

    Returns:
        A tensor of the shape and dtype of input.
    """
    try:
        return activation.srelu(input)
    except BadArgument as error:
        raise error.renamed("relu_squared", NAMES) from None


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table: `torch.nn.functional.embedding`.

    Calls torch's embedding, because a lookup is only a copy, and torch sums the table's gradient in a fixed order, in
    float32.

    Args:
        input: int32 or int64 row numbers, of any shape.
        weight: float [rows, n].
        padding_idx: the row that gets no gradient.

    Returns:
        A tensor [*input.shape, n].
    """
    return F.embedding(input, weight, padding_idx)
