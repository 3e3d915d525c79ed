"""Cumulative sums, products, maxima, minima and log-sum-exps along any dimension, forward and backward.

Sums and products are accumulated in float32 (float64 for float64, int64 for integers and bools), and each element is
rounded once. Maxima and minima are exact; among equal elements the last one gives the index. NaN is larger than any
number for cummax, and smaller for cummin. Results are new contiguous tensors.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import FLOATS, INTS, Float, Grad, Int64, Number, dim_of, one_of
from ..core.spec import Tol, op
from ._numeric import rounded, wide
from .samples import Case, Draw, Maker

EXACT = {dtype: Tol(0, 0) for dtype in (*INTS, torch.bool)}
# Implementations may add in another order; the error is relative to the largest partial sum.
SUMS = {**EXACT, torch.float32: Tol(1e-5, 1e-4)}
# A product of n factors is rounded n times, whatever the order of multiplications.
PRODUCTS = {**EXACT, torch.float32: Tol(2e-5, 1e-5)}

Dim = Annotated[int, dim_of("x")]
Result = Annotated[torch.dtype, one_of(*FLOATS, *INTS)]


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
# Samples for the forward only: other dtypes of x, and given dtypes of the result.
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
    """Factors whose products stay in range; with the option `zeros`, some of them are 0."""
    if d.option("of") is not None:
        return _drawn(d)
    x = d.full()
    base = x if x._base is None else x._base  # write to a view's base, to keep the case's layout
    base.mul_(0.1).add_(1)
    if d.option("zeros"):
        base.view(-1)[3 :: d.option("zeros")] = 0
    return x


def _along(draw: Callable[[Draw], Tensor], *, result: bool = False) -> Callable[[Draw], dict[str, Any]]:
    """Arguments (x, dim) or, for ops with a dtype argument, (x, dim, dtype)."""

    def build(d: Draw) -> dict[str, Any]:
        args: dict[str, Any] = {"x": draw(d), "dim": d.option("dim", -1)}
        return args | {"dtype": d.option("dtype")} if result else args

    return build


# ---- sums -----------------------------------------------------------------------------------------------------------


def result_dtype(x: torch.dtype, requested: torch.dtype | None) -> torch.dtype:
    """The dtype of a sum or product: the requested one, else x's dtype if it is a float dtype, else int64."""
    return requested if requested is not None else x if x in FLOATS else torch.int64


def _accumulated(scan: Any, x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Convert x to `dtype`, then call `scan`, which accumulates in float32, float64 or int64."""
    x = x.to(dtype)
    return rounded(scan(wide(x) if dtype in FLOATS else x.to(torch.int64), dim), dtype)


def _reverse_sum(x: Tensor, dim: int) -> Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


SUM = Maker(_along(_drawn, result=True), (*CASES, *OTHERS, *RESULTS))


@op(grad="cumsum_bwd", samples=SUM, tol=SUMS)
def cumsum(x: Number[Tensor, "..."], dim: Dim = -1, dtype: Result | None = None) -> Tensor:
    """The cumulative sum: y_i = x_0 + ... + x_i along dim.

    Args:
        x: the terms.
        dim: the dimension to sum along.
        dtype: the dtype of y; x is converted to it first. None is x's dtype, or int64 for integers and bools.

    Returns:
        y, contiguous, of x's shape.
    """
    return _accumulated(torch.cumsum, x, dim, result_dtype(x.dtype, dtype))


SUM_BWD = Maker(
    lambda d: {"dy": d.grad(), "dim": d.option("dim", -1), "dtype": d.option("dtype")}, (*CASES, *RESULTS[:1])
)


@op(out="dx", samples=SUM_BWD, tol=SUMS)
def cumsum_bwd(
    dy: Float[Tensor, "..."], dim: Annotated[int, dim_of("dy")] = -1, dtype: torch.dtype | None = None
) -> Tensor:
    """The gradient of cumsum: dx_i = dy_i + ... + dy_n along dim.

    Args:
        dy: the gradient of y.
        dim: as in the forward.
        dtype: as in the forward. If dtype is given, x's dtype is unknown here: dx is then float32 (float64 for
            float64), and autograd converts dx to x's dtype.

    Returns:
        dx, contiguous, of dy's shape; of dy's dtype unless dtype is given.
    """
    v = wide(dy)
    return rounded(_reverse_sum(v, dim), dy.dtype if dtype is None else v.dtype)


# ---- products -------------------------------------------------------------------------------------------------------

PRODUCT = Maker(_along(_near_one, result=True), (*CASES, *OTHERS, *RESULTS, *ZEROS))


@op(grad="cumprod_bwd", samples=PRODUCT, tol=PRODUCTS)
def cumprod(x: Number[Tensor, "..."], dim: Dim = -1, dtype: Result | None = None) -> Tensor:
    """The cumulative product: y_i = x_0 * ... * x_i along dim.

    Args:
        x: the factors.
        dim: the dimension to multiply along.
        dtype: the dtype of y; x is converted to it first. None is x's dtype, or int64 for integers and bools.

    Returns:
        y, contiguous, of x's shape.
    """
    return _accumulated(torch.cumprod, x, dim, result_dtype(x.dtype, dtype))


PRODUCT_BWD = Maker(
    lambda d: {"dy": d.grad(), "x": _near_one(d), "dim": d.option("dim", -1)},
    (*CASES, *ZEROS),
)


@op(out="dx", samples=PRODUCT_BWD, tol={torch.float32: Tol(1e-4, 1e-4)})
def cumprod_bwd(dy: Grad[Tensor, "*shape"], x: Float[Tensor, "*shape"], dim: Dim = -1) -> Tensor:
    """The gradient of cumprod: dx_i = sum over j >= i of dy_j * (product of x_0 ... x_j without x_i) along dim.

    The formula also holds for zeros in x: nothing is divided by zero.

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        dim: as in the forward.

    Returns:
        dx, like x, contiguous.
    """
    # Let p_j be the product of the nonzero numbers among x_0 ... x_j, and c_j the number of zeros among them. The
    # product without x_i is p_j / x_i if c_j = 0, p_j if x_i is the only zero, else 0. So dx needs two reverse
    # cumulative sums: of dy * p where c = 0, and of dy * p where c = 1.
    v = wide(x)
    none = v == 0
    factors = v.masked_fill(none, 1)
    zeros = none.to(torch.int64).cumsum(dim)
    terms = dy.to(v.dtype) * factors.cumprod(dim)
    before, first = (_reverse_sum(terms.masked_fill(zeros != k, 0), dim) for k in (0, 1))
    return rounded(torch.where(none, first, before / factors), x.dtype)


# ---- extremes -------------------------------------------------------------------------------------------------------

EXTREME = Maker(_along(_drawn), (*CASES, *OTHERS))


def _extreme(scan: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, indices = scan(x, dim)
    return rounded(values, x.dtype), rounded(indices, torch.int64)


@op(out="values indices", grad="cummax_bwd", samples=EXTREME, tol=EXACT)
def cummax(x: Number[Tensor, "..."], dim: Dim = -1) -> tuple[Tensor, Tensor]:
    """The cumulative maximum: values_i = max(x_0 ... x_i) along dim, and the last index where it occurs.

    Args:
        x: the numbers to compare.
        dim: the dimension to compare along.

    Returns:
        values, like x, and indices, int64, of x's shape; both are contiguous.
    """
    return _extreme(torch.cummax, x, dim)


@op(out="values indices", grad="cummin_bwd", samples=EXTREME, tol=EXACT)
def cummin(x: Number[Tensor, "..."], dim: Dim = -1) -> tuple[Tensor, Tensor]:
    """The cumulative minimum: values_i = min(x_0 ... x_i) along dim, and the last index where it occurs.

    Args:
        x: the numbers to compare.
        dim: the dimension to compare along.

    Returns:
        values, like x, and indices, int64, of x's shape; both are contiguous.
    """
    return _extreme(torch.cummin, x, dim)


def _extreme_bwd_samples(extreme: Any) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        dim = d.option("dim", -1)
        return {"dvalues": d.grad(), "indices": extreme(d.full(), dim)[1], "dim": dim}

    return Maker(build, CASES)


def _gathered(dvalues: Tensor, indices: Tensor, dim: int) -> Tensor:
    v = wide(dvalues)
    dx = torch.zeros_like(v, memory_format=torch.contiguous_format).scatter_add_(dim, indices, v)
    return rounded(dx, dvalues.dtype)


@op(out="dx", samples=_extreme_bwd_samples(torch.cummax), tol=SUMS)
def cummax_bwd(
    dvalues: Float[Tensor, "*shape"], indices: Int64[Tensor, "*shape"], dim: Annotated[int, dim_of("dvalues")] = -1
) -> Tensor:
    """The gradient of cummax: dx_i = the sum of dvalues_j over all j with indices_j = i, along dim.

    Args:
        dvalues: the gradient of values.
        indices: the second result of cummax.
        dim: as in the forward.

    Returns:
        dx, like dvalues, contiguous.
    """
    return _gathered(dvalues, indices, dim)


@op(out="dx", samples=_extreme_bwd_samples(torch.cummin), tol=SUMS)
def cummin_bwd(
    dvalues: Float[Tensor, "*shape"], indices: Int64[Tensor, "*shape"], dim: Annotated[int, dim_of("dvalues")] = -1
) -> Tensor:
    """The gradient of cummin: dx_i = the sum of dvalues_j over all j with indices_j = i, along dim.

    Args:
        dvalues: the gradient of values.
        indices: the second result of cummin.
        dim: as in the forward.

    Returns:
        dx, like dvalues, contiguous.
    """
    return _gathered(dvalues, indices, dim)


# ---- log-sum-exps ---------------------------------------------------------------------------------------------------

LOGSUM = Maker(_along(_drawn), (*CASES, *WIDELY))


@op(grad="logcumsumexp_bwd", samples=LOGSUM)
def logcumsumexp(x: Float[Tensor, "..."], dim: Dim = -1) -> Tensor:
    """The cumulative log-sum-exp: y_i = log(exp(x_0) + ... + exp(x_i)) along dim.

    Args:
        x: the exponents.
        dim: the dimension to sum along.

    Returns:
        y, like x, contiguous: computed in float32 (float64 for float64) and rounded once.
    """
    return rounded(torch.logcumsumexp(wide(x), dim), x.dtype)


def _logsum_bwd_args(d: Draw) -> dict[str, Any]:
    x, dim = _drawn(d), d.option("dim", -1)
    return {"dy": d.grad(), "x": x, "y": logcumsumexp.reference(x, dim), "dim": dim}


LOGSUM_BWD = Maker(_logsum_bwd_args, (*CASES, *WIDELY))


@op(out="dx", samples=LOGSUM_BWD, tol=SUMS)
def logcumsumexp_bwd(
    dy: Grad[Tensor, "*shape"], x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"], dim: Dim = -1
) -> Tensor:
    """The gradient of logcumsumexp: dx_i = sum over j >= i of dy_j * exp(x_i - y_j) along dim.

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        y: the result of the forward.
        dim: as in the forward.

    Returns:
        dx, like x, contiguous.
    """
    # exp(-y) may overflow, so positive and negative terms are summed separately as log-sum-exps. These are computed in
    # float64: with a float32 logarithm, dx would have fewer than six correct digits.
    g, v, far = dy.double(), x.double(), y.double()

    def part(weights: Tensor) -> Tensor:
        logs = weights.log() - far
        return (logs.flip(dim).logcumsumexp(dim).flip(dim) + v).exp()

    # The derivative of log(0) is infinite, so for second derivatives the weights are shifted to be positive.
    if any(t.requires_grad for t in (g, v, far)):
        above = g.detach().abs() + 1
        return rounded(part(g + above) - part(above), x.dtype)
    return rounded(part(g.clamp(min=0)) - part((-g).clamp(min=0)), x.dtype)
