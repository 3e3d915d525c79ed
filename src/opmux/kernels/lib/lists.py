"""Lists of hundreds of tensors in one launch: a table in device memory holds their addresses and sizes.

Row i of the table is for the i-th tensor of each list: the addresses, the number of elements, the index of the first
chunk, and whether all addresses are multiples of 16. A second table maps each chunk (the work of one program) to its
row, so programs do not search.

Both tables are cached, the first by its addresses, the second by the sizes. If gradients are reallocated at each step,
their addresses change: then each step builds one array and copies it asynchronously.

During CUDA graph capture an existing table is reused and never freed. If there is none, the copy becomes part of the
graph. Its source is never freed; its destination belongs to the graph, so no other call may use that table.
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

MORE = 3  # number of columns after the addresses: elements, first chunk, aligned
MOST = 64  # limit of the cached tables: gradients may have new addresses at every step

_dtype = attrgetter("dtype")
_address, _numel, _packed, _index = Tensor.data_ptr, Tensor.numel, Tensor.is_contiguous, Tensor.get_device
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


# ---- groups of tensors ---------------------------------------------------------------------------------------------


class TensorGroup(NamedTuple):
    """Addresses, sizes and dtypes of lists with one dtype each."""

    addresses: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    more: tuple[tuple[int, ...], ...] = ()  # extra columns at the end of the table


def groups_of(op: str, lists: Any, flag: Tensor | None = None) -> list[TensorGroup]:
    """Split the lists into groups of tensors whose dtypes agree; there is nearly always one group.

    Raises the errors of the op's spec.
    """
    rule = spec.FORMS[op]
    form = rule.form(op, lists)
    try:
        group = _alike(form, lists, flag)
    except (TypeError, AttributeError, IndexError):  # an argument is not a list, or not of tensors
        group = None
    if group is not None:
        return [group]
    rule.check(op, "tensor_lists", lists, {rule.flag or "": flag})
    if not lists[0]:
        return []
    refuse_negated(*chain.from_iterable(lists))
    groups: dict[tuple[torch.dtype, ...], list[int]] = {}
    for i, together in enumerate(zip(*lists, strict=True)):
        groups.setdefault(tuple(map(_dtype, together)), []).append(i)
        _decline_gaps([t for each, t in zip(form, together, strict=True) if not each.one])
    return [_gathered([[items[i] for i in at] for items in lists]) for at in groups.values()]


def group_of(lists: Sequence[Sequence[Tensor]], more: tuple[tuple[int, ...], ...] = ()) -> TensorGroup:
    """Lists of one dtype each, with equal shapes at equal positions. Raises NotSupported for other lists."""
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


def _alike(form: tuple[spec.Each, ...], lists: Any, flag: Tensor | None) -> TensorGroup | None:
    """The fast path, with few checks per tensor, for lists with one dtype each and nothing unusual; else None."""
    lead = lists[0]
    if not lead:
        return None
    sizes = tuple(map(_numel, lead))
    on = _index(lead[0]) if flag is None else _index(flag)
    ones = (1,) * len(sizes)
    for each, items in zip(form, lists, strict=True):
        dtype = items[0].dtype
        if dtype not in each.dtypes or (each is spec.V and dtype is not lists[2][0].dtype):
            return None
        if not all(map(_packed, items)) or set(map(_dtype, items)) != {dtype} or set(map(_index, items)) != {on}:
            return None
        if items is not lead and tuple(map(_numel, items)) != (ones if each.one else sizes):
            return None
    group = _gathered(lists)
    if on < 0 and not _compiling_only() and not all(t.is_cpu for t in chain.from_iterable(lists)):
        return None
    if any(map(_absent, group.addresses, lists)):
        return None
    return group


def _absent(addresses: tuple[int, ...], items: Sequence[Tensor]) -> bool:
    """Whether a nonempty tensor has a null address."""
    return 0 in addresses and not _compiling_only() and any(not a and t.numel() for a, t in zip(addresses, items))


def _gathered(lists: Any) -> TensorGroup:
    return TensorGroup(
        tuple(tuple(map(_address, items)) for items in lists),
        tuple(map(_numel, lists[0])),
        tuple(items[0].dtype for items in lists),
        lists[0][0].device,
    )


def _decline_gaps(together: list[Tensor]) -> None:
    """Raise NotSupported unless each tensor is dense in memory, and all have the same strides."""
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
    """How tensors of some sizes are split into chunks: a device table, and the first chunk of each tensor."""

    rows: Tensor  # for each chunk, the table row of the tensor that it belongs to
    firsts: tuple[int, ...]
    count: int
    stream: int


class Table(NamedTuple):
    rows: Tensor
    stream: int


_chunks: dict[Any, Chunks] = keep({})
_tables: dict[Any, Table] = keep({})
_kept: list[Any] = []  # tensors that captured graphs read: never freed, because nothing reports the end of a graph
on_empty_cache(_chunks.clear)
on_empty_cache(_tables.clear)


def chunks_of(group: TensorGroup, size: int) -> Chunks:
    """The tensors split into chunks of `size` elements; the last chunk of a tensor may be smaller."""
    key = (group.sizes, size, group.device)
    return _cached(_chunks, key, group.device, lambda stream: _split(group, size, stream))


def table_of(group: TensorGroup, chunks: Chunks) -> Tensor:
    """The table on the device, cached."""
    key = (group.addresses, group.sizes, group.more, chunks.firsts)
    return _cached(
        _tables, key, group.device, lambda stream: Table(_sent(_cells(group, chunks), group.device), stream)
    ).rows


def _cached(cache: dict[Any, Any], key: Any, device: torch.device, make: Any) -> Any:
    """The cached entry for the current stream, or a new one from `make`."""
    stream = _stream(device.index) if device.type == "cuda" and _stream is not None else 0
    entry = cache.get(key)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # An entry from another stream is complete, because capture starts with a synchronization.
        entry = make(stream) if entry is None else entry
        _kept.append(entry)
        return entry
    if entry is not None and entry.stream == stream:
        return entry
    entry = make(stream)
    while len(cache) >= MOST:
        cache.pop(next(iter(cache)), None)
    cache[key] = entry
    return entry


def _split(group: TensorGroup, size: int, stream: int) -> Chunks:
    counts = [-(-n // size) for n in group.sizes]
    total = sum(counts)
    firsts = tuple(accumulate(counts, initial=0))[:-1]
    device = group.device
    if device.type == "meta":
        return Chunks(torch.empty(max(total, 1), dtype=torch.int32, device=device), firsts, total, stream)
    repeats = _sent(array("q", counts), device)
    rows = torch.arange(len(counts), dtype=torch.int32, device=device)
    return Chunks(rows.repeat_interleave(repeats, output_size=total), firsts, total, stream)


def _cells(group: TensorGroup, chunks: Chunks) -> array[int]:
    """The values of the table, row by row."""
    joined: Iterator[int] | tuple[int, ...] = group.addresses[0]
    for addresses in group.addresses[1:]:
        joined = map(or_, joined, addresses)
    aligned = [not a & 15 for a in joined]
    columns = (*group.addresses, group.sizes, chunks.firsts, aligned, *group.more)
    return array("q", chain.from_iterable(zip(*columns, strict=True)))


_staging: list[Any] = []  # [pinned memory for captures, how many of its values are in use]
STAGING = 1 << 17  # int64 values


def _sent(values: array[int], device: torch.device) -> Tensor:
    """Copy values to the device asynchronously."""
    host = torch.frombuffer(values, dtype=torch.int64)
    if device.type == "meta":
        return torch.empty_like(host, device=device)
    if device.type != "cuda":
        return host.to(device, copy=True)
    capturing = torch.cuda.is_current_stream_capturing()
    if not _staging and not capturing:  # allocation may be forbidden during capture
        _staging[:] = [torch.empty(STAGING, dtype=torch.int64, pin_memory=True), 0]
    pinned = _reserved(len(values)) if capturing else torch.empty(len(values), dtype=torch.int64, pin_memory=True)
    return pinned.copy_(host).to(device, non_blocking=True)


def _reserved(n: int) -> Tensor:
    """Pinned memory that is never reused: each replay of a graph reads it again."""
    if _staging and _staging[1] + n <= STAGING:
        start = _staging[1]
        _staging[1] += n
        return _staging[0][start : start + n]
    pinned = torch.empty(n, dtype=torch.int64, pin_memory=True)
    _kept.append(pinned)
    return pinned
