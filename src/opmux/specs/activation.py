"""Activations: act(x), act(x + bias), and gated act(a) * b, where a and b are two tensors or the halves of one.

`ACTS` has the formulas, `VARIANTS` the variants of each op; a loop declares `<act>`, `<act>_bias`, `<act>_mul`,
`<act>_glu`, and their gradients `<name>_bwd`. faces/tex/ops declares them under tex's names. The ops compute in float32
(float64 for float64), round once, and return new contiguous tensors.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Rule, each_row, one_of, same_dtype
from ..core.spec import Tol, op
from . import _fp8
from ._numeric import SUMS, rounded, wide
from .samples import FLAT, ROWS, Case, Draw, Maker, flat


class Act(NamedTuple):
    """f and f' for float32 or float64 tensors, and f as text. f and f' are finite wherever the exact value is."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    text: str
    alone: bool = True  # False: the activation exists only as a gate


# For larger |x| the derivative of every x * sigmoid(...) below is exactly 0 or 1 in float64.
FAR = 1e3


def swish(gate: Callable[[Tensor], Tensor], rate: Callable[[Tensor], Tensor | float], text: str) -> Act:
    """The activation x * sigmoid(gate(x)); rate is gate'."""

    def slope(x: Tensor) -> Tensor:
        x = x.clamp(-FAR, FAR)  # avoids infinity times zero
        k = gate(x)
        s = torch.sigmoid(k)
        return s + x * rate(x) * s * torch.sigmoid(-k)  # sigmoid(-k) is 1 - s without cancellation

    return Act(lambda x: x * torch.sigmoid(gate(x)), slope, text)


# 0.5 + 0.5 * tanh(u) = sigmoid(2u)
K1 = 2 * math.sqrt(2 / math.pi)
K3 = K1 * 0.044715


def _gelu_gate(x: Tensor) -> Tensor:
    return x * (K1 + K3 * x * x)


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


ACTS = {
    "gelu_tanh": swish(
        _gelu_gate,
        lambda x: K1 + 3 * K3 * x * x,
        "x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3)))",
    ),
    "gelu": Act(
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


def one(act: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The references of y = f(x) and its gradient."""
    value, slope, *_ = ACTS[act]

    def forward(x: Float[Tensor, "..."]) -> Tensor:
        return rounded(value(wide(x)), x.dtype)

    def backward(dy: Grad[Tensor, "*shape"], x: Float[Tensor, "*shape"]) -> Tensor:
        v = wide(x)
        return rounded(dy.to(v.dtype) * slope(v), x.dtype)

    return forward, backward


def gated(act: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The references of y = f(a) * b and its gradients."""
    value, slope, *_ = ACTS[act]

    def forward(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape", same_dtype("a")]) -> Tensor:
        return rounded(value(wide(a)) * wide(b), a.dtype)

    def backward(
        dy: Grad[Tensor, "*shape"], a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape", same_dtype("a")]
    ) -> tuple[Tensor, Tensor]:
        va, vb = wide(a), wide(b)
        g = dy.to(va.dtype)
        return rounded(g * vb * slope(va), a.dtype), rounded(g * value(va), a.dtype)

    return forward, backward


def biased(act: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The references of y = f(x + bias) and its gradients."""
    value, slope, *_ = ACTS[act]

    def forward(x: Float[Tensor, "*rows n"], bias: Float[Tensor, "n"]) -> Tensor:
        v = wide(x)
        return rounded(value(v + bias.to(v.dtype)), x.dtype)

    def backward(
        dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows n"], bias: Float[Tensor, "n"] | None = None
    ) -> tuple[Tensor, Tensor]:
        v = wide(x)
        dx = dy.to(v.dtype) * slope(v if bias is None else v + bias.to(v.dtype))
        dbias = dx.sum_to_size(x.shape[-1:])  # before dx is rounded
        return rounded(dx, x.dtype), rounded(dbias, x.dtype if bias is None else bias.dtype)

    return forward, backward


def halved(act: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The references of y = f(a) * b, with a and b the first and second half of the last dimension of x."""
    value, slope, *_ = ACTS[act]

    def forward(x: Float[Tensor, "*rows 2*n"]) -> Tensor:
        a, b = halves(wide(x))
        return rounded(value(a) * b, x.dtype)

    def backward(dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows 2*n"]) -> Tensor:
        a, b = halves(wide(x))
        g = dy.to(a.dtype)
        return rounded(torch.cat((g * b * slope(a), g * value(a)), -1), x.dtype)

    return forward, backward


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[-1] // 2
    return x[..., :n], x[..., n:]


# ---- samples --------------------------------------------------------------------------------------------------------


def with_bias(names: str) -> Maker:
    """Samples of an op with a bias. Options: scale (multiplies x), weight="other" (the bias' dtype), no_bias."""

    def build(d: Draw) -> dict[str, Any]:
        draws: dict[str, Callable[[], Any]] = {
            "dy": d.grad,
            "x": lambda: d.full(d.option("scale", 1.0)),
            "bias": lambda: None if d.option("no_bias") else d.cols(),
        }
        return {name: draws[name]() for name in names.split()}

    without = [Case((37, 64), options={"no_bias": True})] if "dy" in names else []
    plain = [c for c in ROWS if "offset" not in c.options]
    return Maker(build, (*plain, Case((5, 64), options={"scale": 20.0}), *without))


def _doubled(case: Case) -> Case:
    return Case((*case.shape[:-1], 2 * case.shape[-1]), case.layout, case.options)


def with_halves(names: str) -> Maker:
    """Samples of an op on the halves of x. The first tensor, dy or x, has the shape of the case."""
    cases = [c for c in FLAT if c.shape]

    def build(d: Draw) -> dict[str, Any]:
        x = (Draw(_doubled(d.case), d.dtype, d.device) if "dy" in names else d).full()
        if "scale" in d.case.options:
            halves(x)[0].mul_(d.option("scale"))
        return {"dy": d.grad(), "x": x} if "dy" in names else {"x": x}

    return Maker(build, tuple(cases) if "dy" in names else (*map(_doubled, cases), Case((1, 1000))))


# ---- the ops --------------------------------------------------------------------------------------------------------

ROUNDED = "computed in float32 (float64 for float64) and rounded once"


class Variant(NamedTuple):
    """One variant of every activation, as a forward and a backward op: references, names, docstrings, samples."""

    make: Callable[[str], tuple[Callable[..., Any], Callable[..., Any]]]
    suffix: str
    inputs: str
    doc: str
    bwd_doc: str
    good: Callable[[str], Maker]
    gated: bool = False  # True: activations that exist only as gates have this variant too
    tol: Mapping[torch.dtype, Tol] | None = None  # tolerances of the backward


VARIANTS = (
    Variant(
        one,
        "",
        "x",
        f"""y = {{f}}.

        Args:
            x: the input.

        Returns:
            y, like x: {ROUNDED}.
        """,
        f"""The gradient of y = f(x): dx = dy * f'(x), f(x) = {{f}}.

        Args:
            dy: the gradient of y.
            x: the input of the forward.

        Returns:
            dx, like x: {ROUNDED}.
        """,
        flat,
    ),
    Variant(
        biased,
        "_bias",
        "x bias",
        f"""y = f(x + bias), f(x) = {{f}}.

        Args:
            x: the input.
            bias: added to each row.

        Returns:
            y, like x: {ROUNDED}.
        """,
        f"""The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = {{f}}.

        Args:
            dy: the gradient of y.
            x: the input of the forward.
            bias: as in the forward; None if it is already added to x.

        Returns:
            dx, like x, and dbias, in bias' dtype (x's without bias): {ROUNDED}. dbias is the sum of the unrounded dx.
        """,
        with_bias,
        tol=SUMS,
    ),
    Variant(
        gated,
        "_mul",
        "a b",
        f"""y = f(a) * b, f(x) = {{f}}.

        Args:
            a: the gate, before its activation.
            b: the values that are multiplied by the gate.

        Returns:
            y, like a: {ROUNDED}.
        """,
        f"""The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = {{f}}.

        Args:
            dy: the gradient of y.
            a: as in the forward.
            b: as in the forward.

        Returns:
            da and db, like a: {ROUNDED}.
        """,
        flat,
        gated=True,
    ),
    Variant(
        halved,
        "_glu",
        "x",
        f"""y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = {{f}}.

        Args:
            x: [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

        Returns:
            y [*rows, n], in x's dtype: {ROUNDED}.
        """,
        f"""The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = {{f}}.

        Args:
            dy: the gradient of y.
            x: the input of the forward.

        Returns:
            dx, like x: {ROUNDED}.
        """,
        with_halves,
        gated=True,
    ),
)


def declare(fn: Callable[..., Any], name: str, inputs: str, doc: str, variant: Variant, **fields: Any) -> None:
    """Declare a generated reference as an op of this module."""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    globals()[name] = op(fn, samples=variant.good(inputs), **fields)


for _act, _row in ACTS.items():
    for _v in VARIANTS:
        if not (_row.alone or _v.gated):
            continue
        _name = _act + _v.suffix
        _forward, _backward = _v.make(_act)
        _grads = " ".join(f"d{n}" for n in _v.inputs.split())
        _docs = [d.format(f=_row.text) for d in (_v.doc, _v.bwd_doc)]
        declare(_forward, _name, _v.inputs, _docs[0], _v, grad=f"{_name}_bwd")
        declare(_backward, f"{_name}_bwd", f"dy {_v.inputs}", _docs[1], _v, out=_grads, tol=_v.tol)

# ---- with a float8 result: one op for all activations, chosen by name ------------------------------------------------


Alone = Annotated[str, one_of(*(a for a, row in ACTS.items() if row.alone))]
Gate = Annotated[str, one_of(*ACTS)]


def _acting(names: str) -> Maker:
    """Samples for the activation named by the option `act`; "x2" stands for an x with two halves."""

    def build(d: Draw) -> dict[str, Any]:
        doubled = Draw(Case((*d.case.shape[:-1], 2 * d.case.shape[-1]), d.case.layout), d.dtype, d.device)
        draws = {"dy": lambda: ("dy", d.grad()), "x": lambda: ("x", d.full()), "x2": lambda: ("x", doubled.full())}
        return {**dict(draws[n]() for n in names.split()), **_fp8.numbers(d), "act": d.option("act", "gelu_tanh")}

    return Maker(build, _fp8.CASES)


ACT_FP8, ACT_BWD_FP8, GLU_FP8, GLU_BWD_FP8 = (_acting(names) for names in ("x", "dy x", "x2", "dy x2"))


@op(out="y scale_inv", mutates=("amax",), samples=ACT_FP8, tol=_fp8.BYTES)
def act_fp8(
    x: Float[Tensor, "..."], scale: _fp8.One, amax: _fp8.One | None, dtype: _fp8.Float8, act: Alone
) -> tuple[Tensor, Tensor]:
    """An activation with a float8 result: y = fp8(f(x) * scale), saturating, where `act` names f.

    Args:
        x: the input.
        scale: multiplies f(x) before the cast.
        amax: becomes max(amax, max |f(x)|), in place; None if not needed.
        dtype: the float8 dtype of y.
        act: the name of the activation.

    Returns:
        y, the bytes (uint8) in x's shape, and scale_inv = 1 / scale.
    """
    return _fp8.cast(ACTS[act].value(wide(x)), scale, amax, dtype)


@op(out="dx scale_inv", mutates=("amax",), samples=ACT_BWD_FP8, tol=_fp8.BYTES)
def act_bwd_fp8(
    dy: Grad[Tensor, "*shape"],
    x: Float[Tensor, "*shape"],
    scale: _fp8.One,
    amax: _fp8.One | None,
    dtype: _fp8.Float8,
    act: Alone,
) -> tuple[Tensor, Tensor]:
    """The gradient of an activation in float8: dx = fp8(dy * f'(x) * scale), with arguments as in act_fp8."""
    v = wide(x)
    return _fp8.cast(dy.to(v.dtype) * ACTS[act].slope(v), scale, amax, dtype)


@op(out="dx scale_inv dbias", mutates=("amax",), samples=ACT_BWD_FP8, tol={**_fp8.BYTES, **SUMS})
def act_bias_bwd_fp8(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    scale: _fp8.One,
    amax: _fp8.One | None,
    dtype: _fp8.Float8,
    act: Alone,
) -> tuple[Tensor, Tensor, Tensor]:
    """act_bwd_fp8, and dbias, the sum of dy * f'(x) over rows before any rounding, in x's dtype."""
    v = wide(x)
    dx = dy.to(v.dtype) * ACTS[act].slope(v)
    return *_fp8.cast(dx, scale, amax, dtype), rounded(dx.sum_to_size(x.shape[-1:]), x.dtype)


@op(out="y scale_inv", mutates=("amax",), samples=GLU_FP8, tol=_fp8.BYTES)
def glu_fp8(
    x: Float[Tensor, "*rows 2*n"], scale: _fp8.One, amax: _fp8.One | None, dtype: _fp8.Float8, act: Gate
) -> tuple[Tensor, Tensor]:
    """A gated activation in float8: y = fp8(f(a) * b * scale), with a and b the halves of x's last dimension.

    All arguments but x are those of act_fp8.
    """
    a, b = halves(wide(x))
    return _fp8.cast(ACTS[act].value(a) * b, scale, amax, dtype)


@op(out="dx scale_inv", mutates=("amax",), samples=GLU_BWD_FP8, tol=_fp8.BYTES)
def glu_bwd_fp8(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows 2*n"],
    scale: _fp8.One,
    amax: _fp8.One | None,
    dtype: _fp8.Float8,
    act: Gate,
) -> tuple[Tensor, Tensor]:
    """The gradient of a gated activation in float8: dx = fp8([dy * b * f'(a), dy * f(a)] * scale), as in glu_fp8."""
    row = ACTS[act]
    a, b = halves(wide(x))
    g = dy.to(a.dtype)
    return _fp8.cast(torch.cat((g * b * row.slope(a), g * row.value(a)), -1), scale, amax, dtype)


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


# ---- with parameters and a factor for each row ----------------------------------------------------------------------

# For mixtures of experts: y = s * f(a) * u(b), where a and b are the halves of the last dimension, and s is the
# router's probability for the row. `GATES` has f and u of each gate. With interleave=k, blocks of k columns of a and b
# alternate.


class ScaledGate(NamedTuple):
    """f, f', u and u': functions of a float32 or float64 tensor and the gate's parameters. Without b, u is None."""

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
    a = a.clamp(-FAR, FAR)  # avoids infinity times zero
    s = torch.sigmoid(alpha * a)
    return s + alpha * a * s * torch.sigmoid(-alpha * a)


SILU, SRELU = ACTS["silu"], ACTS["srelu"]
GATES = {
    "silu": ScaledGate(SILU.value, SILU.slope, lambda b: b, torch.ones_like),
    "srelu": ScaledGate(SRELU.value, SRELU.slope, None, None),
    "situ": ScaledGate(
        lambda a, beta1, beta2: beta1 * torch.tanh(a / beta1) * torch.sigmoid(a),
        _situ_slope,
        lambda b, beta1, beta2: beta2 * torch.tanh(b / beta2),
        _flat_slope,
    ),
    "clamped": ScaledGate(
        lambda a, limit, alpha, offset: _swish(torch.where(a > limit, limit, a), alpha),
        lambda a, limit, alpha, offset: torch.where(a > limit, 0.0, _swish_slope(a, alpha)),
        lambda b, limit, alpha, offset: b.clamp(-limit, limit) + offset,
        lambda b, limit, alpha, offset: torch.where(b.abs() > limit, 0.0, torch.ones_like(b)),
    ),
}


def split(x: Tensor, interleave: int) -> tuple[Tensor, Tensor]:
    """Split x into a and b."""
    if not interleave:
        return halves(x)
    n = x.shape[-1] // 2
    turns = x.reshape(*x.shape[:-1], n // interleave, 2, interleave)
    return turns[..., 0, :].reshape(*x.shape[:-1], n), turns[..., 1, :].reshape(*x.shape[:-1], n)


def joined(a: Tensor, b: Tensor, interleave: int) -> Tensor:
    """The inverse of `split`."""
    if not interleave:
        return torch.cat((a, b), -1)
    n = a.shape[-1]
    turns = [t.reshape(*t.shape[:-1], n // interleave, 1, interleave) for t in (a, b)]
    return torch.cat(turns, -2).reshape(*a.shape[:-1], 2 * n)


def factor(x: Tensor, scales: Tensor | None) -> Tensor | float:
    return 1.0 if scales is None else scales.to(x.dtype).reshape(*x.shape[:-1], 1)


def _scaled_forward(gate: str, x: Tensor, scales: Tensor | None, interleave: int, *p: float) -> Tensor:
    row, v = GATES[gate], wide(x)
    if row.up is None:
        return rounded(row.value(v, *p) * factor(v, scales), x.dtype)
    a, b = split(v, interleave)
    return rounded(row.value(a, *p) * row.up(b, *p) * factor(v, scales), x.dtype)


def _scaled_backward(
    gate: str, dy: Tensor, x: Tensor, scales: Tensor | None, interleave: int, *p: float
) -> tuple[Tensor, Tensor]:
    """Return dx and dscales; dscales is empty if scales is None."""
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


PARAMETERS: dict[str, dict[str, float]] = {
    "silu": {},
    "srelu": {},
    "situ": {"beta1": 4.0, "beta2": 25.0},
    "clamped": {"limit": 7.0, "alpha": 1.702, "offset": 1.0},
}
OTHERS = {"situ": {"beta1": 1.5, "beta2": 2.0}, "clamped": {"limit": 0.8, "alpha": 1.0, "offset": 0.25}}
SCALED_CASES = (
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


def scaled_samples(gate: str, backward: bool) -> Maker:
    """Options: weight="other" (another dtype for scales), others (parameters), interleave, no_scales, spread."""
    gated, plain = GATES[gate].up is not None, gate in OTHERS

    def build(d: Draw) -> dict[str, Any]:
        *lead, n = d.case.shape
        wider = Draw(Case((*lead, 2 * n), d.case.layout), d.dtype, d.device) if backward and gated else d
        args: dict[str, Any] = {"dy": d.grad()} if backward else {}
        args["x"] = wider.full(d.option("spread", 1.0))
        of_rows = Draw(Case((math.prod(lead),), options=d.case.options), d.dtype, d.device)
        args["scales"] = None if d.option("no_scales") else of_rows.cols()
        args |= OTHERS[gate] if d.option("others") and plain else PARAMETERS[gate]
        return args | ({"interleave": d.option("interleave", 0)} if gated else {})

    return Maker(build, (*SCALED_CASES, NO_SCALES) if plain else SCALED_CASES)


def _scaled(gate: str, backward: bool) -> dict[str, Any]:
    """Arguments of `op` for a gate: its samples and, for a backward, the names and tolerances of its results."""
    fields: dict[str, Any] = {"samples": scaled_samples(gate, backward)}
    return {**fields, "out": "dx dscales", "tol": SUMS} if backward else fields


@dataclass(frozen=True)
class divides_half(Rule):
    """The value must be 0, or divide half the last dimension of the argument `of`."""

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


@op(grad="silu_glu_scaled_bwd", **_scaled("silu", False))
def silu_glu_scaled(x: Float[Tensor, "*rows 2*n"], scales: Scales, interleave: Interleave = 0) -> Tensor:
    """SwiGLU with a factor s for each row: y = s * silu(a) * b, with a and b the halves of x's last dimension.

    Args:
        x: the gate a, before its activation, and the values b that it multiplies.
        scales: the factor s of each row.
        interleave: k if blocks of k columns of a and b alternate; 0 if all of a is before b.

    Returns:
        y [*rows, n], in x's dtype.
    """
    return _scaled_forward("silu", x, scales, interleave)


@op(**_scaled("silu", True))
def silu_glu_scaled_bwd(
    dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows 2*n"], scales: Scales, interleave: Interleave = 0
) -> tuple[Tensor, Tensor]:
    """The gradients of silu_glu_scaled: dx = dy * s * [b * silu'(a), silu(a)], dscales = sum(dy * silu(a) * b)."""
    return _scaled_backward("silu", dy, x, scales, interleave)


@op(grad="srelu_scaled_bwd", **_scaled("srelu", False))
def srelu_scaled(x: Float[Tensor, "*rows n"], scales: Scales) -> Tensor:
    """Squared ReLU with a factor s for each row: y = s * max(x, 0)^2.

    Args:
        x: the input.
        scales: the factor s of each row.

    Returns:
        y, like x.
    """
    return _scaled_forward("srelu", x, scales, 0)


@op(**_scaled("srelu", True))
def srelu_scaled_bwd(dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows n"], scales: Scales) -> tuple[Tensor, Tensor]:
    """The gradients of srelu_scaled: dx = dy * s * 2 max(x, 0), dscales = sum(dy * max(x, 0)^2)."""
    return _scaled_backward("srelu", dy, x, scales, 0)


@op(grad="situ_glu_bwd", **_scaled("situ", False))
def situ_glu(
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    beta1: float = 4.0,
    beta2: float = 25.0,
    interleave: Interleave = 0,
) -> Tensor:
    """Soft-capped GLU: y = s * f(a) * u(b), with a and b the halves of the last dimension of x.

    f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2).

    Args:
        x: a and b, the halves of its last dimension.
        scales: the factor s of each row; None is 1.
        beta1: the limit of |f(a)|.
        beta2: the limit of |u(b)|.
        interleave: k if blocks of k columns of a and b alternate; 0 if all of a is before b.

    Returns:
        y [*rows, n], in x's dtype.
    """
    return _scaled_forward("situ", x, scales, interleave, beta1, beta2)


@op(**_scaled("situ", True))
def situ_glu_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    beta1: float = 4.0,
    beta2: float = 25.0,
    interleave: Interleave = 0,
) -> tuple[Tensor, Tensor]:
    """The gradients of situ_glu: dx = dy * s * [u(b) * f'(a), f(a) * u'(b)], dscales = sum(dy * f(a) * u(b)).

    dscales is empty without scales.
    """
    return _scaled_backward("situ", dy, x, scales, interleave, beta1, beta2)


@op(grad="clamped_glu_bwd", **_scaled("clamped", False))
def clamped_glu(
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    limit: float = 7.0,
    alpha: float = 1.702,
    offset: float = 1.0,
    interleave: Interleave = 0,
) -> Tensor:
    """A clamped GLU: y = s * f(min(a, limit)) * (clamp(b, -limit, limit) + offset), f(a) = a * sigmoid(alpha * a).

    Args:
        x: a and b, the halves of its last dimension.
        scales: the factor s of each row; None is 1.
        limit: the upper limit of a, and the limit of |b|.
        alpha: multiplies a in the sigmoid.
        offset: added to b.
        interleave: k if blocks of k columns of a and b alternate; 0 if all of a is before b.

    Returns:
        y [*rows, n], in x's dtype.
    """
    return _scaled_forward("clamped", x, scales, interleave, limit, alpha, offset)


@op(**_scaled("clamped", True))
def clamped_glu_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows 2*n"],
    scales: Scales | None = None,
    limit: float = 7.0,
    alpha: float = 1.702,
    offset: float = 1.0,
    interleave: Interleave = 0,
) -> tuple[Tensor, Tensor]:
    """The gradients of clamped_glu. Clamped elements of a and b get gradient 0; dscales is empty without scales."""
    return _scaled_backward("clamped", dy, x, scales, interleave, limit, alpha, offset)
