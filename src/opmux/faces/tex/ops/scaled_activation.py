"""tex's gates with parameters, and activations with a factor per row, implemented by the ops of `specs.activation`."""

from typing import Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.spec import State
from ....specs import activation as ours
from ....specs.activation import NO_SCALES, SCALED_CASES, SUMS
from ....specs.samples import Draw, Maker
from ..quantized import CASTS, quantized
from .activation import quantizes_gradient, quantizes_half, quantizes_input

# ---- samples --------------------------------------------------------------------------------------------------------

NAMES = {"dy": "grad", "scales": "act_scales", "offset": "glu_linear_offset", "interleave": "glu_interleave_size"}
UNSCALED = (*(c for c in SCALED_CASES if "interleave" not in c.options), NO_SCALES)


def samples(gate: str, backward: bool, scaled: bool) -> Maker:
    """Samples of our op, in tex's order and under tex's names."""
    maker = ours.scaled_samples(gate, backward)

    def build(d: Draw) -> dict[str, Any]:
        args = maker.build(d)
        interleave = {"glu_interleave_size": args.pop("interleave")} if "interleave" in args else {}
        names = {**NAMES, "x": "fwd_input" if backward else "input"}
        renamed = {names.get(k, k): v for k, v in args.items()}
        tensors = {n: renamed.pop(n) for n in ("grad", "input", "fwd_input", "act_scales") if n in renamed}
        if not scaled:
            tensors.pop("act_scales")
            return {**tensors, "quantizer": None, **renamed}
        extra = {"compute_scale_grad": True} if backward else {}
        return {**tensors, "quantizer": None, **renamed, **interleave, **extra}

    return Maker(build, SCALED_CASES if scaled else UNSCALED)


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def forward(name: str, gate: str, part: Any, scaled: bool = True) -> Any:
    """The decorator that declares a forward."""
    where = quantizes_half if gate != "srelu" else quantizes_input
    maker = samples(gate, False, scaled)
    return adapt(f"tex::{name}", over=(part, *CASTS), names={**NAMES, "x": "input"}, samples=maker, where=where)


def backward(name: str, gate: str, part: Any, scaled: bool = True) -> Any:
    """The decorator that declares a backward."""
    names, maker = {**NAMES, "x": "fwd_input"}, samples(gate, True, scaled)
    extra: dict[str, Any] = {"out": "dx"}
    if scaled:
        extra = {"out": "grad_input grad_scales", "tol": SUMS, "result": as_tuple}
    return adapt(
        f"tex::{name}",
        over=(part, *CASTS),
        names=names,
        samples=maker,
        where=quantizes_gradient,
        **extra,
    )


# ---- gates with parameters ------------------------------------------------------------------------------------------


@forward("situglu", "situ", ours.situ_glu, scaled=False)
def situglu(call: Any, input: Tensor, quantizer: State, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """f(a) * u(b), f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2), for halves a and b."""
    with torch.no_grad():
        if quantizer is not None:
            situglu.check(input=input, quantizer=quantizer, beta1=beta1, beta2=beta2)
        return quantized(call, call.situ_glu(input, None, beta1, beta2), quantizer)


@backward("dsituglu", "situ", ours.situ_glu_bwd, scaled=False)
def dsituglu(
    call: Any,
    grad: Tensor,
    fwd_input: Tensor,
    quantizer: State,
    beta1: float = 4.0,
    beta2: float = 25.0,
) -> Any:
    """The gradient of situglu's input."""
    with torch.no_grad():
        if quantizer is not None:
            dsituglu.check(grad=grad, fwd_input=fwd_input, quantizer=quantizer, beta1=beta1, beta2=beta2)
        return quantized(call, call.situ_glu_bwd(grad, fwd_input, None, beta1, beta2)[0], quantizer)


@forward("clamped_swiglu", "clamped", ours.clamped_glu, scaled=False)
def clamped_swiglu(
    call: Any,
    input: Tensor,
    quantizer: State,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> Any:
    """f(min(a, limit)) * (clamp(b, -limit, limit) + glu_linear_offset), f(a) = a * sigmoid(alpha * a)."""
    with torch.no_grad():
        if quantizer is not None:
            options = {"limit": limit, "alpha": alpha, "glu_linear_offset": glu_linear_offset}
            clamped_swiglu.check(input=input, quantizer=quantizer, **options)
        return quantized(call, call.clamped_glu(input, None, limit, alpha, glu_linear_offset), quantizer)


@backward("clamped_dswiglu", "clamped", ours.clamped_glu_bwd, scaled=False)
def clamped_dswiglu(
    call: Any,
    grad: Tensor,
    fwd_input: Tensor,
    quantizer: State,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> Any:
    """The gradient of clamped_swiglu's input: 0 where it was clamped."""
    with torch.no_grad():
        if quantizer is not None:
            options = {"limit": limit, "alpha": alpha, "glu_linear_offset": glu_linear_offset}
            clamped_dswiglu.check(grad=grad, fwd_input=fwd_input, quantizer=quantizer, **options)
        dx = call.clamped_glu_bwd(grad, fwd_input, None, limit, alpha, glu_linear_offset)[0]
        return quantized(call, dx, quantizer)


# ---- with a factor for each row -------------------------------------------------------------------------------------


@forward("scaled_swiglu", "silu", ours.silu_glu_scaled)
def scaled_swiglu(
    call: Any,
    input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    glu_interleave_size: int = 0,
) -> Any:
    """s * silu(a) * b, where s is the row's factor from act_scales."""
    with torch.no_grad():
        if quantizer is not None:
            options = {"act_scales": act_scales, "glu_interleave_size": glu_interleave_size}
            scaled_swiglu.check(input=input, quantizer=quantizer, **options)
        return quantized(call, call.silu_glu_scaled(input, act_scales, glu_interleave_size), quantizer)


@backward("scaled_dswiglu", "silu", ours.silu_glu_scaled_bwd)
def scaled_dswiglu(
    call: Any,
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_swiglu's input and act_scales; the latter is None if it is not needed."""
    with torch.no_grad():
        if quantizer is not None:
            options = {"act_scales": act_scales, "glu_interleave_size": glu_interleave_size}
            scaled_dswiglu.check(grad=grad, fwd_input=fwd_input, quantizer=quantizer, **options)
        dx, dscales = call.silu_glu_scaled_bwd(grad, fwd_input, act_scales, glu_interleave_size)
        return quantized(call, dx, quantizer), dscales if compute_scale_grad else None


@forward("scaled_srelu", "srelu", ours.srelu_scaled)
def scaled_srelu(call: Any, input: Tensor, act_scales: Tensor, quantizer: State) -> Any:
    """s * max(x, 0)^2, where s is the row's factor from act_scales."""
    with torch.no_grad():
        if quantizer is not None:
            scaled_srelu.check(input=input, act_scales=act_scales, quantizer=quantizer)
        return quantized(call, call.srelu_scaled(input, act_scales), quantizer)


@backward("scaled_dsrelu", "srelu", ours.srelu_scaled_bwd)
def scaled_dsrelu(
    call: Any,
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_srelu's input and act_scales; the latter is None if it is not needed."""
    with torch.no_grad():
        if quantizer is not None:
            scaled_dsrelu.check(grad=grad, fwd_input=fwd_input, act_scales=act_scales, quantizer=quantizer)
        dx, dscales = call.srelu_scaled_bwd(grad, fwd_input, act_scales)
        return quantized(call, dx, quantizer), dscales if compute_scale_grad else None


@forward("scaled_situglu", "situ", ours.situ_glu)
def scaled_situglu(
    call: Any,
    input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    beta1: float = 4.0,
    beta2: float = 25.0,
    glu_interleave_size: int = 0,
) -> Any:
    """situglu times the row's factor from act_scales."""
    with torch.no_grad():
        if quantizer is not None or act_scales is None:  # our op treats None as 1
            options = {"beta1": beta1, "beta2": beta2, "glu_interleave_size": glu_interleave_size}
            scaled_situglu.check(input=input, act_scales=act_scales, quantizer=quantizer, **options)
        return quantized(call, call.situ_glu(input, act_scales, beta1, beta2, glu_interleave_size), quantizer)


@backward("scaled_dsituglu", "situ", ours.situ_glu_bwd)
def scaled_dsituglu(
    call: Any,
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    beta1: float = 4.0,
    beta2: float = 25.0,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_situglu's input and act_scales; the latter is None if it is not needed."""
    with torch.no_grad():
        if quantizer is not None or act_scales is None:
            options = {"beta1": beta1, "beta2": beta2, "glu_interleave_size": glu_interleave_size}
            scaled_dsituglu.check(grad=grad, fwd_input=fwd_input, act_scales=act_scales, quantizer=quantizer, **options)
        dx, dscales = call.situ_glu_bwd(grad, fwd_input, act_scales, beta1, beta2, glu_interleave_size)
        return quantized(call, dx, quantizer), dscales if compute_scale_grad else None


@forward("scaled_clamped_swiglu", "clamped", ours.clamped_glu)
def scaled_clamped_swiglu(
    call: Any,
    input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
    glu_interleave_size: int = 0,
) -> Any:
    """clamped_swiglu times the row's factor from act_scales."""
    with torch.no_grad():
        numbers = (limit, alpha, glu_linear_offset, glu_interleave_size)
        if quantizer is not None or act_scales is None:
            options = dict(zip(("limit", "alpha", "glu_linear_offset", "glu_interleave_size"), numbers, strict=True))
            scaled_clamped_swiglu.check(input=input, act_scales=act_scales, quantizer=quantizer, **options)
        return quantized(call, call.clamped_glu(input, act_scales, *numbers), quantizer)


@backward("scaled_clamped_dswiglu", "clamped", ours.clamped_glu_bwd)
def scaled_clamped_dswiglu(
    call: Any,
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_clamped_swiglu's input and act_scales; the latter is None if it is not needed."""
    with torch.no_grad():
        numbers = (limit, alpha, glu_linear_offset, glu_interleave_size)
        if quantizer is not None or act_scales is None:
            options = dict(zip(("limit", "alpha", "glu_linear_offset", "glu_interleave_size"), numbers, strict=True))
            scaled_clamped_dswiglu.check(
                grad=grad, fwd_input=fwd_input, act_scales=act_scales, quantizer=quantizer, **options
            )
        dx, dscales = call.clamped_glu_bwd(grad, fwd_input, act_scales, *numbers)
        return quantized(call, dx, quantizer), dscales if compute_scale_grad else None
