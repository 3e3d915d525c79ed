"""Quantizers of every kind, and a comparison of quantized tensors."""

from __future__ import annotations

from typing import Any

import torch

from opmux.faces.tex.quantized import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)

QUANTIZERS = {
    "delayed": lambda: Float8Quantizer(torch.full((1,), 7.0), torch.full((1,), 0.25)),
    "current": Float8CurrentScalingQuantizer,
    "block": Float8BlockQuantizer,
    "mxfp8": MXFP8Quantizer,
    "nvfp4": NVFP4Quantizer,
}


def held(value: Any) -> dict[str, torch.Tensor]:
    """The buffers of a quantized tensor, by name."""
    return {n: t for n, t in vars(value).items() if isinstance(t, torch.Tensor)}


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want) and got.shape == want.shape and got.dtype == want.dtype
    assert held(got).keys() == held(want).keys() and held(got)
    for name, t in held(got).items():
        assert torch.equal(t, held(want)[name]), name
