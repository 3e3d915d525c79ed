"""RMS norm. A real package would call its own library instead of torch."""

import torch

from opmux.core import NotSupported


def rms_norm(x, weight, eps=1e-6, offset=0.0):
    """opmux's own op, which optimised models call. It has a gradient, because opmux pairs it with a backward."""
    y, rstd = _normalize(x, weight, eps, offset)
    return y.to(x.dtype), rstd


def rmsnorm_fwd(
    input,
    weight,
    eps=1e-5,
    ln_out=None,
    quantizer=None,
    otype=None,
    sm_margin=0,
    zero_centered_gamma=False,
):
    """Transformer Engine's op. It may return (out, rsigma): if necessary, opmux converts this to TE's three results."""
    if quantizer is not None:
        # Raise before anything is written; opmux then calls the next implementation.
        raise NotSupported("acme's rmsnorm_fwd has no quantized output")
    y, rsigma = _normalize(input, weight, eps, float(zero_centered_gamma))
    y = y.to(otype or input.dtype)
    return (y if ln_out is None else ln_out.copy_(y)), rsigma


def _normalize(x, weight, eps, offset):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    cols = max(x.shape[-1], 1)  # rows may be empty, as in some of opmux's samples
    rstd = torch.rsqrt(wide.square().sum(-1) / cols + eps)
    return wide * rstd[..., None] * (weight.to(wide.dtype) + offset), rstd
