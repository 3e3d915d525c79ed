"""Ops that read: index, index_select, gather, take, embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides

from ...core.contract import AnyTensor, Bool
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...specs import index as spec
from ..lib.cells import Cells, check_tensors, check_written, of_flat, of_gather, of_index, of_rows, of_select
from ..lib.cells import take as launch_take
from ..lib.indexing import broadcast_strides
from ..lib.meta import on_meta
from ..lib.numbers import representable
from ..lib.plans import decided
from ..lib.rows import DEVICES, OutputSpec

NotEmpty = AnyTensor[Tensor, "...", nonempty()]
CELLS: dict[str, Callable[..., Cells]] = {"select": of_select, "gather": of_gather}


def _read(cells: Cells, x: Tensor, made: Tensor, out: Tensor | None, mask: Any = None) -> Callable[..., Tensor]:
    """A function (x, *indices[, mask][, out][, fill]) -> y; `made` is the result of torch's op on meta tensors."""
    if out is not None and (out.shape != made.shape or out.dtype is not x.dtype or out.device != x.device):
        raise NotSupported(f"out is {out.dtype} {tuple(out.shape)}, the result {x.dtype} {tuple(made.shape)}")
    output = OutputSpec.like(made)
    if not made.numel():
        return (lambda x, *rest: output.empty(x)) if out is None else lambda *rest: out_of(rest)
    if out is None:
        return launch_take(cells, x, output, True, mask)
    launch = launch_take(cells, x, out, False, mask)

    def write(*args: Any) -> Tensor:
        launch(*args)
        return out_of(args)

    return write


def out_of(args: Sequence[Any]) -> Tensor:
    """The result of a call: its last tensor argument."""
    return next(a for a in reversed(args) if isinstance(a, Tensor))


# ---- along a dimension ----------------------------------------------------------------------------------------------


@decided
def _along(form: str, x: NotEmpty, dim: int, index: Tensor, out: Tensor | None) -> Callable[..., Tensor]:
    check_tensors(x, indices=(index,))
    torch_op = torch.ops.aten.index_select if form == "select" else torch.ops.aten.gather
    result = on_meta(torch_op, x, dim, index)
    if form == "gather" and index.dtype is not torch.int64:
        raise NotSupported("torch takes an index of int64")
    return _read(CELLS[form](x, dim, index), x, result, out)


def _out_along(form: str) -> Callable[..., Tensor]:
    def into(out: Tensor, self: Tensor, dim: int, index: Tensor, *rest: Any) -> Tensor:
        check_written(out, self, index)
        return _along(form, self, dim, index, out)(self, index, out)

    return into


@impl(spec.ops["index_select"], devices=DEVICES, into=_out_along("select"))
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    return _along("select", self, dim, index, None)(self, index)


@impl(spec.ops["gather"], devices=DEVICES, into=_out_along("gather"))
def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return _along("gather", self, dim, index, None)(self, index)


# ---- rows and flat --------------------------------------------------------------------------------------------------


@decided
def _simple(form: str, x: NotEmpty, index: Tensor, out: Tensor | None) -> Callable[..., Tensor]:
    check_tensors(x, indices=(index,))
    if form == "take":
        result = on_meta(torch.ops.aten.take, x, index)
        if index.dtype is not torch.int64:
            raise NotSupported("torch takes an index of int64")
        return _read(of_flat(x, index), x, result, out)
    result = on_meta(torch.ops.aten.embedding, x, index)
    return _read(of_rows(x, index), x, result, out)


def _take_into(out: Tensor, self: Tensor, index: Tensor) -> Tensor:
    check_written(out, self, index)
    return _simple("take", self, index, out)(self, index, out)


@impl(spec.ops["take"], devices=DEVICES, into=_take_into)
def take(self: Tensor, index: Tensor) -> Tensor:
    return _simple("take", self, index, None)(self, index)


def _embedding_into(out: Tensor, weight: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    check_written(out, weight, indices)
    return _simple("embedding", weight, indices, out)(weight, indices, out)


@impl(spec.ops["embedding"], devices=DEVICES, into=_embedding_into)
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    return _simple("embedding", weight, indices, None)(weight, indices)


# ---- index ----------------------------------------------------------------------------------------------------------


def split(indices: Sequence[Tensor | None]) -> tuple[tuple[int, ...], list[Tensor]]:
    """The indexed dimensions, and their indices."""
    at = tuple(d for d, t in enumerate(indices) if t is not None)
    return at, [t for t in indices if t is not None]


def listed(at: Sequence[int], indices: Sequence[Tensor]) -> list[Tensor | None]:
    """The inverse of `split`."""
    by_dim = dict(zip(at, indices, strict=True))
    return [by_dim.get(d) for d in range(at[-1] + 1)]


def indexed(x: Tensor, cells: Cells) -> Tensor:
    """A meta tensor like x[indices], with the strides of an elementwise op over x and the indices."""
    like = lambda strides: torch.empty_strided(cells.shape, strides, dtype=x.dtype, device="meta")
    strides = compute_elementwise_output_strides(like(cells.x), *(like(k.strides) for k in cells.indices))
    return like(strides)


@decided
def _index(x: NotEmpty, at: Any, out: Tensor | None, *indices: Tensor) -> Callable[..., Tensor]:
    check_tensors(x, indices=indices)
    on_meta(torch.ops.aten.index.Tensor, x, listed(at, indices))
    cells = of_index(x, at, indices)
    return _read(cells, x, indexed(x, cells), out)


def _index_into(out: Tensor, self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    at, given = split(indices)
    if not given:
        raise NotSupported("no index")
    check_written(out, self, *given)
    return _index(self, at, out, *given)(self, *given, out)


@impl(spec.ops["index"], devices=DEVICES, into=_index_into)
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    at, given = split(indices)
    if not given:
        raise NotSupported("no index")
    return _index(self, at, None, *given)(self, *given)


@impl(spec.ops["_unsafe_index"], devices=DEVICES)
def _unsafe_index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return index(self, indices)


@decided
def _masked_index(x: NotEmpty, at: Any, mask: Bool[Tensor, "..."], *indices: Tensor) -> Callable[..., Tensor]:
    check_tensors(x, mask, indices=indices)
    on_meta(torch.ops.aten._unsafe_masked_index, x, mask, listed(at, indices), 0)
    cells = of_index(x, at, indices)
    if mask.dim() > len(cells.shape):
        raise NotSupported("a mask with more dimensions than the result")
    return _read(cells, x, indexed(x, cells), None, broadcast_strides(mask.shape, mask.stride(), cells.shape))


@impl(spec.ops["_unsafe_masked_index"], devices=DEVICES)
def _unsafe_masked_index(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: bool | int | float
) -> Tensor:
    at, given = split(indices)
    if not given or not representable(fill, self.dtype):
        raise NotSupported("no index, or a number that does not fit")
    return _masked_index(self, at, mask, *given)(self, *given, mask, fill)
