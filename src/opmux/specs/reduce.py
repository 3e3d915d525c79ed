"""Reductions over one, several or all dimensions: sums, maxima and minima, variances, norms; most have gradients.

Shapes, dtypes and errors follow torch. Floats are accumulated in float32 (float64 for float64) and rounded once,
integers in int64. `dim` is an int, a list of ints, or None for all dimensions; x is cast to `dtype` first. Results are
new contiguous tensors.

`RULES` says how each op treats dtypes and empty dimensions. `declare` makes a function an op, with a schema that
follows from the names of its parameters.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ..core import rules
from ..core.contract import (
    FLOATS,
    INTS,
    AnyTensor,
    Float,
    Grad,
    Int64,
    Number,
    dim_of,
    dtypes,
    either,
    one_of,
    shape,
)
from ..core.errors import BadArgument
from ..core.spec import Tol, op
from ..core.tensors import dtype_name
from ._numeric import wide
from .samples import Case, Change, Draw, Maker, bad_samples

Dim = Annotated[int | Sequence[int] | None, rules.ints(), rules.dims_of("x")]
OneDim = Annotated[int, dim_of("x")]
RealDtype = Annotated[torch.dtype, one_of(*FLOATS, *INTS, torch.bool)]
FloatDtype = Annotated[torch.dtype, one_of(*FLOATS)]
Dims = tuple[int, ...]

EXACT = {torch.int64: Tol(0.0, 0.0), torch.bool: Tol(0.0, 0.0)}


class ReductionRule(NamedTuple):
    """The dtype of an op's result, and how the op treats integers, empty dimensions and dim=()."""

    gives: torch.dtype | None = None  # the result's dtype; None: the dtype that x is cast to
    int64_sums: bool = False  # integers are accumulated in int64
    empty: float | None = None  # the result of an empty reduction; None: raise
    empty_dim: bool = False  # whether dim=() means no dimension; by default it means all, like None


INF, NAN = math.inf, math.nan
RULES = {
    "sum": ReductionRule(int64_sums=True, empty=0),
    "nansum": ReductionRule(int64_sums=True, empty=0),
    "mean": ReductionRule(empty=NAN),
    "prod": ReductionRule(int64_sums=True, empty=1),
    "amax": ReductionRule(),
    "amin": ReductionRule(),
    "max_dim": ReductionRule(),
    "min_dim": ReductionRule(),
    "argmax": ReductionRule(gives=torch.int64),
    "argmin": ReductionRule(gives=torch.int64),
    "any": ReductionRule(gives=torch.bool, empty=0, empty_dim=True),
    "all": ReductionRule(gives=torch.bool, empty=1, empty_dim=True),
    "count_nonzero": ReductionRule(gives=torch.int64, empty=0),
    "var": ReductionRule(empty=NAN),
    "std": ReductionRule(empty=NAN),
    "var_mean": ReductionRule(empty=NAN),
    "std_mean": ReductionRule(empty=NAN),
    "logsumexp": ReductionRule(empty=-INF),
    "vector_norm": ReductionRule(empty=0),
}


class ReductionCall(NamedTuple):
    """The parsed arguments of a call."""

    dims: Dims  # non-negative; (0,) for a 0-dim tensor
    cast: torch.dtype  # the dtype that x is cast to first
    gives: torch.dtype  # the dtype of the result
    n: int  # how many elements each result is computed from


# ---- parsing arguments ----------------------------------------------------------------------------------------------


def dims_of(x: Tensor, dim: Any, empty_dim: bool = False) -> Dims:
    """Return `dim` as non-negative dimensions. With `empty_dim`, dim=() means no dimension."""
    rank = max(x.dim(), 1)
    dims = (dim,) if isinstance(dim, int) else tuple(range(rank)) if dim is None or not (dim or empty_dim) else dim
    return tuple(d % rank for d in dims)


def count_of(x: Tensor, dims: Dims) -> int:
    return math.prod(x.shape[d] for d in dims) if x.dim() else 1


def reduction_call(op: str, x: Tensor, dim: Any, dtype: torch.dtype | None = None) -> ReductionCall:
    rule = RULES[op]
    dims = dims_of(x, dim, rule.empty_dim)
    cast = dtype or x.dtype
    if rule.int64_sums and dtype is None and not cast.is_floating_point:
        cast = torch.int64
    if op == "logsumexp" and not cast.is_floating_point:
        cast = torch.get_default_dtype()
    return ReductionCall(dims, cast, rule.gives or cast, count_of(x, dims))


def reduced_shape(x: Tensor, dim: Any, keepdim: bool) -> tuple[int, ...]:
    """The shape of the result of an op for which dim=() means all dimensions."""
    dims = dims_of(x, dim)
    return tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)


# ---- checks beyond annotations --------------------------------------------------------------------------------------


def has_elements(op: str, x: Tensor, dim: Any) -> None:
    """Raise if there is nothing to reduce, because then no maximum or minimum exists."""
    if count_of(x, dims_of(x, dim)) == 0:
        raise BadArgument.of(op, "dim", f"have elements, as {{x}} is {tuple(x.shape)}", repr(dim))


def norm_exists(op: str, x: Tensor, dim: Any, ord: float) -> None:
    if ord < 0 or ord == INF:
        has_elements(op, x, dim)


def is_float(op: str, x: Tensor, dtype: torch.dtype | None) -> None:
    """Raise if x is not a float tensor and no `dtype` is given."""
    if dtype is None and x.dtype not in FLOATS:
        expected = f"be {either(map(dtype_name, FLOATS))} where {{dtype}} is None"
        raise BadArgument.of(op, "x", expected, dtype_name(x.dtype), TypeError)


def holds_x(op: str, x: Tensor, dtype: torch.dtype | None) -> None:
    if dtype is not None and torch.promote_types(x.dtype, dtype) != dtype:
        expected = f"hold {dtype_name(x.dtype)}, the dtype of {{x}}"
        raise BadArgument.of(op, "dtype", expected, dtype_name(dtype), TypeError)


def is_dense(op: str, dvalues: Tensor) -> None:
    """Raise for an mkldnn tensor: scatter_ would crash the process."""
    if dvalues.layout is not torch.strided:
        raise BadArgument.of(op, "dvalues", "be dense: call its to_dense() first", str(dvalues.layout), TypeError)


def _wide(x: Tensor, cast: torch.dtype) -> Tensor:
    x = x.to(cast)
    return x.to(torch.float32) if cast in (torch.float16, torch.bfloat16) else x


def _fresh(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert y to a contiguous result; torch's reductions return new tensors, but sometimes in x's memory format."""
    return y.to(dtype).contiguous()


# ---- references: forward --------------------------------------------------------------------------------------------


def sum_(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False, dtype: RealDtype | None = None) -> Tensor:
    """The sum; integers are summed in int64."""
    call = reduction_call("sum", x, dim, dtype)
    return _fresh(torch.sum(_wide(x, call.cast), call.dims, keepdim, dtype=_sum_dtype(call.cast)), call.gives)


def nansum(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False, dtype: RealDtype | None = None) -> Tensor:
    """The sum of the elements that are not NaN; integers are summed in int64."""
    return sum_(torch.where(x != x, 0, x), dim, keepdim, dtype)


def _sum_dtype(cast: torch.dtype) -> torch.dtype | None:
    return cast if cast not in (torch.float16, torch.bfloat16) else None


def mean(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False, dtype: FloatDtype | None = None) -> Tensor:
    """The mean; integers need a dtype to cast them to."""
    call = reduction_call("mean", x, dim, dtype)
    return _fresh(torch.mean(_wide(x, call.cast), call.dims, keepdim), call.gives)


def prod(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False, dtype: RealDtype | None = None) -> Tensor:
    """The product; integers are multiplied in int64."""
    call = reduction_call("prod", x, dim, dtype)
    return _fresh(_product(_wide(x, call.cast), call, keepdim), call.gives)


def _product(v: Tensor, call: ReductionCall, keepdim: bool) -> Tensor:
    """torch.prod over several dimensions, which this function merges into one."""
    if not v.dim():
        return v.clone()
    others = [d for d in range(v.dim()) if d not in call.dims]
    shape = [1 if d in call.dims else v.shape[d] for d in range(v.dim()) if keepdim or d in others]
    rows = v.permute(*others, *call.dims).reshape(*(v.shape[d] for d in others), call.n)
    return torch.prod(rows, -1, dtype=v.dtype).reshape(shape)


def _extreme(op: str) -> Callable[..., Tensor]:
    torch_op = getattr(torch, op)

    def reference(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False) -> Tensor:
        call = reduction_call(op, x, dim)
        return _fresh(torch_op(x, call.dims, keepdim), call.gives)

    return reference


def _extreme_index(op: str) -> Callable[..., Tensor]:
    torch_op = getattr(torch, op)

    def reference(
        x: AnyTensor[Tensor, "...", dtypes((*FLOATS, *INTS))], dim: OneDim | None = None, keepdim: bool = False
    ) -> Tensor:
        return _fresh(torch_op(x, dim, keepdim), torch.int64)

    return reference


def _extreme_and_index(op: str) -> Callable[..., tuple[Tensor, Tensor]]:
    torch_op = getattr(torch, op.removesuffix("_dim"))

    def reference(x: Number[Tensor, "..."], dim: OneDim, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        call = reduction_call(op, x, dim)
        values, indices = torch_op(x, call.dims[0], keepdim)
        return _fresh(values, call.gives), indices.contiguous()

    return reference


def any_(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether any element is nonzero; the result is bool for every dtype of x."""
    return _fresh(torch.any(x != 0, reduction_call("any", x, dim).dims, keepdim), torch.bool)


def all_(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are nonzero; the result is bool for every dtype of x."""
    return _fresh(torch.all(x != 0, reduction_call("all", x, dim).dims, keepdim), torch.bool)


def count_nonzero(x: Number[Tensor, "..."], dim: Dim = None) -> Tensor:
    """The number of nonzero elements."""
    return _fresh(torch.sum(x != 0, reduction_call("count_nonzero", x, dim).dims), torch.int64)


def _moment(op: str) -> Callable[..., Tensor]:
    torch_op = getattr(torch, op)

    def reference(
        x: Float[Tensor, "..."], dim: Dim = None, keepdim: bool = False, correction: float | None = 1
    ) -> Tensor:
        call = reduction_call(op, x, dim)
        return _fresh(torch_op(_wide(x, call.cast), call.dims, correction=correction, keepdim=keepdim), call.gives)

    return reference


def _moments(op: str) -> Callable[..., tuple[Tensor, Tensor]]:
    torch_op = getattr(torch, op)

    def reference(
        x: Float[Tensor, "..."], dim: Dim = None, keepdim: bool = False, correction: float | None = 1
    ) -> tuple[Tensor, Tensor]:
        call = reduction_call(op, x, dim)
        v = _wide(x, call.cast)
        spread, centre = torch_op(v, call.dims, correction=correction, keepdim=keepdim)
        return _fresh(spread, call.gives), _fresh(centre, call.gives)

    return reference


def logsumexp(x: Number[Tensor, "..."], dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The log-sum-exp, log(sum(exp(x))), without overflow."""
    call = reduction_call("logsumexp", x, dim)
    return _fresh(torch.logsumexp(_wide(x, call.cast), call.dims, keepdim), call.gives)


def vector_norm(
    x: Number[Tensor, "..."],
    ord: float = 2,
    dim: Dim = None,
    keepdim: bool = False,
    dtype: FloatDtype | None = None,
) -> Tensor:
    """The vector norm: sum(|x|^ord)^(1/ord), max |x| for inf, min |x| for -inf, the number of nonzero x for 0."""
    call = reduction_call("vector_norm", x, dim, dtype)
    return _fresh(torch.linalg.vector_norm(_wide(x, call.cast), ord, call.dims, keepdim), call.gives)


# ---- references: backward -------------------------------------------------------------------------------------------

DY = Grad[Tensor, "...", shape(reduced_shape, none=True)]
Y = Float[Tensor, "...", shape(reduced_shape, none=True)]
Indices = Int64[Tensor, "...", shape(reduced_shape, none=True)]
X = Float[Tensor, "..."]


class GradientInputs(NamedTuple):
    """The inputs of a gradient, all with x's rank and in float32 (float64 if an input is float64)."""

    x: Tensor
    reduced: list[Tensor]  # dy and saved results, with size 1 in the reduced dimensions
    dims: Dims
    n: int

    @classmethod
    def of(cls, x: Tensor, dim: Dim, keepdim: bool, *reduced: Tensor) -> "GradientInputs":
        """Give gradients and saved results a shape that broadcasts to x's shape."""
        dims = dims_of(x, dim)
        cast = torch.float64 if torch.float64 in (x.dtype, *(t.dtype for t in reduced)) else torch.float32
        return cls(x.to(cast), [restored(t, x, dims, keepdim).to(cast) for t in reduced], dims, count_of(x, dims))

    def total(self, v: Tensor) -> Tensor:
        return v.sum(self.dims, keepdim=True)


def restored(t: Tensor, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    """Give a result back its reduced dimensions, with size 1."""
    return t if keepdim else t.reshape([1 if d in dims else n for d, n in enumerate(x.shape)])


def _like(dx: Tensor, x: Tensor) -> Tensor:
    """Expand dx to x's shape, in x's dtype, contiguous."""
    return dx.expand(x.shape).to(x.dtype, copy=True, memory_format=torch.contiguous_format)


def sum_bwd(dy: DY, x: X, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The gradient of sum: dx = dy."""
    dims = dims_of(x, dim)
    return _like(restored(dy, x, dims, keepdim), x)


def nansum_bwd(dy: DY, x: X, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The gradient of nansum: dx = dy, 0 where x is NaN."""
    dims = dims_of(x, dim)
    return _like(restored(dy, x, dims, keepdim) * (x == x), x)


def mean_bwd(dy: DY, x: X, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The gradient of mean: dx = dy / n."""
    dims = dims_of(x, dim)
    return _like(restored(wide(dy), x, dims, keepdim) / max(count_of(x, dims), 1), x)


def prod_bwd(dy: DY, x: X, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The gradient of prod: dx = dy * the product of all other elements, also if some of them are 0."""
    b = GradientInputs.of(x, dim, keepdim, dy)
    zero = b.x == 0
    zeros = b.total(zero)
    others = torch.where(zero, 1.0, b.x)
    p = _product(others, ReductionCall(b.dims, b.x.dtype, b.x.dtype, b.n), True)
    alone = torch.where(zero, torch.where(zeros == 1, p, 0.0), torch.where(zeros == 0, p / others, 0.0))
    return _like(b.reduced[0] * alone, x)


def _extreme_bwd() -> Callable[..., Tensor]:
    def reference(dy: DY, x: X, y: Y, dim: Dim = None, keepdim: bool = False) -> Tensor:
        dims = dims_of(x, dim)
        hit = x == restored(y, x, dims, keepdim)
        part = _wide(restored(dy, x, dims, keepdim), dy.dtype) / hit.sum(dims, keepdim=True)
        return _like(torch.where(hit, part, part * 0.0), x)  # if y is NaN, no x equals y, and all gradients are NaN

    return reference


def _pick_bwd() -> Callable[..., Tensor]:
    def reference(dvalues: DY, x: X, indices: Indices, dim: OneDim, keepdim: bool = False) -> Tensor:
        dims = dims_of(x, dim)
        g, chosen = (restored(t, x, dims, keepdim) for t in (dvalues.to(x.dtype), indices))
        index = torch.arange(x.shape[dims[0]] if x.dim() else 1, device=x.device)
        index = index.view([-1 if d == dims[0] else 1 for d in range(x.dim())])
        return torch.where(index == chosen, g, torch.zeros_like(g))  # scatter_ crashes on an mkldnn gradient

    return reference


def _var_slope(b: GradientInputs, correction: float | None) -> Tensor:
    """The derivative of the variance with respect to x; its sign is inverted if correction > n, as in torch."""
    freedom = b.n - (1 if correction is None else correction)
    rate = 2 / freedom if freedom else INF
    return rate * (b.x - b.total(b.x) / max(b.n, 1))


def _std_rate(dstd: Tensor, std: Tensor) -> Tensor:
    """Convert the gradient of the standard deviation to that of the variance; 0 where the deviation is 0."""
    return torch.where(std == 0, 0.0, dstd / (2 * std))


def var_bwd(dy: DY, x: X, dim: Dim = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The gradient of var: dx = dy * 2 * (x - mean(x)) / (n - correction)."""
    b = GradientInputs.of(x, dim, keepdim, dy)
    return _like(b.reduced[0] * _var_slope(b, correction), x)


def std_bwd(dy: DY, x: X, y: Y, dim: Dim = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The gradient of std: dx = dy * (x - mean(x)) / (y * (n - correction)), 0 where y is 0."""
    b = GradientInputs.of(x, dim, keepdim, dy, y)
    return _like(_std_rate(*b.reduced) * _var_slope(b, correction), x)


def var_mean_bwd(
    dvar: DY, dmean: DY, x: X, dim: Dim = None, keepdim: bool = False, correction: float | None = 1
) -> Tensor:
    """The gradient of var_mean: dx = dvar * 2 * (x - mean(x)) / (n - correction) + dmean / n."""
    b = GradientInputs.of(x, dim, keepdim, dvar, dmean)
    return _like(b.reduced[0] * _var_slope(b, correction) + b.reduced[1] / max(b.n, 1), x)


def std_mean_bwd(
    dstd: DY,
    dmean: DY,
    x: X,
    std: Y,
    dim: Dim = None,
    keepdim: bool = False,
    correction: float | None = 1,
) -> Tensor:
    """The gradient of std_mean: dx = dstd * (x - mean(x)) / (std * (n - correction)) + dmean / n."""
    b = GradientInputs.of(x, dim, keepdim, dstd, dmean, std)
    rate = _std_rate(b.reduced[0], b.reduced[2])
    return _like(rate * _var_slope(b, correction) + b.reduced[1] / max(b.n, 1), x)


def logsumexp_bwd(dy: DY, x: X, y: Y, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The gradient of logsumexp: dx = dy * exp(x - y)."""
    b = GradientInputs.of(x, dim, keepdim, dy, y)
    return _like(b.reduced[0] * torch.exp(b.x - b.reduced[1]), x)


def vector_norm_bwd(dy: DY, x: X, y: Y, ord: float = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The gradient of vector_norm: dx = dy * sign(x) * (|x| / y)^(ord - 1), 0 where y is 0.

    For inf and -inf, dy * sign(x) is shared evenly among the elements with |x| = y.
    """
    b = GradientInputs.of(x, dim, keepdim, dy, y)
    g, norm = b.reduced
    magnitude = b.x.abs()
    if ord == 0:
        slope = torch.zeros_like(b.x)
    elif ord in (INF, -INF):
        hit = (magnitude == norm).to(b.x.dtype)
        slope = torch.where(norm == norm, b.x.sgn() * hit / b.total(hit), 0.0)
    elif ord == 2:
        slope = torch.where(norm == 0, 0.0, b.x / norm)
    else:
        slope = b.x.sgn() * (magnitude / norm) ** (ord - 1)
        slope = torch.where((norm == 0) | (magnitude == 0), 0.0, slope)
    return _like(g * slope, x)


# ---- samples --------------------------------------------------------------------------------------------------------

# Reductions over rows, columns, planes and all elements of contiguous, strided, sliced and expanded tensors.
SHAPES = (
    Case((5, 64)),
    Case((5, 64), options={"dim": 0}),
    Case((5, 64), options={"dim": None, "keepdim": True}),
    Case((3, 4, 37), options={"dim": 1}),
    Case((2, 3, 4, 17), options={"dim": (0, 2)}),
    Case((2, 3, 4, 17), options={"dim": [-1, 1], "keepdim": True}),
    Case((3, 2, 2, 5, 2), options={"dim": (0, 2, 4)}),
    Case((3, 1000)),
    Case((300, 3), options={"dim": 0}),
    Case((37, 64), "t", {"dim": 0}),
    Case((37, 64), "t", {"dim": 1}),
    Case((2, 3, 64), "swapped", {"dim": None}),
    Case((2, 3, 64), "swapped", {"dim": 2}),
    Case((5, 64), "step", {"dim": 1}),
    Case((5, 64), "step", {"dim": 0}),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded", {"dim": 0}),
    Case((), options={"dim": None}),
    Case((4, 1, 6), options={"dim": 1}),
    Case((0, 37)),
)
EMPTY = (Case((5, 0)), Case((0, 3), options={"dim": 0}), Case((2, 0, 3), options={"dim": None}))
WIDER = Case((5, 64), options={"wider": True})
TO = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
}


def _drawn(name: str, d: Draw) -> Tensor:
    """Draw x, with values near 1 for `prod`; the option `zeros` sets some elements to 0, or to NaN for `nansum`."""
    x = d.full(d.option("scale", 1.0))
    zeros = d.option("zeros", 0)
    if name == "prod":
        x = 1 + x / 10
    if zeros:
        x = x.contiguous()
        x.view(-1)[:: x.shape[-1] // zeros] = NAN if name == "nansum" else 0
    return x


def _arguments(name: str, d: Draw, params: Sequence[str]) -> dict[str, Any]:
    """The arguments of a forward op for a case, in the order of its signature."""
    x = _drawn(name, d)
    args: dict[str, Any] = {"x": x, "dim": d.option("dim", -1), "keepdim": d.option("keepdim", False)}
    dims = dims_of(x, args["dim"])
    if "indices" in params or name in ("argmax", "argmin", "max_dim", "min_dim"):
        args["dim"] = args["dim"] if isinstance(args["dim"], int) else -1
        if args["dim"] == -1 and name.startswith("arg") and d.option("dim", -1) is None:
            args["dim"] = None
    # with one element, a correction of 1 would leave no degrees of freedom
    args["correction"] = d.option("correction", 1 if count_of(x, dims) > 1 else 0)
    args["ord"] = d.option("ord", 2)
    args["dtype"] = TO[x.dtype] if d.option("wider") else None
    return {p: args[p] for p in params}


def _maker(name: str, params: Sequence[str], cases: Sequence[Case]) -> Maker:
    return Maker(lambda d: _arguments(name, d, params), tuple(cases))


def _back_maker(name: str, forward: Any, params: Sequence[str], cases: Sequence[Case]) -> Maker:
    """Samples of a backward: the forward's arguments, its results by name, and gradients of their shapes."""

    def build(d: Draw) -> dict[str, Any]:
        args = _arguments(name, d, forward.spec.names)
        results = forward.reference(*args.values())
        results = results if isinstance(results, tuple) else (results,)
        named = dict(zip(forward.spec.out, results, strict=True))
        make = Draw(Case(tuple(results[0].shape), options={"of": d.case.id}), d.dtype, d.device)
        return {p: args[p] if p in args else named[p] if p in named else make.full() for p in params}

    return Maker(build, tuple(cases))


NO_EMPTY = (Change("x", lambda x: x[:, :0], r"dim must have elements, as x is \(5, 0\)"),)
NO_INTS = (Change("x", lambda x: x.int(), "x must be .*float64 where dtype is None; got int32", TypeError),)
NO_LESS = (Change("dtype", torch.float16, "dtype must hold float32, the dtype of x; got float16", TypeError),)


# ---- the ops --------------------------------------------------------------------------------------------------------

# The arguments' schemas, written out because no annotation can express int[1], for which torch.ops accepts an int.
SCHEMA = {
    "dim": "int[1]? dim=None",
    "keepdim": "bool keepdim=False",
    "dtype": "ScalarType? dtype=None",
    "correction": "Scalar? correction=1",
    "ord": "Scalar ord=2",
}
ONE = {"dim": "int dim"}
MAYBE = {"dim": "int? dim=None"}


# The docstrings of arguments.
NOTES = {
    "x": "the tensor to reduce.",
    "dim": "the dimension to reduce, several of them, or None for all.",
    "keepdim": "keep the reduced dimensions, with size 1.",
    "dtype": "x is cast to it first, and the result has it.",
    "correction": "squares are divided by the number of elements minus this; None is 1.",
    "ord": "the order of the norm.",
    "y": "the result of the forward.",
    "std": "the standard deviation from the forward.",
    "indices": "the indices from the forward.",
} | {f"d{result}": f"the gradient of {result}." for result in ("y", "values", "var", "std", "mean")}
DIM_NOTES = {ONE["dim"]: "the dimension to reduce.", MAYBE["dim"]: "the dimension to reduce, or None for all."}


def declare(
    fn: Callable[..., Any],
    name: str,
    doc: str,
    samples: Maker,
    dim: Mapping[str, str] = SCHEMA,
    **fields: Any,
) -> Any:
    """Declare the reference `fn` as an op, and add it to this module under `name`."""
    params = list(inspect.signature(fn).parameters)
    types = {**SCHEMA, **dim}
    gives = "(Tensor, Tensor)" if " " in fields.get("out", "y") else "Tensor"
    schema = f"({', '.join(types.get(p, f'Tensor {p}') for p in params)}) -> {gives}"
    notes = {**NOTES, "dim": DIM_NOTES.get(dim["dim"], NOTES["dim"])}
    lines = (f"    {p}: {notes[p]}" for p in params if p in notes)
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{doc or fn.__doc__}\n\nArgs:\n" + "\n".join(lines)
    tol = {**EXACT, **fields.pop("tol", {})}
    globals()[name] = declared = op(fn, name=name, schema=schema, samples=samples, tol=tol, **fields)
    return declared


def _forward(
    name: str,
    fn: Callable[..., Any],
    doc: str = "",
    more: Sequence[Case] = (),
    bad: Sequence[Change] = (),
    cases: Sequence[Case] = SHAPES,
    **fields: Any,
) -> Any:
    maker = _maker(name, list(inspect.signature(fn).parameters), (*cases, *more))
    return declare(fn, name, doc, maker, errors=bad_samples(maker, *bad, case=Case((5, 64))), **fields)


def _backward(
    forward: Any,
    fn: Callable[..., Any],
    doc: str = "",
    more: Sequence[Case] = (),
    cases: Sequence[Case] = SHAPES,
    **fields: Any,
) -> None:
    name = forward.spec.name
    maker = _back_maker(name, forward, list(inspect.signature(fn).parameters), (*cases, *more))
    declare(fn, f"{name}_bwd", doc, maker, out="dx", **fields)


# The relative error of a product is the sum of its factors' relative errors.
PROD_TOL = {torch.float32: Tol(1e-5, 1e-5), torch.float64: Tol(1e-6, 1e-7)}
ZEROS = (Case((5, 64), options={"zeros": 1}), Case((5, 64), options={"zeros": 2, "dim": 0}))
CORRECTIONS = (
    Case((5, 64), options={"correction": 0}),
    Case((5, 64), options={"correction": None, "dim": 0}),
    Case((5, 64), options={"correction": 2.5, "dim": None}),
)
NORMS = tuple(
    Case((5, 64), options={"ord": p, "dim": dim, "zeros": zeros})
    for p, dim, zeros in ((0, 1, 2), (1, 0, 0), (INF, 1, 0), (-INF, None, 0), (3, 0, 0), (0.5, 1, 1), (-1.5, 1, 0))
)
FEWER_SHAPES = tuple(c for c in SHAPES if c.shape not in ((3, 2, 2, 5, 2), (2, 3, 4, 17)) or c.options["dim"] == (0, 2))

_backward(_forward("sum", sum_, more=(*EMPTY, WIDER), grad="sum_bwd"), sum_bwd, looks="x")
_backward(
    _forward("nansum", nansum, more=(*EMPTY, WIDER, *ZEROS), cases=FEWER_SHAPES, grad="nansum_bwd"),
    nansum_bwd,
    more=ZEROS,
    cases=FEWER_SHAPES,
)
_backward(_forward("mean", mean, more=(WIDER,), bad=NO_INTS, where=is_float, grad="mean_bwd"), mean_bwd, looks="x")
_backward(
    _forward("prod", prod, more=(*EMPTY, WIDER, *ZEROS), grad="prod_bwd", tol=PROD_TOL),
    prod_bwd,
    more=ZEROS,
    tol=PROD_TOL,
)


def _declare_extreme(name: str, words: str) -> None:
    _backward(
        _forward(
            name,
            _extreme(name),
            f"The {words} element; NaN if any is NaN.",
            bad=NO_EMPTY,
            where=has_elements,
            grad=f"{name}_bwd",
        ),
        _extreme_bwd(),
        f"The gradient of {name}: dy is shared evenly among the {words} elements.",
        more=ZEROS,
    )


def _declare_extreme_and_index(name: str, words: str) -> None:
    _backward(
        _forward(
            name,
            _extreme_and_index(name),
            f"The {words} element along dim and its first index.",
            bad=NO_EMPTY,
            where=has_elements,
            cases=FEWER_SHAPES,
            grad=f"{name}_bwd",
            out="values indices",
            dim=ONE,
        ),
        _pick_bwd(),
        f"The gradient of {name}: dvalues at the index, else 0.",
        cases=FEWER_SHAPES,
        where=is_dense,
        dim=ONE,
    )


def _declare_extreme_index(name: str, words: str) -> None:
    _forward(
        name,
        _extreme_index(name),
        f"The first index of the {words} element along dim, or in x.flatten().",
        more=ZEROS,
        bad=NO_EMPTY,
        where=has_elements,
        cases=FEWER_SHAPES,
        dim=MAYBE,
    )


_declare_extreme("amax", "largest")
_declare_extreme("amin", "smallest")
_declare_extreme_and_index("max_dim", "largest")
_declare_extreme_and_index("min_dim", "smallest")
_declare_extreme_index("argmax", "largest")
_declare_extreme_index("argmin", "smallest")
_forward("any", any_, more=(*EMPTY, *ZEROS, Case((5, 64), options={"scale": 0.0}), Case((3, 4), options={"dim": ()})))
_forward("all", all_, more=(*EMPTY, *ZEROS))
_forward("count_nonzero", count_nonzero, more=(*EMPTY, *ZEROS))


def _declare_moment(name: str, words: str, backward: Callable[..., Any]) -> None:
    doc = f"The {words}; squares are divided by n - correction."
    _backward(_forward(name, _moment(name), doc, more=CORRECTIONS, grad=f"{name}_bwd"), backward, more=CORRECTIONS)


def _declare_moments(name: str, words: str, backward: Callable[..., Any]) -> None:
    doc = f"The {words} and the mean; squares are divided by n - correction."
    results = name.replace("_", " ")
    _backward(
        _forward(name, _moments(name), doc, more=CORRECTIONS, grad=f"{name}_bwd", out=results),
        backward,
        more=CORRECTIONS,
    )


_declare_moment("var", "variance", var_bwd)
_declare_moment("std", "standard deviation", std_bwd)
_declare_moments("var_mean", "variance", var_mean_bwd)
_declare_moments("std_mean", "standard deviation", std_mean_bwd)
LARGE = (Case((5, 64), options={"scale": 50.0}), Case((5, 64), options={"scale": 50.0, "dim": 0}))
_backward(_forward("logsumexp", logsumexp, more=LARGE, grad="logsumexp_bwd"), logsumexp_bwd, more=LARGE)
_backward(
    _forward(
        "vector_norm",
        vector_norm,
        more=(*NORMS, WIDER),
        bad=(*NO_INTS, *NO_LESS),
        where=(is_float, holds_x, norm_exists),
        grad="vector_norm_bwd",
    ),
    vector_norm_bwd,
    more=NORMS[4:],
)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
