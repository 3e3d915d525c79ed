"""Normalizations: `liger_kernel`'s layer_norm and group_norm.

`in_place=True`, Liger's default, allows a gradient to overwrite the incoming one. opmux never does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ...specs import channel_norm, norm
from .function import LigerFunction
from .names import ops

# The block and warps that Liger's forwards return for their backwards; opmux's kernels choose their own.
NO_BLOCK = None, None


class LigerLayerNormFunction(LigerFunction):
    """Layer normalization of the last dimension."""

    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
        return norm.layer_norm(X, W, B, eps)[0]


def layer_norm_forward(
    X: Tensor, W: Tensor, B: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
    """(Y, X, mean, rstd, None, None)."""
    y, mean, rstd = norm.layer_norm(X, W, B, eps)
    return y, X, mean, rstd, *NO_BLOCK


def layer_norm_backward(
    dY: Tensor, X: Tensor, W: Tensor, B: Tensor, Mean: Tensor, RSTD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of X, W and B."""
    dx, dw, db = norm.layer_norm_bwd(dY, X, W, Mean, RSTD)
    return dx, dw, db


class LigerGroupNormFunction(LigerFunction):
    """Group normalization of [batch, channels, ...]."""

    @staticmethod
    def apply(
        X: Tensor,
        affine_scaling_weight: Tensor,
        affine_shifting_bias: Tensor,
        num_channels: int,
        num_groups: int,
        eps: float,
    ) -> Tensor:
        _check_channels("LigerGroupNormFunction", X, num_channels)
        return channel_norm.group_norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps)[0]


def _check_channels(name: str, x: Tensor, num_channels: int) -> None:
    if x.dim() < 2 or x.shape[1] != num_channels:
        raise BadArgument.of(name, "X", f"have shape [batch, {num_channels}, ...]", str(tuple(x.shape)))


def group_norm_forward(
    X: Tensor, num_channels: int, num_groups: int, W: Tensor, B: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
    """(Y, X, mean, rstd, None)."""
    _check_channels("group_norm_forward", X, num_channels)
    y, mean, rstd = channel_norm.group_norm(X, num_groups, W, B, eps)
    return y, X, mean, rstd, None


def group_norm_backward(
    dY: Tensor, X: Tensor, W: Tensor, B: Tensor, Mean: Tensor, RSTD: Tensor, num_channels: int, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of X, W and B."""
    dx, dw, db = channel_norm.group_norm_bwd(dY, X, W, Mean, RSTD, num_groups)
    return dx, dw, db


def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
    return ops.LigerLayerNormFunction.apply(X, W, B, eps)


def liger_group_norm(
    X: Tensor,
    affine_scaling_weight: Tensor,
    affine_shifting_bias: Tensor,
    num_channels: int,
    num_groups: int,
    eps: float,
) -> Tensor:
    affine = affine_scaling_weight, affine_shifting_bias
    return ops.LigerGroupNormFunction.apply(X, *affine, num_channels, num_groups, eps)


# ---- modules ---------------------------------------------------------------------------------------------------------


def initial(name: str, init_fn: str, size: int) -> nn.Parameter:
    """A weight of ones or zeros."""
    if init_fn not in ("ones", "zeros"):
        raise BadArgument.of(name, "init_fn", "be 'ones' or 'zeros'", repr(init_fn))
    return nn.Parameter(torch.ones(size) if init_fn == "ones" else torch.zeros(size))


class LigerLayerNorm(nn.Module):
    """The bias starts at zero and is always a parameter; `bias` changes nothing."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"):
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps
        self.weight = initial("LigerLayerNorm", init_fn, hidden_size)
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.LigerLayerNormFunction.apply(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}"


class LigerGroupNorm(nn.Module):
    """The bias starts at zero and is always a parameter; `bias` changes nothing."""

    def __init__(
        self, num_channels: int, num_groups: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"
    ):
        super().__init__()
        if num_channels % num_groups:
            raise BadArgument.of("LigerGroupNorm", "num_channels", f"be a multiple of {num_groups}", str(num_channels))
        self.num_channels, self.num_groups, self.eps = num_channels, num_groups, eps
        self.weight = initial("LigerGroupNorm", init_fn, num_channels)
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        if hidden_states.dim() < 3:
            expected = "have at least 3 dimensions, [batch, channels, ...]"
            raise BadArgument.of("LigerGroupNorm", "hidden_states", expected, str(tuple(hidden_states.shape)))
        sizes = self.num_channels, self.num_groups, self.variance_epsilon
        return ops.LigerGroupNormFunction.apply(hidden_states, self.weight, self.bias, *sizes)

    def extra_repr(self) -> str:
        return f"{self.num_channels}, {self.num_groups}, eps={self.eps}"
