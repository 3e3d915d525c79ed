"""A plugin written for Transformer Engine FL. It needs no change, because the import below gets opmux's module.

opmux provides the imported name only while it loads plugins, and only if no package of this name is installed.
"""

import torch
from transformer_engine.plugin.core import BackendImplKind, OpImpl


def layernorm_fwd(input, weight, bias, eps=1e-5, **kwargs):
    if kwargs.get("ln_out") is not None or kwargs.get("quantizer") is not None:
        raise NotImplementedError("acme's layernorm_fwd writes neither to ln_out nor quantized")
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    cols = max(input.shape[-1], 1)
    mu = wide.sum(-1) / cols
    centred = wide - mu[..., None]
    rsigma = torch.rsqrt(centred.square().sum(-1) / cols + eps)
    gamma = weight.to(wide.dtype) + float(kwargs.get("zero_centered_gamma", False))
    out = centred * rsigma[..., None] * gamma
    if bias is not None:
        out = out + bias.to(wide.dtype)
    return out.to(kwargs.get("otype") or input.dtype), mu, rsigma


def register(registry):
    registry.register_impl(
        OpImpl(
            op_name="layernorm_fwd",
            impl_id="vendor.acme",
            kind=BackendImplKind.VENDOR,
            vendor="acme",
            fn=layernorm_fwd,
            priority=200,
        )
    )
