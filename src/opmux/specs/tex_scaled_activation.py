"""tex's gates with parameters, and its activations with a factor for each row: NVIDIA's names over `scaled_activation`.

A good call goes straight to its part: arguments are looked at again, under tex's names, only where that refuses them.
"""

from typing import Any

import torch
from torch import Tensor

from ..core.spec import State, op
from ._quantized import check_quantizer, quantized
from ._tex import check_number
from .activation import SUMS, halves
from .samples import Draw, Maker, errors
from .scaled_activation import (
    CASES,
    GATES,
    NO_SCALES,
    check,
    clamped_glu,
    clamped_glu_bwd,
    silu_glu_scaled,
    silu_glu_scaled_bwd,
    situ_glu,
    situ_glu_bwd,
    srelu_scaled,
    srelu_scaled_bwd,
)
from .scaled_activation import samples as ours

# ---- arguments ------------------------------------------------------------------------------------------------------

NAMES = ("act_scales", "grad", "glu_interleave_size")


def check_call(
    op: str,
    gate: str,
    x: Tensor,
    quantizer: Any,
    grad: Tensor | None = None,
    scales: Tensor | None = None,
    interleave: int = 0,
    scaled: bool = True,
    **numbers: float,
) -> None:
    """Refuse, under tex's names, what no op here can do: before anything is computed where a quantizer is given."""
    gated, lead = GATES[gate].up is not None, "input" if grad is None else "fwd_input"
    check(op, gated, x, scales, interleave, grad, needed=scaled, names=(lead, *NAMES))
    for name, value in numbers.items():
        check_number(op, name, value)
    check_quantizer(op, halves(x)[0] if gated and grad is None else x, quantizer, lead)


# ---- samples --------------------------------------------------------------------------------------------------------

TEX_NAMES = {"dy": "grad", "scales": "act_scales", "offset": "glu_linear_offset"}
UNSCALED = (*(c for c in CASES if "interleave" not in c.options), NO_SCALES)


def samples(gate: str, backward: bool, scaled: bool) -> Maker:
    """Samples of an op of ours, in tex's order and under tex's names."""
    of = ours(gate, backward)

    def build(d: Draw) -> dict[str, Any]:
        given = of.build(d)
        turns = {"glu_interleave_size": given.pop("interleave")} if "interleave" in given else {}
        names = {**TEX_NAMES, "x": "fwd_input" if backward else "input"}
        made = {names.get(k, k): v for k, v in given.items()}
        tensors = {n: made.pop(n) for n in ("grad", "input", "fwd_input", "act_scales") if n in made}
        if not scaled:
            tensors.pop("act_scales")
            return {**tensors, "quantizer": None, **made}
        more = {"compute_scale_grad": True} if backward else {}
        return {**tensors, "quantizer": None, **made, **turns, **more}

    return Maker(build, CASES if scaled else UNSCALED)


def tried(gate: str, backward: bool, scaled: bool = True) -> dict[str, Any]:
    """How an op of a gate is declared: its samples, what it refuses, how sums may differ."""
    good = samples(gate, backward, scaled)
    wrong = {"fwd_input" if backward else "input": "ints 0-dim", "quantizer": "given"}
    if backward:
        wrong["grad"] = "short ints away"
    if scaled:
        wrong["act_scales"] = "ints"
    of: dict[str, Any] = {"samples": good, "errors": errors(good, **wrong), "space": "tex"}
    if backward:
        of["out"] = "grad_input grad_scales" if scaled else "dx"
    return {**of, "tol": SUMS, "result": as_tuple} if backward and scaled else of


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ---- gates with parameters ------------------------------------------------------------------------------------------


@op(**tried("situ", False, scaled=False))
def situglu(input: Tensor, quantizer: State, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """f(a) * u(b), f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2), for halves a and b."""
    with torch.no_grad():
        given: dict[str, Any] = dict(scaled=False, beta1=beta1, beta2=beta2)
        if quantizer is not None:
            check_call("situglu", "situ", input, quantizer, **given)
        try:
            y = situ_glu(input, None, beta1, beta2)
        except (TypeError, ValueError):
            check_call("situglu", "situ", input, None, **given)
            raise
        return quantized(y, quantizer)


@op(**tried("situ", True, scaled=False))
def dsituglu(grad: Tensor, fwd_input: Tensor, quantizer: State, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """The gradient of situglu's input."""
    with torch.no_grad():
        given: dict[str, Any] = dict(scaled=False, beta1=beta1, beta2=beta2)
        if quantizer is not None:
            check_call("dsituglu", "situ", fwd_input, quantizer, grad, **given)
        try:
            dx = situ_glu_bwd(grad, fwd_input, None, beta1, beta2)[0]
        except (TypeError, ValueError):
            check_call("dsituglu", "situ", fwd_input, None, grad, **given)
            raise
        return quantized(dx, quantizer)


@op(**tried("clamped", False, scaled=False))
def clamped_swiglu(
    input: Tensor, quantizer: State, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0
) -> Any:
    """f(min(a, limit)) * (clamp(b, -limit, limit) + glu_linear_offset), f(a) = a * sigmoid(alpha * a)."""
    with torch.no_grad():
        given: dict[str, Any] = dict(scaled=False, limit=limit, alpha=alpha, glu_linear_offset=glu_linear_offset)
        if quantizer is not None:
            check_call("clamped_swiglu", "clamped", input, quantizer, **given)
        try:
            y = clamped_glu(input, None, limit, alpha, glu_linear_offset)
        except (TypeError, ValueError):
            check_call("clamped_swiglu", "clamped", input, None, **given)
            raise
        return quantized(y, quantizer)


@op(**tried("clamped", True, scaled=False))
def clamped_dswiglu(
    grad: Tensor,
    fwd_input: Tensor,
    quantizer: State,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> Any:
    """The gradient of clamped_swiglu's input: 0 where it was clamped."""
    with torch.no_grad():
        given: dict[str, Any] = dict(scaled=False, limit=limit, alpha=alpha, glu_linear_offset=glu_linear_offset)
        if quantizer is not None:
            check_call("clamped_dswiglu", "clamped", fwd_input, quantizer, grad, **given)
        try:
            dx = clamped_glu_bwd(grad, fwd_input, None, limit, alpha, glu_linear_offset)[0]
        except (TypeError, ValueError):
            check_call("clamped_dswiglu", "clamped", fwd_input, None, grad, **given)
            raise
        return quantized(dx, quantizer)


# ---- with a factor for each row -------------------------------------------------------------------------------------


@op(**tried("silu", False))
def scaled_swiglu(input: Tensor, act_scales: Tensor, quantizer: State, glu_interleave_size: int = 0) -> Any:
    """s * silu(a) * b, with s the number of act_scales for each row."""
    with torch.no_grad():
        if quantizer is not None:
            check_call("scaled_swiglu", "silu", input, quantizer, None, act_scales, glu_interleave_size)
        try:
            y = silu_glu_scaled(input, act_scales, glu_interleave_size)
        except (TypeError, ValueError):
            check_call("scaled_swiglu", "silu", input, None, None, act_scales, glu_interleave_size)
            raise
        return quantized(y, quantizer)


@op(**tried("silu", True))
def scaled_dswiglu(
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_swiglu's input and act_scales; None for the latter, where it is not wanted."""
    with torch.no_grad():
        if quantizer is not None:
            check_call("scaled_dswiglu", "silu", fwd_input, quantizer, grad, act_scales, glu_interleave_size)
        try:
            dx, dscales = silu_glu_scaled_bwd(grad, fwd_input, act_scales, glu_interleave_size)
        except (TypeError, ValueError):
            check_call("scaled_dswiglu", "silu", fwd_input, None, grad, act_scales, glu_interleave_size)
            raise
        return quantized(dx, quantizer), dscales if compute_scale_grad else None


@op(**tried("srelu", False))
def scaled_srelu(input: Tensor, act_scales: Tensor, quantizer: State) -> Any:
    """s * max(x, 0)^2, with s the number of act_scales for each row."""
    with torch.no_grad():
        if quantizer is not None:
            check_call("scaled_srelu", "srelu", input, quantizer, None, act_scales)
        try:
            y = srelu_scaled(input, act_scales)
        except (TypeError, ValueError):
            check_call("scaled_srelu", "srelu", input, None, None, act_scales)
            raise
        return quantized(y, quantizer)


@op(**tried("srelu", True))
def scaled_dsrelu(
    grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: State, compute_scale_grad: bool = True
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_srelu's input and act_scales; None for the latter, where it is not wanted."""
    with torch.no_grad():
        if quantizer is not None:
            check_call("scaled_dsrelu", "srelu", fwd_input, quantizer, grad, act_scales)
        try:
            dx, dscales = srelu_scaled_bwd(grad, fwd_input, act_scales)
        except (TypeError, ValueError):
            check_call("scaled_dsrelu", "srelu", fwd_input, None, grad, act_scales)
            raise
        return quantized(dx, quantizer), dscales if compute_scale_grad else None


@op(**tried("situ", False))
def scaled_situglu(
    input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    beta1: float = 4.0,
    beta2: float = 25.0,
    glu_interleave_size: int = 0,
) -> Any:
    """situglu times the number of act_scales for each row."""
    with torch.no_grad():
        rest = (None, act_scales, glu_interleave_size)
        if quantizer is not None or act_scales is None:
            check_call("scaled_situglu", "situ", input, quantizer, *rest, beta1=beta1, beta2=beta2)
        try:
            y = situ_glu(input, act_scales, beta1, beta2, glu_interleave_size)
        except (TypeError, ValueError):
            check_call("scaled_situglu", "situ", input, None, *rest, beta1=beta1, beta2=beta2)
            raise
        return quantized(y, quantizer)


@op(**tried("situ", True))
def scaled_dsituglu(
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    beta1: float = 4.0,
    beta2: float = 25.0,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_situglu's input and act_scales; None for the latter, where it is not wanted."""
    with torch.no_grad():
        rest = (grad, act_scales, glu_interleave_size)
        if quantizer is not None or act_scales is None:
            check_call("scaled_dsituglu", "situ", fwd_input, quantizer, *rest, beta1=beta1, beta2=beta2)
        try:
            dx, dscales = situ_glu_bwd(grad, fwd_input, act_scales, beta1, beta2, glu_interleave_size)
        except (TypeError, ValueError):
            check_call("scaled_dsituglu", "situ", fwd_input, None, *rest, beta1=beta1, beta2=beta2)
            raise
        return quantized(dx, quantizer), dscales if compute_scale_grad else None


@op(**tried("clamped", False))
def scaled_clamped_swiglu(
    input: Tensor,
    act_scales: Tensor,
    quantizer: State,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
    glu_interleave_size: int = 0,
) -> Any:
    """clamped_swiglu times the number of act_scales for each row."""
    with torch.no_grad():
        rest = (None, act_scales, glu_interleave_size)
        numbers: dict[str, Any] = dict(limit=limit, alpha=alpha, glu_linear_offset=glu_linear_offset)
        if quantizer is not None or act_scales is None:
            check_call("scaled_clamped_swiglu", "clamped", input, quantizer, *rest, **numbers)
        try:
            y = clamped_glu(input, act_scales, limit, alpha, glu_linear_offset, glu_interleave_size)
        except (TypeError, ValueError):
            check_call("scaled_clamped_swiglu", "clamped", input, None, *rest, **numbers)
            raise
        return quantized(y, quantizer)


@op(**tried("clamped", True))
def scaled_clamped_dswiglu(
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
    """The gradients of scaled_clamped_swiglu's input and act_scales; None for the latter, where it is not wanted."""
    with torch.no_grad():
        rest = (grad, act_scales, glu_interleave_size)
        numbers: dict[str, Any] = dict(limit=limit, alpha=alpha, glu_linear_offset=glu_linear_offset)
        if quantizer is not None or act_scales is None:
            check_call("scaled_clamped_dswiglu", "clamped", fwd_input, quantizer, *rest, **numbers)
        try:
            dx, dscales = clamped_glu_bwd(
                grad, fwd_input, act_scales, limit, alpha, glu_linear_offset, glu_interleave_size
            )
        except (TypeError, ValueError):
            check_call("scaled_clamped_dswiglu", "clamped", fwd_input, None, *rest, **numbers)
            raise
        return quantized(dx, quantizer), dscales if compute_scale_grad else None
