"""Sequences of different lengths: packed one after another ("thd"), or padded to one length.

No tensor is read on the host: token positions are computed on the device, and the shapes of results depend only on
Python ints that the caller passes.
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
    def of(cls, cu_seqlens: Tensor, padded: Tensor | None = None, room: int | None = None) -> "Lengths":
        """`padded`: the offsets of sequences that are followed by padding; `room`: each is padded to this length."""
        cu = cu_seqlens.long()
        places = cu if padded is None else padded.long()
        if room is not None:
            places = torch.arange(cu.shape[0], device=cu.device) * room
        return cls(places[:-1], places[1:], cu[1:] - cu[:-1])


def token_places(of: Lengths, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each token: its sequence, its position there, and whether it is a token and not padding."""
    token = torch.arange(tokens, device=of.starts.device)
    sequence = torch.searchsorted(of.ends.contiguous(), token, right=True).clamp_(max=of.ends.shape[0] - 1)
    place = token - of.starts[sequence]
    return sequence, place, (place >= 0) & (place < of.sizes[sequence])


def unpacked(t: Tensor, of: Lengths, longest: int) -> Tensor:
    """[tokens, ...] as [b, longest, ...], padded with zeros."""
    b = of.starts.shape[0]
    if not t.shape[0]:
        return t.new_zeros((b, longest, *t.shape[1:]))
    place = torch.arange(longest, device=t.device)
    token = (of.starts[:, None] + place).clamp_(max=t.shape[0] - 1)
    return zeroed(t[token], place < of.sizes[:, None])


def packed(t: Tensor, of: Lengths, tokens: int, empty: float = 0.0) -> Tensor:
    """[b, longest, ...] as [tokens, ...]; padding tokens get the value `empty`."""
    if not t.shape[0] or not t.shape[1] or not tokens:
        return t.new_full((tokens, *t.shape[2:]), empty)
    sequence, place, there = token_places(of, tokens)
    there = there & (place < t.shape[1])
    return zeroed(t[sequence, place.clamp(0, t.shape[1] - 1)], there, empty)


def compacted(t: Tensor, of: Lengths) -> Tensor:
    """[tokens, ...] with all padding moved to the end; the contents of the padding are undefined."""
    if not t.shape[0]:
        return t
    last = of.sizes.cumsum(0)
    slot = torch.arange(t.shape[0], device=t.device)
    sequence = torch.searchsorted(last, slot, right=True).clamp_(max=last.shape[0] - 1)
    token = of.starts[sequence] + slot - (last - of.sizes)[sequence]
    return t[token.clamp_(0, t.shape[0] - 1)]


def spread(t: Tensor, of: Lengths, empty: float = 0.0) -> Tensor:
    """The inverse of `compacted`; padding gets the value `empty`."""
    if not t.shape[0]:
        return t
    sequence, place, there = token_places(of, t.shape[0])
    token = (of.sizes.cumsum(0) - of.sizes)[sequence] + place
    return zeroed(t[token.clamp_(0, t.shape[0] - 1)], there, empty)


def zeroed(t: Tensor, keep: Tensor, value: float = 0.0) -> Tensor:
    """t with `value` where `keep` is false, even if t is undefined (NaN) there."""
    return t.masked_fill(~keep.reshape(*keep.shape, *[1] * (t.dim() - keep.dim())), value)


def paged_in(cache: Tensor, table: Tensor, kv: str, longest: int) -> Tensor:
    """A paged cache [pages, page, h, d] (or in "sbhd" [page, pages, h, d]) as [b, longest, h, d]."""
    pages = cache.transpose(0, 1) if kv == "sbhd" else cache
    found = pages[table.long().clamp(0, max(pages.shape[0] - 1, 0))].flatten(1, 2)
    short = longest - found.shape[1]
    if short > 0:
        return torch.cat([found, found.new_zeros(found.shape[0], short, *found.shape[2:])], 1)
    return found[:, :longest]
