"""Stacks three tensors in one buffer: gradients of q, k and v become the gradient of their fused projection."""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, dim_of, same_dtype
from ..core.spec import op
from .samples import Case, Draw, Maker


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


@op(samples=WEAVE)
def stack3(
    a: Float[Tensor, "*shape"],
    b: Float[Tensor, "*shape", same_dtype("a")],
    c: Float[Tensor, "*shape", same_dtype("a")],
    at: Annotated[int, dim_of("a", new=True)],
) -> Tensor:
    """Stack three tensors along a new dimension: y = torch.stack((a, b, c), at).

    Args:
        a: the first tensor.
        b: the second tensor.
        c: the third tensor.
        at: the index of the new dimension in y; its size is 3.

    Returns:
        y, contiguous, of a's dtype.
    """
    return torch.stack((a, b, c), at)
