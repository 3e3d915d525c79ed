"""Ops for decoding: attention of new tokens to a cache of keys and values, and writes to this cache.

Tensors are [batch, tokens, heads, dim]. A cache is contiguous, [batch, max_len, kv_heads, dim], or paged: [pages,
page_size, kv_heads, dim], where `table` [batch, max_pages] has the pages of each sequence in order. `lengths` [batch]
has the number of tokens of each sequence in the cache, the new ones included; the rest of the cache is not read and may
be undefined. `lengths` is not read on the host: the kernels to launch depend only on shapes.

A cache may be float8, with one scale for all heads or one for each head: key = cached value * k_scale.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import FLOATS, FP8, AnyTensor, Float, Float32, Index, at_least, dtypes, same_dtype
from ..core.errors import BadArgument
from ..core.spec import op
from ..core.tensors import dtype_name
from ._numeric import rounded, wide
from ._sequences import paged_in
from .attention import TOL, scale_of
from .quant import FP8_MAX
from .samples import Case, Change, Draw, Maker, bad_samples

Window = Annotated[int, at_least(-1)]
Softcap = Annotated[float, at_least(0)]

# ---- checks ---------------------------------------------------------------------------------------------------------


def cache_dtype_fits(op: str, name: str, cache: Tensor, like: Tensor, other: str) -> None:
    """Raise unless the cache has the dtype of `like` or is float8."""
    if cache.dtype is not like.dtype and not (cache.dtype in FP8 and like.dtype in FLOATS):
        expected = f"be {dtype_name(like.dtype)}, the dtype of {{{other}}}, float8_e4m3fn or float8_e5m2"
        raise BadArgument.of(op, name, expected, dtype_name(cache.dtype), TypeError)


def check_pages(op: str, name: str, cache: Tensor, table: Tensor | None, batch: int) -> None:
    if table is None and cache.shape[0] != batch:
        expected = f"have {batch} sequences, as {{lengths}} has, or {{table}} must be given"
        raise BadArgument.of(op, name, expected, str(tuple(cache.shape)))


def check_scale(op: str, name: str, scale: Tensor | None, heads: int) -> None:
    if scale is not None and scale.numel() not in (1, heads):
        expected = "have one element" if heads == 1 else f"have one element, or one for each of {heads} heads"
        raise BadArgument.of(op, name, expected, str(tuple(scale.shape)))


def cache_fits(
    op: str,
    q: Tensor,
    k_cache: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    cache_dtype_fits(op, "k_cache", k_cache, q, "q")
    check_pages(op, "k_cache", k_cache, table, lengths.shape[0])
    heads, kv_heads = q.shape[2], k_cache.shape[2]
    if not kv_heads or heads % kv_heads:
        raise BadArgument.of(op, "k_cache", f"have heads that divide the {heads} of {{q}}", str(kv_heads))
    check_scale(op, "k_scale", k_scale, kv_heads)
    check_scale(op, "v_scale", v_scale, kv_heads)


def latents_fit(
    op: str, q: Tensor, cache: Tensor, rank: int, lengths: Tensor, table: Tensor | None, cache_scale: Tensor | None
) -> None:
    cache_dtype_fits(op, "cache", cache, q, "q")
    check_pages(op, "cache", cache, table, lengths.shape[0])
    check_scale(op, "cache_scale", cache_scale, 1)
    if rank > q.shape[3]:
        raise BadArgument.of(op, "rank", f"be at most {q.shape[3]}, as {{q}} is {tuple(q.shape)}", str(rank))


def tokens_fit(
    op: str,
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    lengths: Tensor,
    table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    if (v is None) != (v_cache is None):
        missing, present = ("v", "v_cache") if v is None else ("v_cache", "v")
        raise BadArgument.of(op, missing, f"be given, as {{{present}}} is", "None")
    for name, cache, new in (("k", k_cache, k), ("v", v_cache, v)):
        if cache is not None and new is not None:
            cache_dtype_fits(op, f"{name}_cache", cache, new, name)
            check_pages(op, f"{name}_cache", cache, table, lengths.shape[0])
    check_scale(op, "k_scale", k_scale, k.shape[2])
    check_scale(op, "v_scale", v_scale, k.shape[2])


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def per_head(scale: Tensor | None) -> Tensor | float:
    """Reshape a scale, [1] or [heads], so that it broadcasts to [..., heads, dim]."""
    return 1.0 if scale is None else scale.reshape(-1, 1)


def _cached(cache: Tensor, table: Tensor | None, scale: Tensor | None, like: Tensor, lengths: Tensor) -> Tensor:
    """The cached keys or values times their scale: [batch, keys, kv_heads, dim], with zeros after each sequence.

    In float32, or in float64 if `like` is float64.
    """
    plain = cache.to(torch.float32) if cache.dtype in FP8 else cache
    if table is not None:
        plain = paged_in(plain, table, "bshd", table.shape[1] * cache.shape[1])
    after = torch.arange(plain.shape[1], device=cache.device) >= lengths[:, None]
    values = wide(plain).masked_fill(after[:, :, None, None], 0.0)
    return values.to(wide(like[:0]).dtype) * per_head(scale)


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    window: int,
    softcap: float,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """o and lse for the last tokens of each sequence; k and v are [batch, keys, kv_heads, dim]."""
    batch, queries, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    x = wide(q).reshape(batch, queries, kv_heads, heads // kv_heads, q.shape[3])
    s = torch.einsum("bqkgd,bnkd->bkgqn", x, k) * scale_of(q, scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    length = lengths.clamp(0, keys)[:, None, None]
    position = torch.arange(queries, device=q.device)[:, None] + length - queries
    key = torch.arange(keys, device=q.device)
    hidden = (key > position) | (key < position - window) if window >= 0 else key > position
    s = s.masked_fill(hidden[:, None, None], -torch.inf)
    lse = torch.logsumexp(s, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(s.dtype).view(kv_heads, -1, 1))
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    o = torch.einsum("bkgqn,bnke->bqkge", p, v)
    return rounded(o.flatten(2, 3), q.dtype), rounded(lse.flatten(1, 2), lse.dtype)


# ---- samples --------------------------------------------------------------------------------------------------------

KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def _drawn(d: Draw, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    values = d.another(name, shape, d.case.layout)
    return values if dtype is None else values.to(dtype)


def _paging(d: Draw) -> tuple[tuple[int, int], Tensor, Tensor | None]:
    """Return three values: the first two sizes of a cache, the lengths, and the table.

    Options: lengths, page (the size of a page; 0: the cache is contiguous), pages (their number per sequence), keys.
    """
    batch = d.case.shape[0]
    options = d.option("lengths", [20, 37])
    lengths = torch.tensor([options[i % len(options)] for i in range(batch)], dtype=torch.int32, device=d.device)
    page = d.option("page", 0)
    if not page:
        return (batch, d.option("keys", max(options))), lengths, None
    each = d.option("pages", -(-max(options) // page))
    # pages in descending order; page 0 belongs to no sequence
    table = batch * each - torch.arange(batch * each, device=d.device).view(batch, each)
    return (batch * each + 1, page), lengths, table.to(torch.int64 if d.option("wide") else torch.int32)


def _scales(d: Draw, heads: int) -> tuple[Tensor | None, Tensor | None]:
    count = {"one": 1, "each": heads}.get(d.option("scales", ""), 0)
    steps = torch.arange(1, count + 1, dtype=torch.float32, device=d.device)
    return (0.5 + steps / 8, 1.5 - steps / 8) if count else (None, None)


def _decode_args(d: Draw) -> dict[str, Any]:
    """Options: those of `_paging`; kv_heads, dim_v, window, softcap, sinks, scale, cache (e4m3, e5m2), scales."""
    _, _, heads, dim = d.case.shape
    cache, lengths, table = _paging(d)
    kv_heads, kind = d.option("kv_heads", heads), KINDS.get(d.option("cache", ""))
    k_scale, v_scale = _scales(d, kv_heads)
    return {
        "q": d.full(),
        "k_cache": _drawn(d, "k", (*cache, kv_heads, dim), kind),
        "v_cache": _drawn(d, "v", (*cache, kv_heads, d.option("dim_v", dim)), kind),
        "lengths": lengths,
        "table": table,
        "sinks": _drawn(d, "sinks", (heads,)) if d.option("sinks") else None,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "window": d.option("window", -1),
        "softcap": d.option("softcap", 0.0),
        "scale": d.option("scale"),
    }


def _mla_args(d: Draw) -> dict[str, Any]:
    """Options: those of `_paging`; rank, scale, cache, scales."""
    dim = d.case.shape[3]
    cache, lengths, table = _paging(d)
    return {
        "q": d.full(),
        "cache": _drawn(d, "cache", (*cache, dim), KINDS.get(d.option("cache", ""))),
        "lengths": lengths,
        "rank": d.option("rank", dim - dim // 4),
        "table": table,
        "cache_scale": _scales(d, 1)[0],
        "scale": d.option("scale"),
    }


def _write_args(d: Draw) -> dict[str, Any]:
    """Options: those of `_paging`; dim_v, counts, latent (no v), cache, scales."""
    _, _, heads, dim = d.case.shape
    cache, lengths, table = _paging(d)
    kind = KINDS.get(d.option("cache", ""), d.dtype)
    k_scale, v_scale = _scales(d, heads)
    dim_v, latent = d.option("dim_v", dim), d.option("latent")
    counts = d.option("counts")
    return {
        "k": d.full(d.option("large", 1.0)),
        "v": None if latent else _drawn(d, "v", (*d.case.shape[:3], dim_v)),
        "k_cache": torch.zeros((*cache, heads, dim), device=d.device).to(kind),
        "v_cache": None if latent else torch.zeros((*cache, heads, dim_v), device=d.device).to(kind),
        "lengths": lengths,
        "table": table,
        "counts": None if counts is None else torch.tensor(counts, device=d.device),
        "k_scale": k_scale,
        "v_scale": None if latent else v_scale,
    }


# The shape is that of q, [batch, queries, heads, dim].
DECODE = Maker(
    _decode_args,
    (
        Case((2, 1, 4, 16), options={"kv_heads": 2, "page": 16, "sinks": True, "scales": "each"}),
        Case((2, 3, 8, 24), options={"kv_heads": 2, "window": 9, "softcap": 4.0, "keys": 50}),
        Case((3, 1, 6, 64), options={"kv_heads": 1, "page": 64, "lengths": [130, 0, 64], "wide": True, "scale": 0.3}),
        Case((1, 2, 2, 40), options={"page": 4, "lengths": [9], "dim_v": 16, "cache": "e4m3", "scales": "one"}),
        Case((2, 2, 4, 32), options={"kv_heads": 2, "lengths": [40, 1], "cache": "e5m2", "scales": "each"}),
        Case((1, 1, 2, 16), "step", {"page": 8, "lengths": [21], "pages": 4}),
        Case((2, 1, 2, 8), "swapped"),
        Case((1, 20, 4, 16), options={"kv_heads": 1, "lengths": [33], "sinks": True, "window": 3}),
        Case((2, 2, 2, 16), options={"keys": 0, "lengths": [0], "sinks": True}),
        Case((0, 1, 2, 16), options={"keys": 3}),
        Case((2, 0, 2, 16)),
        Case((2, 1, 4, 16), options={"kv_heads": 2, "page": 1, "wide": True}),
    ),
)
MLA = Maker(
    _mla_args,
    (
        Case((2, 1, 4, 40), options={"page": 16, "rank": 32}),
        Case((2, 1, 2, 72), options={"page": 64, "lengths": [130, 3], "rank": 40, "scale": 0.2}),
        Case((1, 1, 2, 24), "step", {"lengths": [5], "rank": 24}),
        Case((1, 2, 20, 48), options={"lengths": [70], "rank": 32, "cache": "e4m3", "scales": "one"}),
        Case((0, 1, 2, 24), options={"keys": 3}),
    ),
)
WRITE = Maker(
    _write_args,
    (
        Case((2, 1, 2, 16), options={"page": 16, "scales": "each"}),
        Case((2, 3, 2, 24), options={"lengths": [5, 2], "keys": 6, "dim_v": 16, "counts": [3, 1]}),
        Case((3, 4, 1, 40), options={"page": 4, "lengths": [9, 3, 0], "latent": True}),
        Case((2, 1, 2, 16), options={"page": 16, "cache": "e4m3", "scales": "each", "large": 300.0}),
        Case((1, 2, 3, 8), "step", {"lengths": [7], "cache": "e5m2", "scales": "one"}),
        Case((2, 2, 2, 16), "swapped", {"page": 2, "lengths": [6, 9], "pages": 4}),
        Case((0, 1, 2, 8), options={"keys": 3}),
        Case((2, 0, 2, 8)),
        Case((2, 1, 2, 16), options={"page": 1, "wide": True}),
    ),
)


# ---- the ops --------------------------------------------------------------------------------------------------------

Query = Float[Tensor, "batch queries heads dim"]
Lengths = Index[Tensor, "batch"]
Table = Index[Tensor, "batch max_pages"]
Cached = dtypes((*FLOATS, *FP8))
Copied = dtypes((*FLOATS, *FP8, torch.uint8))  # copied without arithmetic


def _fake_results(q: Tensor, dim_v: int) -> tuple[Tensor, Tensor]:
    batch, queries, heads, _ = q.shape
    stats = torch.float64 if q.dtype is torch.float64 else torch.float32
    return q.new_empty((batch, queries, heads, dim_v)), q.new_empty((batch, heads, queries), dtype=stats)


def _fake_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    table: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int = -1,
    softcap: float = 0.0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    return _fake_results(q, v_cache.shape[3])


@op(
    out="o lse",
    samples=DECODE,
    errors=bad_samples(
        DECODE,
        Change("table", None, "k_cache must have 2 sequences, as lengths has, or table must be"),
        Change(
            "q",
            lambda q: q.double(),
            "k_cache must be float64, the dtype of q, float8_e4m3fn or float8_e5m2",
            TypeError,
        ),
        Change("k_scale", lambda scale: scale.repeat(2), "k_scale must have one element, or one for each of 2"),
        Change("v_scale", lambda scale: scale.repeat(2), "v_scale must have one element, or one for each of 2"),
    ),
    where=cache_fits,
    tol=TOL,
    fake=_fake_decode,
)
def attention_decode(
    q: Query,
    k_cache: AnyTensor[Tensor, "pages page_size kv_heads dim", Cached],
    v_cache: AnyTensor[Tensor, "pages page_size kv_heads dim_v", same_dtype("k_cache")],
    lengths: Lengths,
    table: Table | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
    window: Window = -1,
    softcap: Softcap = 0.0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of the last tokens of each sequence to a cache: o = softmax(s) v, s = q k^T * scale.

    Query i of n is token lengths - n + i of its sequence, and attends to the keys up to that token. A query without
    keys has o = 0 and lse = -inf, or lse = sink with sinks.

    Args:
        q: the queries of the last tokens; their keys and values are already in the cache.
        k_cache: the keys: paged, or [batch, max_len, kv_heads, dim] without a table; of q's dtype or float8. Each head
            is used by heads / kv_heads adjacent heads of q.
        v_cache: the values, in the same form as the keys.
        lengths: the number of tokens of each sequence, the new ones included; limited to the cache's capacity.
        table: the pages of each sequence, in order; entries after its last page are not read.
        sinks: an extra score for each head whose value vector is 0: exp(sink) is added to the softmax's denominator.
        k_scale: multiplies the keys: one element, or one for each head of k_cache.
        v_scale: multiplies the values: one element, or one for each head of v_cache.
        window: how many keys before its own token a query attends to; -1 is all.
        softcap: scores become softcap * tanh(s / softcap); 0 is no cap.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [batch, queries, heads, dim_v], of q's dtype, and lse = log(sum(exp(s))), sinks included, float32
        [batch, heads, queries] (float64 for float64). Computed in float32 (float64) and rounded once. There is no
        gradient.
    """
    keys, values = _cached(k_cache, table, k_scale, q, lengths), _cached(v_cache, table, v_scale, q, lengths)
    return _attended(q, keys, values, lengths, sinks, window, softcap, scale)


def _fake_mla(
    q: Tensor,
    cache: Tensor,
    lengths: Tensor,
    rank: int,
    table: Tensor | None = None,
    cache_scale: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    return _fake_results(q, rank)


@op(
    out="o lse",
    samples=MLA,
    errors=bad_samples(
        MLA,
        Change("rank", 41, r"rank must be at most 40, as q is \(2, 1, 4, 40\); got 41"),
        Change("cache_scale", lambda scale: scale.repeat(2), "cache_scale must have one element"),
    ),
    where=latents_fit,
    tol=TOL,
    fake=_fake_mla,
)
def mla_decode(
    q: Query,
    cache: AnyTensor[Tensor, "pages page_size dim", Cached],
    lengths: Lengths,
    rank: Annotated[int, at_least(1)],
    table: Table | None = None,
    cache_scale: Float32[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Multi-head latent attention of the last tokens of each sequence, with absorbed up-projections.

    o = softmax(q c^T * scale) c[:, :rank]: all heads share one cache of latents c, whose rows are the keys and whose
    first `rank` columns are the values (DeepSeek: 512 of 576). Queries are masked as in attention_decode.

    Args:
        q: the queries times the up-projection of the keys, followed by their rope part.
        cache: the latents and rope parts: paged, or [batch, max_len, dim] without a table; of q's dtype or float8.
        lengths: the number of tokens of each sequence, the new ones included.
        rank: how many columns of the cache are values.
        table: the pages of each sequence, in order; entries after its last page are not read.
        cache_scale: multiplies the cache; one element.
        scale: multiplies the scores; by default 1 / sqrt(dim). Pass the model's own scale, which belongs to its head
            size before the up-projections were absorbed.

    Returns:
        o [batch, queries, heads, rank], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        Computed in float32 (float64) and rounded once. There is no gradient.
    """
    keys = _cached(cache[:, :, None], table, cache_scale, q, lengths)
    return _attended(q, keys, keys[..., :rank], lengths, None, -1, 0.0, scale)


def _as_bytes(t: Tensor) -> Tensor:
    """View t as bytes if it is float8, because torch lacks most ops for float8."""
    return t.view(torch.uint8) if t.dtype in FP8 else t


def written(new: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Convert new tokens to the cache's dtype: divide by the scale and round once; float8 saturates."""
    if scale is None and new.dtype is dtype:
        return new
    scaled = wide(new) / per_head(scale)
    return scaled.clamp(-FP8_MAX[dtype], FP8_MAX[dtype]).to(dtype) if dtype in FP8 else scaled.to(dtype)


@op(
    out="",
    mutates=("k_cache", "v_cache"),
    samples=WRITE,
    errors=bad_samples(
        WRITE,
        Change("v", None, "v must be given, as v_cache is"),
        Change("table", None, "k_cache must have 2 sequences"),
        Change("k_scale", lambda scale: scale.repeat(2), "k_scale must have one element, or one for each of 2"),
    ),
    where=tokens_fit,
)
def write_kv_cache(
    k: AnyTensor[Tensor, "batch tokens kv_heads dim", Copied],
    v: AnyTensor[Tensor, "batch tokens kv_heads dim_v", same_dtype("k")] | None,
    k_cache: AnyTensor[Tensor, "pages page_size kv_heads dim", Copied],
    v_cache: AnyTensor[Tensor, "pages page_size kv_heads dim_v", same_dtype("k_cache")] | None,
    lengths: Lengths,
    table: Table | None = None,
    counts: Lengths | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
) -> None:
    """Append the new tokens of each sequence to a cache, in place.

    Token i of a sequence's n new tokens becomes token lengths - n + i of the sequence. Tokens at a negative position or
    beyond the cache's capacity are not written.

    Args:
        k: the keys of the new tokens.
        v: the values of the new tokens; None if the cache has only one part, as for `mla_decode`.
        k_cache: the cache to write: paged, or [batch, max_len, kv_heads, dim] without a table; of k's dtype or float8.
        v_cache: the cache to write the values to, in the same form.
        lengths: the number of tokens of each sequence, the new ones included.
        table: the pages of each sequence, in order. No two sequences may write to one page.
        counts: n for each sequence: only its first n tokens in k and v are new. By default all are.
        k_scale: divides k: one element, or one for each head.
        v_scale: divides v: one element, or one for each head.
    """
    batch, tokens, heads = k.shape[:3]
    page = k_cache.shape[1]
    capacity = page * (1 if table is None else table.shape[1])
    if not (batch and tokens and heads and capacity):
        return
    each = torch.arange(tokens, device=k.device)
    count = tokens if counts is None else counts[:, None].long()
    index = lengths[:, None].long() - count + each
    valid = ((each < count) & (index >= 0) & (index < capacity)).flatten()
    index = index.clamp(0, capacity - 1)
    rows = torch.arange(batch, device=k.device)[:, None]
    pages = rows.expand(batch, tokens) if table is None else table[rows, index // page].long()
    # A token that must not be written repeats the write of the first token that is written. So no element gets two
    # different values, and the host reads no mask. If no token is written, one element is overwritten with its old
    # value.
    token = torch.where(valid, torch.arange(batch * tokens, device=k.device), valid.long().argmax())
    pages, index = pages.flatten()[token].clamp(0, k_cache.shape[0] - 1), (index % page).flatten()[token]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if new is None or cache is None:
            continue
        source, target = _as_bytes(written(new, cache.dtype, scale)), _as_bytes(cache)
        flat = source.reshape(batch * tokens, *source.shape[2:])[token]
        target[pages, index] = torch.where(valid.any(), flat, target[pages, index])
