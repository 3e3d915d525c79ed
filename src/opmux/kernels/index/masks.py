"""Ops that move the elements which a mask selects: nonzero, masked_select, masked_scatter.

Blocks of elements count what they select, a scan of the counts says where each block begins, and the blocks write. The
number of selected elements is read by the host only where the shape of the result needs it, as in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.errors import NotSupported
from ...core.registry import impl
from ...specs import index as spec
from ...specs import scan
from ..lib.cells import check_tensors, check_written, decided
from ..lib.config import Tiles, tunable
from ..lib.jit_source import jit_from_source
from ..lib.launch import Launcher
from ..lib.rows import DEVICES, OutputSpec


@triton.jit
def _selected(g_ptr, begin, n, BLOCK: tl.constexpr):
    """Offsets of a block, and which of them are selected, as int32."""
    o = begin + tl.arange(0, BLOCK)
    return o, (tl.load(g_ptr + o, mask=o < n, other=0) != 0).to(tl.int32)


def _count(g_ptr, count_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    _, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    tl.store(count_ptr + pid, tl.sum(chosen, 0).to(tl.int64))


@triton.jit
def _begin(end_ptr, pid):
    """How many elements the blocks before this one select."""
    return tl.load(end_ptr + pid - 1, mask=pid > 0, other=0)


def _compact(g_ptr, x_ptr, end_ptr, y_ptr, n, limit, BLOCK: tl.constexpr):
    """y[k] = the k-th selected element of x, for the first `limit`."""
    pid = tl.program_id(0).to(tl.int64)
    o, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    to = _begin(end_ptr, pid) + tl.cumsum(chosen, 0) - chosen
    x = tl.load(x_ptr + o, mask=chosen != 0)
    tl.store(y_ptr + to, x, mask=(chosen != 0) & (to < limit))


def _expand(g_ptr, x_ptr, end_ptr, y_ptr, n, limit, BLOCK: tl.constexpr):
    """y at the k-th selected place = x[k], for the first `limit`; other places are left."""
    pid = tl.program_id(0).to(tl.int64)
    o, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    at = _begin(end_ptr, pid) + tl.cumsum(chosen, 0) - chosen
    m = (chosen != 0) & (at < limit)
    tl.store(y_ptr + o, tl.load(x_ptr + at, mask=m), mask=m)


_PLACES = """\
def places(g_ptr, end_ptr, y_ptr, n, limit, row, column, {sizes}BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    o, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    to = _begin(end_ptr, pid) + tl.cumsum(chosen, 0) - chosen
    m = (chosen != 0) & (to < limit)
    y_ptr += to * row
"""


@functools.cache
def _places(rank: int) -> Launcher:
    """y[k] = the indices of the k-th selected element, one a dimension."""
    text = _PLACES.format(sizes="".join(f"n_{d}, " for d in range(1, rank)))
    for d in reversed(range(rank)):
        text += f"    tl.store(y_ptr + {d} * column, {f'o % n_{d}' if d else 'o'}, mask=m)\n"
        text += f"    o = o // n_{d}\n" if d else ""
    return Launcher(jit_from_source(text, _selected=_selected, _begin=_begin), sizes="n")


count = Launcher(_count, sizes="n")
compact = Launcher(_compact, sizes="n")
expand = Launcher(_expand, sizes="n")


@tunable("index.masks")
def mask_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=2048)


# ---- plans ----------------------------------------------------------------------------------------------------------


@decided
def _ends(g: Tensor) -> Callable[[Tensor], Tensor]:
    """A function of a contiguous mask: how many elements each block and those before it select."""
    check_tensors(g)
    tiles, n = mask_tiles(dtype=g.dtype), g.numel()
    blocks = -(-n // tiles["BLOCK"])
    launch = count.ready(
        (blocks, 1, 1), (n,), tiles.config(even=n % 16 == 0), {1: OutputSpec.of((blocks,), torch.int64)}
    )
    return lambda g: scan.cumsum(launch(g), 0) if blocks > 1 else launch(g)


@decided
def _mover(kernel: str, g: Tensor, x: Tensor) -> Callable[..., None]:
    """A launch (g, x, ends, y, limit)."""
    check_tensors(g, x)
    tiles, n = mask_tiles(dtype=g.dtype), g.numel()
    return {"compact": compact, "expand": expand}[kernel].ready(
        (-(-n // tiles["BLOCK"]), 1, 1), (n,), tiles.config(even=n % 16 == 0)
    )


@decided
def _placer(g: Tensor) -> Callable[..., None]:
    """A launch (g, ends, y, limit, row, column): y[k, d] is at k * row + d * column."""
    check_tensors(g)
    tiles, n = mask_tiles(dtype=g.dtype), g.numel()
    launch = _places(g.dim()).ready((-(-n // tiles["BLOCK"]), 1, 1), (n,), tiles.config(even=n % 16 == 0))
    sizes = tuple(g.shape[1:])
    return lambda g, ends, y, limit, row, column: launch(g, ends, y, limit, row, column, *sizes)


def _broadcast(mask: Tensor, *others: Tensor) -> list[Tensor]:
    """Both contiguous and of one shape; declines masks of bytes, about which torch warns."""
    if mask.dtype is not torch.bool or any(t.device != mask.device or t.layout is not torch.strided for t in others):
        raise NotSupported(f"a mask of {mask.dtype}, or tensors on several devices")
    try:
        return [t.contiguous() for t in torch.broadcast_tensors(mask, *others)]
    except RuntimeError as error:
        raise NotSupported(str(error)) from None


# ---- ops ------------------------------------------------------------------------------------------------------------


@impl(spec.ops["nonzero"], devices=DEVICES)
def nonzero(self: Tensor) -> Tensor:
    if not self.numel() or not self.dim():
        raise NotSupported("nothing to look at, or a number")
    x = self.contiguous()
    ends = _ends(x)(x)
    found = int(ends[-1].item())
    y = torch.empty((self.dim(), found), dtype=torch.int64, device=self.device)
    if found:
        _placer(x)(x, ends, y, found, 1, found)
    return y.t()


@impl(spec.ops["nonzero_static"], devices=DEVICES)
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if not self.numel() or not self.dim() or size < 0:
        raise NotSupported("nothing to look at, or a number")
    x = self.contiguous()
    y = torch.full((size, self.dim()), fill_value, dtype=torch.int64, device=self.device)
    if size:
        _placer(x)(x, _ends(x)(x), y, size, self.dim(), 1)
    return y


@impl(spec.ops["masked_select"], devices=DEVICES)
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    mask, x = _broadcast(mask, self)
    if not x.numel():
        raise NotSupported("nothing to select from")
    move = _mover("compact", mask, x)
    ends = _ends(mask)(mask)
    found = int(ends[-1].item())
    y = torch.empty((found,), dtype=x.dtype, device=x.device)
    if found:
        move(mask, x, ends, y, found)
    return y


def _masked_scatter_into(out: Tensor, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if out.shape != self.shape or out.dtype is not self.dtype or not out.is_contiguous():
        raise NotSupported("an out of another shape or dtype, or with gaps")
    if source.dtype is not self.dtype or source.device != self.device:
        raise NotSupported(f"a source of {source.dtype} on {source.device}")
    check_written(out, mask, source)
    if mask.dtype is not torch.bool or mask.device != self.device:
        raise NotSupported(f"a mask of {mask.dtype}")
    try:
        mask = mask.expand(self.shape).contiguous()
    except RuntimeError as error:
        raise NotSupported(str(error)) from None
    if not mask.numel() or not source.numel():
        raise NotSupported("nothing to write")
    source = source.contiguous()
    move, ends = _mover("expand", mask, source), _ends(mask)(mask)
    if out is not self:
        out.copy_(self)
    move(mask, source, ends, out, source.numel())
    return out


@impl(spec.ops["masked_scatter"], devices=DEVICES, into=_masked_scatter_into)
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    try:
        shape = torch.broadcast_shapes(self.shape, mask.shape)
    except RuntimeError as error:
        raise NotSupported(str(error)) from None
    y = torch.empty(shape, dtype=self.dtype, device=self.device)
    return _masked_scatter_into(y, self.expand(shape), mask, source)


@impl(spec.ops["masked_scatter_backward"], devices=DEVICES)
def masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradient of the source: what the mask selects, then zeros."""
    mask, dy = _broadcast(mask, grad_output)
    if not dy.numel():
        raise NotSupported("nothing to select from")
    move, ends = _mover("compact", mask, dy), _ends(mask)(mask)
    dx = torch.zeros(tuple(sizes), dtype=dy.dtype, device=dy.device)
    if dx.numel():
        move(mask, dy, ends, dx, dx.numel())
    return dx
