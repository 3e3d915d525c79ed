"""ATen's depthwise convolutions, computed by our `convolution`.

ATen composes the entry points (`conv1d` to `conv_transpose3d`) from `convolution`. Left to torch: the ops that call
cuDNN, MIOpen and oneDNN (`cudnn_convolution`, ...), and `_convolution`, which only chooses one of those ops.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import convolution

Fn = Callable[..., Any]


@adapt("_conv_depthwise2d", "conv_depthwise3d", over=convolution.ops["convolution"])
def depthwise(
    call: Fn,
    self: Tensor,
    weight: Tensor,
    kernel_size: Sequence[int],
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """One group per channel. Declines an input without a batch dimension, or a kernel_size that is not the weight's."""
    if self.dim() != weight.dim() or list(kernel_size) != list(weight.shape[2:]):
        raise NotSupported("a tensor without a batch, or a kernel size that is not the weight's")
    none = [0] * len(kernel_size)
    return call(self, weight, bias, stride, padding, dilation, False, none, self.shape[1])
