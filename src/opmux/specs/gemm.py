"""Matrix products: linear, forward and backward; gemm with what may follow it; products of FP8 with scales.

They add up in float32 (float64 for float64 inputs) and round once, into fresh contiguous results. Whether a chip may
round float32 factors to TF32 is torch's setting (`torch.backends.cuda.matmul`), here as there.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Tol, op
from ._numeric import FLOATS, check_dtype, dtype_name, rounded, wide
from .activation import ACTS
from .samples import Case, Draw, Maker, errors

# Products are added up in another order; parts of a sum may be rounded to the inputs' dtype before they are added.
SUMS = {
    torch.float32: Tol(1e-5, 1e-4),
    torch.float16: Tol(2e-3, 1e-2),
    torch.bfloat16: Tol(1.6e-2, 5e-2),
}


def fits(x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor | None) -> bool:
    """Whether all is right, in as few questions as will do: a library's call is not much longer."""
    shape, outs, dtype, device = x.shape, weight.shape, x.dtype, x.device
    if not shape or len(outs) != 2 or shape[-1] != outs[1] or weight.dtype != dtype or weight.device != device:
        return False
    if bias is not None and (bias.shape != outs[:1] or bias.dtype != dtype or bias.device != device):
        return False
    if dy is not None and (dy.shape != (*shape[:-1], outs[0]) or dy.dtype not in FLOATS or dy.device != device):
        return False
    return dtype in FLOATS


def check(op: str, x: Tensor, weight: Tensor, bias: Tensor | None = None, dy: Tensor | None = None) -> None:
    """Refuse what does not fit together: shapes, dtypes (but a gradient's, which may be any float), devices."""
    if fits(x, weight, bias, dy):
        return
    if x.dim() == 0:
        raise ValueError(f"{op}: x must have at least one dimension, that of weight's inputs; got a 0-dim tensor")
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must be [out, in]; got {tuple(weight.shape)}")
    n, k = weight.shape[0], x.shape[-1]
    expected = (
        ("x", x, x.shape, ""),
        ("weight", weight, (n, k), f"the last dimension of x {tuple(x.shape)} being its inputs"),
        ("bias", bias, (n,), f"the outputs of weight {tuple(weight.shape)}"),
        ("dy", dy, (*x.shape[:-1], n), f"the leading dimensions of x {tuple(x.shape)} and the outputs of weight"),
    )
    for name, t, wanted, what in expected:
        if t is None:
            continue
        check_dtype(op, name, t.dtype)
        if t.shape != wanted:
            raise ValueError(f"{op}: {name} must have shape {tuple(wanted)}, {what}; got {tuple(t.shape)}")
        if t.device != x.device:
            raise ValueError(f"{op}: {name} must be on {x.device}, the device of x; got {t.device}")
        if t.dtype != x.dtype and name != "dy":
            raise ValueError(f"{op}: {name} must be {dtype_name(x.dtype)}, the dtype of x; got {dtype_name(t.dtype)}")


def _args(d: Draw) -> dict[str, Any]:
    """Options: out (the number of outputs; by default as many as inputs), no_bias."""
    k = d.case.shape[-1]
    n = d.option("out", k)
    drawn = lambda name, shape: Draw(
        Case(shape, d.case.layout, {"of": d.case.id, "name": name}), d.dtype, d.device
    ).full(max(k, 1) ** -0.5)
    bias = None if d.option("no_bias") else drawn("bias", (n,))
    return {"x": d.full(), "weight": drawn("weight", (n, k)), "bias": bias}


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
    errors=errors(LINEAR, x="0-dim ints", weight="short ints away dtype", bias="short ints away dtype"),
    tol=SUMS,
    flops=_flops,
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x weight^T + bias, with weight [out, in]."""
    check("linear", x, weight, bias)
    v = wide(x)
    y = v @ weight.to(v.dtype).mT
    return rounded(y if bias is None else y + bias.to(v.dtype), x.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    of = _args(d)
    shape = (*d.case.shape[:-1], of["weight"].shape[0])
    return {"dy": Draw(Case(shape, d.case.layout), d.dtype, d.device).grad(), "x": of["x"], "weight": of["weight"]}


LINEAR_BWD = Maker(_bwd_args, CASES)


@op(
    out="dx dweight dbias",
    samples=LINEAR_BWD,
    errors=errors(LINEAR_BWD, dy="short few ints away", x="0-dim", weight="short dtype"),
    tol=SUMS,
    flops=lambda dy, x, weight: 2 * _flops(x, weight),
)
def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx = dy weight, dweight = dy^T x, dbias = sum(dy), both summed over all leading dimensions."""
    check("linear_bwd", x, weight, dy=dy)
    v = wide(x)
    g, w = dy.to(v.dtype), weight.to(v.dtype)
    (n, k), m = w.shape, math.prod(x.shape[:-1])
    rows = g.reshape(m, n)
    dweight, dbias = rows.mT @ v.reshape(m, k), rows.sum(0)
    return rounded(g @ w, x.dtype), rounded(dweight, weight.dtype), rounded(dbias, weight.dtype)


# ---- gemm -----------------------------------------------------------------------------------------------------------


def check_matrices(op: str, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    """Refuse what is no product of two matrices of one dtype and device; the sizes M, N, K where it is."""
    sa, sb, dtype = a.shape, b.shape, a.dtype
    if len(sa) == len(sb) == 2 and dtype is b.dtype and dtype in FLOATS and a.device == b.device:
        m, k = sa
        other, n = sb
        if trans_a:
            m, k = k, m
        if trans_b:
            other, n = n, other
        if k == other:
            return m, n, k
    for name, t in (("a", a), ("b", b)):
        check_dtype(op, name, t.dtype)
        if t.dim() != 2:
            raise ValueError(f"{op}: {name} must be a matrix; got shape {tuple(t.shape)}")
    if b.dtype is not dtype:
        raise ValueError(f"{op}: b must be {dtype_name(dtype)}, the dtype of a; got {dtype_name(b.dtype)}")
    if b.device != a.device:
        raise ValueError(f"{op}: b must be on {a.device}, the device of a; got {b.device}")
    k = sa[0] if trans_a else sa[1]
    wanted = (sb[0], k) if trans_b else (k, sb[1])
    forms = f"a{'^T' if trans_a else ''} b{'^T' if trans_b else ''}"
    raise ValueError(f"{op}: b must have shape {wanted}, as {forms} with a {tuple(sa)}; got {tuple(sb)}")


def check_beside(op: str, name: str, t: Tensor | None, shape: tuple[int, ...], what: str, a: Tensor) -> None:
    """Refuse a further tensor (any float) that has not this shape, or is not where a is."""
    if t is None or (t.shape == shape and t.dtype in FLOATS and t.device == a.device):
        return
    check_dtype(op, name, t.dtype)
    if t.shape != shape:
        raise ValueError(f"{op}: {name} must have shape {shape}, {what}; got {tuple(t.shape)}")
    raise ValueError(f"{op}: {name} must be on {a.device}, the device of a; got {t.device}")


def check_gemm(
    op: str,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    pre: Tensor | None = None,
) -> tuple[int, int, int]:
    m, n, k = check_matrices(op, a, b, trans_a, trans_b)
    if bias is not None:
        check_beside(op, "bias", bias, (n,), "a number for each column of the product", a)
    if pre is not None:
        check_beside(op, "pre", pre, (m, n), "that of the product", a)
    if out_dtype is not None and out_dtype not in FLOATS:
        check_dtype(op, "out_dtype", out_dtype)
    return m, n, k


def product(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, alpha: float) -> Tensor:
    """alpha op(a) op(b), not rounded yet."""
    x, w = wide(a), wide(b)
    y = (x.mT if trans_a else x) @ (w.mT if trans_b else w)
    return y if alpha == 1.0 else y * alpha


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.to(y.dtype)


def gemm_flops(a: Tensor, b: Tensor, *rest: Any) -> int:
    """2 M N K: the first flag among the further arguments says which side of a is K."""
    turned = next((v for v in rest if isinstance(v, bool)), False)
    return 2 * a.numel() * b.numel() // max(a.shape[0 if turned else 1], 1)


def _gemm_args(d: Draw) -> dict[str, Any]:
    """The case's shape is that of a. Options: out (columns of the product), ta, tb, bias, alpha, to (its dtype)."""
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
    """A tensor beside the first, laid out as the case says where it is a matrix."""
    layout = d.case.layout if len(shape) > 1 else "packed"
    return Draw(Case(shape, layout, {"of": d.case.id, "name": name}), d.dtype, d.device).full(scale)


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
GEMM_WRONG = {"a": "ints", "b": "ints away dtype", "bias": "short ints away", "out_dtype": "int8"}


def wrong_gemm(good: Maker, **wrong: str) -> BadSamples:
    """Bad samples of b^T (5, 64) by (64, 64), and factors that do not fit, or are no matrices."""
    options = {"tb": True, "bias": True, "out": 64}

    def bad(device: torch.device) -> Iterator[BadSample]:
        yield from errors(good, options, **wrong)(device)
        ways: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
            "short": (lambda t: t[:, :-1], r"b must have shape \(64, 64\), as a b\^T with a \(5, 64\); got \(64, 63\)"),
            "flat": (lambda t: t[0], r"b must be a matrix; got shape \(64,\)"),
        }
        for way, (spoil, says) in ways.items():
            args = good.named(Case((5, 64), options=options), torch.float32, device)
            args["b"] = spoil(args["b"])
            yield BadSample(tuple(args.values()), ValueError, says, id=f"b {way}")

    return bad


@op(samples=GEMM, errors=wrong_gemm(GEMM, **GEMM_WRONG), tol=SUMS, flops=gemm_flops)
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """y = alpha op(a) op(b) + bias, with op(x) = x^T where `trans_` says so; of a's dtype, or out_dtype."""
    check_gemm("gemm", a, b, bias, trans_a, trans_b, out_dtype)
    return rounded(with_bias(product(a, b, trans_a, trans_b, alpha), bias), out_dtype or a.dtype)


@op(out="y pre", samples=GEMM, errors=wrong_gemm(GEMM, **GEMM_WRONG), tol=SUMS, flops=gemm_flops)
def gemm_gelu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """pre = alpha op(a) op(b) + bias and y = gelu(pre), of what is not rounded yet; gelu by tanh."""
    check_gemm("gemm_gelu", a, b, bias, trans_a, trans_b, out_dtype)
    pre = with_bias(product(a, b, trans_a, trans_b, alpha), bias)
    dtype = out_dtype or a.dtype
    return rounded(ACTS["gelu"].value(pre), dtype), rounded(pre, dtype)


def _dgelu_args(d: Draw) -> dict[str, Any]:
    of = _gemm_args(d)
    m = d.case.shape[1 if d.option("ta") else 0]
    pre = _drawn(d, "pre", (m, d.option("out", 24)))
    return {"a": of.pop("a"), "b": of.pop("b"), "pre": pre, **{k: v for k, v in of.items() if k != "bias"}}


DGELU = Maker(_dgelu_args, tuple(c for c in GEMM_CASES if c.shape != (5, 0)))


@op(
    samples=DGELU,
    errors=wrong_gemm(DGELU, a="ints", b="ints away dtype", pre="short few ints away", out_dtype="int8"),
    tol=SUMS,
    flops=gemm_flops,
)
def gemm_dgelu(
    a: Tensor,
    b: Tensor,
    pre: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """y = alpha op(a) op(b) * gelu'(pre); gelu by tanh."""
    check_gemm("gemm_dgelu", a, b, None, trans_a, trans_b, out_dtype, pre)
    y = product(a, b, trans_a, trans_b, alpha)
    return rounded(y * ACTS["gelu"].slope(pre.to(y.dtype)), out_dtype or a.dtype)


def check_sum(op: str, c: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    m, n, k = check_matrices(op, a, b, trans_a, trans_b)
    check_beside(op, "c", c, (m, n), "that of the product", a)
    return m, n, k


def _sum_args(d: Draw) -> dict[str, Any]:
    """Options beside gemm's: beta, wider (c in float32)."""
    of = _gemm_args(d)
    m = d.case.shape[1 if d.option("ta") else 0]
    c = _drawn(d, "c", (m, d.option("out", 24))).contiguous()
    beta = d.option("beta", 1.0)
    return {
        "c": (c if beta else c.fill_(float("nan"))).to(_wider(d) if d.option("wider") else d.dtype),
        "a": of["a"], "b": of["b"], "trans_a": of["trans_a"], "trans_b": of["trans_b"], "alpha": of["alpha"],
        "beta": beta,
    }  # fmt: skip


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
    errors=wrong_gemm(SUM, c="short few ints away", a="ints", b="ints away dtype"),
    tol=SUMS,
    flops=lambda c, a, b, *rest: gemm_flops(a, b, *rest),
)
def gemm_add_(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    """c = alpha op(a) op(b) + beta c, in place; with beta 0, what was in c does not matter."""
    check_sum("gemm_add_", c, a, b, trans_a, trans_b)
    y = product(a, b, trans_a, trans_b, alpha)
    c.copy_(y if beta == 0.0 else y + c.to(y.dtype) * beta)


# ---- products of FP8 ------------------------------------------------------------------------------------------------

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FP8_SUMS = (torch.float16, torch.bfloat16, torch.float32)
BLOCK = 128


def check_fp8(
    op: str,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> tuple[int, int, int]:
    """Refuse what is no product a b^T of FP8 matrices with float32 scales; the sizes M, N, K where it is."""
    for name, t, dtype in (("a", a, a_dtype), ("b", b, b_dtype)):
        if t.dtype is not torch.uint8:
            raise TypeError(f"{op}: {name} must be uint8, the bytes of FP8; got {dtype_name(t.dtype)}")
        if dtype not in FP8:
            raise TypeError(f"{op}: {name}_dtype must be float8_e4m3fn or float8_e5m2; got {dtype_name(dtype)}")
        if t.dim() != 2:
            raise ValueError(f"{op}: {name} must be a matrix; got shape {tuple(t.shape)}")
    (m, k), n = a.shape, b.shape[0]
    if b.shape[1] != k:
        raise ValueError(f"{op}: b must have shape {(n, k)}, as a b^T with a {(m, k)}; got {tuple(b.shape)}")
    for name, t in (("b", b), ("a_scale", a_scale), ("b_scale", b_scale)):
        if t.device != a.device:
            raise ValueError(f"{op}: {name} must be on {a.device}, the device of a; got {t.device}")
        if t is not b and t.dtype is not torch.float32:
            raise TypeError(f"{op}: {name} must be float32; got {dtype_name(t.dtype)}")
    check_beside(op, "bias", bias, (n,), "a number for each column of the product", a)
    if out_dtype not in FP8_SUMS:
        raise TypeError(f"{op}: out_dtype must be float16, bfloat16 or float32; got {dtype_name(out_dtype)}")
    return m, n, k


def check_scaled(
    op: str,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> tuple[int, int, int]:
    sizes = check_fp8(op, a, b, a_scale, b_scale, a_dtype, b_dtype, bias, out_dtype)
    for name, t in (("a_scale", a_scale), ("b_scale", b_scale)):
        if t.numel() != 1:
            raise ValueError(f"{op}: {name} must have one element; got shape {tuple(t.shape)}")
    return sizes


def check_block_scaled(
    op: str,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    a_rows: int,
    b_rows: int,
    out_dtype: torch.dtype,
) -> tuple[int, int, int]:
    m, n, k = check_fp8(op, a, b, a_scale, b_scale, a_dtype, b_dtype, bias, out_dtype)
    for name, t, rows, length in (("a", a_scale, a_rows, m), ("b", b_scale, b_rows, n)):
        if rows not in (1, BLOCK):
            raise ValueError(f"{op}: {name}_rows must be 1 or {BLOCK}; got {rows}")
        wanted = (-(-length // rows), -(-k // BLOCK))
        if t.shape != wanted:
            what = f"one for each {rows}x{BLOCK} of {name}"
            raise ValueError(f"{op}: {name}_scale must have shape {wanted}, {what}; got {tuple(t.shape)}")
    return m, n, k


def _fp8_args(d: Draw) -> dict[str, Any]:
    """The case's shape is that of a. Options: out, bias, e5m2 (of a)."""
    k, n = d.case.shape[-1], d.option("out", 24)
    kind = FP8[1 if d.option("e5m2") else 0]
    return {
        "a": d.full().to(kind).view(torch.uint8),
        "b": _drawn(d, "b", (n, k)).to(FP8[0]).view(torch.uint8),
        "a_scale": torch.full((1,), 0.25, device=d.device),
        "b_scale": torch.full((1,), 0.3 * max(k, 1) ** -0.5, device=d.device),
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
        Case((1, 1), options={"out": 1}),
        Case((0, 16), options={"bias": True}),
        Case((5, 0), options={"bias": True}),
        Case((5, 37), "sliced"),
    ),
)


def wrong_fp8(good: Maker, *more: tuple[str, Callable[[Any], Any], str]) -> BadSamples:
    ways: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
        ("a", lambda t: t.float(), "a must be uint8, the bytes of FP8; got float32"),
        ("b_dtype", lambda t: torch.int8, "b_dtype must be float8_e4m3fn or float8_e5m2; got int8"),
        ("b", lambda t: t[:, :-1], r"b must have shape \(24, 64\), as a b\^T with a \(5, 64\); got \(24, 63\)"),
        ("b", lambda t: t[0], r"b must be a matrix; got shape \(64,\)"),
        ("a_scale", lambda t: t.half(), "a_scale must be float32; got float16"),
        ("b_scale", lambda t: t.to("meta" if t.is_cpu else "cpu"), "b_scale must be on .*, the device of a"),
        ("bias", lambda t: t[:-1], r"bias must have shape \(24,\).*got \(23,\)"),
        ("out_dtype", lambda t: torch.int8, "out_dtype must be float16, bfloat16 or float32; got int8"),
        *more,
    )

    def bad(device: torch.device) -> Iterator[BadSample]:
        for name, spoil, says in ways:
            args = good.named(Case((5, 64), options={"bias": True}), torch.float32, device)
            args[name] = spoil(args[name])
            kind = TypeError if re.search("must be (float|uint8)", says) else ValueError
            yield BadSample(tuple(args.values()), kind, says, id=f"{name}: {says}")

    return bad


@op(
    samples=SCALED,
    errors=wrong_fp8(SCALED, ("a_scale", lambda t: t.expand(2), "a_scale must have one element; got shape")),
    tol=SUMS,
    flops=lambda a, b, *rest: 2 * a.numel() * b.shape[0],
)
def scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fast: bool = False,
) -> Tensor:
    """y = a_scale b_scale a b^T + bias, with a [M, K] and b [N, K] bytes of FP8, and a float32 each for the scales.

    `fast` allows sums of fewer bits than float32, where a chip has them.
    """
    check_scaled("scaled_gemm", a, b, a_scale, b_scale, a_dtype, b_dtype, bias, out_dtype)
    y = (a.view(a_dtype).float() @ b.view(b_dtype).float().mT) * (a_scale.reshape(()) * b_scale.reshape(()))
    return rounded(with_bias(y, bias), out_dtype)


def _block_args(d: Draw) -> dict[str, Any]:
    """Options beside those of FP8: ar, br (the rows of a block of a and of b)."""
    of = _fp8_args(d)
    m, k = d.case.shape
    rows = {"a": (d.option("ar", 1), m), "b": (d.option("br", BLOCK), of["b"].shape[0])}
    scale = lambda name: _drawn(d, f"{name} scale", (-(-rows[name][1] // rows[name][0]), -(-k // BLOCK))).float()
    return {
        "a": of["a"], "b": of["b"], "a_scale": scale("a").abs(), "b_scale": scale("b").abs() * 0.1,
        "a_dtype": of["a_dtype"], "b_dtype": of["b_dtype"], "bias": of["bias"],
        "a_rows": rows["a"][0], "b_rows": rows["b"][0], "out_dtype": of["out_dtype"],
    }  # fmt: skip


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
    """The scale of each element: scales are one for each block of `rows` by 128."""
    return scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(BLOCK, 1)[:, : shape[1]]


@op(
    samples=BLOCK_SCALED,
    errors=wrong_fp8(
        BLOCK_SCALED,
        ("a_scale", lambda t: t[:-1], r"a_scale must have shape \(5, 1\), one for each 1x128 of a; got \(4, 1\)"),
        ("b_rows", lambda v: 64, "b_rows must be 1 or 128; got 64"),
    ),
    tol=SUMS,
    flops=lambda a, b, *rest: 2 * a.numel() * b.shape[0],
)
def block_scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None = None,
    a_rows: int = 1,
    b_rows: int = 128,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """y = a b^T + bias, with a [M, K] and b [N, K] bytes of FP8; each 1x128 or 128x128 has a scale in float32."""
    check_block_scaled("block_scaled_gemm", a, b, a_scale, b_scale, a_dtype, b_dtype, bias, a_rows, b_rows, out_dtype)
    x = a.view(a_dtype).float() * each(a_scale, a_rows, a.shape)
    w = b.view(b_dtype).float() * each(b_scale, b_rows, b.shape)
    return rounded(with_bias(x @ w.mT, bias), out_dtype)
