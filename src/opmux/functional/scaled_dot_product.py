"""Scaled dot product attention with every option, for model code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadArgument
from ..specs import attention as small
from ..specs._masked_attention import alibi_slopes
from ..specs.attention_general import attention_general
from ..specs.random import next_seed

NAME = "attention"
# layout -> permutation to "bhsd", and back
PLACES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}
BACK = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}
# the ops' name of an argument -> the function's name, for errors
OURS = {
    "cu_q": "cu_seqlens_q",
    "cu_k": "cu_seqlens_k",
    "q_sizes": "seqlens_q",
    "k_sizes": "seqlens_k",
    "max_q": "max_seqlen_q",
    "max_k": "max_seqlen_k",
    "slopes": "alibi",
}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    top_left: bool = False,
    bias: Tensor | None = None,
    alibi: Tensor | bool = False,
    softcap: float = 0.0,
    sink: Tensor | float | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    layout: str = "bhsd",
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    generator: torch.Generator | None = None,
    return_lse: bool = False,
) -> Any:
    """Scaled dot product attention: o = dropout(softmax(s)) v, s = softcap(q k^T * scale) + bias - alibi * |distance|.

    Memory grows with the length of the sequences, not with its square. Tensors with any strides are read without a copy
    if the last dimension is contiguous. If our kernels compute the gradients, they are bitwise the same in every run.

    Args:
        q: the queries, in `layout`; [tokens, heads, dim] with cu_seqlens_q.
        k: the keys; their number of heads divides q's.
        v: the values; their dim may differ.
        causal: a query attends to no key after its own position.
        window: the numbers of keys before and after its own position that a query attends to; -1 for all.
        top_left: align the first query with the first key; by default the last query is aligned with the last key.
        bias: added to the scores, [batch or 1, heads or 1, queries or 1, keys]; a bool tensor is a mask, in which False
            hides a key. Leading dimensions may be absent. With cu_seqlens_q the batch is the number of sequences, and
            queries and keys are max_seqlen_q and max_seqlen_k.
        alibi: [heads], the slope of each head; True for the standard slopes.
        softcap: scores become softcap * tanh(score / softcap); 0 does not change them.
        sink: [heads], an extra score per head, for a row of v that is 0; or one number for all heads (0.0 gives the
            off-by-one softmax).
        dropout_p: the share of attention probabilities that are set to 0. Pass 0 in eval mode.
        scale: multiplies q k^T; by default 1 / sqrt(dim).
        layout: "bhsd", "bshd" or "sbhd": the order of batch, heads and sequence.
        cu_seqlens_q: int32 or int64 [sequences + 1]: the start of each packed sequence of q, and the end of the last.
        cu_seqlens_k: the same for k and v; by default cu_seqlens_q.
        max_seqlen_q: with cu_seqlens_q, an upper bound of the sequence lengths of q. The default is the number of
            tokens; a smaller bound launches fewer idle programs.
        max_seqlen_k: the same for k.
        seqlens_q: int32 or int64 [sequences]: the length of each sequence of q; the rest is padding, where o is 0. By
            default there is no padding.
        seqlens_k: the same for k and v; by default seqlens_q.
        generator: the generator for dropout; by default the device's default generator.
        return_lse: also return lse, the logarithm of each softmax's denominator; it has no gradient.

    Returns:
        o, like q but with v's dim; with return_lse also lse, float32 [batch, heads, queries], or [heads, tokens] with
        cu_seqlens_q. For a query that attends to no key, o is 0 and lse is -inf (or the sink).
    """
    if layout not in PLACES:
        raise BadArgument.of(NAME, "layout", "be 'bhsd', 'bshd' or 'sbhd'", repr(layout), ValueError)
    packed = cu_seqlens_q is not None
    rank = 3 if packed else 4
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != rank:
            shape = "[tokens, heads, dim]" if packed else f"[{', '.join(layout)}]"
            raise BadArgument.of(NAME, name, f"be {shape}", str(tuple(t.shape)), ValueError)
    left, right = window
    right = 0 if causal and right < 0 else min(0, right) if causal else right
    if packed:
        cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
        max_seqlen_q = q.shape[0] if max_seqlen_q is None else max_seqlen_q
        max_seqlen_k = k.shape[0] if max_seqlen_k is None else max_seqlen_k
    if seqlens_k is not None and seqlens_q is None:
        x = q if packed else q.permute(PLACES[layout])
        seqlens_q = cu_seqlens_q.diff() if packed else torch.full_like(seqlens_k, x.shape[2])
    seqlens_k = seqlens_q if seqlens_k is None else seqlens_k
    heads = q.shape[1 if packed else PLACES[layout][1]]
    slopes = alibi_slopes(heads, q.device) if alibi is True else None if alibi is False else alibi
    if isinstance(sink, (int, float)):
        sink = torch.full((heads,), float(sink), dtype=torch.float32, device=q.device)
    plain = bias is None and slopes is None and sink is None and seqlens_k is None and not softcap and not dropout_p
    try:
        if packed:
            x, y, z = (t.transpose(0, 1)[None] for t in (q, k, v))
        else:
            x, y, z = (t.permute(PLACES[layout]) for t in (q, k, v))
        square = not packed and x.shape[2] == y.shape[2]
        if plain and packed and not top_left:
            o, lse = small.attention_varlen(
                q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, left, right, scale
            )
            return (o, lse) if return_lse else o
        if plain and not packed and left < 0 and right <= 0 and (right < 0 or square or not top_left):
            o, lse = small.attention(x, y, z, right == 0, scale)
        else:
            bias_grad = bias is not None and bias.requires_grad and torch.is_grad_enabled()
            o, lse = attention_general(
                x,
                y,
                z,
                _bias(x, y, bias, max_seqlen_k),
                slopes,
                sink,
                _seed(q, generator) if dropout_p else None,
                cu_seqlens_q,
                cu_seqlens_k,
                seqlens_q,
                seqlens_k,
                max_seqlen_q or 0,
                max_seqlen_k or 0,
                left,
                right,
                not top_left,
                softcap,
                dropout_p,
                scale,
                bias_grad,
            )
    except BadArgument as error:
        raise error.renamed(NAME, OURS) from None
    if packed:
        return (o[0].transpose(0, 1), lse[0]) if return_lse else o[0].transpose(0, 1)
    o = o.permute(BACK[layout])
    return (o, lse) if return_lse else o


def _bias(q: Tensor, k: Tensor, bias: Tensor | None, keys: int | None) -> Tensor | None:
    """Expand the bias to four dimensions and all keys; a mask becomes -inf and 0."""
    if bias is None:
        return None
    if bias.dtype is torch.bool:
        bias = torch.zeros((), dtype=q.dtype, device=q.device).masked_fill(~bias, -torch.inf)
    bias = bias[(None,) * max(4 - bias.dim(), 0)]
    keys = k.shape[2] if keys is None else keys
    return bias.expand(*bias.shape[:-1], keys) if bias.dim() == 4 and bias.shape[-1] == 1 != keys else bias


def _seed(q: Tensor, generator: torch.Generator | None) -> Tensor:
    if torch.compiler.is_compiling():  # the host state of the generator would become a constant of the compiled code
        return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    return next_seed(q, generator)
