"""Adapters for ATen's log-sigmoid, its gradient and addr, whose arguments differ from those of our pointwise ops."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import pointwise

Fn = Callable[..., Any]


@adapt("log_sigmoid_forward", over=pointwise.ops["log_sigmoid"])
def log_sigmoid(call: Fn, self: Tensor) -> Any:
    """The second result is a buffer for the gradient on the CPU; on CUDA it is empty."""
    if not self.is_contiguous():
        raise NotSupported("self is not contiguous, and torch's strides depend on the device")
    return call(self), self.new_empty(0) if self.is_cuda else torch.exp(-self.abs())


@adapt("log_sigmoid_backward", over=pointwise.ops["softplus_backward"])
def log_sigmoid_backward(call: Fn, grad_output: Tensor, self: Tensor, buffer: Tensor) -> Any:
    """grad * sigmoid(-x), computed as the gradient of softplus with beta = -1."""
    if grad_output.dtype is not self.dtype:
        raise NotSupported("a gradient of another dtype")
    return call(grad_output, self, -1, math.inf)


@adapt("addr", over=pointwise.ops["addcmul"])
def addr(call: Fn, self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """self + alpha * vec1 vec2^T. Calls that scale self too are left to torch."""
    if beta != 1 or vec1.dim() != 1 or vec2.dim() != 1 or self.shape != (vec1.numel(), vec2.numel()):
        raise NotSupported("beta is not 1, or shapes are broadcast")
    if not self.is_floating_point() or vec1.dtype is not self.dtype or vec2.dtype is not self.dtype:
        raise NotSupported("integers or several dtypes")
    if not self.is_contiguous():
        raise NotSupported("self is not contiguous, and torch's result is")
    return call(self, vec1[:, None], vec2, value=alpha)
