"""Normalizations: `liger_kernel`'s rms_norm and its relatives, layer_norm and group_norm.

`in_place=True`, Liger's default, allows the backward to overwrite the incoming gradient; opmux never does so.
"""

# pyright: reportIncompatibleMethodOverride=false
# The arguments of forward have Liger's names.

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ...functional import norms
from ...nn.norms import INIT, AddRMSNorm, DyT, GroupNorm, LayerNorm, ModulatedRMSNorm, PolyNorm, RMSNorm
from ...specs import channel_norm, norm, norm_variant
from ...specs._checks import check_choice
from .function import Alias, LigerFunction, constructor, functional
from .names import ops

# Liger's forwards return a block size and warps for their backwards; opmux's backwards do not need them.
NO_BLOCK = None, None


# ---- RMS norm --------------------------------------------------------------------------------------------------------

CASTINGS = {"llama": "llama", "gemma": "gemma", "none": "none", 0: "llama", 1: "gemma", -1: "none"}


def casting_of(name: str, mode: str | int) -> str:
    """The name of a casting mode; `mode` is its name or Liger's number."""
    check_choice(name, "casting_mode", mode, CASTINGS)
    return CASTINGS[mode]


class LigerRMSNormFunction(LigerFunction):
    """X * rsqrt(mean(X^2) + eps) * (offset + W); without W, the last factor is 1. `row_mode` has no effect."""

    @staticmethod
    def apply(
        X: Tensor,
        W: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> Tensor:
        casting = casting_of("LigerRMSNormFunction", casting_mode)
        return norms.rms_norm(X, W, eps, 0.0 if W is None else offset, casting)


def rms_norm_forward(
    X: Tensor, W: Tensor | None, eps: float, offset: float, casting_mode: str | int, row_mode: bool | None
) -> tuple[Tensor, Tensor, Tensor, None, None, str]:
    """Returns (Y, X, rstd, None, None, casting_mode)."""
    casting = casting_of("rms_norm_forward", casting_mode)
    weight, offset = _affine(X, W, offset)
    y, rstd = norm.rms_norm(X, weight, eps, offset, casting)
    return y, X, rstd, *NO_BLOCK, casting


def rms_norm_backward(
    dY: Tensor,
    X: Tensor,
    W: Tensor | None,
    RSTD: Tensor,
    offset: float,
    casting_mode: str | int,
    BLOCK_SIZE: int | None,
    num_warps: int | None,
    in_place: bool,
    row_mode: bool | None,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of X and W."""
    weight, offset = _affine(X, W, offset)
    dx, dw = norm.rms_norm_bwd(dY, X, weight, RSTD, offset, casting_of("rms_norm_backward", casting_mode))
    return dx, None if W is None else dw


def _affine(x: Tensor, weight: Tensor | None, offset: float) -> tuple[Tensor, float]:
    return (x.new_ones(x.shape[-1:]), 0.0) if weight is None else (weight, offset)


class LigerFusedAddRMSNormFunction(LigerFunction):
    """Returns the RMS norm of X + R, and X + R."""

    @staticmethod
    def apply(
        X: Tensor,
        R: Tensor,
        W: Tensor,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = False,
    ) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(X, R, W, eps, offset, casting_of("LigerFusedAddRMSNormFunction", casting_mode))


def fused_add_rms_norm_forward(
    X: Tensor, R: Tensor, W: Tensor, eps: float, offset: float, casting_mode: str | int
) -> tuple[Tensor, Tensor, Tensor, None, None, None, str]:
    """Returns (Y, X + R, rstd, None, None, None, casting_mode)."""
    casting = casting_of("fused_add_rms_norm_forward", casting_mode)
    y, total, rstd = norm.add_rms_norm(X, R, W, eps, offset, casting)
    return y, total, rstd, *NO_BLOCK, None, casting


def fused_add_rms_norm_backward(
    dY: Tensor,
    dS_out: Tensor,
    S: Tensor,
    W: Tensor,
    RSTD: Tensor,
    offset: float,
    casting_mode: str | int,
    BLOCK_SIZE: int | None,
    num_warps: int | None,
    num_stages: int | None,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of X, R and W; the first two are equal."""
    casting = casting_of("fused_add_rms_norm_backward", casting_mode)
    dx, dr, dw = norm.add_rms_norm_bwd(dY, dS_out, S, W, RSTD, offset, casting)
    return dx, dr, dw


def liger_rms_norm(
    X: Tensor,
    W: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> Tensor:
    return ops.LigerRMSNormFunction.apply(X, W, eps, offset, casting_mode, in_place)


def liger_fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> tuple[Tensor, Tensor]:
    return ops.LigerFusedAddRMSNormFunction.apply(X, R, W, eps, offset, casting_mode, in_place)


# ---- modulated RMS norm, PolyNorm, dynamic tanh ----------------------------------------------------------------------


class LigerModulatedRMSNormFunction(LigerFunction):
    """rms_norm(X) * (1 + scale) + shift. Each row of scale and shift applies to the same number of rows of X."""

    @staticmethod
    def apply(
        X: Tensor,
        W: Tensor | None,
        scale: Tensor,
        shift: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
    ) -> Tensor:
        casting = casting_of("LigerModulatedRMSNormFunction", casting_mode)
        weight, offset = _affine(X, W, offset)
        return norm_variant.modulated_rms_norm(X, weight, *_groups(X, scale, shift), eps, offset, casting)[0]


def _groups(x: Tensor, scale: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
    n = x.shape[-1]
    return scale.reshape(-1, n), None if shift is None else shift.reshape(-1, n)


def modulated_rms_norm_forward(
    X: Tensor,
    W: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    offset: float,
    casting_mode: str | int,
) -> tuple[Tensor, Tensor, None, None, str, int]:
    """Returns (Y, rstd, None, None, casting_mode, rows of X for each row of scale)."""
    casting = casting_of("modulated_rms_norm_forward", casting_mode)
    weight, offset = _affine(X, W, offset)
    y, rstd = norm_variant.modulated_rms_norm(X, weight, *_groups(X, scale, shift), eps, offset, casting)
    return y, rstd, *NO_BLOCK, casting, X.numel() // max(1, scale.numel())


def modulated_rms_norm_backward(
    dY: Tensor,
    X: Tensor,
    W: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    RSTD: Tensor,
    offset: float,
    casting_mode: str | int,
    BLOCK_SIZE: int | None,
    num_warps: int | None,
    rows_per_modulation: int,
    in_place: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """The gradients of X, W, scale and shift."""
    casting = casting_of("modulated_rms_norm_backward", casting_mode)
    weight, offset = _affine(X, W, offset)
    groups, _ = _groups(X, scale, None)
    dx, dw, dscale, dshift = norm_variant.modulated_rms_norm_bwd(dY, X, weight, groups, RSTD, offset, casting)
    dshift = None if shift is None else dshift.view(shift.shape)
    return dx, None if W is None else dw, dscale.view(scale.shape), dshift


liger_modulated_rms_norm = functional(
    "liger_modulated_rms_norm",
    LigerModulatedRMSNormFunction,
    "X, W, scale, shift=None, eps=1e-6, offset, casting_mode, in_place",
)


class LigerPolyNormFunction(LigerFunction):
    """W[0] * n(X^3) + W[1] * n(X^2) + W[2] * n(X) + B, where n is an RMS norm without a weight."""

    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6, in_place: bool = True) -> Tensor:
        return norms.poly_norm(X, W, B, eps)


def poly_norm_forward(X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor, None, None]:
    """Returns (Y, X, rstd, None, None)."""
    y, rstd = norm_variant.poly_norm(X, W, B, eps)
    return y, X, rstd, *NO_BLOCK


def poly_norm_backward(
    dY: Tensor,
    X: Tensor,
    W: Tensor,
    RSTD: Tensor,
    BLOCK_SIZE: int | None,
    num_warps: int | None,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of X, W and B."""
    dx, dw, db = norm_variant.poly_norm_bwd(dY, X, W, W.new_zeros(()), RSTD)
    return dx, dw, db


liger_poly_norm = functional("liger_poly_norm", LigerPolyNormFunction)


class LigerDyTFunction(LigerFunction):
    """tanh(alpha * x) * gamma + beta."""

    @staticmethod
    def apply(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:
        return norms.dyt(x, alpha, gamma, beta)


def liger_dyt_fwd(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:
    return norm_variant.dyt(x, alpha, gamma, beta)


def liger_dyt_bwd(
    dy: Tensor, x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of x, alpha, gamma and beta."""
    dx, dalpha, dgamma, dbeta = norm_variant.dyt_bwd(dy, x, alpha, gamma)
    return dx, dalpha, dgamma, None if beta is None else dbeta


liger_dyt = functional("liger_dyt", LigerDyTFunction)


# ---- layer and group norm --------------------------------------------------------------------------------------------


class LigerLayerNormFunction(LigerFunction):
    """Layer normalization of the last dimension."""

    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
        return norm.layer_norm(X, W, B, eps)[0]


def layer_norm_forward(
    X: Tensor, W: Tensor, B: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
    """Returns (Y, X, mean, rstd, None, None)."""
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
    """Returns (Y, X, mean, rstd, None)."""
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


liger_group_norm = functional("liger_group_norm", LigerGroupNormFunction)


# ---- modules ---------------------------------------------------------------------------------------------------------


class LigerRowNorm(nn.Module):
    """Adds Liger's options to an RMS norm of `opmux.nn`, which is the second base of each subclass."""

    variance_epsilon = Alias("eps")

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        elementwise_affine: bool = True,
    ):
        casting = casting_of(type(self).__name__, casting_mode)
        try:
            super().__init__(hidden_size, eps, offset, casting, init_fn, elementwise_affine)  # pyright: ignore[reportCallIssue]
        except BadArgument as error:
            raise error.renamed(error.op, {"init": "init_fn"}) from None
        self.casting_mode, self.in_place, self.elementwise_affine = casting_mode, in_place, elementwise_affine


class LigerRMSNorm(LigerRowNorm, RMSNorm):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine)
        self.row_mode = row_mode

    def forward(self, hidden_states: Tensor) -> Tensor:
        options = self.eps, self.offset, self.casting_mode, self.in_place, self.row_mode
        return ops.LigerRMSNormFunction.apply(hidden_states, self.weight, *options)

    def extra_repr(self) -> str:
        shape = None if self.weight is None else tuple(self.weight.shape)
        return f"weight_shape={shape}, eps={self.eps}, offset={self.offset}"


class LigerRMSNormForGemma(LigerRMSNorm):
    __init__ = constructor(
        LigerRMSNorm,
        "hidden_size, eps=1e-6, offset=1.0, casting_mode='gemma', init_fn='zeros', in_place=True, row_mode=None",
    )


class LigerRMSNormForGemma2(LigerRMSNorm):
    __init__ = constructor(
        LigerRMSNorm,
        "hidden_size, eps=1e-6, offset=1.0, casting_mode='gemma', init_fn='zeros', in_place=False, row_mode=None",
    )


class LigerRMSNormForQwen3Next(LigerRMSNormForGemma2):
    pass


class LigerRMSNormForGemma3(LigerRMSNorm):
    __init__ = constructor(
        LigerRMSNorm,
        "dim, eps=1e-6, offset=1.0, casting_mode='gemma', init_fn='zeros', in_place=False",
        dim="hidden_size",
    )


class LigerRMSNormForGemma4(LigerRMSNorm):
    """An RMS norm that has no weight if `with_scale` is False."""

    __init__ = constructor(
        LigerRMSNorm,
        "dim, eps=1e-6, offset=0.0, casting_mode='gemma', init_fn='ones', in_place=False, with_scale=True",
        dim="hidden_size",
        with_scale="elementwise_affine",
    )
    with_scale = Alias("elementwise_affine")


class LigerRMSNormForOlmo2(LigerRMSNorm):
    __init__ = constructor(
        LigerRMSNorm,
        "hidden_size, eps=1e-6, offset=0.0, casting_mode='llama', init_fn='ones', in_place=False, row_mode=None",
    )


class LigerRMSNormForGlm4(LigerRMSNormForOlmo2):
    pass


class LigerFusedAddRMSNorm(LigerRowNorm, AddRMSNorm):
    """Returns the RMS norm of hidden_states + residual, and the sum."""

    __init__ = constructor(
        LigerRowNorm,
        "hidden_size, eps=1e-6, offset=0.0, casting_mode='llama', init_fn='ones', in_place=False",
    )

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        options = self.eps, self.offset, self.casting_mode, self.in_place
        return ops.LigerFusedAddRMSNormFunction.apply(hidden_states, residual, self.weight, *options)


class LigerModulatedRMSNorm(LigerRowNorm, ModulatedRMSNorm):
    """rms_norm(hidden_states) * (1 + scale) + shift."""

    def forward(self, hidden_states: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        options = self.eps, self.offset, self.casting_mode, self.in_place
        return ops.LigerModulatedRMSNormFunction.apply(hidden_states, self.weight, scale, shift, *options)


class LigerPolyNorm(PolyNorm):
    variance_epsilon = Alias("eps")

    def __init__(self, eps: float = 1e-6, in_place: bool = True):
        super().__init__(eps)
        self.bias = nn.Parameter(torch.tensor(1.0))  # a scalar, as in Liger's state dicts
        self.in_place = in_place

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.LigerPolyNormFunction.apply(hidden_states, self.weight, self.bias, self.eps, self.in_place)


class LigerDyT(DyT):
    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5):
        super().__init__(hidden_size, beta, init_alpha)

    def forward(self, x: Tensor) -> Tensor:
        return ops.LigerDyTFunction.apply(x, self.alpha, self.gamma, self.beta)


def check_init(name: str, init_fn: str) -> None:
    if init_fn not in INIT:
        raise BadArgument.of(name, "init_fn", "be 'ones' or 'zeros'", repr(init_fn))


class LigerLayerNorm(LayerNorm):
    """The bias starts at zero and is always a parameter; `bias` has no effect."""

    variance_epsilon = Alias("eps")

    def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"):
        check_init("LigerLayerNorm", init_fn)
        super().__init__(hidden_size, eps)
        nn.init.constant_(self.weight, INIT[init_fn])
        self.hidden_size = hidden_size

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.LigerLayerNormFunction.apply(hidden_states, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}"


class LigerGroupNorm(GroupNorm):
    """The bias starts at zero and is always a parameter; `bias` has no effect."""

    variance_epsilon = Alias("eps")

    def __init__(
        self, num_channels: int, num_groups: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"
    ):
        check_init("LigerGroupNorm", init_fn)
        if num_channels % num_groups:
            raise BadArgument.of("LigerGroupNorm", "num_channels", f"be a multiple of {num_groups}", str(num_channels))
        super().__init__(num_groups, num_channels, eps)
        nn.init.constant_(self.weight, INIT[init_fn])

    def forward(self, hidden_states: Tensor) -> Tensor:
        if hidden_states.dim() < 3:
            expected = "have at least 3 dimensions, [batch, channels, ...]"
            raise BadArgument.of("LigerGroupNorm", "hidden_states", expected, str(tuple(hidden_states.shape)))
        sizes = self.num_channels, self.num_groups, self.eps
        return ops.LigerGroupNormFunction.apply(hidden_states, self.weight, self.bias, *sizes)

    def extra_repr(self) -> str:
        return f"{self.num_channels}, {self.num_groups}, eps={self.eps}"
