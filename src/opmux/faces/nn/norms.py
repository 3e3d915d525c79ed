"""Norms as modules. Their state dicts are those of the modules that they replace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ..functional import norms

INIT = {"ones": 1.0, "zeros": 0.0}
CASTINGS = ("gemma", "llama", "none")


class _RowNorm(nn.Module):
    """A weight of the last dimension, and where half precision is rounded."""

    weight: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting: str = "llama",
        init: str = "ones",
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        for name, value, allowed in (("init", init, INIT), ("casting", casting, CASTINGS)):
            if value not in allowed:
                expected = f"be one of {', '.join(map(repr, allowed))}"
                raise BadArgument.of(type(self).__name__, name, expected, repr(value), ValueError)
        self.hidden_size, self.eps, self.offset, self.casting, self.init = hidden_size, eps, offset, casting, init
        if elementwise_affine:
            self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
            self.reset_parameters()
        else:
            self.register_parameter("weight", None)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, INIT[self.init])

    def extra_repr(self) -> str:
        affine = "" if self.weight is not None else ", elementwise_affine=False"
        return f"{self.hidden_size}, eps={self.eps}, offset={self.offset}, casting={self.casting!r}{affine}"


class RMSNorm(_RowNorm):
    """`opmux.functional.rms_norm` with a weight.

    Args:
        hidden_size: the size of the last dimension.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight (Gemma).
        casting: where half precision is rounded: "llama", "gemma" or "none".
        init: the weight's first value: "ones" or "zeros".
        elementwise_affine: False for no weight.
    """

    def forward(self, input: Tensor) -> Tensor:
        return norms.rms_norm(input, self.weight, self.eps, self.offset, self.casting)


class AddRMSNorm(_RowNorm):
    """`opmux.functional.add_rms_norm` with a weight: the normalised sum, and the sum. The arguments are RMSNorm's."""

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(input, residual, self.weight, self.eps, self.offset, self.casting)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`, by `opmux.functional.layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return norms.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`, by `opmux.functional.group_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return norms.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
