"""Norms and activations with a float8 result: the kernels of `norm` and `activation`, told to cast what they store."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.registry import impl
from ..specs import fused_quant as spec
from . import activation, norm
from .activation import BiasedBackward, Elementwise
from .lib.plans import plans
from .lib.rows import DEVICES, Room, packed
from .norm import Forward

ONE = Room.of((1,), torch.float32)


class Cast(NamedTuple):
    """What an op will do for tensors that look so, and the inverse of the scale where no kernel runs to write it."""

    how: Any
    empty: bool


def _inverse(cast: Cast, x: Tensor, scale: Tensor) -> Tensor:
    """Room for the inverse of the scale; the kernel fills it, where there is one."""
    made = ONE.on(x)
    return torch.div(torch.ones_like(scale), scale, out=made.view_as(scale)).view(1) if cast.empty else made


# ---- norms ----------------------------------------------------------------------------------------------------------


@plans
def _plan_norm(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    centred: bool,
) -> Cast:
    spec.norm.check(op, x, cols={"weight": weight, "bias": bias})
    spec.check(op, x, scale, amax, dtype)
    how = norm._plan(op, x, None, weight, bias, centred, fp8=dtype)
    return Cast(how, how.launch is None)


@impl(spec.rms_norm_fp8, devices=DEVICES)
def rms_norm_fp8(
    x: Tensor, weight: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    cast = _plan_norm("rms_norm_fp8", x, weight, None, scale, amax, dtype, False)
    how: Forward = cast.how
    inv = _inverse(cast, x, scale)
    if how.simple:
        y, rstd = how.launch(x, None, weight, None, None, None, scale, amax, inv, float(eps), float(offset))  # type: ignore[misc]
    else:
        y, rstd = norm._forward(how, x, None, weight, None, eps, offset, False, scale, amax, inv)
    return y, inv, rstd


@impl(spec.layer_norm_fp8, devices=DEVICES)
def layer_norm_fp8(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    offset: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    cast = _plan_norm("layer_norm_fp8", x, weight, bias, scale, amax, dtype, True)
    how: Forward = cast.how
    inv = _inverse(cast, x, scale)
    if how.simple:
        y, mean, rstd = how.launch(x, None, weight, bias, None, scale, amax, inv, float(eps), float(offset))  # type: ignore[misc]
    else:
        y, mean, rstd = norm._forward(how, x, None, weight, bias, eps, offset, True, scale, amax, inv)
    return y, inv, mean, rstd


# ---- activations ----------------------------------------------------------------------------------------------------


@plans
def _plan_act(
    op: str, act: str, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, halves: bool, *args: Tensor
) -> Cast:
    spec.check_act(op, act, alone=not halves)
    backward, x = len(args) == 2, args[-1]
    if halves:
        spec.activation.check_halves(op, "x", x, **({"dy": args[0]} if backward else {}))
    else:
        spec.activation.check(op, x=x, **({"dy": args[0]} if backward else {}))
    spec.check(op, x, scale, amax, dtype)
    if halves:
        how = activation.plan_gated(op, act, dtype, True, backward, *args)
    else:
        how = activation.plan_one(op, act, dtype, *args)
    return Cast(how, how.launch is None)


@impl(spec.act_fp8, devices=DEVICES)
def act_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    cast = _plan_act("act_fp8", act, scale, amax, dtype, False, x)
    how: Elementwise = cast.how
    y, inv = how.out.on(x), _inverse(cast, x, scale)
    if how.launch is not None:
        how.launch(x.contiguous() if how.pack else x, y, scale, amax, inv)
    return y, inv


@impl(spec.act_bwd_fp8, devices=DEVICES)
def act_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor]:
    cast = _plan_act("act_bwd_fp8", act, scale, amax, dtype, False, dy, x)
    how: Elementwise = cast.how
    dx, inv = how.out.on(x), _inverse(cast, x, scale)
    if how.launch is not None:
        if how.pack:
            dy, x = dy.contiguous(), x.contiguous()
        how.launch(dy, x, dx, scale, amax, inv)
    return dx, inv


@impl(spec.glu_fp8, devices=DEVICES)
def glu_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    cast = _plan_act("glu_fp8", act, scale, amax, dtype, True, x)
    how: Elementwise = cast.how
    y, inv = how.out.on(x), _inverse(cast, x, scale)
    if how.launch is not None:
        how.launch(packed(x) if how.pack else x, None, y, scale, amax, inv)
    return y, inv


@impl(spec.glu_bwd_fp8, devices=DEVICES)
def glu_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor]:
    cast = _plan_act("glu_bwd_fp8", act, scale, amax, dtype, True, dy, x)
    how: Elementwise = cast.how
    dx, inv = how.out.on(x), _inverse(cast, x, scale)
    if how.launch is not None:
        if how.pack:
            dy, x = packed(dy), packed(x)
        how.launch(dy, x, None, dx, None, scale, amax, inv)
    return dx, inv


@plans
def _plan_bias(act: str, dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
    spec.check_act("act_bias_bwd_fp8", act, alone=True)
    spec.activation.check_bias("act_bias_bwd_fp8", "x", x, dy=dy)
    spec.check("act_bias_bwd_fp8", x, scale, amax, dtype)
    how = activation.plan_biased_bwd("act_bias_bwd_fp8", act, dtype, dy, x, None)
    return Cast(how, how.launch is None)


@impl(spec.act_bias_bwd_fp8, devices=DEVICES)
def act_bias_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    cast = _plan_bias(act, dy, x, scale, amax, dtype)
    how: BiasedBackward = cast.how
    dx, dbias, inv = how.dx.on(x), how.dbias.on(x), _inverse(cast, x, scale)
    if how.launch is None or how.total is None or how.shares is None:
        return dx, inv, dbias.zero_()
    if how.pack:
        dy, x = packed(dy), packed(x)
    shares = how.shares.on(x)
    how.launch(dy, x, None, dx, shares, scale, amax, inv)
    how.total(shares, dbias)
    return dx, inv, dbias
