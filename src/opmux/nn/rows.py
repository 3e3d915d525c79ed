"""Softmax, sparsemax, squared ReLU and embedding as modules."""

from __future__ import annotations

from torch import Tensor, nn

from ..functional import rows


class Softmax(nn.Module):
    """`opmux.functional.softmax` along a dimension."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return rows.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Sparsemax(nn.Module):
    """`opmux.functional.sparsemax` along a dimension."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return rows.sparsemax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class ReLUSquared(nn.Module):
    """`opmux.functional.relu_squared`."""

    def forward(self, input: Tensor) -> Tensor:
        return rows.relu_squared(input)


class Embedding(nn.Embedding):
    """`torch.nn.Embedding`, for code that imports it by this name. Its gradient is the same in every run."""
