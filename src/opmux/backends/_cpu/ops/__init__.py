"""The ops and dtypes for which the CPU has its own kernels: those that are faster than the reference and ATen.

Each cell has two speedups, A/B: our kernel over the op's reference (A) and over a typical composition of ATen ops (B),
on one thread of a Neoverse N1, torch 2.13 (`benchmarks/cpu.py` measures it on any machine).

                       float32                           bfloat16
                       1x1024     64x1024    1024x4096   1x1024     64x1024    1024x4096
    rms_norm           17.9/5.3   7.0/3.3    2.6/2.0     14.6/5.4   4.8/3.1    2.5/2.5
    rms_norm_bwd       15.5/-     7.3/-      5.2/-       15.6/-     6.7/-      4.9/-
    add_rms_norm       15.9/4.8   5.7/2.8    2.2/1.6     15.4/5.1   4.5/3.2    2.8/2.7
    add_rms_norm_bwd   15.9/-     6.1/-      3.5/-       15.6/-     6.5/-      4.9/-
    layer_norm         19.2/1.5   6.0/1.4    2.5/1.2     17.1/1.3   5.0/1.7    2.4/1.6
    layer_norm_bwd     20.0/4.5   9.1/1.8    5.4/1.0     18.3/5.1   7.7/3.5    5.3/2.8
    softmax            4.1/1.0    2.4/2.0    2.0/1.9     4.6/1.2    2.3/1.7    2.1/2.0
    softmax_bwd        9.3/0.8    3.8/1.0    3.0/1.1     10.6/1.0   4.1/1.7    3.2/1.9
    log_softmax        4.0/1.1    2.1/1.7    1.9/1.8     5.0/1.3    2.1/1.8    1.8/1.9
    log_softmax_bwd    7.2/1.2    3.3/2.2    2.6/2.5     8.9/1.3    3.3/2.1    2.6/2.1
    scaled_softmax     5.4/2.5    2.7/2.2    2.2/2.2     5.5/2.4    2.4/2.0    2.1/2.1
    scaled_softmax_bwd 9.0/2.5    5.1/1.8    3.5/1.6     9.9/2.5    4.5/2.7    3.5/2.6
    gelu_tanh          10.6/5.3   3.1/1.8    2.7/1.7     10.7/2.8   2.9/4.7    2.2/4.2
    gelu_tanh_bwd      18.5/2.9   4.6/3.9    4.2/3.8     18.2/2.8   4.3/3.4    3.5/3.1
    silu               6.6/1.3    2.6/2.0    2.4/2.0     7.1/1.4    2.6/2.0    1.9/1.8
    silu_bwd           13.6/1.5   4.5/1.6    3.9/1.5     13.5/1.5   4.0/1.6    2.8/1.4
    silu_bias_bwd      12.3/2.7   4.7/1.7    4.1/2.1     12.3/2.8   4.3/2.2    3.1/1.9
    silu_mul           8.5/1.9    2.8/2.1    2.6/2.2     8.7/2.0    2.7/2.3    2.1/2.0
    silu_mul_bwd       14.5/3.2   5.4/2.6    4.8/2.7     14.3/3.2   4.4/2.8    3.7/2.5
    silu_glu_bwd       19.5/6.3   5.9/3.0    5.0/2.9     18.8/6.0   4.9/3.0    3.7/2.6
    gelu               11.5/5.0   8.3/1.4    8.0/0.5     11.4/1.1   7.3/1.4    6.1/1.3
    gelu_mul           12.6/5.5   8.0/1.8    7.8/0.7     12.8/1.9   7.0/1.6    5.8/1.4
    gelu_mul_bwd       21.8/15.2  15.2/11.2  14.6/10.6   21.2/3.6   11.8/3.4   8.8/2.6
    relu               5.7/1.1    3.0/1.1    2.0/1.0     6.3/1.1    2.3/1.3    1.7/1.2
    relu_bwd           13.8/1.7   9.1/1.3    6.2/1.1     13.7/1.6   5.3/1.1    4.1/1.0
    relu_mul           8.0/2.1    3.6/1.8    2.2/1.6     8.8/1.9    2.9/2.1    1.6/1.4
    srelu              7.3/3.0    4.2/2.1    3.0/2.0     7.8/2.8    2.8/2.4    2.0/2.2

Over all ops and shapes the median is 5.8/2.4 in float32, 4.8/2.6 in bfloat16, 10.7/2.5 in float16, 4.3/1.9 in float64.
`LEFT` lists the ops that are not faster: relu only copies, softmax_bwd of a short row takes less time than the call of
our kernel, and ATen's gelu with erf in float32 comes from oneDNN. Two registered ops only equal ATen at one shape and
are faster elsewhere: softmax of a single float32 row (0.97 to 1.23 in several runs), and layer_norm_bwd of 1024x4096 in
float32 (0.99 to 1.10).
"""

from __future__ import annotations

import torch

from .grouped import grouped_mm as grouped_mm
from .grouped import grouped_mm_bwd as grouped_mm_bwd
from .grouped import grouped_mm_wgrad as grouped_mm_wgrad
from .native import function

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ALL = (F64, F32, F16, BF16)

# Op -> (its parameters, the number of its results).
OPS = {
    "rms_norm": ("x, weight, eps=1e-6, offset=0.0, casting='gemma'", 2),
    "rms_norm_bwd": ("dy, x, weight, rstd, offset=0.0, casting='gemma'", 2),
    "add_rms_norm": ("x, residual, weight, eps=1e-6, offset=0.0, casting='gemma'", 3),
    "add_rms_norm_bwd": ("dy, ds, s, weight, rstd, offset=0.0, casting='gemma'", 3),
    "layer_norm": ("x, weight, bias=None, eps=1e-5, offset=0.0", 3),
    "layer_norm_bwd": ("dy, x, weight, mean, rstd, offset=0.0", 3),
    "softmax": ("x, dim=-1", 1),
    "softmax_bwd": ("dy, y, dim=-1", 1),
    "log_softmax": ("x, dim=-1", 1),
    "log_softmax_bwd": ("dy, y, dim=-1", 1),
    "scaled_softmax": ("x, mask=None, scale=1.0, causal=False", 1),
    "scaled_softmax_bwd": ("dy, y, scale=1.0, causal=False", 1),
}
GATED = {"_mul": ("a, b", 1), "_mul_bwd": ("dy, a, b", 2), "_glu": ("x", 1), "_glu_bwd": ("dy, x", 1)}
ALONE = {"": ("x", 1), "_bwd": ("dy, x", 1), "_bias": ("x, bias", 1), "_bias_bwd": ("dy, x, bias=None", 2)}
FORMS = dict.fromkeys(("gelu_tanh", "gelu", "silu", "qgelu", "relu", "srelu"), ALONE | GATED) | {"sigmoid": GATED}
OPS |= {act + suffix: takes for act, forms in FORMS.items() for suffix, takes in forms.items()}

LEFT = {
    "softmax_bwd": ALL,
    "relu": (F64, F32, F16),
    "relu_bwd": (F16, BF16),
    "gelu": (F32,),
    "gelu_bias": (F64, F32),
    "gelu_mul": (F32,),
}
DTYPES = {name: tuple(d for d in ALL if d not in LEFT.get(name, ())) for name in OPS}

__all__ = sorted(name for name in OPS if DTYPES[name])
globals().update({name: function(name, *OPS[name], DTYPES[name]) for name in __all__})
TORCH = (
    "grouped_mm",
    "grouped_mm_bwd",
    "grouped_mm_wgrad",
)  # as a loop of torch.mm; the reference multiplies every row by every matrix
__all__ += TORCH
