"""Activations, and their gated forms act(a) * b.

The maths of each is a row of `ACTS`; a loop makes the ops: `<act>`, `<act>_bwd`, `<act>_mul` and `<act>_mul_bwd`.
All of them compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..core.spec import op
from ._numeric import check_alike, dtype_name, rounded, wide
from .samples import errors, flat


class Act(NamedTuple):
    """f and f', of tensors that are already wide, and f in words. Both are finite wherever the true value is."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    text: str
    alone: bool = True  # whether the activation is an op by itself


# Beyond this the slope of every x * sigmoid(...) below is 0 or 1, to the last bit of a float64.
FAR = 1e3


def swish(gate: Callable[[Tensor], Tensor], rate: Callable[[Tensor], Tensor | float], text: str) -> Act:
    """x * sigmoid(gate(x)), with rate = gate'."""

    def slope(x: Tensor) -> Tensor:
        x = x.clamp(-FAR, FAR)  # far out it would be infinity times zero
        k = gate(x)
        s = torch.sigmoid(k)
        return s + x * rate(x) * s * torch.sigmoid(-k)  # 1 - s would cancel

    return Act(lambda x: x * torch.sigmoid(gate(x)), slope, text)


# 0.5 + 0.5 * tanh(u) = sigmoid(2u)
K1 = 2 * math.sqrt(2 / math.pi)
K3 = K1 * 0.044715


def _gelu_gate(x: Tensor) -> Tensor:
    return x * (K1 + K3 * x * x)


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


ACTS = {
    "gelu": swish(
        _gelu_gate,
        lambda x: K1 + 3 * K3 * x * x,
        "x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3)))",
    ),
    "gelu_erf": Act(
        lambda x: x * _normal_cdf(x),
        lambda x: _normal_cdf(x) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
        "x * (0.5 + 0.5 * erf(x / sqrt(2)))",
    ),
    "silu": swish(lambda x: x, lambda x: 1.0, "x * sigmoid(x)"),
    "qgelu": swish(lambda x: 1.702 * x, lambda x: 1.702, "x * sigmoid(1.702 x)"),
    "relu": Act(lambda x: x.clamp(min=0), lambda x: (x > 0).to(x.dtype), "max(x, 0)"),
    "srelu": Act(lambda x: x.clamp(min=0).square(), lambda x: 2 * x.clamp(min=0), "max(x, 0)^2"),
    "sigmoid": Act(torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), "sigmoid(x)", alone=False),
}


def check(op: str, **tensors: Tensor) -> None:
    """Refuse what is not one shape on one device; the dtype too must be the first's, but for a gradient's."""
    (lead, x), *others = tensors.items()
    check_alike(op, lead, x, **dict(others))
    for name, t in others:
        if t.dtype != x.dtype and name != "dy":
            want, got = dtype_name(x.dtype), dtype_name(t.dtype)
            raise ValueError(f"{op}: {name} must be {want}, the dtype of {lead}; got {got}")


def one(act: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The references of y = f(x) and its gradient."""
    value, slope, *_ = ACTS[act]

    def forward(x: Tensor) -> Tensor:
        check(act, x=x)
        return rounded(value(wide(x)), x.dtype)

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        check(f"{act}_bwd", x=x, dy=dy)
        v = wide(x)
        return rounded(dy.to(v.dtype) * slope(v), x.dtype)

    return forward, backward


def gated(act: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The references of y = f(a) * b and its gradients."""
    value, slope, *_ = ACTS[act]

    def forward(a: Tensor, b: Tensor) -> Tensor:
        check(f"{act}_mul", a=a, b=b)
        return rounded(value(wide(a)) * wide(b), a.dtype)

    def backward(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        check(f"{act}_mul_bwd", a=a, b=b, dy=dy)
        va, vb = wide(a), wide(b)
        g = dy.to(va.dtype)
        return rounded(g * vb * slope(va), a.dtype), rounded(g * value(va), a.dtype)

    return forward, backward


class Variant(NamedTuple):
    """A pair of ops that every activation has: how they are made, named and explained."""

    make: Callable[[str], tuple[Callable[..., Any], Callable[..., Any]]]
    suffix: str
    inputs: str
    doc: str
    bwd_doc: str


VARIANTS = (
    Variant(one, "", "x", "y = {f}.", "dx = dy * f'(x), f(x) = {f}."),
    Variant(gated, "_mul", "a b", "y = f(a) * b, f(x) = {f}.", "da = dy * b * f'(a), db = dy * f(a), f(x) = {f}."),
)


# How each input is spoiled for the error samples.
WRONG = {"x": "ints", "a": "ints", "b": "short away ints dtype", "dy": "short away ints"}


def declare(fn: Callable[..., Any], name: str, inputs: str, doc: str, **fields: Any) -> None:
    """Make a generated reference an op of this module, under a name of its own."""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    good = flat(inputs)
    bad = errors(good, **{n: WRONG[n] for n in inputs.split()})
    globals()[name] = op(fn, samples=good, errors=bad, **fields)


for _act, _row in ACTS.items():
    for _variant in VARIANTS if _row.alone else VARIANTS[1:]:
        _name = _act + _variant.suffix
        _forward, _backward = _variant.make(_act)
        _grads = " ".join(f"d{n}" for n in _variant.inputs.split())
        declare(_forward, _name, _variant.inputs, _variant.doc.format(f=_row.text), grad=f"{_name}_bwd")
        declare(_backward, f"{_name}_bwd", f"dy {_variant.inputs}", _variant.bwd_doc.format(f=_row.text), out=_grads)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Any]: ...
