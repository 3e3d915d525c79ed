"""Normalisation over the last dimension: RMS norm, layer norm, RMS norm of a sum; and tex's norms made of them.

All of them compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results. Leading
dimensions are rows: none is one row, and there may be zero of them. `offset` is added to the weight: 1.0 is what
others call a zero-centred gamma.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.spec import Tol, op
from ._numeric import check_dtype, dtype_name, rounded, wide
from .samples import OTHER, Case, Draw, errors, rows

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


def _rms(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(row_mean(x * x) + eps)
    return x * rstd[..., None] * (weight.to(x.dtype) + offset), rstd


def _rms_grad(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    dy, weight, rstd = dy.to(x.dtype), weight.to(x.dtype), rstd.to(x.dtype)[..., None]
    xhat = x * rstd
    g = dy * (weight + offset)
    return rstd * (g - xhat * row_mean(g * xhat)[..., None]), (dy * xhat).sum_to_size(weight.shape)


def _rms_args(d: Draw) -> dict[str, Any]:
    return {
        "x": d.full(),
        "weight": d.cols(),
        "eps": d.option("eps", 1e-6),
        "offset": d.option("offset", 0.0),
    }


RMS = rows(_rms_args)


@op(
    out="y rstd",
    grad="rms_norm_bwd",
    samples=RMS,
    errors=errors(RMS, x="0-dim ints", weight="short ints away"),
)
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """y = x * rstd * (weight + offset), rstd = rsqrt(mean(x^2) + eps)."""
    check("rms_norm", x, cols={"weight": weight})
    y, rstd = _rms(wide(x), weight, eps, offset)
    return rounded(y, x.dtype), rounded(rstd, rstd.dtype)


def _rms_bwd_args(d: Draw) -> dict[str, Any]:
    of = _rms_args(d)
    _, rstd = rms_norm.reference(**of)
    return {"dy": d.grad(), "x": of["x"], "weight": of["weight"], "rstd": rstd, "offset": of["offset"]}


RMS_BWD = rows(_rms_bwd_args)


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
    of = _rms_bwd_args(d)
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
    of = _rms_args(d)
    return {"x": of.pop("x"), "residual": d.full(), **of}


ADD_RMS = rows(_add_rms_args)


@op(
    out="y s rstd",
    grad="add_rms_norm_bwd",
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
    y, rstd = _rms(wide(s), weight, eps, offset)
    return rounded(y, x.dtype), s, rounded(rstd, rstd.dtype)


def _add_rms_bwd_args(d: Draw) -> dict[str, Any]:
    of = _rms_bwd_args(d)
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


def _layer_args(d: Draw) -> dict[str, Any]:
    return {
        "x": d.full(),
        "weight": d.cols(),
        "bias": None if d.option("no_bias") else d.cols(),
        "eps": d.option("eps", 1e-5),
        "offset": d.option("offset", 0.0),
    }


LAYER = rows(_layer_args, Case((5, 64), options={"no_bias": True}))


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
    v = wide(x)
    mu = row_mean(v)
    centred = v - mu[..., None]
    rstd = torch.rsqrt(row_mean(centred * centred) + eps)
    y = centred * rstd[..., None] * (weight.to(v.dtype) + offset)
    if bias is not None:
        y = y + bias.to(v.dtype)
    return rounded(y, x.dtype), rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)


def _layer_bwd_args(d: Draw) -> dict[str, Any]:
    of = _layer_args(d)
    _, mu, rstd = layer_norm.reference(**of)
    saved = {"x": of["x"], "weight": of["weight"], "mean": mu, "rstd": rstd}
    return {"dy": d.grad(), **saved, "offset": of["offset"]}


LAYER_BWD = rows(_layer_bwd_args)


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


# ---- tex: NVIDIA's names and signatures, over the ops above ---------------------------------------------------------


def _out_dtype(
    op: str,
    input: Tensor,
    ln_out: Tensor | None,
    quantizer: Any,
    otype: torch.dtype | None,
    cols: Mapping[str, Tensor | None],
) -> torch.dtype:
    """The dtype of a forward's output. Every mistake is found here, before anything is written."""
    if quantizer is not None:
        got = type(quantizer).__name__
        raise NotSupported(f"{op}: quantizer must be None, as {op} has no quantized output yet; got {got}")
    check(op, input, lead="input", cols=cols)
    if otype is not None and not isinstance(otype, torch.dtype):
        raise TypeError(f"{op}: otype must be a torch.dtype, or None for that of input; got {otype!r}")
    dtype = input.dtype if otype is None else otype
    check_dtype(op, "otype", dtype)
    if ln_out is not None:
        if not isinstance(ln_out, Tensor):
            raise TypeError(f"{op}: ln_out must be a Tensor or None; got {type(ln_out).__name__}")
        check(op, input, lead="input", full={"ln_out": ln_out})
        if ln_out.dtype != dtype:
            want, got = dtype_name(dtype), dtype_name(ln_out.dtype)
            raise ValueError(f"{op}: ln_out must be {want}, as otype says; got {got}")
    return dtype


def _holding(input: Tensor, dtype: torch.dtype) -> Tensor:
    """The input in a dtype that holds both it and the output: no rounding then comes before the one to otype."""
    return input.to(torch.promote_types(input.dtype, dtype))


def _stored(y: Tensor, ln_out: Tensor | None, dtype: torch.dtype) -> Tensor:
    return y.to(dtype) if ln_out is None else ln_out.copy_(y)


def _per_row(op: str, x: Tensor, **stats: Tensor) -> tuple[Tensor, ...]:
    """Statistics in the shape of the primitives: tex keeps a list of rows, whatever the shape of x."""
    count = math.prod(x.shape[:-1])
    for name, stat in stats.items():
        if stat.numel() != count:
            shapes = f"the rows of x {tuple(x.shape)}; got {tuple(stat.shape)}"
            raise ValueError(f"{op}: {name} must have shape ({count},), {shapes}")
    shaped = {name: stat.reshape(x.shape[:-1]) for name, stat in stats.items()}
    check(op, x, rows=shaped)
    return tuple(shaped.values())


def _stat(value: Tensor | None) -> Tensor | None:
    """A statistic in the shape of tex: float32, a list of rows."""
    if value is None or (value.dim() == 1 and value.dtype is torch.float32):
        return value
    return value.float().flatten()


def rms_result(value: Any) -> Any:
    """[out, None, rsigma] of what an implementation returns: (out, rsigma) will do, with rsigma of any shape."""
    if not isinstance(value, (list, tuple)) or len(value) not in (2, 3):
        return value
    out, rsigma = value[0], _stat(value[-1])
    right = isinstance(value, list) and len(value) == 3 and value[1] is None and value[2] is rsigma
    return value if right else [out, None, rsigma]


def layer_result(value: Any) -> Any:
    """[out, mu, rsigma] of what an implementation returns, the statistics of any shape."""
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return value
    mu, rsigma = _stat(value[1]), _stat(value[2])
    right = isinstance(value, list) and value[1] is mu and value[2] is rsigma
    return value if right else [value[0], mu, rsigma]


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


TEX = (
    Case((5, 64), options={"otype": "other"}),
    Case((5, 64), options={"otype": None}),
    Case((5, 64), options={"ln_out": True}),
    Case((2, 3, 64), "swapped", {"otype": "other", "ln_out": True, "offset": 1.0}),
)


def _tex_fwd_args(d: Draw, **bias: Tensor | None) -> dict[str, Any]:
    of = _rms_args(d)
    otype = {"same": d.dtype, "other": OTHER[d.dtype], None: None}[d.option("otype", "same")]
    ln_out = None
    if d.option("ln_out"):
        ln_out = torch.full(d.case.shape, float("nan"), dtype=otype, device=d.device)
    return {
        "input": of["x"],
        "weight": of["weight"],
        **bias,
        "eps": of["eps"],
        "ln_out": ln_out,
        "quantizer": None,
        "otype": otype,
        "sm_margin": 0,
        "zero_centered_gamma": of["offset"] == 1.0,
    }


def _layernorm_fwd_args(d: Draw) -> dict[str, Any]:
    return _tex_fwd_args(d, bias=None if d.option("no_bias") else d.cols())


def _tex_bwd_args(of: dict[str, Any], **between: Tensor) -> dict[str, Any]:
    """What a backward of ours takes, in tex's order and under tex's names, the statistics as lists of rows."""
    mu = {"mu": _stat(of["mean"])} if "mean" in of else {}
    return {
        "dz": of["dy"],
        "x": of["x"],
        **between,
        **mu,
        "rsigma": _stat(of["rstd"]),
        "gamma": of["weight"],
        "sm_margin": 0,
        "zero_centered_gamma": of["offset"] == 1.0,
    }


RMSNORM_FWD = rows(_tex_fwd_args, *TEX)
RMSNORM_BWD = rows(lambda d: _tex_bwd_args(_rms_bwd_args(d)))
RMSNORM_BWD_ADD = rows(lambda d: _tex_bwd_args(_rms_bwd_args(d), add=d.full()))
LAYERNORM_FWD = rows(_layernorm_fwd_args, *TEX, Case((5, 64), options={"no_bias": True}))
LAYERNORM_BWD = rows(lambda d: _tex_bwd_args(_layer_bwd_args(d)))

FWD_WRONG = {
    "input": "0-dim ints",
    "weight": "short ints away",
    "ln_out": "short few dtype away list",
    "quantizer": "given",
    "otype": "text int8",
}
BWD_WRONG = {"dz": "short ints away", "x": "0-dim", "rsigma": "few ints away", "gamma": "short ints away"}


@op(
    space="tex",
    out="out mu rsigma",
    mutates=("ln_out",),
    samples=RMSNORM_FWD,
    errors=errors(RMSNORM_FWD, {"ln_out": True}, **FWD_WRONG),
    result=rms_result,
)
def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float,
    ln_out: Tensor | None,
    quantizer: Any,
    otype: torch.dtype | None,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor | None]:
    """[out, None, rsigma]: rms_norm, with out in otype (written to ln_out, if given) and rsigma float32 [rows]."""
    with torch.no_grad():
        dtype = _out_dtype("rmsnorm_fwd", input, ln_out, quantizer, otype, {"weight": weight})
        y, rstd = rms_norm(_holding(input, dtype), weight, eps, float(zero_centered_gamma))
        return [_stored(y, ln_out, dtype), None, _stat(rstd)]


@op(
    space="tex",
    out="dx dgamma",
    samples=RMSNORM_BWD,
    errors=errors(RMSNORM_BWD, **BWD_WRONG),
    tol=SUMS,
    result=as_list,
)
def rmsnorm_bwd(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> list[Tensor]:
    """[dx, dgamma] of rms_norm_bwd."""
    with torch.no_grad():
        check("rmsnorm_bwd", x, full={"dz": dz}, cols={"gamma": gamma})
        (rstd,) = _per_row("rmsnorm_bwd", x, rsigma=rsigma)
        return list(rms_norm_bwd(dz, x, gamma, rstd, float(zero_centered_gamma)))


@op(
    space="tex",
    out="dx dgamma",
    samples=RMSNORM_BWD_ADD,
    errors=errors(RMSNORM_BWD_ADD, **BWD_WRONG, add="short ints away"),
    tol=SUMS,
    result=as_list,
)
def rmsnorm_bwd_add(
    dz: Tensor,
    x: Tensor,
    add: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    """[dx + add, dgamma] of rms_norm_bwd, added before the rounding."""
    with torch.no_grad():
        check("rmsnorm_bwd_add", x, full={"dz": dz, "add": add}, cols={"gamma": gamma})
        (rstd,) = _per_row("rmsnorm_bwd_add", x, rsigma=rsigma)
        return list(rms_norm_bwd_add(dz, x, add, gamma, rstd, float(zero_centered_gamma)))


@op(
    space="tex",
    out="out mu rsigma",
    mutates=("ln_out",),
    samples=LAYERNORM_FWD,
    errors=errors(LAYERNORM_FWD, {"ln_out": True}, **FWD_WRONG, bias="short ints away"),
    result=layer_result,
)
def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    ln_out: Tensor | None,
    quantizer: Any,
    otype: torch.dtype | None,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor | None]:
    """[out, mu, rsigma]: layer_norm, with out in otype (written to ln_out, if given), the others float32 [rows]."""
    with torch.no_grad():
        cols = {"weight": weight, "bias": bias}
        dtype = _out_dtype("layernorm_fwd", input, ln_out, quantizer, otype, cols)
        y, mu, rstd = layer_norm(_holding(input, dtype), weight, bias, eps, float(zero_centered_gamma))
        return [_stored(y, ln_out, dtype), _stat(mu), _stat(rstd)]


@op(
    space="tex",
    out="dx dgamma dbeta",
    samples=LAYERNORM_BWD,
    errors=errors(LAYERNORM_BWD, **BWD_WRONG, mu="few"),
    tol=SUMS,
    result=as_list,
)
def layernorm_bwd(
    dz: Tensor,
    x: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    """[dx, dgamma, dbeta] of layer_norm_bwd."""
    with torch.no_grad():
        check("layernorm_bwd", x, full={"dz": dz}, cols={"gamma": gamma})
        mean, rstd = _per_row("layernorm_bwd", x, mu=mu, rsigma=rsigma)
        return list(layer_norm_bwd(dz, x, gamma, mean, rstd, float(zero_centered_gamma)))
