"""Ops that some models use instead of a norm: modulated RMS norm, PolyNorm and dynamic tanh.

These ops compute in float32 (float64 for float64), round once, and return new contiguous tensors.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, same_dtype, single
from ..core.errors import BadArgument
from ..core.spec import BadSample, Tol, op
from ._numeric import SUMS, rounded, wide
from .norm import Casting, rms_parts, row_mean
from .samples import Case, Draw, rows

# Tolerances of ops that also sum over all elements.
TOTALS = {torch.float32: Tol(1e-4, 1e-3), torch.float64: Tol(1e-7, 1e-6)}


# ---- modulated RMS norm ---------------------------------------------------------------------------------------------


def groups_divide(op: str, x: Tensor, scale: Tensor) -> None:
    count, groups = math.prod(x.shape[:-1]), scale.shape[0]
    if groups == 0 or count % groups:
        expected = f"have a number of rows that divides {count}, the rows of {{x}} {tuple(x.shape)}"
        raise BadArgument.of(op, "scale", expected, str(tuple(scale.shape)))


def _not_divisible(device: torch.device) -> Any:
    tensors = (torch.ones(6, 8, device=device), torch.ones(8, device=device), torch.ones(4, 8, device=device))
    yield BadSample((*tensors, None, 1e-6, 0.0, "gemma"), BadArgument, "scale", id="scale: 4 groups of 6 rows")


def _of_rows(t: Tensor, x: Tensor) -> Tensor:
    """Expand t [groups, n] to the shape of x, in float32 (float64 for float64): each row gets its group's values."""
    groups, n = t.shape
    each = t.to(wide(x).dtype)[:, None].expand(groups, math.prod(x.shape[:-1]) // groups, n)
    return each.reshape(x.shape)


def _modulated_args(d: Draw) -> dict[str, Any]:
    x = d.full()
    count, n = math.prod(x.shape[:-1]), x.shape[-1]
    groups = max(count, 1) if d.option("groups") == "rows" else d.option("groups", 1)
    return {
        "x": x,
        "weight": d.cols(),
        "scale": d.weights(groups, n),
        "shift": None if d.option("no_shift") else d.weights(groups, n),
        "eps": d.option("eps", 1e-6),
        "offset": d.option("offset", 0.0),
        "casting": d.option("casting", "gemma"),
    }


MODULATED = (
    Case((6, 64), options={"groups": 2}),
    Case((2, 3, 37), options={"groups": "rows", "no_shift": True}),
    Case((37, 1000), options={"groups": 37}),
    Case((4, 64), options={"groups": 2, "casting": "llama"}),
    Case((4, 64), options={"casting": "none", "offset": 1.0}),
)


@op(
    out="y rstd",
    grad="modulated_rms_norm_bwd",
    samples=rows(_modulated_args, *MODULATED),
    where=groups_divide,
    errors=_not_divisible,
)
def modulated_rms_norm(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    scale: Float[Tensor, "groups n"],
    shift: Float[Tensor, "groups n", same_dtype("scale")] | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor]:
    """RMS norm with a scale and a shift for each group of rows: y = rms_norm(x, weight) * (1 + scale) + shift.

    Args:
        x: the rows to normalise; they are divided into equal groups of consecutive rows.
        weight: the weight of each column, for all rows.
        scale: the scale of each group and column; a group may be a sample of a batch, or one row.
        shift: added to the product; None is 0.
        eps: added to the mean square.
        offset: added to the weight.
        casting: as in rms_norm. With "none" the scaled result is rounded to x's dtype after every step, else once.

    Returns:
        y, like x, and rstd, float32 [*rows] (float64 for float64): 1 / sqrt(mean(x^2) + eps).
    """
    y, rstd = rms_parts(x, weight, eps, offset, casting)
    step = (lambda t: t.to(x.dtype).to(y.dtype)) if casting == "none" else (lambda t: t)
    y = step(step(y) * step(1 + _of_rows(scale, x)))
    if shift is not None:
        y = y + _of_rows(shift, x)
    return rounded(y, x.dtype), rounded(rstd, rstd.dtype)


def _modulated_bwd_args(d: Draw) -> dict[str, Any]:
    args = _modulated_args(d)
    _, rstd = modulated_rms_norm.reference(**args)
    saved = {"x": args["x"], "weight": args["weight"], "scale": args["scale"], "rstd": rstd}
    return {"dy": d.grad(), **saved, "offset": args["offset"], "casting": args["casting"]}


@op(
    out="dx dweight dscale dshift",
    samples=rows(_modulated_bwd_args, *MODULATED),
    tol=SUMS,
    where=groups_divide,
)
def modulated_rms_norm_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    scale: Float[Tensor, "groups n"],
    rstd: Float[Tensor, "*rows"],
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of modulated_rms_norm.

    x' = x * rstd, w = weight + offset, g = dy * (1 + scale) * w: dx = rstd * (g - x' * mean(g * x')),
    dweight = sum(dy * (1 + scale) * x') over all rows; over the rows of each group dscale = sum(dy * w * x') and
    dshift = sum(dy).

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.
        scale: as in the forward.
        rstd: the second result of the forward.
        offset: as in the forward.
        casting: as in the forward; unless it is "gemma", dweight and dscale use x' rounded to x's dtype.

    Returns:
        dx, like x, dweight, like weight, and dscale and dshift, like scale.
    """
    v = wide(x)
    dz, w, r = dy.to(v.dtype), weight.to(v.dtype) + offset, rstd.to(v.dtype)[..., None]
    xhat, s = v * r, 1 + _of_rows(scale, x)
    g = dz * s * w
    dx = r * (g - xhat * row_mean(g * xhat)[..., None])
    if casting != "gemma":
        xhat = xhat.to(x.dtype).to(v.dtype)
    groups, n = scale.shape
    each = lambda t: t.reshape(groups, math.prod(x.shape[:-1]) // groups, n).sum(1)
    dweight = (dz * s * xhat).sum_to_size(weight.shape)
    dscale, dshift = each(dz * xhat) * w, each(dz)
    return tuple(rounded(t, like.dtype) for t, like in ((dx, x), (dweight, weight), (dscale, scale), (dshift, scale)))  # pyright: ignore[reportReturnType]


# ---- PolyNorm -------------------------------------------------------------------------------------------------------


def _powers(v: Tensor) -> Tensor:
    """x^3, x^2 and x, stacked: [3, *rows, n]."""
    return torch.stack([v * v * v, v * v, v])


def _three(t: Tensor, v: Tensor) -> Tensor:
    """Reshape t, [3] or [*rows, 3], so that it broadcasts to the shape of _powers(v)."""
    return t.to(v.dtype).movedim(-1, 0).reshape(3, *(v.shape[:-1] if t.dim() > 1 else [1] * (v.dim() - 1)), 1)


def _poly_args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(), "weight": d.weights(3), "bias": d.weights(1), "eps": d.option("eps", 1e-6)}


@op(out="y rstd", grad="poly_norm_bwd", samples=rows(_poly_args))
def poly_norm(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "3"],
    bias: Float[Tensor, "...", single(), same_dtype("weight")],
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """PolyNorm, a sum of normalised powers: y = w0 * norm(x^3) + w1 * norm(x^2) + w2 * norm(x) + bias.

    norm(p) = p * rsqrt(mean(p^2) + eps), over the last dimension.

    Args:
        x: the rows.
        weight: w0, w1 and w2.
        bias: one element, added to all elements.
        eps: added to each mean square.

    Returns:
        y, like x, and rstd, float32 [*rows, 3] (float64 for float64): rsqrt(mean(p^2) + eps) for x^3, x^2 and x.
    """
    v = wide(x)
    p = _powers(v)
    rstd = torch.rsqrt(row_mean(p * p) + eps)
    y = (p * rstd[..., None] * _three(weight, v)).sum(0) + bias.to(v.dtype).reshape(())
    return rounded(y, x.dtype), rounded(rstd.movedim(0, -1), rstd.dtype)


def _poly_bwd_args(d: Draw) -> dict[str, Any]:
    args = _poly_args(d)
    _, rstd = poly_norm.reference(**args)
    return {"dy": d.grad(), "x": args["x"], "weight": args["weight"], "bias": args["bias"], "rstd": rstd}


@op(out="dx dweight dbias", samples=rows(_poly_bwd_args), tol=TOTALS)
def poly_norm_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "3"],
    bias: Float[Tensor, "...", single(), same_dtype("weight")],
    rstd: Float[Tensor, "*rows 3"],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of poly_norm.

    p = x^k, p' = p * rstd: dx = sum over k of w * rstd * (dy - p' * mean(dy * p')) * k * x^(k - 1),
    dweight = sum(dy * p'), dbias = sum(dy).

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.
        bias: as in the forward.
        rstd: the second result of the forward.

    Returns:
        dx, dweight and dbias, like x, weight and bias.
    """
    v, dz = wide(x), dy.to(wide(x).dtype)
    r, w = _three(rstd, v), _three(weight, v)
    xhat = _powers(v) * r
    slopes = torch.stack([3 * v * v, 2 * v, torch.ones_like(v)])
    dx = (w * r * (dz - xhat * row_mean(dz * xhat)[..., None]) * slopes).sum(0)
    dweight, dbias = (dz * xhat).flatten(1).sum(1), dz.sum().reshape(bias.shape)
    return rounded(dx, x.dtype), rounded(dweight, weight.dtype), rounded(dbias, bias.dtype)


# ---- dynamic tanh ---------------------------------------------------------------------------------------------------


def _dyt_args(d: Draw) -> dict[str, Any]:
    gamma, beta = d.cols(), None if d.option("no_beta") else d.cols()
    alpha = torch.full((1,), 0.5, dtype=gamma.dtype, device=d.device)
    return {"x": d.full(), "alpha": alpha, "gamma": gamma, "beta": beta}


NO_BETA = Case((5, 64), options={"no_beta": True})


@op(out="y", grad="dyt_bwd", samples=rows(_dyt_args, NO_BETA))
def dyt(
    x: Float[Tensor, "*rows n"],
    alpha: Float[Tensor, "...", single()],
    gamma: Float[Tensor, "n"],
    beta: Float[Tensor, "n", same_dtype("gamma")] | None = None,
) -> Tensor:
    """Dynamic tanh (DyT), which replaces a norm: y = tanh(alpha * x) * gamma + beta.

    Args:
        x: the rows.
        alpha: multiplies x; one element.
        gamma: the scale of each column.
        beta: added to each column; None is 0.

    Returns:
        y, like x.
    """
    v = wide(x)
    y = torch.tanh(alpha.to(v.dtype).reshape(()) * v) * gamma.to(v.dtype)
    return rounded(y if beta is None else y + beta.to(v.dtype), x.dtype)


def _dyt_bwd_args(d: Draw) -> dict[str, Any]:
    args = _dyt_args(d)
    return {"dy": d.grad(), "x": args["x"], "alpha": args["alpha"], "gamma": args["gamma"]}


@op(out="dx dalpha dgamma dbeta", samples=rows(_dyt_bwd_args), tol=TOTALS)
def dyt_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    alpha: Float[Tensor, "...", single()],
    gamma: Float[Tensor, "n"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of dyt.

    t = tanh(alpha * x), s = dy * gamma * (1 - t^2): dx = s * alpha, dalpha = sum(s * x), dgamma = sum(dy * t),
    dbeta = sum(dy).

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        alpha: as in the forward.
        gamma: as in the forward.

    Returns:
        dx, dalpha and dgamma, like x, alpha and gamma, and dbeta, like gamma.
    """
    v, dz = wide(x), dy.to(wide(x).dtype)
    a = alpha.to(v.dtype).reshape(())
    t = torch.tanh(a * v)
    s = dz * gamma.to(v.dtype) * (1 - t * t)
    dgamma, dbeta = (dz * t).sum_to_size(gamma.shape), dz.sum_to_size(gamma.shape)
    dalpha = (s * v).sum().reshape(alpha.shape)
    return tuple(rounded(g, like.dtype) for g, like in ((s * a, x), (dalpha, alpha), (dgamma, gamma), (dbeta, gamma)))  # pyright: ignore[reportReturnType]
