"""tex's activations: NVIDIA's names and signatures over the ops of `specs.activation`.

A function calls either the op that computes the activation, or an op that also quantizes. Delayed scaling without a
transpose uses the op that casts to float8. Delayed scaling with a transpose, current and block scaling and MXFP8 use
the ops of `fused`. With any other quantizer the result is quantized in a second step.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.spec import State
from ....specs import activation
from ....specs.samples import Draw, Maker
from ..fused import ACT_CASTS, act_quantized, is_delayed, needs_transpose
from ..quantized import can_quantize, fp8_of, quantized, recorded_amax, wrapped_fp8

Fn = Callable[..., Any]


# ---- arguments ------------------------------------------------------------------------------------------------------


def quantizes_input(op: str, input: Tensor, quantizer: Any) -> None:
    can_quantize(op, input, quantizer, "input")


def quantizes_half(op: str, input: Tensor, quantizer: Any) -> None:
    can_quantize(op, activation.halves(input)[0], quantizer, "input")


def quantizes_gradient(op: str, fwd_input: Tensor, quantizer: Any) -> None:
    can_quantize(op, fwd_input, quantizer, "fwd_input")


def casts_alone(quantizer: Any, x: Tensor) -> bool:
    """Whether quantizing is only a cast to float8: the scale is already known, and no transpose is needed."""
    return is_delayed(quantizer) and not needs_transpose(quantizer, x.device)


# ---- forms ----------------------------------------------------------------------------------------------------------


def forward(check: Fn, part: str, fused: str, act: str) -> Fn:
    def fn(call: Any, input: Tensor, quantizer: State) -> Any:
        compute = getattr(call, part)
        with torch.no_grad():
            if quantizer is None:
                return compute(input)
            check(input=input, quantizer=quantizer)  # check before the quantizer's amax is written
            if casts_alone(quantizer, input):
                cast = getattr(call, fused)
                y, inverse = cast(input, quantizer.scale, recorded_amax(quantizer), fp8_of(quantizer), act)
                return wrapped_fp8(quantizer, y, y.shape, input.dtype, scale_inv=inverse)
            output = act_quantized(call, quantizer, input, None, act, fused == "glu_fp8")
            return quantized(call, compute(input), quantizer) if output is None else output

    return fn


def backward(check: Fn, part: str, fused: str, act: str) -> Fn:
    def fn(call: Any, grad: Tensor, fwd_input: Tensor, quantizer: State) -> Any:
        compute = getattr(call, part)
        with torch.no_grad():
            if quantizer is None:
                return compute(grad, fwd_input)
            check(grad=grad, fwd_input=fwd_input, quantizer=quantizer)
            if casts_alone(quantizer, fwd_input):
                cast = getattr(call, fused)
                dx, inverse = cast(grad, fwd_input, quantizer.scale, recorded_amax(quantizer), fp8_of(quantizer), act)
                return wrapped_fp8(quantizer, dx, dx.shape, fwd_input.dtype, scale_inv=inverse)
            output = act_quantized(call, quantizer, fwd_input, grad, act, fused == "glu_bwd_fp8")
            return quantized(call, compute(grad, fwd_input), quantizer) if output is None else output

    return fn


def backward_with_bias(check: Fn, part: str, fused: str, act: str) -> Fn:
    def fn(call: Any, grad: Tensor, fwd_input: Tensor, quantizer: State) -> list[Any]:
        compute = getattr(call, part)
        with torch.no_grad():
            if quantizer is None:
                dact, dbias = compute(grad, fwd_input)
                return [dbias if dbias.dtype is grad.dtype else dbias.to(grad.dtype), dact]
            check(grad=grad, fwd_input=fwd_input, quantizer=quantizer)
            if casts_alone(quantizer, fwd_input):
                scale, amax = quantizer.scale, recorded_amax(quantizer)
                dx, inverse, dbias = getattr(call, fused)(grad, fwd_input, scale, amax, fp8_of(quantizer), act)
                return [dbias.to(grad.dtype), wrapped_fp8(quantizer, dx, dx.shape, fwd_input.dtype, scale_inv=inverse)]
            dbias = fwd_input.new_empty(fwd_input.shape[-1:])
            output = act_quantized(call, quantizer, fwd_input, grad, act, False, dbias)
            if output is not None:
                return [dbias.to(grad.dtype), output]
            dact, dbias = compute(grad, fwd_input)
            return [dbias.to(grad.dtype), quantized(call, dact, quantizer)]

    return fn


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class ActivationForm(NamedTuple):
    """Describes functions that differ only in the activation: the ops that they call, and what they return."""

    make: Callable[[Fn, str, str, str], Fn]
    part: str  # the op for an activation
    fused: str  # the op that also casts to float8, for all activations
    where: Fn
    out: str
    doc: str
    more: dict[str, Any] = {}


FORMS = {
    "": ActivationForm(forward, "{act}", "act_fp8", quantizes_input, "y", "f(input)"),
    "d": ActivationForm(backward, "{act}_bwd", "act_bwd_fp8", quantizes_gradient, "dx", "grad * f'(fwd_input)"),
    "dbias_d": ActivationForm(
        backward_with_bias,
        "{act}_bias_bwd",
        "act_bias_bwd_fp8",
        quantizes_gradient,
        "dbias dact",
        "[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype",
        {"tol": activation.SUMS, "result": as_list},
    ),
    "glu": ActivationForm(
        forward,
        "{act}_glu",
        "glu_fp8",
        quantizes_half,
        "y",
        "f(a) * b, with a and b the halves of the last dimension of input",
    ),
    "dglu": ActivationForm(
        backward,
        "{act}_glu_bwd",
        "glu_bwd_fp8",
        quantizes_gradient,
        "dx",
        "[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input",
    ),
}

# tex's name -> (form, activation)
OPS = {
    **{
        form + name: (form, act)
        for name, act in dict(gelu="gelu_tanh", relu="relu", silu="silu", srelu="srelu", qgelu="qgelu").items()
        for form in ("", "d", "dbias_d")
    },
    **{
        d + name: (f"{d}glu", act)
        for name, act in dict(
            geglu="gelu_tanh", swiglu="silu", reglu="relu", sreglu="srelu", qgeglu="qgelu", glu="sigmoid"
        ).items()
        for d in ("", "d")
    },
}
NAMES = {"forward": {"x": "input"}, "backward": {"dy": "grad", "x": "fwd_input"}}


def named(maker: Maker, names: dict[str, str]) -> Maker:
    """The samples of our op, with tex's argument names."""

    def build(d: Draw) -> dict[str, Any]:
        args = maker.build(d)
        return {**{new: args[old] for old, new in names.items()}, "quantizer": None}

    return Maker(build, tuple(c for c in maker.cases if not {"weight", "no_bias"} & set(c.options)))


def declare(name: str, form: ActivationForm, act: str) -> None:
    part: Any = getattr(activation, form.part.format(act=act))
    fused = getattr(activation, form.fused)
    names = NAMES["forward" if form.make is forward else "backward"]
    fn = form.make(lambda **arguments: adapted.check(**arguments), part.spec.name, fused.spec.name, act)
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{form.doc}, f(x) = {activation.ACTS[act].text}."
    samples = named(part.spec.samples, names)
    over = (part, fused, *ACT_CASTS)
    adapted: Any = adapt(
        f"tex::{name}", over=over, names=names, out=form.out, samples=samples, where=form.where, **form.more
    )(fn)
    globals()[name] = adapted


for _name, (_form, _act) in OPS.items():
    declare(_name, FORMS[_form], _act)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
