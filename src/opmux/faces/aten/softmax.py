"""ATen's softmax and log-softmax, and their gradients. What the primitives' specs refuse is torch's to judge.

Left to torch: halves that become floats on the way (`half_to_float`), which it does in one kernel and ours would do in
two. `_safe_softmax` is made of `_softmax`, and comes here by it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import softmax

Fn = Callable[..., Any]
REFUSED = (TypeError, ValueError)


def leave(op: str, x: Tensor, dim: int, **like: Any) -> None:
    """Decline what the spec of a primitive refuses; what it does not was an error of the implementation."""
    try:
        softmax.check(op, x, dim, **like)
    except REFUSED as error:
        raise NotSupported(str(error)) from None


def forward(op: str) -> Fn:
    def fn(call: Fn, self: Tensor, dim: int, half_to_float: bool) -> Any:
        if half_to_float:
            raise NotSupported("halves that become floats are one kernel of torch's, and two of ours")
        try:
            return call(self, dim)
        except REFUSED:
            leave(op, self, dim)
            raise

    return fn


def backward(op: str) -> Fn:
    def fn(call: Fn, grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        if grad_output.dtype is not input_dtype or output.dtype is not input_dtype:
            raise NotSupported("gradients of another dtype than the input are torch's to judge")
        try:
            return call(grad_output, output, dim)
        except REFUSED:
            leave(op, output, dim, dy=grad_output)
            raise

    return fn


for _make, _op, _overload in (
    (forward, "softmax", "_softmax"),
    (forward, "log_softmax", "_log_softmax"),
    (backward, "softmax_bwd", "_softmax_backward_data"),
    (backward, "log_softmax_bwd", "_log_softmax_backward_data"),
):
    adapt(_overload, over=getattr(softmax, _op))(_make(_op))
