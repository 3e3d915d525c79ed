"""What the norm kernels share: rounding to half precision, and the statistics of empty rows."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def round_to(b, DTYPE: tl.constexpr):
    """Round to a dtype and back; unchanged if DTYPE is None."""
    if DTYPE is None:
        return b
    else:
        return b.to(DTYPE).to(b.dtype)


def rounding(casting: str, dtype: torch.dtype) -> dict[str, tl.dtype | None]:
    """The kernels' constants ROUND and STEP.

    They are None for float32 and float64, so that all castings share one kernel.
    """
    narrow = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}.get(dtype)
    return {"ROUND": None if casting == "gemma" else narrow, "STEP": narrow if casting == "none" else None}


def rstd_of_nothing(rstd: Tensor, eps: float) -> None:
    """Fill rstd for rows of length 0, whose mean square is defined as 0."""
    rstd.fill_(eps**-0.5 if eps > 0 else math.nan if eps else math.inf)
