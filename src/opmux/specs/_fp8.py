"""What ops whose result is float8 share: the cast from float32, its numbers, and samples of them.

This is what delayed scaling wants: y = fp8(value * scale), with a scale known beforehand and no rounding to the input's
dtype between, and amax raised to the largest magnitude of the values (NaN left out), where it is given. Casts saturate.
Results are bytes, the inverse of the scale, and what the op has beside y.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import FP8, Float32, contiguous, one_of, single
from ..core.spec import BadSample, BadSamples, Tol
from .quant import amax_of, bytes_of, check_buffer, check_fp8, inverse, put
from .samples import WRONG, Case, Draw, Maker

# Bytes next to each other are neighbours in float8: sums in another order may tip a value over.
BYTES = {torch.uint8: Tol(0.0, 1.0)}

# Types of the arguments of a cast: its scale and its amax, and the dtype that it casts to.
One = Float32[Tensor, "...", single(), contiguous()]
Float8 = Annotated[torch.dtype, one_of(*FP8)]


def check(op: str, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: Any) -> None:
    """Refuse numbers that are not single float32 ones beside x, and what is no float8."""
    check_fp8(op, dtype)
    check_buffer(op, "scale", scale, (1,), torch.float32, x)
    check_buffer(op, "amax", amax, (1,), torch.float32, x)


def cast(value: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The bytes of what is computed, and the inverse of the scale; amax is raised."""
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
    """Samples of an op that is cast: what it takes itself, but for the numbers `after` those of the cast."""

    def build(d: Draw) -> dict[str, Any]:
        given = of(d)
        late = {name: given.pop(name) for name in after.split()}
        return {**given, **numbers(d), **late}

    return Maker(build, CASES)


def bad(good: Maker, **wrong: str) -> BadSamples:
    """Bad samples: tensors spoiled as usual, and the numbers of a cast."""
    numbers_wrong: dict[str, Any] = {
        "dtype": (torch.float16, TypeError, "must be torch.float8_e4m3fn or torch.float8_e5m2"),
        "scale": (torch.ones(2), ValueError, r"must have shape \(1,\)"),
        "amax": (torch.ones(1).double(), TypeError, "must be float32; got float64"),
        "act": ("tanh", ValueError, "must be one of gelu, "),
    }

    def made(device: torch.device) -> Iterator[BadSample]:
        for name, way in ((n, w) for n, ways in wrong.items() for w in ways.split()):
            spoil, error, says = WRONG[way]
            args = good.named(Case((5, 64)), torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {way}")
        for name, (value, error, says) in numbers_wrong.items():
            args = good.named(Case((5, 64)), torch.float32, device)
            if name in args:
                args[name] = value.to(device) if isinstance(value, Tensor) else value
                yield BadSample(tuple(args.values()), error, f"{name} {says}", id=name)

    return made
