"""Softmax and log-softmax along any dimension, forward and backward.

They compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, dim_of
from ..core.spec import op
from ._numeric import rounded, wide
from .samples import Case, Draw, rows

ALONG = (
    Case((4, 5, 6), options={"dim": 0}),
    Case((4, 5, 6), options={"dim": 1}),
    Case((37, 64), "t", {"dim": 0}),
    Case((2, 3, 64), "swapped", {"dim": -2}),
    Case((), options={"dim": 0}),
    Case((5, 64), options={"scale": 50.0}),
)


def _args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(d.option("scale", 1.0)), "dim": d.option("dim", -1)}


def _bwd_args(result: Any) -> Any:
    def build(d: Draw) -> dict[str, Any]:
        of = _args(d)
        return {"dy": d.grad(), "y": result(of["x"], of["dim"]), "dim": of["dim"]}

    return build


FWD = rows(_args, *ALONG)


@op(grad="softmax_bwd", samples=FWD)
def softmax(x: Float[Tensor, "..."], dim: Annotated[int, dim_of("x")] = -1) -> Tensor:
    """y = exp(x - max(x)) / sum(exp(x - max(x))) along dim.

    Args:
        x: the logits.
        dim: along which y sums to 1.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """
    return rounded(torch.softmax(wide(x), dim), x.dtype)


@op(grad="log_softmax_bwd", samples=FWD)
def log_softmax(x: Float[Tensor, "..."], dim: Annotated[int, dim_of("x")] = -1) -> Tensor:
    """y = x - max(x) - log(sum(exp(x - max(x)))) along dim.

    Args:
        x: the logits.
        dim: along which exp(y) sums to 1.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """
    return rounded(torch.log_softmax(wide(x), dim), x.dtype)


SOFTMAX_BWD = rows(_bwd_args(softmax.reference), *ALONG)
LOG_SOFTMAX_BWD = rows(_bwd_args(log_softmax.reference), *ALONG)


@op(out="dx", samples=SOFTMAX_BWD)
def softmax_bwd(
    dy: Grad[Tensor, "*shape"], y: Float[Tensor, "*shape"], dim: Annotated[int, dim_of("y")] = -1
) -> Tensor:
    """dx = y * (dy - sum(dy * y)) along dim.

    Args:
        dy: the gradient of y.
        y: the result of the forward.
        dim: that of the forward.

    Returns:
        dx, like y.
    """
    v = wide(y)
    g = dy.to(v.dtype)
    return rounded(v * (g - (g * v).sum(dim, keepdim=True)), y.dtype)


@op(out="dx", samples=LOG_SOFTMAX_BWD)
def log_softmax_bwd(
    dy: Grad[Tensor, "*shape"], y: Float[Tensor, "*shape"], dim: Annotated[int, dim_of("y")] = -1
) -> Tensor:
    """dx = dy - exp(y) * sum(dy) along dim.

    Args:
        dy: the gradient of y.
        y: the result of the forward.
        dim: that of the forward.

    Returns:
        dx, like y.
    """
    v = wide(y)
    g = dy.to(v.dtype)
    return rounded(g - torch.exp(v) * g.sum(dim, keepdim=True), y.dtype)
