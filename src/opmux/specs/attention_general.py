"""Attention with windows, a bias, ALiBi, a soft cap, sinks, dropout, and sequences of different lengths.

`attention` is the small op that a vendor implements first; this op adds options, which apply to a score in this order:
s = q k^T * scale, softcap * tanh(s / softcap), + bias, ALiBi, the window.

Sequences of different lengths have two forms, which can be combined:

- packed: the batch is 1, and the sequences follow one another along `queries` and `keys`. `cu_q` and `cu_k` have the
  offset of each sequence. A [tokens, heads, dim] tensor is passed as the view t.transpose(0, 1)[None].
- padded: `q_sizes` and `k_sizes` have the length of each sequence; the tokens after it are padding.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Index, at_least, same_dtype
from ..core.errors import BadArgument
from ..core.spec import BadSamples, op
from . import random
from ._masked_attention import NO_BIAS, POST_SCALE, Masking, masked_backward, masked_forward
from ._sequences import Lengths, packed, unpacked
from .attention import FEWER_HEADS, TOL, K, Q, V, empty_result, heads_divide, laid_out_as, scale_of, stats_dtype
from .random import Probability, Seed
from .samples import Case, Change, Draw, Maker, bad_samples

Bias = Float[Tensor, "_ _ _ _"]
PerHead = Float[Tensor, "heads"]
Begins = Index[Tensor, "sequences+1"]
Sizes = Index[Tensor, "sequences"]
Window = Annotated[int, at_least(-1)]
Length = Annotated[int, at_least(0)]
Cap = Annotated[float, at_least(0)]


# ---- arguments ------------------------------------------------------------------------------------------------------


def longest(q: Tensor, k: Tensor, cu_q: Tensor | None, max_q: int, max_k: int) -> tuple[int, int, int]:
    """The number of sequences, and the largest number of queries and of keys in a sequence."""
    if cu_q is None:
        return q.shape[0], q.shape[2], k.shape[2]
    return cu_q.shape[0] - 1, max_q, max_k


def packed_right(op: str, q: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> None:
    if (cu_q is None) != (cu_k is None):
        raise BadArgument.of(op, "cu_k", "be given if {cu_q} is, and only then", "one of them", ValueError)
    if cu_q is not None and q.shape[0] != 1:
        raise BadArgument.of(op, "q", "have a batch of 1, as {cu_q} is given", str(tuple(q.shape)), ValueError)


def sizes_right(op: str, q: Tensor, cu_q: Tensor | None, q_sizes: Tensor | None, k_sizes: Tensor | None) -> None:
    if (q_sizes is None) != (k_sizes is None):
        raise BadArgument.of(op, "k_sizes", "be given if {q_sizes} is, and only then", "one of them", ValueError)
    if q_sizes is not None and cu_q is None and q_sizes.shape[0] != q.shape[0]:
        expected = f"have a length for each of {q.shape[0]} sequences"
        raise BadArgument.of(op, "q_sizes", expected, str(tuple(q_sizes.shape)), ValueError)


def bias_right(op: str, q: Tensor, k: Tensor, bias: Tensor | None, cu_q: Tensor | None, max_q: int, max_k: int) -> None:
    if bias is None:
        return
    b, sq, sk = longest(q, k, cu_q, max_q, max_k)
    if bias.shape[3] != sk or any(n not in (1, size) for n, size in zip(bias.shape[:3], (b, q.shape[1], sq))):
        expected = f"have shape ({b}, {q.shape[1]}, {sq}, {sk}), or 1 in any of the first three dimensions"
        raise BadArgument.of(op, "bias", expected, str(tuple(bias.shape)), ValueError)


def seed_given(op: str, seed: Tensor | None, dropout_p: float) -> None:
    if dropout_p and seed is None:
        raise BadArgument.of(op, "seed", "be given, as {dropout_p} is not 0", "None", ValueError)


WHERE = (heads_divide, packed_right, sizes_right, bias_right, seed_given)


# ---- the reference --------------------------------------------------------------------------------------------------


class Arrangement:
    """Converts the tensors of a call to [sequences, heads, length, dim] and back."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        cu_q: Tensor | None,
        cu_k: Tensor | None,
        q_sizes: Tensor | None,
        k_sizes: Tensor | None,
        max_q: int,
        max_k: int,
    ):
        self.packed = cu_q is not None
        self.lengths: list[Lengths | None] = [_lengths(cu_q, q_sizes), _lengths(cu_k, k_sizes)]
        self.longest = longest(q, k, cu_q, max_q, max_k)[1:]
        self.sizes = (q_sizes, k_sizes) if not self.packed else (None, None)

    def padded(self, t: Tensor, side: int) -> Tensor:
        """Convert t to [b, h, s, ...] with padding; `side` is 0 if t belongs to the queries, 1 if to the keys."""
        lengths = self.lengths[side]
        return t if lengths is None else unpacked(t[0].transpose(0, 1), lengths, self.longest[side]).transpose(1, 2)

    def unpadded(self, t: Tensor, side: int, tokens: int) -> Tensor:
        """The inverse of `padded`; padding gets 0."""
        lengths, sizes = self.lengths[side], self.sizes[side]
        if lengths is not None:
            return packed(t.transpose(1, 2), lengths, tokens).transpose(0, 1)[None]
        if sizes is None:
            return t
        after = torch.arange(tokens, device=t.device) >= sizes.long()[:, None]
        return t.masked_fill(after.view(t.shape[0], 1, tokens, *[1] * (t.dim() - 3)), 0.0)

    def masking(
        self,
        q: Tensor,
        bias: Tensor | None,
        slopes: Tensor | None,
        seed: Tensor | None,
        left: int,
        right: int,
        at_end: bool,
        softcap: float,
        dropout_p: float,
        scale: float | None,
    ) -> Masking:
        sizes = [
            s.long() if s is not None else None if n is None else n.sizes
            for s, n in zip(self.sizes, self.lengths, strict=True)
        ]
        return Masking(
            scale_of(q, scale),
            left=left,
            right=right,
            at_end=at_end,
            bias=NO_BIAS if bias is None else POST_SCALE,
            q_sizes=sizes[0],
            kv_sizes=sizes[1],
            dropped=dropout_p,
            seed=seed,
            slopes=slopes,
            softcap=softcap,
        )


def _lengths(cu: Tensor | None, sizes: Tensor | None) -> Lengths | None:
    if cu is None:
        return None
    lengths = Lengths.of(cu)
    return lengths if sizes is None else lengths._replace(sizes=sizes.long())


class Dropout:
    """`masked_forward` and `masked_backward` call these references of Philox dropout."""

    philox_dropout = staticmethod(random.philox_dropout.reference)
    philox_dropout_bwd = staticmethod(random.philox_dropout_bwd.reference)


# ---- samples --------------------------------------------------------------------------------------------------------


def _ints(d: Draw, values: Any) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.int32, device=d.device)


def _args(d: Draw) -> dict[str, Any]:
    """Options: kv_heads, keys (their number), dim_v, bias (its first three sizes), and arguments of the op by name."""
    b, h, s, dim = d.case.shape
    kv_heads, keys = d.option("kv_heads", h), d.option("keys", s)
    longest_k = d.option("max_k", keys)
    stats = torch.float64 if d.dtype is torch.float64 else torch.float32
    return {
        "q": d.full(),
        "k": d.another("k", (b, kv_heads, keys, dim)),
        "v": d.another("v", (b, kv_heads, keys, d.option("dim_v", dim))),
        "bias": d.another("bias", (*d.option("bias"), longest_k)) if d.option("bias") else None,
        "slopes": d.another("slopes", (h,), dtype=stats).abs() if d.option("slopes") else None,
        "sink": d.another("sink", (h,), dtype=stats) if d.option("sink") else None,
        "seed": torch.tensor([7, 3], device="cpu" if d.option("host") else d.device) if d.option("dropout_p") else None,
        "cu_q": _ints(d, d.option("cu_q")),
        "cu_k": _ints(d, d.option("cu_k")),
        "q_sizes": _ints(d, d.option("q_sizes")),
        "k_sizes": _ints(d, d.option("k_sizes")),
        **{n: d.option(n, 0) for n in ("max_q", "max_k")},
        **{n: d.option(n, -1) for n in ("left", "right")},
        "at_end": d.option("at_end", True),
        "softcap": d.option("softcap", 0.0),
        "dropout_p": d.option("dropout_p", 0.0),
        "scale": d.option("scale"),
        "bias_grad": bool(d.option("bias")),
        "seq_first": d.option("seq_first", False),
    }


CASES = (
    Case((1, 2, 20, 16), options={"kv_heads": 1, "left": 3, "right": 2, "at_end": False, "keys": 24}),
    Case((2, 2, 18, 16), options={"bias": (1, 2, 18), "sink": True, "right": 0}),
    Case((2, 2, 5, 24), options={"bias": (2, 1, 1), "keys": 22, "softcap": 2.0, "dim_v": 16}),
    Case((1, 2, 17, 8), options={"slopes": True, "keys": 9, "dropout_p": 0.3, "kv_heads": 1}),
    Case(
        (2, 1, 19, 16),
        options={
            "q_sizes": (19, 5),
            "k_sizes": (3, 19),
            "sink": True,
            "right": 0,
            "bias": (1, 1, 19),
        },
    ),
    Case(
        (1, 2, 14, 16),
        options={
            "cu_q": (0, 5, 13),
            "cu_k": (0, 6, 11),
            "keys": 12,
            "max_q": 8,
            "max_k": 6,
            "dropout_p": 0.5,
            "host": True,
            "slopes": True,
            "softcap": 3.0,
            "left": 4,
        },
    ),
    Case((2, 2, 3, 8), "swapped", {"scale": 0.3, "sink": True}),
    Case((2, 2, 6, 8), options={"kv_heads": 1, "keys": 7, "dim_v": 16, "seq_first": True}),
    Case((1, 2, 8, 16), "step", {"right": 0, "at_end": False, "keys": 3}),
    Case((2, 2, 0, 8), options={"sink": True, "bias": (1, 2, 1), "keys": 4}),
    Case((2, 2, 4, 8), options={"keys": 0, "sink": True}),
)
GENERAL = Maker(_args, CASES)


def _misfits(maker: Maker) -> BadSamples:
    """Bad samples: heads, offsets, lengths, a bias or a seed that do not fit the other arguments."""
    offsets, lengths = lambda _: torch.tensor([0, 6], dtype=torch.int32), lambda _: torch.tensor([3])
    return bad_samples(
        maker,
        FEWER_HEADS,
        Change("cu_q", offsets, "cu_k must be given if cu_q is, and only then"),
        Change("cu_q cu_k", offsets, "q must have a batch of 1, as cu_q is given"),
        Change("q_sizes", lengths, "k_sizes must be given if q_sizes is, and only then"),
        Change("q_sizes k_sizes", lengths, "q_sizes must have a length for each of 2"),
        Change("bias", lambda _: torch.zeros(2, 3, 6, 6), "bias must have shape .2, 4, 6, 6., or 1"),
        Change("dropout_p", 0.5, "seed must be given, as dropout_p is not 0"),
        case=Case((2, 4, 6, 8)),
    )


# ---- the ops --------------------------------------------------------------------------------------------------------


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
    args: dict[str, Any] = {**dict(zip(attention_general.spec.names, (q, k, v, *rest))), **named}
    attention_general.check(**args)
    lse = torch.empty(q.shape[:3], dtype=stats_dtype(q), device=q.device)
    return empty_result(q, v.shape[3], args.get("seq_first", False)), lse


@op(
    out="o lse",
    grad="attention_general_bwd",
    samples=GENERAL,
    errors=_misfits(GENERAL),
    where=WHERE,
    tol=TOL,
    fake=_fake,
)
def attention_general(
    q: Q,
    k: K,
    v: V,
    bias: Bias | None = None,
    slopes: PerHead | None = None,
    sink: PerHead | None = None,
    seed: Seed | None = None,
    cu_q: Begins | None = None,
    cu_k: Begins | None = None,
    q_sizes: Sizes | None = None,
    k_sizes: Sizes | None = None,
    max_q: Length = 0,
    max_k: Length = 0,
    left: Window = -1,
    right: Window = -1,
    at_end: bool = True,
    softcap: Cap = 0.0,
    dropout_p: Probability = 0.0,
    scale: float | None = None,
    bias_grad: bool = False,
    seq_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention with every option: o = dropout(softmax(s)) v, lse = log(sum(exp(s))).

    s = cap(q k^T * scale) + bias - slopes * |distance| in the window, else -inf; cap(x) = softcap * tanh(x / softcap).
    Each query is aligned to a key of its sequence (see at_end); the window and the distance count from that key.

    Args:
        q: the queries.
        k: the keys; each head is used by heads / kv_heads adjacent heads of q.
        v: the values.
        bias: added to the scores: [sequences or 1, heads or 1, queries or 1, keys]; -inf masks a key.
        slopes: ALiBi's slope for each head.
        sink: an extra score for each head, with a value vector of 0: exp(sink) is added to the softmax's denominator,
            so lse includes it.
        seed: the seed of the dropout; the same seed drops the same probabilities.
        cu_q: the offset of each packed sequence of q, and the end of the last one; the batch is then 1.
        cu_k: the same for k and v.
        q_sizes: the length of each sequence of q; the tokens after it are padding.
        k_sizes: the same for k and v.
        max_q: for packed sequences, at least the length of the longest sequence of q.
        max_k: for packed sequences, at least the length of the longest sequence of k.
        left: how many keys before its aligned key a query attends to; -1 is all.
        right: how many keys after its aligned key a query attends to; -1 is all, 0 is causal.
        at_end: align the last query to the last key; otherwise the first query to the first key.
        softcap: the limit of the scores; 0 is no limit.
        dropout_p: the share of softmax probabilities that are dropped; the kept ones are divided by 1 - dropout_p.
        scale: multiplies q k^T; by default 1 / sqrt(dim).
        bias_grad: whether the backward computes the gradient of the bias.
        seq_first: o, dq, dk and dv have the memory layout of a contiguous [batch, seq, heads, dim]; by default o and dq
            have q's layout, dk has k's and dv has v's.

    Returns:
        o [batch, heads, queries, dim_v], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        Both are 0 for padding. A query whose keys are all masked has o = 0 and lse = sink, or -inf without a sink.
    """
    arrangement = Arrangement(q, k, cu_q, cu_k, q_sizes, k_sizes, max_q, max_k)
    masking = arrangement.masking(q, bias, slopes, seed, left, right, at_end, softcap, dropout_p, scale)
    x, y, z = arrangement.padded(q, 0), arrangement.padded(k, 1), arrangement.padded(v, 1)
    o, lse, _ = masked_forward(x, y, z, masking, bias, sink, Dropout)
    tokens = q.shape[2]
    lse = arrangement.unpadded(lse, 0, tokens).contiguous().to(stats_dtype(q))
    return laid_out_as(q, arrangement.unpadded(o, 0, tokens), seq_first), lse


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    o, lse = attention_general.reference(**args)
    return {"do": d.another("do", tuple(o.shape)), **{n: args.pop(n) for n in "qkv"}, "o": o, "lse": lse, **args}


GENERAL_BWD = Maker(_bwd_args, CASES)
OF_FORWARD = tuple(attention_general.spec.names[3:])


def absent(like: Tensor) -> Tensor:
    """An empty tensor: the gradient of an argument that was not given."""
    return torch.empty((0,), dtype=like.dtype, device=like.device)


def _fake_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    named = dict(zip(OF_FORWARD, rest, strict=True))
    attention_general_bwd.check(do=do, q=q, k=k, v=v, o=o, lse=lse, **named)
    bias, sink = named["bias"] if named["bias_grad"] else None, named["sink"]
    dbias, dsink = (absent(q) if t is None else t.new_empty(t.shape) for t in (bias, sink))
    dq, dk, dv = (empty_result(t, seq_first=named["seq_first"]) for t in (q, k, v))
    return dq, dk, dv, dbias, dsink


@op(
    out="dq dk dv dbias dsink",
    samples=GENERAL_BWD,
    errors=_misfits(GENERAL_BWD),
    where=WHERE,
    tol=TOL,
    fake=_fake_bwd,
)
def attention_general_bwd(
    do: Grad[Tensor, "batch heads queries dim_v"],
    q: Q,
    k: K,
    v: V,
    o: Float[Tensor, "batch heads queries dim_v", same_dtype("q")],
    lse: Float[Tensor, "batch heads queries"],
    bias: Bias | None,
    slopes: PerHead | None,
    sink: PerHead | None,
    seed: Seed | None,
    cu_q: Begins | None,
    cu_k: Begins | None,
    q_sizes: Sizes | None,
    k_sizes: Sizes | None,
    max_q: Length,
    max_k: Length,
    left: Window,
    right: Window,
    at_end: bool,
    softcap: Cap,
    dropout_p: Probability,
    scale: float | None,
    bias_grad: bool,
    seq_first: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of attention_general, as in attention_bwd, and 0 for padding. They are bitwise reproducible.

    dbias = the gradient of s, summed over the dimensions in which the bias has size 1;
    dsink = -sum(exp(sink - lse) * sum(do * o)) over all queries of a head.

    Args:
        do: the gradient of o.
        q: as in the forward, like all arguments that are not listed here.
        k: as in the forward.
        v: as in the forward.
        o: the first result of the forward.
        lse: the second result of the forward.

    Returns:
        dq, dk, dv, dbias and dsink, like q, k, v, bias and sink. dbias is empty without a bias or without bias_grad;
        dsink is empty without a sink.
    """
    arrangement = Arrangement(q, k, cu_q, cu_k, q_sizes, k_sizes, max_q, max_k)
    masking = arrangement.masking(q, bias, slopes, seed, left, right, at_end, softcap, dropout_p, scale)
    g, x, out, rows = (arrangement.padded(t, 0) for t in (do, q, o, lse))
    y, z = arrangement.padded(k, 1), arrangement.padded(v, 1)
    grads = masked_backward(g, x, y, z, out, rows, masking, bias, sink, Dropout)
    triples = ((grads.dq, 0, q), (grads.dk, 1, k), (grads.dv, 1, v))
    dq, dk, dv = (laid_out_as(like, arrangement.unpadded(t, i, like.shape[2]), seq_first) for t, i, like in triples)
    dbias = absent(q) if bias is None or not bias_grad or grads.dbias is None else grads.dbias.to(bias.dtype)
    dsink = absent(q) if sink is None or grads.dsink is None else grads.dsink.to(sink.dtype)
    return dq, dk, dv, dbias, dsink
