"""Normalisation over the last dimension: RMS norm, layer norm, RMS norm of a sum. tex's norms are in `tex_norm`.

All of them compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results. Leading
dimensions are rows: none is one row, and there may be zero of them. `offset` is added to the weight: 1.0 is what
others call a zero-centred gamma.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.spec import Tol, op
from . import _fp8
from ._numeric import check_dtype, dtype_name, rounded, wide
from .samples import Case, Draw, errors, rows

# A weight's gradient is a sum over all rows: implementations add them in another order.
SUMS = {torch.float32: Tol(1e-5, 1e-4)}


def check(
    op: str,
    x: Tensor,
    *,
    lead: str = "x",
    full: Mapping[str, Tensor] | None = None,
    cols: Mapping[str, Tensor | None] | None = None,
    rows: Mapping[str, Tensor] | None = None,
) -> None:
    """Refuse arguments that mean nothing: `full` ones are shaped like x (named `lead`), the others have a number for
    each of its columns or rows."""
    if x.dim() == 0:
        raise ValueError(f"{op}: {lead} must have at least one dimension, to normalise over; got a 0-dim tensor")
    shape = tuple(x.shape)
    expected = (
        ({lead: x, **(full or {})}, shape, f"that of {lead}"),
        (cols or {}, shape[-1:], f"the last dimension of {lead} {shape}"),
        (rows or {}, shape[:-1], f"the leading dimensions of {lead} {shape}"),
    )
    for tensors, wanted, what in expected:
        for name, t in tensors.items():
            if t is None:
                continue
            check_dtype(op, name, t.dtype)
            if tuple(t.shape) != wanted:
                raise ValueError(f"{op}: {name} must have shape {wanted}, {what}; got {tuple(t.shape)}")
            if t.device != x.device:
                raise ValueError(f"{op}: {name} must be on {x.device}, the device of {lead}; got {t.device}")


def row_mean(x: Tensor) -> Tensor:
    """The mean of each row, 0 for a row of nothing."""
    return x.sum(-1) / torch.sym_max(x.shape[-1], 1)


# ---- RMS norm -------------------------------------------------------------------------------------------------------


def rms_parts(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(row_mean(x * x) + eps)
    return x * rstd[..., None] * (weight.to(x.dtype) + offset), rstd


def _rms_grad(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    dy, weight, rstd = dy.to(x.dtype), weight.to(x.dtype), rstd.to(x.dtype)[..., None]
    xhat = x * rstd
    g = dy * (weight + offset)
    return rstd * (g - xhat * row_mean(g * xhat)[..., None]), (dy * xhat).sum_to_size(weight.shape)


def rms_args(d: Draw) -> dict[str, Any]:
    return {
        "x": d.full(),
        "weight": d.cols(),
        "eps": d.option("eps", 1e-6),
        "offset": d.option("offset", 0.0),
    }


RMS = rows(rms_args)


@op(
    out="y rstd",
    grad="rms_norm_bwd",
    samples=RMS,
    errors=errors(RMS, x="0-dim ints", weight="short ints away"),
)
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """y = x * rstd * (weight + offset), rstd = rsqrt(mean(x^2) + eps)."""
    check("rms_norm", x, cols={"weight": weight})
    y, rstd = rms_parts(wide(x), weight, eps, offset)
    return rounded(y, x.dtype), rounded(rstd, rstd.dtype)


def rms_bwd_args(d: Draw) -> dict[str, Any]:
    of = rms_args(d)
    _, rstd = rms_norm.reference(**of)
    return {"dy": d.grad(), "x": of["x"], "weight": of["weight"], "rstd": rstd, "offset": of["offset"]}


RMS_BWD = rows(rms_bwd_args)


@op(
    out="dx dweight",
    samples=RMS_BWD,
    errors=errors(RMS_BWD, dy="short few ints away", x="0-dim", weight="short", rstd="few away"),
    tol=SUMS,
)
def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """g = dy * (weight + offset), x' = x * rstd: dx = rstd * (g - x' * mean(g * x')), dweight = sum(dy * x')."""
    check("rms_norm_bwd", x, full={"dy": dy}, cols={"weight": weight}, rows={"rstd": rstd})
    dx, dweight = _rms_grad(dy, wide(x), weight, rstd, offset)
    return rounded(dx, x.dtype), rounded(dweight, weight.dtype)


def _rms_bwd_add_args(d: Draw) -> dict[str, Any]:
    of = rms_bwd_args(d)
    return {"dy": of.pop("dy"), "x": of.pop("x"), "add": d.full(), **of}


RMS_BWD_ADD = rows(_rms_bwd_add_args)


@op(
    out="dx dweight",
    samples=RMS_BWD_ADD,
    errors=errors(RMS_BWD_ADD, dy="short ints", x="0-dim", add="short few ints away", weight="short", rstd="few"),
    tol=SUMS,
)
def rms_norm_bwd_add(
    dy: Tensor, x: Tensor, add: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """dx = add + (the dx of rms_norm_bwd), added before the rounding; dweight as there."""
    check("rms_norm_bwd_add", x, full={"dy": dy, "add": add}, cols={"weight": weight}, rows={"rstd": rstd})
    dx, dweight = _rms_grad(dy, wide(x), weight, rstd, offset)
    return rounded(dx + add.to(dx.dtype), x.dtype), rounded(dweight, weight.dtype)


# ---- RMS norm of a sum ----------------------------------------------------------------------------------------------


def check_add(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    check("add_rms_norm", x, full={"residual": residual}, cols={"weight": weight})
    if residual.dtype != x.dtype:
        want, got = dtype_name(x.dtype), dtype_name(residual.dtype)
        raise ValueError(f"add_rms_norm: residual must be {want}, the dtype of x; got {got}")


def _add_rms_args(d: Draw) -> dict[str, Any]:
    of = rms_args(d)
    return {"x": of.pop("x"), "residual": d.full(), **of}


ADD_RMS = rows(_add_rms_args)


def _add_rms_again(s: Tensor, weight: Tensor, eps: float, offset: float, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
    y, rstd = rms_parts(wide(s), weight, eps, offset)
    return y, s, rstd


@op(
    out="y s rstd",
    grad="add_rms_norm_bwd",
    recompute=_add_rms_again,
    samples=ADD_RMS,
    errors=errors(ADD_RMS, x="0-dim ints", residual="short few dtype away", weight="short away"),
)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, offset: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """s = x + residual, in x's dtype; y = s * rstd * (weight + offset), rstd = rsqrt(mean(s^2) + eps)."""
    check_add(x, residual, weight)
    s = rounded(wide(x) + wide(residual), x.dtype)
    # From the rounded sum: it is what the backward will see.
    y, rstd = rms_parts(wide(s), weight, eps, offset)
    return rounded(y, x.dtype), s, rounded(rstd, rstd.dtype)


def _add_rms_bwd_args(d: Draw) -> dict[str, Any]:
    of = rms_bwd_args(d)
    return {"dy": of.pop("dy"), "ds": d.grad(), "s": of.pop("x"), **of}


ADD_RMS_BWD = rows(_add_rms_bwd_args)


@op(
    out="dx dresidual dweight",
    samples=ADD_RMS_BWD,
    errors=errors(ADD_RMS_BWD, dy="short ints", ds="few away", s="0-dim", weight="short", rstd="few"),
    tol=SUMS,
)
def add_rms_norm_bwd(
    dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = dresidual = ds + (the dx of rms_norm_bwd at s), in two tensors; dweight as there."""
    check(
        "add_rms_norm_bwd",
        s,
        lead="s",
        full={"dy": dy, "ds": ds},
        cols={"weight": weight},
        rows={"rstd": rstd},
    )
    dx, dweight = _rms_grad(dy, wide(s), weight, rstd, offset)
    dx = dx + ds.to(dx.dtype)
    return rounded(dx, s.dtype), rounded(dx, s.dtype), rounded(dweight, weight.dtype)


# ---- layer norm -----------------------------------------------------------------------------------------------------


def layer_parts(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    mu = row_mean(x)
    centred = x - mu[..., None]
    rstd = torch.rsqrt(row_mean(centred * centred) + eps)
    y = centred * rstd[..., None] * (weight.to(x.dtype) + offset)
    return (y if bias is None else y + bias.to(x.dtype)), mu, rstd


def layer_args(d: Draw) -> dict[str, Any]:
    return {
        "x": d.full(),
        "weight": d.cols(),
        "bias": None if d.option("no_bias") else d.cols(),
        "eps": d.option("eps", 1e-5),
        "offset": d.option("offset", 0.0),
    }


LAYER = rows(layer_args, Case((5, 64), options={"no_bias": True}))


@op(
    out="y mean rstd",
    grad="layer_norm_bwd",
    samples=LAYER,
    errors=errors(LAYER, x="0-dim ints", weight="short ints away", bias="short ints away"),
)
def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5, offset: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * (weight + offset) + bias, rstd = rsqrt(var(x) + eps), with the biased variance."""
    check("layer_norm", x, cols={"weight": weight, "bias": bias})
    y, mu, rstd = layer_parts(wide(x), weight, bias, eps, offset)
    return rounded(y, x.dtype), rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)


def layer_bwd_args(d: Draw) -> dict[str, Any]:
    of = layer_args(d)
    _, mu, rstd = layer_norm.reference(**of)
    saved = {"x": of["x"], "weight": of["weight"], "mean": mu, "rstd": rstd}
    return {"dy": d.grad(), **saved, "offset": of["offset"]}


LAYER_BWD = rows(layer_bwd_args)


@op(
    out="dx dweight dbias",
    samples=LAYER_BWD,
    errors=errors(LAYER_BWD, dy="short ints away", x="0-dim", weight="short", mean="few", rstd="few away"),
    tol=SUMS,
)
def layer_norm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, offset: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """g = dy * (weight + offset), x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')),
    dweight = sum(dy * x'), dbias = sum(dy), in weight's dtype."""
    stats = {"mean": mean, "rstd": rstd}
    check("layer_norm_bwd", x, full={"dy": dy}, cols={"weight": weight}, rows=stats)
    v = wide(x)
    dz, mu, r = dy.to(v.dtype), mean.to(v.dtype)[..., None], rstd.to(v.dtype)[..., None]
    xhat = (v - mu) * r
    g = dz * (weight.to(v.dtype) + offset)
    dx = r * (g - row_mean(g)[..., None] - xhat * row_mean(g * xhat)[..., None])
    dweight, dbias = (dz * xhat).sum_to_size(weight.shape), dz.sum_to_size(weight.shape)
    return rounded(dx, x.dtype), rounded(dweight, weight.dtype), rounded(dbias, weight.dtype)


# ---- with a float8 result -------------------------------------------------------------------------------------------

RMS_FP8 = _fp8.samples(rms_args, "eps offset")
LAYER_FP8 = _fp8.samples(layer_args, "eps offset")


@op(
    out="y scale_inv rstd",
    mutates=("amax",),
    samples=RMS_FP8,
    errors=_fp8.bad(RMS_FP8, x="0-dim ints", weight="short ints away"),
    tol=_fp8.BYTES,
)
def rms_norm_fp8(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """rms_norm with y in float8."""
    check("rms_norm_fp8", x, cols={"weight": weight})
    _fp8.check("rms_norm_fp8", x, scale, amax, dtype)
    y, rstd = rms_parts(wide(x), weight, eps, offset)
    return *_fp8.cast(y, scale, amax, dtype), rounded(rstd, rstd.dtype)


@op(
    out="y scale_inv mean rstd",
    mutates=("amax",),
    samples=LAYER_FP8,
    errors=_fp8.bad(LAYER_FP8, x="0-dim ints", weight="short ints away", bias="short ints away"),
    tol=_fp8.BYTES,
)
def layer_norm_fp8(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    eps: float = 1e-5,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """layer_norm with y in float8."""
    check("layer_norm_fp8", x, cols={"weight": weight, "bias": bias})
    _fp8.check("layer_norm_fp8", x, scale, amax, dtype)
    y, mu, rstd = layer_parts(wide(x), weight, bias, eps, offset)
    return *_fp8.cast(y, scale, amax, dtype), rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)
