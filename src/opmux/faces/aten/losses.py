"""ATen's log-sigmoid as one kernel with its gradient. The losses themselves are ops with ATen's own names.

Left to torch: losses over several classes with margins, and CTC.
"""

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
    """The second result is what the CPU's gradient reads; on CUDA it is empty."""
    if not self.is_contiguous():
        raise NotSupported("self is not contiguous, and torch's strides depend on the device")
    return call(self), self.new_empty(0) if self.is_cuda else torch.exp(-self.abs())


@adapt("log_sigmoid_backward", over=pointwise.ops["softplus_backward"])
def log_sigmoid_backward(call: Fn, grad_output: Tensor, self: Tensor, buffer: Tensor) -> Any:
    """grad * sigmoid(-x): softplus with a beta of -1."""
    if grad_output.dtype is not self.dtype:
        raise NotSupported("a gradient of another dtype")
    return call(grad_output, self, -1, math.inf)
