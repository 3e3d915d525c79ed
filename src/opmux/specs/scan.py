"""Cumulative sums, products, extremes and log-sums of exponentials along any dimension, forward and backward.

What is added or multiplied is added or multiplied in float32 (float64 for float64, int64 for integers and bools) and
rounded once per element, into fresh contiguous results. Extremes are exact; where the largest (smallest) comes again,
its last place is the index, and a NaN is more than any number.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Tol, op
from ._numeric import FLOATS, check_alike, dtype_name, rounded, wide
from .samples import Case, Draw, Maker, errors

INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
NUMBERS = (*FLOATS, *INTS, torch.bool)
EXACT = {dtype: Tol(0, 0) for dtype in (*INTS, torch.bool)}
# Implementations add in another order: the error is that of the largest sum on the way.
SUMS = {**EXACT, torch.float32: Tol(1e-5, 1e-4)}
# ... and one of n factors has n roundings, in any order.
PRODUCTS = {**EXACT, torch.float32: Tol(2e-5, 1e-5)}


# ---- what is refused ------------------------------------------------------------------------------------------------


def check_dim(op: str, x: Tensor, dim: int, lead: str = "x") -> None:
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise ValueError(f"{op}: dim must be from {-rank} to {rank - 1}, as {lead} is {tuple(x.shape)}; got {dim}")


def check(op: str, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> None:
    """Refuse what has no order or no sum, a dimension that is not there, a result of bools."""
    if x.dtype not in NUMBERS:
        names = ", ".join(map(dtype_name, NUMBERS[:-1]))
        raise TypeError(f"{op}: x must be {names} or bool; got {dtype_name(x.dtype)}")
    check_dim(op, x, dim)
    if dtype is not None and dtype not in NUMBERS[:-1]:
        names = ", ".join(map(dtype_name, NUMBERS[:-2]))
        got = dtype_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise TypeError(f"{op}: dtype must be None, {names} or uint8; got {got}")


def check_floats(op: str, x: Tensor, dim: int, lead: str = "x", **like: Tensor) -> None:
    """Refuse what is no float, what does not look like x (named `lead`), and a dimension that is not there."""
    check_dim(op, x, dim, lead)
    check_alike(op, lead, x, **like)


def check_places(op: str, dvalues: Tensor, indices: Tensor, dim: int) -> None:
    """Refuse a gradient that is no float, and indices that do not belong to it."""
    check_floats(op, dvalues, dim, "dvalues")
    if indices.dtype is not torch.int64:
        raise TypeError(f"{op}: indices must be int64; got {dtype_name(indices.dtype)}")
    if indices.shape != dvalues.shape:
        shapes = f"{tuple(dvalues.shape)}, that of dvalues; got {tuple(indices.shape)}"
        raise ValueError(f"{op}: indices must have shape {shapes}")
    if indices.device != dvalues.device:
        raise ValueError(f"{op}: indices must be on {dvalues.device}, the device of dvalues; got {indices.device}")


# ---- samples --------------------------------------------------------------------------------------------------------

CASES = (
    Case((5, 64)),
    Case((1, 1)),
    Case((7, 1000)),
    Case((100, 37)),
    Case((37,)),
    Case((), options={"dim": 0}),
    Case((2, 3, 4, 17)),
    Case((0, 37)),
    Case((2, 0, 37), options={"dim": 1}),
    Case((5, 0)),
    Case((4, 5, 6), options={"dim": 0}),
    Case((4, 5, 6), options={"dim": 1}),
    Case((70, 3), options={"dim": 0}),
    Case((150, 64), options={"dim": 0}),
    Case((3, 40, 1), options={"dim": 1}),
    Case((37, 64), "t", {"dim": 0}),
    Case((37, 64), "t"),
    Case((2, 3, 64), "swapped", {"dim": -2}),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
)
# Forward only: what is not a float, and what becomes of it.
OTHERS = (
    *(Case((5, 37), options={"of": dtype}) for dtype in (*INTS, torch.bool)),
    Case((3, 40, 16), options={"of": torch.int32, "dim": 1}),
)
RESULTS = (
    Case((5, 64), options={"dtype": torch.float32}),
    Case((5, 37), options={"dtype": torch.float64}),
    Case((5, 37), options={"dtype": torch.bfloat16, "dim": 0}),
    Case((5, 37), options={"dtype": torch.int32, "scale": 5.0}),
    Case((5, 37), options={"of": torch.int64, "dtype": torch.int8}),
    Case((5, 37), options={"of": torch.bool, "dtype": torch.float32}),
)
WIDELY = (Case((5, 64), options={"scale": 50.0}), Case((40, 24), options={"scale": 50.0, "dim": 0}))
ZEROS = (Case((5, 64), options={"zeros": 29}), Case((40, 24), options={"zeros": 7, "dim": 0}))


def _drawn(d: Draw) -> Tensor:
    x = d.full(d.option("scale", 1.0))
    to = d.option("of")
    return x if to is None else x > 0 if to is torch.bool else (x * 3).to(to)


def _near_one(d: Draw) -> Tensor:
    """Factors whose products stay in range; with the option `zeros`, every so many of them are 0."""
    if d.option("of") is not None:
        return _drawn(d)
    x = d.full()
    base = x if x._base is None else x._base  # a view has the layout of its case: it is filled through its base
    base.mul_(0.1).add_(1)
    if d.option("zeros"):
        base.view(-1)[3 :: d.option("zeros")] = 0
    return x


def _along(draw: Callable[[Draw], Tensor], *, result: bool = False) -> Callable[[Draw], dict[str, Any]]:
    """Arguments (x, dim) or, of ops that can be told the dtype of their result, (x, dim, dtype)."""

    def build(d: Draw) -> dict[str, Any]:
        args: dict[str, Any] = {"x": draw(d), "dim": d.option("dim", -1)}
        return args | {"dtype": d.option("dtype")} if result else args

    return build


def _wrong(good: Maker, *more: tuple[str, Any, type[Exception], str], **wrong: str) -> BadSamples:
    """Bad samples by spoiling an argument, and by the values in `more`: (name, value, error, what it says)."""

    def bad(device: torch.device) -> Any:
        yield from errors(good, **wrong)(device)
        for name, value, error, says in (("dim", 2, ValueError, "must be from -2 to 1.*got 2"), *more):
            args = good.named(Case((5, 64)), torch.float32, device)
            args[name] = args[name].to(value) if isinstance(args[name], Tensor) else value
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {value}")

    return bad


COMPLEX = ("x", torch.complex64, TypeError, "must be float16.*or bool; got complex64")
NO_BOOLS = ("dtype", torch.bool, TypeError, "must be None, float16.*got bool")


# ---- sums -----------------------------------------------------------------------------------------------------------


def result_dtype(x: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """The dtype of a sum or product: as asked, else that of a float, else int64."""
    return asked if asked is not None else x if x in FLOATS else torch.int64


def _accumulated(scan: Any, x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """`scan` of x as `dtype`, accumulated in the wide type of that."""
    x = x.to(dtype)
    return rounded(scan(wide(x) if dtype in FLOATS else x.to(torch.int64), dim), dtype)


def _reverse_sum(x: Tensor, dim: int) -> Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


SUM = Maker(_along(_drawn, result=True), (*CASES, *OTHERS, *RESULTS))


@op(grad="cumsum_bwd", samples=SUM, errors=_wrong(SUM, COMPLEX, NO_BOOLS), tol=SUMS)
def cumsum(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """y_i = x_0 + ... + x_i along dim, of x as dtype: int64 for integers and bools where none is given."""
    check("cumsum", x, dim, dtype)
    return _accumulated(torch.cumsum, x, dim, result_dtype(x.dtype, dtype))


SUM_BWD = Maker(
    lambda d: {"dy": d.grad(), "dim": d.option("dim", -1), "dtype": d.option("dtype")}, (*CASES, *RESULTS[:1])
)


@op(out="dx", samples=SUM_BWD, errors=_wrong(SUM_BWD, dy="ints"), tol=SUMS)
def cumsum_bwd(dy: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """dx_i = dy_i + ... + dy_n along dim.

    Where the sum was told its dtype, that of x is not known here: dx is float32 or wider, and autograd rounds it.
    """
    check_floats("cumsum_bwd", dy, dim, "dy")
    v = wide(dy)
    return rounded(_reverse_sum(v, dim), dy.dtype if dtype is None else v.dtype)


# ---- products -------------------------------------------------------------------------------------------------------

PRODUCT = Maker(_along(_near_one, result=True), (*CASES, *OTHERS, *RESULTS, *ZEROS))


@op(grad="cumprod_bwd", samples=PRODUCT, errors=_wrong(PRODUCT, COMPLEX, NO_BOOLS), tol=PRODUCTS)
def cumprod(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """y_i = x_0 * ... * x_i along dim, of x as dtype: int64 for integers and bools where none is given."""
    check("cumprod", x, dim, dtype)
    return _accumulated(torch.cumprod, x, dim, result_dtype(x.dtype, dtype))


PRODUCT_BWD = Maker(
    lambda d: {"dy": d.grad(), "x": _near_one(d), "dim": d.option("dim", -1)},
    (*CASES, *ZEROS),
)


@op(
    out="dx",
    samples=PRODUCT_BWD,
    errors=_wrong(PRODUCT_BWD, dy="short ints away", x="ints"),
    tol={torch.float32: Tol(1e-4, 1e-4)},
)
def cumprod_bwd(dy: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """dx_i = sum over j >= i of dy_j * (product of x_0 ... x_j without x_i) along dim; right with zeros in x.

    Let p be the products of all that is not 0, and c count the zeros so far. A product without x_i is p_j / x_i where
    c_j = 0, p_j where x_i is the only zero up to j, else 0: two sums from the end, of dy * p where c is 0 and where it
    is 1.
    """
    check_floats("cumprod_bwd", x, dim, dy=dy)
    v = wide(x)
    none = v == 0
    factors = v.masked_fill(none, 1)
    seen = none.to(torch.int64).cumsum(dim)
    terms = dy.to(v.dtype) * factors.cumprod(dim)
    before, first = (_reverse_sum(terms.masked_fill(seen != k, 0), dim) for k in (0, 1))
    return rounded(torch.where(none, first, before / factors), x.dtype)


# ---- extremes -------------------------------------------------------------------------------------------------------

EXTREME = Maker(_along(_drawn), (*CASES, *OTHERS))


def _extreme(name: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    check(name, x, dim)
    values, indices = getattr(torch, name)(x, dim)
    return rounded(values, x.dtype), rounded(indices, torch.int64)


@op(out="values indices", grad="cummax_bwd", samples=EXTREME, errors=_wrong(EXTREME, COMPLEX), tol=EXACT)
def cummax(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """values_i = max(x_0 ... x_i) along dim, and the last place where it stands."""
    return _extreme("cummax", x, dim)


@op(out="values indices", grad="cummin_bwd", samples=EXTREME, errors=_wrong(EXTREME, COMPLEX), tol=EXACT)
def cummin(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """values_i = min(x_0 ... x_i) along dim, and the last place where it stands."""
    return _extreme("cummin", x, dim)


def _place_samples(extreme: Any) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        dim = d.option("dim", -1)
        return {"dvalues": d.grad(), "indices": extreme(d.full(), dim)[1], "dim": dim}

    return Maker(build, CASES)


def _gathered(name: str, dvalues: Tensor, indices: Tensor, dim: int) -> Tensor:
    check_places(name, dvalues, indices, dim)
    v = wide(dvalues)
    dx = torch.zeros_like(v, memory_format=torch.contiguous_format).scatter_add_(dim, indices, v)
    return rounded(dx, dvalues.dtype)


MAX_BWD, MIN_BWD = _place_samples(torch.cummax), _place_samples(torch.cummin)
NO_FLOATS = ("indices", torch.float32, TypeError, "must be int64; got float32")


def _places_wrong(good: Maker) -> BadSamples:
    return _wrong(good, NO_FLOATS, dvalues="ints", indices="short away")


@op(out="dx", samples=MAX_BWD, errors=_places_wrong(MAX_BWD), tol=SUMS)
def cummax_bwd(dvalues: Tensor, indices: Tensor, dim: int = -1) -> Tensor:
    """dx_i = the sum of dvalues_j where indices_j = i, along dim; the indices are those that cummax gave."""
    return _gathered("cummax_bwd", dvalues, indices, dim)


@op(out="dx", samples=MIN_BWD, errors=_places_wrong(MIN_BWD), tol=SUMS)
def cummin_bwd(dvalues: Tensor, indices: Tensor, dim: int = -1) -> Tensor:
    """dx_i = the sum of dvalues_j where indices_j = i, along dim; the indices are those that cummin gave."""
    return _gathered("cummin_bwd", dvalues, indices, dim)


# ---- log-sums of exponentials ---------------------------------------------------------------------------------------

LOGSUM = Maker(_along(_drawn), (*CASES, *WIDELY))


@op(grad="logcumsumexp_bwd", samples=LOGSUM, errors=_wrong(LOGSUM, x="ints"))
def logcumsumexp(x: Tensor, dim: int = -1) -> Tensor:
    """y_i = log(exp(x_0) + ... + exp(x_i)) along dim."""
    check_floats("logcumsumexp", x, dim)
    return rounded(torch.logcumsumexp(wide(x), dim), x.dtype)


def _logsum_bwd_args(d: Draw) -> dict[str, Any]:
    x, dim = _drawn(d), d.option("dim", -1)
    return {"dy": d.grad(), "x": x, "y": logcumsumexp.reference(x, dim), "dim": dim}


LOGSUM_BWD = Maker(_logsum_bwd_args, (*CASES, *WIDELY))


@op(
    out="dx",
    samples=LOGSUM_BWD,
    errors=_wrong(LOGSUM_BWD, dy="short ints away", x="ints", y="short ints away"),
    tol=SUMS,
)
def logcumsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx_i = sum over j >= i of dy_j * exp(x_i - y_j) along dim.

    The sum is taken of logarithms, as exp(-y) has no bounds, of what is positive and what is negative by itself; in
    float64, as a logarithm in float32 would not leave six digits of it.
    """
    check_floats("logcumsumexp_bwd", x, dim, dy=dy, y=y)
    g, v, far = dy.double(), x.double(), y.double()

    def part(weights: Tensor) -> Tensor:
        logs = weights.log() - far
        return (logs.flip(dim).logcumsumexp(dim).flip(dim) + v).exp()

    if any(t.requires_grad for t in (g, v, far)):  # to be differentiated again: the logarithm of zero has no slope
        above = g.detach().abs() + 1
        return rounded(part(g + above) - part(above), x.dtype)
    return rounded(part(g.clamp(min=0)) - part((-g).clamp(min=0)), x.dtype)
