"""Sequences of different lengths: packed one after another ("thd"), or padded to one length.

The host reads no tensor: token positions are computed on the device, and the caller's Python ints determine the shapes
of results.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Lengths(NamedTuple):
    """For each sequence: the offset of its first token, the offset of the next sequence, and its length; int64 [b]."""

    starts: Tensor
    ends: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, padded: Tensor | None = None, padded_to: int | None = None) -> "Lengths":
        """`padded` has the offsets of padded sequences; or `padded_to` is the length of each sequence with padding."""
        cu = cu_seqlens.long()
        offsets = cu if padded is None else padded.long()
        if padded_to is not None:
            offsets = torch.arange(cu.shape[0], device=cu.device) * padded_to
        return cls(offsets[:-1], offsets[1:], cu[1:] - cu[:-1])


def token_places(lengths: Lengths, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each token: its sequence, its position in the sequence, and whether it is a real token (not padding)."""
    token = torch.arange(tokens, device=lengths.starts.device)
    sequence = torch.searchsorted(lengths.ends.contiguous(), token, right=True).clamp_(max=lengths.ends.shape[0] - 1)
    position = token - lengths.starts[sequence]
    return sequence, position, (position >= 0) & (position < lengths.sizes[sequence])


def unpacked(t: Tensor, lengths: Lengths, longest: int) -> Tensor:
    """Convert [tokens, ...] to [b, longest, ...], padded with zeros."""
    b = lengths.starts.shape[0]
    if not t.shape[0]:
        return t.new_zeros((b, longest, *t.shape[1:]))
    position = torch.arange(longest, device=t.device)
    token = (lengths.starts[:, None] + position).clamp_(max=t.shape[0] - 1)
    return zeroed(t[token], position < lengths.sizes[:, None])


def packed(t: Tensor, lengths: Lengths, tokens: int, empty: float = 0.0) -> Tensor:
    """Convert [b, longest, ...] to [tokens, ...]; padding tokens get the value `empty`."""
    if not t.shape[0] or not t.shape[1] or not tokens:
        return t.new_full((tokens, *t.shape[2:]), empty)
    sequence, position, valid = token_places(lengths, tokens)
    valid = valid & (position < t.shape[1])
    return zeroed(t[sequence, position.clamp(0, t.shape[1] - 1)], valid, empty)


def compacted(t: Tensor, lengths: Lengths) -> Tensor:
    """Move all padding of [tokens, ...] to the end, where its contents are undefined."""
    if not t.shape[0]:
        return t
    last = lengths.sizes.cumsum(0)
    slot = torch.arange(t.shape[0], device=t.device)
    sequence = torch.searchsorted(last, slot, right=True).clamp_(max=last.shape[0] - 1)
    token = lengths.starts[sequence] + slot - (last - lengths.sizes)[sequence]
    return t[token.clamp_(0, t.shape[0] - 1)]


def spread(t: Tensor, lengths: Lengths, empty: float = 0.0) -> Tensor:
    """The inverse of `compacted`; padding gets the value `empty`."""
    if not t.shape[0]:
        return t
    sequence, position, valid = token_places(lengths, t.shape[0])
    token = (lengths.sizes.cumsum(0) - lengths.sizes)[sequence] + position
    return zeroed(t[token.clamp_(0, t.shape[0] - 1)], valid, empty)


def zeroed(t: Tensor, keep: Tensor, value: float = 0.0) -> Tensor:
    """Replace t by `value` where `keep` is false, even where t is undefined (NaN)."""
    return t.masked_fill(~keep.reshape(*keep.shape, *[1] * (t.dim() - keep.dim())), value)


def paged_in(cache: Tensor, table: Tensor, kv: str, longest: int) -> Tensor:
    """Gather a paged cache [pages, page, h, d] ([page, pages, h, d] for "sbhd") into [b, longest, h, d]."""
    pages = cache.transpose(0, 1) if kv == "sbhd" else cache
    tokens = pages[table.long().clamp(0, max(pages.shape[0] - 1, 0))].flatten(1, 2)
    short = longest - tokens.shape[1]
    if short > 0:
        return torch.cat([tokens, tokens.new_zeros(tokens.shape[0], short, *tokens.shape[2:])], 1)
    return tokens[:, :longest]
