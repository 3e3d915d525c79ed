"""Shared by ops with a float8 result: the cast from float32, the types of its arguments, and samples.

This is the cast of delayed scaling: y = fp8(value * scale), with a scale known beforehand and without rounding to the
input's dtype first; amax, if given, is raised to the largest magnitude of the values (NaN is ignored). Casts saturate.
Results are the bytes, the inverse of the scale, and the op's results other than y.
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

# Adjacent bytes are adjacent float8 values: a sum in another order may round to the next one.
BYTES = {torch.uint8: Tol(0.0, 1.0)}


def cast(value: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The bytes of the value, and the inverse of the scale; amax is raised in place."""
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
    """A scale (1e5: most values saturate), an amax that no sample reaches, and a float8."""
    one = lambda value: torch.full((1,), value, device=d.device)
    amax = one(1e6) if d.option("amax") else None
    return {"scale": one(d.option("scale", 50.0)), "amax": amax, "dtype": d.option("to", torch.float8_e4m3fn)}


def samples(of: Callable[[Draw], dict[str, Any]], after: str) -> Maker:
    """Samples of an op with a cast: its own arguments, where those named in `after` follow the cast's."""

    def build(d: Draw) -> dict[str, Any]:
        given = of(d)
        late = {name: given.pop(name) for name in after.split()}
        return {**given, **numbers(d), **late}

    return Maker(build, CASES)
