"""Norms as modules. Their state dicts are the same as those of the modules that they replace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import BadArgument
from ..functional import norms

INIT = {"ones": 1.0, "zeros": 0.0}
CASTINGS = ("gemma", "llama", "none")


class _RowNorm(nn.Module):
    """Base class of norms over the last dimension, with a weight and the option `casting`."""

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
        casting: what is rounded to half precision, as in `rms_norm`: "llama", "gemma" or "none".
        init: how the weight is initialized: "ones" or "zeros".
        elementwise_affine: False for no weight.
    """

    def forward(self, input: Tensor) -> Tensor:
        return norms.rms_norm(input, self.weight, self.eps, self.offset, self.casting)


class AddRMSNorm(_RowNorm):
    """`opmux.functional.add_rms_norm` with a weight. Returns (normalised sum, sum). Arguments as in RMSNorm."""

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(input, residual, self.weight, self.eps, self.offset, self.casting)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`, computed by `opmux.functional.layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return norms.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`, computed by `opmux.functional.group_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return norms.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class ModulatedRMSNorm(_RowNorm):
    """`opmux.functional.modulated_rms_norm` with a weight. Arguments as in RMSNorm."""

    def forward(self, input: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        return norms.modulated_rms_norm(input, self.weight, scale, shift, self.eps, self.offset, self.casting)


class PolyNorm(nn.Module):
    """`opmux.functional.poly_norm` with three weights, initialized to 1/3, and a bias, initialized to 1."""

    def __init__(self, eps: float = 1e-6, device: Any = None, dtype: torch.dtype | None = None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(3, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1 / 3)
        nn.init.ones_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return norms.poly_norm(input, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


class DyT(nn.Module):
    """`opmux.functional.dyt` with alpha [1], gamma [hidden_size] (ones) and, if beta is True, beta (zeros)."""

    beta: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        beta: bool = True,
        init_alpha: float = 0.5,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.hidden_size, self.init_alpha = hidden_size, init_alpha
        new = lambda n: nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.alpha, self.gamma = new(1), new(hidden_size)
        self.register_parameter("beta", new(hidden_size) if beta else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.init_alpha)
        nn.init.ones_(self.gamma)
        if self.beta is not None:
            nn.init.zeros_(self.beta)

    def forward(self, input: Tensor) -> Tensor:
        return norms.dyt(input, self.alpha, self.gamma, self.beta)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, init_alpha={self.init_alpha}, beta={self.beta is not None}"
