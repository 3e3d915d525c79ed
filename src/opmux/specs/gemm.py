"""Matrix products: linear and its gradients; gemm and linear with epilogues; products of FP8 matrices with scales.

The ops accumulate in float32 (float64 for float64), round once, and return new contiguous tensors. As in torch,
`torch.backends.cuda.matmul` decides whether float32 factors may be rounded to TF32.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import FLOATS, FP8, Byte, Float, Float32, Grad, Int8, one_of, one_or_each_row, same_dtype, shape
from ..core.errors import BadArgument
from ..core.spec import BadSample, BadSamples, Tol, op
from ..core.tensors import dtype_name, opmath_dtype
from ._numeric import rounded, wide
from .activation import ACTS, Gate, halves
from .samples import Case, Draw, Maker

# Implementations may add in another order, and may round partial sums to the inputs' dtype.
SUMS = {
    torch.float32: Tol(1e-5, 1e-4),
    torch.float16: Tol(2e-3, 1e-2),
    torch.bfloat16: Tol(1.6e-2, 5e-2),
}


def _args(d: Draw) -> dict[str, Any]:
    """Options: out (the number of outputs; by default as many as inputs), no_bias."""
    k = d.case.shape[-1]
    n = d.option("out", k)
    scaled = lambda name, shape: d.another(name, shape, d.case.layout, scale=max(k, 1) ** -0.5)
    bias = None if d.option("no_bias") else scaled("bias", (n,))
    return {"x": d.full(), "weight": scaled("weight", (n, k)), "bias": bias}


CASES = (
    Case((5, 64)),
    Case((37, 100), options={"out": 24}),
    Case((2, 3, 17), options={"out": 5, "no_bias": True}),
    Case((1, 1)),
    Case((37,), options={"out": 8}),
    Case((2, 3, 4, 16), options={"out": 40}),
    Case((0, 37)),
    Case((5, 0), options={"out": 3}),
    Case((5, 8), options={"out": 0}),
    Case((24, 64), "t", {"out": 16}),
    Case((2, 3, 64), "swapped", {"out": 16}),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
)
LINEAR = Maker(_args, CASES)


def _flops(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> int:
    return 2 * math.prod(x.shape[:-1]) * weight.numel()


@op(
    grad="linear_bwd",
    samples=LINEAR,
    tol=SUMS,
    flops=_flops,
)
def linear(
    x: Float[Tensor, "*rows k"],
    weight: Float[Tensor, "n k", same_dtype("x")],
    bias: Float[Tensor, "n", same_dtype("x")] | None = None,
) -> Tensor:
    """Linear layer: y = x weight^T + bias, computed in float32 (float64 for float64) and rounded once.

    Args:
        x: the rows of inputs.
        weight: one row for each output.
        bias: added to each row of y.

    Returns:
        y [*rows, n], of x's dtype.
    """
    v = wide(x)
    y = v @ weight.to(v.dtype).mT
    return rounded(y if bias is None else y + bias.to(v.dtype), x.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    shape = (*d.case.shape[:-1], args["weight"].shape[0])
    return {"dy": Draw(Case(shape, d.case.layout), d.dtype, d.device).grad(), "x": args["x"], "weight": args["weight"]}


LINEAR_BWD = Maker(_bwd_args, CASES)


@op(
    out="dx dweight dbias",
    samples=LINEAR_BWD,
    tol=SUMS,
    flops=lambda dy, x, weight: 2 * _flops(x, weight),
)
def linear_bwd(
    dy: Grad[Tensor, "*rows n"], x: Float[Tensor, "*rows k"], weight: Float[Tensor, "n k", same_dtype("x")]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of linear: dx = dy weight, dweight = dy^T x, dbias = sum(dy). The last two are sums over all rows.

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.

    Returns:
        dx, like x, dweight, like weight, and dbias [n], of weight's dtype.
    """
    v = wide(x)
    g, w = dy.to(v.dtype), weight.to(v.dtype)
    (n, k), m = w.shape, math.prod(x.shape[:-1])
    rows = g.reshape(m, n)
    dweight, dbias = rows.mT @ v.reshape(m, k), rows.sum(0)
    return rounded(g @ w, x.dtype), rounded(dweight, weight.dtype), rounded(dbias, weight.dtype)


# ---- gemm -----------------------------------------------------------------------------------------------------------


OutDtype = Annotated[torch.dtype, one_of(*FLOATS)]


def sizes_of(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    """The sizes M, N, K of a product."""
    m, k = a.shape[-2:]
    n = b.shape[-2 if trans_b else -1]
    return (k, n, m) if trans_a else (m, n, k)


def _product_shape(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[int, ...]:
    return sizes_of(a, b, trans_a, trans_b)[:2]


def _bias_shape(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[int, ...]:
    return sizes_of(a, b, trans_a, trans_b)[1:2]


Bias = Float[Tensor, "n", shape(_bias_shape)]
LikeProduct = Float[Tensor, "m n", shape(_product_shape)]


def factors_fit(op: str, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> None:
    """Raise unless both factors have the same K, whose dimension depends on `trans_a` and `trans_b`."""
    k = a.shape[0 if trans_a else 1]
    if b.shape[1 if trans_b else 0] != k:
        sizes = (b.shape[0], k) if trans_b else (k, b.shape[1])
        form = f"a{'^T' if trans_a else ''} b{'^T' if trans_b else ''}"
        expected = f"have shape {sizes}, as {form} with {{a}} {tuple(a.shape)}"
        raise BadArgument.of(op, "b", expected, str(tuple(b.shape)))


def product(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, alpha: float) -> Tensor:
    """alpha * op(a) op(b), before it is rounded."""
    x, w = wide(a), wide(b)
    y = (x.mT if trans_a else x) @ (w.mT if trans_b else w)
    return y if alpha == 1.0 else y * alpha


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.to(y.dtype)


def gemm_flops(a: Tensor, b: Tensor, *rest: Any) -> int:
    """2 M N K; the first bool in `rest` is trans_a, which determines which dimension of a is K."""
    transposed = next((v for v in rest if isinstance(v, bool)), False)
    return 2 * a.numel() * b.numel() // max(a.shape[0 if transposed else 1], 1)


def _gemm_args(d: Draw) -> dict[str, Any]:
    """The case's shape is a's. Options: out (columns of the product), ta, tb, bias, alpha, wider (a float32 result)."""
    rows, cols = d.case.shape
    k = rows if d.option("ta") else cols
    n = d.option("out", 24)
    return {
        "a": d.full(max(k, 1) ** -0.5),
        "b": _drawn(d, "b", (n, k) if d.option("tb") else (k, n)),
        "bias": _drawn(d, "bias", (n,)) if d.option("bias") else None,
        "trans_a": bool(d.option("ta")),
        "trans_b": bool(d.option("tb")),
        "alpha": d.option("alpha", 1.0),
        "out_dtype": _wider(d) if d.option("wider") else None,
    }


def _drawn(d: Draw, name: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    """Draw a tensor besides a; a matrix has the case's memory layout."""
    layout = d.case.layout if len(shape) > 1 else "packed"
    return d.another(name, shape, layout, scale=scale)


def _wider(d: Draw) -> torch.dtype:
    return torch.float64 if d.dtype is torch.float64 else torch.float32


GEMM_CASES = (
    Case((5, 64), options={"tb": True, "bias": True}),
    Case((37, 100), options={"bias": True}),
    Case((64, 5), options={"ta": True, "out": 40}),
    Case((17, 37), options={"ta": True, "tb": True, "out": 5, "bias": True}),
    Case((1, 1), options={"out": 1, "tb": True}),
    Case((5, 64), options={"alpha": 0.5, "bias": True}),
    Case((5, 64), options={"alpha": -2.0}),
    Case((37, 64), options={"wider": True, "bias": True, "tb": True}),
    Case((0, 37), options={"bias": True}),
    Case((5, 0), options={"out": 3, "bias": True}),
    Case((5, 8), options={"out": 0}),
    Case((24, 64), "t", {"tb": True}),
    Case((5, 64), "step", {"bias": True}),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded", {"bias": True}),
)
GEMM = Maker(_gemm_args, GEMM_CASES)


def unfit_factors(maker: Maker) -> BadSamples:
    """Bad samples: products of a (5, 64) matrix with the transpose of (24, 63), and with (63, 24)."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        for transposed, match in (
            (True, r"b must have shape \(24, 64\), as a b\^T with a \(5, 64\); got \(24, 63\)"),
            (False, r"b must have shape \(64, 24\), as a b with a \(5, 64\); got \(63, 24\)"),
        ):
            args = maker.named(Case((5, 64), options={"tb": transposed, "bias": True}), torch.float32, device)
            args["b"] = args["b"][:, :-1] if transposed else args["b"][:-1]
            yield BadSample(tuple(args.values()), ValueError, match, id=f"b short, trans_b={transposed}")

    return bad


@op(samples=GEMM, errors=unfit_factors(GEMM), where=factors_fit, tol=SUMS, flops=gemm_flops)
def gemm(
    a: Float[Tensor, "_ _"],
    b: Float[Tensor, "_ _", same_dtype("a")],
    bias: Bias | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: OutDtype | None = None,
) -> Tensor:
    """Matrix product: y = alpha * op(a) op(b) + bias, where op(x) is x^T if trans_a (trans_b) is set; rounded once.

    Args:
        a: [m, k]; [k, m] with trans_a.
        b: [k, n]; [n, k] with trans_b.
        bias: added to each row of the product.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product, before the bias is added.
        out_dtype: the dtype of the result; by default a's.

    Returns:
        y [m, n].
    """
    return rounded(with_bias(product(a, b, trans_a, trans_b, alpha), bias), out_dtype or a.dtype)


def matrices(op: str, a: Tensor) -> None:
    if a.dim() not in (2, 3):
        raise BadArgument.of(
            op, "a", "be a matrix or a batch of matrices: two or three dimensions", str(tuple(a.shape))
        )


def _matmul_args(d: Draw) -> dict[str, Any]:
    """The case's shape is a's. Options: out, c (its shape before it is expanded), alpha, beta, wider."""
    shape, n = d.case.shape, d.option("out", 24)
    result = (*shape[:-1], n)
    beta = d.option("beta", 1.0)
    c = d.option("c")
    c = None if c is None else Draw(Case(c, options={"of": d.case.id}), d.dtype, d.device).full().expand(result)
    return {
        "a": d.full(max(shape[-1], 1) ** -0.5),
        "b": Draw(Case((*shape[:-2], shape[-1], n), d.case.layout, {"of": d.case.id}), d.dtype, d.device).full(),
        "c": c if c is None or beta else torch.full_like(c, float("inf")),
        "alpha": d.option("alpha", 1.0),
        "beta": beta,
        "out_dtype": _wider(d) if d.option("wider") else None,
    }


MATMUL = Maker(
    _matmul_args,
    (
        Case((5, 64)),
        Case((37, 100), options={"c": (24,), "alpha": 0.5}),
        Case((3, 17, 37), options={"out": 5, "c": (17, 1), "beta": -1.5}),
        Case((2, 40, 16), options={"c": (2, 40, 24), "beta": 0.0}),
        Case((1, 1), options={"out": 1, "c": ()}),
        Case((2, 5, 64), options={"wider": True, "c": (1, 5, 24)}),
        Case((0, 37)),
        Case((0, 5, 8)),
        Case((5, 0), options={"out": 3, "c": (5, 3)}),
        Case((5, 8), options={"out": 0}),
        Case((24, 64), "t"),
        Case((3, 24, 64), "swapped"),
        Case((5, 64), "step"),
        Case((5, 37), "sliced"),
        Case((2, 5, 64), "expanded"),
    ),
)


@op(samples=MATMUL, where=matrices, tol=SUMS, flops=lambda a, b, *rest: 2 * a.numel() * b.shape[-1])
def matmul(
    a: Float[Tensor, "*batch m k"],
    b: Float[Tensor, "*batch k n", same_dtype("a")],
    c: Float[Tensor, "*batch m n"] | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: OutDtype | None = None,
) -> Tensor:
    """Product of matrices or batches of matrices: y = alpha * a b + beta * c, with any strides; rounded once.

    Args:
        a: [m, k] or [batch, m, k].
        b: [k, n] or [batch, k, n].
        c: added to the product; may be expanded.
        alpha: multiplies the product.
        beta: multiplies c; with 0, c is ignored even if it contains NaN.
        out_dtype: the dtype of the result; by default a's.

    Returns:
        y [m, n] or [batch, m, n].
    """
    y = wide(a) @ wide(b)
    y = y if alpha == 1.0 else y * alpha
    return rounded(y if c is None or beta == 0.0 else y + c.to(y.dtype) * beta, out_dtype or a.dtype)


def _int_args(d: Draw) -> dict[str, Any]:
    """The case's shape is a's. Options: out, transposed (b is the transpose of a contiguous matrix)."""
    ints = lambda t: (t * 60).clamp(-128, 127).to(torch.int8)
    (_, k), n = d.case.shape, d.option("out", 24)
    b = ints(_drawn(d, "b", (n, k) if d.option("transposed") else (k, n)))
    return {"a": ints(d.full()), "b": b.t() if d.option("transposed") else b}


INT = Maker(
    _int_args,
    (
        Case((20, 64)),
        Case((37, 104), options={"transposed": True, "out": 40}),
        Case((2, 300), options={"transposed": True, "out": 5}),
        Case((1, 2048), options={"out": 9}),
        Case((33, 17), options={"out": 3}),
        Case((0, 37)),
        Case((5, 0), options={"out": 3}),
        Case((24, 64), "t"),
        Case((9, 48), "sliced"),
    ),
)


@op(samples=INT, flops=lambda a, b: 2 * a.numel() * b.shape[1])
def int_mm(a: Int8[Tensor, "m k"], b: Int8[Tensor, "k n"]) -> Tensor:
    """Product of int8 matrices: y = a b, accumulated in int32, which wraps around.

    Args:
        a: [m, k], with any strides.
        b: [k, n], with any strides.

    Returns:
        y [m, n], int32.
    """
    return a.to(torch.int32) @ b.to(torch.int32)


@op(out="y pre", samples=GEMM, errors=unfit_factors(GEMM), where=factors_fit, tol=SUMS, flops=gemm_flops)
def gemm_gelu(
    a: Float[Tensor, "_ _"],
    b: Float[Tensor, "_ _", same_dtype("a")],
    bias: Bias | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: OutDtype | None = None,
) -> tuple[Tensor, Tensor]:
    """gemm and gelu (tanh): pre = alpha * op(a) op(b) + bias, y = gelu(pre); y is computed from the unrounded pre.

    Args:
        a: [m, k]; [k, m] with trans_a.
        b: [k, n]; [n, k] with trans_b.
        bias: added to each row of the product.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product, before the bias is added.
        out_dtype: the dtype of the result; by default a's.

    Returns:
        y and pre, both [m, n].
    """
    pre = with_bias(product(a, b, trans_a, trans_b, alpha), bias)
    dtype = out_dtype or a.dtype
    return rounded(ACTS["gelu_tanh"].value(pre), dtype), rounded(pre, dtype)


def _dgelu_args(d: Draw) -> dict[str, Any]:
    args = _gemm_args(d)
    m = d.case.shape[1 if d.option("ta") else 0]
    pre = _drawn(d, "pre", (m, d.option("out", 24)))
    return {"a": args.pop("a"), "b": args.pop("b"), "pre": pre, **{k: v for k, v in args.items() if k != "bias"}}


DGELU = Maker(_dgelu_args, tuple(c for c in GEMM_CASES if c.shape != (5, 0)))


@op(
    samples=DGELU,
    errors=unfit_factors(DGELU),
    where=factors_fit,
    tol=SUMS,
    flops=gemm_flops,
)
def gemm_dgelu(
    a: Float[Tensor, "_ _"],
    b: Float[Tensor, "_ _", same_dtype("a")],
    pre: LikeProduct,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: OutDtype | None = None,
) -> Tensor:
    """The gradient of gelu (tanh) after a product: y = alpha * op(a) op(b) * gelu'(pre).

    Args:
        a: [m, k]; [k, m] with trans_a.
        b: [k, n]; [n, k] with trans_b.
        pre: the argument of gelu.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product.
        out_dtype: the dtype of the result; by default a's.

    Returns:
        y [m, n].
    """
    y = product(a, b, trans_a, trans_b, alpha)
    return rounded(y * ACTS["gelu_tanh"].slope(pre.to(y.dtype)), out_dtype or a.dtype)


def _sum_args(d: Draw) -> dict[str, Any]:
    """Options: those of gemm; beta, and wider (c in float32)."""
    args = _gemm_args(d)
    m = d.case.shape[1 if d.option("ta") else 0]
    c = _drawn(d, "c", (m, d.option("out", 24))).contiguous()
    beta = d.option("beta", 1.0)
    return {
        "c": (c if beta else c.fill_(float("nan"))).to(_wider(d) if d.option("wider") else d.dtype),
        "a": args["a"],
        "b": args["b"],
        "trans_a": args["trans_a"],
        "trans_b": args["trans_b"],
        "alpha": args["alpha"],
        "beta": beta,
    }


SUM = Maker(
    _sum_args,
    (
        Case((64, 5), options={"ta": True, "wider": True}),
        Case((37, 100), options={"ta": True, "out": 17}),
        Case((5, 64), options={"tb": True, "beta": 0.0}),
        Case((5, 64), options={"alpha": 0.5, "beta": -1.5}),
        Case((5, 64), options={"beta": 0.0, "wider": True}),
        Case((0, 8), options={}),
        Case((5, 0), options={"out": 3}),
        Case((5, 0), options={"out": 3, "beta": 0.0}),
        Case((24, 64), "t", {"tb": True}),
    ),
)


@op(
    out="",
    mutates=("c",),
    samples=SUM,
    errors=unfit_factors(SUM),
    where=factors_fit,
    tol=SUMS,
    flops=lambda c, a, b, *rest: gemm_flops(a, b, *rest),
)
def gemm_add_(
    c: LikeProduct,
    a: Float[Tensor, "_ _"],
    b: Float[Tensor, "_ _", same_dtype("a")],
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    """Add a matrix product to c in place: c = alpha * op(a) op(b) + beta * c.

    Args:
        c: the output, updated in place; its dtype may differ from a's.
        a: [m, k]; [k, m] with trans_a.
        b: [k, n]; [n, k] with trans_b.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product.
        beta: multiplies c; with 0, c is overwritten even if it contains NaN.
    """
    y = product(a, b, trans_a, trans_b, alpha)
    c.copy_(y if beta == 0.0 else y + c.to(y.dtype) * beta)


# ---- linear with an epilogue ----------------------------------------------------------------------------------------


def width(weight: Tensor, glu: bool) -> int:
    """The number of columns of the result: the number of weight's rows; with glu, half of it."""
    return weight.shape[0] // 2 if glu else weight.shape[0]


def _act_fits(op: str, act: str | None, glu: bool) -> None:
    """Raise for an activation that exists only as a gate, unless glu is set."""
    if act is not None and not glu and not ACTS[act].alone:
        alone = ", ".join(repr(name) for name, row in ACTS.items() if row.alone)
        raise BadArgument.of(op, "act", f"be None or one of {alone}, or {{glu}} be set", repr(act))


def _halves_fit(op: str, weight: Tensor, glu: bool) -> None:
    if glu and weight.shape[0] % 2:
        expected = "have an even number of rows with {glu}=True: half for the gate, half for what it multiplies"
        raise BadArgument.of(op, "weight", expected, str(tuple(weight.shape)))


def _residual_fits(op: str, x: Tensor, residual: Tensor | None) -> None:
    """Raise unless the residual has x's dtype or the accumulation dtype of the product."""
    allowed = (x.dtype, opmath_dtype(x.dtype))
    if residual is not None and residual.dtype not in allowed:
        names = " or ".join(dict.fromkeys(map(dtype_name, allowed)))
        expected = f"be {names}, as {{x}} is {dtype_name(x.dtype)}"
        raise BadArgument.of(op, "residual", expected, dtype_name(residual.dtype), TypeError)


def _act_args(d: Draw) -> dict[str, Any]:
    """Options: those of linear; act, glu, residual ("same" or "wider": its dtype), and forgets (save=False)."""
    args, glu = _args(d), bool(d.option("glu"))
    added = d.option("residual")
    residual = None
    if added:
        residual = _drawn(d, "residual", (*d.case.shape[:-1], width(args["weight"], glu)))
        residual = residual.to(_wider(d)) if added == "wider" else residual
    return {**args, "residual": residual, "act": d.option("act"), "glu": glu, "save": not d.option("forgets")}


LINEAR_ACT = Maker(
    _act_args,
    (
        Case((5, 64), options={"act": "gelu"}),
        Case((37, 100), options={"out": 24, "act": "silu", "glu": True}),
        Case((37, 64), options={"out": 48, "act": "gelu_tanh", "glu": True, "residual": "wider", "no_bias": True}),
        Case((2, 3, 17), options={"out": 5, "act": "relu", "no_bias": True, "residual": "same"}),
        Case((20, 32), options={"out": 24, "residual": "same"}),
        Case((20, 32), options={"out": 24, "glu": True, "forgets": True}),
        Case((3, 48), options={"act": "qgelu", "forgets": True, "residual": "wider"}),
        Case((37,), options={"out": 8, "act": "srelu", "residual": "same"}),
        Case((1, 1), options={"out": 2, "act": "sigmoid", "glu": True}),
        Case((0, 37), options={"act": "silu", "residual": "same"}),
        Case((5, 0), options={"out": 6, "act": "silu", "glu": True, "residual": "same"}),
        Case((5, 8), options={"out": 0, "act": "relu"}),
        Case((24, 64), "t", {"out": 16, "act": "gelu_tanh", "residual": "same"}),
        Case((2, 3, 64), "swapped", {"out": 16, "act": "silu", "glu": True, "residual": "same"}),
        Case((5, 64), "step", {"act": "relu"}),
        Case((5, 37), "sliced", {"out": 38, "act": "gelu", "glu": True}),
        Case((5, 64), "expanded", {"out": 16, "residual": "same"}),
    ),
)


def _bad_acts(device: torch.device) -> Iterator[BadSample]:
    for name, options, change, match in (
        ("odd halves", {"out": 5, "glu": True}, {}, r"weight must have an even number of rows with glu=True"),
        ("a gate alone", {"act": "sigmoid"}, {}, "act must be None or one of 'gelu_tanh', .*, or glu be set"),
        ("a short residual", {"out": 8, "glu": True}, {"residual": (5, 8)}, r"residual must have shape \(5, 4\)"),
    ):
        args = LINEAR_ACT.named(Case((5, 16), options=options), torch.float32, device)
        args |= {k: torch.zeros(v, device=device) for k, v in change.items()}
        yield BadSample(tuple(args.values()), ValueError, match, id=name)
    args = LINEAR_ACT.named(Case((5, 16), options={"residual": "same"}), torch.float32, device)
    args["residual"] = args["residual"].to(torch.bfloat16)
    match = "residual must be float32, as x is float32; got bfloat16"
    yield BadSample(tuple(args.values()), TypeError, match, id="a residual of half precision")


@op(
    out="y pre",
    samples=LINEAR_ACT,
    errors=_bad_acts,
    where=(_act_fits, _halves_fit, _residual_fits),
    tol=SUMS,
    flops=lambda x, weight, *rest: _flops(x, weight),
)
def linear_act(
    x: Float[Tensor, "*rows k"],
    weight: Float[Tensor, "n k", same_dtype("x")],
    bias: Float[Tensor, "n", same_dtype("x")] | None = None,
    residual: Float[Tensor, "...", shape(lambda x, weight, glu: (*x.shape[:-1], width(weight, glu)))] | None = None,
    act: Gate | None = None,
    glu: bool = False,
    save: bool = True,
) -> tuple[Tensor, Tensor]:
    """Linear layer, activation and residual: pre = x weight^T + bias, y = act(pre) + residual; rounded once at the end.

    With glu: y = act(a) * b + residual, where a and b are the halves of the columns of pre.

    Args:
        x: the rows of inputs.
        weight: one row for each output; with glu, first the rows of the gate a, then those of b.
        bias: added to each row of pre.
        residual: added to the result; of y's shape, and of x's dtype, or float32 if x has 16 bits.
        act: the activation; None for no activation.
        glu: whether the first half of the outputs is a gate for the second.
        save: whether to return pre, for a backward; pre is returned only with act or glu.

    Returns:
        y [*rows, n] ([*rows, n / 2] with glu), of residual's dtype, or x's without a residual; and pre [*rows, n], of
        x's dtype, or an empty tensor [0].
    """
    v = wide(x)
    pre = with_bias(v @ weight.to(v.dtype).mT, bias)
    a, b = halves(pre) if glu else (pre, None)
    y = a if act is None else ACTS[act].value(a)
    y = y if b is None else y * b
    y = y if residual is None else y + residual.to(y.dtype)
    keep = save and (glu or act is not None)
    saved = rounded(pre, x.dtype) if keep else x.new_empty(0)
    return rounded(y, x.dtype if residual is None else residual.dtype), saved


# ---- products of FP8 ------------------------------------------------------------------------------------------------

FP8_SUMS = (torch.float16, torch.bfloat16, torch.float32)
BLOCK = 128


Float8 = Annotated[torch.dtype, one_of(*FP8)]
Fp8OutDtype = Annotated[torch.dtype, one_of(*FP8_SUMS)]
Rows = Annotated[int, one_of(1, BLOCK)]


def scales_shape(x: Tensor, rows: int) -> tuple[int, int]:
    """The shape of a matrix's scales, one for each block of `rows` by 128."""
    return -(-x.shape[0] // rows), -(-x.shape[1] // BLOCK)


def _fp8_args(d: Draw) -> dict[str, Any]:
    """The case's shape is a's. Options: out, bias, e5m2 (a's dtype), each ("a", "b" or "ab": a scale for each row)."""
    k, n = d.case.shape[-1], d.option("out", 24)
    kind = FP8[1 if d.option("e5m2") else 0]
    each = d.option("each", "")
    scale = lambda name, rows, value: (
        torch.full((1,), value, device=d.device)
        if name not in each
        else torch.linspace(0.5, 1.5, rows, device=d.device) * value
    )
    return {
        "a": d.full().to(kind).view(torch.uint8),
        "b": _drawn(d, "b", (n, k)).to(FP8[0]).view(torch.uint8),
        "a_scale": scale("a", d.case.shape[0], 0.25),
        "b_scale": scale("b", n, 0.3 * max(k, 1) ** -0.5),
        "a_dtype": kind,
        "b_dtype": FP8[0],
        "bias": _drawn(d, "bias", (n,)) if d.option("bias") else None,
        "out_dtype": torch.float32 if d.dtype is torch.float64 else d.dtype,
    }


def _fast_args(d: Draw) -> dict[str, Any]:
    return {**_fp8_args(d), "fast": bool(d.option("fast"))}


SCALED = Maker(
    _fast_args,
    (
        Case((5, 64), options={"bias": True}),
        Case((32, 48), options={"e5m2": True, "out": 32}),
        Case((37, 100), options={"fast": True}),
        Case((20, 32), options={"each": "ab", "bias": True}),
        Case((3, 48), options={"each": "b"}),
        Case((1, 1), options={"out": 1}),
        Case((0, 16), options={"bias": True}),
        Case((5, 0), options={"bias": True}),
        Case((5, 37), "sliced"),
    ),
)


@op(
    samples=SCALED,
    tol=SUMS,
    flops=lambda a, b, *rest: 2 * a.numel() * b.shape[0],
)
def scaled_gemm(
    a: Byte[Tensor, "m k"],
    b: Byte[Tensor, "n k"],
    a_scale: Float32[Tensor, "...", one_or_each_row("a")],
    b_scale: Float32[Tensor, "...", one_or_each_row("b")],
    a_dtype: Float8,
    b_dtype: Float8,
    bias: Float[Tensor, "n"] | None = None,
    out_dtype: Fp8OutDtype = torch.bfloat16,
    fast: bool = False,
) -> Tensor:
    """Product of FP8 matrices with one scale each, or one for each row: y = a_scale * b_scale * a b^T + bias.

    Args:
        a: the float8 bytes of the first matrix.
        b: the float8 bytes of the second matrix; the product uses its transpose.
        a_scale: multiplies a, or each row of a.
        b_scale: multiplies b, or each row of b.
        a_dtype: the float8 dtype of a.
        b_dtype: the float8 dtype of b.
        bias: added to each row of the product.
        out_dtype: the dtype of y.
        fast: allow accumulation with fewer bits than float32, on chips that have it.

    Returns:
        y [m, n], of out_dtype.
    """
    y = (a.view(a_dtype).float() @ b.view(b_dtype).float().mT) * (a_scale.reshape(-1, 1) * b_scale.reshape(1, -1))
    return rounded(with_bias(y, bias), out_dtype)


def _block_args(d: Draw) -> dict[str, Any]:
    """Options: those of _fp8_args; ar and br: the number of rows in a block of a, and of b."""
    args = _fp8_args(d)
    m, k = d.case.shape
    rows = {"a": (d.option("ar", 1), m), "b": (d.option("br", BLOCK), args["b"].shape[0])}
    scale = lambda name: _drawn(d, f"{name} scale", (-(-rows[name][1] // rows[name][0]), -(-k // BLOCK))).float()
    scales = {"a_scale": scale("a").abs(), "b_scale": scale("b").abs() * 0.1}
    given = {**args, **scales, "a_rows": rows["a"][0], "b_rows": rows["b"][0]}
    return {name: given[name] for name in "a b a_scale b_scale a_dtype b_dtype bias a_rows b_rows out_dtype".split()}


BLOCK_SCALED = Maker(
    _block_args,
    (
        Case((5, 64), options={"bias": True}),
        Case((37, 300), options={"br": 1}),
        Case((130, 256), options={"ar": 128, "br": 1, "out": 40}),
        Case((1, 1), options={"out": 1, "ar": 128}),
        Case((0, 16), options={"bias": True}),
        Case((5, 0), options={"bias": True}),
    ),
)


def each(scale: Tensor, rows: int, shape: torch.Size) -> Tensor:
    """Expand the scales of blocks of `rows` by 128 to a scale for each element."""
    return scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(BLOCK, 1)[:, : shape[1]]


@op(
    samples=BLOCK_SCALED,
    tol=SUMS,
    flops=lambda a, b, *rest: 2 * a.numel() * b.shape[0],
)
def block_scaled_gemm(
    a: Byte[Tensor, "m k"],
    b: Byte[Tensor, "n k"],
    a_scale: Float32[Tensor, "_ _", shape(lambda a, a_rows: scales_shape(a, a_rows))],
    b_scale: Float32[Tensor, "_ _", shape(lambda b, b_rows: scales_shape(b, b_rows))],
    a_dtype: Float8,
    b_dtype: Float8,
    bias: Float[Tensor, "n"] | None = None,
    a_rows: Rows = 1,
    b_rows: Rows = 128,
    out_dtype: Fp8OutDtype = torch.bfloat16,
) -> Tensor:
    """Product of FP8 matrices with a scale for each block of 1x128 or 128x128: y = a b^T + bias.

    Args:
        a: the float8 bytes of the first matrix.
        b: the float8 bytes of the second matrix; the product uses its transpose.
        a_scale: multiplies the blocks of a: [ceil(m / a_rows), ceil(k / 128)].
        b_scale: multiplies the blocks of b: [ceil(n / b_rows), ceil(k / 128)].
        a_dtype: the float8 dtype of a.
        b_dtype: the float8 dtype of b.
        bias: added to each row of the product.
        a_rows: the rows of a block of a.
        b_rows: the rows of a block of b.
        out_dtype: the dtype of y.

    Returns:
        y [m, n], of out_dtype.
    """
    x = a.view(a_dtype).float() * each(a_scale, a_rows, a.shape)
    w = b.view(b_dtype).float() * each(b_scale, b_rows, b.shape)
    return rounded(with_bias(x @ w.mT, bias), out_dtype)
