"""Hundreds of tensors for one launch: their addresses and sizes as a table in the device's memory.

A row of the table belongs to one place in the lists: the address of the tensor of each list, how many elements they
have, the number of their first chunk, and whether all addresses are multiples of 16. A second table says for each
chunk, which is a program's work, the row it belongs to: no program searches.

Both are kept, the rows by the addresses in them and the chunks by the sizes. Where addresses change from step to step
(gradients are allocated anew), a new table is one array and one copy that waits for nothing.

While a CUDA graph is captured a table made before serves, and is never let go. If there is none, the copy becomes part
of the graph: what it copies from is kept, and what it writes to is the graph's own, and of no use to others.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.held import on_empty_cache
from ...specs import optim as spec
from .launch import _compiling_only
from .plans import keep, refuse_negated

MORE = 3  # columns after the addresses: elements, first chunk, aligned
MOST = 64  # tables to be kept: gradients that never come back at the same place must not fill the memory

_dtype = attrgetter("dtype")
_address, _numel, _packed, _index = Tensor.data_ptr, Tensor.numel, Tensor.is_contiguous, Tensor.get_device
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


# ---- what the lists hold --------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """Lists whose tensors have one dtype each, as kernels need to know them."""

    addresses: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    more: tuple[tuple[int, ...], ...] = ()  # further columns of the table, after all others


def seen(op: str, lists: Any, flag: Tensor | None = None) -> list[Seen]:
    """The lists by their dtypes: nearly always all in one. What the spec refuses is refused as it does."""
    rule = spec.FORMS[op]
    form = rule.form(op, lists)
    try:
        found = _alike(form, lists, flag)
    except (TypeError, AttributeError, IndexError):  # no lists, or no tensors in them
        found = None
    if found is not None:
        return [found]
    rule.check(op, "tensor_lists", lists, {rule.flag or "": flag})
    if not lists[0]:
        return []
    refuse_negated(*chain.from_iterable(lists))
    groups: dict[tuple[torch.dtype, ...], list[int]] = {}
    for i, together in enumerate(zip(*lists, strict=True)):
        groups.setdefault(tuple(map(_dtype, together)), []).append(i)
        _decline_gaps([t for each, t in zip(form, together, strict=True) if not each.one])
    return [_gathered([[items[i] for i in at] for items in lists]) for at in groups.values()]


def seen_alike(lists: Sequence[Sequence[Tensor]], more: tuple[tuple[int, ...], ...] = ()) -> Seen:
    """Lists of one dtype each, whose tensors have the same shapes at the same places; others are declined."""
    lead = lists[0]
    shapes, on = [t.shape for t in lead], _index(lead[0])
    for items in lists:
        if set(map(_dtype, items)) != {items[0].dtype} or set(map(_index, items)) != {on}:
            raise NotSupported("tensors of several dtypes or devices")
        if items is not lead and [t.shape for t in items] != shapes:
            raise NotSupported("tensors of different shapes")
    if not all(all(map(_packed, items)) for items in lists):
        for together in zip(*lists, strict=True):
            _decline_gaps(list(together))
    found = _gathered(lists)._replace(more=more)
    if on < 0 and not _compiling_only() and len({t.device for t in chain.from_iterable(lists)}) > 1:
        raise NotSupported("tensors on several devices")
    if any(map(_absent, found.addresses, lists)):
        raise NotSupported("a tensor without memory of its own: on meta, or a subclass that wraps others")
    return found


def _alike(form: tuple[spec.Each, ...], lists: Any, flag: Tensor | None) -> Seen | None:
    """What there is to know where all is as it should be, at the cost of a few questions a tensor."""
    lead = lists[0]
    if not lead:
        return None
    sizes = tuple(map(_numel, lead))
    on = _index(lead[0]) if flag is None else _index(flag)
    ones = (1,) * len(sizes)
    for each, items in zip(form, lists, strict=True):
        kind = items[0].dtype
        if kind not in each.dtypes or (each is spec.V and kind is not lists[2][0].dtype):
            return None
        if not all(map(_packed, items)) or set(map(_dtype, items)) != {kind} or set(map(_index, items)) != {on}:
            return None
        if items is not lead and tuple(map(_numel, items)) != (ones if each.one else sizes):
            return None
    found = _gathered(lists)
    if on < 0 and not _compiling_only() and not all(t.is_cpu for t in chain.from_iterable(lists)):
        return None
    if any(map(_absent, found.addresses, lists)):
        return None
    return found


def _absent(addresses: tuple[int, ...], items: Sequence[Tensor]) -> bool:
    """Whether a tensor that should have memory has none."""
    return 0 in addresses and not _compiling_only() and any(not a and t.numel() for a, t in zip(addresses, items))


def _gathered(lists: Any) -> Seen:
    return Seen(
        tuple(tuple(map(_address, items)) for items in lists),
        tuple(map(_numel, lists[0])),
        tuple(items[0].dtype for items in lists),
        lists[0][0].device,
    )


def _decline_gaps(together: list[Tensor]) -> None:
    """Decline tensors that are not one piece of memory each, in the same order of elements."""
    if any(t.is_meta or (t.numel() and not t.data_ptr()) for t in together):
        raise NotSupported("a tensor without memory of its own: on meta, or a subclass that wraps others")
    if all(t.is_contiguous() for t in together):
        return
    first = together[0]
    if any(t.shape != first.shape or t.stride() != first.stride() for t in together):
        raise NotSupported("tensors whose elements lie in different orders")
    step = 1
    for stride, n in sorted((s, n) for s, n in zip(first.stride(), first.shape, strict=True) if n != 1):
        if stride != step:
            raise NotSupported("tensors with gaps between their elements")
        step *= n


# ---- tables ---------------------------------------------------------------------------------------------------------


class Chunks(NamedTuple):
    """How tensors of some sizes are cut: a table for the device, and the first chunk of each."""

    rows: Tensor  # of each chunk, the row of its tensor
    firsts: tuple[int, ...]
    count: int
    stream: int


class Table(NamedTuple):
    rows: Tensor
    stream: int


_chunks: dict[Any, Chunks] = keep({})
_tables: dict[Any, Table] = keep({})
_kept: list[Any] = []  # what captured graphs read: for good, as nobody says when a graph is gone
on_empty_cache(_chunks.clear)
on_empty_cache(_tables.clear)


def chunks_of(what: Seen, size: int) -> Chunks:
    """The chunks of tensors of these sizes, of `size` elements each but the last."""
    key = (what.sizes, size, what.device)
    return _found(_chunks, key, what.device, lambda stream: _cut(what, size, stream))


def table_of(what: Seen, cut: Chunks) -> Tensor:
    """The rows of the tensors."""
    key = (what.addresses, what.sizes, what.more, cut.firsts)
    return _found(_tables, key, what.device, lambda stream: Table(_sent(_cells(what, cut), what.device), stream)).rows


def _found(kept: dict[Any, Any], key: Any, device: torch.device, make: Any) -> Any:
    """What was made before for the stream at hand, or is made now."""
    stream = _stream(device.index) if device.type == "cuda" and _stream is not None else 0
    found = kept.get(key)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # what another stream made is complete: a capture begins with a synchronisation
        found = make(stream) if found is None else found
        _kept.append(found)
        return found
    if found is not None and found.stream == stream:
        return found
    found = make(stream)
    while len(kept) >= MOST:
        kept.pop(next(iter(kept)), None)
    kept[key] = found
    return found


def _cut(what: Seen, size: int, stream: int) -> Chunks:
    counts = [-(-n // size) for n in what.sizes]
    total = sum(counts)
    firsts = tuple(accumulate(counts, initial=0))[:-1]
    device = what.device
    if device.type == "meta":
        return Chunks(torch.empty(max(total, 1), dtype=torch.int32, device=device), firsts, total, stream)
    repeats = _sent(array("q", counts), device)
    rows = torch.arange(len(counts), dtype=torch.int32, device=device)
    return Chunks(rows.repeat_interleave(repeats, output_size=total), firsts, total, stream)


def _cells(what: Seen, cut: Chunks) -> array[int]:
    """The cells of the table, row by row."""
    joined: Iterator[int] | tuple[int, ...] = what.addresses[0]
    for addresses in what.addresses[1:]:
        joined = map(or_, joined, addresses)
    aligned = [not a & 15 for a in joined]
    columns = (*what.addresses, what.sizes, cut.firsts, aligned, *what.more)
    return array("q", chain.from_iterable(zip(*columns, strict=True)))


_staging: list[Any] = []  # pinned memory for captures, and how much of it is taken
STAGING = 1 << 17  # numbers: of 8 bytes


def _sent(values: array[int], device: torch.device) -> Tensor:
    """Numbers as a tensor on the device, by a copy that nobody waits for."""
    host = torch.frombuffer(values, dtype=torch.int64)
    if device.type == "meta":
        return torch.empty_like(host, device=device)
    if device.type != "cuda":
        return host.to(device, copy=True)
    capturing = torch.cuda.is_current_stream_capturing()
    if not _staging and not capturing:  # to allocate it may not be allowed while capturing
        _staging[:] = [torch.empty(STAGING, dtype=torch.int64, pin_memory=True), 0]
    pinned = _reserved(len(values)) if capturing else torch.empty(len(values), dtype=torch.int64, pin_memory=True)
    return pinned.copy_(host).to(device, non_blocking=True)


def _reserved(n: int) -> Tensor:
    """Pinned memory that stays as it is: each replay of a graph reads it again."""
    if _staging and _staging[1] + n <= STAGING:
        start = _staging[1]
        _staging[1] += n
        return _staging[0][start : start + n]
    made = torch.empty(n, dtype=torch.int64, pin_memory=True)
    _kept.append(made)
    return made
