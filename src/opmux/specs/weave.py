"""Tensors side by side in one buffer: gradients of q, k and v as that of the projection they came from."""

from typing import Any

import torch
from torch import Tensor

from ..core.spec import op
from ._numeric import check_alike
from ._tex import check_int
from .samples import Case, Draw, Maker, errors


def check(op: str, a: Tensor, b: Tensor, c: Tensor, at: int) -> None:
    check_alike(op, "a", a, b=b, c=c)
    for name, t in (("b", b), ("c", c)):
        if t.dtype != a.dtype:
            raise ValueError(f"{op}: {name} must be {str(a.dtype)[6:]}, the dtype of a; got {str(t.dtype)[6:]}")
    check_int(op, "at", at, 0, a.dim())


def _args(d: Draw) -> dict[str, Any]:
    return {"a": d.full(), "b": d.full(), "c": d.full(), "at": d.option("at", 1)}


WEAVE = Maker(
    _args,
    (
        Case((5, 64)),
        Case((5, 64), options={"at": 0}),
        Case((37, 24), options={"at": 2}),
        Case((4, 2, 3, 16), options={"at": 3}),
        Case((4, 2, 3, 16), "swapped", {"at": 2}),
        Case((0, 8)),
    ),
)
WRONG = {"b": "short ints away dtype", "c": "few"}


@op(samples=WEAVE, errors=errors(WEAVE, **WRONG))
def weave(a: Tensor, b: Tensor, c: Tensor, at: int) -> Tensor:
    """Three tensors of one shape along a new dimension, which becomes dimension `at` of the result."""
    check("weave", a, b, c, at)
    return torch.stack((a, b, c), at)
