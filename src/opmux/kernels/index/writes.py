"""Ops that write: index_put, put, index_copy, index_fill, index_add, index_reduce, scatter*, and embedding's gradients.

Each op writes in place; the functional forms and `out=` first copy self, then write to the copy. Sums of 32-bit and
64-bit dtypes use atomics where torch's do; all other sums and reductions have a fixed order (fold.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ...core.contract import AnyTensor, Bool, Float, Index, Int64, one_of, same_dtype
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...specs import index as spec
from ..lib.cells import Cells, check_tensors, check_written, of_fill, of_flat, of_gather, of_index, of_rows, of_select
from ..lib.cells import put as launch_put
from ..lib.indexing import broadcast_strides
from ..lib.meta import on_meta
from ..lib.numbers import representable
from ..lib.plans import decided, willing
from ..lib.rows import DEVICES, OutputSpec
from .fold import COMBINE, folder
from .reads import split

Number = bool | int | float
BETA = "index_reduce() is in beta and the API may change at any time."  # the text of torch's warning
ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)


def _check_order() -> None:
    if torch.are_deterministic_algorithms_enabled():
        raise NotSupported("several writes to one place have no defined order")


def _ordered(dtype: torch.dtype) -> bool:
    """Whether sums must be added in a fixed order."""
    return dtype not in ATOMIC or torch.are_deterministic_algorithms_enabled()


def _copied(self: Tensor, output: OutputSpec) -> Tensor:
    return output.empty(self).copy_(self)


def _target(out: Tensor, self: Tensor, *read: Tensor) -> Tensor:
    """Copy self to `out` and return it: the tensor to write to."""
    check_written(out, *read)
    if out is not self:
        if out.shape != self.shape or out.dtype is not self.dtype or out.device != self.device:
            raise NotSupported(f"out is {out.dtype} {tuple(out.shape)}, self {self.dtype} {tuple(self.shape)}")
        if torch._C._is_alias_of(out, self):
            raise NotSupported("out and self share memory")
        out.copy_(self)
    return out


def _number(value: Any, dtype: torch.dtype) -> Number:
    """A number (also from a 0-dim CPU tensor); raises NotSupported if the dtype cannot represent it."""
    found = value.item() if isinstance(value, Tensor) else value
    if not representable(found, dtype):
        raise NotSupported(f"{found} is no {dtype}")
    return found


def _nothing(*args: Any) -> None:
    pass


# ---- along a dimension ----------------------------------------------------------------------------------------------
# Form -> torch's op; what an index refers to (`select`: a slice, `gather`: an element); how elements that are written
# to the same position are combined (None: one of them overwrites the others).

FORMS: dict[str, tuple[Any, Callable[..., Cells], str | None]] = {
    "index_copy": (torch.ops.aten.index_copy, of_select, None),
    "index_fill": (torch.ops.aten.index_fill, of_fill, None),
    "index_add": (torch.ops.aten.index_add, of_select, "sum"),
    "scatter": (torch.ops.aten.scatter, of_gather, None),
    "scatter_add": (torch.ops.aten.scatter_add, of_gather, "sum"),
    "scatter.add": (torch.ops.aten.scatter, of_gather, "sum"),
    "scatter.multiply": (torch.ops.aten.scatter, of_gather, "prod"),
    **{f"scatter_reduce.{how}": (torch.ops.aten.scatter_reduce, of_gather, how) for how in COMBINE},
    **{f"index_reduce.{how}": (torch.ops.aten.index_reduce, of_select, how) for how in COMBINE if how != "sum"},
}


def _torchs_result(form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None) -> Tensor:
    """The result of torch's op on meta tensors; raises NotSupported for arguments that torch rejects."""
    op, _, reduce = form.partition(".")
    args = (x, dim, index, 0 if source is None else source)
    if op == "scatter" and reduce:
        return on_meta(FORMS[form][0], *args, reduce=reduce)
    return on_meta(FORMS[form][0], *args, *([reduce] if reduce else []))


@decided
def _output_along(form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None) -> Callable[[], OutputSpec]:
    """The output spec of the functional op."""
    output = OutputSpec.like(_torchs_result(form, x, dim, index, source))
    return lambda: output


@decided
def _along(
    form: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None, scaled: bool, ordered: bool, own: bool
) -> Callable[..., None]:
    """The function (x, index, source[, alpha]) or (x, index, number) that writes.

    `own`: combine with x's old elements.
    """
    _, cells_of, how = FORMS[form]
    check_tensors(x, *([] if source is None else [source]), indices=(index,))
    if index.dtype is not torch.int64 and form != "index_add":
        raise NotSupported("torch takes an index of int64")
    _torchs_result(form, x, dim, index, source)
    if source is not None and source.dtype is not x.dtype:
        raise NotSupported(f"a source of {source.dtype} for {x.dtype}")
    if how is not None and x.dtype is torch.bool:
        raise NotSupported("sums of bools")
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


class Write(NamedTuple):
    """What an op writes along a dimension: its form (a key of FORMS) and its source."""

    form: str
    source: Tensor | Number
    alpha: Number | None = None  # the source is multiplied by this
    own: bool = True  # whether the reduction includes self's old elements


def _plan_of(write: Write, x: Tensor, dim: int, index: Tensor) -> Callable[..., None]:
    source = write.source if isinstance(write.source, Tensor) else None
    return _along(write.form, x, dim, index, source, write.alpha is not None, _ordered(x.dtype), write.own)


def _apply(write: Write, target: Tensor, dim: int, index: Tensor) -> Tensor:
    scale = () if write.alpha is None else (write.alpha,)
    _plan_of(write, target, dim, index)(target, index, write.source, *scale)
    return target


def writes(name: str, warning: str = "") -> Callable[[Callable[..., Write]], Callable[..., Tensor]]:
    """Register an op (self, dim, index, ...). The function maps self and the arguments after index to a Write."""

    def declare(write_of: Callable[..., Write]) -> Callable[..., Tensor]:
        def new(self: Tensor, dim: int, index: Tensor, *rest: Any, **options: Any) -> Tensor:
            write = write_of(self, *rest, **options)
            willing(_plan_of(write, self, dim, index))
            given = write.source if isinstance(write.source, Tensor) else None
            y = _apply(write, _copied(self, _output_along(write.form, self, dim, index, given)()), dim, index)
            if warning:
                warnings.warn(warning, stacklevel=2)
            return y

        def into(out: Tensor, self: Tensor, dim: int, index: Tensor, *rest: Any) -> Tensor:
            write = write_of(self, *rest)
            willing(_plan_of(write, self, dim, index))
            given = [write.source] if isinstance(write.source, Tensor) else []
            y = _apply(write, _target(out, self, index, *given), dim, index)
            if warning:
                warnings.warn(warning, stacklevel=2)
            return y

        return impl(spec.ops[name], devices=DEVICES, into=into)(new)

    return declare


@writes("index_copy")
def index_copy(self: Tensor, source: Tensor) -> Write:
    _check_order()
    return Write("index_copy", source)


@writes("index_fill")
def index_fill(self: Tensor, value: Tensor | Number) -> Write:
    """If value is a 0-dim tensor on the device, the kernel reads its element."""
    if not isinstance(value, Tensor) or value.is_cpu:
        return Write("index_fill", _number(value, self.dtype))
    if value.dim():
        raise NotSupported("torch takes a value of no dimensions")
    return Write("index_fill", value)


@writes("index_add")
def index_add(self: Tensor, source: Tensor, alpha: Number = 1) -> Write:
    one = type(alpha) is int and alpha == 1  # then the kernel skips the multiplication
    return Write("index_add", source, None if one else _number(alpha, self.dtype))


@writes("scatter")
def scatter(self: Tensor, src: Tensor | None = None, value: Number | None = None, reduce: str | None = None) -> Write:
    if reduce not in (None, "add", "multiply"):
        raise NotSupported(f"reduce={reduce!r}")
    if src is not None and reduce is None:
        _check_order()
    form = "scatter" if reduce is None else f"scatter.{reduce}"
    return Write(form, _number(value, self.dtype) if src is None else src)


@writes("scatter_add")
def scatter_add(self: Tensor, src: Tensor) -> Write:
    return Write("scatter_add", src)


def _reduction(op: str, source: Tensor, reduce: str, include_self: bool) -> Write:
    if f"{op}.{reduce}" not in FORMS:
        raise NotSupported(f"reduce={reduce!r}")
    return Write(f"{op}.{reduce}", source, own=include_self)


@writes("scatter_reduce")
def scatter_reduce(self: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Write:
    return _reduction("scatter_reduce", src, reduce, include_self)


@writes("index_reduce", warning=BETA)
def index_reduce(self: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Write:
    return _reduction("index_reduce", source, reduce, include_self)


# ---- index_put ------------------------------------------------------------------------------------------------------


@decided
def _put_at(x: Tensor, at: Any, values: Tensor | None, accumulate: bool, *indices: Tensor) -> Callable[..., None]:
    """The function (x, *indices, values) or (x, *indices, number) that writes.

    Sums have a fixed order, as in torch; int32 and int64 are summed in any order, which gives the same result.
    """
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
    if accumulate and x.dtype not in (torch.int32, torch.int64):
        run = folder(cells, x, "sum", True)
        return lambda x, *rest: run(x, rest[:-1], _expanded(rest[-1], x, cells.shape))
    steps = None if values is None else broadcast_strides(values.shape, values.stride(), cells.shape)
    return launch_put(cells, x, steps, x.dtype, accumulate)


def _expanded(values: Any, x: Tensor, shape: Sequence[int]) -> Tensor:
    """`values` (a tensor or a number) as a contiguous tensor of this shape."""
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
    out: Tensor, self: Tensor, at: Any, tensors: list[Tensor], values: Tensor | None, source: Any, accumulate: bool
) -> Tensor:
    willing(_put_at(self, at, values, accumulate, *tensors))
    target = _target(out, self, *tensors, *([] if values is None else [values]))
    _put_at(target, at, values, accumulate, *tensors)(target, *tensors, source)
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
    self: AnyTensor[Tensor, "*rest n"], mask: Bool[Tensor, "..."], indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    """Add where the mask is true. Where it is false, 0 is added, and indices may be out of range."""
    return _index_put_new(self, indices, values.masked_fill(~mask, 0), True)


# ---- put ------------------------------------------------------------------------------------------------------------


@decided
def _put(
    x: Tensor, index: Int64[Tensor, "..."], source: AnyTensor[Tensor, "...", same_dtype("x")], accumulate: bool
) -> Callable[..., None]:
    check_tensors(x, source, indices=(index,))
    on_meta(torch.ops.aten.put, x, index, source, accumulate)
    if source.numel() != index.numel():
        raise NotSupported("torch takes as many elements as indices")
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
def _embedding_bwd(
    dy: Float[Tensor, "*rows n"], indices: Index[Tensor, "*rows"], weights: int, mean: bool
) -> Callable[..., Tensor]:
    """A function (dy, indices, padding_idx) -> dweight."""
    check_tensors(dy, indices=(indices,))
    output = OutputSpec.of((weights, dy.shape[-1]), dy.dtype)
    like = torch.empty_strided(output.shape, output.stride, dtype=dy.dtype, device="meta")
    if not dy.numel():
        return lambda dy, indices, padding_idx: output.empty(dy).zero_()
    run = folder(of_rows(like, indices), like, "mean" if mean else "sum", False, skips=True)

    def backward(dy: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
        dx = output.empty(dy).zero_()
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
    grad: Float[Tensor, "..."],
    indices: Index[Tensor, "...", nonempty()],
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: Annotated[int, one_of(SUM, MEAN)],
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Each index receives the gradient of its bag, divided by the bag's size if the mode is mean."""
    if mode == MEAN:
        sizes = bag_size[: grad.shape[0]]  # with include_last_offset, bag_size has one more element
        grad = grad / sizes.clamp(min=1).to(grad.dtype)[:, None]
    dy = grad.index_select(0, offset2bag)
    if per_sample_weights is not None:
        dy = dy * per_sample_weights[:, None]
    return _embedding_bwd(dy, indices, num_weights, scale_grad_by_freq)(dy, indices, padding_idx)
