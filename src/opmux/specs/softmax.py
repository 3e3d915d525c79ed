"""Softmax and log-softmax along any dimension, and the softmax of attention logits: scaled, masked, causal.

The ops compute in float32 (float64 for float64), round once, and return new contiguous tensors.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Mask, broadcasts_to, dim_of
from ..core.spec import op
from ._numeric import rounded, wide
from .samples import Case, Draw, Maker, rows

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
        args = _args(d)
        return {"dy": d.grad(), "y": result(args["x"], args["dim"]), "dim": args["dim"]}

    return build


FWD = rows(_args, *ALONG)


@op(grad="softmax_bwd", samples=FWD)
def softmax(x: Float[Tensor, "..."], dim: Annotated[int, dim_of("x")] = -1) -> Tensor:
    """Softmax along dim: y = exp(x - max(x)) / sum(exp(x - max(x))).

    Args:
        x: the logits.
        dim: the dimension along which y sums to 1.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """
    return rounded(torch.softmax(wide(x), dim), x.dtype)


@op(grad="log_softmax_bwd", samples=FWD)
def log_softmax(x: Float[Tensor, "..."], dim: Annotated[int, dim_of("x")] = -1) -> Tensor:
    """The logarithm of the softmax along dim: y = x - max(x) - log(sum(exp(x - max(x)))).

    Args:
        x: the logits.
        dim: the dimension along which exp(y) sums to 1.

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
    """The gradient of softmax: dx = y * (dy - sum(dy * y)) along dim.

    Args:
        dy: the gradient of y.
        y: the result of the forward.
        dim: as in the forward.

    Returns:
        dx, like y.
    """
    v = wide(y)
    return rounded(torch._softmax_backward_data(dy.to(v.dtype), v, dim, v.dtype), y.dtype)


@op(out="dx", samples=LOG_SOFTMAX_BWD)
def log_softmax_bwd(
    dy: Grad[Tensor, "*shape"], y: Float[Tensor, "*shape"], dim: Annotated[int, dim_of("y")] = -1
) -> Tensor:
    """The gradient of log_softmax: dx = dy - exp(y) * sum(dy) along dim.

    Args:
        dy: the gradient of y.
        y: the result of the forward.
        dim: as in the forward.

    Returns:
        dx, like y.
    """
    v = wide(y)
    return rounded(torch._log_softmax_backward_data(dy.to(v.dtype), v, dim, v.dtype), y.dtype)


# ---- attention logits -----------------------------------------------------------------------------------------------
#
# For query i, `causal` masks the keys after i + (keys - queries), so the last query attends to all keys. Masked keys
# get 0, even if all keys of a query are masked.


def after(x: Tensor) -> Tensor:
    """The causal mask, bool [queries, keys]: True for keys after a query; the last query is aligned to the last key."""
    queries, keys = x.shape[-2:]
    i = torch.arange(queries, device=x.device)[:, None]
    return torch.arange(keys, device=x.device) > i + (keys - queries)


def hidden(x: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """A bool tensor that broadcasts to x and is True for masked keys; None without `mask` and `causal`."""
    if mask is None:
        return after(x) if causal else None
    return (mask != 0) | after(x) if causal else mask != 0


# Options: mask (its shape), bits (the mask's dtype), blind (all keys of the first query are masked), causal, scale.
SCALED_CASES = (
    Case((2, 3, 5, 64)),
    Case((2, 3, 5, 64), options={"mask": (2, 1, 5, 64)}),
    Case((2, 3, 8, 16), options={"causal": True, "scale": 0.25}),
    Case((2, 3, 5, 64), options={"mask": (2, 1, 5, 64), "bits": torch.uint8, "blind": True, "scale": 0.125}),
    Case((2, 3, 5, 64), options={"mask": (1, 1, 5, 64), "causal": True}),
    Case((2, 3, 5, 37), options={"mask": (2, 1, 1, 37)}),
    Case((2, 3, 5, 37), options={"mask": (2, 3, 5, 1)}),
    Case((2, 2, 3, 5, 8), options={"mask": (2, 1, 3, 5, 8)}),
    Case((2, 3, 5, 64), options={"mask": (5, 64), "layout": "t"}),
    Case((6, 37, 37), options={"causal": True}),
    Case((2, 3, 7, 40), options={"causal": True}),
    Case((2, 9, 4), options={"causal": True}),
    Case((1000, 37), options={"causal": True, "scale": -1.0}),
    Case((37, 1000)),
    Case((1, 1)),
    Case((2, 0, 5)),
    Case((2, 5, 0)),
    Case((2, 3, 16, 64), "t", {"causal": True, "mask": (2, 3, 16, 64)}),
    Case((3, 2, 5, 64), "swapped", {"mask": (3, 1, 5, 64)}),
    Case((2, 5, 64), "step", {"causal": True}),
    Case((2, 5, 37), "sliced", {"causal": True}),
    Case((5, 64), "expanded"),
    Case((37, 64), "t"),
)


def scaled_args(d: Draw) -> dict[str, Any]:
    x = d.full(3.0)
    mask, shape = None, d.option("mask")
    if shape is not None:
        mask = Draw(Case(shape, d.option("layout", "packed"), {"of": d.case.id}), torch.float32, d.device).full() > 0.3
        if d.option("blind"):
            mask[..., 0, :] = True
        mask = mask.to(d.option("bits", torch.bool))
    return {"x": x, "mask": mask, "scale": d.option("scale", 1.0), "causal": d.option("causal", False)}


SCALED_FWD = Maker(scaled_args, SCALED_CASES)


@op(grad="scaled_softmax_bwd", samples=SCALED_FWD)
def scaled_softmax(
    x: Float[Tensor, "*lead queries keys"],
    mask: Mask[Tensor, "...", broadcasts_to("x")] | None = None,
    scale: float = 1.0,
    causal: bool = False,
) -> Tensor:
    """Softmax of attention logits: y = softmax(scale * x) over the unmasked keys, and 0 for masked keys.

    Args:
        x: the logits.
        mask: keys are masked where it is not 0.
        scale: multiplies the logits.
        causal: also mask the keys after i + (keys - queries) for query i.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once. A fully masked query gets zeros.
    """
    v = wide(x) * scale
    out = hidden(x, mask, causal)
    if out is None:
        return rounded(torch.softmax(v, -1), x.dtype)
    # softmax gives NaN in a fully masked row; the second masked_fill replaces it
    return rounded(torch.softmax(v.masked_fill(out, -torch.inf), -1).masked_fill(out, 0.0), x.dtype)


def scaled_bwd_args(d: Draw) -> dict[str, Any]:
    args = scaled_args(d)
    return {"dy": d.grad(), "y": scaled_softmax.reference(**args), "scale": args["scale"], "causal": args["causal"]}


SCALED_BWD = Maker(scaled_bwd_args, SCALED_CASES)


@op(out="dx", samples=SCALED_BWD)
def scaled_softmax_bwd(
    dy: Grad[Tensor, "*lead queries keys"],
    y: Float[Tensor, "*lead queries keys"],
    scale: float = 1.0,
    causal: bool = False,
) -> Tensor:
    """The gradient of scaled_softmax: dx = scale * y * (dy - sum(dy * y)) over the last dimension.

    Args:
        dy: the gradient of y.
        y: the result of the forward.
        scale: as in the forward.
        causal: as in the forward; masked keys are not read, and their gradients are 0.

    Returns:
        dx, like y.
    """
    v = wide(y)
    g = dy.to(v.dtype)
    if not causal:
        return rounded(scale * (v * (g - (g * v).sum(-1, keepdim=True))), y.dtype)
    out = after(y)
    v, g = v.masked_fill(out, 0.0), g.masked_fill(out, 0.0)
    return rounded((scale * (v * (g - (g * v).sum(-1, keepdim=True)))).masked_fill(out, 0.0), y.dtype)
