"""Attention in plain PyTorch, with all options: masks, windows, biases, ALiBi, soft-cap, dropout, sinks.

This code runs if no library's kernel supports the call. It materializes the matrix of scores in float32 (float64 for
float64). Tensors are [batch, heads, seq, dim], as in `attention`.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ._numeric import wide

NO_BIAS, PRE_SCALE, POST_SCALE, ALIBI = range(4)  # as NVIDIA numbers them


class Masking(NamedTuple):
    """Which keys a query attends to, and which options apply to scores and probabilities.

    The diagonal pairs query i with key i (aligned to the top left), or the last query of a sequence with its last key
    (aligned to the bottom right).
    """

    scale: float
    causal: bool = False
    causal_at_end: bool = False
    left: int = -1  # window: the number of visible keys before the diagonal; -1: all
    right: int = -1
    at_end: bool = False  # whether the diagonal for the window and ALiBi is aligned to the bottom right
    bias: int = NO_BIAS
    q_sizes: Tensor | None = None  # int64 [b]: the length of each sequence; the rest is padding
    kv_sizes: Tensor | None = None
    dropped: float = 0.0
    seed: Tensor | None = None
    slopes: Tensor | None = None  # [heads]: replaces the default slopes of ALiBi
    softcap: float = 0.0  # 0: none

    def shift(self, queries: int, keys: int, at_end: bool) -> Tensor | int:
        """The index of the key with which the diagonal pairs query 0."""
        if not at_end:
            return 0
        if self.q_sizes is None or self.kv_sizes is None:
            return keys - queries
        return (self.kv_sizes - self.q_sizes)[:, None, None]

    def hidden(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The mask [batch or 1, queries, keys], True for masked keys; None if no key is masked."""
        if not self.causal and self.left < 0 and self.right < 0 and self.q_sizes is None and self.kv_sizes is None:
            return None
        i = torch.arange(queries, device=device)[None, :, None]
        j = torch.arange(keys, device=device)[None, None, :]
        mask = torch.zeros((1, queries, keys), dtype=torch.bool, device=device)
        if self.causal:
            mask = mask | (j > i + self.shift(queries, keys, self.causal_at_end))
        middle = i + self.shift(queries, keys, self.at_end)
        if self.left >= 0:
            mask = mask | (j < middle - self.left)
        if self.right >= 0:
            mask = mask | (j > middle + self.right)
        if self.q_sizes is not None:
            mask = mask | (i >= self.q_sizes[:, None, None])
        if self.kv_sizes is not None:
            mask = mask | (j >= self.kv_sizes[:, None, None])
        return mask

    def zero_padded(self, t: Tensor, sizes: Tensor | None) -> Tensor:
        """t [b, h, s, d] in float32 (float64 for float64), with zeros in place of its undefined padding."""
        if sizes is None:
            return wide(t)
        after = torch.arange(t.shape[2], device=t.device) >= sizes[:, None]
        return wide(t).masked_fill(after[:, None, :, None], 0.0)


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """2^(-8 k / n) for k = 1 ... n, n the largest power of two <= `heads`; then every second slope of 2n heads."""
    n = 1 << (heads.bit_length() - 1)
    k = torch.arange(heads, dtype=torch.float32, device=device)
    return torch.exp2(torch.where(k < n, (k + 1) * (-8 / n), (2 * (k - n) + 1) * (-4 / n)))


def _grouped(t: Tensor, groups: int) -> Tensor:
    """t [b or 1, heads or 1, ...] viewed as [b, kv heads, heads per kv head, ...]."""
    return t.unsqueeze(1) if t.shape[1] == 1 else t.unflatten(1, (groups, t.shape[1] // groups))


def _scores(x: Tensor, y: Tensor, masking: Masking, bias: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """The scores of grouped q and k (-inf for masked keys), and d(scores) / d(q k^T * scale)."""
    groups, per, queries, keys = x.shape[1], x.shape[2], x.shape[3], y.shape[3]
    s = x @ y.mT
    if masking.bias == PRE_SCALE and bias is not None:
        s = s + _grouped(bias.to(s.dtype), groups)
    s, slope = s * masking.scale, 1.0
    if masking.softcap:
        level = torch.tanh(s / masking.softcap)
        s, slope = masking.softcap * level, 1 - level.square()
    if masking.bias == POST_SCALE and bias is not None:
        s = s + _grouped(bias.to(s.dtype), groups)
    if masking.bias == ALIBI or masking.slopes is not None:
        i = torch.arange(queries, device=s.device)[:, None] + masking.shift(queries, keys, masking.at_end)
        distance = (torch.arange(keys, device=s.device) - i).abs().to(s.dtype)  # [queries, keys], or [b, queries, keys]
        slopes = alibi_slopes(groups * per, s.device) if masking.slopes is None else masking.slopes
        distance = distance[:, None, None] if distance.dim() == 3 else distance
        s = s - slopes.to(s.dtype).view(1, groups, per, 1, 1) * distance
    hidden = masking.hidden(queries, keys, s.device)
    return (s if hidden is None else s.masked_fill(hidden[:, None, None], -math.inf)), slope


def probabilities(s: Tensor, lse: Tensor) -> Tensor:
    """exp(s - lse), and 0 in fully masked rows, in which s and lse are -inf."""
    return torch.exp(s - lse.masked_fill(lse == -math.inf, 0.0)[..., None])


def _dropped(p: Tensor, masking: Masking, dropout: Any) -> Tensor:
    """Philox dropout of p, padded to a multiple of 4 keys.

    With the padding, each group of four random words belongs to one query, so a kernel draws one group for four keys.
    """
    return dropout(F.pad(p, (0, -p.shape[-1] % 4)), masking.seed, masking.dropped)[..., : p.shape[-1]]


def masked_forward(
    q: Tensor, k: Tensor, v: Tensor, masking: Masking, bias: Tensor | None, sink: Tensor | None, call: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, and for each query lse and the largest score, in float32 (float64 for float64).

    A sink, [heads], is an extra score whose value vector is 0. `call` holds `philox_dropout` and `philox_dropout_bwd`;
    only dropout needs it.
    """
    groups = k.shape[1]
    x = _grouped(masking.zero_padded(q, masking.q_sizes), groups)
    y, z = (_grouped(masking.zero_padded(t, masking.kv_sizes), groups) for t in (k, v))
    s, _ = _scores(x, y, masking, bias)
    top = s.amax(-1) if s.shape[-1] else s.new_full(s.shape[:-1], -math.inf)
    lse = torch.logsumexp(s, -1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.to(s.dtype).view(1, groups, -1, 1))
    p = probabilities(s, lse)
    if masking.dropped and masking.seed is not None:
        p = _dropped(p, masking, call.philox_dropout)
    return (p @ z).flatten(1, 2), lse.flatten(1, 2), top.flatten(1, 2)


class AttentionGradients(NamedTuple):
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None
    dsink: Tensor | None  # [heads]


def masked_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    masking: Masking,
    bias: Tensor | None,
    sink: Tensor | None,
    call: Any = None,
) -> AttentionGradients:
    """The gradients. If k is a shard of the keys, o and lse must be the results for all keys."""
    groups = k.shape[1]
    x, g, out = (_grouped(masking.zero_padded(t, masking.q_sizes), groups) for t in (q, do, o))
    y, z = (_grouped(masking.zero_padded(t, masking.kv_sizes), groups) for t in (k, v))
    g, out, lse = g.to(x.dtype), out.to(x.dtype), _grouped(lse.to(x.dtype), groups)
    s, slope = _scores(x, y, masking, bias)
    p = probabilities(s, lse)
    dp, dropped = g @ z.mT, p
    if masking.dropped and masking.seed is not None:
        dp, dropped = _dropped(dp, masking, call.philox_dropout_bwd), _dropped(p, masking, call.philox_dropout)
    total = (g * out).sum(-1)
    ds = p * (dp - total[..., None])
    scaled = ds * slope * masking.scale
    dbias = None
    if bias is not None:
        dbias = (scaled if masking.bias == PRE_SCALE else ds).flatten(1, 2).sum_to_size(bias.shape)
    dsink = None
    if sink is not None:
        share = probabilities(sink.to(x.dtype).view(1, groups, -1, 1, 1), lse).squeeze(-1)
        dsink = -(share * total).sum((0, 3)).flatten()
    return AttentionGradients((scaled @ y).flatten(1, 2), (scaled.mT @ x).sum(2), (dropped.mT @ g).sum(2), dbias, dsink)
