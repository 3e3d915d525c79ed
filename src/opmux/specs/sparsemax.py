"""Sparsemax: the projection onto the simplex, computed in float32 (float64 for float64) and rounded once."""

from typing import Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad
from ..core.spec import op
from ._numeric import rounded, wide
from .samples import Case, Draw, Maker

CASES = (
    Case((5, 64)),
    Case((1, 1)),
    Case((37,)),
    Case((2, 3, 4, 17)),
    Case((0, 37)),
    Case((5, 0)),
    Case((37, 1000), options={"spread": 0.02}),  # many elements of a row stay above 0
    Case((3, 20000), options={"spread": 0.3}),
    Case((37, 64), "t"),
    Case((2, 3, 64), "swapped"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
)


def _args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(d.option("spread", 1.0))}


@op(out="y", grad="sparsemax_bwd", samples=Maker(_args, CASES))
def sparsemax(x: Float[Tensor, "*rows n"]) -> Tensor:
    """Sparsemax over the last dimension: y = max(x - tau, 0), where tau is chosen for each row so that sum(y) = 1.

    Args:
        x: the logits.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """
    v = wide(x)
    if not x.shape[-1]:
        return rounded(v, x.dtype)
    v = v - v.amax(-1, keepdim=True)  # tau is near the maximum: without this, large inputs lose precision
    ordered = v.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = torch.arange(1, v.shape[-1] + 1, device=x.device, dtype=v.dtype)
    size = (ordered * count > sums).sum(-1, keepdim=True)
    tau = sums.gather(-1, size.clamp(min=1) - 1) / size
    return rounded((v - tau).clamp(min=0), x.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    return {"dy": d.grad(), "y": sparsemax.reference(**_args(d))}


@op(out="dx", samples=Maker(_bwd_args, CASES))
def sparsemax_bwd(dy: Grad[Tensor, "*rows n"], y: Float[Tensor, "*rows n"]) -> Tensor:
    """The gradient of sparsemax: dx = dy - m where y > 0, else 0; m is the mean of dy where y > 0 in the row.

    Args:
        dy: the gradient of y.
        y: the result of the forward.

    Returns:
        dx, like y.
    """
    v = wide(y)
    support = v > 0
    dz = torch.where(support, dy.to(v.dtype), 0.0)
    mean = dz.sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
    return rounded(torch.where(support, dz - mean, 0.0), y.dtype)
