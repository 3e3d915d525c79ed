"""Gates with parameters, and a factor for each row: y = s * f(a) * u(b), with a and b the halves of the last dimension.

For mixtures of experts: the factor is the router's probability of a row. f and u of each gate are a row of `GATES`.
With `interleave` k, blocks of k columns of a and of b alternate. tex's names for them are in faces/tex/ops.
They compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Rule, each_row
from ..core.spec import op
from . import activation
from ._numeric import rounded, wide
from .activation import SUMS
from .samples import Case, Draw, Maker


class Gate(NamedTuple):
    """f, f', u and u' of float32 or float64 tensors and the parameters; u is None where there is no b."""

    value: Callable[..., Tensor]
    slope: Callable[..., Tensor]
    up: Callable[..., Tensor] | None
    up_slope: Callable[..., Tensor] | None


def _situ_slope(a: Tensor, beta1: float, beta2: float) -> Tensor:
    t, s = torch.tanh(a / beta1), torch.sigmoid(a)
    return (1 - t * t) * s + beta1 * t * s * torch.sigmoid(-a)


def _flat_slope(b: Tensor, beta1: float, beta2: float) -> Tensor:
    t = torch.tanh(b / beta2)
    return 1 - t * t


def _swish(a: Tensor, alpha: float) -> Tensor:
    return a * torch.sigmoid(alpha * a)


def _swish_slope(a: Tensor, alpha: float) -> Tensor:
    a = a.clamp(-activation.FAR, activation.FAR)  # beyond it would be infinity times zero
    s = torch.sigmoid(alpha * a)
    return s + alpha * a * s * torch.sigmoid(-alpha * a)


SILU, SRELU = activation.ACTS["silu"], activation.ACTS["srelu"]
GATES = {
    "silu": Gate(SILU.value, SILU.slope, lambda b: b, torch.ones_like),
    "srelu": Gate(SRELU.value, SRELU.slope, None, None),
    "situ": Gate(
        lambda a, beta1, beta2: beta1 * torch.tanh(a / beta1) * torch.sigmoid(a),
        _situ_slope,
        lambda b, beta1, beta2: beta2 * torch.tanh(b / beta2),
        _flat_slope,
    ),
    "clamped": Gate(
        lambda a, limit, alpha, offset: _swish(torch.where(a > limit, limit, a), alpha),
        lambda a, limit, alpha, offset: torch.where(a > limit, 0.0, _swish_slope(a, alpha)),
        lambda b, limit, alpha, offset: b.clamp(-limit, limit) + offset,
        lambda b, limit, alpha, offset: torch.where(b.abs() > limit, 0.0, torch.ones_like(b)),
    ),
}


# ---- references -----------------------------------------------------------------------------------------------------


def split(x: Tensor, interleave: int) -> tuple[Tensor, Tensor]:
    """a and b."""
    if not interleave:
        return activation.halves(x)
    n = x.shape[-1] // 2
    turns = x.reshape(*x.shape[:-1], n // interleave, 2, interleave)
    return turns[..., 0, :].reshape(*x.shape[:-1], n), turns[..., 1, :].reshape(*x.shape[:-1], n)


def joined(a: Tensor, b: Tensor, interleave: int) -> Tensor:
    """The tensor of which these are a and b."""
    if not interleave:
        return torch.cat((a, b), -1)
    n = a.shape[-1]
    turns = [t.reshape(*t.shape[:-1], n // interleave, 1, interleave) for t in (a, b)]
    return torch.cat(turns, -2).reshape(*a.shape[:-1], 2 * n)


def factor(x: Tensor, scales: Tensor | None) -> Tensor | float:
    return 1.0 if scales is None else scales.to(x.dtype).reshape(*x.shape[:-1], 1)


def forward(gate: str, x: Tensor, scales: Tensor | None, interleave: int, *p: float) -> Tensor:
    row, v = GATES[gate], wide(x)
    if row.up is None:
        return rounded(row.value(v, *p) * factor(v, scales), x.dtype)
    a, b = split(v, interleave)
    return rounded(row.value(a, *p) * row.up(b, *p) * factor(v, scales), x.dtype)


def backward(
    gate: str, dy: Tensor, x: Tensor, scales: Tensor | None, interleave: int, *p: float
) -> tuple[Tensor, Tensor]:
    """dx, and dscales, which is empty without scales."""
    row, v = GATES[gate], wide(x)
    g = dy.to(v.dtype)
    s = g * factor(v, scales)
    if row.up is None or row.up_slope is None:
        y, dx = row.value(v, *p), s * row.slope(v, *p)
    else:
        a, b = split(v, interleave)
        f, u = row.value(a, *p), row.up(b, *p)
        y, dx = f * u, joined(s * u * row.slope(a, *p), s * f * row.up_slope(b, *p), interleave)
    if scales is None:
        return rounded(dx, x.dtype), v.new_empty(0)
    return rounded(dx, x.dtype), rounded((g * y).sum(-1).reshape(scales.shape), scales.dtype)


# ---- samples --------------------------------------------------------------------------------------------------------

PARAMETERS: dict[str, dict[str, float]] = {
    "silu": {},
    "srelu": {},
    "situ": {"beta1": 4.0, "beta2": 25.0},
    "clamped": {"limit": 7.0, "alpha": 1.702, "offset": 1.0},
}
OTHERS = {"situ": {"beta1": 1.5, "beta2": 2.0}, "clamped": {"limit": 0.8, "alpha": 1.0, "offset": 0.25}}
CASES = (
    Case((5, 64)),
    Case((3, 200), options={"weight": "other", "others": True}),
    Case((2, 3, 34), options={"others": True}),
    Case((3, 128), options={"interleave": 16}),
    Case((0, 64), options={"interleave": 32}),
    Case((6, 16), "t"),
    Case((40,), options={"spread": 20.0}),
    Case((4, 0)),
)
NO_SCALES = Case((7, 96), options={"no_scales": True, "spread": 5.0})


def samples(gate: str, backward: bool) -> Maker:
    """Of a gate: options weight="other" (the scales' dtype), others (parameters), interleave, no_scales, spread."""
    gated, plain = GATES[gate].up is not None, gate in OTHERS

    def build(d: Draw) -> dict[str, Any]:
        *lead, n = d.case.shape
        wider = Draw(Case((*lead, 2 * n), d.case.layout), d.dtype, d.device) if backward and gated else d
        given: dict[str, Any] = {"dy": d.grad()} if backward else {}
        given["x"] = wider.full(d.option("spread", 1.0))
        of_rows = Draw(Case((math.prod(lead),), options=d.case.options), d.dtype, d.device)
        given["scales"] = None if d.option("no_scales") else of_rows.cols()
        given |= OTHERS[gate] if d.option("others") and plain else PARAMETERS[gate]
        return given | ({"interleave": d.option("interleave", 0)} if gated else {})

    return Maker(build, (*CASES, NO_SCALES) if plain else CASES)


def tried(gate: str, backward: bool) -> dict[str, Any]:
    """How an op of a gate is declared: its samples, and how sums may differ."""
    of: dict[str, Any] = {"samples": samples(gate, backward)}
    return {**of, "out": "dx dscales", "tol": SUMS} if backward else of


# ---- the ops --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class divides_half(Rule):
    """0, or a divisor of half the last dimension of another argument."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        x = given.get(self.of)
        half = x.shape[-1] // 2 if isinstance(x, Tensor) and x.dim() else 0
        if value == 0 or (value > 0 and half % value == 0):
            return None
        return f"be 0, or divide half the last dimension of {{{self.of}}}"

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "negative", -1
        yield "no divisor", 7

    def doc(self) -> str:
        return f"0, or a divisor of half the last dimension of {self.of}"


Scales = Float[Tensor, "...", each_row("x")]
Interleave = Annotated[int, divides_half("x")]


@op(grad="silu_glu_scaled_bwd", **tried("silu", False))
def silu_glu_scaled(x: Float[Tensor, "*rows 2*n"], scales: Scales, interleave: Interleave = 0) -> Tensor:
    """y = s * silu(a) * b, with a and b the halves of the last dimension of x, s a number for each row.

    Args:
        x: the gate a, before its activation, and what is gated, b.
        scales: s.
        interleave: k where columns of a and b alternate in blocks of k; 0 for a before b.

    Returns:
        y [*rows, n], in x's dtype.
    """
    return forward("silu", x, scales, interleave)


@op(**tried("silu", True))
def silu_glu_scaled_bwd(
    dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows 2*n"], scales: Scales, interleave: Interleave = 0
) -> tuple[Tensor, Tensor]:
    """dx = dy * s * [b * silu'(a), silu(a)], dscales = sum(dy * silu(a) * b) of each row."""
    return backward("silu", dy, x, scales, interleave)


@op(grad="srelu_scaled_bwd", **tried("srelu", False))
def srelu_scaled(x: Float[Tensor, "*rows n"], scales: Scales) -> Tensor:
    """y = s * max(x, 0)^2, s a number for each row.

    Args:
        x: the input.
        scales: s.
    """
    return forward("srelu", x, scales, 0)


@op(**tried("srelu", True))
def srelu_scaled_bwd(dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows n"], scales: Scales) -> tuple[Tensor, Tensor]:
    """dx = dy * s * 2 max(x, 0), dscales = sum(dy * max(x, 0)^2) of each row."""
    return backward("srelu", dy, x, scales, 0)


@op(grad="situ_glu_bwd", **tried("situ", False))
def situ_glu(
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    beta1: float = 4.0,
    beta2: float = 25.0,
    interleave: Interleave = 0,
) -> Tensor:
    """y = s * f(a) * u(b), f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2).

    Args:
        x: a and b, the halves of its last dimension.
        scales: s, a number for each row; 1 where it is None.
        beta1: the bound of the gate.
        beta2: the bound of what is gated.
        interleave: k where columns of a and b alternate in blocks of k; 0 for a before b.

    Returns:
        y [*rows, n], in x's dtype.
    """
    return forward("situ", x, scales, interleave, beta1, beta2)


@op(**tried("situ", True))
def situ_glu_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    beta1: float = 4.0,
    beta2: float = 25.0,
    interleave: Interleave = 0,
) -> tuple[Tensor, Tensor]:
    """The gradients of situ_glu; dscales is empty where there are no scales."""
    return backward("situ", dy, x, scales, interleave, beta1, beta2)


@op(grad="clamped_glu_bwd", **tried("clamped", False))
def clamped_glu(
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    limit: float = 7.0,
    alpha: float = 1.702,
    offset: float = 1.0,
    interleave: Interleave = 0,
) -> Tensor:
    """y = s * f(min(a, limit)) * (clamp(b, -limit, limit) + offset), f(a) = a * sigmoid(alpha * a).

    Args:
        x: a and b, the halves of its last dimension.
        scales: s, a number for each row; 1 where it is None.
        limit: a is clamped from above, b from both sides.
        alpha: the slope of the sigmoid.
        offset: added to b.
        interleave: k where columns of a and b alternate in blocks of k; 0 for a before b.

    Returns:
        y [*rows, n], in x's dtype.
    """
    return forward("clamped", x, scales, interleave, limit, alpha, offset)


@op(**tried("clamped", True))
def clamped_glu_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    limit: float = 7.0,
    alpha: float = 1.702,
    offset: float = 1.0,
    interleave: Interleave = 0,
) -> tuple[Tensor, Tensor]:
    """The gradients of clamped_glu: 0 where a or b was clamped; dscales is empty where there are no scales."""
    return backward("clamped", dy, x, scales, interleave, limit, alpha, offset)
