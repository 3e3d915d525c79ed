"""Functions of each element or each row: `liger_kernel`'s relu_squared and softmax."""

from __future__ import annotations

from torch import Tensor, nn

from ...specs import activation, softmax
from .function import LigerFunction
from .names import ops


class LigerReLUSquaredFunction(LigerFunction):
    """relu(x) squared."""

    @staticmethod
    def apply(X: Tensor) -> Tensor:
        return activation.srelu(X)


def relu_squared_forward(X: Tensor) -> Tensor:
    return activation.srelu(X)


def relu_squared_backward(X: Tensor, dY: Tensor) -> Tensor:
    return activation.srelu_bwd(dY, X)


def liger_relu_squared(x: Tensor) -> Tensor:
    return ops.LigerReLUSquaredFunction.apply(x)


class LigerReLUSquared(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return ops.LigerReLUSquaredFunction.apply(x)


class LigerSoftmaxFunction(LigerFunction):
    """Softmax of the last dimension, of any length."""

    @staticmethod
    def apply(input_: Tensor) -> Tensor:
        return softmax.softmax(input_)


def liger_softmax(x: Tensor) -> Tensor:
    return ops.LigerSoftmaxFunction.apply(x)


class LigerSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return ops.LigerSoftmaxFunction.apply(x)
