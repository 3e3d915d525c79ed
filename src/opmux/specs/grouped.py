"""Grouped matrix products, as in a mixture of experts: each group of rows is multiplied by a different matrix.

Rows are sorted by group. Group g has the rows from ends[g - 1] (0 for the first group) to ends[g] - 1, and may be
empty. `ends` stays on its device: no implementation copies it to the host.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.contract import FP8, Byte, Float, Float32, Grad, Int32, same_dtype, shape
from ..core.errors import BadArgument
from ..core.spec import BadSample, BadSamples, op
from ._numeric import rounded, wide
from .gemm import SUMS, Float8, Fp8OutDtype
from .samples import Case, Draw, Maker

# ---- samples --------------------------------------------------------------------------------------------------------

# Options: groups, out (columns of the product), tb (trans_b).
CASES = (
    Case((7, 16)),
    Case((37, 100), options={"groups": 5, "out": 24, "tb": True}),
    Case((150, 64), options={"groups": 3, "out": 40}),
    Case((20, 17), options={"groups": 70, "out": 5, "tb": True}),
    Case((1, 1), options={"groups": 1, "out": 1}),
    Case((0, 8), options={"tb": True}),
    Case((5, 0), options={"out": 3}),
    Case((5, 8), options={"out": 0}),
    Case((24, 64), "t", {"tb": True}),
    Case((9, 32), "step"),
    Case((9, 37), "sliced", {"tb": True}),
    Case((6, 16), "expanded"),
)


def _ends(d: Draw) -> Tensor:
    """Random ends; with three groups or more, the second group is empty."""
    rows, groups = d.case.shape[0], d.option("groups", 4)
    cuts = torch.randint(rows + 1, (groups - 1,), generator=torch.Generator().manual_seed(rows)).sort().values
    if groups > 2:
        cuts[1] = cuts[0]
    return torch.cat([cuts, torch.tensor([rows])]).to(d.device, torch.int32)


def _args(d: Draw) -> dict[str, Any]:
    k, n, groups = d.case.shape[1], d.option("out", 24), d.option("groups", 4)
    transposed = bool(d.option("tb"))
    b = d.another("b", (groups, n, k) if transposed else (groups, k, n), d.case.layout, scale=max(k, 1) ** -0.5)
    return {"a": d.full(), "b": b, "ends": _ends(d), "trans_b": transposed}


def _wgrad_args(d: Draw) -> dict[str, Any]:
    return {"a": d.full(), "b": d.another("b", (d.case.shape[0], d.option("out", 24)), d.case.layout), "ends": _ends(d)}


def _bwd_args(d: Draw) -> dict[str, Any]:
    return {"dy": d.another("dy", (d.case.shape[0], d.option("out", 24)), d.case.layout), **_args(d)}


PRODUCTS, WGRADS, PRODUCTS_BWD = (Maker(args, CASES) for args in (_args, _wgrad_args, _bwd_args))


# ---- products -------------------------------------------------------------------------------------------------------


def factors_fit(op: str, a: Tensor, b: Tensor, trans_b: bool) -> None:
    """Raise unless the number of a's columns is b's inner dimension, which depends on `trans_b`."""
    groups, rows, columns = b.shape
    k = a.shape[1]
    if (columns if trans_b else rows) != k:
        sizes = (groups, rows, k) if trans_b else (groups, k, columns)
        expected = f"have shape {sizes}, with trans_b={trans_b} and {{a}} {tuple(a.shape)}"
        raise BadArgument.of(op, "b", expected, str(tuple(b.shape)))


def _unfit(device: torch.device) -> Iterator[BadSample]:
    for transposed, match in (
        (True, r"b must have shape \(4, 24, 64\), with trans_b=True and a \(5, 64\); got \(4, 24, 63\)"),
        (False, r"b must have shape \(4, 64, 24\), with trans_b=False and a \(5, 64\); got \(4, 63, 24\)"),
    ):
        args = PRODUCTS.named(Case((5, 64), options={"tb": transposed}), torch.float32, device)
        args["b"] = args["b"][:, :, :-1] if transposed else args["b"][:, :-1]
        yield BadSample(tuple(args.values()), ValueError, match, id=f"b short, trans_b={transposed}")


UNFIT: BadSamples = _unfit


def _groups_of(rows: int, ends: Tensor) -> Tensor:
    """The index of each row's group; for rows after the last group, the number of groups."""
    row = torch.arange(rows, device=ends.device, dtype=ends.dtype)
    return (row[:, None] >= ends).sum(1)


@op(
    grad="grouped_mm_bwd",
    samples=PRODUCTS,
    errors=UNFIT,
    where=factors_fit,
    tol=SUMS,
    flops=lambda a, b, ends, trans_b=False: 2 * a.shape[0] * b.shape[1] * b.shape[2],
)
def grouped_mm(
    a: Float[Tensor, "rows _"],
    b: Float[Tensor, "groups _ _", same_dtype("a")],
    ends: Int32[Tensor, "groups"],
    trans_b: bool = False,
) -> Tensor:
    """The product of each row with the matrix of its group: y[r] = a[r] b[g], or a[r] b[g]^T with trans_b.

    Args:
        a: [rows, k], sorted by group.
        b: a matrix [k, n] for each group; [n, k] with trans_b.
        ends: the index after the last row of each group: ascending, at most the number of rows.
        trans_b: multiply by the transposes of b.

    Returns:
        y [rows, n], of a's dtype: accumulated in float32 (float64 for float64) and rounded once. Rows after the last
        group, and their gradients, are undefined.
    """
    v, group = wide(a), _groups_of(a.shape[0], ends)
    y = v.new_zeros(a.shape[0], b.shape[1 if trans_b else 2])
    for g in range(b.shape[0]):
        w = b[g].to(v.dtype)
        y = torch.where((group == g)[:, None], v @ (w.mT if trans_b else w), y)
    return rounded(y, a.dtype)


def _scaled_args(d: Draw) -> dict[str, Any]:
    """Draw FP8 bytes with a scale for each row; ignores the option `tb`."""
    (rows, k), n, groups = d.case.shape, d.option("out", 24), d.option("groups", 4)
    kind = FP8[1 if d.option("e5m2") else 0]
    scale = lambda *shape: torch.rand(shape, generator=torch.Generator().manual_seed(rows)).to(d.device) + 0.5
    return {
        "a": d.full().to(kind).view(torch.uint8),
        "b": d.another("b", (groups, n, k), d.case.layout).to(FP8[0]).view(torch.uint8),
        "ends": _ends(d),
        "a_scale": scale(rows),
        "b_scale": scale(groups, n) * max(k, 1) ** -0.5,
        "a_dtype": kind,
        "b_dtype": FP8[0],
        "out_dtype": torch.float32 if d.dtype is torch.float64 else d.dtype,
        "fast": bool(d.option("fast")),
    }


SCALED = Maker(
    _scaled_args,
    (
        Case((37, 100), options={"groups": 5, "fast": True}),
        Case((150, 64), options={"groups": 3, "out": 40, "e5m2": True}),
        Case((20, 17), options={"groups": 70, "out": 5}),
        Case((0, 16)),
        Case((5, 0), options={"out": 3}),
        Case((9, 48), "sliced"),
    ),
)


@op(
    samples=SCALED,
    tol=SUMS,
    flops=lambda a, b, *rest: 2 * a.shape[0] * b.shape[1] * b.shape[2],
)
def scaled_grouped_mm(
    a: Byte[Tensor, "rows k"],
    b: Byte[Tensor, "groups n k"],
    ends: Int32[Tensor, "groups"],
    a_scale: Float32[Tensor, "rows"],
    b_scale: Float32[Tensor, "groups n"],
    a_dtype: Float8,
    b_dtype: Float8,
    out_dtype: Fp8OutDtype = torch.bfloat16,
    fast: bool = False,
) -> Tensor:
    """grouped_mm of FP8 matrices with a scale for each row: y[r, j] = a_scale[r] b_scale[g, j] (a[r] . b[g, j]).

    Args:
        a: the float8 bytes of the rows, sorted by group.
        b: the float8 bytes of a matrix for each group; the product uses its transpose.
        ends: the index after the last row of each group: ascending, at most the number of rows.
        a_scale: multiplies the rows of a.
        b_scale: multiplies the rows of b.
        a_dtype: the float8 dtype of a.
        b_dtype: the float8 dtype of b.
        out_dtype: the dtype of y.
        fast: allow accumulation with fewer bits than float32, on chips that have it.

    Returns:
        y [rows, n], of out_dtype. Rows after the last group are undefined.
    """
    x = a.view(a_dtype).float() * a_scale.reshape(-1, 1)
    # reshape, not indexing: torch computes wrong products with an indexed sparse tensor
    w = b.view(b_dtype).float() * b_scale.reshape(*b.shape[:2], 1)
    return rounded(grouped_mm.reference(x, w, ends, True), out_dtype)


@op(
    out="c",
    samples=WGRADS,
    tol=SUMS,
    flops=lambda a, b, ends: 2 * a.shape[0] * a.shape[1] * b.shape[1],
)
def grouped_mm_wgrad(
    a: Float[Tensor, "rows m"], b: Float[Tensor, "rows n", same_dtype("a")], ends: Int32[Tensor, "groups"]
) -> Tensor:
    """The gradient of the matrices of grouped_mm: c[g] = a_g^T b_g, where a_g and b_g are the rows of group g.

    For y = grouped_mm(x, w, ends): dw = grouped_mm_wgrad(x, dy, ends); with trans_b, grouped_mm_wgrad(dy, x, ends).

    Args:
        a: [rows, m], sorted by group.
        b: [rows, n], in the same order.
        ends: as in grouped_mm.

    Returns:
        c [groups, m, n], of a's dtype: accumulated in float32 (float64 for float64) and rounded once; zeros for empty
        groups.
    """
    v, w, group = wide(a), wide(b), _groups_of(a.shape[0], ends)
    products = []
    for g in range(ends.shape[0]):
        in_group = (group == g)[:, None]
        products.append(torch.where(in_group, v, 0.0).mT @ torch.where(in_group, w, 0.0))
    return rounded(torch.stack(products) if products else v.new_zeros(0, a.shape[1], b.shape[1]), a.dtype)


def _product_shape(a: Tensor, b: Tensor, trans_b: bool) -> tuple[int, ...]:
    return a.shape[0], b.shape[1 if trans_b else 2]


def backward_of(
    mm: Callable[..., Tensor],
    wgrad: Callable[..., Tensor],
    dy: Tensor,
    a: Tensor,
    b: Tensor,
    ends: Tensor,
    trans_b: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of grouped_mm, from an implementation's grouped_mm (`mm`) and grouped_mm_wgrad (`wgrad`)."""
    g = dy.to(a.dtype)
    db = wgrad(g, a, ends) if trans_b else wgrad(a, g, ends)
    return mm(g, b, ends, not trans_b), db


@op(
    out="da db",
    samples=PRODUCTS_BWD,
    where=factors_fit,
    tol=SUMS,
    flops=lambda dy, a, b, ends, trans_b=False: 4 * a.shape[0] * b.shape[1] * b.shape[2],
)
def grouped_mm_bwd(
    dy: Grad[Tensor, "rows _", shape(_product_shape)],
    a: Float[Tensor, "rows _"],
    b: Float[Tensor, "groups _ _", same_dtype("a")],
    ends: Int32[Tensor, "groups"],
    trans_b: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gradients of grouped_mm: da[r] = dy[r] b[g]^T, db[g] = a_g^T dy_g.

    With trans_b: da[r] = dy[r] b[g], db[g] = dy_g^T a_g.

    Args:
        dy: the gradient of y.
        a: as in the forward.
        b: as in the forward.
        ends: as in the forward.
        trans_b: as in the forward.

    Returns:
        da, like a, and db, like b.
    """
    return backward_of(grouped_mm.reference, grouped_mm_wgrad.reference, dy, a, b, ends, trans_b)
