"""Elementwise and row-wise functions: `liger_kernel`'s relu_squared, softmax, sparsemax and embedding."""

# pyright: reportIncompatibleMethodOverride=false
# The arguments of forward have Liger's names.

from __future__ import annotations

from torch import Tensor

from ...functional import rows
from ...nn.rows import Embedding, ReLUSquared, Softmax, Sparsemax
from ...specs import activation
from .function import LigerFunction, functional
from .names import ops


class LigerReLUSquaredFunction(LigerFunction):
    """relu(x)^2."""

    @staticmethod
    def apply(X: Tensor) -> Tensor:
        return rows.relu_squared(X)


def relu_squared_forward(X: Tensor) -> Tensor:
    return activation.srelu(X)


def relu_squared_backward(X: Tensor, dY: Tensor) -> Tensor:
    return activation.srelu_bwd(dY, X)


def liger_relu_squared(x: Tensor) -> Tensor:
    return ops.LigerReLUSquaredFunction.apply(x)


class LigerReLUSquared(ReLUSquared):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return ops.LigerReLUSquaredFunction.apply(x)


class LigerSoftmaxFunction(LigerFunction):
    """Softmax of the last dimension, of any length."""

    @staticmethod
    def apply(input_: Tensor) -> Tensor:
        return rows.softmax(input_)


def liger_softmax(x: Tensor) -> Tensor:
    return ops.LigerSoftmaxFunction.apply(x)


class LigerSoftmax(Softmax):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return ops.LigerSoftmaxFunction.apply(x)


class LigerSparsemaxFunction(LigerFunction):
    """Sparsemax along a dimension, of any length."""

    @staticmethod
    def apply(x: Tensor, dim: int) -> Tensor:
        return rows.sparsemax(x, dim)


liger_sparsemax = functional("liger_sparsemax", LigerSparsemaxFunction, "input, dim=-1", input="x")


class LigerSparsemax(Sparsemax):
    def forward(self, x: Tensor) -> Tensor:
        return ops.LigerSparsemaxFunction.apply(x, self.dim)


class LigerEmbeddingFunction(LigerFunction):
    """Embedding: rows of a table, selected by index."""

    @staticmethod
    def apply(embeddings: Tensor, indices: Tensor) -> Tensor:
        return rows.embedding(indices, embeddings)


class LigerEmbedding(Embedding):
    """An embedding whose row `padding_idx` is 0 and has no gradient."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None):
        super().__init__(num_embeddings, embedding_dim, padding_idx)

    def forward(self, indices: Tensor) -> Tensor:
        rows = ops.LigerEmbeddingFunction.apply(self.weight, indices)
        return rows if self.padding_idx is None else rows.masked_fill((indices == self.padding_idx)[..., None], 0.0)
