"""Hyper-connections, multi-token attention and neighborhood attention as modules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..core.errors import BadArgument
from ..functional import attention_variants as functional


class MHC(nn.Module):
    """Runs a layer between several residual streams (manifold-constrained hyper-connections, see `mhc_forward`).

    Args:
        layer: a module that takes and returns [..., channels].
        streams: the number of streams.
        channels: the size of a stream.
        tmax: as in `mhc_coeffs`, like all arguments that are not listed here.
        phi_dtype: the dtype of phi; None for the dtype of the layer's first parameter.

    Parameters: phi [streams * channels, streams^2 + 2 * streams], b, alpha_pre, alpha_post and alpha_res in float32.
    """

    def __init__(
        self,
        layer: nn.Module,
        *,
        streams: int,
        channels: int,
        tmax: int = 20,
        rms_eps: float = 1e-6,
        pre_eps: float = 0.0,
        sinkhorn_eps: float = 1e-6,
        post_mult: float = 2.0,
        phi_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.layer, self.streams, self.channels = layer, streams, channels
        self.tmax, self.rms_eps, self.pre_eps = tmax, rms_eps, pre_eps
        self.sinkhorn_eps, self.post_mult = sinkhorn_eps, post_mult
        like = next(layer.parameters(), None)
        device = None if like is None else like.device
        if phi_dtype is None:
            phi_dtype = torch.get_default_dtype() if like is None else like.dtype
        size = streams * streams + 2 * streams
        self.phi = nn.Parameter(torch.empty(streams * channels, size, dtype=phi_dtype, device=device))
        self.b = nn.Parameter(torch.empty(size, dtype=torch.float32, device=device))
        one = lambda: nn.Parameter(torch.empty((), dtype=torch.float32, device=device))
        self.alpha_pre, self.alpha_post, self.alpha_res = one(), one(), one()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.phi, std=0.02)
        nn.init.zeros_(self.b)
        for alpha in (self.alpha_pre, self.alpha_post, self.alpha_res):
            nn.init.ones_(alpha)

    def forward(self, x: Tensor) -> Tensor:
        """Takes and returns [..., streams, channels]."""
        if tuple(x.shape[-2:]) != (self.streams, self.channels):
            expected = f"have shape [..., {self.streams}, {self.channels}]"
            raise BadArgument.of("MHC", "x", expected, str(tuple(x.shape)), ValueError)
        y = functional.mhc_forward(
            x,
            self.layer,
            self.phi,
            self.b,
            self.alpha_pre,
            self.alpha_post,
            self.alpha_res,
            tmax=self.tmax,
            rms_eps=self.rms_eps,
            pre_eps=self.pre_eps,
            sinkhorn_eps=self.sinkhorn_eps,
            post_mult=self.post_mult,
        )
        assert isinstance(y, Tensor)
        return y

    def extra_repr(self) -> str:
        return f"streams={self.streams}, channels={self.channels}, tmax={self.tmax}"


class MultiTokenAttention(nn.Module):
    """`multi_token_attention`, with the parameters of its convolution; maps attention scores to weights.

    Args:
        in_channels: the channels (heads) of the scores.
        out_channels: the channels of the result.
        kernel_size: as in `torch.nn.Conv2d`, like all arguments that are not listed here.
        sparse: use sparsemax instead of softmax.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        pair = lambda value: (value, value) if isinstance(value, int) else tuple(value)
        self.in_channels, self.out_channels, self.groups, self.sparse = in_channels, out_channels, groups, sparse
        self.kernel_size, self.stride = pair(kernel_size), pair(stride)
        self.padding, self.dilation = pair(padding), pair(dilation)
        new = lambda *shape: nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.weight = new(out_channels, in_channels // groups, *self.kernel_size)
        self.bias = new(out_channels) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, scores: Tensor) -> Tensor:
        """Maps scores [batch, in_channels, length, length] to weights [batch, out_channels, length', length']."""
        options = self.stride, self.padding, self.dilation, self.groups, self.sparse
        return functional.multi_token_attention(scores, self.weight, self.bias, *options)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{text}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}, sparse={self.sparse}"


class NeighborhoodAttention(nn.Module):
    """Self-attention to a window of neighbors, with projections; see `neighborhood_attention`.

    Args:
        hidden_size: the size of the last dimension.
        num_heads: the number of heads; it divides hidden_size.
        kernel_size: the size of the window, odd.
        dilation: the distance between neighbors.
        bias: whether the projections have a bias.
        dropout: applied to the result of the attention, before out_proj.
        scale: multiplies the scores; 1 / sqrt(hidden_size / num_heads) if it is None.

    Parameters: q_proj, k_proj, v_proj and out_proj, each an `nn.Linear`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        kernel_size: int = 7,
        dilation: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        for argument, valid, expected, value in (
            ("num_heads", num_heads > 0 and hidden_size % num_heads == 0, f"divide {hidden_size}", num_heads),
            ("kernel_size", kernel_size > 0 and kernel_size % 2 == 1, "be odd", kernel_size),
            ("dilation", dilation > 0, "be at least 1", dilation),
        ):
            if not valid:
                raise BadArgument.of("NeighborhoodAttention", argument, expected, str(value), ValueError)
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, hidden_size // num_heads
        self.kernel_size, self.dilation, self.scale = kernel_size, dilation, scale
        new = lambda: nn.Linear(hidden_size, hidden_size, bias, device, dtype)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = new(), new(), new(), new()
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Takes and returns [batch, length, hidden_size]."""
        heads = lambda x: x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        q, k, v = (heads(proj(hidden_states)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        y = functional.neighborhood_attention(q, k, v, self.kernel_size, self.dilation, self.scale)
        return self.out_proj(self.dropout(y.transpose(1, 2).flatten(2)))

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, kernel_size={self.kernel_size}, dilation={self.dilation}"
