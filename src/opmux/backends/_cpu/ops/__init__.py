"""What the CPU has kernels of its own for."""

from __future__ import annotations

import torch

from .native import function

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ALL = (F64, F32, F16, BF16)

# An op of ours -> its parameters, and how many results it has.
OPS = {
    "rms_norm": ("x, weight, eps=1e-6, offset=0.0", 2),
    "rms_norm_bwd": ("dy, x, weight, rstd, offset=0.0", 2),
    "add_rms_norm": ("x, residual, weight, eps=1e-6, offset=0.0", 3),
    "add_rms_norm_bwd": ("dy, ds, s, weight, rstd, offset=0.0", 3),
    "layer_norm": ("x, weight, bias=None, eps=1e-5, offset=0.0", 3),
    "layer_norm_bwd": ("dy, x, weight, mean, rstd, offset=0.0", 3),
    "softmax": ("x, dim=-1", 1),
    "softmax_bwd": ("dy, y, dim=-1", 1),
    "log_softmax": ("x, dim=-1", 1),
    "log_softmax_bwd": ("dy, y, dim=-1", 1),
    "scaled_softmax": ("x, mask=None, scale=1.0, causal=False", 1),
    "scaled_softmax_bwd": ("dy, y, scale=1.0, causal=False", 1),
}
FORMS = {
    "": ("x", 1),
    "_bwd": ("dy, x", 1),
    "_bias": ("x, bias", 1),
    "_bias_bwd": ("dy, x, bias=None", 2),
    "_mul": ("a, b", 1),
    "_mul_bwd": ("dy, a, b", 2),
    "_glu": ("x", 1),
    "_glu_bwd": ("dy, x", 1),
}
GATES = ("gelu", "gelu_erf", "silu", "qgelu", "relu", "srelu", "sigmoid")
OPS |= {
    act + form: shape
    for act in GATES
    for form, shape in FORMS.items()
    if act != "sigmoid" or form.startswith(("_mul", "_glu"))
}

__all__ = sorted(OPS)
globals().update({name: function(name, *OPS[name], ALL) for name in __all__})
