"""Rotary embedding, forward and backward; and tex's rope made of it.

A head's first d2 numbers are turned in pairs, the rest stays: pairs are (i, i + d2/2), or, `interleaved`, neighbours.
With (u, v) a pair and a, b the angles of its two places: u cos a - v sin a, v cos b + u sin b. The two angles are equal
in what models use, and need not be. It computes in float32 (float64 for float64 inputs) and rounds once.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.adapter import adapt
from ..core.spec import BadSample, BadSamples, op
from ._numeric import check_dtype, dtype_name, rounded, wide
from ._tex import NVTE_QKV_Format, check_choice, check_int, check_list, check_tensor, type_name
from .samples import Case, Draw, Maker

# A layout -> the places of batch and sequence among the dimensions of x; heads and their numbers are the others.
LAYOUTS = {"sbhd": (1, 0), "bshd": (0, 1), "bhsd": (0, 2), "thd": (None, 0)}
FORMATS = {0: "sbhd", 1: "bshd", 2: "thd"}  # by the numbers of tex's NVTE_QKV_Format
INTS = (torch.int32, torch.int64)


# ---- what must be refused -------------------------------------------------------------------------------------------


def check(
    op: str,
    x: Tensor,
    angles: Tensor,
    sin: Tensor | None,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    layout: str,
    cp_size: int,
    cp_rank: int,
    lead: str = "x",
) -> None:
    """Refuse what does not fit together: shapes, dtypes, devices, and sequences that are longer than the table."""
    check_dtype(op, lead, x.dtype)
    if layout not in LAYOUTS:
        raise ValueError(f"{op}: layout must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    if x.dim() != len(layout):
        raise ValueError(
            f"{op}: {lead} must have {len(layout)} dimensions, as the layout is {layout}; got {tuple(x.shape)}"
        )
    batch, length = LAYOUTS[layout]
    n = None if batch is None else x.shape[batch]
    _check_table(op, x, angles, sin, n, lead)
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise ValueError(f"{op}: cp_rank must be from 0 to cp_size - 1; got {cp_rank} of {cp_size}")
    if (batch is None) != (cu_seqlens is not None):
        wanted, got = ("a Tensor", "None") if batch is None else ("None", "a Tensor")
        raise ValueError(f"{op}: cu_seqlens must be {wanted}, as the layout is {layout}; got {got}")
    if cu_seqlens is not None:
        check_tensor(op, "cu_seqlens", cu_seqlens, dtypes=INTS, dims=1, on=x)
        n = cu_seqlens.shape[0] - 1
        if n < 1:
            raise ValueError(f"{op}: cu_seqlens must have two numbers or more; got {tuple(cu_seqlens.shape)}")
    elif cp_size > 1 and x.shape[length] % 2:
        raise ValueError(f"{op}: {lead} must have an even length with cp_size {cp_size}; got {tuple(x.shape)}")
    if starts is not None:
        check_tensor(op, "starts", starts, dtypes=INTS, shape=(n,), on=x, of="a number for each sequence")
    elif cu_seqlens is None and x.shape[length] * cp_size > angles.shape[-2]:
        long = f"the length of {lead} {tuple(x.shape)} times cp_size {cp_size}; got {tuple(angles.shape)}"
        raise ValueError(f"{op}: angles must have {x.shape[length] * cp_size} positions, {long}")


def _check_table(op: str, x: Tensor, angles: Tensor, sin: Tensor | None, batch: int | None, lead: str) -> None:
    shape = tuple(angles.shape)
    check_dtype(op, "angles", angles.dtype)
    if angles.dim() not in (2, 3) or (angles.dim() == 3 and shape[0] not in (1, batch)):
        raise ValueError(f"{op}: angles must be [positions, d2], or that for each of the batch; got {shape}")
    if shape[-1] % 2 or shape[-1] > x.shape[-1]:
        raise ValueError(
            f"{op}: angles must have an even last dimension, at most {x.shape[-1]}, that of {lead}; got {shape}"
        )
    if angles.device != x.device:
        raise ValueError(f"{op}: angles must be on {x.device}, the device of {lead}; got {angles.device}")
    if sin is not None:
        check_tensor(op, "sin", sin, shape=shape, on=x, of="that of angles")
        if sin.dtype != angles.dtype:
            raise ValueError(
                f"{op}: sin must be {dtype_name(angles.dtype)}, as angles are; got {dtype_name(sin.dtype)}"
            )


# ---- the primitive --------------------------------------------------------------------------------------------------


def positions(
    x: Tensor, starts: Tensor | None, cu_seqlens: Tensor | None, layout: str, cp_size: int, cp_rank: int
) -> Tensor:
    """The row of the table for each place: [length], or [batch, length] where they start at different ones.

    Of context parallelism a rank holds two pieces of each sequence, one from the front and its mirror from the back.
    """
    n = x.shape[LAYOUTS[layout][1]]
    place = torch.arange(n, device=x.device)
    length: Any = n
    outside, start = None, starts
    if cu_seqlens is not None:
        edges = cu_seqlens.long() // cp_size
        which = (torch.searchsorted(edges, place, right=True) - 1).clamp(0, edges.shape[0] - 2)
        outside = (place < edges[0]) | (place >= edges[-1])
        place, length = place - edges[which], edges[which + 1] - edges[which]
        start = None if starts is None else starts[which]
    elif starts is not None:
        start = starts[:, None]
    if cp_size > 1:
        half = length // 2
        place = torch.where(place < half, place + cp_rank * half, place + (2 * cp_size - cp_rank - 2) * half)
    if start is not None:
        place = place + start
    return place if outside is None else torch.where(outside, -1, place)


def table(x: Tensor, values: Tensor, at: Tensor, layout: str, beyond: float) -> Tensor:
    """The rows at these positions, so shaped that they go with x; `beyond` where there is none."""
    v = values.to(torch.float64 if x.dtype is torch.float64 else torch.float32)
    inside = (at >= 0) & (at < v.shape[-2])
    if v.shape[-2] == 0:
        found = v.new_full((*v.shape[:-2], *at.shape, v.shape[-1]), beyond)
    elif v.dim() == 3 and at.dim() == 2:
        rows = at.clamp(0, v.shape[-2] - 1)[..., None].expand(*at.shape, v.shape[-1])
        found = torch.gather(v.expand(at.shape[0], *v.shape[1:]), 1, rows)
    else:
        found = v[..., at.clamp(0, v.shape[-2] - 1), :]
    found = torch.where(inside[..., None], found, beyond)
    if layout == "thd":
        return (found if found.dim() == 2 else found[0])[:, None]
    if found.dim() == 2:
        found = found[None]
    return {"sbhd": found.transpose(0, 1)[:, :, None], "bshd": found[:, :, None], "bhsd": found[:, None]}[layout]


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool) -> Tensor:
    """x turned by a table of its own shape, or turned back: the transpose of turning, whatever the angles."""
    d2 = cos.shape[-1]
    v = wide(x)
    pairs = lambda t: (t[..., ::2], t[..., 1::2]) if interleaved else (t[..., : d2 // 2], t[..., d2 // 2 :])
    (u, v2), (ca, cb), (sa, sb) = pairs(v[..., :d2]), pairs(cos), pairs(sin)
    first, second = (u * ca + v2 * sb, v2 * cb - u * sa) if back else (u * ca - v2 * sa, v2 * cb + u * sb)
    both = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return rounded(torch.cat([both, v[..., d2:]], -1), x.dtype)


def _turn(x: Tensor, angles: Tensor, sin: Tensor | None, at: Tensor, layout: str, pairs: bool, back: bool) -> Tensor:
    if sin is None:
        found = table(x, angles, at, layout, 0.0)
        return turned(x, found.cos(), found.sin(), pairs, back)
    return turned(x, table(x, angles, at, layout, 1.0), table(x, sin, at, layout, 0.0), pairs, back)


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


def _args(d: Draw) -> dict[str, Any]:
    layout = d.option("layout", "sbhd")
    batch, length = LAYOUTS[layout]
    shape, (cp_size, cp_rank) = d.case.shape, d.option("cp", (1, 0))
    cu = d.option("cu")
    sequences = len(cu) - 1 if cu else shape[batch or 0]
    n = shape[length] * cp_size + 5
    lead = (shape[batch or 0],) if d.option("batched") else ()
    drawn = lambda name, shape: Draw(Case(shape, options={"of": d.case.id, "name": name}), d.dtype, d.device).full()
    x, angles = d.full(), drawn("angles", (*lead, n, d.option("d2", shape[-1])))
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
    of = _args(d)
    return {"dy": of.pop("x"), **of}


FWD, BWD = Maker(_args, CASES), Maker(_bwd_args, CASES)
GOOD = Case((6, 2, 3, 16), options={"sin": True, "starts": True})


def _wrong(good: Maker, lead: str) -> BadSamples:
    """A good sample with one argument spoiled, for each of these."""
    ways = (
        (lead, lambda t: t.int(), TypeError, f"{lead} must be float16"),
        (lead, lambda t: t[0], ValueError, f"{lead} must have 4 dimensions, as the layout is sbhd"),
        ("angles", lambda t: t.int(), TypeError, "angles must be float16"),
        ("angles", lambda t: t[:, :-1], ValueError, "angles must have an even last dimension, at most 16"),
        ("angles", lambda t: t[None, None], ValueError, r"angles must be \[positions, d2\]"),
        ("angles", lambda t: t.to("meta"), ValueError, "angles must be on"),
        ("sin", lambda t: t[:-1], ValueError, "sin must have shape"),
        ("sin", lambda t: t.bfloat16(), ValueError, "sin must be float32, as angles are; got bfloat16"),
        ("starts", lambda t: t.float(), TypeError, "starts must be int32 or int64; got float32"),
        ("starts", lambda t: t[:-1], ValueError, r"starts must have shape \(2\)"),
        ("cu_seqlens", lambda t: torch.zeros(3, dtype=torch.int32), ValueError, "cu_seqlens must be None"),
        ("layout", lambda t: "hsbd", ValueError, "layout must be one of sbhd, bshd, bhsd, thd; got 'hsbd'"),
        ("layout", lambda t: "thd", ValueError, f"{lead} must have 3 dimensions"),
        ("cp_rank", lambda t: 1, ValueError, "cp_rank must be from 0 to cp_size - 1; got 1 of 1"),
    )

    def bad(device: torch.device) -> Iterator[BadSample]:
        for number, (name, spoil, error, says) in enumerate(ways):
            args = good.named(GOOD, torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, says, id=f"{name} {number}")
        args = good.named(Case((6, 2, 3, 16)), torch.float32, device)
        args["angles"] = args["angles"][:5]
        yield BadSample(tuple(args.values()), ValueError, "angles must have 6 positions, the length of", id="long")

    return bad


@op(grad="rope_bwd", samples=FWD, errors=_wrong(FWD, "x"))
def rope_fwd(
    x: Tensor,
    angles: Tensor,
    sin: Tensor | None = None,
    starts: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    layout: str = "sbhd",
    interleaved: bool = False,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """x with pairs of its numbers turned by angles [positions, d2], or [batch, positions, d2]; they get no gradient.

    With `sin`, `angles` are cosines. layout: sbhd, bshd, bhsd; thd is tokens of sequences with edges `cu_seqlens`.
    Places count from 0, or from a sequence's `starts`; on rank cp_rank of cp_size x is a sequence's two pieces, from
    front and back (cu_seqlens are of whole sequences). Where the table has no row, nothing is turned.
    """
    check("rope_fwd", x, angles, sin, starts, cu_seqlens, layout, cp_size, cp_rank)
    at = positions(x, starts, cu_seqlens, layout, cp_size, cp_rank)
    return _turn(x, angles, sin, at, layout, interleaved, False)


@op(out="dx", samples=BWD, errors=_wrong(BWD, "dy"))
def rope_bwd(
    dy: Tensor,
    angles: Tensor,
    sin: Tensor | None = None,
    starts: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    layout: str = "sbhd",
    interleaved: bool = False,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """The gradient of rope_fwd's x: the transpose of turning, also where the two angles of a pair differ."""
    check("rope_bwd", dy, angles, sin, starts, cu_seqlens, layout, cp_size, cp_rank, "dy")
    at = positions(dy, starts, cu_seqlens, layout, cp_size, cp_rank)
    return _turn(dy, angles, sin, at, layout, interleaved, True)


# ---- tex: NVIDIA's names and signatures -----------------------------------------------------------------------------


def check_tex(
    op: str,
    lead: str,
    x: Any,
    freqs: Any,
    starts: Any,
    qkv_format: Any,
    interleaved: Any,
    cu_seqlens: Any,
    cp_size: Any,
    cp_rank: Any,
) -> str:
    """Refuse what tex refuses, under its names; the layout."""
    check_choice(op, "qkv_format", qkv_format, tuple(NVTE_QKV_Format)[:3])
    layout = FORMATS[int(qkv_format)]
    check_tensor(op, lead, x, dims=len(layout))
    check_freqs(op, "freqs", freqs, x)
    _check_flags(op, interleaved, cp_size, cp_rank)
    check_tensor(op, "start_positions", starts, dtypes=INTS, dims=1, on=x, optional=True)
    if layout == "thd":
        check_tensor(op, "cu_seqlens", cu_seqlens, dtypes=INTS, dims=1, on=x)
    _check_places(op, lead, x, layout, starts, cu_seqlens if layout == "thd" else None, freqs, "freqs", cp_size)
    return layout


def check_freqs(op: str, name: str, freqs: Any, x: Tensor, width: int | None = None) -> None:
    check_tensor(op, name, freqs, dtypes=(torch.float32,), shape=(None, 1, 1, None), on=x)
    most = x.shape[-1] if width is None else width
    if freqs.shape[-1] % 2 or freqs.shape[-1] > most:
        raise ValueError(f"{op}: {name} must have an even last dimension, at most {most}; got {tuple(freqs.shape)}")


def _check_flags(op: str, interleaved: Any, cp_size: Any, cp_rank: Any) -> None:
    if not isinstance(interleaved, (bool, int)):
        raise TypeError(f"{op}: interleaved must be a bool; got {type_name(interleaved)}")
    check_int(op, "cp_size", cp_size, 1)
    check_int(op, "cp_rank", cp_rank, 0, cp_size - 1)


def _check_places(
    op: str,
    lead: str,
    x: Tensor,
    layout: str,
    starts: Tensor | None,
    cu_seqlens: Tensor | None,
    freqs: Tensor,
    name: str,
    cp_size: int,
) -> None:
    batch, length = LAYOUTS[layout]
    n = x.shape[length] * cp_size
    if cu_seqlens is not None and cu_seqlens.shape[0] < 2:
        raise ValueError(f"{op}: cu_seqlens must have two numbers or more; got {tuple(cu_seqlens.shape)}")
    if cu_seqlens is None and cp_size > 1 and x.shape[length] % 2:
        raise ValueError(f"{op}: {lead} must have an even length with cp_size {cp_size}; got {tuple(x.shape)}")
    if cu_seqlens is None and n > freqs.shape[0]:
        raise ValueError(f"{op}: {name} must have {n} positions or more; got {tuple(freqs.shape)}")
    count = x.shape[batch] if batch is not None else cu_seqlens.shape[0] - 1 if cu_seqlens is not None else 0
    if starts is not None and starts.shape[0] != count:
        raise ValueError(f"{op}: start_positions must have shape ({count},); got {tuple(starts.shape)}")


def _tex_args(d: Draw, lead: str) -> dict[str, Any]:
    of = _args(d)
    angles = of["angles"].float()
    return {
        lead: of["x"],
        "freqs": angles[:, None, None],
        "start_positions": of["starts"],
        "qkv_format": {v: k for k, v in FORMATS.items()}[of["layout"]],
        "interleaved": of["interleaved"],
        "cu_seqlens": of["cu_seqlens"],
        "cp_size": of["cp_size"],
        "cp_rank": of["cp_rank"],
    }


TEX = tuple(c for c in CASES if not {"sin", "batched"} & set(c.options))
TEX_FWD = Maker(lambda d: _tex_args(d, "input"), TEX)
TEX_BWD = Maker(lambda d: _tex_args(d, "output_grads"), TEX)


def _tex_wrong(good: Maker, case: Case, ways: tuple[tuple[str, Any, type[Exception], str], ...]) -> BadSamples:
    def bad(device: torch.device) -> Iterator[BadSample]:
        for number, (name, spoil, error, says) in enumerate(ways):
            args = good.named(case, torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {number}")

    return bad


def _ways(lead: str) -> tuple[tuple[str, Any, type[Exception], str], ...]:
    return (
        (lead, lambda t: t.int(), TypeError, "must be float16, bfloat16"),
        (lead, lambda t: t[0], ValueError, "must have 4 dimensions"),
        ("freqs", lambda t: t.double(), TypeError, "must be float32; got float64"),
        ("freqs", lambda t: t[..., :-1], ValueError, "must have an even last dimension"),
        ("freqs", lambda t: t[:3], ValueError, "must have 6 positions or more"),
        ("start_positions", lambda t: t[:-1], ValueError, r"must have shape \(2,\)"),
        ("qkv_format", lambda v: 7, ValueError, "must be one of NVTE_SBHD, NVTE_BSHD, NVTE_THD; got 7"),
        ("cp_rank", lambda v: 1, ValueError, "must be at least 0 and at most 0; got 1"),
        ("cp_size", lambda v: 0, ValueError, "must be at least 1; got 0"),
    )


TEX_GOOD = Case((6, 2, 3, 16), options={"starts": True})


@adapt("tex::fused_rope_forward", over=rope_fwd, samples=TEX_FWD, errors=_tex_wrong(TEX_FWD, TEX_GOOD, _ways("input")))
def fused_rope_forward(
    call: Any,
    input: Tensor,
    freqs: Tensor,
    start_positions: Tensor | None,
    qkv_format: Any,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """rope_fwd of input by angles freqs [positions, 1, 1, d2], in a fresh contiguous tensor."""
    with torch.no_grad():
        name = "fused_rope_forward"
        given = (freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank)
        layout = check_tex(name, "input", input, *given)
        edges = cu_seqlens if layout == "thd" else None
        table = freqs.squeeze((1, 2))
        return call(input, table, None, start_positions, edges, layout, bool(interleaved), cp_size, cp_rank)


@adapt(
    "tex::fused_rope_backward",
    over=rope_bwd,
    out="dx",
    samples=TEX_BWD,
    errors=_tex_wrong(TEX_BWD, TEX_GOOD, _ways("output_grads")),
)
def fused_rope_backward(
    call: Any,
    output_grads: Tensor,
    freqs: Tensor,
    start_positions: Tensor | None,
    qkv_format: Any,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """The gradient of fused_rope_forward's input."""
    with torch.no_grad():
        name = "fused_rope_backward"
        given = (freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank)
        layout = check_tex(name, "output_grads", output_grads, *given)
        edges = cu_seqlens if layout == "thd" else None
        table = freqs.squeeze((1, 2))
        return call(output_grads, table, None, start_positions, edges, layout, bool(interleaved), cp_size, cp_rank)


def check_qkv(
    op: str, split: Any, q_freqs: Any, k_freqs: Any, qkv_format: Any, interleaved: Any, cp_size: Any, cp_rank: Any
) -> str:
    """Refuse what no packed q, k and v can be turned by, before they are looked at; the layout."""
    check_choice(op, "qkv_format", qkv_format, tuple(NVTE_QKV_Format)[:2])
    check_list(op, "qkv_split_arg_list", split, lambda name, n: check_int(op, name, n, 1), 3)
    if split[0] % split[1]:
        sizes = f"a multiple of its second, the size of a head; got {list(split)}"
        raise ValueError(f"{op}: qkv_split_arg_list must have a first number that is {sizes}")
    _check_flags(op, interleaved, cp_size, cp_rank)
    check_tensor(op, "q_freqs", q_freqs, dtypes=(torch.float32,), dims=4)
    check_tensor(op, "k_freqs", k_freqs, dtypes=(torch.float32,), dims=4)
    return FORMATS[int(qkv_format)]


def check_packed(
    op: str, x: Any, q_freqs: Any, k_freqs: Any, starts: Any, split: Any, qkv_format: Any, interleaved: Any,
    cp_size: Any, cp_rank: Any,
) -> str:  # fmt: skip
    layout = check_qkv(op, split, q_freqs, k_freqs, qkv_format, interleaved, cp_size, cp_rank)
    width = sum(split)
    check_tensor(op, "qkv_input", x, shape=(None, None, None, width), of=f"as qkv_split_arg_list is {list(split)}")
    for name, freqs in (("q_freqs", q_freqs), ("k_freqs", k_freqs)):
        check_freqs(op, name, freqs, x, split[1])
        _check_places(op, "qkv_input", x, layout, None, None, freqs, name, cp_size)
    check_tensor(op, "start_positions", starts, dtypes=INTS, dims=1, on=x, optional=True)
    _check_places(op, "qkv_input", x, layout, starts, None, q_freqs, "q_freqs", cp_size)
    return layout


def check_parts(
    op: str, dq: Any, dk: Any, dv: Any, q_freqs: Any, k_freqs: Any, split: Any, qkv_format: Any, interleaved: Any,
    cp_size: Any, cp_rank: Any,
) -> str:  # fmt: skip
    layout = check_qkv(op, split, q_freqs, k_freqs, qkv_format, interleaved, cp_size, cp_rank)
    check_tensor(op, "k_grad_out", dk, shape=(None, None, None, split[1]), of="as qkv_split_arg_list says")
    *lead, heads, _ = dk.shape
    shapes = {"q_grad_out": (dq, heads * split[0] // split[1], split[1]), "v_grad_out": (dv, heads, split[2])}
    for name, (t, n, d) in shapes.items():
        check_tensor(op, name, t, dtypes=(dk.dtype,), shape=(*lead, n, d), on=dk, of="as k_grad_out and the list say")
    for name, freqs in (("q_freqs", q_freqs), ("k_freqs", k_freqs)):
        check_freqs(op, name, freqs, dk, split[1])
        _check_places(op, "k_grad_out", dk, layout, None, None, freqs, name, cp_size)
    return layout


SPLITS = (
    Case((6, 2, 3, 48), options={"split": (16, 16, 16)}),
    Case((2, 6, 3, 44), options={"split": (24, 12, 8), "layout": "bshd", "d2": 8, "interleaved": True, "starts": True}),
    Case((6, 2, 3, 24), options={"split": (8, 8, 8), "cp": (2, 1), "starts": True}),
    Case((0, 2, 3, 24), options={"split": (8, 8, 8)}),
)


def _packed_args(d: Draw) -> dict[str, Any]:
    split = d.option("split", (d.case.shape[-1] // 3,) * 3)
    cp_size, cp_rank = d.option("cp", (1, 0))
    batch, length = LAYOUTS[d.option("layout", "sbhd")]
    d2 = d.option("d2", split[1])
    drawn = lambda name, width: Draw(
        Case((d.case.shape[length] * cp_size + 9, 1, 1, width), options={"of": d.case.id, "name": name}),
        torch.float32, d.device,
    ).full()  # fmt: skip
    starts = torch.arange(d.case.shape[batch or 0], dtype=torch.int32, device=d.device) * 2
    return {
        "qkv_input": d.full(),
        "q_freqs": drawn("q", d2),
        "k_freqs": drawn("k", d2),
        "start_positions": starts if d.option("starts") else None,
        "qkv_split_arg_list": list(split),
        "qkv_format": int(length == 1),
        "interleaved": d.option("interleaved", False),
        "cp_size": cp_size,
        "cp_rank": cp_rank,
    }


def _parts_args(d: Draw) -> dict[str, Any]:
    of = _packed_args(d)
    del of["start_positions"]
    q, k, v = _split(of.pop("qkv_input"), of["qkv_split_arg_list"])
    return {"q_grad_out": q.contiguous(), "k_grad_out": k.contiguous(), "v_grad_out": v.contiguous(), **of}


def _split(qkv: Tensor, split: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The three parts; q in heads of k's size."""
    q, k, v = qkv.split(split, -1)
    return q.unflatten(-1, (split[0] // split[1], split[1])).flatten(2, 3), k, v


PACKED, PARTS = Maker(_packed_args, SPLITS), Maker(_parts_args, SPLITS)
QKV_WAYS = (
    ("q_freqs", lambda t: t.half(), TypeError, "must be float32; got float16"),
    ("k_freqs", lambda t: t[:2], ValueError, "must have 6 positions or more"),
    ("qkv_split_arg_list", lambda v: [16, 16], ValueError, "must have 3 items; got 2"),
    ("qkv_split_arg_list", lambda v: [20, 16, 12], ValueError, "must have a first number that is a multiple"),
    ("qkv_format", lambda v: 2, ValueError, "must be one of NVTE_SBHD, NVTE_BSHD; got 2"),
    ("interleaved", lambda v: "no", TypeError, "must be a bool; got str"),
)


@adapt(
    "tex::fused_qkv_rope_forward",
    over=rope_fwd,
    out="q k v",
    samples=PACKED,
    errors=_tex_wrong(
        PACKED, SPLITS[0], (("qkv_input", lambda t: t[..., 1:], ValueError, "must have shape .*48.*got"), *QKV_WAYS)
    ),
)
def fused_qkv_rope_forward(
    call: Any,
    qkv_input: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    start_positions: Tensor | None,
    qkv_split_arg_list: list[int],
    qkv_format: Any,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of packed heads [.., h, sum of the list]: rope_fwd of q, in heads of k's size, and of k; v as it is."""
    with torch.no_grad():
        name, where = "fused_qkv_rope_forward", (qkv_format, interleaved, cp_size, cp_rank)
        layout = check_packed(name, qkv_input, q_freqs, k_freqs, start_positions, qkv_split_arg_list, *where)
        starts = start_positions if cp_size == 1 else None  # as NVIDIA's: here, and in none of the others
        q, k, v = _split(qkv_input, list(qkv_split_arg_list))
        how = (None, starts, None, layout, bool(interleaved), cp_size, cp_rank)
        q, k = call(q, q_freqs.squeeze((1, 2)), *how), call(k, k_freqs.squeeze((1, 2)), *how)
        return q, k, rounded(v, v.dtype)


@adapt(
    "tex::fused_qkv_rope_backward",
    over=rope_bwd,
    out="dqkv",
    samples=PARTS,
    errors=_tex_wrong(
        PARTS, SPLITS[0], (("v_grad_out", lambda t: t[1:], ValueError, "must have shape .*got"), *QKV_WAYS)
    ),
)
def fused_qkv_rope_backward(
    call: Any,
    q_grad_out: Tensor,
    k_grad_out: Tensor,
    v_grad_out: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    qkv_split_arg_list: list[int],
    qkv_format: Any,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """The gradient of fused_qkv_rope_forward's packed heads; places count from 0, as NVIDIA's."""
    with torch.no_grad():
        name, where = "fused_qkv_rope_backward", (qkv_format, interleaved, cp_size, cp_rank)
        given = (q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, qkv_split_arg_list)
        layout = check_parts(name, *given, *where)
        how = (None, None, None, layout, bool(interleaved), cp_size, cp_rank)
        dq = call(q_grad_out, q_freqs.squeeze((1, 2)), *how)
        dk = call(k_grad_out, k_freqs.squeeze((1, 2)), *how)
        return torch.cat([dq.reshape(*dk.shape[:3], qkv_split_arg_list[0]), dk, v_grad_out], -1)
