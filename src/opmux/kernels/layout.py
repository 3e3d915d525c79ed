"""ATen's ops that move elements: a function per op lists the copies, and `lib.moves` launches them.

Three ops also compute: `unfold_backward` adds, `polar` multiplies, `repeat_interleave` searches. tril and triu have
their own kernel, which does not read the elements that become zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import AnyTensor, Index, contiguous, dtypes, same_dtype
from ..core.errors import NotSupported
from ..core.registry import impl
from ..core.rules import nonempty
from ..specs import layout as spec
from .lib.config import Tiles, tunable
from .lib.launch import Launcher
from .lib.maths import libdevice
from .lib.meta import call_torch
from .lib.moves import Flipped, LaunchStage, RuntimeNumber, Source, Stage, moves
from .lib.plans import plans
from .lib.rows import DEVICES, OutputSpec, wide_of

Stages = Iterable[Stage]
Moves = list[tuple[Tensor, Source]]


# ---- whole tensors --------------------------------------------------------------------------------------------------


@moves(spec.ops["copy"])
def copy(y: Tensor, self: Tensor, src: Tensor, non_blocking: bool) -> Stages:
    return [[(y, src)]]


@moves(spec.ops["_to_copy"])
def to_copy(y: Tensor, self: Tensor, *options: Any) -> Stages:
    return [[(y, self)]]


@moves(spec.ops["clone"])
def clone(y: Tensor, self: Tensor, memory_format: Any) -> Stages:
    return [[(y, self)]]


# ---- several tensors ------------------------------------------------------------------------------------------------


@moves(spec.ops["cat"])
def cat(y: Tensor, tensors: list[Tensor], dim: int) -> Stages:
    tensors = [t for t in tensors if tuple(t.shape) != (0,) or y.dim() == 1]  # torch ignores empty 1-d tensors
    return [list(zip(y.split([t.shape[dim] for t in tensors], dim), tensors, strict=True))] if tensors else []


@moves(spec.ops["stack"])
def stack(y: Tensor, tensors: list[Tensor], dim: int) -> Stages:
    return [[(y.select(dim, i), t) for i, t in enumerate(tensors)]]


@moves(spec.ops["block_diag"])
def block_diag(y: Tensor, tensors: list[Tensor]) -> Stages:
    moves: Moves = []
    row = column = 0
    for t in tensors:
        block = t.expand((1,) * (2 - t.dim()) + tuple(t.shape))
        height, width = block.shape
        rows = y.narrow(0, row, height)
        moves += [*_around(rows, 1, column, width), (rows.narrow(1, column, width), block)]
        row, column = row + height, column + width
    return [moves]


@moves(spec.ops["_chunk_cat"])
def chunk_cat(y: Tensor, tensors: list[Tensor], dim: int, num_chunks: int) -> Stages:
    """Cut each tensor into chunks along dim, and pad with zeros at the end.

    The i-th slice of the result is the concatenation of the i-th chunks of all tensors.
    """
    moves: Moves = []
    dim, at = dim % tensors[0].dim(), 0
    for t in tensors:
        n, inner = t.shape[dim], tuple(t.shape[dim + 1 :])
        size, width = -(-n // num_chunks), math.prod(inner)
        whole, rest = divmod(n, size) if size else (0, 0)
        part = y.narrow(dim + 1, at, size * width)
        at += size * width
        if whole:
            chunks = t.narrow(dim, 0, whole * size).unflatten(dim, (whole, size))
            moves.append((part.narrow(dim, 0, whole).unflatten(dim + 1, (size, *inner)), chunks))
        if rest:
            last = part.select(dim, whole)
            begin, end = last.narrow(dim, 0, rest * width), last.narrow(dim, rest * width, (size - rest) * width)
            moves += [(begin.unflatten(dim, (rest, *inner)), t.narrow(dim, whole * size, rest)), (end, 0)]
        used = whole + bool(rest)
        moves.append((part.narrow(dim, used, num_chunks - used), 0))
    return [moves]


@moves(spec.ops["split_with_sizes_copy"])
def split_with_sizes_copy(y: list[Tensor], self: Tensor, split_sizes: list[int], dim: int) -> Stages:
    return [list(zip(y, self.split(split_sizes, dim), strict=True))]


@moves(spec.ops["split_copy"])
def split_copy(y: list[Tensor], self: Tensor, split_size: int, dim: int) -> Stages:
    return [list(zip(y, self.split(split_size, dim), strict=True))]


@moves(spec.ops["unbind_copy"])
def unbind_copy(y: list[Tensor], self: Tensor, dim: int) -> Stages:
    return [list(zip(y, self.unbind(dim), strict=True))]


# ---- another order --------------------------------------------------------------------------------------------------


@moves(spec.ops["flip"])
def flip(y: Tensor, self: Tensor, dims: list[int]) -> Stages:
    return [[(y, Flipped(self, dims))]]


@moves(spec.ops["rot90"])
def rot90(y: Tensor, self: Tensor, k: int, dims: list[int]) -> Stages:
    if k % 2 == 0:
        return [[(y, Flipped(self, dims if k % 4 else ()))]]
    return [[(y.transpose(dims[0], dims[1]), Flipped(self, (dims[1] if k % 4 == 1 else dims[0],)))]]


@moves(spec.ops["roll"])
def roll(y: Tensor, self: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> Stages:
    """Along each dimension, the last `shift` elements and the rest swap places."""
    if not y.numel():
        return []
    shifts, dims = ([n] if isinstance(n, int) else n for n in (shifts, dims))
    if not dims:
        y, self, dims = y.view(-1), self.view(-1), [0]
    by: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        by[dim % y.dim()] = by.get(dim % y.dim(), 0) + shift
    parts: Moves = [(y, self)]
    for dim, total in by.items():
        n = y.shape[dim]
        shift = total % n
        ends = ((shift, 0, n - shift), (0, n - shift, shift))  # (destination, source, length) of each part
        parts = [
            (target.narrow(dim, start, size), source.narrow(dim, first, size))
            for (target, source), (start, first, size) in itertools.product(parts, ends)
            if size and isinstance(source, Tensor)
        ]
    return [parts]


@moves(spec.ops["repeat"])
def repeat(y: Tensor, self: Tensor, repeats: Sequence[int]) -> Stages:
    if not y.numel():
        return []
    x = self.expand((1,) * (y.dim() - self.dim()) + tuple(self.shape))
    for d in reversed(range(y.dim())):
        y, x = y.unflatten(d, (repeats[d], x.shape[d])), x.unsqueeze(d)
    return [[(y, x)]]


@moves(spec.ops["channel_shuffle"])
def channel_shuffle(y: Tensor, self: Tensor, groups: int) -> Stages:
    each = self.shape[1] // groups
    return [[(y.unflatten(1, (each, groups)), self.unflatten(1, (groups, each)).transpose(1, 2))]]


@moves(spec.ops["pixel_shuffle"])
def pixel_shuffle(y: Tensor, self: Tensor, upscale_factor: int) -> Stages:
    return [[(_of_pixels(y, upscale_factor), _of_channels(self, upscale_factor))]] if y.numel() else []


@moves(spec.ops["pixel_unshuffle"])
def pixel_unshuffle(y: Tensor, self: Tensor, downscale_factor: int) -> Stages:
    return [[(_of_channels(y, downscale_factor), _of_pixels(self, downscale_factor))]] if y.numel() else []


def _of_pixels(x: Tensor, r: int) -> Tensor:
    """[.., c, h * r, w * r] as [.., c, h, r, w, r]"""
    return x.unflatten(-1, (x.shape[-1] // r, r)).unflatten(-3, (x.shape[-2] // r, r))


def _of_channels(x: Tensor, r: int) -> Tensor:
    """[.., c * r * r, h, w] as [.., c, h, r, w, r]"""
    n = x.dim() - 3
    return x.unflatten(-3, (x.shape[-3] // (r * r), r, r)).permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)


# ---- copies of views ------------------------------------------------------------------------------------------------


VIEWS: dict[str, Callable[..., Tensor]] = {
    "alias_copy": lambda x: x,
    "detach_copy": lambda x: x,
    "lift_fresh_copy": lambda x: x,
    "t_copy": torch.t,
    "view_copy": Tensor.view,
    "permute_copy": torch.permute,
    "transpose_copy": torch.transpose,
    "expand_copy": lambda x, size, implicit: x.expand(size),
    "squeeze_copy": lambda x, dim: x.squeeze() if dim is None else x.squeeze(dim),
    "unsqueeze_copy": torch.unsqueeze,
    "narrow_copy": torch.narrow,
    "select_copy": torch.select,
    "slice_copy": torch.ops.aten.slice.Tensor,
    "diagonal_copy": torch.diagonal,
    "unfold_copy": Tensor.unfold,
    "as_strided_copy": torch.as_strided,
}
# storage_offset counts from the start of the storage, but a plan only has the tensor's own address.
STRIDED = "storage_offset is not None and self.storage_offset() != 0"


def _declare(name: str, view: Callable[..., Tensor]) -> None:
    @moves(spec.ops[name], unless=STRIDED if name == "as_strided_copy" else "")
    def copied(y: Tensor, self: Tensor, *options: Any) -> Stages:
        return [[(y, view(self, *options))]]


for _name, _view in VIEWS.items():
    _declare(_name, _view)


# ---- parts of a tensor replaced -------------------------------------------------------------------------------------


def _around(y: Tensor, dim: int, start: int, length: int, source: Tensor | RuntimeNumber | int = 0) -> Moves:
    """Moves that write y before and after [start, start + length) along dim, from `source` (a tensor or a number)."""
    ends = ((0, start), (start + length, y.shape[dim] - start - length))
    part = (lambda a, n: source.narrow(dim, a, n)) if isinstance(source, Tensor) else lambda a, n: source
    return [(y.narrow(dim, a, n), part(a, n)) for a, n in ends]


def _replaced(y: Tensor, source: Tensor | int, part: Tensor, src: Tensor) -> Stages:
    """Write all of y, then overwrite a part of it: two launches, for a part with more than two blocks around it."""
    return [[(y, source)], [(part, src)]]


def _fits(part: Tensor, src: Tensor) -> None:
    """Raise NotSupported if the shapes differ. torch raises too, but for meta tensors only since torch 2.12."""
    if part.shape != src.shape:
        raise NotSupported(f"a part of shape {tuple(part.shape)} and a source of shape {tuple(src.shape)}")


def _selected(y: Tensor, source: Tensor | int, src: Tensor, dim: int, index: int) -> Stages:
    dim, part = dim % y.dim(), y.select(dim, index)
    _fits(part, src)
    return [[*_around(y, dim, index % y.shape[dim], 1, source), (part, src)]]


def _sliced(y: Tensor, source: Tensor | int, src: Tensor, dim: int, start: Any, end: Any, step: int) -> Stages:
    dim, part = dim % y.dim(), torch.ops.aten.slice.Tensor(y, dim, start, end, step)
    _fits(part, src)
    if step != 1:
        return _replaced(y, source, part, src)
    first = range(y.shape[dim])[slice(start, end)].start
    return [[*_around(y, dim, first, part.shape[dim], source), (part, src)]]


@moves(spec.ops["select_scatter"])
def select_scatter(y: Tensor, self: Tensor, src: Tensor, dim: int, index: int) -> Stages:
    return _selected(y, self, src, dim, index)


@moves(spec.ops["select_backward"])
def select_backward(y: Tensor, grad_output: Tensor, input_sizes: list[int], dim: int, index: int) -> Stages:
    return _selected(y, 0, grad_output, dim, index)


@moves(spec.ops["slice_scatter"])
def slice_scatter(y: Tensor, self: Tensor, src: Tensor, dim: int, start: Any, end: Any, step: int) -> Stages:
    return _sliced(y, self, src, dim, start, end, step)


@moves(spec.ops["slice_backward"])
def slice_backward(
    y: Tensor, grad_output: Tensor, input_sizes: list[int], dim: int, start: int, end: int, step: int
) -> Stages:
    return _sliced(y, 0, grad_output, dim, start, end, step)


@moves(spec.ops["diagonal_scatter"])
def diagonal_scatter(y: Tensor, self: Tensor, src: Tensor, offset: int, dim1: int, dim2: int) -> Stages:
    part = y.diagonal(offset, dim1, dim2)
    _fits(part, src)
    return _replaced(y, self, part, src)


@moves(spec.ops["diagonal_backward"])
def diagonal_backward(
    y: Tensor, grad_output: Tensor, input_sizes: list[int], offset: int, dim1: int, dim2: int
) -> Stages:
    return _replaced(y, 0, y.diagonal(offset, dim1, dim2), grad_output)


@moves(spec.ops["diag_embed"])
def diag_embed(y: Tensor, self: Tensor, offset: int, dim1: int, dim2: int) -> Stages:
    return _replaced(y, 0, y.diagonal(offset, dim1, dim2), self)


@moves(spec.ops["as_strided_scatter"], unless=STRIDED)
def as_strided_scatter(y: Tensor, self: Tensor, src: Tensor, size: Any, stride: Any, storage_offset: Any) -> Stages:
    part = y.as_strided(size, stride, storage_offset)
    if y.stride() != self.stride() or torch._debug_has_internal_overlap(part) == 1:
        raise NotSupported("a result with other strides than self, or elements that share memory")
    return _replaced(y, self, part, src)


@moves(spec.ops["constant_pad_nd"])
def constant_pad_nd(y: Tensor, self: Tensor, pad: list[int], value: RuntimeNumber) -> Stages:
    """Copy self and fill the padding around it: each element is written once. A negative pad crops."""
    moves: Moves = []
    for i in range(len(pad) // 2):
        before, after, dim = pad[2 * i], pad[2 * i + 1], self.dim() - 1 - i
        cut = max(-before, 0)
        self = self.narrow(dim, cut, self.shape[dim] - cut - max(-after, 0))
        n, start = self.shape[dim], max(before, 0)
        moves += _around(y, dim, start, n, value)
        y = y.narrow(dim, start, n)
    return [[*moves, (y, self)]]


# ---- triangles ------------------------------------------------------------------------------------------------------


def _triangle(
    x_ptr,
    y_ptr,
    x_b,
    x_m,
    x_n,
    y_b,
    y_m,
    y_n,
    m,
    n,
    diagonal,
    UPPER: tl.constexpr,
    X_PACKED: tl.constexpr,
    Y_PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    down = tl.cdiv(m, BLOCK_M)
    batch = (tl.program_id(0) // down).to(tl.int64)
    top, left = (tl.program_id(0) % down) * BLOCK_M, tl.program_id(1) * BLOCK_N
    rows, columns = top + tl.arange(0, BLOCK_M)[:, None], left + tl.arange(0, BLOCK_N)[None, :]
    inside = (rows < m) & (columns < n)
    if UPPER:
        keep = columns - rows >= diagonal
        some, all_ = left + BLOCK_N - 1 - top >= diagonal, left - (top + BLOCK_M - 1) >= diagonal
    else:
        keep = columns - rows <= diagonal
        some, all_ = left - (top + BLOCK_M - 1) <= diagonal, left + BLOCK_N - 1 - top <= diagonal
    y = y_ptr + batch * y_b + rows.to(tl.int64) * y_m + (columns if Y_PACKED else columns.to(tl.int64) * y_n)
    if x_ptr is not None:
        # a mask per tile (`some`) keeps loads wide; a mask per element would not
        x = x_ptr + batch * x_b + rows.to(tl.int64) * x_m + (columns if X_PACKED else columns.to(tl.int64) * x_n)
        b_x = tl.load(x, mask=inside & some, other=0)
        tl.store(y, tl.where(keep, b_x, tl.zeros_like(b_x)), mask=inside)
    elif not all_:  # in place: write only the zeros
        zeros = tl.zeros([BLOCK_M, BLOCK_N], y_ptr.dtype.element_ty)
        if some:
            tl.store(y, zeros, mask=inside & (keep == 0))
        else:
            tl.store(y, zeros, mask=inside)


triangle = Launcher(_triangle, sizes="x_b x_m y_b y_m n")


@tunable("layout.triangle", free="BLOCK_M BLOCK_N")
def triangle_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Tiles of 128 threads with two 16-byte loads each."""
    across = min(max(triton.next_power_of_2(n), 16), 256)
    return Tiles(128, BLOCK_M=max(4096 // dtype.itemsize // across, 1), BLOCK_N=across)


def _triangular(y: Tensor, self: Tensor, diagonal: int, upper: bool) -> Stages:
    if not y.numel():
        return []
    x, in_place = self, y is self
    if y.stride(-1) != 1 and y.stride(-2) == 1:  # columns are contiguous: work on the transpose
        x, y, diagonal, upper = x.mT, y.mT, -diagonal, not upper
    m, n = y.shape[-2:]
    batch = (_even(x), _even(y))
    tiles = triangle_tiles(n=n, dtype=y.dtype)
    across = -(-n // tiles["BLOCK_N"])
    grid = (y.shape[:-2].numel() * -(-m // tiles["BLOCK_M"]), across, 1)
    if across > 65535:
        raise NotSupported("more columns than programs along one axis of a grid")
    strides = (batch[0], x.stride(-2), x.stride(-1), batch[1], y.stride(-2), y.stride(-1))
    even = all(k % 16 == 0 for k in (*strides[:2], *strides[3:5], n))
    packed = {"X_PACKED": x.stride(-1) == 1, "Y_PACKED": y.stride(-1) == 1}
    config = tiles.config(even=even, UPPER=upper, **packed)
    limit = max(m, n) + 1
    numbers = (*strides, m, n, max(-limit, min(diagonal, limit)))
    return [LaunchStage(triangle, grid, config, numbers, (None if in_place else x, y))]


def _even(x: Tensor) -> int:
    """The stride between the matrices of a batch."""
    steps = [(k, s) for k, s in zip(x.shape[:-2], x.stride()) if k > 1]
    if any(s != k * t for (_, s), (k, t) in itertools.pairwise(steps)):
        raise NotSupported("matrices that are not evenly spaced")
    return steps[-1][1] if steps else 0


@moves(spec.ops["tril"])
def tril(y: Tensor, self: Tensor, diagonal: int) -> Stages:
    return _triangular(y, self, diagonal, upper=False)


@moves(spec.ops["triu"])
def triu(y: Tensor, self: Tensor, diagonal: int) -> Stages:
    return _triangular(y, self, diagonal, upper=True)


# ---- with arithmetic ------------------------------------------------------------------------------------------------

BLOCK = 512


def _launch(kernel: Launcher, n: int, numbers: tuple[int, ...], **constants: Any) -> Callable[..., Any]:
    """A launch over n elements; n is passed as the first number."""
    config = Tiles(128, BLOCK=BLOCK).config(even=all(k % 16 == 0 for k in (n, *numbers)), **constants)
    return kernel.ready((-(-n // BLOCK), 1, 1), (n, *numbers), config)


def _fold(g_ptr, y_ptr, total, length, inner, windows, size, step, most, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    at = (i // inner) % length
    outer = i // inner // length
    last = at // step
    acc = tl.zeros([BLOCK], WIDE)
    for back in range(most):  # an element is in at most `most` windows; the last window comes first
        window = last - back
        k = at - window * step
        mask = inside & (window >= 0) & (window < windows) & (k < size)
        acc += tl.load(g_ptr + ((outer * windows + window) * inner + i % inner) * size + k, mask=mask, other=0).to(WIDE)
    tl.store(y_ptr + i, acc.to(y_ptr.dtype.element_ty), mask=inside)


fold = Launcher(_fold, sizes="total")


@plans
def _folded(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Callable[..., Any]:
    shape = torch.Size(input_sizes)
    unfolded = call_torch(lambda: torch.empty(shape, device="meta").unfold(dim, size, step).shape)
    if unfolded != grad.shape or not grad.is_floating_point() or not len(shape):
        raise NotSupported(f"a gradient of {grad.dtype} {tuple(grad.shape)}")
    output = OutputSpec.of(shape, grad.dtype)
    if not shape.numel() or not size:
        raise NotSupported("no elements")
    dim %= len(shape)
    length, inner = shape[dim], shape[dim + 1 :].numel()
    numbers = (length, inner, grad.shape[dim], size, step, -(-size // step))
    launch = _launch(fold, shape.numel(), numbers, WIDE=wide_of(grad.dtype))

    def call(grad: Tensor) -> Tensor:
        y = output.empty(grad)
        launch(grad, y)
        return y

    return call


@impl(spec.ops["unfold_backward"], devices=DEVICES)
def unfold_backward(grad_in: Tensor, input_sizes: Any, dim: int, size: int, step: int) -> Tensor:
    """Sum, for each element, its values in all windows that contain it.

    Without atomics, so the result is deterministic.
    """
    grad = grad_in.contiguous()
    return _folded(grad, list(input_sizes), dim, size, step)(grad)


def _polar(abs_ptr, angle_ptr, y_ptr, total, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(abs_ptr + i, mask=i < total)
    phi = tl.load(angle_ptr + i, mask=i < total)
    o = tl.program_id(0).to(tl.int64) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    pairs = tl.interleave(r * libdevice.cos(phi), r * libdevice.sin(phi))
    tl.store(y_ptr + o, pairs, mask=o < 2 * total)


polar_kernel = Launcher(_polar, sizes="total")


@plans
def _polar_plan(
    abs: AnyTensor[Tensor, "*size", dtypes((torch.float32, torch.float64)), contiguous(), nonempty()],
    angle: AnyTensor[Tensor, "*size", same_dtype("abs"), contiguous()],
) -> Callable[..., Any]:
    output = OutputSpec.of((*abs.shape, 2), abs.dtype)
    launch = _launch(polar_kernel, abs.numel(), ())

    def call(abs: Tensor, angle: Tensor) -> Tensor:
        y = output.empty(abs)
        launch(abs, angle, y)
        return torch.view_as_complex(y)

    return call


@impl(spec.ops["polar"], devices=DEVICES)
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    return _polar_plan(abs, angle)(abs, angle)


def _search(ends_ptr, y_ptr, total, n, steps, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    low = tl.zeros([BLOCK], tl.int64)
    high = low + n
    for _ in range(steps):  # binary search for the first end greater than i
        middle = (low + high) // 2
        open_ = low < high
        beyond = tl.load(ends_ptr + middle, mask=open_, other=0) > i
        high = tl.where(open_ & beyond, middle, high)
        low = tl.where(open_ & (beyond == 0), middle + 1, low)
    tl.store(y_ptr + i, low.to(y_ptr.dtype.element_ty), mask=i < total)


search = Launcher(_search, sizes="total")


@plans
def _searched(ends: Tensor, y: Tensor) -> Callable[..., Any]:
    return _launch(search, y.numel(), (ends.numel(), ends.numel().bit_length()))


@impl(spec.ops["repeat_interleave"], devices=DEVICES)
def repeat_interleave(repeats: Index[Tensor, "n", nonempty()], *, output_size: int | None = None) -> Tensor:
    """Repeat index i repeats[i] times. Without output_size, the host reads the sum of `repeats`, as torch does."""
    ends = repeats.cumsum(0)
    if output_size is None:
        output_size = int(ends[-1].item())
        if not bool((repeats >= 0).all()):
            raise NotSupported("repeats can not be negative")
    y = torch.empty(output_size, dtype=repeats.dtype, device=repeats.device)
    if output_size:
        _searched(ends, y)(ends, y)
    return y
