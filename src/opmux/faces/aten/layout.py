"""ATen's `trace`, computed as the sum of the diagonal.

Other layout ops and factories need no adapter: `specs.layout` and `specs.creation` have ATen's names and signatures.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import reduce

Fn = Callable[..., Any]


@adapt("trace", over=reduce.sum)
def trace(call: Fn, self: Tensor) -> Any:
    if self.dim() != 2 or self.dtype is torch.bool:
        raise NotSupported(f"the trace of {self.dtype} with {self.dim()} dimensions")
    return call(self.diagonal(), None, False, None)
