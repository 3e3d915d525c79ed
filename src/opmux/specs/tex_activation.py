"""tex's activations: NVIDIA's names and signatures over the ops of `activation`.

A module of its own, as half of the names are also those of our ops: `gelu(input, quantizer)` here, `gelu(x)` there. An
op is a template below with its parts put in: the op of ours that computes it, and the one that also casts to float8,
for a quantizer whose scale is known beforehand. Results for other quantizers are quantized afterwards.

A good call goes straight to its part: arguments are looked at again, under tex's names, only where that refuses them.
"""

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..core.spec import State, op
from . import activation
from ._fused import fp8_of, fp8_tensor, fuses
from ._numeric import check_alike
from ._quantized import check_quantizer, quantized
from .samples import Draw, Maker, errors

# What differs between the ops made of one template: each sees values of its own under these names.
NAME: str = ""
ACT: str = ""
PART: Callable[..., Any] = activation.gelu
FUSED: Callable[..., Any] = activation.act_fp8
CHECK: Callable[..., None] = check_alike


def forward(input: Tensor, quantizer: State) -> Any:
    with torch.no_grad():
        if quantizer is None:
            try:
                return PART(input)
            except (TypeError, ValueError):
                CHECK(NAME, "input", input)
                raise
        CHECK(NAME, "input", input)
        check_quantizer(NAME, one_half(input) if CHECK is activation.check_halves else input, quantizer, "input")
        if fuses(quantizer):
            y, inverse = FUSED(input, quantizer.scale, quantizer.amax, fp8_of(quantizer), ACT)
            return fp8_tensor(quantizer, y, inverse, input.dtype)
        return quantized(PART(input), quantizer)


def backward(grad: Tensor, fwd_input: Tensor, quantizer: State) -> Any:
    with torch.no_grad():
        if quantizer is None:
            try:
                return PART(grad, fwd_input)
            except (TypeError, ValueError):
                CHECK(NAME, "fwd_input", fwd_input, grad=grad)
                raise
        CHECK(NAME, "fwd_input", fwd_input, grad=grad)
        check_quantizer(NAME, fwd_input, quantizer, "fwd_input")
        if fuses(quantizer):
            dx, inverse = FUSED(grad, fwd_input, quantizer.scale, quantizer.amax, fp8_of(quantizer), ACT)
            return fp8_tensor(quantizer, dx, inverse, fwd_input.dtype)
        return quantized(PART(grad, fwd_input), quantizer)


def backward_with_bias(grad: Tensor, fwd_input: Tensor, quantizer: State) -> list[Any]:
    with torch.no_grad():
        if quantizer is None:
            try:
                dact, dbias = PART(grad, fwd_input)
            except (TypeError, ValueError):
                CHECK(NAME, "fwd_input", fwd_input, grad=grad)
                raise
            return [dbias if dbias.dtype is grad.dtype else dbias.to(grad.dtype), dact]
        CHECK(NAME, "fwd_input", fwd_input, grad=grad)
        check_quantizer(NAME, fwd_input, quantizer, "fwd_input")
        if fuses(quantizer):
            scale, amax = quantizer.scale, quantizer.amax
            dx, inverse, dbias = FUSED(grad, fwd_input, scale, amax, fp8_of(quantizer), ACT)
            return [dbias.to(grad.dtype), fp8_tensor(quantizer, dx, inverse, fwd_input.dtype)]
        dact, dbias = PART(grad, fwd_input)
        return [dbias.to(grad.dtype), quantized(dact, quantizer)]


def one_half(x: Tensor) -> Tensor:
    return activation.halves(x)[0]


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class Form(NamedTuple):
    """Ops made of one template: from what of ours, how they are checked, and what they are spoiled with."""

    template: Callable[..., Any]
    part: str  # the op of ours, of an activation
    fused: str  # the one that casts too, of them all
    check: Callable[..., None]
    out: str
    doc: str
    wrong: dict[str, str]
    more: dict[str, Any] = {}


GRAD_WRONG = {"grad": "short ints away", "fwd_input": "ints", "quantizer": "given"}
ROW_WRONG = {**GRAD_WRONG, "fwd_input": "ints 0-dim"}
FORMS = {
    "": Form(forward, "{act}", "act_fp8", check_alike, "y", "f(input)", {"input": "ints", "quantizer": "given"}),
    "d": Form(backward, "{act}_bwd", "act_bwd_fp8", check_alike, "dx", "grad * f'(fwd_input)", GRAD_WRONG),
    "dbias_d": Form(
        backward_with_bias,
        "{act}_bias_bwd",
        "act_bias_bwd_fp8",
        activation.check_bias,
        "dbias dact",
        "[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype",
        ROW_WRONG,
        {"tol": activation.SUMS, "result": as_list},
    ),
    "glu": Form(
        forward,
        "{act}_glu",
        "glu_fp8",
        activation.check_halves,
        "y",
        "f(a) * b, with a and b the halves of the last dimension of input",
        {"input": "ints 0-dim", "quantizer": "given"},
    ),
    "dglu": Form(
        backward,
        "{act}_glu_bwd",
        "glu_bwd_fp8",
        activation.check_halves,
        "dx",
        "[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input",
        ROW_WRONG,
    ),
}

# tex's name -> form, activation
OPS = {
    **{form + act: (form, act) for act in "gelu relu silu srelu qgelu".split() for form in ("", "d", "dbias_d")},
    **{
        d + name: (f"{d}glu", act)
        for name, act in dict(
            geglu="gelu", swiglu="silu", reglu="relu", sreglu="srelu", qgeglu="qgelu", glu="sigmoid"
        ).items()
        for d in ("", "d")
    },
}

TEX_NAMES = {"forward": {"x": "input"}, "backward": {"dy": "grad", "x": "fwd_input"}}


def named(of: Maker, names: dict[str, str]) -> Maker:
    """The samples of an op of ours, under tex's names."""

    def build(d: Draw) -> dict[str, Any]:
        given = of.build(d)
        return {**{new: given[old] for old, new in names.items()}, "quantizer": None}

    return Maker(build, tuple(c for c in of.cases if not {"weight", "no_bias"} & set(c.options)))


def declare(name: str, form: Form, act: str) -> None:
    part: Any = getattr(activation, form.part.format(act=act))
    lead = "input" if form.template is forward else "fwd_input"
    fused = getattr(activation, form.fused)
    own = {**globals(), "NAME": name, "ACT": act, "PART": part, "FUSED": fused, "CHECK": form.check}
    code: Any = form.template
    fn = types.FunctionType(code.__code__, own, name)
    fn.__annotations__ = form.template.__annotations__
    fn.__doc__ = f"{form.doc}, f(x) = {activation.ACTS[act].text}."
    good = named(part.spec.samples, TEX_NAMES["forward" if form.template is forward else "backward"])
    bad = errors(good, **form.wrong)
    if form.check is activation.check_halves:
        bad = activation.odd(good, bad, lead)
    globals()[name] = op(fn, space="tex", out=form.out, samples=good, errors=bad, **form.more)


for _name, (_form, _act) in OPS.items():
    declare(_name, FORMS[_form], _act)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Any]: ...
