"""Ops that write: index_put, put, index_copy, index_fill, index_add, index_reduce, scatter*, gradients of embedding.

Each writes in place. A functional call and `out=` copy self first. Sums of 32 and 64 bits are atomic additions where
torch's are; all other sums and reductions are in a fixed order (fold.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.registry import impl
from ...specs import index as spec
from ..lib.cells import (
    Cells,
    check_tensors,
    check_written,
    decided,
    of_flat,
    of_gather,
    of_index,
    of_rows,
    of_select,
    torchs,
    willing,
)
from ..lib.cells import put as launch_put
from ..lib.indexing import spread
from ..lib.numbers import representable
from ..lib.rows import DEVICES, OutputSpec
from .fold import COMBINE, folder
from .reads import split

Number = bool | int | float
BETA = "index_reduce() is in beta and the API may change at any time."  # as torch warns
ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)


def _check_order() -> None:
    if torch.are_deterministic_algorithms_enabled():
        raise NotSupported("which of several writes to one place stays has no order")


def _ordered(dtype: torch.dtype) -> bool:
    """Whether sums must be added in a fixed order."""
    return dtype not in ATOMIC or torch.are_deterministic_algorithms_enabled()


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
# A form: torch's op, how the index is read (`select`: a slice for each index, `gather`: an element), and how elements
# are combined (None: the last one stays).

FORMS: dict[str, tuple[Any, Callable[..., Cells], str | None]] = {
    "index_copy": (torch.ops.aten.index_copy, of_select, None),
    "index_fill": (torch.ops.aten.index_fill, of_select, None),
    "index_add": (torch.ops.aten.index_add, of_select, "sum"),
    "scatter": (torch.ops.aten.scatter, of_gather, None),
    "scatter_add": (torch.ops.aten.scatter_add, of_gather, "sum"),
    "scatter.add": (torch.ops.aten.scatter, of_gather, "sum"),
    "scatter.multiply": (torch.ops.aten.scatter, of_gather, "prod"),
    **{f"scatter_reduce.{how}": (torch.ops.aten.scatter_reduce, of_gather, how) for how in COMBINE},
    **{f"index_reduce.{how}": (torch.ops.aten.index_reduce, of_select, how) for how in COMBINE if how != "sum"},
}


def _asked(form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None) -> Tensor:
    """What torch makes of meta tensors; declines what it refuses."""
    op, _, reduce = form.partition(".")
    args = (x, dim, index, 0 if source is None else source)
    if op == "scatter" and reduce:
        return torchs(FORMS[form][0], *args, reduce=reduce)
    return torchs(FORMS[form][0], *args, *([reduce] if reduce else []))


@decided
def _look_along(form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None) -> Callable[[], OutputSpec]:
    """What the functional op returns."""
    look = _look(_asked(form, x, dim, index, source))
    return lambda: look


@decided
def _along(
    form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None, scaled: bool, ordered: bool, own: bool
) -> Callable[..., None]:
    """A launch (x, index, source[, alpha]) or (x, index, number). `own`: what x has takes part in a reduction."""
    _, cells_of, how = FORMS[form]
    check_tensors(x, *([] if source is None else [source]), indices=(index,))
    if index.dtype is not torch.int64 and form != "index_add":
        raise NotSupported("torch takes an index of int64")
    _asked(form, x, dim, index, source)
    if source is not None and source.dtype is not x.dtype:
        raise NotSupported(f"a source of {source.dtype} for {x.dtype}")
    if how is not None and x.dtype is torch.bool:
        raise NotSupported("sums of truth values")
    if not index.numel() or not x.numel() or (source is not None and not source.numel()):
        return _nothing
    cells = cells_of(x, dim, index)
    if how is None or (how == "sum" and own and not ordered):
        if source is None:
            return launch_put(cells, x, None, x.dtype, how is not None)
        steps = source.stride() if source.dim() else (0,) * len(cells.shape)
        return launch_put(cells, x, steps, source.dtype, how is not None, scaled)
    run, shape = folder(cells, x, how, own), cells.shape

    def folded(x: Tensor, index: Tensor, source: Any, alpha: Number = 1) -> None:
        if not isinstance(source, Tensor):
            source = torch.full(shape, source, dtype=x.dtype, device=x.device)
        elif source.dim():
            source = source.as_strided(shape, source.stride()).contiguous()
        run(x, (index,), source, alpha)

    return folded


def _write_along(
    form: str, out: Tensor, dim: int, index: Tensor, source: Any, alpha: Number | None = None, own: bool = True
) -> Tensor:
    given = source if isinstance(source, Tensor) else None
    launch = _along(form, out, dim, index, given, alpha is not None, _ordered(out.dtype), own)
    launch(out, index, source) if alpha is None else launch(out, index, source, alpha)
    return out


def _new(
    form: str, self: Tensor, dim: int, index: Tensor, source: Any, alpha: Number | None = None, own: bool = True
) -> Tensor:
    given = source if isinstance(source, Tensor) else None
    willing(_along(form, self, dim, index, given, alpha is not None, _ordered(self.dtype), own))
    y = _copied(self, _look_along(form, self, dim, index, given)())
    return _write_along(form, y, dim, index, source, alpha, own)


def _into(
    form: str, out: Tensor, self: Tensor, dim: int, index: Tensor, source: Any, alpha: Any = None, own: bool = True
) -> Tensor:
    given = source if isinstance(source, Tensor) else None
    willing(_along(form, self, dim, index, given, alpha is not None, _ordered(self.dtype), own))
    target = _target(out, self, index, *([] if given is None else [given]))
    return _write_along(form, target, dim, index, source, alpha, own)


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
    return _into("index_add", out, self, dim, index, source, _scale(alpha, self.dtype))


@impl(spec.ops["index_add"], devices=DEVICES, into=_index_add_into)
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    return _new("index_add", self, dim, index, source, _scale(alpha, self.dtype))


def _scatter(self: Tensor, src: Tensor | None, value: Number | None, reduce: str | None) -> tuple[str, Tensor | Number]:
    """The form of a scatter, and what it writes."""
    if reduce not in (None, "add", "multiply"):
        raise NotSupported(f"reduce={reduce!r}")
    if src is not None and reduce is None:
        _check_order()
    form = "scatter" if reduce is None else f"scatter.{reduce}"
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
    return _into("scatter_add", out, self, dim, index, src)


@impl(spec.ops["scatter_add"], devices=DEVICES, into=_scatter_add_into)
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _new("scatter_add", self, dim, index, src)


def _reduction(op: str, reduce: str) -> str:
    if f"{op}.{reduce}" not in FORMS:
        raise NotSupported(f"reduce={reduce!r}")
    return f"{op}.{reduce}"


def _scatter_reduce_into(
    out: Tensor, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    return _into(_reduction("scatter_reduce", reduce), out, self, dim, index, src, None, include_self)


@impl(spec.ops["scatter_reduce"], devices=DEVICES, into=_scatter_reduce_into)
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _new(_reduction("scatter_reduce", reduce), self, dim, index, src, None, include_self)


def _index_reduce_into(
    out: Tensor, self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    y = _into(_reduction("index_reduce", reduce), out, self, dim, index, source, None, include_self)
    warnings.warn(BETA, stacklevel=2)
    return y


@impl(spec.ops["index_reduce"], devices=DEVICES, into=_index_reduce_into)
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    y = _new(_reduction("index_reduce", reduce), self, dim, index, source, None, include_self)
    warnings.warn(BETA, stacklevel=2)
    return y


# ---- index_put ------------------------------------------------------------------------------------------------------


@decided
def _put_at(x: Tensor, at: Any, values: Tensor | None, accumulate: bool, *indices: Tensor) -> Callable[..., None]:
    """A launch (x, *indices, values), or (x, *indices, number). Sums are in a fixed order, as torch's are."""
    check_tensors(x, *([] if values is None else [values]), indices=indices)
    cells = of_index(x, at, indices)
    if values is not None:
        if values.dtype is not x.dtype:
            raise NotSupported(f"values of {values.dtype} for {x.dtype}")
        try:
            values.expand(cells.shape)
        except RuntimeError as error:
            raise NotSupported(str(error)) from None
    if not cells.count:
        return _nothing
    if accumulate:
        run = folder(cells, x, "sum", True)
        return lambda x, *rest: run(x, rest[:-1], _spread(rest[-1], x, cells.shape))
    steps = None if values is None else spread(values.shape, values.stride(), cells.shape)
    return launch_put(cells, x, steps, x.dtype)


def _spread(values: Any, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Values, or a number, as a contiguous tensor of that shape."""
    if not isinstance(values, Tensor):
        return torch.full(shape, values, dtype=x.dtype, device=x.device)
    return values.expand(shape).contiguous()


def _index_put_into(
    out: Tensor, self: Tensor, indices: Sequence[Tensor | None], values: Tensor, *flags: bool
) -> Tensor:
    accumulate, *_ = flags
    if not accumulate:
        _check_order()
    at, given = split(indices)
    if not given:
        raise NotSupported("no index")
    if values.is_cpu and not values.dim() and not self.is_cpu:
        if values.dtype is not self.dtype:
            raise NotSupported(f"values of {values.dtype} for {self.dtype}")
        return _write_at(out, self, at, given, None, _number(values, self.dtype), accumulate)
    return _write_at(out, self, at, given, values, values, accumulate)


def _write_at(
    out: Tensor, self: Tensor, at: Any, given: list[Tensor], values: Tensor | None, source: Any, accumulate: bool
) -> Tensor:
    willing(_put_at(self, at, values, accumulate, *given))
    target = _target(out, self, *given, *([] if values is None else [values]))
    _put_at(target, at, values, accumulate, *given)(target, *given, source)
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


@impl(spec.ops["_unsafe_masked_index_put_accumulate"], devices=DEVICES)
def _unsafe_masked_index_put_accumulate(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    """Adds where the mask is true; elsewhere indices may be out of range, and 0 is added."""
    if mask.dtype is not torch.bool or not isinstance(values, Tensor) or not self.dim():
        raise NotSupported("a mask of another dtype, or a number")
    return _index_put_new(self, indices, values.masked_fill(~mask, 0), True)


# ---- put ------------------------------------------------------------------------------------------------------------


@decided
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Callable[..., None]:
    check_tensors(x, source, indices=(index,))
    torchs(torch.ops.aten.put, x, index, source, accumulate)
    if index.dtype is not torch.int64 or source.dtype is not x.dtype or source.numel() != index.numel():
        raise NotSupported("torch takes an index of int64, and as many elements of self's dtype")
    if accumulate and _ordered(x.dtype):
        raise NotSupported(f"no atomic additions of {x.dtype}")
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


# ---- gradients of embedding -----------------------------------------------------------------------------------------


@decided
def _embedding_bwd(dy: Tensor, indices: Tensor, weights: int, mean: bool) -> Callable[..., Tensor]:
    """A function (dy, indices, padding_idx) -> dweight."""
    check_tensors(dy, indices=(indices,))
    if dy.shape[:-1] != indices.shape or not dy.is_floating_point():
        raise NotSupported("a gradient of another shape or dtype")
    look = OutputSpec.of((weights, dy.shape[-1]), dy.dtype)
    like = torch.empty_strided(look.shape, look.stride, dtype=dy.dtype, device="meta")
    if not dy.numel():
        return lambda dy, indices, padding_idx: look.empty(dy).zero_()
    run = folder(of_rows(like, indices), like, "mean" if mean else "sum", False, skips=True)

    def backward(dy: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
        dx = look.empty(dy).zero_()
        run(dx, (indices,), dy.contiguous(), 1.0, padding_idx)
        return dx

    return backward


@impl(spec.ops["embedding_dense_backward"], devices=DEVICES)
def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    return _embedding_bwd(grad_output, indices, num_weights, scale_grad_by_freq)(grad_output, indices, padding_idx)


SUM, MEAN = 0, 1  # modes of embedding_bag


@impl(spec.ops["_embedding_bag_dense_backward"], devices=DEVICES)
def _embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Each index has the gradient of its bag; a mean's is divided by the size of the bag."""
    if mode not in (SUM, MEAN) or not grad.is_floating_point() or not indices.numel():
        raise NotSupported(f"mode {mode}, or no index")
    if mode == MEAN:
        grad = grad / bag_size.clamp(min=1).to(grad.dtype)[:, None]
    dy = grad.index_select(0, offset2bag)
    if per_sample_weights is not None:
        dy = dy * per_sample_weights[:, None]
    return _embedding_bwd(dy, indices, num_weights, scale_grad_by_freq)(dy, indices, padding_idx)
