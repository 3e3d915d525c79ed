"""Mixture of experts: sort the rows of tokens by expert, undo the sort, and pad blocks of rows.

Each of T tokens is copied to topk experts. A row map says where each copy goes: row_map[k * T + t] is the row of token
t's k-th copy among the rows sorted by expert, or -1 if the copy was dropped. An index beyond the last row also means
dropped. The map is int32, with all first copies before all second copies, as in NVIDIA's format.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import (
    FLOATS,
    FP8,
    AnyGrad,
    AnyTensor,
    Float,
    Index,
    Int32,
    at_least,
    dtypes,
    each,
    same_dtype,
)
from ..core.errors import BadArgument
from ..core.rules import same_len
from ..core.spec import Tol, op
from ._numeric import wide
from .quant import FP8_MAX
from .samples import Case, Change, Draw, Maker, bad_samples

NUMBERS = dtypes((*FLOATS, *FP8))
MOVED = dtypes((*FLOATS, *FP8, torch.uint8))
EXACT = {torch.int32: Tol(0, 0)}
# Sums of a few rows in which each addition is rounded to 16 bits; at most one addition rounds differently.
SUMS = {torch.float16: Tol(2e-3, 4e-3), torch.bfloat16: Tol(1.6e-2, 3e-2), torch.float32: Tol(1e-5, 1e-5)}


# ---- arguments ------------------------------------------------------------------------------------------------------

RowMap = Int32[Tensor, "topk*tokens"]
Rows = AnyTensor[Tensor, "rows n", NUMBERS]
Probs = Float[Tensor, "tokens topk"]
Count = Annotated[int, at_least(0)]
TopK = Annotated[int, at_least(1)]
Sizes = Annotated[list[int], each(at_least(0))]
NewSizes = Annotated[list[int], each(at_least(0)), same_len("rows")]


# ---- permutation ----------------------------------------------------------------------------------------------------


def drawn_indices(d: Draw, tokens: int, topk: int) -> Tensor:
    """Draw topk different experts for each token, out of topk + 2."""
    experts = topk + 2
    scores = Draw(Case((tokens, experts), options={"of": d.case.id}), torch.float32, torch.device("cpu")).full()
    return scores.argsort(-1)[:, :topk].to(d.device, torch.int32)


TOKENS = (
    Case((5, 64)),
    Case((7, 37), options={"topk": 3}),
    Case((6, 100), "step", {"topk": 2, "rows": 8}),
    Case((4, 16), "t", {"topk": 2, "probs": True}),
    Case((5, 40), "sliced", {"topk": 3, "rows": 9, "probs": True}),
    Case((6, 40), options={"topk": 5, "probs": True, "round_once": True}),
    Case((1, 1), options={"probs": True}),
    Case((0, 8), options={"topk": 2}),
    Case((3, 0), options={"topk": 2, "probs": True}),
)


def _map_args(d: Draw) -> dict[str, Any]:
    return {"indices": drawn_indices(d, d.case.shape[0], d.option("topk", 1)), "rows": d.option("rows", 0)}


def _spread_args(d: Draw) -> dict[str, Any]:
    x, topk = d.full(), d.option("topk", 1)
    row_map = moe_row_map.reference(**_map_args(d))
    return {"x": x, "row_map": row_map, "topk": topk, "rows": d.option("rows", 0)}


def collect_args(d: Draw) -> dict[str, Any]:
    tokens, topk = d.case.shape[0], d.option("topk", 1)
    rows = d.option("rows", 0) or tokens * topk
    x = d.another("rows", (rows, d.case.shape[1]), d.case.layout)
    probs = d.another("probs", (tokens, topk)).float().abs() if d.option("probs") else None
    once = bool(d.option("round_once"))
    return {"x": x, "row_map": moe_row_map.reference(**_map_args(d)), "probs": probs, "topk": topk, "round_once": once}


def _spread_bwd_args(d: Draw) -> dict[str, Any]:
    args = collect_args(d)
    return {"dy": args["x"], "row_map": args["row_map"], "topk": args["topk"]}


def _collect_bwd_args(d: Draw) -> dict[str, Any]:
    return {"dy": d.full(), **collect_args(d)}


MAPS, SPREADS, SPREADS_BWD = (Maker(args, TOKENS) for args in (_map_args, _spread_args, _spread_bwd_args))
COLLECTS, COLLECTS_BWD = (Maker(args, TOKENS) for args in (collect_args, _collect_bwd_args))


@op(out="row_map", samples=MAPS, tol=EXACT)
def moe_row_map(indices: Index[Tensor, "tokens topk"], rows: Count = 0) -> Tensor:
    """The row map of tokens with given experts: rows are sorted by expert, and for each expert by token.

    Args:
        indices: the experts of each token.
        rows: keep only this many rows and drop the later ones; 0 keeps all.

    Returns:
        int32 [topk * tokens]: row_map[k * tokens + t] is the row of token t's k-th copy, or -1 if it was dropped.
    """
    tokens, topk = indices.shape
    order = torch.sort(indices.reshape(-1), stable=True).indices
    return row_map_of(order, tokens, topk, rows)


def row_map_of(order: Tensor, tokens: int, topk: int, rows: int) -> Tensor:
    row = torch.arange(order.shape[0], device=order.device, dtype=torch.int32)
    row = torch.where(row < (rows or order.shape[0]), row, -1)
    index = order % topk * tokens + order // topk
    return torch.empty_like(row).scatter_(0, index, row)


@op(grad="moe_spread_bwd", samples=SPREADS)
def moe_spread(x: AnyTensor[Tensor, "tokens n", MOVED], row_map: RowMap, topk: TopK = 1, rows: Count = 0) -> Tensor:
    """Copy each token to its rows: y[row_map[k * tokens + t]] = x[t].

    Args:
        x: the tokens.
        row_map: the result of moe_row_map; no row occurs twice.
        topk: the number of copies of a token.
        rows: the number of rows of y; 0 is tokens * topk.

    Returns:
        y [rows, n], of x's dtype; rows that no copy goes to are zeros.
    """
    y = x.new_zeros(rows or x.shape[0] * topk, x.shape[1])
    if not y.numel():
        return y
    # dropped copies go to an extra row, which is cut off
    index = torch.where(_missing(row_map, y.shape[0]), y.shape[0], row_map).long()
    extended = torch.cat([_raw(y), _raw(y[:1])])
    extended = extended.index_copy(0, index, _raw(x).repeat(topk, 1))
    return _as(extended[:-1].contiguous(), x.dtype)


def _missing(rows: Tensor, count: int) -> Tensor:
    return (rows < 0) | (rows >= count)


def _raw(x: Tensor) -> Tensor:
    """View x as bytes if torch cannot index its dtype."""
    return x.view(torch.uint8) if x.dtype in FP8 else x


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `_raw`. If x already has this dtype, return x itself: autograd cannot differentiate `x.view(dtype)`."""
    return x if x.dtype is dtype else x.view(dtype)


@op(out="dx", samples=SPREADS_BWD, tol=SUMS)
def moe_spread_bwd(dy: Rows, row_map: RowMap, topk: TopK = 1) -> Tensor:
    """The gradient of moe_spread: dx[t] = the sum of dy[row_map[k * tokens + t]] over k, rounded as in moe_collect.

    Args:
        dy: the gradient of y.
        row_map: as in the forward.
        topk: as in the forward.

    Returns:
        dx [tokens, n], of dy's dtype.
    """
    return collected(dy, row_map, None, topk, False)


@op(grad="moe_collect_bwd", samples=COLLECTS, tol=SUMS)
def moe_collect(
    x: Rows, row_map: RowMap, probs: Probs | None = None, topk: TopK = 1, round_once: bool = False
) -> Tensor:
    """Add up the copies of each token: y[t] = the sum of probs[t, k] * x[row_map[k * tokens + t]] over k.

    Dropped copies are left out. Unless round_once is set, the op rounds as NVIDIA's kernels do: probs, each product and
    each partial sum are rounded to x's dtype (float16 for float8). For float8 without probs, the sum is divided by
    topk.

    Args:
        x: the rows, sorted by expert.
        row_map: the result of moe_row_map.
        probs: multiplies each copy; None is 1.
        topk: the number of copies of a token.
        round_once: compute in float32 (float64 for float64) and round only the final sum.

    Returns:
        y [tokens, n], of x's dtype.
    """
    return collected(x, row_map, probs, topk, round_once)


def working(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype in FP8 else dtype


def _working(x: Tensor, round_once: bool) -> torch.dtype:
    """The dtype in which rows are summed."""
    return wide(x).dtype if round_once else working(x.dtype)


def finished(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert x to `dtype`; clamp values for float8, which has no infinity."""
    return x.clamp(-FP8_MAX[dtype], FP8_MAX[dtype]).to(dtype) if dtype in FP8 else x.to(dtype)


def _picked(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]; zeros for dropped copies."""
    if not x.shape[0]:
        return x.new_zeros(rows.shape[0], x.shape[1]).to(working(x.dtype))
    values = _as(_raw(x)[rows.clamp(0, x.shape[0] - 1).long()], x.dtype).to(working(x.dtype))
    return torch.where(_missing(rows, x.shape[0])[:, None], 0, values)


def collected(x: Tensor, row_map: Tensor, probs: Tensor | None, topk: int, round_once: bool) -> Tensor:
    total = None
    for k, rows in enumerate(row_map.view(topk, -1)):
        one = _picked(x, rows).to(_working(x, round_once))
        if probs is not None:
            weighted = one * probs[:, k : k + 1].to(one.dtype)
            one = torch.where(_missing(rows, x.shape[0])[:, None], 0, weighted)
        total = one if total is None else total + one
    assert total is not None
    if probs is None and x.dtype in FP8:
        total = total / topk
    return finished(total, x.dtype)


@op(out="dx dprobs", samples=COLLECTS_BWD, tol=SUMS)
def moe_collect_bwd(
    dy: AnyGrad[Tensor, "tokens n", NUMBERS, same_dtype("x")],
    x: Rows,
    row_map: RowMap,
    probs: Probs | None = None,
    topk: TopK = 1,
    round_once: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gradients of moe_collect.

    With r = row_map[k * tokens + t]: dx[r] = probs[t, k] * dy[t], dprobs[t, k] = dy[t] . x[r], summed in float32
    (float64 for float64).

    Args:
        dy: the gradient of y.
        x: as in the forward.
        row_map: as in the forward.
        probs: as in the forward.
        topk: as in the forward.
        round_once: as in the forward.

    Returns:
        dx, like x: 0 in rows without a token. dprobs [tokens, topk], of probs' dtype: 0 for dropped copies; float32
        zeros if probs is None.
    """
    tokens, dtype = row_map.shape[0] // topk, _working(x, round_once)
    dx, slopes = torch.zeros_like(_raw(x), memory_format=torch.contiguous_format), []
    extended = torch.cat([dx, dx.new_zeros(1, x.shape[1])])
    g = dy.to(dtype)
    for k, rows in enumerate(row_map.view(topk, -1)):
        one = g if probs is None else g * probs[:, k : k + 1].to(dtype)
        index = torch.where(_missing(rows, x.shape[0]), x.shape[0], rows).long()
        extended = extended.index_copy(0, index, _raw(finished(one, x.dtype)))
        if probs is not None:
            slopes.append((wide(g) * wide(_picked(x, rows))).sum(-1))
    dx = _as(extended[:-1].contiguous(), x.dtype)
    if probs is None:
        return dx, torch.zeros(tokens, topk, dtype=torch.float32, device=x.device)
    return dx, torch.stack(slopes, 1).to(probs.dtype)


# ---- blocks of rows -------------------------------------------------------------------------------------------------


def blocks_fit(op: str, x: Tensor, y: Tensor, rows: list[int], name: str, new: list[int]) -> None:
    """Raise if the blocks' sizes add up to more rows than x or y has."""
    for argument, sizes, tensor, limit in (("rows", rows, "x", x.shape[0]), (name, new, "y", y.shape[0])):
        if sum(sizes) > limit:
            raise BadArgument.of(op, argument, f"add up to at most {limit}, the rows of {{{tensor}}}", str(sum(sizes)))


def blocks_grow(op: str, x: Tensor, y: Tensor, rows: list[int], padded: list[int]) -> None:
    blocks_fit(op, x, y, rows, "padded", padded)
    for i, (old, new) in enumerate(zip(rows, padded, strict=True)):
        if new < old:
            raise BadArgument.of(op, "padded", f"be at least {old} at index {i}, as {{rows}} is", str(new))


def blocks_shrink(op: str, x: Tensor, y: Tensor, rows: list[int], kept: list[int]) -> None:
    blocks_fit(op, x, y, rows, "kept", kept)
    for i, (old, new) in enumerate(zip(rows, kept, strict=True)):
        if new > old:
            raise BadArgument.of(op, "kept", f"be at most {old} at index {i}, as {{rows}} is", str(new))


BLOCKS = (
    Case((12, 64), options={"rows": (3, 0, 5, 4), "padded": (4, 0, 8, 4)}),
    Case((7, 37), options={"rows": (1, 0, 6), "padded": (16, 4, 16)}),
    Case((0, 8), options={"rows": (), "padded": ()}),
)


def _pad_args(d: Draw) -> dict[str, Any]:
    y = torch.full((sum(d.option("padded", ())), d.case.shape[1]), 7.0, dtype=d.dtype, device=d.device)
    return {"x": d.full(), "y": y, "rows": list(d.option("rows")), "padded": list(d.option("padded"))}


def _unpad_args(d: Draw) -> dict[str, Any]:
    args = _pad_args(d)
    x = Draw(Case((sum(args["padded"]), d.case.shape[1])), d.dtype, d.device).full()
    y = torch.full((sum(args["rows"]), d.case.shape[1]), 7.0, dtype=d.dtype, device=d.device)
    return {"x": x, "y": y, "rows": args["padded"], "kept": args["rows"]}


PADS, UNPADS = Maker(_pad_args, BLOCKS), Maker(_unpad_args, BLOCKS)


@op(
    out="",
    mutates=("y",),
    samples=PADS,
    where=blocks_grow,
    errors=bad_samples(
        PADS,
        Change("rows", [4, 0, 5, 4], "rows must add up to at most 12, the rows of x; got 13"),
        Change("padded", [4, 1, 8, 4], "padded must add up to at most 16, the rows of y; got 17"),
        Change("padded", [2, 0, 8, 4], "padded must be at least 3 at index 0, as rows is; got 2"),
    ),
)
def moe_pad_into(
    x: AnyTensor[Tensor, "x_rows n"], y: AnyTensor[Tensor, "y_rows n", same_dtype("x")], rows: Sizes, padded: NewSizes
) -> None:
    """Copy blocks of rows to y and pad each with zeros. The padding of an empty block is not written.

    Args:
        x: the blocks, one after another.
        y: the output; rows after the last block are not changed.
        rows: the number of rows of each block in x.
        padded: the number of rows of each block in y, with its padding.
    """
    source = target = 0
    for old, new in zip(rows, padded, strict=True):
        if old:
            y[target : target + old].copy_(x[source : source + old])
            y[target + old : target + new].zero_()
        source, target = source + old, target + new


@op(
    out="",
    mutates=("y",),
    samples=UNPADS,
    where=blocks_shrink,
    errors=bad_samples(
        UNPADS,
        Change("rows", [4, 0, 8, 5], "rows must add up to at most 16, the rows of x; got 17"),
        Change("kept", [3, 0, 5, 5], "kept must add up to at most 12, the rows of y; got 13"),
        Change("kept", [2, 0, 5, 5], "kept must be at most 4 at index 3, as rows is; got 5"),
    ),
)
def moe_unpad_into(
    x: AnyTensor[Tensor, "x_rows n"], y: AnyTensor[Tensor, "y_rows n", same_dtype("x")], rows: Sizes, kept: NewSizes
) -> None:
    """Copy the first rows of each block to y, one block after another: the inverse of moe_pad_into.

    Args:
        x: the padded blocks, one after another.
        y: the output; rows after the last block are not changed.
        rows: the number of rows of each block in x, with its padding.
        kept: the number of rows of each block to copy.
    """
    source = target = 0
    for old, new in zip(rows, kept, strict=True):
        y[target : target + new].copy_(x[source : source + new])
        source, target = source + old, target + new
