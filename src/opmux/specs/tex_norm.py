"""tex's norms: NVIDIA's names and signatures over the ops of `norm`, with a quantized output where one is wanted.

A good call goes straight to the op that does the work: its arguments are looked at again, under tex's names, only where
that op refuses them.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.spec import State, op
from ._fused import fp8_of, fp8_tensor, fuses
from ._numeric import check_dtype, dtype_name
from ._quantized import TENSORS, check_quantizer, kind_of, quantized, tensor_kind
from ._tex import check_number, type_name
from .norm import (
    SUMS,
    check,
    layer_bwd_args,
    layer_norm,
    layer_norm_bwd,
    layer_norm_fp8,
    rms_args,
    rms_bwd_args,
    rms_norm,
    rms_norm_bwd,
    rms_norm_bwd_add,
    rms_norm_fp8,
)
from .samples import OTHER, Case, Draw, errors, rows

# ---- arguments ------------------------------------------------------------------------------------------------------


def check_forward(
    op: str,
    input: Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: torch.dtype | None,
    cols: Mapping[str, Tensor | None],
) -> torch.dtype:
    """The dtype of a forward's output. Every mistake is found here, before anything is written."""
    check(op, input, lead="input", cols=cols)
    check_number(op, "eps", eps)
    if otype is not None and not isinstance(otype, torch.dtype):
        raise TypeError(f"{op}: otype must be a torch.dtype, or None for that of input; got {otype!r}")
    dtype = input.dtype if otype is None else otype
    check_dtype(op, "otype", dtype)
    if quantizer is not None:
        check_quantizer(op, input, quantizer, "input")
        kind = kind_of(quantizer) or ""
        if ln_out is not None and tensor_kind(ln_out) != {"delayed": "fp8", "current": "fp8"}.get(kind, kind):
            wanted = f"a {TENSORS[kind]}, as the quantizer makes, or None"
            raise TypeError(f"{op}: ln_out must be {wanted}; got {type_name(ln_out)}")
    elif ln_out is not None:
        if not isinstance(ln_out, Tensor):
            raise TypeError(f"{op}: ln_out must be a Tensor or None; got {type_name(ln_out)}")
        check(op, input, lead="input", full={"ln_out": ln_out})
        if ln_out.dtype != dtype:
            want, got = dtype_name(dtype), dtype_name(ln_out.dtype)
            raise ValueError(f"{op}: ln_out must be {want}, as otype says; got {got}")
    return dtype


def check_backward(op: str, x: Tensor, gamma: Tensor, full: Mapping[str, Tensor], **stats: Tensor) -> None:
    check(op, x, full=full, cols={"gamma": gamma})
    for name, stat in stats.items():
        per_row(op, x, name, stat)


def per_row(op: str, x: Tensor, name: str, stat: Tensor) -> Tensor:
    """A statistic in the shape of our ops: tex keeps a list of rows, whatever the shape of x."""
    check(op, x)
    count = math.prod(x.shape[:-1])
    if stat.numel() != count:
        shapes = f"the rows of x {tuple(x.shape)}; got {tuple(stat.shape)}"
        raise ValueError(f"{op}: {name} must have shape ({count},), {shapes}")
    shaped = stat.reshape(x.shape[:-1])
    check(op, x, rows={name: shaped})
    return shaped


def holding(input: Tensor, dtype: torch.dtype) -> Tensor:
    """The input in a dtype that holds both it and the output: no rounding then comes before the one to otype."""
    return input.to(torch.promote_types(input.dtype, dtype))


def stored(y: Tensor, ln_out: Any, quantizer: Any, dtype: torch.dtype) -> Any:
    """The result where and how it is wanted."""
    if quantizer is not None:
        return quantized(y.to(dtype), quantizer, ln_out)
    return y.to(dtype) if ln_out is None else ln_out.copy_(y)


# ---- results --------------------------------------------------------------------------------------------------------


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


# ---- samples --------------------------------------------------------------------------------------------------------

TEX = (
    Case((5, 64), options={"otype": "other"}),
    Case((5, 64), options={"otype": None}),
    Case((5, 64), options={"ln_out": True}),
    Case((2, 3, 64), "swapped", {"otype": "other", "ln_out": True, "offset": 1.0}),
)


def _tex_fwd_args(d: Draw, **bias: Tensor | None) -> dict[str, Any]:
    of = rms_args(d)
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
RMSNORM_BWD = rows(lambda d: _tex_bwd_args(rms_bwd_args(d)))
RMSNORM_BWD_ADD = rows(lambda d: _tex_bwd_args(rms_bwd_args(d), add=d.full()))
LAYERNORM_FWD = rows(_layernorm_fwd_args, *TEX, Case((5, 64), options={"no_bias": True}))
LAYERNORM_BWD = rows(lambda d: _tex_bwd_args(layer_bwd_args(d)))

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
    ln_out: Any,
    quantizer: State,
    otype: torch.dtype | None,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor | None]:
    """[out, None, rsigma]: rms_norm, with out in otype (written to ln_out, if given) and rsigma float32 [rows]."""
    with torch.no_grad():
        offset = 1.0 if zero_centered_gamma else 0.0
        if quantizer is None and ln_out is None and (otype is None or otype is input.dtype):
            try:
                y, rstd = rms_norm(input, weight, eps, offset)
            except (TypeError, ValueError):
                check_forward("rmsnorm_fwd", input, eps, None, None, None, {"weight": weight})
                raise
            return [y, None, _stat(rstd)]
        dtype = check_forward("rmsnorm_fwd", input, eps, ln_out, quantizer, otype, {"weight": weight})
        if quantizer is not None and ln_out is None and fuses(quantizer):
            scale, amax = quantizer.scale, quantizer.amax
            y, scale_inv, rstd = rms_norm_fp8(input, weight, scale, amax, fp8_of(quantizer), eps, offset)
            return [fp8_tensor(quantizer, y, scale_inv, dtype), None, _stat(rstd)]
        y, rstd = rms_norm(holding(input, dtype), weight, eps, offset)
        return [stored(y, ln_out, quantizer, dtype), None, _stat(rstd)]


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
        rstd = rsigma if x.dim() == 2 and rsigma.dim() == 1 else per_row("rmsnorm_bwd", x, "rsigma", rsigma)
        try:
            return list(rms_norm_bwd(dz, x, gamma, rstd, 1.0 if zero_centered_gamma else 0.0))
        except (TypeError, ValueError):
            check_backward("rmsnorm_bwd", x, gamma, {"dz": dz}, rsigma=rsigma)
            raise


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
        rstd = rsigma if x.dim() == 2 and rsigma.dim() == 1 else per_row("rmsnorm_bwd_add", x, "rsigma", rsigma)
        try:
            return list(rms_norm_bwd_add(dz, x, add, gamma, rstd, 1.0 if zero_centered_gamma else 0.0))
        except (TypeError, ValueError):
            check_backward("rmsnorm_bwd_add", x, gamma, {"dz": dz, "add": add}, rsigma=rsigma)
            raise


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
    ln_out: Any,
    quantizer: State,
    otype: torch.dtype | None,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor | None]:
    """[out, mu, rsigma]: layer_norm, with out in otype (written to ln_out, if given), the others float32 [rows]."""
    with torch.no_grad():
        offset = 1.0 if zero_centered_gamma else 0.0
        if quantizer is None and ln_out is None and (otype is None or otype is input.dtype):
            try:
                y, mu, rstd = layer_norm(input, weight, bias, eps, offset)
            except (TypeError, ValueError):
                check_forward("layernorm_fwd", input, eps, None, None, None, {"weight": weight, "bias": bias})
                raise
            return [y, _stat(mu), _stat(rstd)]
        cols = {"weight": weight, "bias": bias}
        dtype = check_forward("layernorm_fwd", input, eps, ln_out, quantizer, otype, cols)
        if quantizer is not None and ln_out is None and fuses(quantizer):
            scale, amax = quantizer.scale, quantizer.amax
            y, scale_inv, mu, rstd = layer_norm_fp8(input, weight, bias, scale, amax, fp8_of(quantizer), eps, offset)
            return [fp8_tensor(quantizer, y, scale_inv, dtype), _stat(mu), _stat(rstd)]
        y, mu, rstd = layer_norm(holding(input, dtype), weight, bias, eps, offset)
        return [stored(y, ln_out, quantizer, dtype), _stat(mu), _stat(rstd)]


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
        flat = x.dim() == 2 and mu.dim() == rsigma.dim() == 1
        mean = mu if flat else per_row("layernorm_bwd", x, "mu", mu)
        rstd = rsigma if flat else per_row("layernorm_bwd", x, "rsigma", rsigma)
        try:
            return list(layer_norm_bwd(dz, x, gamma, mean, rstd, 1.0 if zero_centered_gamma else 0.0))
        except (TypeError, ValueError):
            check_backward("layernorm_bwd", x, gamma, {"dz": dz}, mu=mu, rsigma=rsigma)
            raise
