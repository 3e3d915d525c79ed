"""Ops that write: index_put, put, index_copy, index_fill, index_add, scatter, scatter_add.

Each writes in place. A functional call and `out=` copy self first. Sums are atomic additions where torch's are, which
`torch.use_deterministic_algorithms` leaves to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.registry import impl
from ...specs import index as spec
from ..lib.indexing import spread
from ..lib.rows import DEVICES, OutputSpec
from .cells import (
    Cells,
    check_tensors,
    check_written,
    decided,
    of_flat,
    of_gather,
    of_index,
    of_select,
    torchs,
    willing,
)
from .cells import put as launch_put
from .numbers import representable
from .reads import listed, split

Number = bool | int | float
ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)


def _check_atomic(dtype: torch.dtype) -> None:
    if dtype not in ATOMIC:
        raise NotSupported(f"no atomic additions of {dtype}")


def _check_order() -> None:
    if torch.are_deterministic_algorithms_enabled():
        raise NotSupported("atomic additions, and writes to one place, have no order")


def _copied(self: Tensor, look: OutputSpec) -> Tensor:
    return look.empty(self).copy_(self)


def _target(out: Tensor, self: Tensor, *read: Tensor) -> Tensor:
    """The tensor that is written: `out`, with self's elements."""
    check_written(out, *read)
    if out is not self:
        if out.shape != self.shape or out.dtype is not self.dtype or out.device != self.device:
            raise NotSupported(f"out is {out.dtype} {tuple(out.shape)}, self {self.dtype} {tuple(self.shape)}")
        if torch._C._is_alias_of(out, self):
            raise NotSupported("out and self share memory")
        out.copy_(self)
    return out


def _number(value: Any, dtype: torch.dtype) -> Number:
    """A number, or a 0-dim tensor on the CPU, that torch would write as it is."""
    found = value.item() if isinstance(value, Tensor) else value
    if not representable(found, dtype):
        raise NotSupported(f"{found} is no {dtype}")
    return found


def _look(made: Tensor) -> OutputSpec:
    return OutputSpec(tuple(made.shape), tuple(made.stride()), made.dtype)


def _nothing(*args: Any) -> None:
    pass


# ---- along a dimension ----------------------------------------------------------------------------------------------
# A form is how the index is read (`select`: a slice for each index, `gather`: an element), and whether it adds.

FORMS: dict[str, tuple[Any, Callable[..., Cells], bool]] = {
    "index_copy": (torch.ops.aten.index_copy, of_select, False),
    "index_fill": (torch.ops.aten.index_fill, of_select, False),
    "index_add": (torch.ops.aten.index_add, of_select, True),
    "scatter": (torch.ops.aten.scatter, of_gather, False),
    "scatter_sum": (torch.ops.aten.scatter, of_gather, True),
    "scatter_add": (torch.ops.aten.scatter_add, of_gather, True),
}


@decided
def _look_along(form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None) -> Callable[[], OutputSpec]:
    """What the functional op returns."""
    made = torchs(FORMS[form][0], x, dim, index, 0 if source is None else source)
    look = _look(made)
    return lambda: look


@decided
def _along(form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None, scaled: bool) -> Callable[..., None]:
    """A launch (x, index, source[, alpha]) or (x, index, number)."""
    own, cells_of, adds = FORMS[form]
    check_tensors(x, *([] if source is None else [source]), indices=(index,))
    if index.dtype is not torch.int64 and form != "index_add":
        raise NotSupported("torch takes an index of int64")
    torchs(own, x, dim, index, 0 if source is None else source)
    if source is not None and source.dtype is not x.dtype:
        raise NotSupported(f"a source of {source.dtype} for {x.dtype}")
    if adds:
        _check_atomic(x.dtype)
    if not index.numel() or not x.numel() or (source is not None and not source.numel()):
        return _nothing
    cells = cells_of(x, dim, index)
    if source is None:
        return launch_put(cells, x, None, x.dtype, adds)
    steps = source.stride() if source.dim() else (0,) * len(cells.shape)
    return launch_put(cells, x, steps, source.dtype, adds, scaled)


def _write_along(form: str, out: Tensor, dim: int, index: Tensor, source: Any, alpha: Number | None = None) -> Tensor:
    if isinstance(source, Tensor):
        launch = _along(form, out, dim, index, source, alpha is not None)
        launch(out, index, source) if alpha is None else launch(out, index, source, alpha)
    else:
        _along(form, out, dim, index, None, False)(out, index, source)
    return out


def _new(form: str, self: Tensor, dim: int, index: Tensor, source: Any, alpha: Number | None = None) -> Tensor:
    given = source if isinstance(source, Tensor) else None
    willing(_along(form, self, dim, index, given, alpha is not None))
    y = _copied(self, _look_along(form, self, dim, index, given)())
    return _write_along(form, y, dim, index, source, alpha)


def _into(form: str, out: Tensor, self: Tensor, dim: int, index: Tensor, source: Any, alpha: Any = None) -> Tensor:
    read = (index, source) if isinstance(source, Tensor) else (index,)
    given = source if isinstance(source, Tensor) else None
    willing(_along(form, self, dim, index, given, alpha is not None))
    return _write_along(form, _target(out, self, *read), dim, index, source, alpha)


def _index_copy_into(out: Tensor, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    _check_order()
    return _into("index_copy", out, self, dim, index, source)


@impl(spec.ops["index_copy"], devices=DEVICES, into=_index_copy_into)
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    _check_order()
    return _new("index_copy", self, dim, index, source)


def _index_fill_into(out: Tensor, self: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    return _into("index_fill", out, self, dim, index, _filling(self, value))


@impl(spec.ops["index_fill"], devices=DEVICES, into=_index_fill_into)
def index_fill(self: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    return _new("index_fill", self, dim, index, _filling(self, value))


def _filling(self: Tensor, value: Tensor | Number) -> Tensor | Number:
    """The number to fill with; a 0-dim tensor of the device is read by the kernel."""
    if isinstance(value, Tensor) and not value.is_cpu:
        if value.dim():
            raise NotSupported("torch takes a value of no dimensions")
        return value
    return _number(value, self.dtype)


def _scale(alpha: Number, dtype: torch.dtype) -> Number | None:
    """alpha for the kernel; None for 1, which needs no product."""
    return None if type(alpha) is int and alpha == 1 else _number(alpha, dtype)


def _index_add_into(out: Tensor, self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Number) -> Tensor:
    _check_order()
    return _into("index_add", out, self, dim, index, source, _scale(alpha, self.dtype))


@impl(spec.ops["index_add"], devices=DEVICES, into=_index_add_into)
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    _check_order()
    return _new("index_add", self, dim, index, source, _scale(alpha, self.dtype))


def _scatter(self: Tensor, src: Tensor | None, value: Number | None, reduce: str | None) -> tuple[str, Tensor | Number]:
    """The form of a scatter, and what it writes."""
    if reduce is not None and reduce != "add":
        raise NotSupported(f"reduce={reduce!r}")
    if src is not None:
        _check_order()
    form = "scatter" if reduce is None else "scatter_sum"
    return form, _number(value, self.dtype) if src is None else src


def _scatter_into(
    out: Tensor, self: Tensor, dim: int, index: Tensor, src: Tensor | None, value: Number | None, reduce: str | None
) -> Tensor:
    form, source = _scatter(self, src, value, reduce)
    return _into(form, out, self, dim, index, source)


@impl(spec.ops["scatter"], devices=DEVICES, into=_scatter_into)
def scatter(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | None = None,
    value: Number | None = None,
    *,
    reduce: str | None = None,
) -> Tensor:
    form, source = _scatter(self, src, value, reduce)
    return _new(form, self, dim, index, source)


def _scatter_add_into(out: Tensor, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    _check_order()
    return _into("scatter_add", out, self, dim, index, src)


@impl(spec.ops["scatter_add"], devices=DEVICES, into=_scatter_add_into)
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    _check_order()
    return _new("scatter_add", self, dim, index, src)


# ---- index_put ------------------------------------------------------------------------------------------------------


@decided
def _put_at(x: Tensor, at: Any, values: Tensor | None, *indices: Tensor) -> Callable[..., None]:
    """A launch (x, *indices, values), or (x, *indices, number)."""
    check_tensors(x, *([] if values is None else [values]), indices=indices)
    cells = of_index(x, at, indices)
    if values is None:
        return launch_put(cells, x, None, x.dtype) if cells.count else _nothing
    if values.dtype is not x.dtype:
        raise NotSupported(f"values of {values.dtype} for {x.dtype}")
    try:
        values.expand(cells.shape)
    except RuntimeError as error:
        raise NotSupported(str(error)) from None
    if not cells.count:
        return _nothing
    return launch_put(cells, x, spread(values.shape, values.stride(), cells.shape), values.dtype)


def _index_put_into(
    out: Tensor, self: Tensor, indices: Sequence[Tensor | None], values: Tensor, *flags: bool
) -> Tensor:
    accumulate, *_ = flags
    if accumulate:
        raise NotSupported("torch adds in the order of the sorted indices")
    _check_order()
    at, given = split(indices)
    if not given:
        raise NotSupported("no index")
    if values.is_cpu and not values.dim() and not self.is_cpu:
        if values.dtype is not self.dtype:
            raise NotSupported(f"values of {values.dtype} for {self.dtype}")
        return _write_at(out, self, at, given, None, _number(values, self.dtype))
    return _write_at(out, self, at, given, values, values)


def _write_at(out: Tensor, self: Tensor, at: Any, given: list[Tensor], values: Tensor | None, source: Any) -> Tensor:
    willing(_put_at(self, at, values, *given))
    target = _target(out, self, *given, *([] if values is None else [values]))
    _put_at(target, at, values, *given)(target, *given, source)
    return out


def _index_put_new(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, *flags: bool) -> Tensor:
    return _index_put_into(torch.empty_like(self), self, indices, values, *flags)


@impl(spec.ops["index_put"], devices=DEVICES, into=_index_put_into)
def index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    return _index_put_new(self, indices, values, accumulate)


@impl(spec.ops["_unsafe_index_put"], devices=DEVICES)
def _unsafe_index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    return _index_put_new(self, indices, values, accumulate)


@impl(spec.ops["_index_put_impl"], devices=DEVICES, into=_index_put_into)
def _index_put_impl(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    return _index_put_new(self, indices, values, accumulate, unsafe)


# ---- put ------------------------------------------------------------------------------------------------------------


@decided
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Callable[..., None]:
    check_tensors(x, source, indices=(index,))
    torchs(torch.ops.aten.put, x, index, source, accumulate)
    if index.dtype is not torch.int64 or source.dtype is not x.dtype or source.numel() != index.numel():
        raise NotSupported("torch takes an index of int64, and as many elements of self's dtype")
    if accumulate:
        _check_atomic(x.dtype)
    if source.shape != index.shape and not (source.is_contiguous() and index.is_contiguous()):
        raise NotSupported("index and source have other shapes")
    if not index.numel():
        return _nothing
    cells = of_flat(x, index)
    steps = (
        source.stride() if source.shape == index.shape and source.dim() else OutputSpec.of(cells.shape, x.dtype).stride
    )
    return launch_put(cells, x, steps, source.dtype, accumulate)


def _put_into(out: Tensor, self: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    _check_order()
    willing(_put(self, index, source, accumulate))
    target = _target(out, self, index, source)
    _put(target, index, source, accumulate)(target, index, source)
    return out


@impl(spec.ops["put"], devices=DEVICES, into=_put_into)
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return _put_into(torch.empty_like(self), self, index, source, accumulate)
