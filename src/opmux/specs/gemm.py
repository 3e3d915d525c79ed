"""Matrix products: linear, forward and backward.

They add up in float32 (float64 for float64 inputs) and round once, into fresh contiguous results. Whether a chip may
round float32 factors to TF32 is torch's setting (`torch.backends.cuda.matmul`), here as there.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..core.spec import Tol, op
from ._numeric import FLOATS, check_dtype, dtype_name, rounded, wide
from .samples import Case, Draw, Maker, errors

# Products are added up in another order; parts of a sum may be rounded to the inputs' dtype before they are added.
SUMS = {
    torch.float32: Tol(1e-5, 1e-4),
    torch.float16: Tol(2e-3, 1e-2),
    torch.bfloat16: Tol(1.6e-2, 5e-2),
}


def fits(x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor | None) -> bool:
    """Whether all is right, in as few questions as will do: a library's call is not much longer."""
    shape, outs, dtype, device = x.shape, weight.shape, x.dtype, x.device
    if not shape or len(outs) != 2 or shape[-1] != outs[1] or weight.dtype != dtype or weight.device != device:
        return False
    if bias is not None and (bias.shape != outs[:1] or bias.dtype != dtype or bias.device != device):
        return False
    if dy is not None and (dy.shape != (*shape[:-1], outs[0]) or dy.dtype not in FLOATS or dy.device != device):
        return False
    return dtype in FLOATS


def check(op: str, x: Tensor, weight: Tensor, bias: Tensor | None = None, dy: Tensor | None = None) -> None:
    """Refuse what does not fit together: shapes, dtypes (but a gradient's, which may be any float), devices."""
    if fits(x, weight, bias, dy):
        return
    if x.dim() == 0:
        raise ValueError(f"{op}: x must have at least one dimension, that of weight's inputs; got a 0-dim tensor")
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must be [out, in]; got {tuple(weight.shape)}")
    n, k = weight.shape[0], x.shape[-1]
    expected = (
        ("x", x, x.shape, ""),
        ("weight", weight, (n, k), f"the last dimension of x {tuple(x.shape)} being its inputs"),
        ("bias", bias, (n,), f"the outputs of weight {tuple(weight.shape)}"),
        ("dy", dy, (*x.shape[:-1], n), f"the leading dimensions of x {tuple(x.shape)} and the outputs of weight"),
    )
    for name, t, wanted, what in expected:
        if t is None:
            continue
        check_dtype(op, name, t.dtype)
        if t.shape != wanted:
            raise ValueError(f"{op}: {name} must have shape {tuple(wanted)}, {what}; got {tuple(t.shape)}")
        if t.device != x.device:
            raise ValueError(f"{op}: {name} must be on {x.device}, the device of x; got {t.device}")
        if t.dtype != x.dtype and name != "dy":
            raise ValueError(f"{op}: {name} must be {dtype_name(x.dtype)}, the dtype of x; got {dtype_name(t.dtype)}")


def _args(d: Draw) -> dict[str, Any]:
    """Options: out (the number of outputs; by default as many as inputs), no_bias."""
    k = d.case.shape[-1]
    n = d.option("out", k)
    drawn = lambda name, shape: Draw(
        Case(shape, d.case.layout, {"of": d.case.id, "name": name}), d.dtype, d.device
    ).full(max(k, 1) ** -0.5)
    bias = None if d.option("no_bias") else drawn("bias", (n,))
    return {"x": d.full(), "weight": drawn("weight", (n, k)), "bias": bias}


CASES = (
    Case((5, 64)),
    Case((37, 100), options={"out": 24}),
    Case((2, 3, 17), options={"out": 5, "no_bias": True}),
    Case((1, 1)),
    Case((37,), options={"out": 8}),
    Case((2, 3, 4, 16), options={"out": 40}),
    Case((0, 37)),
    Case((5, 0), options={"out": 3}),
    Case((5, 8), options={"out": 0}),
    Case((24, 64), "t", {"out": 16}),
    Case((2, 3, 64), "swapped", {"out": 16}),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
)
LINEAR = Maker(_args, CASES)


def _flops(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> int:
    return 2 * math.prod(x.shape[:-1]) * weight.numel()


@op(
    grad="linear_bwd",
    samples=LINEAR,
    errors=errors(LINEAR, x="0-dim ints", weight="short ints away dtype", bias="short ints away dtype"),
    tol=SUMS,
    flops=_flops,
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x weight^T + bias, with weight [out, in]."""
    check("linear", x, weight, bias)
    v = wide(x)
    y = v @ weight.to(v.dtype).mT
    return rounded(y if bias is None else y + bias.to(v.dtype), x.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    of = _args(d)
    shape = (*d.case.shape[:-1], of["weight"].shape[0])
    return {"dy": Draw(Case(shape, d.case.layout), d.dtype, d.device).grad(), "x": of["x"], "weight": of["weight"]}


LINEAR_BWD = Maker(_bwd_args, CASES)


@op(
    out="dx dweight dbias",
    samples=LINEAR_BWD,
    errors=errors(LINEAR_BWD, dy="short few ints away", x="0-dim", weight="short dtype"),
    tol=SUMS,
    flops=lambda dy, x, weight: 2 * _flops(x, weight),
)
def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx = dy weight, dweight = dy^T x, dbias = sum(dy), both summed over all leading dimensions."""
    check("linear_bwd", x, weight, dy=dy)
    v = wide(x)
    g, w = dy.to(v.dtype), weight.to(v.dtype)
    (n, k), m = w.shape, math.prod(x.shape[:-1])
    rows = g.reshape(m, n)
    dweight, dbias = rows.mT @ v.reshape(m, k), rows.sum(0)
    return rounded(g @ w, x.dtype), rounded(dweight, weight.dtype), rounded(dbias, weight.dtype)
