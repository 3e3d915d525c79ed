"""ATen's gated linear unit and its gradient: the first half of a dimension times the sigmoid of the second half.

All other activations are in the pointwise table. The gradient on CUDA is left to torch, whose kernel writes both halves
in place. Ours would write two tensors and concatenate them: it would read or write a half-size tensor 9 times instead
of 5.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import activation

Fn = Callable[..., Any]


def _dimension(x: Tensor, dim: int) -> int:
    """Return the dimension as a non-negative index; raise NotSupported if its size is odd."""
    rank = x.dim()
    if not -rank <= dim < rank or x.shape[dim] % 2:
        raise NotSupported(f"dimension {dim} of x {tuple(x.shape)} cannot be halved")
    return dim % rank


@adapt("glu", over=activation.sigmoid_mul)
def glu(call: Fn, self: Tensor, dim: int = -1) -> Any:
    axis = _dimension(self, dim)
    if not self.is_contiguous():
        raise NotSupported("x is not contiguous, and torch's result keeps its strides")
    shape = self.shape
    last = axis == len(shape) - 1
    # To split an inner dimension in half, flatten it with all later dimensions, and split the result in half.
    x = self if last else self.view(math.prod(shape[:axis]), math.prod(shape[axis:]))
    value, gate = x.tensor_split(2, -1)
    y = call(gate, value)
    return y if last else y.view(*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])


@adapt("glu_backward", over=activation.sigmoid_mul_bwd)
def glu_backward(call: Fn, grad_output: Tensor, self: Tensor, dim: int) -> Any:
    if self.is_cuda or grad_output.dtype is not self.dtype:
        raise NotSupported("torch's kernel writes both halves in place")
    axis = _dimension(self, dim)
    value, gate = self.tensor_split(2, axis)
    dgate, dvalue = call(grad_output, gate, value)
    return torch.cat((dvalue, dgate), axis)
