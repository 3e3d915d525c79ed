"""Softmax of attention logits: scaled, with a mask, causal; forward and backward. And tex's softmaxes made of it.

x is [.., queries, keys]. `causal` hides from query i the keys after i + (keys - queries): the last query sees all keys.
Hidden logits count for nothing and give zeros, and so does a query from which all keys are hidden. (tex replaces logits
under its mask by -10000 instead; that is the same wherever a logit that is seen is above -9890.)
They compute in float32 (float64 for float64 inputs) and round once, into fresh contiguous results.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, op
from ._numeric import check_alike, check_dtype, dtype_name, rounded, wide
from ._tex import check_number
from .samples import WRONG, Case, Draw, Maker

MASKS = (torch.bool, torch.uint8)


def check(op: str, x: Tensor, mask: Tensor | None = None, *, lead: str = "x", **like: Tensor) -> None:
    """Refuse what is no [.., queries, keys], a mask that does not fit it, and gradients that do not look like it."""
    check_dtype(op, lead, x.dtype)
    if x.dim() < 2:
        raise ValueError(f"{op}: {lead} must be [.., queries, keys], two dimensions or more; got {tuple(x.shape)}")
    check_alike(op, lead, x, **like)
    if mask is None:
        return
    if mask.dtype not in MASKS:
        raise TypeError(f"{op}: mask must be bool or uint8, with 1 for what is hidden; got {dtype_name(mask.dtype)}")
    wanted = tuple(x.shape)[-mask.dim() :] if mask.dim() else ()
    if mask.dim() > x.dim() or any(m not in (1, n) for m, n in zip(mask.shape, wanted, strict=True)):
        shapes = f"{lead} {tuple(x.shape)}, or of 1 where it is the same for all; got {tuple(mask.shape)}"
        raise ValueError(f"{op}: mask must have sizes of {shapes}")
    if mask.device != x.device:
        raise ValueError(f"{op}: mask must be on {x.device}, the device of {lead}; got {mask.device}")


def after(x: Tensor) -> Tensor:
    """Which keys come after a query, the last of both being of one time: bool [queries, keys]."""
    queries, keys = x.shape[-2:]
    i = torch.arange(queries, device=x.device)[:, None]
    return torch.arange(keys, device=x.device) > i + (keys - queries)


def hidden(x: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """What is hidden, by the mask or by time, in a shape that broadcasts to x's."""
    if mask is None:
        return after(x) if causal else None
    return (mask != 0) | after(x) if causal else mask != 0


# ---- samples --------------------------------------------------------------------------------------------------------

# Options: mask (its shape), bits (its dtype), causal, scale; blind hides all keys from the first query by the mask.
CASES = (
    Case((2, 3, 5, 64)),
    Case((2, 3, 5, 64), options={"mask": (2, 1, 5, 64)}),
    Case((2, 3, 8, 16), options={"causal": True, "scale": 0.25}),
    Case((2, 3, 5, 64), options={"mask": (2, 1, 5, 64), "bits": torch.uint8, "blind": True, "scale": 0.125}),
    Case((2, 3, 5, 64), options={"mask": (1, 1, 5, 64), "causal": True}),
    Case((2, 3, 5, 37), options={"mask": (2, 1, 1, 37)}),
    Case((2, 3, 5, 37), options={"mask": (2, 3, 5, 1)}),
    Case((2, 2, 3, 5, 8), options={"mask": (2, 1, 3, 5, 8)}),
    Case((2, 3, 5, 64), options={"mask": (5, 64), "layout": "t"}),
    Case((6, 37, 37), options={"causal": True}),
    Case((2, 3, 7, 40), options={"causal": True}),
    Case((2, 9, 4), options={"causal": True}),
    Case((1000, 37), options={"causal": True, "scale": -1.0}),
    Case((37, 1000)),
    Case((1, 1)),
    Case((2, 0, 5)),
    Case((2, 5, 0)),
    Case((2, 3, 16, 64), "t", {"causal": True, "mask": (2, 3, 16, 64)}),
    Case((3, 2, 5, 64), "swapped", {"mask": (3, 1, 5, 64)}),
    Case((2, 5, 64), "step", {"causal": True}),
    Case((2, 5, 37), "sliced", {"causal": True}),
    Case((5, 64), "expanded"),
    Case((37, 64), "t"),
)


def _args(d: Draw) -> dict[str, Any]:
    x = d.full(3.0)
    mask, shape = None, d.option("mask")
    if shape is not None:
        mask = Draw(Case(shape, d.option("layout", "packed"), {"of": d.case.id}), torch.float32, d.device).full() > 0.3
        if d.option("blind"):
            mask[..., 0, :] = True
        mask = mask.to(d.option("bits", torch.bool))
    return {"x": x, "mask": mask, "scale": d.option("scale", 1.0), "causal": d.option("causal", False)}


SPOILED = {
    **WRONG,
    "list of logits": (lambda t: t.flatten(), ValueError, r"must be \[.., queries, keys\], two dimensions or more"),
    "floats": (lambda t: t.float(), TypeError, "must be bool or uint8.*got float32"),
    "too few keys": (lambda t: t[..., :-1], ValueError, r"must have sizes of \w+ \(.*64\).*got \(.*63\)"),
    "too many dimensions": (lambda t: t[(None,) * 3], ValueError, r"must have sizes of \w+ \(.*64\)"),
    "oblong": (lambda t: t[:, :-1], ValueError, "must be .* with as many keys as queries"),
}


def bad(good: Maker, base: Case, **wrong: tuple[str, ...]) -> BadSamples:
    """Bad samples: a good one with one argument spoiled."""

    def made(device: torch.device) -> Iterator[BadSample]:
        for name, way in ((n, w) for n, ways in wrong.items() for w in ways):
            spoil, error, says = SPOILED[way]
            args = good.named(base, torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {way}")

    return made


FWD = Maker(_args, CASES)
BASE = Case((2, 5, 64), options={"mask": (2, 1, 64)})
SQUARE = Case((2, 64, 64), options={"causal": True})
LOGITS = ("ints", "list of logits")
MASK = ("away", "floats", "too few keys", "too many dimensions")
GRADS = ("short", "ints", "away")


@op(grad="scaled_softmax_bwd", samples=FWD, errors=bad(FWD, BASE, x=LOGITS, mask=MASK))
def scaled_softmax(x: Tensor, mask: Tensor | None = None, scale: float = 1.0, causal: bool = False) -> Tensor:
    """y = softmax(scale * x) over the last dimension; keys under the mask (not 0), and later ones if causal, give 0."""
    check("scaled_softmax", x, mask)
    v = wide(x) * scale
    out = hidden(x, mask, causal)
    if out is None:
        return rounded(torch.softmax(v, -1), x.dtype)
    # a query that sees nothing is NaN until here
    return rounded(torch.softmax(v.masked_fill(out, -torch.inf), -1).masked_fill(out, 0.0), x.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    of = _args(d)
    return {"dy": d.grad(), "y": scaled_softmax.reference(**of), "scale": of["scale"], "causal": of["causal"]}


BWD = Maker(_bwd_args, CASES)


@op(out="dx", samples=BWD, errors=bad(BWD, BASE, dy=GRADS, y=LOGITS))
def scaled_softmax_bwd(dy: Tensor, y: Tensor, scale: float = 1.0, causal: bool = False) -> Tensor:
    """dx = scale * y * (dy - sum(dy * y)) over the last dimension; with causal, later keys are not read, and give 0."""
    check("scaled_softmax_bwd", y, lead="y", dy=dy)
    v = wide(y)
    g = dy.to(v.dtype)
    if not causal:
        return rounded(scale * (v * (g - (g * v).sum(-1, keepdim=True))), y.dtype)
    out = after(y)
    v, g = v.masked_fill(out, 0.0), g.masked_fill(out, 0.0)
    return rounded((scale * (v * (g - (g * v).sum(-1, keepdim=True)))).masked_fill(out, 0.0), y.dtype)


# ---- tex: NVIDIA's names and signatures, over the two ops above -----------------------------------------------------


def _cases(masked: bool, causal: bool, square: bool) -> tuple[Case, ...]:
    """Of all cases those that fit."""

    def fits(case: Case) -> bool:
        if square and (len(case.shape) != 3 or case.shape[1] != case.shape[2]):
            return False
        return ("mask" in case.options, bool(case.options.get("causal"))) == (masked, causal)

    return tuple(c for c in CASES if fits(c))


def _tex_fwd(masked: bool = False, causal: bool = False, square: bool = False) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        of = _args(d)
        mask = {"mask": of["mask"]} if masked else {}
        return {"input": of["x"], **mask, "scale_factor": of["scale"]}

    return Maker(build, _cases(masked, causal, square))


def _tex_bwd(grad: str, masked: bool = False, causal: bool = False, square: bool = False) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        of = _bwd_args(d)
        return {grad: of["dy"], "softmax_results": of["y"], "scale_factor": of["scale"]}

    return Maker(build, _cases(masked, causal, square))


def check_square(op: str, x: Tensor, lead: str) -> None:
    if x.dim() != 3 or x.shape[1] != x.shape[2]:
        what = f"[batches, queries, keys] with as many keys as queries; got {tuple(x.shape)}"
        raise ValueError(f"{op}: {lead} must be {what}")


PLAIN_FWD, PLAIN_BWD = _tex_fwd(), _tex_bwd("output_grad")
MASKED_FWD, MASKED_BWD = _tex_fwd(masked=True), _tex_bwd("output_grad", masked=True)
TRIANGLE_FWD, TRIANGLE_BWD = _tex_fwd(causal=True, square=True), _tex_bwd("output_grads", causal=True, square=True)
ALIGNED_FWD, ALIGNED_BWD = _tex_fwd(causal=True), _tex_bwd("output_grads", causal=True)
RESULTS_WRONG = {"softmax_results": LOGITS}


@op(space="tex", samples=PLAIN_FWD, errors=bad(PLAIN_FWD, BASE, input=LOGITS))
def scaled_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the last dimension."""
    with torch.no_grad():
        check_number("scaled_softmax_forward", "scale_factor", scale_factor)
        check("scaled_softmax_forward", input, lead="input")
        return scaled_softmax(input, None, scale_factor, False)


@op(space="tex", out="dx", samples=PLAIN_BWD, errors=bad(PLAIN_BWD, BASE, output_grad=GRADS, **RESULTS_WRONG))
def scaled_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_softmax_forward's input, in memory of its own."""
    with torch.no_grad():
        check_number("scaled_softmax_backward", "scale_factor", scale_factor)
        check("scaled_softmax_backward", softmax_results, lead="softmax_results", output_grad=output_grad)
        return scaled_softmax_bwd(output_grad, softmax_results, scale_factor, False)


@op(space="tex", samples=MASKED_FWD, errors=bad(MASKED_FWD, BASE, input=LOGITS, mask=MASK))
def scaled_masked_softmax_forward(input: Tensor, mask: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the last dimension of what is not under the mask; zeros where it is."""
    with torch.no_grad():
        check_number("scaled_masked_softmax_forward", "scale_factor", scale_factor)
        check("scaled_masked_softmax_forward", input, mask, lead="input")
        return scaled_softmax(input, mask, scale_factor, False)


@op(space="tex", out="dx", samples=MASKED_BWD, errors=bad(MASKED_BWD, BASE, output_grad=GRADS, **RESULTS_WRONG))
def scaled_masked_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_masked_softmax_forward's input, in memory of its own."""
    with torch.no_grad():
        check_number("scaled_masked_softmax_backward", "scale_factor", scale_factor)
        check("scaled_masked_softmax_backward", softmax_results, lead="softmax_results", output_grad=output_grad)
        return scaled_softmax_bwd(output_grad, softmax_results, scale_factor, False)


@op(space="tex", samples=TRIANGLE_FWD, errors=bad(TRIANGLE_FWD, SQUARE, input=("ints", "oblong")))
def scaled_upper_triang_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys j <= i of query i, of as many keys as queries; zeros for others."""
    with torch.no_grad():
        check_number("scaled_upper_triang_masked_softmax_forward", "scale_factor", scale_factor)
        check_square("scaled_upper_triang_masked_softmax_forward", input, "input")
        check("scaled_upper_triang_masked_softmax_forward", input, lead="input")
        return scaled_softmax(input, None, scale_factor, True)


@op(
    space="tex",
    out="dx",
    samples=TRIANGLE_BWD,
    errors=bad(TRIANGLE_BWD, SQUARE, output_grads=GRADS, softmax_results=("ints", "oblong")),
)
def scaled_upper_triang_masked_softmax_backward(
    output_grads: Tensor, softmax_results: Tensor, scale_factor: float
) -> Tensor:
    """The gradient of scaled_upper_triang_masked_softmax_forward's input, in memory of its own."""
    with torch.no_grad():
        check_number("scaled_upper_triang_masked_softmax_backward", "scale_factor", scale_factor)
        name = "scaled_upper_triang_masked_softmax_backward"
        check_square(name, softmax_results, "softmax_results")
        check(name, softmax_results, lead="softmax_results", output_grads=output_grads)
        return scaled_softmax_bwd(output_grads, softmax_results, scale_factor, True)


@op(space="tex", samples=ALIGNED_FWD, errors=bad(ALIGNED_FWD, BASE, input=LOGITS))
def scaled_aligned_causal_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys j <= i + keys - queries of query i; zeros for later keys."""
    with torch.no_grad():
        check_number("scaled_aligned_causal_masked_softmax_forward", "scale_factor", scale_factor)
        check("scaled_aligned_causal_masked_softmax_forward", input, lead="input")
        return scaled_softmax(input, None, scale_factor, True)


@op(space="tex", out="dx", samples=ALIGNED_BWD, errors=bad(ALIGNED_BWD, BASE, output_grads=GRADS, **RESULTS_WRONG))
def scaled_aligned_causal_masked_softmax_backward(
    output_grads: Tensor, softmax_results: Tensor, scale_factor: float
) -> Tensor:
    """The gradient of scaled_aligned_causal_masked_softmax_forward's input, in memory of its own."""
    with torch.no_grad():
        check_number("scaled_aligned_causal_masked_softmax_backward", "scale_factor", scale_factor)
        name = "scaled_aligned_causal_masked_softmax_backward"
        check(name, softmax_results, lead="softmax_results", output_grads=output_grads)
        return scaled_softmax_bwd(output_grads, softmax_results, scale_factor, True)
