"""Rotary embedding of q or k, of q and k together, and of packed q, k and v; forward and backward.

The first d2 elements of each head are rotated in pairs, the rest is copied. Pairs are (i, i + d2/2), or
(2i, 2i + 1) if `interleaved`. A pair (u, v) whose columns have the angles a and b becomes
(u cos a - v sin a, v cos b + u sin b). Models have a = b, but the ops do not require it. They compute in float32
(float64 for float64) and round once.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Index, at_least, below, each, one_of, same_dtype, shown
from ..core.errors import BadArgument
from ..core.spec import op
from ..core.tensors import opmath_dtype
from ._numeric import rounded, wide
from .samples import OTHER, Case, Change, Draw, Maker, bad_samples

# layout -> (index of the batch dimension, index of the sequence dimension); "thd" has no batch dimension
LAYOUTS = {"sbhd": (1, 0), "bshd": (0, 1), "bhsd": (0, 2), "thd": (None, 0)}

# ---- arguments ------------------------------------------------------------------------------------------------------

Heads = Float[Tensor, "..."]
Angles = Float[Tensor, "*lead 2*pairs"]
Sines = Float[Tensor, "*lead 2*pairs", same_dtype("angles")]
Starts = Index[Tensor, "sequences"]
Edges = Index[Tensor, "edges"]
Layout = Annotated[str, one_of(*LAYOUTS)]
Size = Annotated[int, at_least(1)]
Rank = Annotated[int, at_least(0), below("cp_size")]


def rows_of(table: Tensor) -> int:
    return table.shape[0] if table.dim() == 4 else table.shape[-2]


def tables_fit(
    op: str,
    name_of_x: str,
    x: Tensor,
    layout: str,
    cp_size: int,
    width: int,
    starts: Tensor | None,
    cu_seqlens: Tensor | None = None,
    **tables: Tensor,
) -> None:
    """Raise unless each table has a row per position of x and at most `width` columns; errors call x `name_of_x`."""
    batch, length = LAYOUTS[layout]
    n, shape = x.shape[length] * cp_size, tuple(x.shape)
    sequences = x.shape[batch] if batch is not None else 1 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    for name, table in tables.items():
        got, dims = str(tuple(table.shape)), table.dim()
        each = dims == 3 and table.shape[0] in (1, None if batch is None else sequences)
        if not (dims == 2 or each or (dims == 4 and table.shape[1:3] == (1, 1))):
            expected = f"be [positions, d2], [positions, 1, 1, d2], or [batch of {{{name_of_x}}}, positions, d2]"
            raise BadArgument.of(op, name, expected, got)
        if table.shape[-1] > width:
            raise BadArgument.of(op, name, f"have at most {width} columns, the size of a head of {{{name_of_x}}}", got)
        if batch is not None and n > rows_of(table):
            long = f"the length of {{{name_of_x}}} {shape}" + (f" times {{cp_size}} = {cp_size}" if cp_size > 1 else "")
            raise BadArgument.of(op, name, f"have {n} positions or more, {long}", got)
    if batch is not None and cp_size > 1 and x.shape[length] % 2:
        raise BadArgument.of(op, name_of_x, f"have an even length, as {{cp_size}} is {cp_size}", str(shape))
    if starts is not None and starts.shape[0] != sequences:
        raise BadArgument.of(op, "starts", f"have shape ({sequences},), one for each sequence", shown(starts))


def heads_fit(
    op: str,
    name_of_x: str,
    x: Tensor,
    angles: Tensor,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    layout: str,
    cp_size: int,
) -> None:
    """Raise unless x has the dimensions of the layout, and cu_seqlens is given exactly for the layout "thd"."""
    if x.dim() != len(layout):
        raise BadArgument.of(op, name_of_x, f"have {len(layout)} dimensions, as {{layout}} is {layout}", shown(x))
    packed = layout == "thd"
    if packed != (cu_seqlens is not None):
        expected = f"be {'a Tensor' if packed else 'None'}, as {{layout}} is {layout}"
        raise BadArgument.of(op, "cu_seqlens", expected, "None" if packed else "a Tensor")
    if cu_seqlens is not None and cu_seqlens.shape[0] < 2:
        raise BadArgument.of(op, "cu_seqlens", "have at least 2 elements", shown(cu_seqlens))
    tables_fit(op, name_of_x, x, layout, cp_size, x.shape[-1], starts, cu_seqlens, angles=angles)


def x_fits(
    op: str, x: Tensor, angles: Tensor, starts: Tensor | None, cu_seqlens: Tensor | None, layout: str, cp_size: int
) -> None:
    heads_fit(op, "x", x, angles, starts, cu_seqlens, layout, cp_size)


def dy_fits(
    op: str, dy: Tensor, angles: Tensor, starts: Tensor | None, cu_seqlens: Tensor | None, layout: str, cp_size: int
) -> None:
    heads_fit(op, "dy", dy, angles, starts, cu_seqlens, layout, cp_size)


# ---- the primitive --------------------------------------------------------------------------------------------------


def positions(
    x: Tensor, starts: Tensor | None, cu_seqlens: Tensor | None, layout: str, cp_size: int, cp_rank: int
) -> Tensor:
    """The table row of each token: [length], or [batch, length] if sequences start at different rows.

    With context parallelism a sequence has 2 * cp_size pieces; rank cp_rank holds pieces cp_rank and 2 * cp_size - 1 -
    cp_rank. Tokens outside all sequences get -1.
    """
    n = x.shape[LAYOUTS[layout][1]]
    position = torch.arange(n, device=x.device)
    length: Any = n
    outside, start = None, starts
    if cu_seqlens is not None:
        edges = cu_seqlens.long() // cp_size
        sequence = (torch.searchsorted(edges, position, right=True) - 1).clamp(0, edges.shape[0] - 2)
        outside = (position < edges[0]) | (position >= edges[-1])
        position, length = position - edges[sequence], edges[sequence + 1] - edges[sequence]
        start = None if starts is None else starts[sequence]
    elif starts is not None:
        start = starts[:, None]
    if cp_size > 1:
        half = length // 2
        position = torch.where(
            position < half, position + cp_rank * half, position + (2 * cp_size - cp_rank - 2) * half
        )
    if start is not None:
        position = position + start
    return position if outside is None else torch.where(outside, -1, position)


def table(x: Tensor, values: Tensor, index: Tensor, layout: str, default: float) -> Tensor:
    """The rows of `values` at these positions, in a shape that broadcasts to x; `default` if a row is missing."""
    v = values.to(opmath_dtype(x.dtype))
    v = v.squeeze((1, 2)) if v.dim() == 4 else v
    inside = (index >= 0) & (index < v.shape[-2])
    if v.shape[-2] == 0:
        selected = v.new_full((*v.shape[:-2], *index.shape, v.shape[-1]), default)
    elif v.dim() == 3 and index.dim() == 2:
        rows = index.clamp(0, v.shape[-2] - 1)[..., None].expand(*index.shape, v.shape[-1])
        selected = torch.gather(v.expand(index.shape[0], *v.shape[1:]), 1, rows)
    else:
        selected = v[..., index.clamp(0, v.shape[-2] - 1), :]
    selected = torch.where(inside[..., None], selected, default)
    if layout == "thd":
        return (selected if selected.dim() == 2 else selected[0])[:, None]
    if selected.dim() == 2:
        selected = selected[None]
    return {"sbhd": selected.transpose(0, 1)[:, :, None], "bshd": selected[:, :, None], "bhsd": selected[:, None]}[
        layout
    ]


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, transposed: bool) -> Tensor:
    """Rotate x by tables that broadcast to x. `transposed` transposes the rotation, as the gradient needs."""
    d2 = cos.shape[-1]
    v = wide(x)
    pairs = lambda t: (t[..., ::2], t[..., 1::2]) if interleaved else (t[..., : d2 // 2], t[..., d2 // 2 :])
    (u, v2), (ca, cb), (sa, sb) = pairs(v[..., :d2]), pairs(cos), pairs(sin)
    first, second = (u * ca + v2 * sb, v2 * cb - u * sa) if transposed else (u * ca - v2 * sa, v2 * cb + u * sb)
    pair = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return rounded(torch.cat([pair, v[..., d2:]], -1), x.dtype)


def _rotate(
    x: Tensor, angles: Tensor, sin: Tensor | None, index: Tensor, layout: str, pairs: bool, transposed: bool
) -> Tensor:
    if sin is None:
        rows = table(x, angles, index, layout, 0.0)
        return rotated(x, rows.cos(), rows.sin(), pairs, transposed)
    return rotated(x, table(x, angles, index, layout, 1.0), table(x, sin, index, layout, 0.0), pairs, transposed)


# ---- q or k ---------------------------------------------------------------------------------------------------------

CASES = (
    Case((5, 2, 3, 16)),
    Case((2, 5, 3, 16), options={"layout": "bshd", "interleaved": True}),
    Case((2, 3, 5, 16), "swapped", {"layout": "bhsd", "sin": True}),
    Case((7, 3, 8), options={"layout": "thd", "cu": (0, 3, 3, 6)}),
    Case((6, 2, 3, 12), "step", {"d2": 8, "cp": (2, 1)}),
    Case((2, 6, 3, 18), "sliced", {"layout": "bshd", "d2": 10, "starts": True, "cp": (3, 0), "interleaved": True}),
    Case((6, 2, 10), options={"layout": "thd", "cu": (0, 8, 12), "cp": (2, 0), "starts": True, "d2": 6}),
    Case((2, 3, 4, 16), options={"layout": "bhsd", "sin": True, "batched": True, "interleaved": True}),
    Case((4, 2, 3, 8), "t", {"batched": True, "starts": True}),
    Case((3, 2, 0, 8)),
    Case((0, 2, 3, 8)),
)


def rope_args(d: Draw) -> dict[str, Any]:
    layout = d.option("layout", "sbhd")
    batch, length = LAYOUTS[layout]
    shape, (cp_size, cp_rank) = d.case.shape, d.option("cp", (1, 0))
    cu = d.option("cu")
    sequences = len(cu) - 1 if cu else shape[batch or 0]
    n = shape[length] * cp_size + 5
    lead = (shape[batch or 0],) if d.option("batched") else ()
    x, angles = d.full(), d.another("angles", (*lead, n, d.option("d2", shape[-1])))
    starts = torch.arange(sequences, dtype=torch.int32, device=d.device) * 2 if d.option("starts") else None
    return {
        "x": x,
        "angles": angles.cos() if d.option("sin") else angles,
        "sin": angles.sin() if d.option("sin") else None,
        "starts": starts,
        "cu_seqlens": torch.tensor(cu, dtype=torch.int32, device=d.device) if cu else None,
        "layout": layout,
        "interleaved": d.option("interleaved", False),
        "cp_size": cp_size,
        "cp_rank": cp_rank,
    }


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = rope_args(d)
    return {"dy": args.pop("x"), **args}


FWD, BWD = Maker(rope_args, CASES), Maker(_bwd_args, CASES)
GOOD = Case((6, 2, 3, 16), options={"starts": True})


def _misfits(lead: str) -> tuple[Change, ...]:
    return (
        Change(lead, lambda t: t[0], f"{lead} must have 4 dimensions, as layout is sbhd"),
        Change("angles", lambda t: torch.cat([t, t], -1), "angles must have at most 16 columns, the size of a head"),
        Change("angles", lambda t: t[:5], "angles must have 6 positions or more, the length of"),
        Change("angles", lambda t: t[None, None], r"angles must be \[positions, d2\]"),
        Change("angles", lambda t: t.expand(3, *t.shape), r"angles must be \[positions, d2\]"),
        Change("starts", lambda t: t[:-1], r"starts must have shape \(2,\), one for each sequence"),
        Change("cu_seqlens", lambda t: torch.zeros(3, dtype=torch.int32), "cu_seqlens must be None, as layout is sbhd"),
    )


@op(grad="rope_bwd", samples=FWD, errors=bad_samples(FWD, *_misfits("x"), case=GOOD), where=x_fits)
def rope_fwd(
    x: Heads,
    angles: Angles,
    sin: Sines | None = None,
    starts: Starts | None = None,
    cu_seqlens: Edges | None = None,
    layout: Layout = "sbhd",
    interleaved: bool = False,
    cp_size: Size = 1,
    cp_rank: Rank = 0,
) -> Tensor:
    """Rotary embedding: rotate the first d2 elements of each head by the angles of its position.

    A pair (u, v) of elements becomes (u cos a - v sin a, v cos b + u sin b), with a and b the angles in their columns.

    Args:
        x: the heads, with the dimensions of `layout`.
        angles: one row for each position: [positions, d2], [batch, positions, d2], or [positions, 1, 1, d2] as in
            Transformer Engine. d2 is even and at most the size of a head. There are at least as many positions as the
            sequences are long. The angles get no gradient.
        sin: the sines of the angles; `angles` then holds their cosines.
        starts: the position of each sequence's first token; by default 0.
        cu_seqlens: for "thd" only: the offset of each sequence among the tokens, and the end of the last one. With
            cp_size > 1 the offsets count the tokens of all ranks. Tokens outside all sequences are copied.
        layout: the dimensions: s is the sequence, b the batch, h the heads, d a head's elements, t the tokens of all
            sequences, packed.
        interleaved: pairs are (2i, 2i + 1); by default (i, i + d2/2).
        cp_size: the number of ranks in context parallelism: each sequence has 2 * cp_size pieces, and x has the pieces
            cp_rank and 2 * cp_size - 1 - cp_rank of each.
        cp_rank: the index of this rank.

    Returns:
        y, contiguous, of x's shape and dtype. Heads at positions without a row in the table are copied.
    """
    index = positions(x, starts, cu_seqlens, layout, cp_size, cp_rank)
    return _rotate(x, angles, sin, index, layout, interleaved, False)


@op(out="dx", samples=BWD, errors=bad_samples(BWD, *_misfits("dy"), case=GOOD), where=dy_fits)
def rope_bwd(
    dy: Heads,
    angles: Angles,
    sin: Sines | None = None,
    starts: Starts | None = None,
    cu_seqlens: Edges | None = None,
    layout: Layout = "sbhd",
    interleaved: bool = False,
    cp_size: Size = 1,
    cp_rank: Rank = 0,
) -> Tensor:
    """The gradient of rope_fwd: the transposed rotation, (u cos a + v sin b, v cos b - u sin a) for a pair (u, v).

    Args:
        dy: the gradient of the result.
        angles: as in rope_fwd, like all other arguments.

    Returns:
        dx, contiguous, of dy's shape and dtype.
    """
    index = positions(dy, starts, cu_seqlens, layout, cp_size, cp_rank)
    return _rotate(dy, angles, sin, index, layout, interleaved, True)


# ---- q and k together -----------------------------------------------------------------------------------------------

Columns = Float[Tensor, "*lead columns"]
SinColumns = Float[Tensor, "*lead columns", same_dtype("cos")]
HeadsLayout = Annotated[str, one_of("bhsd", "bshd")]


def pair_fits(op: str, names: tuple[str, str], q: Tensor, k: Tensor, cos: Tensor, layout: str, per_pair: bool) -> None:
    """Raise unless q and k have the same batch, length and head size, and cos has a row for each position."""
    (batch, length), shape = LAYOUTS[layout], tuple(q.shape)
    first, other = names
    for dim, word in ((batch, "batch"), (length, "length"), (3, "head size")):
        if k.shape[dim] != q.shape[dim]:
            expected = f"have the {word} of {{{first}}} {shape}, {q.shape[dim]}, in dimension {dim}"
            raise BadArgument.of(op, other, expected, shown(k))
    sizes = (q.shape[batch], q.shape[length])
    if not (
        (cos.dim() == 2 and cos.shape[0] == sizes[1])
        or (cos.dim() == 3 and cos.shape[1] == sizes[1] and cos.shape[0] in (1, sizes[0]))
    ):
        expected = f"have {sizes[1]} rows, the length of {{{first}}} {shape}, after a batch of 1 or {sizes[0]} if any"
        raise BadArgument.of(op, "cos", expected, shown(cos))
    width = q.shape[-1] // 2 if per_pair else q.shape[-1]
    if cos.shape[-1] > width or (not per_pair and cos.shape[-1] % 2):
        expected = f"have at most {width} columns" if per_pair else f"have an even number of columns, at most {width}"
        raise BadArgument.of(op, "cos", f"{expected}, as {{{first}}} is {shape}", shown(cos))


def q_and_k_fit(op: str, q: Tensor, k: Tensor, cos: Tensor, layout: str, per_pair: bool) -> None:
    pair_fits(op, ("q", "k"), q, k, cos, layout, per_pair)


def dq_and_dk_fit(op: str, dq_out: Tensor, dk_out: Tensor, cos: Tensor, layout: str, per_pair: bool) -> None:
    pair_fits(op, ("dq_out", "dk_out"), dq_out, dk_out, cos, layout, per_pair)


# Options: those of the op; kv (the number of k's heads), d2 (rotated elements), other (tables of another dtype), rows
# (tables of two dimensions), strided (cos and sin are views of one complex table), transposed (q and k are views of
# [b, s, h, d], as in transformers). In all samples `memory` equals the layout, so results are contiguous; the op's
# tests cover the other memory order.
PAIR_CASES = (
    Case((2, 4, 5, 16), options={"transposed": True}),
    Case((2, 5, 3, 16), options={"layout": "bshd", "interleaved": True, "batched": True}),
    Case((2, 6, 5, 18), "sliced", {"kv": 3, "d2": 10, "batched": True}),
    Case((3, 4, 1, 12), "step", {"d2": 8, "interleaved": True, "rows": True}),
    Case((1, 2, 7, 20), "t", {"kv": 5, "per_pair": True, "other": True}),
    Case((2, 5, 3, 8), options={"layout": "bshd", "per_pair": True, "interleaved": True, "strided": True}),
    Case((2, 2, 3, 6), "expanded", {"d2": 0}),
    Case((2, 2, 0, 8)),
    Case((0, 2, 3, 8)),
)


def pair_args(d: Draw) -> dict[str, Any]:
    layout, shape = d.option("layout", "bhsd"), list(d.case.shape)
    batch, length = LAYOUTS[layout]
    heads = 3 - length
    shape[heads] = d.option("kv", max(1, shape[heads] // 4))
    other = Draw(Case(tuple(shape), d.case.layout, {"of": d.case.id}), d.dtype, d.device)
    q, k = d.full(), other.full()
    if d.option("transposed"):
        q, k = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k))
    d2 = d.option("d2", shape[-1] // 2 * 2)
    columns = d2 // 2 if d.option("per_pair") else d2
    lead = () if d.option("rows") else (shape[batch or 0] if d.option("batched") else 1,)
    dtype = OTHER[d.dtype] if d.option("other") else d.dtype
    angles = d.another("angles", (*lead, shape[length], columns), dtype=dtype)
    cos, sin = angles.cos(), angles.sin()
    if d.option("strided"):
        cos, sin = torch.stack([cos, sin], -1).unbind(-1)
    return {
        "q": q,
        "k": k,
        "cos": cos,
        "sin": sin,
        "layout": layout,
        "memory": layout,
        "interleaved": d.option("interleaved", False),
        "per_pair": d.option("per_pair", False),
    }


def _pair_bwd_args(d: Draw) -> dict[str, Any]:
    args = pair_args(d)
    return {"dq_out": args.pop("q"), "dk_out": args.pop("k"), **args}


PAIR, PAIR_BWD = Maker(pair_args, PAIR_CASES), Maker(_pair_bwd_args, PAIR_CASES)


def _pair_misfits(other: str) -> tuple[Change, ...]:
    return (
        Change(other, lambda t: t[:1], f"{other} must have the batch of"),
        Change(other, lambda t: t[:, :, 1:], f"{other} must have the length of"),
        Change("cos sin", lambda t: t[:, 1:], "cos must have 5 rows"),
        Change("cos sin", lambda t: t.expand(3, -1, -1), "cos must have 5 rows"),
        Change("cos sin", lambda t: torch.cat([t, t], -1), "cos must have an even number of columns, at most 16"),
        Change("cos sin", lambda t: t[..., 1:], "cos must have an even number of columns, at most 16"),
    )


def _rotate_pair(
    x: Tensor, cos: Tensor, sin: Tensor, layout: str, memory: str, interleaved: bool, per_pair: bool, transposed: bool
) -> Tensor:
    cos, sin = (t.to(opmath_dtype(x.dtype)) for t in (cos, sin))
    if per_pair:
        cos, sin = (t.repeat_interleave(2, -1) if interleaved else torch.cat([t, t], -1) for t in (cos, sin))
    cos, sin = (t.unsqueeze(-3 if layout == "bhsd" else -2) for t in (cos, sin))
    y = rotated(x, cos, sin, interleaved, transposed)
    return y if memory == layout else y.transpose(1, 2).contiguous().transpose(1, 2).clone()


@op(
    out="q_out k_out",
    grad="rope_qk_bwd",
    samples=PAIR,
    errors=bad_samples(PAIR, *_pair_misfits("k"), case=PAIR_CASES[0]),
    where=q_and_k_fit,
)
def rope_qk(
    q: Float[Tensor, "_ _ _ _"],
    k: Float[Tensor, "_ _ _ _", same_dtype("q")],
    cos: Columns,
    sin: SinColumns,
    layout: HeadsLayout = "bhsd",
    memory: HeadsLayout = "bhsd",
    interleaved: bool = False,
    per_pair: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotary embedding of q and k by one table of cosines and sines, in one kernel launch.

    Rotates the first d2 elements of each head and copies the others. A pair (u, v) becomes
    (u cos - v sin, v cos + u sin); the first element uses cos and sin of u's column, the second those of v's.

    Args:
        q: [batch, heads, length, d] for the layout "bhsd", [batch, length, heads, d] for "bshd"; any strides.
        k: the same, with its own number of heads.
        cos: one row for each position: [length, columns], [1, length, columns] or [batch, length, columns]. There are
            d2 columns, an even number, or d2/2 if `per_pair`. The table gets no gradient.
        sin: like cos.
        layout: the dimensions of q and k: b is the batch, h the heads, s the sequence, d a head's elements.
        memory: the order of the dimensions in the results' memory; "bshd" suits heads that are views of a linear
            layer's output.
        interleaved: pairs are (2i, 2i + 1); by default (i, i + d2/2).
        per_pair: whether cos and sin have one column for each pair instead of one for each element.

    Returns:
        q_out and k_out, of the shapes and the dtype of q and k, dense in the order of `memory`. They are computed in
        float32 (float64 for float64) and rounded once.
    """
    rotate = lambda x: _rotate_pair(x, cos, sin, layout, memory, interleaved, per_pair, False)
    return rotate(q), rotate(k)


@op(
    out="dq dk",
    samples=PAIR_BWD,
    errors=bad_samples(PAIR_BWD, *_pair_misfits("dk_out"), case=PAIR_CASES[0]),
    where=dq_and_dk_fit,
)
def rope_qk_bwd(
    dq_out: Float[Tensor, "_ _ _ _"],
    dk_out: Float[Tensor, "_ _ _ _", same_dtype("dq_out")],
    cos: Columns,
    sin: SinColumns,
    layout: HeadsLayout = "bhsd",
    memory: HeadsLayout = "bhsd",
    interleaved: bool = False,
    per_pair: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gradient of rope_qk: the transposed rotation.

    Args:
        dq_out: the gradient of q_out.
        dk_out: the gradient of k_out.
        cos: as in rope_qk, like all other arguments.

    Returns:
        dq and dk, of the shapes and the dtype of dq_out and dk_out, dense in the order of `memory`.
    """
    rotate = lambda x: _rotate_pair(x, cos, sin, layout, memory, interleaved, per_pair, True)
    return rotate(dq_out), rotate(dk_out)


# ---- packed q, k and v ----------------------------------------------------------------------------------------------

QAngles = Float[Tensor, "*q_lead 2*q_pairs"]
KAngles = Float[Tensor, "*k_lead 2*k_pairs"]
Split = Annotated[list[int], each(at_least(1))]
PackedLayout = Annotated[str, one_of("sbhd", "bshd")]


def split_fits(op: str, split: list[int]) -> None:
    """Raise unless split has three sizes, of q, k and v in a packed head, and q's size is a multiple of k's."""
    if len(split) != 3 or split[0] % split[1]:
        expected = "be three sizes, those of q, k and v in a head, the first a multiple of the second"
        raise BadArgument.of(op, "split", expected, str(list(split)))


def qkv_fits(
    op: str,
    qkv: Tensor,
    q_angles: Tensor,
    k_angles: Tensor,
    split: list[int],
    starts: Tensor | None,
    layout: str,
    cp_size: int,
) -> None:
    """Raise unless a packed head is as wide as the sum of `split`, and the tables fit."""
    if qkv.shape[-1] != sum(split):
        expected = f"have a last dimension of {sum(split)}, as {{split}} is {list(split)}"
        raise BadArgument.of(op, "qkv", expected, shown(qkv))
    tables_fit(op, "qkv", qkv, layout, cp_size, split[1], starts, q_angles=q_angles, k_angles=k_angles)


def parts_fit(
    op: str,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    q_angles: Tensor,
    k_angles: Tensor,
    split: list[int],
    starts: Tensor | None,
    layout: str,
    cp_size: int,
) -> None:
    """Raise unless dq, dk and dv have the shapes of rope_qkv_fwd's results, and the tables fit."""
    *lead, heads, _ = dk.shape
    sizes = {"dk": (heads, split[1]), "dq": (heads * (split[0] // split[1]), split[1]), "dv": (heads, split[2])}
    for name, t in (("dk", dk), ("dq", dq), ("dv", dv)):
        if tuple(t.shape) != (*lead, *sizes[name]):
            expected = f"have shape {(*lead, *sizes[name])}, as {{split}} is {list(split)} and {{dk}} has {heads} heads"
            raise BadArgument.of(op, name, expected, shown(t))
    tables_fit(op, "dk", dk, layout, cp_size, split[1], starts, q_angles=q_angles, k_angles=k_angles)


SPLITS = (
    Case((6, 2, 3, 48), options={"split": (16, 16, 16)}),
    Case((2, 6, 3, 44), options={"split": (24, 12, 8), "layout": "bshd", "d2": 8, "interleaved": True, "starts": True}),
    Case((6, 2, 3, 24), options={"split": (8, 8, 8), "cp": (2, 1), "starts": True}),
    Case((0, 2, 3, 24), options={"split": (8, 8, 8)}),
)


def packed_args(d: Draw) -> dict[str, Any]:
    dim = d.case.shape[-1] // 4
    split = d.option("split", (2 * dim, dim, d.case.shape[-1] - 3 * dim))
    cp_size, cp_rank = d.option("cp", (1, 0))
    layout = d.option("layout", "sbhd")
    batch, length = LAYOUTS[layout]
    shape = (d.case.shape[length] * cp_size + 9, d.option("d2", split[1] // 2 * 2))
    starts = torch.arange(d.case.shape[batch or 0], dtype=torch.int32, device=d.device) * 2
    return {
        "qkv": d.full(),
        "q_angles": d.another("q", shape, dtype=torch.float32),
        "k_angles": d.another("k", shape, dtype=torch.float32),
        "split": list(split),
        "starts": starts if d.option("starts") else None,
        "layout": layout,
        "interleaved": d.option("interleaved", False),
        "cp_size": cp_size,
        "cp_rank": cp_rank,
    }


def parts_args(d: Draw) -> dict[str, Any]:
    args = packed_args(d)
    q, k, v = split_heads(args.pop("qkv"), args["split"])
    return {"dq": q.contiguous(), "dk": k.contiguous(), "dv": v.contiguous(), **args}


def split_heads(qkv: Tensor, split: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv into q, k and v; q is divided into heads of k's size."""
    q, k, v = qkv.split(list(split), -1)
    return q.unflatten(-1, (split[0] // split[1], split[1])).flatten(2, 3), k, v


PACKED, PARTS = Maker(packed_args, SPLITS), Maker(parts_args, SPLITS)
SPLIT_MISFITS = (
    Change("k_angles", lambda t: t[:2], "k_angles must have 6 positions or more"),
    Change("q_angles", lambda t: torch.cat([t, t], -1), "q_angles must have at most 16 columns"),
    Change("split", [16, 16], "split must be three sizes"),
    Change("split", [20, 16, 12], "split must be three sizes.*a multiple"),
)


@op(
    out="q k v",
    grad="rope_qkv_bwd",
    samples=PACKED,
    errors=bad_samples(
        PACKED, Change("qkv", lambda t: t[..., 1:], "qkv must have a last .* of 48"), *SPLIT_MISFITS, case=SPLITS[0]
    ),
    where=(split_fits, qkv_fits),
)
def rope_qkv_fwd(
    qkv: Float[Tensor, "_ _ heads width"],
    q_angles: QAngles,
    k_angles: KAngles,
    split: Split,
    starts: Starts | None = None,
    layout: PackedLayout = "sbhd",
    interleaved: bool = False,
    cp_size: Size = 1,
    cp_rank: Rank = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split packed heads into q, k and v: q and k are rotated as by rope_fwd, v is copied.

    Args:
        qkv: each head has split[0] elements of q, split[1] of k and split[2] of v.
        q_angles: one row for each position, as in rope_fwd; d2 is at most split[1].
        k_angles: the same for k.
        split: three sizes, the first a multiple of the second: q has split[0] / split[1] heads for each head of k.
        starts: the position of each sequence's first token; by default 0.
        layout: whether the sequence ("sbhd") or the batch ("bshd") is the first dimension.
        interleaved: pairs are (2i, 2i + 1); by default (i, i + d2/2).
        cp_size: the number of ranks in context parallelism, as in rope_fwd.
        cp_rank: the index of this rank.

    Returns:
        q [_, _, heads * split[0] / split[1], split[1]], k [_, _, heads, split[1]] and v [_, _, heads, split[2]],
        contiguous, of qkv's dtype.
    """
    q, k, v = split_heads(qkv, split)
    index = positions(q, starts, None, layout, cp_size, cp_rank)
    rotate = lambda t, angles: _rotate(t, angles, None, index, layout, interleaved, False)
    return rotate(q, q_angles), rotate(k, k_angles), rounded(v, v.dtype)


@op(
    out="dqkv",
    samples=PARTS,
    errors=bad_samples(
        PARTS, Change("dv", lambda t: t[..., 1:], "dv must have shape .*got"), *SPLIT_MISFITS, case=SPLITS[0]
    ),
    where=(split_fits, parts_fit),
)
def rope_qkv_bwd(
    dq: Float[Tensor, "a b q_heads dim"],
    dk: Float[Tensor, "a b heads dim", same_dtype("dq")],
    dv: Float[Tensor, "a b heads dim_v", same_dtype("dq")],
    q_angles: QAngles,
    k_angles: KAngles,
    split: Split,
    starts: Starts | None = None,
    layout: PackedLayout = "sbhd",
    interleaved: bool = False,
    cp_size: Size = 1,
    cp_rank: Rank = 0,
) -> Tensor:
    """The gradient of rope_qkv_fwd: apply the transposed rotation to dq and dk, and pack them with dv.

    Args:
        dq: the gradient of q.
        dk: the gradient of k.
        dv: the gradient of v.
        q_angles: as in rope_qkv_fwd, like all other arguments.

    Returns:
        dqkv [a, b, heads, sum of split], contiguous, of dq's dtype.
    """
    index = positions(dk, starts, None, layout, cp_size, cp_rank)
    rotate = lambda t, angles: _rotate(t, angles, None, index, layout, interleaved, True)
    return torch.cat([rotate(dq, q_angles).reshape(*dk.shape[:3], split[0]), rotate(dk, k_angles), dv], -1)
