"""ATen's depthwise convolutions, by `convolution`; the entry points that call it (`conv1d` to `conv_transpose3d`) are
compositions.

Left to torch: what cuDNN, MIOpen and oneDNN are called by (`cudnn_convolution`, ...), and `_convolution`, which only
chooses among them.
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
    """Each channel is a group. Declines tensors without a batch, and kernel sizes that are not the weight's."""
    if self.dim() != weight.dim() or list(kernel_size) != list(weight.shape[2:]):
        raise NotSupported("a tensor without a batch, or a kernel size that is not the weight's")
    none = [0] * len(kernel_size)
    return call(self, weight, bias, stride, padding, dilation, False, none, self.shape[1])
