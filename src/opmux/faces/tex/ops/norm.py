"""tex's norms: NVIDIA's names and signatures, implemented by the ops of `specs.norm`; outputs may be quantized."""

import math
from typing import Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import FLOATS, Float, either
from ....core.errors import BadArgument
from ....core.spec import State
from ....core.tensors import dtype_name
from ....specs import norm
from ....specs._checks import type_name
from ....specs.norm import SUMS, layer_bwd_args, rms_args, rms_bwd_args
from ....specs.samples import OTHER, Case, Draw, rows
from ..fused import NORM_CASTS, fp8_tensor, is_delayed, norm_quantized
from ..quantized import can_be_written, can_quantize, fp8_of, quantized, recorded_amax

# ---- arguments ------------------------------------------------------------------------------------------------------


def output_fits(op: str, input: Tensor, ln_out: Any, quantizer: Any, otype: torch.dtype | None) -> None:
    """Check that the output dtype is a float, and that ln_out, if given, has the output's dtype, shape and device."""
    dtype = input.dtype if otype is None else otype
    if dtype not in FLOATS:
        raise BadArgument.of(op, "otype", f"be {either(map(dtype_name, FLOATS))}", dtype_name(dtype), TypeError)
    if quantizer is not None:
        can_quantize(op, input, quantizer, "input")
        can_be_written(op, quantizer, ln_out, "ln_out")
    elif ln_out is not None:
        if not isinstance(ln_out, Tensor):
            raise BadArgument.of(op, "ln_out", "be a Tensor or None", type_name(ln_out), TypeError)
        for expected, right, got in (
            (f"be {dtype_name(dtype)}, as {{otype}} says", ln_out.dtype is dtype, dtype_name(ln_out.dtype)),
            (f"have shape {tuple(input.shape)}, that of {{input}}", ln_out.shape == input.shape, tuple(ln_out.shape)),
            (f"be on {input.device}, the device of {{input}}", ln_out.device == input.device, ln_out.device),
        ):
            if not right:
                raise BadArgument.of(op, "ln_out", expected, str(got))


def per_row(op: str, x: Tensor, name: str, stat: Tensor) -> Tensor:
    """Reshape a statistic for our ops; tex's statistics are flat for any shape of x."""
    if stat.dim() == 1 and x.dim() == 2:
        return stat
    rows = x.shape[:-1]
    if x.dim() and stat.numel() == math.prod(rows):
        return stat.reshape(rows)
    expected = f"have shape ({math.prod(rows)},), the rows of {{x}} {tuple(x.shape)}"
    raise BadArgument.of(
        op,
        name if x.dim() else "x",
        expected if x.dim() else "have at least 1 dimension",
        str(tuple(stat.shape)) if x.dim() else "a 0-dim tensor",
    )


def widened(input: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast the input to a dtype at least as wide as the output's, so that results are rounded once, to otype."""
    return input.to(torch.promote_types(input.dtype, dtype))


def as_requested(call: Any, y: Tensor, ln_out: Any, quantizer: Any, dtype: torch.dtype) -> Any:
    """Quantize the result if there is a quantizer, else cast it, and write it to ln_out if that is given."""
    if quantizer is not None:
        return quantized(call, y.to(dtype), quantizer, ln_out)
    return y.to(dtype) if ln_out is None else ln_out.copy_(y)


# ---- results --------------------------------------------------------------------------------------------------------


def _stat(value: Tensor | None) -> Tensor | None:
    """A statistic in tex's form: float32 [rows]."""
    if value is None or (value.dim() == 1 and value.dtype is torch.float32):
        return value
    return value.float().flatten()


def rms_result(value: Any) -> Any:
    """[out, None, rsigma] from the results of an impl, which may be (out, rsigma), with rsigma of any shape."""
    if not isinstance(value, (list, tuple)) or len(value) not in (2, 3):
        return value
    out, rsigma = value[0], _stat(value[-1])
    right = isinstance(value, list) and len(value) == 3 and value[1] is None and value[2] is rsigma
    return value if right else [out, None, rsigma]


def layer_result(value: Any) -> Any:
    """[out, mu, rsigma] from the results of an impl, with statistics of any shape."""
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
    args = rms_args(d)
    otype = {"same": d.dtype, "other": OTHER[d.dtype], None: None}[d.option("otype", "same")]
    ln_out = None
    if d.option("ln_out"):
        ln_out = torch.full(d.case.shape, float("nan"), dtype=otype, device=d.device)
    return {
        "input": args["x"],
        "weight": args["weight"],
        **bias,
        "eps": args["eps"],
        "ln_out": ln_out,
        "quantizer": None,
        "otype": otype,
        "sm_margin": 0,
        "zero_centered_gamma": args["offset"] == 1.0,
    }


def _layernorm_fwd_args(d: Draw) -> dict[str, Any]:
    return _tex_fwd_args(d, bias=None if d.option("no_bias") else d.cols())


def _tex_bwd_args(args: dict[str, Any], **between: Tensor) -> dict[str, Any]:
    """Convert arguments of our backward to tex's order and names; statistics become flat."""
    mu = {"mu": _stat(args["mean"])} if "mean" in args else {}
    return {
        "dz": args["dy"],
        "x": args["x"],
        **between,
        **mu,
        "rsigma": _stat(args["rstd"]),
        "gamma": args["weight"],
        "sm_margin": 0,
        "zero_centered_gamma": args["offset"] == 1.0,
    }


RMSNORM_FWD = rows(_tex_fwd_args, *TEX)
RMSNORM_BWD = rows(lambda d: _tex_bwd_args(rms_bwd_args(d)))
RMSNORM_BWD_ADD = rows(lambda d: _tex_bwd_args(rms_bwd_args(d), add=d.full()))
LAYERNORM_FWD = rows(_layernorm_fwd_args, *TEX, Case((5, 64), options={"no_bias": True}))
LAYERNORM_BWD = rows(lambda d: _tex_bwd_args(layer_bwd_args(d)))

FORWARD: dict[str, Any] = {
    "names": {"x": "input"},
    "out": "out mu rsigma",
    "mutates": ("ln_out",),
    "where": output_fits,
}
BACKWARD: dict[str, Any] = {
    "names": {"dy": "dz", "weight": "gamma", "mean": "mu", "rstd": "rsigma"},
    "tol": SUMS,
    "result": as_list,
}


@adapt(
    "tex::rmsnorm_fwd",
    over=(norm.rms_norm, norm.rms_norm_fp8, norm.rms_norm_fp8_blocks_into, norm.rms_norm_stats, *NORM_CASTS),
    samples=RMSNORM_FWD,
    result=rms_result,
    **FORWARD,
)
def rmsnorm_fwd(
    call: Any,
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
            y, rstd = call.rms_norm(input, weight, eps, offset, "gemma")
            return [y, None, _stat(rstd)]
        rmsnorm_fwd.check(
            input=input, weight=weight, eps=eps, ln_out=ln_out, quantizer=quantizer, otype=otype
        )  # before anything is written
        dtype = input.dtype if otype is None else otype
        if quantizer is not None and ln_out is None and is_delayed(quantizer):
            scale, amax = quantizer.scale, recorded_amax(quantizer)
            y, scale_inv, rstd = call.rms_norm_fp8(input, weight, scale, amax, fp8_of(quantizer), eps, offset)
            return [fp8_tensor(call, quantizer, y, scale_inv, dtype), None, _stat(rstd)]
        if quantizer is not None and ln_out is None and dtype is input.dtype:
            fused = norm_quantized(call, quantizer, input, weight, None, eps, offset, False)
            if fused is not None:
                return [fused[0], None, _stat(fused[2])]
        y, rstd = call.rms_norm(widened(input, dtype), weight, eps, offset, "gemma")
        return [as_requested(call, y, ln_out, quantizer, dtype), None, _stat(rstd)]


@adapt("tex::rmsnorm_bwd", over=norm.rms_norm_bwd, out="dx dgamma", samples=RMSNORM_BWD, **BACKWARD)
def rmsnorm_bwd(
    call: Any,
    dz: Tensor,
    x: Tensor,
    rsigma: Float[Tensor, "..."],
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    """[dx, dgamma] of rms_norm_bwd; rsigma has one number for each row of x."""
    with torch.no_grad():
        rstd = per_row("rmsnorm_bwd", x, "rsigma", rsigma)
        return list(call(dz, x, gamma, rstd, 1.0 if zero_centered_gamma else 0.0, "gemma"))


@adapt("tex::rmsnorm_bwd_add", over=norm.rms_norm_bwd_add, out="dx dgamma", samples=RMSNORM_BWD_ADD, **BACKWARD)
def rmsnorm_bwd_add(
    call: Any,
    dz: Tensor,
    x: Tensor,
    add: Tensor,
    rsigma: Float[Tensor, "..."],
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    """[dx + add, dgamma] of rms_norm_bwd, added before the rounding; rsigma has one number for each row of x."""
    with torch.no_grad():
        rstd = per_row("rmsnorm_bwd_add", x, "rsigma", rsigma)
        return list(call(dz, x, add, gamma, rstd, 1.0 if zero_centered_gamma else 0.0, "gemma"))


@adapt(
    "tex::layernorm_fwd",
    over=(norm.layer_norm, norm.layer_norm_fp8, norm.layer_norm_fp8_blocks_into, norm.layer_norm_stats, *NORM_CASTS),
    samples=LAYERNORM_FWD,
    result=layer_result,
    **FORWARD,
)
def layernorm_fwd(
    call: Any,
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
            y, mu, rstd = call.layer_norm(input, weight, bias, eps, offset)
            return [y, _stat(mu), _stat(rstd)]
        layernorm_fwd.check(
            input=input, weight=weight, bias=bias, eps=eps, ln_out=ln_out, quantizer=quantizer, otype=otype
        )  # before anything is written
        dtype = input.dtype if otype is None else otype
        if quantizer is not None and ln_out is None and is_delayed(quantizer):
            numbers = (quantizer.scale, recorded_amax(quantizer), fp8_of(quantizer))
            y, scale_inv, mu, rstd = call.layer_norm_fp8(input, weight, bias, *numbers, eps, offset)
            return [fp8_tensor(call, quantizer, y, scale_inv, dtype), _stat(mu), _stat(rstd)]
        if quantizer is not None and ln_out is None and dtype is input.dtype:
            fused = norm_quantized(call, quantizer, input, weight, bias, eps, offset, True)
            if fused is not None:
                return [fused[0], *map(_stat, fused[1:])]
        y, mu, rstd = call.layer_norm(widened(input, dtype), weight, bias, eps, offset)
        return [as_requested(call, y, ln_out, quantizer, dtype), _stat(mu), _stat(rstd)]


@adapt("tex::layernorm_bwd", over=norm.layer_norm_bwd, out="dx dgamma dbeta", samples=LAYERNORM_BWD, **BACKWARD)
def layernorm_bwd(
    call: Any,
    dz: Tensor,
    x: Tensor,
    mu: Float[Tensor, "..."],
    rsigma: Float[Tensor, "..."],
    gamma: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    """[dx, dgamma, dbeta] of layer_norm_bwd; mu and rsigma have one number for each row of x."""
    with torch.no_grad():
        mean = per_row("layernorm_bwd", x, "mu", mu)
        rstd = per_row("layernorm_bwd", x, "rsigma", rsigma)
        return list(call(dz, x, gamma, mean, rstd, 1.0 if zero_centered_gamma else 0.0))
