"""The parts of Liger's hyper-connections: `ops.mhc.mhc_*_fwd` and `mhc_*_bwd`, in float32.

x is [rows, streams, channels], or [rows, streams * channels] in the product. A given `out` gets the result. Sizes of
blocks and numbers of warps have no effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...functional import attention_variants
from ...specs import residual


def _into(out: Tensor | None, value: Tensor) -> Tensor:
    return value if out is None else out.copy_(value)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def mhc_mm_norm_fwd(
    x: Tensor,
    phi: Tensor,
    eps: float,
    *,
    out_mix: Tensor | None = None,
    out_invr: Tensor | None = None,
    block_n: int = 32,
    block_k: int = 256,
    block_m: int = 32,
    num_warps: int = 4,
) -> tuple[Tensor, Tensor]:
    """Returns x phi / rms(x) [rows, columns] and 1 / rms(x) [rows]."""
    mix = attention_variants.normed_product(x, phi, eps)
    return _into(out_mix, mix), _into(out_invr, (_wide(x).square().mean(-1) + eps).rsqrt())


def mhc_mm_norm_bwd(
    x: Tensor,
    phi: Tensor,
    mix: Tensor,
    invr: Tensor,
    grad_mix: Tensor,
    *,
    out_grad_x: Tensor | None = None,
    out_grad_phi: Tensor | None = None,
    block_n: int = 32,
    block_k: int = 256,
    block_m: int = 32,
    num_warps: int = 4,
) -> tuple[Tensor, Tensor]:
    """The gradients of x, in its dtype, and of phi, in float32 or wider."""
    wide, matrix = _wide(x), _wide(phi)
    dx, dphi = attention_variants.normed_product_bwd(grad_mix, wide, matrix, mix, invr[:, None])
    assert dx is not None and dphi is not None
    return _into(out_grad_x, dx.to(x.dtype)), _into(out_grad_phi, dphi)


def _streams(mix: Tensor) -> int:
    """S, for mix [rows, S * S + 2 * S]."""
    return round((mix.shape[1] + 1) ** 0.5) - 1


def mhc_split_sinkhorn_fwd(
    mix: Tensor,
    b: Tensor,
    alpha_pre: Tensor,
    alpha_post: Tensor,
    alpha_res: Tensor,
    *,
    tmax: int,
    pre_eps: float,
    sinkhorn_eps: float,
    post_mult: float,
    out_hpre: Tensor | None = None,
    out_hpost: Tensor | None = None,
    out_hres: Tensor | None = None,
    out_hist: Tensor | None = None,
    return_hist: bool = False,
    num_warps: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns h_pre, h_post and h_res of mix, the result of mhc_mm_norm_fwd."""
    if return_hist or out_hist is not None:
        expected = "be False: mhc_sinkhorn_bwd computes the history again"
        raise BadArgument.of("mhc_split_sinkhorn_fwd", "return_hist", expected, "True, or an out_hist")
    pre, post, logits = attention_variants.mhc_logits(mix, b, alpha_pre, alpha_post, alpha_res, _streams(mix))
    h_pre, h_post = torch.sigmoid(pre) + pre_eps, torch.sigmoid(post) * post_mult
    h_res = residual.sinkhorn(logits, tmax, sinkhorn_eps)
    return _into(out_hpre, h_pre), _into(out_hpost, h_post), _into(out_hres, h_res)


def mhc_sinkhorn_bwd(
    mix: Tensor,
    b: Tensor,
    alpha_res: Tensor,
    grad_hres: Tensor,
    *,
    tmax: int,
    sinkhorn_eps: float,
    hist: Tensor | None = None,
    out_grad_logits: Tensor | None = None,
    num_warps: int = 1,
) -> Tensor:
    """The gradient of the argument of Sinkhorn's softmax; `hist` is not read."""
    _, _, logits = attention_variants.mhc_logits(mix, b, alpha_res, alpha_res, alpha_res, _streams(mix))
    return _into(out_grad_logits, residual.sinkhorn_bwd(grad_hres, logits, tmax, sinkhorn_eps))


def mhc_pre_fwd(
    x: Tensor, h_pre: Tensor, *, out: Tensor | None = None, block_n: int = 32, block_c: int = 128, num_warps: int = 4
) -> Tensor:
    """The sum of the streams, weighted with h_pre [rows, streams]."""
    return _into(out, residual.mhc_pre(_wide(x), h_pre))


def mhc_pre_bwd(
    x: Tensor,
    h_pre: Tensor,
    grad_out: Tensor,
    *,
    out_grad_x: Tensor | None = None,
    out_grad_h: Tensor | None = None,
    block_n: int = 32,
    block_c: int = 128,
    num_warps: int = 4,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and h_pre."""
    dx, dh = residual.mhc_pre_bwd(_wide(grad_out), _wide(x), _wide(h_pre))
    return _into(out_grad_x, dx), _into(out_grad_h, dh)


def mhc_post_res_fwd(
    x: Tensor,
    f_out: Tensor,
    h_post: Tensor,
    h_res: Tensor,
    *,
    out: Tensor | None = None,
    block_n: int | None = None,
    block_c: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> Tensor:
    """Mixes the streams and adds the layer's output f_out."""
    return _into(out, residual.mhc_post_res(_wide(x), _wide(f_out), h_post, h_res))


def mhc_post_res_bwd(
    x: Tensor,
    f_out: Tensor,
    h_post: Tensor,
    h_res: Tensor,
    grad_out: Tensor,
    *,
    out_grad_x: Tensor | None = None,
    out_grad_f: Tensor | None = None,
    out_grad_hpost: Tensor | None = None,
    out_grad_hres: Tensor | None = None,
    block_n: int | None = None,
    block_c: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> tuple[Any, ...]:
    """The gradients of x, f_out, h_post and h_res."""
    gradients = residual.mhc_post_res_bwd(*map(_wide, (grad_out, x, f_out, h_post, h_res)))
    outs = out_grad_x, out_grad_f, out_grad_hpost, out_grad_hres
    return tuple(_into(out, gradient) for out, gradient in zip(outs, gradients, strict=True))
