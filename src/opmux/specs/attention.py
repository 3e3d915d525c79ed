"""Attention: o = softmax(q k^T * scale) v, forward and backward.

Tensors are [batch, heads, seq, dim]. k and v may have fewer heads than q (grouped-query attention): each head of k and
v is used by heads / kv_heads adjacent heads of q. v and o may have another dim than q and k.

`causal` is aligned to the bottom right: the last query attends to every key, the one before it to all but the last.
With fewer keys than queries, the first queries attend to no key: they have o = 0 and lse = -inf.

Results are new tensors, computed in float32 (float64 for float64) and rounded once. o and dq have the memory layout of
q, dk has that of k, dv that of v. There are three layouts: contiguous [seq, batch, heads, dim] if seq has the largest
stride; else contiguous [batch, seq, heads, dim] if seq has a larger stride than heads; else contiguous [batch, heads,
seq, dim]. Projections return these layouts, and kernels can write them.
"""

from typing import Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Index, same_dtype
from ..core.errors import BadArgument
from ..core.spec import BadSamples, Tol, op
from ._masked_attention import Masking, masked_backward, masked_forward, probabilities
from ._numeric import rounded, wide
from ._sequences import Lengths, packed, unpacked
from .samples import Case, Change, Draw, Maker, bad_samples

# Kernels round probabilities to the inputs' dtype before they multiply them by v, and also in the backward.
TOL = {
    torch.float32: Tol(1e-5, 1e-4),
    torch.float16: Tol(4e-3, 4e-3),
    torch.bfloat16: Tol(3e-2, 3e-2),
}


Q = Float[Tensor, "batch heads queries dim"]
K = Float[Tensor, "batch kv_heads keys dim", same_dtype("q")]
V = Float[Tensor, "batch kv_heads keys dim_v", same_dtype("q")]


def heads_divide(op: str, q: Tensor, k: Tensor) -> None:
    """Raise unless the heads of q can be divided into equal groups, one for each head of k."""
    heads, kv_heads = q.shape[1], k.shape[1]
    if not kv_heads or heads % kv_heads:
        raise BadArgument.of(op, "k", f"have heads that divide the {heads} of {{q}}", str(kv_heads))


SEQ_FIRST = (0, 2, 1, 3)  # a contiguous [batch, seq, heads, dim]


def order(t: Tensor) -> tuple[int, int, int, int]:
    """The order of dimensions in memory, outermost first, of a result that has t's memory layout."""
    b, h, s, _ = t.stride()
    if h >= s:
        return (0, 1, 2, 3)
    return (2, 0, 1, 3) if h <= b < s else SEQ_FIRST


def empty_result(like: Tensor, dim: int | None = None, seq_first: bool = False) -> Tensor:
    """An uninitialized result with like's dtype, shape (except `dim`) and memory layout (except with `seq_first`)."""
    shape = (*like.shape[:3], like.shape[3] if dim is None else dim)
    dims = SEQ_FIRST if seq_first else order(like)
    return torch.empty_permuted(shape, dims, dtype=like.dtype, device=like.device)


def laid_out_as(like: Tensor, value: Tensor, seq_first: bool = False) -> Tensor:
    """Copy `value` to the dtype and memory layout of `empty_result(like)`, with ops that DTensor supports."""
    dims = SEQ_FIRST if seq_first else order(like)
    packed = value.to(like.dtype).permute(dims).clone(memory_format=torch.contiguous_format)
    return packed.permute([dims.index(i) for i in range(4)])


def _grouped(t: Tensor, kv_heads: int) -> Tensor:
    """View q, o or do as [batch, kv_heads, heads / kv_heads, seq, dim]; k or v as [batch, kv_heads, 1, seq, dim]."""
    return t.reshape(t.shape[0], kv_heads, t.shape[1] // kv_heads, t.shape[2], t.shape[3])


def stats_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype is torch.float64 else torch.float32


def scale_of(q: Tensor, scale: float | None) -> float:
    return torch.sym_max(q.shape[-1], 1) ** -0.5 if scale is None else scale


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    """The scores q k^T * scale of grouped q and k, with -inf for masked keys."""
    s = (q @ k.mT) * scale
    if not causal:
        return s
    sq, sk = s.shape[-2:]
    i = torch.arange(sq, device=s.device)[:, None]
    j = torch.arange(sk, device=s.device)[None, :]
    return s.masked_fill(j > i + (sk - sq), -torch.inf)


# ---- samples --------------------------------------------------------------------------------------------------------


def _args(d: Draw) -> dict[str, Any]:
    """Options: kv_heads, keys (their number), dim_v, causal, scale, large (multiplies q)."""
    b, h, s, dim = d.case.shape
    kv_heads, keys = d.option("kv_heads", h), d.option("keys", s)
    return {
        "q": d.full(d.option("large", 1.0)),
        "k": d.another("k", (b, kv_heads, keys, dim), d.case.layout),
        "v": d.another("v", (b, kv_heads, keys, d.option("dim_v", dim)), d.case.layout),
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
FWD = Maker(_args, CASES)


FEWER_HEADS = Change("k v", lambda t: t[:, :3], "k must have heads that divide the 4 of q; got 3")


# ---- the ops --------------------------------------------------------------------------------------------------------


def _flops(products: int, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> int:
    """The FLOPs of `products` matrix products, alternately over q's and v's dim; masked pairs are not counted."""
    b, h, sq, d = q.shape
    sk = k.shape[2]
    pairs = sum(max(0, min(sk, i + 1 + sk - sq)) for i in range(sq)) if causal else sq * sk
    return 2 * b * h * pairs * (products // 2 * (d + v.shape[3]) + products % 2 * d)


def _flops_fwd(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> int:
    return _flops(2, q, k, v, causal)


def _fake(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Return results with the right shapes and dtypes, so that torch.compile does not trace the reference."""
    attention.check(q=q, k=k, v=v)
    return empty_result(q, v.shape[3]), torch.empty(q.shape[:3], dtype=stats_dtype(q), device=q.device)


@op(
    out="o lse",
    grad="attention_bwd",
    samples=FWD,
    errors=bad_samples(FWD, FEWER_HEADS, case=CASES[0]),
    where=heads_divide,
    tol=TOL,
    flops=_flops_fwd,
    fake=_fake,
)
def attention(q: Q, k: K, v: V, causal: bool = False, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Scaled dot product attention: o = softmax(s) v, lse = log(sum(exp(s))), s = q k^T * scale.

    Args:
        q: the queries.
        k: the keys; each head is used by heads / kv_heads adjacent heads of q.
        v: the values.
        causal: mask the keys after each query, with the last query aligned to the last key. A query whose keys are all
            masked has o = 0 and lse = -inf.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [batch, heads, queries, dim_v], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        o has the memory layout of q: contiguous, or that of a contiguous [batch, queries, heads, dim_v] or
        [queries, batch, heads, dim_v].
    """
    x, y, z = (_grouped(wide(t), k.shape[1]) for t in (q, k, v))
    s = _scores(x, y, causal, scale_of(q, scale))
    lse = torch.logsumexp(s, -1)
    o = probabilities(s, lse) @ z
    return laid_out_as(q, o.flatten(1, 2)), rounded(lse.flatten(1, 2), lse.dtype)


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    o, lse = attention.reference(**args)
    do = d.grad() if d.case.layout == "expanded" else d.another("do", tuple(o.shape), d.case.layout)
    return {"do": do, **{n: args.pop(n) for n in "qkv"}, "o": o, "lse": lse, **args}


# Omits the case with scores in the hundreds, in which rounding o causes larger errors than a useful tolerance allows.
BWD = Maker(_bwd_args, tuple(c for c in CASES if "large" not in c.options))


def _flops_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: Any) -> int:
    """Five products: the recomputed scores and two more over q's dim, two over v's dim."""
    return _flops(5, q, k, v, causal)


def _fake_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    attention_bwd.check(do=do, q=q, k=k, v=v, o=o, lse=lse)
    return empty_result(q), empty_result(k), empty_result(v)


@op(
    out="dq dk dv",
    samples=BWD,
    errors=bad_samples(BWD, FEWER_HEADS, case=CASES[0]),
    where=heads_divide,
    tol=TOL,
    flops=_flops_bwd,
    fake=_fake_bwd,
)
def attention_bwd(
    do: Grad[Tensor, "batch heads queries dim_v"],
    q: Q,
    k: K,
    v: V,
    o: Float[Tensor, "batch heads queries dim_v", same_dtype("q")],
    lse: Float[Tensor, "batch heads queries"],
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention.

    p = exp(s - lse), dp = do v^T, ds = p * (dp - sum(do * o)) * scale: dq = ds k, dk = ds^T q, dv = p^T do.

    Args:
        do: the gradient of o.
        q: as in the forward.
        k: as in the forward.
        v: as in the forward.
        o: the first result of the forward.
        lse: the second result of the forward. If the keys of a sequence are on several devices, o and lse may be the
            results for all keys: the gradients are then the contributions of the keys in k. This is why ds has
            sum(do * o) and not sum(p * dp).
        causal: as in the forward.
        scale: as in the forward.

    Returns:
        dq, like q, dk, like k, and dv, like v.
    """
    groups, factor = k.shape[1], scale_of(q, scale)
    x, y, z = (_grouped(wide(t), groups) for t in (q, k, v))
    g = _grouped(do.to(x.dtype), groups)
    p = probabilities(_scores(x, y, causal, factor), lse.to(x.dtype).reshape(g.shape[:-1]))
    total = (g * _grouped(o.to(x.dtype), groups)).sum(-1, keepdim=True)
    ds = p * (g @ z.mT - total) * factor
    dq, dk, dv = ds @ y, (ds.mT @ x).sum(2), (p.mT @ g).sum(2)
    return laid_out_as(q, dq.flatten(1, 2)), laid_out_as(k, dk), laid_out_as(v, dv)


# ---- packed sequences -----------------------------------------------------------------------------------------------


VarlenQ = Float[Tensor, "tokens heads dim"]
VarlenK = Float[Tensor, "keys kv_heads dim", same_dtype("q")]
VarlenV = Float[Tensor, "keys kv_heads dim_v", same_dtype("q")]
Offsets = Index[Tensor, "sequences_and_1"]


def has_offset(op: str, cu_q: Tensor) -> None:
    if not cu_q.shape[0]:
        raise BadArgument.of(op, "cu_q", "have at least one element, the end of the last sequence", "(0,)")


def _unpacked(
    q: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int, right: int, scale: float | None
) -> tuple[Lengths, Lengths, Masking]:
    q_lengths, k_lengths = Lengths.of(cu_q), Lengths.of(cu_k)
    masking = Masking(
        scale_of(q, scale), left=left, right=right, at_end=True, q_sizes=q_lengths.sizes, kv_sizes=k_lengths.sizes
    )
    return q_lengths, k_lengths, masking


def _varlen_args(d: Draw) -> dict[str, Any]:
    """Options: lengths (of q's sequences), keys (lengths of k's sequences), kv_heads, left, right, scale."""
    tokens, h, dim = d.case.shape
    lengths = d.option("lengths", (tokens,))
    keys, kv_heads = d.option("keys", lengths), d.option("kv_heads", h)
    cu = lambda sizes: torch.tensor([0, *sizes], device=d.device).cumsum(0).int()
    return {
        "q": d.full(),
        "k": d.another("k", (sum(keys) + 1, kv_heads, dim), d.case.layout),
        "v": d.another("v", (sum(keys) + 1, kv_heads, dim), d.case.layout),
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


def _varlen_misfits(maker: Maker) -> BadSamples:
    """Bad samples: an empty cu_q and cu_k, and three heads of k for four of q."""
    no_offsets = Change("cu_q cu_k", lambda t: t[:0], "cu_q must have at least one element")
    return bad_samples(maker, no_offsets, FEWER_HEADS, case=Case((12, 4, 8), options={"lengths": (5, 0, 7)}))


def _fake_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    left: int = -1,
    right: int = -1,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    attention_varlen.check(q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k)
    return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty((q.shape[1], q.shape[0]), dtype=stats_dtype(q))


@op(
    out="o lse",
    grad="attention_varlen_bwd",
    samples=VARLEN,
    errors=_varlen_misfits(VARLEN),
    where=(heads_divide, has_offset),
    tol=TOL,
    fake=_fake_varlen,
)
def attention_varlen(
    q: VarlenQ,
    k: VarlenK,
    v: VarlenV,
    cu_q: Offsets,
    cu_k: Offsets,
    max_q: int,
    max_k: int,
    left: int = -1,
    right: int = -1,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of packed sequences of different lengths: o = softmax(s) v, lse = log(sum(exp(s))), s = q k^T * scale.

    The last query of a sequence is aligned to its last key. Each query attends to a window around its aligned key.

    Args:
        q: the queries.
        k: the keys; each head is used by heads / kv_heads adjacent heads of q.
        v: the values.
        cu_q: the offset of each sequence of q, and the end of the last one.
        cu_k: the offset of each sequence of k, and the end of the last one.
        max_q: at least the length of the longest sequence of q.
        max_k: at least the length of the longest sequence of k.
        left: how many keys before its aligned key a query attends to; -1 is all.
        right: how many keys after its aligned key a query attends to; -1 is all, 0 is causal.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [tokens, heads, dim_v], of q's dtype, and lse, float32 [heads, tokens] (float64 for float64). Both are 0 for
        tokens after the last sequence.
    """
    q_lengths, k_lengths, masking = _unpacked(q, cu_q, cu_k, max_q, max_k, left, right, scale)
    x = unpacked(q, q_lengths, max_q).transpose(1, 2)
    y, z = (unpacked(t, k_lengths, max_k).transpose(1, 2) for t in (k, v))
    o, lse, _ = masked_forward(x, y, z, masking, None, None)
    tokens = q.shape[0]
    rows = packed(lse.transpose(1, 2), q_lengths, tokens).T
    return rounded(packed(o.transpose(1, 2), q_lengths, tokens), q.dtype), rounded(rows, rows.dtype)


def _varlen_bwd_args(d: Draw) -> dict[str, Any]:
    args = _varlen_args(d)
    o, lse = attention_varlen.reference(**args)
    do = d.another("do", tuple(o.shape), d.case.layout)
    return {"do": do, **{n: args.pop(n) for n in "qkv"}, "o": o, "lse": lse, **args}


VARLEN_BWD = Maker(_varlen_bwd_args, VARLEN_CASES)


def _fake_varlen_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    attention_varlen_bwd.check(do=do, q=q, k=k, v=v, o=o, lse=lse, cu_q=cu_q, cu_k=cu_k)
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    return dq, dk, dv


@op(
    out="dq dk dv",
    samples=VARLEN_BWD,
    errors=_varlen_misfits(VARLEN_BWD),
    where=(heads_divide, has_offset),
    tol=TOL,
    fake=_fake_varlen_bwd,
)
def attention_varlen_bwd(
    do: Grad[Tensor, "tokens heads dim_v"],
    q: VarlenQ,
    k: VarlenK,
    v: VarlenV,
    o: Float[Tensor, "tokens heads dim_v", same_dtype("q")],
    lse: Float[Tensor, "heads tokens"],
    cu_q: Offsets,
    cu_k: Offsets,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention_varlen, as in attention_bwd; 0 for tokens after the last sequence.

    Args:
        do: the gradient of o.
        q: as in the forward, like all arguments that are not listed here.
        k: as in the forward.
        v: as in the forward.
        o: the first result of the forward.
        lse: the second result of the forward.

    Returns:
        dq, like q, dk, like k, and dv, like v.
    """
    q_lengths, k_lengths, masking = _unpacked(q, cu_q, cu_k, max_q, max_k, left, right, scale)
    g, x, out = (unpacked(t, q_lengths, max_q).transpose(1, 2) for t in (do, q, o))
    y, z = (unpacked(t, k_lengths, max_k).transpose(1, 2) for t in (k, v))
    rows = unpacked(lse.T, q_lengths, max_q).transpose(1, 2)
    grads = masked_backward(g, x, y, z, out, rows, masking, None, None)
    triples = ((grads.dq, q_lengths, q), (grads.dk, k_lengths, k), (grads.dv, k_lengths, v))
    dq, dk, dv = (rounded(packed(t.transpose(1, 2), n, like.shape[0]), like.dtype) for t, n, like in triples)
    return dq, dk, dv
