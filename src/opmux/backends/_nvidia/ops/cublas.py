"""linear through cuBLAS, as torch calls it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ....specs import gemm as spec
from .tags import library


def _shaped(y: Tensor, x: Tensor) -> Tensor:
    """Rows as x has them. Not a view to autograd: that lets nobody write to a view that a custom function returns."""
    return y if x.dim() == 2 else torch.ops.aten._unsafe_view(y, (*x.shape[:-1], y.shape[-1]))


@library("linear", "cublas")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spec.check("linear", x, weight, bias)
    if x.dim() == 2:
        return F.linear(x, weight, bias)
    # of rows, too: with more dimensions torch may round the product before it adds the bias
    return _shaped(F.linear(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight, bias), x)


@library("linear_bwd", "cublas")
def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    spec.check("linear_bwd", x, weight, dy=dy)
    m, (n, k) = math.prod(x.shape[:-1]), weight.shape
    g = dy.to(x.dtype).reshape(m, n)
    return _shaped(torch.mm(g, weight), x), torch.mm(g.t(), x.reshape(m, k)), g.sum(0)
