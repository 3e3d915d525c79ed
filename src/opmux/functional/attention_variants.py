"""Attention residuals, hyper-connections, multi-token attention and neighborhood attention.

No function modifies its arguments or synchronizes with the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.entry import transforms_active
from ..core.errors import BadArgument
from ..specs import gemm, neighborhood, residual, softmax, sparsemax

# ---- attention residual ---------------------------------------------------------------------------------------------


def attn_res(V: Tensor | Sequence[Tensor], w_query: Tensor, w_norm: Tensor, eps: float = 1e-6) -> Tensor:
    """Attention over the outputs of earlier blocks instead of their sum: h = sum over i of alpha_i V_i.

    alpha = softmax over i of w_query . RMSNorm(V_i) (https://arxiv.org/abs/2603.15031).

    Args:
        V: the outputs of N blocks, float [N, ..., hidden], or a list of N tensors [..., hidden].
        w_query: float [hidden].
        w_norm: the weight of the norm, float [hidden].
        eps: added to the mean square in the norm.

    Returns:
        h [..., hidden], of the dtype of V: computed in float32 (float64 for float64) and rounded once.
    """
    if not isinstance(V, Tensor):
        if not V:
            raise BadArgument.of("attn_res", "V", "have at least one block", "none", ValueError)
        V = torch.stack(tuple(V))
    return residual.attn_res(V, w_query, w_norm, eps)[0]


# ---- hyper-connections ----------------------------------------------------------------------------------------------


def mhc_coeffs(
    x: Tensor,
    phi: Tensor,
    b: Tensor,
    alpha_pre: Tensor,
    alpha_post: Tensor,
    alpha_res: Tensor,
    *,
    tmax: int = 20,
    rms_eps: float = 1e-6,
    pre_eps: float = 0.0,
    sinkhorn_eps: float = 1e-6,
    post_mult: float = 2.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients of manifold-constrained hyper-connections (https://arxiv.org/abs/2512.24880).

    With m = flat(x) phi / rms(flat(x)), in three parts of S, S and S * S columns:
    h_pre = sigmoid(alpha_pre m_pre + b_pre) + pre_eps, h_post = post_mult * sigmoid(alpha_post m_post + b_post),
    h_res = Sinkhorn(alpha_res m_res + b_res): softmax over rows, then normalize columns and rows alternately.

    Args:
        x: the streams of each token, float [..., S, C].
        phi: float [S * C, S * S + 2 * S].
        b: float [S * S + 2 * S].
        alpha_pre: one element.
        alpha_post: one element.
        alpha_res: one element.
        tmax: how many times columns are divided by their sums.
        rms_eps: added to the mean square of x.
        pre_eps: added to h_pre.
        sinkhorn_eps: added to the softmax, and to each sum of a row or column.
        post_mult: multiplies h_post.

    Returns:
        h_pre and h_post [..., S], h_res [..., S, S] with a row for each output stream; all in float32 (float64 for
        float64).
    """
    _check_streams("mhc_coeffs", x)
    *lead, streams, channels = x.shape
    size = streams * streams + 2 * streams
    if tuple(phi.shape) != (streams * channels, size):
        expected = f"have shape {(streams * channels, size)}, as {{x}} is {tuple(x.shape)}"
        raise BadArgument.of("mhc_coeffs", "phi", expected, str(tuple(phi.shape)), ValueError)
    if tuple(b.shape) != (size,):
        raise BadArgument.of("mhc_coeffs", "b", f"have shape {(size,)}", str(tuple(b.shape)), ValueError)
    if tmax < 1:
        raise BadArgument.of("mhc_coeffs", "tmax", "be at least 1", str(tmax), ValueError)
    mix = normed_product(x.reshape(-1, streams * channels), phi, rms_eps)
    pre, post, logits = mhc_logits(mix, b, alpha_pre, alpha_post, alpha_res, streams)
    h_pre = torch.sigmoid(pre) + pre_eps
    h_post = torch.sigmoid(post) * post_mult
    h_res = residual.sinkhorn(logits, tmax, sinkhorn_eps)
    return h_pre.view(*lead, streams), h_post.view(*lead, streams), h_res.view(*lead, streams, streams)


def mhc_logits(
    mix: Tensor, b: Tensor, alpha_pre: Tensor, alpha_post: Tensor, alpha_res: Tensor, streams: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of mhc_coeffs' sigmoids [rows, S], [rows, S] and of its Sinkhorn [rows, S, S]; mix is x phi / rms.

    Args:
        mix: float [rows, S * S + 2 * S].
        b: as in mhc_coeffs.
        alpha_pre: as in mhc_coeffs.
        alpha_post: as in mhc_coeffs.
        alpha_res: as in mhc_coeffs.
        streams: S.
    """
    sizes = [streams, streams, streams * streams]
    scales = (a.reshape(()).to(mix.dtype) for a in (alpha_pre, alpha_post, alpha_res))
    parts = zip(mix.split(sizes, -1), scales, b.to(mix.dtype).split(sizes), strict=True)
    pre, post, mixed = (part * scale + shift for part, scale, shift in parts)
    return pre, post, mixed.view(-1, streams, streams)


def mhc_pre(x: Tensor, h_pre: Tensor) -> Tensor:
    """Combine the streams into one: sum over i of h_pre[..., i] x[..., i, :].

    Args:
        x: float [..., S, C].
        h_pre: float [..., S].

    Returns:
        [..., C], of the dtype of x.
    """
    return residual.mhc_pre(x, h_pre)


def mhc_post_res(x: Tensor, f_out: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
    """Mix the streams and add a layer's output: y_o = sum over i of h_res[..., o, i] x_i + h_post[..., o] f_out.

    Args:
        x: float [..., S, C].
        f_out: float [..., C].
        h_post: float [..., S].
        h_res: float [..., S, S].

    Returns:
        y, like x.
    """
    return residual.mhc_post_res(x, f_out, h_post, h_res)


def mhc_apply(
    x: Tensor, f_out: Tensor, h_pre: Tensor, h_post: Tensor, h_res: Tensor, *, return_x_in: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """mhc_post_res(x, f_out, h_post, h_res); with return_x_in also mhc_pre(x, h_pre)."""
    y = mhc_post_res(x, f_out, h_post, h_res)
    return (y, mhc_pre(x, h_pre)) if return_x_in else y


def mhc_forward(
    x: Tensor,
    layer: Callable[[Tensor], Tensor],
    phi: Tensor,
    b: Tensor,
    alpha_pre: Tensor,
    alpha_post: Tensor,
    alpha_res: Tensor,
    *,
    tmax: int = 20,
    rms_eps: float = 1e-6,
    pre_eps: float = 0.0,
    sinkhorn_eps: float = 1e-6,
    post_mult: float = 2.0,
    return_coeffs: bool = False,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Run a layer between residual streams: mhc_coeffs, mhc_pre, the layer, mhc_post_res.

    Args:
        x: float [..., S, C].
        layer: a function of [..., C] to [..., C]. If the layer has parameters, its input is cast to their dtype.
        phi: as in mhc_coeffs.
        b: as in mhc_coeffs.
        alpha_pre: as in mhc_coeffs.
        alpha_post: as in mhc_coeffs.
        alpha_res: as in mhc_coeffs.
        tmax: as in mhc_coeffs.
        rms_eps: as in mhc_coeffs.
        pre_eps: as in mhc_coeffs.
        sinkhorn_eps: as in mhc_coeffs.
        post_mult: as in mhc_coeffs.
        return_coeffs: return the coefficients too.

    Returns:
        The new streams, like x; with return_coeffs the pair (streams, (h_pre, h_post, h_res)).
    """
    coeffs = h_pre, h_post, h_res = mhc_coeffs(
        x,
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
    )
    x_in = mhc_pre(x, h_pre)
    first = next(layer.parameters(), None) if isinstance(layer, torch.nn.Module) else None
    y = mhc_post_res(x, layer(x_in if first is None else x_in.to(first.dtype)), h_post, h_res)
    return (y, coeffs) if return_coeffs else y


def _check_streams(name: str, x: Tensor) -> None:
    if x.dim() < 2 or 0 in x.shape[-2:]:
        raise BadArgument.of(name, "x", "be [..., streams, channels], not empty", str(tuple(x.shape)), ValueError)


def normed_product(x: Tensor, phi: Tensor, eps: float) -> Tensor:
    """x phi / rms(x) for each row, in float32 (float64 for float64), without a float32 copy of x."""
    if x.dtype is not phi.dtype:
        x, phi = (t.to(torch.promote_types(torch.promote_types(x.dtype, phi.dtype), torch.float32)) for t in (x, phi))
    if transforms_active():  # torch.func can transform only torch's own ops
        v = x.to(torch.promote_types(x.dtype, torch.float32))
        return (v @ phi.to(v.dtype)) * (v.square().mean(-1, keepdim=True) + eps).rsqrt()
    return _NormedProduct.apply(x, phi, eps)


class _NormedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: Tensor, eps: float) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
        rstd = (norm * norm / x.shape[-1] + eps).rsqrt()
        mix = gemm.gemm(x, phi, out_dtype=dtype) * rstd
        ctx.save_for_backward(x, phi, mix, rstd)
        return mix

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, phi, mix, rstd = ctx.saved_tensors
        (dmix,) = grads
        dx, dphi = normed_product_bwd(dmix, x, phi, mix, rstd, *ctx.needs_input_grad[:2])
        return dx, dphi, None


def normed_product_bwd(
    dmix: Tensor, x: Tensor, phi: Tensor, mix: Tensor, rstd: Tensor, of_x: bool = True, of_phi: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and phi in mix = x phi rstd(x), for rstd [rows, 1]; None for one that is not needed."""
    dz = (dmix * rstd).to(x.dtype)
    dx = dphi = None
    if of_x:
        along = (dmix * mix).sum(-1, keepdim=True) * rstd * rstd / x.shape[-1]
        dx = (gemm.gemm(dz, phi, trans_b=True, out_dtype=mix.dtype) - along * x).to(x.dtype)
    if of_phi:
        dphi = gemm.gemm(x, dz, trans_a=True)
    return dx, dphi


# ---- several tokens at a time ---------------------------------------------------------------------------------------


def multi_token_attention(
    scores: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    sparse: bool = False,
) -> Tensor:
    """A convolution over the attention weights of neighboring tokens: tril(conv2d(softmax(causal scores))).

    Scores of keys after a query's own position are masked before the softmax, and are 0 in the result
    (https://arxiv.org/abs/2504.00927).

    Args:
        scores: float [batch, channels, queries, keys].
        weight: the weight of the convolution, float [out, channels / groups, height, width].
        bias: float [out].
        stride: as in torch's conv2d.
        padding: as in torch's conv2d.
        dilation: as in torch's conv2d.
        groups: as in torch's conv2d.
        sparse: use sparsemax instead of softmax.

    Returns:
        [batch, out, queries', keys'], of the dtype of scores. Probabilities are computed in float32 (float64 for
        float64) and rounded; torch computes the convolution.
    """
    if scores.dim() != 4 or scores.shape[-1] != scores.shape[-2]:
        expected = "have shape [batch, channels, length, length]"
        raise BadArgument.of("multi_token_attention", "scores", expected, str(tuple(scores.shape)), ValueError)
    if sparse:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        probs = sparsemax.sparsemax(scores.masked_fill(later, -torch.inf))
    else:
        probs = softmax.scaled_softmax(scores, causal=True)
    return F.conv2d(probs, weight, bias, stride, padding, dilation, groups).tril()


# ---- neighbors ------------------------------------------------------------------------------------------------------


def neighborhood_attention(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: int = 7, dilation: int = 1, scale: float | None = None
) -> Tensor:
    """Each position attends to a window of neighbors (https://arxiv.org/abs/2504.16922, in one dimension).

    Position i attends to positions i + dilation * s with |s| <= kernel_size // 2 that are in the sequence. Time and
    memory grow with length * kernel_size, not with length^2.

    Args:
        query: float [batch, heads, length, d].
        key: like query.
        value: like query.
        kernel_size: the size of the window, odd.
        dilation: the distance between neighbors.
        scale: multiplies the scores; 1 / sqrt(d) if it is None.

    Returns:
        [batch, heads, length, d], of the dtype of query: computed in float32 (float64 for float64), rounded once.
    """
    return neighborhood.neighborhood_attention(query, key, value, kernel_size, dilation, scale)[0]
