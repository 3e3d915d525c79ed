"""A backend template. Copy this file to `<vendor>.py`, change the names, and override the functions of your library.

Calls of methods that you do not override run on the next backend, so one method is enough to start. Functions by
importance:

| | functions |
|---|---|
| critical | generic_gemm, rmsnorm_fwd, rmsnorm_bwd, fused_attn_fwd, fused_attn_bwd |
| important | layernorm_fwd, layernorm_bwd; gelu, swiglu and their like, with gradients; scaled_*_softmax_* |
| optional | communication overlap, NVSHMEM, the less common FP8 and FP4 formats |

Arguments are tex's, in its order, with torch dtypes. If you do not support some arguments (a quantizer, a layout),
raise `NotImplementedError` before the first write, and the next backend gets the call. Then:

    import transformer_engine_fl_torch as tex
    tex.set_backend("template")

opmux finds a copy in this folder automatically. If the copy is in your own package, import it from your entry point.
`opmux explain tex::rmsnorm_fwd` shows which backend runs, and why.
"""

from __future__ import annotations

from typing import Any

import torch

from opmux.faces.tex.base import TEXBackendBase
from opmux.faces.tex.registry import register_backend


@register_backend
class TemplateBackend(TEXBackendBase):
    NAME = "template"
    PRIORITY = 90

    def is_available(self) -> bool:
        # Query your driver here. An exception means "not available"; its text is shown as the reason.
        return True

    def rmsnorm_fwd(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        ln_out: torch.Tensor | None,
        quantizer: Any,
        otype: torch.dtype,
        sm_margin: int,
        zero_centered_gamma: bool,
    ) -> tuple[torch.Tensor, None, torch.Tensor]:
        if ln_out is not None or quantizer is not None:
            raise NotImplementedError("rmsnorm_fwd with ln_out or a quantizer")
        # Your kernel here.
        x = input.float()
        rsigma = torch.rsqrt(x.square().mean(-1) + eps)
        y = x * rsigma[..., None] * (weight.float() + float(zero_centered_gamma))
        return y.to(otype or input.dtype), None, rsigma.flatten()
