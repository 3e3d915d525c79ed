"""How tensors of attention lie, as tex names it: formats, layouts, and sequences packed one after another.

A format is the order of a tensor's dimensions: tokens of a sequence (s), sequences (b), heads (h), dim (d); in "thd"
the sequences follow each other without padding, and `cu_seqlens` says where each begins. A layout says that of q, k and
v, and which of them are slices of one buffer.

Nothing here looks at the values of a tensor on the host: where a token is, is computed on the device, in shapes that
follow from the numbers the caller gives.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ._tex import NVTE_QKV_Format, NVTE_QKV_Layout
from .weave import weave

# Format -> where batch, heads, seq and dim are; and the way back. "thd" has no batch: it is gathered first.
TO_BHSD = {"sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3), "bhsd": (0, 1, 2, 3)}
FROM_BHSD = {"sbhd": (2, 0, 1, 3), "bshd": (0, 2, 1, 3), "bhsd": (0, 1, 2, 3)}
TO_BSHD = {"sbhd": (1, 0, 2, 3), "bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3)}  # each its own way back
DENSE = frozenset(TO_BHSD)

# What a tensor of that format is called; NOT_SET is whatever follows from the layout.
FORMATS: dict[int, str | None] = {
    int(NVTE_QKV_Format.NVTE_SBHD): "sbhd",
    int(NVTE_QKV_Format.NVTE_BSHD): "bshd",
    int(NVTE_QKV_Format.NVTE_THD): "thd",
    int(NVTE_QKV_Format.NVTE_BHSD): "bhsd",
    int(NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET): None,
}


class Layout(NamedTuple):
    """q's format and that of k and v; which of the three share a buffer, and its dimension that tells them apart."""

    q: str
    kv: str
    paged: bool = False
    shared: int = 1  # how many of the last ones share a buffer: 3 (q, k, v), 2 (k, v) or none
    at: int = 0

    @property
    def dense(self) -> bool:
        return not self.paged and self.q in DENSE and self.kv in DENSE

    @property
    def formats(self) -> tuple[str, str, str]:
        return self.q, self.kv, self.kv


def _layout(name: str) -> Layout:
    """By its name: SBH3D, THD_T2HD, Paged_KV_BSHD_SBHD_SBHD."""
    word = name.removeprefix("NVTE_").lower()
    parts = word.removeprefix("paged_kv_").split("_")
    plain = [p.replace("2", "").replace("3", "") for p in parts]
    digit = next((c for c in parts[-1] if c.isdigit()), "1")
    at = parts[-1].find(digit) if digit != "1" else 0
    return Layout(plain[0], plain[-1], word.startswith("paged"), int(digit), at)


LAYOUTS: dict[int, Layout] = {int(m): _layout(n) for n, m in NVTE_QKV_Layout.__members__.items() if "NOT_SET" not in n}


# ---- sequences one after another ------------------------------------------------------------------------------------


class Lengths(NamedTuple):
    """Of sequences: where each begins among the tokens, where the next one does, and how long it is; int64 [b]."""

    starts: Tensor
    ends: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, padded: Tensor | None = None, room: int | None = None) -> "Lengths":
        """`padded` says where sequences begin that have gaps after them; with `room` each has that much."""
        cu = cu_seqlens.long()
        places = cu if padded is None else padded.long()
        if room is not None:
            places = torch.arange(cu.shape[0], device=cu.device) * room
        return cls(places[:-1], places[1:], cu[1:] - cu[:-1])


def token_places(of: Lengths, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token: its sequence, its place there, and whether it is of the sequence, not of the gap after it."""
    token = torch.arange(tokens, device=of.starts.device)
    sequence = torch.searchsorted(of.ends.contiguous(), token, right=True).clamp_(max=of.ends.shape[0] - 1)
    place = token - of.starts[sequence]
    return sequence, place, (place >= 0) & (place < of.sizes[sequence])


def unpacked(t: Tensor, of: Lengths, longest: int) -> Tensor:
    """[b, longest, ...] of [tokens, ...]; zeros after the end of a sequence."""
    b = of.starts.shape[0]
    if not t.shape[0]:
        return t.new_zeros((b, longest, *t.shape[1:]))
    place = torch.arange(longest, device=t.device)
    token = (of.starts[:, None] + place).clamp_(max=t.shape[0] - 1)
    return zeroed(t[token], place < of.sizes[:, None])


def packed(t: Tensor, of: Lengths, tokens: int, empty: float = 0.0) -> Tensor:
    """[tokens, ...] of [b, longest, ...]; `empty` for tokens that are of no sequence."""
    if not t.shape[0] or not t.shape[1] or not tokens:
        return t.new_full((tokens, *t.shape[2:]), empty)
    sequence, place, there = token_places(of, tokens)
    there = there & (place < t.shape[1])
    return zeroed(t[sequence, place.clamp(0, t.shape[1] - 1)], there, empty)


def compacted(t: Tensor, of: Lengths) -> Tensor:
    """[tokens, ...] without the gaps, which come last then; what stands there is anything."""
    if not t.shape[0]:
        return t
    last = of.sizes.cumsum(0)
    slot = torch.arange(t.shape[0], device=t.device)
    sequence = torch.searchsorted(last, slot, right=True).clamp_(max=last.shape[0] - 1)
    token = of.starts[sequence] + slot - (last - of.sizes)[sequence]
    return t[token.clamp_(0, t.shape[0] - 1)]


def spread(t: Tensor, of: Lengths, empty: float = 0.0) -> Tensor:
    """The way back of `compacted`; `empty` in the gaps."""
    if not t.shape[0]:
        return t
    sequence, place, there = token_places(of, t.shape[0])
    token = (of.sizes.cumsum(0) - of.sizes)[sequence] + place
    return zeroed(t[token.clamp_(0, t.shape[0] - 1)], there, empty)


def zeroed(t: Tensor, keep: Tensor, value: float = 0.0) -> Tensor:
    """A tensor with `value` where the leading dimensions are not to be kept: what stood there may be anything."""
    return t.masked_fill(~keep.reshape(*keep.shape, *[1] * (t.dim() - keep.dim())), value)


def paged_in(cache: Tensor, table: Tensor, kv: str, longest: int) -> Tensor:
    """[b, longest, h, d] of a cache of pages, [pages, page, h, d] (or in "sbhd" [page, pages, h, d])."""
    pages = cache.transpose(0, 1) if kv == "sbhd" else cache
    found = pages[table.long().clamp(0, max(pages.shape[0] - 1, 0))].flatten(1, 2)
    short = longest - found.shape[1]
    if short > 0:
        return torch.cat([found, found.new_zeros(found.shape[0], short, *found.shape[2:])], 1)
    return found[:, :longest]


# ---- results --------------------------------------------------------------------------------------------------------


def landed(layout: Layout, values: list[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], Tensor | None]:
    """dq, dk and dv, each in its format already, as results: packed and rounded; those of a layout that has them in one
    buffer as slices of one, which comes along."""
    n, at = layout.shared, layout.at
    if n == 1:
        return [t.to(dtype).contiguous() for t in values], None
    one = values[-1]
    if n == 3 and all(t.dtype == dtype for t in values):
        room = weave(*values, at)
        return [room.select(at, i) for i in range(n)], room
    room = torch.empty((*one.shape[:at], n, *one.shape[at:]), dtype=dtype, device=one.device)
    slices = [room.select(at, i) for i in range(n)]
    for to, value in zip(slices, values[-n:], strict=True):
        to.copy_(value)
    return [*(t.to(dtype).contiguous() for t in values[:-n]), *slices], room
