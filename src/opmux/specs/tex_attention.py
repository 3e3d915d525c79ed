"""tex's attention: NVIDIA's fused attention over `attention` and `masked_attention`, and what moves its tensors about.

A call without anything special (dense formats, no padding, bias, dropout or window, vanilla softmax) is the primitive
`attention` on views, so that a library's kernel reads q, k and v where they lie and writes o as tex wants it. Sequences
packed one after another ("thd") without gaps are `attention_varlen`. All else is computed by the definition, in full.

FP8 attention is emulated: what is quantized is dequantized, computed on, and quantized again where a delayed-scaling
quantizer asks for it (with current scaling and MXFP8 NVIDIA's own results are in high precision). The probabilities and
their gradient are never rounded to FP8, so their quantizers are not used; their amax, which recipes read, is raised to
bounds of them that cost nothing: 1 for probabilities, and for their gradient the largest |row of dO| |row of V|.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.spec import Sample, op
from ._layouts import (
    DENSE,
    FORMATS,
    FROM_BHSD,
    LAYOUTS,
    TO_BHSD,
    Layout,
    Lengths,
    landed,
    packed,
    paged_in,
    unpacked,
)
from ._masked_attention import ALIBI, NO_BIAS, Gradients, Masking, masked_backward, masked_forward
from ._numeric import FLOATS, wide
from ._quantized import is_quantized, kind_of, plain, quantized, tensor_kind, wrapped_fp8
from ._tex import (
    DTYPES,
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_Softmax_Type,
    check_choice,
    check_int,
    check_list,
    check_number,
    check_tensor,
    type_name,
)
from .attention import attention, attention_bwd
from .random import next_seed
