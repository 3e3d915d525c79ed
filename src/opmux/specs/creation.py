"""ATen's factory functions and fills: constants, ranges, identity matrices; the references are torch's own ops."""

from collections.abc import Callable
from typing import Any

import torch  # noqa: F401 - an annotation of the rows
from torch import Tensor  # noqa: F401 - an annotation of the rows

from ..core.spec import op
from ._aten import EXACT, FACTORY, AtenOp
from .samples import Case, Draw

Number = int | float

LIKE = f"{FACTORY}, memory_format: Any = None"
SHAPES = (Case((5, 64)), Case((37, 64), "t"), Case((2, 0)))


def like(**rest: Any) -> Callable[[Draw], dict[str, Any]]:
    return lambda d: {"self": d.full(), **rest}


def new(**rest: Any) -> Callable[[Draw], dict[str, Any]]:
    return lambda d: {"self": d.full(), "size": list(d.case.shape), **rest}


def sized(**rest: Any) -> Callable[[Draw], dict[str, Any]]:
    return lambda d: {"size": list(d.case.shape), **rest, **_options(d)}


def numbers(**rest: Any) -> Callable[[Draw], dict[str, Any]]:
    return lambda d: {**rest, **_options(d)}


def _options(d: Draw) -> dict[str, Any]:
    return {"dtype": d.dtype, "layout": None, "device": d.device, "pin_memory": None}


TABLE = (
    AtenOp("fill", "self: Tensor, value: Tensor | Number", like(value=2), SHAPES),
    AtenOp("zero", "self: Tensor", like(), SHAPES),
    AtenOp("full", f"size: list[int], fill_value: Number, *, {FACTORY}", sized(fill_value=2.0), SHAPES[::2]),
    *(AtenOp(n, f"size: list[int], *, {FACTORY}", sized(), SHAPES[::2]) for n in ("ones", "zeros")),
    AtenOp("full_like", f"self: Tensor, fill_value: Number, *, {LIKE}", like(fill_value=2.0), SHAPES),
    *(AtenOp(n, f"self: Tensor, *, {LIKE}", like(), SHAPES) for n in ("ones_like", "zeros_like")),
    AtenOp(
        "new_full", f"self: Tensor, size: list[int], fill_value: Number, *, {FACTORY}", new(fill_value=2), SHAPES[:1]
    ),
    *(AtenOp(n, f"self: Tensor, size: list[int], *, {FACTORY}", new(), SHAPES[:1]) for n in ("new_ones", "new_zeros")),
    AtenOp("scalar_tensor", f"s: Number, *, {FACTORY}", numbers(s=1.5), SHAPES[:1]),
    AtenOp(
        "arange",
        f"start: Number = 0, end: Number | None = None, step: Number = 1, *, {FACTORY}",
        numbers(start=1, end=40, step=3),
        SHAPES[:1],
    ),
    AtenOp(
        "range",
        f"start: Number, end: Number, step: Number = 1, *, {FACTORY}",
        numbers(start=1, end=40, step=3),
        SHAPES[:1],
    ),
    AtenOp(
        "linspace",
        f"start: Number, end: Number, steps: int, *, {FACTORY}",
        numbers(start=-1.0, end=2.0, steps=37),
        SHAPES[:1],
    ),
    AtenOp(
        "logspace",
        f"start: Number, end: Number, steps: int, base: float = 10.0, *, {FACTORY}",
        numbers(start=-1.0, end=2.0, steps=37, base=2.0),
        SHAPES[:1],
    ),
    AtenOp("eye", f"n: int, m: int | None = None, *, {FACTORY}", numbers(n=5, m=37), SHAPES[:1]),
)

ROUNDED = ("linspace", "logspace")
ops: dict[str, Any] = {}
for _row in TABLE:
    _tol = None if _row.name in ROUNDED else EXACT
    # new_* has no samples: in torch, new_ones of a sparse tensor has no elements, so there is nothing to compare with
    _samples = None if _row.name.startswith("new_") else _row.samples
    ops[_row.name] = op(_row.reference(dict(globals())), space="aten", samples=_samples, tol=_tol)
