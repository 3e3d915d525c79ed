"""Attention: o = softmax(q k^T * scale) v, forward and backward.

Tensors are [batch, heads, seq, dim]. k and v may have fewer heads than q (grouped queries): each of theirs then serves
as many adjacent heads of q as their number divides it by. v may have a dim of its own, which is o's.

`causal` is aligned to the bottom right: the last query sees every key, the one before all but the last, and where there
are fewer keys than queries the first queries see none. A query that sees nothing gives o = 0 and lse = -inf.

It computes in float32 (float64 for float64 inputs) and rounds once, into fresh results. o and dq lie in memory as q
does, dk as k, dv as v: contiguous, or, where the sequence has the greater stride than the heads, as a contiguous
[batch, seq, heads, dim] or, where it has the greatest of all, [seq, batch, heads, dim]. Those are what projections give
and kernels write.

`attention_varlen` is for sequences of any lengths, one after another: [tokens, heads, dim].
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Tol, op
from ._masked_attention import Masking, masked_backward, masked_forward
from ._numeric import FLOATS, check_dtype, dtype_name, rounded, wide
from ._sequences import Lengths, packed, unpacked
from .samples import WRONG, Case, Draw, Maker

# Kernels round probabilities to the inputs' dtype before they multiply by v, and the gradient's products likewise.
TOL = {
    torch.float32: Tol(1e-5, 1e-4),
    torch.float16: Tol(4e-3, 4e-3),
    torch.bfloat16: Tol(3e-2, 3e-2),
}


def fits(q: Tensor, k: Tensor, v: Tensor, o: Tensor | None, do: Tensor | None, lse: Tensor | None) -> bool:
    """Whether all is right, in as few questions as will do: a library's call is not much longer."""
    of_q, of_k, of_v, dtype, device = q.shape, k.shape, v.shape, q.dtype, q.device
    if not len(of_q) == len(of_k) == len(of_v) == 4 or dtype not in FLOATS:
        return False
    (b, h, _, d), (n, heads, _, dim) = of_q, of_k
    if n != b or dim != d or of_v[:3] != of_k[:3] or not heads or h % heads:
        return False
    if not (k.dtype == v.dtype == dtype and k.device == v.device == device):
        return False
    if o is None or do is None or lse is None:
        return o is do is lse is None
    if o.shape != (*of_q[:3], of_v[3]) or do.shape != o.shape or lse.shape != of_q[:3]:
        return False
    kinds = o.dtype == dtype and do.dtype in FLOATS and lse.dtype in FLOATS
    return kinds and o.device == do.device == lse.device == device


def check(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    do: Tensor | None = None,
    lse: Tensor | None = None,
) -> None:
    """Refuse what does not fit together: ranks, heads, lengths, dtypes, devices."""
    if fits(q, k, v, o, do, lse):
        return
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 4:
            raise ValueError(f"{op}: {name} must be [batch, heads, seq, dim]; got {tuple(t.shape)}")
    (b, h, sq, d), (_, h_kv, sk, _), dim = q.shape, k.shape, v.shape[3]
    if h_kv == 0 or h % h_kv:
        raise ValueError(f"{op}: k must have heads that divide q's evenly; got {h_kv} for {h}")
    expected = (
        ("q", q, q.shape, ""),
        ("k", k, (b, h_kv, sk, d), "batch and dim of q"),
        ("v", v, (b, h_kv, sk, dim), "batch, heads and seq of k"),
        ("o", o, (b, h, sq, dim), "batch, heads and seq of q, dim of v"),
        ("do", do, (b, h, sq, dim), "that of o"),
        ("lse", lse, (b, h, sq), "batch, heads and seq of q"),
    )
    for name, t, wanted, what in expected:
        if t is None:
            continue
        check_dtype(op, name, t.dtype)
        if t.shape != wanted:
            raise ValueError(f"{op}: {name} must have shape {tuple(wanted)}, {what}; got {tuple(t.shape)}")
        if t.device != q.device:
            raise ValueError(f"{op}: {name} must be on {q.device}, the device of q; got {t.device}")
        if t.dtype != q.dtype and name in ("k", "v", "o"):
            raise ValueError(f"{op}: {name} must be {dtype_name(q.dtype)}, the dtype of q; got {dtype_name(t.dtype)}")


def order(t: Tensor) -> tuple[int, int, int, int]:
    """The order in which results that follow a tensor lie: its dimensions, the outermost first."""
    b, h, s, _ = t.stride()
    if h >= s:
        return (0, 1, 2, 3)
    return (2, 0, 1, 3) if h <= b < s else (0, 2, 1, 3)


def room(like: Tensor, dim: int | None = None) -> Tensor:
    """A result to be: like a tensor in shape (but for another dim), dtype and order."""
    shape = (*like.shape[:3], like.shape[3] if dim is None else dim)
    return torch.empty_permuted(shape, order(like), dtype=like.dtype, device=like.device)


def _grouped(t: Tensor, kv_heads: int) -> Tensor:
    """[batch, kv heads, heads of each, seq, dim] of q, o or do; [batch, kv heads, 1, seq, dim] of k or v."""
    return t.reshape(t.shape[0], kv_heads, t.shape[1] // kv_heads, t.shape[2], t.shape[3])


def scale_of(q: Tensor, scale: float | None) -> float:
    return torch.sym_max(q.shape[-1], 1) ** -0.5 if scale is None else scale


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    """q k^T * scale of grouped q and k, -inf where a query does not see a key."""
    s = (q @ k.mT) * scale
    if not causal:
        return s
    sq, sk = s.shape[-2:]
    i = torch.arange(sq, device=s.device)[:, None]
    j = torch.arange(sk, device=s.device)[None, :]
    return s.masked_fill(j > i + (sk - sq), -torch.inf)


def _probabilities(s: Tensor, lse: Tensor) -> Tensor:
    """exp(s - lse); 0 in rows that see nothing, where both are -inf."""
    return torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])


# ---- samples --------------------------------------------------------------------------------------------------------


def _drawn(d: Draw, name: str, shape: tuple[int, ...]) -> Tensor:
    return Draw(Case(shape, d.case.layout, {"of": d.case.id, "name": name}), d.dtype, d.device).full()


def _args(d: Draw) -> dict[str, Any]:
    """Options: kv_heads, keys (their number), dim_v, causal, scale, large (what q is multiplied by)."""
    b, h, s, dim = d.case.shape
    kv_heads, keys = d.option("kv_heads", h), d.option("keys", s)
    return {
        "q": d.full(d.option("large", 1.0)),
        "k": _drawn(d, "k", (b, kv_heads, keys, dim)),
        "v": _drawn(d, "v", (b, kv_heads, keys, d.option("dim_v", dim))),
        "causal": d.option("causal", False),
        "scale": d.option("scale"),
    }


CASES = (
    Case((2, 4, 37, 16)),
    Case((1, 4, 20, 8), options={"causal": True, "kv_heads": 2}),
    Case((1, 1, 1, 1)),
    Case((1, 2, 130, 64), options={"causal": True}),
    Case((2, 6, 5, 24), options={"causal": True, "kv_heads": 2, "keys": 40}),
    Case((2, 2, 40, 24), options={"causal": True, "keys": 5}),
    Case((1, 4, 1, 32), options={"causal": True, "kv_heads": 1, "keys": 70}),
    Case((1, 4, 33, 40), options={"kv_heads": 1, "keys": 70}),
    Case((1, 2, 9, 8), options={"dim_v": 16}),
    Case((1, 2, 9, 37), options={"scale": 0.3}),
    Case((1, 2, 16, 128), options={"large": 30.0}),
    Case((2, 3, 8, 16), "swapped"),
    Case((2, 3, 8, 16), "step"),
    Case((2, 3, 8, 16), "sliced"),
    Case((2, 3, 8, 16), "expanded"),
    Case((0, 2, 4, 8)),
    Case((2, 2, 0, 8)),
    Case((2, 2, 4, 8), options={"keys": 0}),
    Case((2, 2, 4, 0)),
)
GOOD = Maker(_args, CASES)

# How an argument is spoiled -> what it becomes, what is raised, what the message says of it.
SPOILED = {
    "flat": (lambda t: t[0], ValueError, r"must be \[batch, heads, seq, dim\]; got"),
    "short": (lambda t: t[..., :-1], ValueError, r"must have shape \(.*16\).*got \(.*15\)"),
    "early": (lambda t: t[:, :, :-1], ValueError, r"must have shape \(2, 4, 37.*got \(2, 4, 36"),
    "heads": (lambda t: t[:, :3], ValueError, "must have heads that divide q's evenly; got 3 for 4"),
    **{way: WRONG[way] for way in ("ints", "away", "dtype")},
}


def _wrong(good: Maker, **wrong: str) -> BadSamples:
    def bad(device: torch.device) -> Iterator[BadSample]:
        for name, way in ((n, w) for n, ways in wrong.items() for w in ways.split()):
            spoil, error, says = SPOILED[way]
            args = good.named(CASES[0], torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {way}")

    return bad


# ---- the ops --------------------------------------------------------------------------------------------------------


def _flops(products: int, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> int:
    """Of so many products over q's dim and as many over v's; pairs that causal hides are not counted."""
    b, h, sq, d = q.shape
    sk = k.shape[2]
    pairs = sum(max(0, min(sk, i + 1 + sk - sq)) for i in range(sq)) if causal else sq * sk
    return 2 * b * h * pairs * (products // 2 * (d + v.shape[3]) + products % 2 * d)


def _flops_fwd(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> int:
    return _flops(2, q, k, v, causal)


def _fake(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """The look of the results alone: a tracer need not follow the maths."""
    check("attention", q, k, v)
    return room(q, v.shape[3]), torch.empty(
        q.shape[:3], dtype=torch.float64 if q.dtype is torch.float64 else torch.float32, device=q.device
    )


@op(
    out="o lse",
    grad="attention_bwd",
    samples=GOOD,
    errors=_wrong(GOOD, q="flat ints", k="flat short ints away dtype heads", v="early ints away dtype"),
    tol=TOL,
    flops=_flops_fwd,
    fake=_fake,
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """o = softmax(s) v and lse = log(sum(exp(s))), float32, of the scores s = q k^T * scale (1 / sqrt(dim) by default);
    causal: a query sees the keys up to its own place, counted from the last of both."""
    check("attention", q, k, v)
    x, y, z = (_grouped(wide(t), k.shape[1]) for t in (q, k, v))
    s = _scores(x, y, causal, scale_of(q, scale))
    lse = torch.logsumexp(s, -1)
    o = _probabilities(s, lse) @ z
    return room(q, v.shape[3]).copy_(o.flatten(1, 2)), rounded(lse.flatten(1, 2), lse.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    of = _args(d)
    o, lse = attention.reference(**of)
    do = d.grad() if d.case.layout == "expanded" else _drawn(d, "do", tuple(o.shape))
    return {"do": do, **{n: of[n] for n in "qkv"}, "o": o, "lse": lse, "causal": of["causal"], "scale": of["scale"]}


# Not with scores of hundreds: what rounding o loses there is more than any tolerance that finds mistakes.
BWD = Maker(_bwd_args, tuple(c for c in CASES if "large" not in c.options))


def _flops_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: Any) -> int:
    """The scores again, and four products: two over q's dim, two over v's."""
    return _flops(5, q, k, v, causal)


def _fake_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    check("attention_bwd", q, k, v, o, do, lse)
    return room(q), room(k), room(v)


@op(
    out="dq dk dv",
    samples=BWD,
    errors=_wrong(BWD, do="short ints away", q="flat", k="heads", v="early", o="early dtype", lse="early away ints"),
    tol=TOL,
    flops=_flops_bwd,
    fake=_fake_bwd,
)
def attention_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """p = exp(s - lse), dp = do v^T, ds = p * (dp - sum(do * o)) * scale: dq = ds k, dk = ds^T q, dv = p^T do.

    lse and o are the forward's. They may be those of more keys than are here, as where a sequence's keys lie on several
    devices: the gradients are then these keys' part of the whole, which sum(p * dp) would not give.
    """
    check("attention_bwd", q, k, v, o, do, lse)
    groups, factor = k.shape[1], scale_of(q, scale)
    x, y, z = (_grouped(wide(t), groups) for t in (q, k, v))
    g = _grouped(do.to(x.dtype), groups)
    p = _probabilities(_scores(x, y, causal, factor), lse.to(x.dtype).reshape(g.shape[:-1]))
    total = (g * _grouped(o.to(x.dtype), groups)).sum(-1, keepdim=True)
    ds = p * (g @ z.mT - total) * factor
    dq, dk, dv = ds @ y, (ds.mT @ x).sum(2), (p.mT @ g).sum(2)
    return room(q).copy_(dq.flatten(1, 2)), room(k).copy_(dk), room(v).copy_(dv)


# ---- sequences one after another ------------------------------------------------------------------------------------


def check_varlen(
    op: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, o: Tensor | None = None,
    do: Tensor | None = None, lse: Tensor | None = None,
) -> None:  # fmt: skip
    """Refuse what does not fit together: ranks, heads, tokens, dtypes, devices."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 3:
            raise ValueError(f"{op}: {name} must be [tokens, heads, dim]; got {tuple(t.shape)}")
    (tokens, h, d), (keys, h_kv, _), dim = q.shape, k.shape, v.shape[2]
    if h_kv == 0 or h % h_kv:
        raise ValueError(f"{op}: k must have heads that divide q's evenly; got {h_kv} for {h}")
    expected = (
        ("q", q, (tokens, h, d), ""),
        ("k", k, (keys, h_kv, d), "dim of q"),
        ("v", v, (keys, h_kv, dim), "tokens and heads of k"),
        ("o", o, (tokens, h, dim), "tokens and heads of q, dim of v"),
        ("do", do, (tokens, h, dim), "that of o"),
        ("lse", lse, (h, tokens), "heads and tokens of q"),
    )
    for name, t, wanted, what in expected:
        if t is None:
            continue
        check_dtype(op, name, t.dtype)
        if t.shape != wanted:
            raise ValueError(f"{op}: {name} must have shape {tuple(wanted)}, {what}; got {tuple(t.shape)}")
        if t.device != q.device:
            raise ValueError(f"{op}: {name} must be on {q.device}, the device of q; got {t.device}")
        if t.dtype != q.dtype and name in ("k", "v", "o"):
            raise ValueError(f"{op}: {name} must be {dtype_name(q.dtype)}, the dtype of q; got {dtype_name(t.dtype)}")
    for name, t in (("cu_q", cu_q), ("cu_k", cu_k)):
        if t.dtype not in (torch.int32, torch.int64) or t.shape != cu_q.shape or t.dim() != 1 or not t.shape[0]:
            got = f"{dtype_name(t.dtype)} {tuple(t.shape)}"
            raise ValueError(f"{op}: {name} must be int32 or int64 [sequences + 1], as many of q as of k; got {got}")
        if t.device != q.device:
            raise ValueError(f"{op}: {name} must be on {q.device}, the device of q; got {t.device}")


def _unpacked(
    q: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int, right: int, scale: float | None
) -> tuple[Lengths, Lengths, Masking]:
    of_q, of_k = Lengths.of(cu_q), Lengths.of(cu_k)
    how = Masking(
        scale_of(q, scale), left=left, right=right, at_end=True, q_sizes=of_q.sizes, kv_sizes=of_k.sizes
    )  # fmt: skip
    return of_q, of_k, how


def _varlen_args(d: Draw) -> dict[str, Any]:
    """Options: keys (lengths of k's sequences), kv_heads, left, right, rest (tokens after the last sequence)."""
    tokens, h, dim = d.case.shape
    lengths = d.option("lengths", (tokens,))
    keys, kv_heads = d.option("keys", lengths), d.option("kv_heads", h)
    cu = lambda sizes: torch.tensor([0, *sizes], device=d.device).cumsum(0).int()
    return {
        "q": d.full(),
        "k": _drawn(d, "k", (sum(keys) + 1, kv_heads, dim)),
        "v": _drawn(d, "v", (sum(keys) + 1, kv_heads, dim)),
        "cu_q": cu(lengths),
        "cu_k": cu(keys),
        "max_q": max(lengths),
        "max_k": max(keys) + 1,
        "left": d.option("left", -1),
        "right": d.option("right", -1),
        "scale": d.option("scale"),
    }


VARLEN_CASES = (
    Case((12, 2, 8), options={"lengths": (5, 0, 7), "right": 0}),
    Case((14, 4, 16), options={"lengths": (3, 9), "keys": (6, 2), "kv_heads": 2, "scale": 0.3}),
    Case((9, 2, 8), "step", {"lengths": (4, 4), "keys": (7, 0), "left": 2, "right": 1}),
    Case((0, 2, 8), options={"lengths": (0, 0), "keys": (3, 1)}),
)
VARLEN = Maker(_varlen_args, VARLEN_CASES)


def _varlen_wrong(good: Maker, **wrong: str) -> BadSamples:
    ways = {
        "flat": (lambda t: t[0], ValueError, r"must be \[tokens, heads, dim\]; got"),
        "short": (lambda t: t[..., :-1], ValueError, "must have shape"),
        "floats": (lambda t: t.float(), ValueError, "must be int32 or int64"),
        **{way: WRONG[way] for way in ("ints", "away", "dtype")},
    }

    def bad(device: torch.device) -> Iterator[BadSample]:
        for name, way in ((n, w) for n, each in wrong.items() for w in each.split()):
            spoil, error, says = ways[way]
            args = good.named(VARLEN_CASES[0], torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {way}")

    return bad


def _fake_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int = -1,
    right: int = -1, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    check_varlen("attention_varlen", q, k, v, cu_q, cu_k)
    stats = torch.float64 if q.dtype is torch.float64 else torch.float32
    return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty((q.shape[1], q.shape[0]), dtype=stats)


@op(
    out="o lse",
    grad="attention_varlen_bwd",
    samples=VARLEN,
    errors=_varlen_wrong(VARLEN, q="flat ints", k="flat short ints away dtype", v="away dtype", cu_q="floats away"),
    tol=TOL,
    fake=_fake_varlen,
)
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int = -1,
    right: int = -1, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse, [heads, tokens], of sequences one after another: cu_q and cu_k, [sequences + 1], say where each begins
    and the last ends, max_q and max_k how long they are at most. Tokens after the last have 0 in both.

    A query sees the keys from `left` before its own place to `right` after it, counted from the last of both; -1: all.
    """
    check_varlen("attention_varlen", q, k, v, cu_q, cu_k)
    of_q, of_k, how = _unpacked(q, cu_q, cu_k, max_q, max_k, left, right, scale)
    x = unpacked(q, of_q, max_q).transpose(1, 2)
    y, z = (unpacked(t, of_k, max_k).transpose(1, 2) for t in (k, v))
    o, lse, _ = masked_forward(x, y, z, how, None, None)
    tokens = q.shape[0]
    rows = packed(lse.transpose(1, 2), of_q, tokens).T
    return rounded(packed(o.transpose(1, 2), of_q, tokens), q.dtype), rounded(rows, rows.dtype)


def _varlen_bwd_args(d: Draw) -> dict[str, Any]:
    of = _varlen_args(d)
    o, lse = attention_varlen.reference(**of)
    rest = {n: of[n] for n in ("cu_q", "cu_k", "max_q", "max_k", "left", "right", "scale")}
    return {"do": _drawn(d, "do", tuple(o.shape)), **{n: of[n] for n in "qkv"}, "o": o, "lse": lse, **rest}


VARLEN_BWD = Maker(_varlen_bwd_args, VARLEN_CASES)


def _fake_varlen_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    check_varlen("attention_varlen_bwd", q, k, v, cu_q, cu_k, o, do, lse)
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    return dq, dk, dv


@op(
    out="dq dk dv",
    samples=VARLEN_BWD,
    errors=_varlen_wrong(VARLEN_BWD, do="short ints away", q="flat", o="short dtype", lse="short away", cu_k="floats"),
    tol=TOL,
    fake=_fake_varlen_bwd,
)
def attention_varlen_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int,
    max_k: int, left: int, right: int, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `attention_bwd`, of `attention_varlen`; 0 for tokens after the last sequence."""
    check_varlen("attention_varlen_bwd", q, k, v, cu_q, cu_k, o, do, lse)
    of_q, of_k, how = _unpacked(q, cu_q, cu_k, max_q, max_k, left, right, scale)
    g, x, out = (unpacked(t, of_q, max_q).transpose(1, 2) for t in (do, q, o))
    y, z = (unpacked(t, of_k, max_k).transpose(1, 2) for t in (k, v))
    rows = unpacked(lse.T, of_q, max_q).transpose(1, 2)
    found = masked_backward(g, x, y, z, out, rows, how, None, None)
    of = ((found.dq, of_q, q), (found.dk, of_k, k), (found.dv, of_k, v))
    dq, dk, dv = (rounded(packed(t.transpose(1, 2), n, like.shape[0]), like.dtype) for t, n, like in of)
    return dq, dk, dv
