"""Softmax and log-softmax along any dimension, forward and backward.

They compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results.
"""

from typing import Any

import torch
from torch import Tensor

from ..core.spec import op
from ._numeric import check_alike, rounded, wide
from .samples import Case, Draw, errors, rows


def check(op: str, x: Tensor, dim: int, *, lead: str = "x", **like: Tensor) -> None:
    """Refuse a dimension that is not there, and gradients that do not look like the result."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise ValueError(f"{op}: dim must be from {-rank} to {rank - 1}, as {lead} is {tuple(x.shape)}; got {dim}")
    check_alike(op, lead, x, **like)


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
FWD_WRONG = errors(FWD, x="ints")


@op(grad="softmax_bwd", samples=FWD, errors=FWD_WRONG)
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """y = exp(x - max(x)) / sum(exp(x - max(x))) along dim."""
    check("softmax", x, dim)
    return rounded(torch.softmax(wide(x), dim), x.dtype)


@op(grad="log_softmax_bwd", samples=FWD, errors=FWD_WRONG)
def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """y = x - max(x) - log(sum(exp(x - max(x)))) along dim."""
    check("log_softmax", x, dim)
    return rounded(torch.log_softmax(wide(x), dim), x.dtype)


SOFTMAX_BWD = rows(_bwd_args(softmax.reference), *ALONG)
LOG_SOFTMAX_BWD = rows(_bwd_args(log_softmax.reference), *ALONG)


@op(out="dx", samples=SOFTMAX_BWD, errors=errors(SOFTMAX_BWD, dy="short ints away", y="ints"))
def softmax_bwd(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx = y * (dy - sum(dy * y)) along dim."""
    check("softmax_bwd", y, dim, lead="y", dy=dy)
    v = wide(y)
    g = dy.to(v.dtype)
    return rounded(v * (g - (g * v).sum(dim, keepdim=True)), y.dtype)


@op(out="dx", samples=LOG_SOFTMAX_BWD, errors=errors(LOG_SOFTMAX_BWD, dy="short ints away", y="ints"))
def log_softmax_bwd(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx = dy - exp(y) * sum(dy) along dim."""
    check("log_softmax_bwd", y, dim, lead="y", dy=dy)
    v = wide(y)
    g = dy.to(v.dtype)
    return rounded(g - torch.exp(v) * g.sum(dim, keepdim=True), y.dtype)
