"""Attention residual, hyper-connections, multi-token and neighborhood attention of `liger_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ...functional import attention_variants
from ...nn.attention import MHC, MultiTokenAttention, NeighborhoodAttention
from ...specs import residual
from .function import LigerFunction, constructor, functional
from .names import ops

Size = int | tuple[int, int]

# ---- attention residual ----------------------------------------------------------------------------------------------


class LigerAttnResFunction(LigerFunction):
    """Attention over the outputs of N blocks, [N, ..., D] or a list of tensors [..., D]."""

    @staticmethod
    def apply(V_stacked: Tensor | Sequence[Tensor], w_query: Tensor, w_norm: Tensor, eps: float) -> Tensor:
        return attention_variants.attn_res(V_stacked, w_query, w_norm, eps)


def attn_res_forward(
    blocks: Tensor | Sequence[Tensor], w_query: Tensor, w_norm: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns h, the blocks as [N, tokens, D], the weights [tokens, N] and rstd [tokens, N]."""
    v = blocks if isinstance(blocks, Tensor) else torch.stack(tuple(blocks))
    rows = v.reshape(v.shape[0], -1, v.shape[-1])
    h, alpha, rstd = residual.attn_res(rows, w_query, w_norm, eps)
    return h.view(v.shape[1:]), rows, alpha.t(), rstd.t()


def attn_res_backward(
    dh: Tensor, V_3d: Tensor, w_query: Tensor, w_norm: Tensor, Alpha: Tensor, RSTD: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of the blocks [N, tokens, D], w_query and w_norm."""
    dy = dh.reshape(-1, dh.shape[-1])
    dv, dquery, dnorm = residual.attn_res_bwd(dy, V_3d, w_query, w_norm, Alpha.t().contiguous(), RSTD.t().contiguous())
    return dv, dquery, dnorm


liger_attn_res = functional("liger_attn_res", LigerAttnResFunction, "V, w_query, w_norm, eps=1e-6", V="V_stacked")


# ---- hyper-connections -----------------------------------------------------------------------------------------------


class LigerMHCCoeffsFunction(
    LigerFunction,
    calls=attention_variants.mhc_coeffs,
    takes="x, phi, b, alpha_pre, alpha_post, alpha_res, allow_fp32, tmax, rms_eps, pre_eps, sinkhorn_eps, post_mult",
):
    """Returns h_pre, h_post and h_res. `allow_fp32` has no effect: float32 is always allowed."""


class LigerMHCPreFunction(LigerFunction):
    """Combines several streams into one."""

    @staticmethod
    def apply(x: Tensor, h_pre: Tensor) -> Tensor:
        return attention_variants.mhc_pre(x, h_pre)


class LigerMHCPostResFunction(LigerFunction):
    """Mixes streams and adds a layer's output."""

    @staticmethod
    def apply(x: Tensor, f_out: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
        return attention_variants.mhc_post_res(x, f_out, h_post, h_res)


def liger_mhc_coeffs(
    x: Tensor,
    phi: Tensor,
    b: Tensor,
    alpha_pre: Tensor,
    alpha_post: Tensor,
    alpha_res: Tensor,
    *,
    allow_fp32: bool = False,
    tmax: int = 20,
    rms_eps: float = 1e-6,
    pre_eps: float = 0.0,
    sinkhorn_eps: float = 1e-6,
    post_mult: float = 2.0,
) -> tuple[Tensor, Tensor, Tensor]:
    options = allow_fp32, tmax, rms_eps, pre_eps, sinkhorn_eps, post_mult
    return ops.LigerMHCCoeffsFunction.apply(x, phi, b, alpha_pre, alpha_post, alpha_res, *options)


liger_mhc_pre = functional("liger_mhc_pre", LigerMHCPreFunction)
liger_mhc_post_res = functional("liger_mhc_post_res", LigerMHCPostResFunction)


def liger_mhc_apply(
    x: Tensor, f_out: Tensor, h_pre: Tensor, h_post: Tensor, h_res: Tensor, *, return_x_in: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    y = liger_mhc_post_res(x, f_out, h_post, h_res)
    return (y, liger_mhc_pre(x, h_pre)) if return_x_in else y


def liger_mhc_forward(
    x: Tensor,
    layer: Callable[[Tensor], Tensor],
    phi: Tensor,
    b: Tensor,
    alpha_pre: Tensor,
    alpha_post: Tensor,
    alpha_res: Tensor,
    *,
    allow_fp32: bool = False,
    tmax: int = 20,
    rms_eps: float = 1e-6,
    pre_eps: float = 0.0,
    sinkhorn_eps: float = 1e-6,
    post_mult: float = 2.0,
    return_coeffs: bool = False,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    return attention_variants.mhc_forward(
        x,
        layer,
        phi,
        b,
        alpha_pre,
        alpha_post,
        alpha_res,
        tmax=tmax,
        rms_eps=rms_eps,
        pre_eps=pre_eps,
        sinkhorn_eps=sinkhorn_eps,
        post_mult=post_mult,
        return_coeffs=return_coeffs,
    )


class LigerMHC(MHC):
    """A layer between several residual streams. `allow_fp32` has no effect: float32 is always allowed."""

    def __init__(
        self,
        layer: nn.Module,
        *,
        hc: int,
        c: int,
        tmax: int = 20,
        rms_eps: float = 1e-6,
        pre_eps: float = 0.0,
        sinkhorn_eps: float = 1e-6,
        post_mult: float = 2.0,
        phi_dtype: torch.dtype = torch.float16,
        allow_fp32: bool = False,
    ):
        super().__init__(
            layer,
            streams=hc,
            channels=c,
            tmax=tmax,
            rms_eps=rms_eps,
            pre_eps=pre_eps,
            sinkhorn_eps=sinkhorn_eps,
            post_mult=post_mult,
            phi_dtype=phi_dtype,
        )
        self.hc, self.c, self.allow_fp32 = hc, c, allow_fp32


# ---- multi-token and neighborhood attention --------------------------------------------------------------------------


class LigerMultiTokenAttentionFunction(LigerFunction):
    """A convolution over causal attention weights."""

    @staticmethod
    def apply(
        scores: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        sparse: bool = False,
    ) -> Tensor:
        return attention_variants.multi_token_attention(scores, weight, bias, stride, padding, dilation, groups, sparse)


liger_multi_token_attention = functional("liger_multi_token_attention", LigerMultiTokenAttentionFunction)


class LigerMultiTokenAttention(MultiTokenAttention):
    __init__ = constructor(
        MultiTokenAttention,
        "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, sparse=False",
    )

    def forward(self, scores: Tensor) -> Tensor:
        options = self.stride, self.padding, self.dilation, self.groups, self.sparse
        return ops.LigerMultiTokenAttentionFunction.apply(scores, self.weight, self.bias, *options)


class LigerFusedNeighborhoodAttentionFunction(LigerFunction):
    """Attention in which each position attends to a window of neighbors."""

    @staticmethod
    def apply(
        query: Tensor, key: Tensor, value: Tensor, kernel_size: int = 7, dilation: int = 1, scale: float | None = None
    ) -> Tensor:
        return attention_variants.neighborhood_attention(query, key, value, kernel_size, dilation, scale)


def fused_neighborhood_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: int = 7,
    dilation: int = 1,
    scale: float | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor, tuple[None, None, None]]:
    """Returns the result, the weights [batch, heads, length, length], and three times None."""
    if return_lse:
        raise BadArgument.of("fused_neighborhood_attention_forward", "return_lse", "be False", "True")
    options = kernel_size, dilation, scale
    output = attention_variants.neighborhood_attention(query, key, value, *options)
    # The weights are the result for the unit matrix as values, in slices that are as wide as the heads.
    length, width = key.shape[2], key.shape[3]
    unit = torch.eye(length, -(-length // width) * width, dtype=key.dtype, device=key.device)
    slices = (part.expand(*key.shape[:2], -1, -1).contiguous() for part in unit.split(width, -1))
    weights = torch.cat([attention_variants.neighborhood_attention(query, key, s, *options) for s in slices], -1)
    return output, weights[..., :length], (None, None, None)


liger_fused_neighborhood_attention = functional(
    "liger_fused_neighborhood_attention", LigerFusedNeighborhoodAttentionFunction
)


class LigerFusedNeighborhoodAttention(NeighborhoodAttention):
    """Self-attention to a window of neighbors, with its projections."""

    __init__ = constructor(
        NeighborhoodAttention,
        "hidden_size, num_heads, kernel_size=7, dilation=1, bias=True, dropout=0.0, scale=None",
    )

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            raise BadArgument.of(type(self).__name__, "attention_mask", "be None: there are no masks", "a mask")
        return super().forward(hidden_states)


class LigerFusedNeighborhoodAttentionLayer(nn.Module):
    """hidden_states + attention(layer_norm(hidden_states))."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        kernel_size: int = 7,
        dilation: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        layer_norm_eps: float = 1e-5,
        scale: float | None = None,
    ):
        super().__init__()
        options = kernel_size, dilation, bias, dropout, scale
        self.attention = LigerFusedNeighborhoodAttention(hidden_size, num_heads, *options)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return hidden_states + self.dropout(self.attention(self.layer_norm(hidden_states), attention_mask))


@dataclass(eq=False)
class LigerFusedNeighborhoodAttentionConfig:
    """The options of LigerFusedNeighborhoodAttentionLayer."""

    hidden_size: int = 768
    num_heads: int = 12
    kernel_size: int = 7
    dilation: int = 1
    bias: bool = True
    dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    scale: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))
