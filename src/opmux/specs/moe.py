"""Mixture of experts: tokens brought into the order of their experts and back; and tex's permutation and row padding.

Each of T tokens goes to topk experts. A row map says where: row_map[k * T + t] is the row of token t's k-th copy among
the rows in order of experts, -1 where that was dropped (as is a row that is not there). The map is int32 and
topk-major, as NVIDIA's.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.adapter import adapt
from ..core.spec import BadSample, BadSamples, Tol, op
from ._numeric import FLOATS, dtype_name
from ._tex import FP8_MAX, check_int, check_list, check_tensor
from .samples import Case, Draw, Maker

FP8 = tuple(FP8_MAX)
NUMBERS = (*FLOATS, *FP8)
INTS = (torch.int32, torch.int64)
EXACT = {torch.int32: Tol(0, 0)}
# Sums of a few rows, each addition rounded to 16 bits: one that falls the other way is all there can be.
SUMS = {torch.float16: Tol(2e-3, 4e-3), torch.bfloat16: Tol(1.6e-2, 3e-2), torch.float32: Tol(1e-5, 1e-5)}


# ---- what must be refused -------------------------------------------------------------------------------------------


def check_map(op: str, row_map: Tensor, topk: int, tokens: int | None, on: Tensor, name: str = "row_map") -> None:
    """Refuse what is no map of so many tokens (None: of any number) times topk."""
    if topk < 1:
        raise ValueError(f"{op}: topk must be at least 1; got {topk}")
    check_tensor(op, name, row_map, dtypes=(torch.int32,), dims=1, on=on)
    if tokens is None and row_map.shape[0] % topk:
        raise ValueError(f"{op}: {name} must have {topk} rows for each token; got {tuple(row_map.shape)}")
    if tokens is not None and row_map.shape[0] != tokens * topk:
        raise ValueError(f"{op}: {name} must have shape ({tokens * topk},), tokens x topk; got {tuple(row_map.shape)}")


def check_spread(op: str, x: Tensor, row_map: Tensor, topk: int, rows: int) -> None:
    check_tensor(op, "x", x, dtypes=(*NUMBERS, torch.uint8), dims=2)
    check_map(op, row_map, topk, x.shape[0], x)
    if rows < 0:
        raise ValueError(f"{op}: rows must be at least 0; got {rows}")


def check_collect(
    op: str, x: Tensor, row_map: Tensor, probs: Tensor | None, topk: int, dy: Tensor | None = None, lead: str = "x"
) -> None:
    check_tensor(op, lead, x, dtypes=NUMBERS, dims=2)
    check_map(op, row_map, topk, None, x)
    tokens = row_map.shape[0] // topk
    if probs is not None:
        check_tensor(op, "probs", probs, shape=(tokens, topk), on=x, of="tokens x topk")
    if dy is not None:
        check_tensor(op, "dy", dy, dtypes=(x.dtype,), shape=(tokens, x.shape[1]), on=x, of="tokens x columns of x")


# ---- primitives -----------------------------------------------------------------------------------------------------


def _indices(d: Draw, tokens: int, topk: int) -> Tensor:
    """Different experts for a token, out of few; the last expert gets nothing."""
    experts = topk + 2
    drawn = Draw(Case((tokens, experts), options={"of": d.case.id}), torch.float32, torch.device("cpu")).full()
    return drawn.argsort(-1)[:, :topk].to(d.device, torch.int32)


TOKENS = (
    Case((5, 64)),
    Case((7, 37), options={"topk": 3}),
    Case((6, 100), "step", {"topk": 2, "rows": 8}),
    Case((4, 16), "t", {"topk": 2, "probs": True}),
    Case((5, 40), "sliced", {"topk": 3, "rows": 9, "probs": True}),
    Case((1, 1), options={"probs": True}),
    Case((0, 8), options={"topk": 2}),
    Case((3, 0), options={"topk": 2, "probs": True}),
)


def _map_args(d: Draw) -> dict[str, Any]:
    return {"indices": _indices(d, d.case.shape[0], d.option("topk", 1)), "rows": d.option("rows", 0)}


def _spread_args(d: Draw) -> dict[str, Any]:
    x, topk = d.full(), d.option("topk", 1)
    row_map = moe_row_map.reference(**_map_args(d))
    return {"x": x, "row_map": row_map, "topk": topk, "rows": d.option("rows", 0)}


def _collect_args(d: Draw) -> dict[str, Any]:
    tokens, topk = d.case.shape[0], d.option("topk", 1)
    rows = d.option("rows", 0) or tokens * topk
    drawn = lambda name, shape, layout: Draw(
        Case(shape, layout, {"of": d.case.id, "name": name}), d.dtype, d.device
    ).full()
    x = drawn("rows", (rows, d.case.shape[1]), d.case.layout)
    probs = drawn("probs", (tokens, topk), "packed").float().abs() if d.option("probs") else None
    return {"x": x, "row_map": moe_row_map.reference(**_map_args(d)), "probs": probs, "topk": topk}


def _spread_bwd_args(d: Draw) -> dict[str, Any]:
    of = _collect_args(d)
    return {"dy": of["x"], "row_map": of["row_map"], "topk": of["topk"]}


def _collect_bwd_args(d: Draw) -> dict[str, Any]:
    return {"dy": d.full(), **_collect_args(d)}


MAPS, SPREADS, SPREADS_BWD = (Maker(args, TOKENS) for args in (_map_args, _spread_args, _spread_bwd_args))
COLLECTS, COLLECTS_BWD = (Maker(args, TOKENS) for args in (_collect_args, _collect_bwd_args))
Way = tuple[str, Callable[[Any], Any], type[Exception], str]


def _wrong(good: Maker, *ways: Way, case: Case = Case((5, 64), options={"topk": 2, "probs": True})) -> BadSamples:  # noqa: B008
    def bad(device: torch.device) -> Iterator[BadSample]:
        for number, (name, spoil, error, says) in enumerate(ways):
            args = good.named(case, torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {number}")

    return bad


MAP_WAYS: tuple[Way, ...] = (
    ("row_map", lambda t: t.long(), TypeError, "must be int32; got int64"),
    ("row_map", lambda t: t[:-1], ValueError, "must have"),
    ("topk", lambda v: 0, ValueError, "must be at least 1; got 0"),
)
ROW_WAYS: tuple[Way, ...] = (
    ("x", lambda t: t.int(), TypeError, "must be .*float32.*got int32"),
    ("x", lambda t: t[0], ValueError, "must have 2 dimensions"),
)


@op(
    out="row_map",
    samples=MAPS,
    tol=EXACT,
    errors=_wrong(
        MAPS,
        ("indices", lambda t: t.float(), TypeError, "must be int32 or int64; got float32"),
        ("indices", lambda t: t[0], ValueError, "must have 2 dimensions"),
        ("rows", lambda v: -1, ValueError, "must be at least 0; got -1"),
    ),
)
def moe_row_map(indices: Tensor, rows: int = 0) -> Tensor:
    """The row map of tokens' experts [T, topk]: rows in order of experts, those of one expert in order of tokens.

    Of the rows the first `rows` are kept, 0 for all; int32 [topk * T].
    """
    check_indices("moe_row_map", indices, rows)
    tokens, topk = indices.shape
    order = torch.sort(indices.reshape(-1), stable=True).indices
    return row_map_of(order, tokens, topk, rows)


def check_indices(op: str, indices: Tensor, rows: int) -> None:
    check_tensor(op, "indices", indices, dtypes=INTS, dims=2)
    if rows < 0:
        raise ValueError(f"{op}: rows must be at least 0; got {rows}")


def row_map_of(order: Tensor, tokens: int, topk: int, rows: int) -> Tensor:
    row = torch.arange(order.shape[0], device=order.device, dtype=torch.int32)
    row = torch.where(row < (rows or order.shape[0]), row, -1)
    at = order % topk * tokens + order // topk
    return torch.empty_like(row).scatter_(0, at, row)


@op(
    grad="moe_spread_bwd",
    samples=SPREADS,
    errors=_wrong(SPREADS, *ROW_WAYS, *MAP_WAYS, ("rows", lambda v: -1, ValueError, "must be at least 0; got -1")),
)
def moe_spread(x: Tensor, row_map: Tensor, topk: int = 1, rows: int = 0) -> Tensor:
    """y[row_map[k * T + t]] = x[t]: `rows` rows, 0 for T * topk. The map names each once; beyond T * topk are zeros."""
    check_spread("moe_spread", x, row_map, topk, rows)
    y = x.new_zeros(rows or x.shape[0] * topk, x.shape[1])
    if not y.numel():
        return y
    # what is dropped goes to a row of its own, which is cut off
    at = torch.where(_missing(row_map, y.shape[0]), y.shape[0], row_map).long()
    spare = torch.cat([_raw(y), _raw(y[:1])])
    spare = spare.index_copy(0, at, _raw(x).repeat(topk, 1))
    return _as(spare[:-1].contiguous(), x.dtype)


def _missing(rows: Tensor, count: int) -> Tensor:
    return (rows < 0) | (rows >= count)


def _raw(x: Tensor) -> Tensor:
    """The same rows, as bytes where torch can do nothing else with them."""
    return x.view(torch.uint8) if x.dtype in FP8 else x


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `_raw`. A view in a tensor's own dtype would cut it off from its gradient."""
    return x if x.dtype is dtype else x.view(dtype)


@op(
    out="dx",
    samples=SPREADS_BWD,
    tol=SUMS,
    errors=_wrong(
        SPREADS_BWD,
        ("dy", lambda t: t.int(), TypeError, "must be .*float32.*got int32"),
        ("dy", lambda t: t[0], ValueError, "must have 2 dimensions"),
        *MAP_WAYS,
    ),
)
def moe_spread_bwd(dy: Tensor, row_map: Tensor, topk: int = 1) -> Tensor:
    """dx[t] = the sum of dy[row_map[k * T + t]] over k; added up as in moe_collect."""
    check_collect("moe_spread_bwd", dy, row_map, None, topk, lead="dy")
    return collected(dy, row_map, None, topk)


@op(
    grad="moe_collect_bwd",
    samples=COLLECTS,
    tol=SUMS,
    errors=_wrong(
        COLLECTS,
        *ROW_WAYS,
        *MAP_WAYS,
        ("probs", lambda t: t[:, :1], ValueError, r"must have shape \(5, 2\)"),
        ("probs", lambda t: t.int(), TypeError, "must be .*got int32"),
    ),
)
def moe_collect(x: Tensor, row_map: Tensor, probs: Tensor | None = None, topk: int = 1) -> Tensor:
    """y[t] = the sum of probs[t, k] * x[row_map[k * T + t]] over k, without what was dropped.

    As NVIDIA's: probs are rounded to x's dtype first, and so is every product and every sum. Of float8 that dtype is
    float16, and without probs the sum is divided by topk.
    """
    check_collect("moe_collect", x, row_map, probs, topk)
    return collected(x, row_map, probs, topk)


def working(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype in FP8 else dtype


def finished(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A result in its dtype; float8 has no infinities to fall into."""
    return x.clamp(-FP8_MAX[dtype], FP8_MAX[dtype]).to(dtype) if dtype in FP8 else x


def _picked(x: Tensor, rows: Tensor) -> Tensor:
    """The rows of x, zeros where there is none."""
    if not x.shape[0]:
        return x.new_zeros(rows.shape[0], x.shape[1]).to(working(x.dtype))
    found = _as(_raw(x)[rows.clamp(0, x.shape[0] - 1).long()], x.dtype).to(working(x.dtype))
    return torch.where(_missing(rows, x.shape[0])[:, None], 0, found)


def collected(x: Tensor, row_map: Tensor, probs: Tensor | None, topk: int) -> Tensor:
    total = None
    for k, rows in enumerate(row_map.view(topk, -1)):
        one = _picked(x, rows)
        if probs is not None:
            weighted = one * probs[:, k : k + 1].to(one.dtype)
            one = torch.where(_missing(rows, x.shape[0])[:, None], 0, weighted)
        total = one if total is None else total + one
    assert total is not None
    if probs is None and x.dtype in FP8:
        total = total / topk
    return finished(total, x.dtype)


@op(
    out="dx dprobs",
    samples=COLLECTS_BWD,
    tol=SUMS,
    errors=_wrong(
        COLLECTS_BWD,
        ("dy", lambda t: t[1:], ValueError, r"must have shape \(5, 64\)"),
        ("dy", lambda t: t.half(), TypeError, "must be float32; got float16"),
        *ROW_WAYS,
        *MAP_WAYS,
        ("probs", lambda t: t[:, :1], ValueError, r"must have shape \(5, 2\)"),
    ),
)
def moe_collect_bwd(
    dy: Tensor, x: Tensor, row_map: Tensor, probs: Tensor | None = None, topk: int = 1
) -> tuple[Tensor, Tensor]:
    """With r = row_map[k * T + t]: dx[r] = probs[t, k] * dy[t], in x's dtype; dprobs[t, k] = dy[t] . x[r], added up in
    float32, in probs' dtype; zeros where there are no probs, or the row was dropped."""
    check_collect("moe_collect_bwd", x, row_map, probs, topk, dy)
    tokens, dtype = row_map.shape[0] // topk, working(x.dtype)
    dx, slopes = torch.zeros_like(_raw(x), memory_format=torch.contiguous_format), []
    spare = torch.cat([dx, dx.new_zeros(1, x.shape[1])])
    g = dy.to(dtype)
    for k, rows in enumerate(row_map.view(topk, -1)):
        one = g if probs is None else g * probs[:, k : k + 1].to(dtype)
        at = torch.where(_missing(rows, x.shape[0]), x.shape[0], rows).long()
        spare = spare.index_copy(0, at, _raw(finished(one, x.dtype)))
        if probs is not None:
            wider = torch.float64 if dtype is torch.float64 else torch.float32
            slopes.append((g.to(wider) * _picked(x, rows).to(wider)).sum(-1))
    dx = _as(spare[:-1].contiguous(), x.dtype)
    if probs is None:
        return dx, torch.zeros(tokens, topk, dtype=torch.float32, device=x.device)
    return dx, torch.stack(slopes, 1).to(probs.dtype)


# ---- tex: NVIDIA's names and signatures -----------------------------------------------------------------------------


def _numbers(op: str, name: str, x: Any, dtype: Any, rows: int | None = None, on: Tensor | None = None) -> Tensor:
    """A tensor of rows in the dtype it is of: float8 comes as bytes."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{op}: dtype must be a DType; got {dtype!r}")
    check_tensor(op, name, x, dtypes=(*NUMBERS, torch.uint8), shape=(rows, None), on=on)
    if x.dtype == dtype or (x.dtype is torch.uint8 and dtype in FP8):
        return x if x.dtype == dtype else x.view(dtype)
    raise TypeError(f"{op}: {name} must be {dtype_name(dtype)}, as dtype says; got {dtype_name(x.dtype)}")


def _probs(op: str, prob: Any, shape: tuple[int, int] | None, on: Tensor) -> Tensor | None:
    """Probabilities, or None of an empty tensor."""
    check_tensor(op, "prob", prob, dtypes=None)
    if not prob.numel():
        return None
    check_tensor(op, "prob", prob, dtypes=(torch.float32,), dims=2, on=on)
    check_tensor(op, "prob", prob, dtypes=None, shape=shape or tuple(prob.shape), of="tokens x topK")
    return prob


def _tex_map(op: str, row_id_map: Any, tokens: Any, topk: Any, on: Tensor) -> None:
    check_int(op, "num_tokens", tokens, 0)
    check_int(op, "topK", topk, 1)
    check_tensor(op, "row_id_map", row_id_map, dtypes=(torch.int32,), shape=(tokens * topk,), on=on, of="tokens x topK")


def _permute_args(d: Draw) -> dict[str, Any]:
    return {
        "input": _drawn(d),
        "dtype": d.option("fp8", d.dtype),
        "indices": _indices(d, d.case.shape[0], d.option("topk", 1)),
        "num_out_tokens": d.option("rows", 0),
        "workspace": [],
        "max_expanded_token_num": d.case.shape[0] * d.option("topk", 1),
    }


def _drawn(d: Draw, x: Tensor | None = None) -> Tensor:
    x = d.full() if x is None else x
    return x.to(d.option("fp8")).view(torch.uint8) if d.option("fp8") else x


def _unpermute_args(d: Draw) -> dict[str, Any]:
    of = _collect_args(d)
    return {
        "input": _drawn(d, of["x"]),
        "dtype": d.option("fp8", d.dtype),
        "row_id_map": of["row_map"],
        "prob": torch.empty(0) if of["probs"] is None else of["probs"],
        "num_tokens": d.case.shape[0],
        "topK": of["topk"],
    }


def _unpermute_bwd_args(d: Draw) -> dict[str, Any]:
    of = _unpermute_args(d)
    return {
        "input_bwd": _drawn(d),
        "input_fwd": of["input"],
        **{k: of[k] for k in ("dtype", "row_id_map", "prob")},
    }


TEX_TOKENS = (*TOKENS, Case((5, 32), options={"topk": 2, "probs": True, "fp8": torch.float8_e4m3fn}),
              Case((5, 32), options={"topk": 3, "rows": 11, "fp8": torch.float8_e5m2}))  # fmt: skip
PERMUTES, UNPERMUTES = Maker(_permute_args, TEX_TOKENS), Maker(_unpermute_args, TEX_TOKENS)
UNPERMUTES_BWD = Maker(
    _unpermute_bwd_args, tuple(c for c in TEX_TOKENS if c.options.get("probs") or c.shape == (5, 64))
)
TEX_WAYS: tuple[Way, ...] = (
    ("row_id_map", lambda t: t.long(), TypeError, "must be int32; got int64"),
    ("row_id_map", lambda t: t[:-1], ValueError, r"must have shape \(10\)"),
    ("prob", lambda t: t[:, :1], ValueError, r"must have shape \(5, 2\)"),
    ("prob", lambda t: t.double(), TypeError, "must be float32; got float64"),
    ("num_tokens", lambda v: -1, ValueError, "must be at least 0"),
    ("topK", lambda v: 0, ValueError, "must be at least 1"),
)


@adapt(
    "tex::moe_permute_fwd",
    over=(moe_row_map, moe_spread),
    out="permuted row_id_map workspace",
    samples=PERMUTES,
    errors=_wrong(
        PERMUTES,
        ("input", lambda t: t.half(), TypeError, "must be float32, as dtype says; got float16"),
        ("dtype", lambda v: "float32", TypeError, "must be a torch.dtype; got 'float32'"),
        ("indices", lambda t: t[:-1], ValueError, r"must have shape \(5, any\)"),
        ("num_out_tokens", lambda v: -1, ValueError, "must be at least 0; got -1"),
        ("workspace", lambda v: None, TypeError, "must be a list; got None"),
    ),
)
def moe_permute_fwd(
    call: Any,
    input: Tensor,
    dtype: torch.dtype,
    indices: Tensor,
    num_out_tokens: int,
    workspace: list[Tensor],
    max_expanded_token_num: int,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(rows of input in order of their experts, the row map, the workspace): of num_out_tokens rows, 0 for all.

    The workspace is NVIDIA's scratch memory; nothing is needed here, and it is handed back as it came.
    """
    with torch.no_grad():
        name = "moe_permute_fwd"
        x = _numbers(name, "input", input, dtype)
        check_tensor(name, "indices", indices, dtypes=INTS, shape=(x.shape[0], None), on=x, of="a row for each token")
        check_int(name, "num_out_tokens", num_out_tokens, 0)
        check_list(name, "workspace", workspace, lambda item, t: check_tensor(name, item, t, dtypes=None))
        check_int(name, "max_expanded_token_num", max_expanded_token_num, 0)
        if not indices.shape[1]:
            raise ValueError(f"{name}: indices must have one column or more; got {tuple(indices.shape)}")
        row_map = call.moe_row_map(indices, num_out_tokens)
        permuted = call.moe_spread(input, row_map, indices.shape[1], num_out_tokens)
        return permuted, row_map, workspace


def _unpermuted(
    call: Any, op: str, input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, tokens: int, topk: int
) -> Tensor:
    with torch.no_grad():
        x = _numbers(op, "input", input, dtype)
        _tex_map(op, row_id_map, tokens, topk, x)
        y = call(x, row_id_map, _probs(op, prob, (tokens, topk), x), topk)
        return y if y.dtype is input.dtype else y.view(input.dtype)


UNPERMUTE_WRONG = _wrong(
    UNPERMUTES, ("input", lambda t: t.half(), TypeError, "must be float32, as dtype says; got float16"), *TEX_WAYS
)


@adapt("tex::moe_permute_bwd", over=moe_collect, samples=UNPERMUTES, errors=UNPERMUTE_WRONG, tol=SUMS)
def moe_permute_bwd(
    call: Any, input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int
) -> Tensor:
    """The gradient of moe_permute_fwd's input: moe_unpermute_fwd of the rows' gradient."""
    return _unpermuted(call, "moe_permute_bwd", input, dtype, row_id_map, prob, num_tokens, topK)


@adapt("tex::moe_unpermute_fwd", over=moe_collect, samples=UNPERMUTES, errors=UNPERMUTE_WRONG, tol=SUMS)
def moe_unpermute_fwd(
    call: Any, input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int
) -> Tensor:
    """Each token the sum of its rows, times prob [num_tokens, topK] where that is not empty; as moe_collect."""
    return _unpermuted(call, "moe_unpermute_fwd", input, dtype, row_id_map, prob, num_tokens, topK)


@adapt(
    "tex::moe_unpermute_bwd",
    over=moe_collect_bwd,
    out="act_grad prob_grad",
    samples=UNPERMUTES_BWD,
    tol=SUMS,
    errors=_wrong(
        UNPERMUTES_BWD,
        ("input_bwd", lambda t: t[1:], ValueError, r"must have shape \(5, 64\)"),
        ("input_fwd", lambda t: t.half(), TypeError, "must be float32, as dtype says; got float16"),
        *(way for way in TEX_WAYS if way[0] == "row_id_map"),
    ),
)
def moe_unpermute_bwd(
    call: Any, input_bwd: Tensor, input_fwd: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor
) -> tuple[Tensor, Tensor]:
    """(gradient of moe_unpermute_fwd's input, of prob in float32); an empty prob stands for topK = 1 and no prob."""
    with torch.no_grad():
        name = "moe_unpermute_bwd"
        x = _numbers(name, "input_fwd", input_fwd, dtype)
        probs = _probs(name, prob, None, x)
        check_tensor(name, "row_id_map", row_id_map, dtypes=(torch.int32,), dims=1, on=x)
        tokens, topk = (row_id_map.shape[0], 1) if probs is None else tuple(probs.shape)
        _tex_map(name, row_id_map, tokens, topk, x)
        dy = _numbers(name, "input_bwd", input_bwd, dtype, on=x)
        check_tensor(name, "input_bwd", dy, dtypes=None, shape=(tokens, x.shape[1]), of="tokens x columns of input_fwd")
        dx, dprobs = call(dy, x, row_id_map, probs, topk)
        return dx if dx.dtype is input_bwd.dtype else dx.view(input_bwd.dtype), dprobs


# ---- tex: rows padded, block by block -------------------------------------------------------------------------------


def check_blocks(
    op: str, input: Any, output: Any, given: Any, wanted: Any, names: tuple[str, str], padding: bool
) -> None:
    """Refuse blocks that do not fit the tensors, or each other."""
    check_tensor(op, "input", input, dtypes=None, dims=2)
    check_tensor(op, "output", output, dtypes=(input.dtype,), shape=(None, input.shape[1]), on=input, of="as input has")
    check_list(op, names[0], given, lambda item, n: check_int(op, item, n, 0))
    check_list(op, names[1], wanted, lambda item, n: check_int(op, item, n, 0), len(given))
    for i, (a, b) in enumerate(zip(given, wanted, strict=True)):
        if (a > b) if padding else (a < b):
            order = "at least" if padding else "at most"
            raise ValueError(f"{op}: {names[1]}[{i}] must be {order} {a}, that of {names[0]}; got {b}")
    for name, rows, tensor, t in ((names[0], given, "input", input), (names[1], wanted, "output", output)):
        if sum(rows) > t.shape[0]:
            raise ValueError(f"{op}: {name} must add up to at most {t.shape[0]}, the rows of {tensor}; got {sum(rows)}")


PAD_NAMES, UNPAD_NAMES = (("input_row_list", f"{p}_row_list") for p in ("padded_input", "unpadded_input"))
BLOCKS = (
    Case((12, 64), options={"rows": (3, 0, 5, 4), "padded": (4, 0, 8, 4)}),
    Case((7, 37), options={"rows": (1, 0, 6), "padded": (16, 4, 16)}),
    Case((0, 8), options={"rows": (), "padded": ()}),
)


def _pad_args(d: Draw) -> dict[str, Any]:
    output = torch.full((sum(d.option("padded", ())), d.case.shape[1]), 7.0, dtype=d.dtype, device=d.device)
    rows = (list(d.option("rows")), list(d.option("padded")))
    return {"input": d.full(), "output": output, **dict(zip(PAD_NAMES, rows, strict=True))}


def _unpad_args(d: Draw) -> dict[str, Any]:
    of = _pad_args(d)
    rows = (of["padded_input_row_list"], of["input_row_list"])
    padded = Draw(Case((sum(rows[0]), d.case.shape[1])), d.dtype, d.device).full()
    output = torch.full((sum(rows[1]), d.case.shape[1]), 7.0, dtype=d.dtype, device=d.device)
    return {"input": padded, "output": output, **dict(zip(UNPAD_NAMES, rows, strict=True))}


PADS, UNPADS = Maker(_pad_args, BLOCKS), Maker(_unpad_args, BLOCKS)
BLOCK_WAYS: tuple[Way, ...] = (
    ("input", lambda t: t[0], ValueError, "must have 2 dimensions"),
    ("output", lambda t: t.double(), TypeError, "must be float32; got float64"),
    ("output", lambda t: t[:, 1:], ValueError, r"must have shape \(any, 64\)"),
    ("input_row_list", lambda v: 3, TypeError, "must be a list; got int"),
)


@op(
    space="tex",
    out="",
    mutates=("output",),
    samples=PADS,
    errors=_wrong(
        PADS,
        *BLOCK_WAYS,
        ("padded_input_row_list", lambda v: v[:-1], ValueError, "must have 4 items; got 3"),
        ("input_row_list", lambda v: [4, 0, 5, 4], ValueError, "must add up to at most 12, the rows of input; got 13"),
        case=BLOCKS[0],
    ),
)
def fused_multi_row_padding(
    input: Tensor, output: Tensor, input_row_list: list[int], padded_input_row_list: list[int]
) -> None:
    """Writes blocks of rows to output, each followed by zeros up to its padded size; an empty one is passed over."""
    with torch.no_grad():
        lists = (input_row_list, padded_input_row_list)
        check_blocks("fused_multi_row_padding", input, output, *lists, PAD_NAMES, padding=True)
        at = to = 0
        for rows, padded in zip(input_row_list, padded_input_row_list, strict=True):
            if rows:
                output[to : to + rows].copy_(input[at : at + rows])
                output[to + rows : to + padded].zero_()
            at, to = at + rows, to + padded


@op(
    space="tex",
    out="",
    mutates=("output",),
    samples=UNPADS,
    errors=_wrong(
        UNPADS,
        *BLOCK_WAYS,
        ("unpadded_input_row_list", lambda v: v[:-1], ValueError, "must have 4 items; got 3"),
        case=BLOCKS[0],
    ),
)
def fused_multi_row_unpadding(
    input: Tensor, output: Tensor, input_row_list: list[int], unpadded_input_row_list: list[int]
) -> None:
    """Writes the first rows of each block of input to output, where blocks follow each other without padding."""
    with torch.no_grad():
        lists = (input_row_list, unpadded_input_row_list)
        check_blocks("fused_multi_row_unpadding", input, output, *lists, UNPAD_NAMES, padding=False)
        at = to = 0
        for rows, kept in zip(input_row_list, unpadded_input_row_list, strict=True):
            output[to : to + kept].copy_(input[at : at + kept])
            at, to = at + rows, to + kept
