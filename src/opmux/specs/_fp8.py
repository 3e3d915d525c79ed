"""Helpers of ops that return float8: the cast from float32, the types of its arguments, and samples.

The ops cast as in delayed scaling: y = fp8(value * scale), saturating, with a scale that the caller passes. The value
is not rounded to the input's dtype before the cast. If amax is given, it becomes max(amax, max|value|); NaN is ignored.
An op returns the bytes of y, 1 / scale, and then its other results.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.spec import Tol
from .quant import Float8 as Float8
from .quant import One as One
from .quant import amax_of, bytes_of, inverse, put
from .samples import Case, Draw, Maker

# A sum in another order may round to the adjacent float8 value, so bytes may differ by 1.
BYTES = {torch.uint8: Tol(0.0, 1.0)}
# For ops with a scale per block: the block's largest element may round differently, which changes the scale too.
BLOCKS = {**BYTES, torch.float32: Tol(1e-2, 1e-5)}


def cast(value: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the bytes of fp8(value * scale), and 1 / scale; update amax in place."""
    value = value.float().contiguous()
    if amax is not None and value.numel():
        put(amax, torch.maximum(amax, amax_of(value).reshape(amax.shape)), None)
    return bytes_of(value * scale.reshape(()), dtype), inverse(scale).reshape(1)


# ---- samples --------------------------------------------------------------------------------------------------------

CASES = (
    Case((5, 64)),
    Case((3, 200), options={"to": torch.float8_e5m2, "scale": 1e5}),
    Case((2, 3, 34), options={"scale": 1e-3, "amax": True}),
    Case((0, 36)),
    Case((6, 16), "t"),
    Case((4, 48), options={"act": "srelu", "offset": 1.0, "weight": "other"}),
)


def numbers(d: Draw) -> dict[str, Any]:
    """Draws scale, amax and dtype; with scale 1e5 most values saturate, and no sample exceeds the initial amax."""
    one = lambda value: torch.full((1,), value, device=d.device)
    amax = one(1e6) if d.option("amax") else None
    return {"scale": one(d.option("scale", 50.0)), "amax": amax, "dtype": d.option("to", torch.float8_e4m3fn)}


def samples(build_inputs: Callable[[Draw], dict[str, Any]], after: str) -> Maker:
    """Samples of an op that casts to float8; the arguments named in `after` follow scale, amax and dtype."""

    def build(d: Draw) -> dict[str, Any]:
        inputs = build_inputs(d)
        last = {name: inputs.pop(name) for name in after.split()}
        return {**inputs, **numbers(d), **last}

    return Maker(build, CASES)
