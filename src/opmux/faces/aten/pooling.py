"""Adapters for those gradients of ATen's pooling ops that another op of ours computes. All other pooling ops have
specs.

ATen composes `avg_pool1d`, `max_pool1d` and `adaptive_*_pool1d` from the two-dimensional ops.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...core import get_default_manager
from ...core.adapter import adapt
from ...specs import pooling

Fn = Callable[..., Any]


@adapt("max_pool2d_backward", over=pooling.ops["max_pool2d_with_indices_backward"])
def max_pool2d_backward(
    call: Fn,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    """torch does not pass the indices of the maxima, so they are computed again."""
    sizes = (list(kernel_size), list(stride), list(padding), list(dilation), ceil_mode)
    key = pooling.ops["max_pool2d_with_indices"].spec.key
    _, indices = get_default_manager().call(key, self, *sizes)
    return call(grad_output, self, *sizes, indices)


@adapt("adaptive_avg_pool3d_backward.grad_input", over=pooling.ops["_adaptive_avg_pool3d_backward"])
def adaptive_avg_pool3d_backward(call: Fn, grad_output: Tensor, self: Tensor) -> Any:
    return call(grad_output, self)
