"""ATen's softmax and log-softmax, and their gradients.

`half_to_float` is left to torch, which computes it in one kernel; we would launch two. `_safe_softmax` calls
`_softmax`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import softmax

Fn = Callable[..., Any]


def forward(call: Fn, self: Tensor, dim: int, half_to_float: bool) -> Any:
    if half_to_float:
        raise NotSupported("half_to_float is one kernel in torch, and two of ours")
    return call(self, dim)


def backward(call: Fn, grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    if grad_output.dtype is not input_dtype or output.dtype is not input_dtype:
        raise NotSupported("gradients of another dtype than the input are left to torch")
    return call(grad_output, output, dim)


for _fn, _op, _overload in (
    (forward, softmax.softmax, "_softmax"),
    (forward, softmax.log_softmax, "_log_softmax"),
    (backward, softmax.softmax_bwd, "_softmax_backward_data"),
    (backward, softmax.log_softmax_bwd, "_log_softmax_backward_data"),
):
    adapt(_overload, over=_op)(_fn)
