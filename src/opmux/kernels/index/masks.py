"""Ops on the elements that a mask selects: nonzero, masked_select, masked_scatter.

The host reads the number of selected elements only if the result's shape depends on it, as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from ...core.contract import AnyTensor, Bool, at_least, broadcasts_to, contiguous, same_dtype
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...core.support import declining_cached
from ...specs import index as spec
from ..lib.cells import check_written
from ..lib.compaction import ends as ends_of
from ..lib.compaction import mover, placer
from ..lib.rows import DEVICES


def _broadcast(mask: Tensor, *others: Tensor) -> list[Tensor]:
    """All tensors broadcast to one shape, contiguous. Raises NotSupported for byte masks: torch warns about them."""
    if mask.dtype is not torch.bool or any(t.device != mask.device or t.layout is not torch.strided for t in others):
        raise NotSupported(f"a mask of {mask.dtype}, or tensors on several devices")
    try:
        return [t.contiguous() for t in torch.broadcast_tensors(mask, *others)]
    except RuntimeError as error:
        raise NotSupported(str(error)) from None


# ---- ops ------------------------------------------------------------------------------------------------------------


@impl(spec.ops["nonzero"], devices=DEVICES)
def nonzero(self: AnyTensor[Tensor, "*rest n", nonempty()]) -> Tensor:
    x = self.contiguous()
    ends = ends_of(x)(x)
    count = int(ends[-1].item())
    y = torch.empty((self.dim(), count), dtype=torch.int64, device=self.device)
    if count:
        placer(x)(x, ends, y, count, 1, count)
    return y.t()


@impl(spec.ops["nonzero_static"], devices=DEVICES)
def nonzero_static(
    self: AnyTensor[Tensor, "*rest n", nonempty()], *, size: Annotated[int, at_least(0)], fill_value: int = -1
) -> Tensor:
    x = self.contiguous()
    y = torch.full((self.dim(), size), fill_value, dtype=torch.int64, device=self.device)
    if size:
        placer(x)(x, ends_of(x)(x), y, size, 1, size)
    return y.t()  # on accelerators torch returns these strides, on the CPU others


@impl(spec.ops["masked_select"], devices=DEVICES)
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    mask, x = _broadcast(mask, self)
    if not x.numel():
        raise NotSupported("an empty tensor")
    move = mover("compact", mask, x)
    ends = ends_of(mask)(mask)
    count = int(ends[-1].item())
    y = torch.empty((count,), dtype=x.dtype, device=x.device)
    if count:
        move(mask, x, ends, y, count)
    return y


@declining_cached
def _masked_scatter_into(
    out: AnyTensor[Tensor, "*shape", contiguous(), same_dtype("self")],
    self: AnyTensor[Tensor, "*shape", nonempty()],
    mask: Bool[Tensor, "...", broadcasts_to("self")],
    source: AnyTensor[Tensor, "...", same_dtype("self"), nonempty()],
) -> Tensor:
    check_written(out, mask, source)
    mask = mask.expand(self.shape).contiguous()
    source = source.contiguous()
    move, ends = mover("expand", mask, source), ends_of(mask)(mask)
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
    """The gradient of the source: the selected elements, then zeros."""
    mask, dy = _broadcast(mask, grad_output)
    if not dy.numel():
        raise NotSupported("an empty tensor")
    move, ends = mover("compact", mask, dy), ends_of(mask)(mask)
    dx = torch.zeros(tuple(sizes), dtype=dy.dtype, device=dy.device)
    if dx.numel():
        move(mask, dy, ends, dx, dx.numel())
    return dx
