"""RMS norm. Where this says torch, a real package calls its own library."""

import torch

from opmux.core import NotSupported


def rms_norm(x, weight, eps=1e-6, offset=0.0):
    """opmux's own op: what an optimised model calls, with a gradient (opmux pairs it with a backward)."""
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
    """Transformer Engine's op. (out, rsigma) is enough: opmux brings it to TE's form where TE's form is expected."""
    if quantizer is not None:
        # Before the first write: opmux hands the call to the next implementation.
        raise NotSupported("acme's rmsnorm_fwd has no quantized output")
    y, rsigma = _normalize(input, weight, eps, float(zero_centered_gamma))
    y = y.to(otype or input.dtype)
    return (y if ln_out is None else ln_out.copy_(y)), rsigma


def _normalize(x, weight, eps, offset):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    cols = max(x.shape[-1], 1)  # rows may be empty: opmux's samples have such
    rstd = torch.rsqrt(wide.square().sum(-1) / cols + eps)
    return wide * rstd[..., None] * (weight.to(wide.dtype) + offset), rstd
