"""Math functions from the chip's library, under one name on the device and in the interpreter.

    from .lib.maths import libdevice            # in a kernel file, under this name

On NVIDIA `tl.exp`, `tl.log`, `tl.sin`, `/` and `tl.sqrt` of float32 are approximations. They are accurate enough for a
softmax, but not for `aten::exp` at 80 or `aten::sin` at 1e5: the approximations first multiply the argument by a
rounded constant. ATen's own kernels call the chip's library, which Triton offers as `libdevice`. The interpreter has no
libdevice, so there this module calls torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from .interpret import interpreting
from .jit_source import jit_from_source

# Functions that kernels may call, with their implementation in the interpreter. NVIDIA's and AMD's libraries have all
# of them.
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atan2": torch.atan2,
    "atanh": torch.atanh,
    "copysign": torch.copysign,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfcx": torch.special.erfcx,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fmod": lambda x, y: torch.from_numpy(np.fmod(x.numpy(), y.numpy())),  # torch.fmod is NaN for a huge quotient
    "hypot": torch.hypot,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "lgamma": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "nextafter": torch.nextafter,
    "pow": torch.pow,
    "rint": torch.round,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}


class _Interpreted:
    """`libdevice` for the interpreter."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in FUNCTIONS:
            raise AttributeError(f"libdevice.{name} has no implementation in the interpreter: add it to FUNCTIONS")
        fn = _answer(FUNCTIONS[name])
        setattr(self, name, fn)
        return fn


def _answer(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        from triton.runtime.interpreter import TensorHandle

        args = tuple(a.value if isinstance(a, tl.constexpr) else a for a in args)
        like = next(a for a in args if isinstance(a, tl.tensor))
        tensors = [torch.from_numpy(a.handle.data) if isinstance(a, tl.tensor) else torch.tensor(a) for a in args]
        result = function(*tensors).to(tensors[args.index(like)].dtype).numpy()
        scalar = all(not a.type.is_block() for a in args if isinstance(a, tl.tensor))
        kind = like.dtype if scalar else tl.block_type(like.dtype, list(result.shape))
        return tl.tensor(TensorHandle(result, like.dtype), kind)

    return call


if interpreting():
    libdevice: Any = _Interpreted()
else:
    from triton.language.extra import libdevice


def library(name: str, args: str = "x") -> Any:
    """A scalar device function that calls the library function `name`."""
    return triton.jit(
        jit_from_source(f"def {name}({args}):\n    return libdevice.{name}({args})\n", libdevice=libdevice)
    )


# ---- IEEE rounding --------------------------------------------------------------------------------------------------


@triton.jit
def div(a, b):
    """a / b, correctly rounded; float32 `/` has an error of two units in the last place."""
    if b.dtype == tl.float64:
        y = a / b
    else:
        y = tl.div_rn(a, b)
    return y


@triton.jit
def sqrt(x):
    if x.dtype == tl.float64:
        y = tl.sqrt(x)
    else:
        y = tl.sqrt_rn(x)
    return y
