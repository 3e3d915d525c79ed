"""ATen's ops that move elements and compute nothing: copies, concatenation, flips, padding, copies of views.

Each op has ATen's name and signature; its reference is torch's own op. `opmux.ops.cat([a, b], 1)` accepts the same
arguments as `torch.cat`; the result's dtype and strides and all errors are the same as torch's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.spec import op
from ..core.tensors import opmath_dtype
from ._aten import EXACT, FACTORY, AtenOp
from .samples import Case, Draw

Number = int | float

MATRICES = (Case((5, 64)), Case((37, 64), "t"), Case((3, 5, 20), "swapped"))


def one(**rest: Any) -> Callable[[Draw], dict[str, Any]]:
    """Arguments: `self` and `rest`."""
    return lambda d: {"self": d.full(), **rest}


def pair(view: Callable[[Tensor], Tensor], **rest: Any) -> Callable[[Draw], dict[str, Any]]:
    """Arguments: `self`, a contiguous `src` of the shape of `view(self)`, and `rest`."""

    def build(d: Draw) -> dict[str, Any]:
        return {"self": d.full(), "src": d._new(tuple(view(d.full()).shape), d.dtype), **rest}

    return build


def gradient(view: Callable[[Tensor], Tensor], **rest: Any) -> Callable[[Draw], dict[str, Any]]:
    """Arguments: the gradient of `view(x)`, the sizes of x, and `rest`."""

    def build(d: Draw) -> dict[str, Any]:
        x = d.full()
        return {"grad_output": d._new(tuple(view(x).shape), d.dtype), "input_sizes": list(x.shape), **rest}

    return build


def several(**rest: Any) -> Callable[[Draw], dict[str, Any]]:
    """Arguments: a list of three tensors, and `rest`."""
    return lambda d: {"tensors": [d.full(), d.full(), d._new(d.case.shape, d.dtype)], **rest}


def viewed(name: str, args: str = "", **rest: Any) -> AtenOp:
    """The table row of an op that copies a view."""
    return AtenOp(name, f"self: Tensor, {args}".rstrip(", "), one(**rest), MATRICES[:2])


def rows(name: str, args: str, build: Callable[[Draw], dict[str, Any]], *cases: Case) -> AtenOp:
    return AtenOp(name, args, build, cases or MATRICES)


IMAGES = (Case((2, 8, 6, 4)), Case((8, 6, 4), "t"))
TABLE = (
    rows("copy", "self: Tensor, src: Tensor, non_blocking: bool = False", pair(lambda x: x)),
    rows(
        "_to_copy",
        f"self: Tensor, *, {FACTORY}, non_blocking: bool = False, memory_format: Any = None",
        one(dtype=torch.float64),
    ),
    rows("clone", "self: Tensor, *, memory_format: Any = None", one()),
    rows("cat", "tensors: list[Tensor], dim: int = 0", several(dim=-1)),
    rows("stack", "tensors: list[Tensor], dim: int = 0", several(dim=1)),
    rows("block_diag", "tensors: list[Tensor]", several(), *MATRICES[:2]),
    rows("_chunk_cat", "tensors: list[Tensor], dim: int, num_chunks: int", several(dim=0, num_chunks=3)),
    rows("flip", "self: Tensor, dims: list[int]", one(dims=[0, -1])),
    rows("roll", "self: Tensor, shifts: list[int], dims: list[int] = []", one(shifts=[3, -1], dims=[0, 1])),
    rows("rot90", "self: Tensor, k: int = 1, dims: list[int] = [0, 1]", one(k=1)),
    rows(
        "repeat", "self: Tensor, repeats: list[int]", lambda d: {"self": d.full(), "repeats": [2] * len(d.case.shape)}
    ),
    rows("tril", "self: Tensor, diagonal: int = 0", one(diagonal=1)),
    rows("triu", "self: Tensor, diagonal: int = 0", one(diagonal=-1)),
    rows("constant_pad_nd", "self: Tensor, pad: list[int], value: Number = 0", one(pad=[1, 2, 0, 3], value=1.5)),
    rows("diag_embed", "self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1", one(offset=1)),
    rows("channel_shuffle", "self: Tensor, groups: int", one(groups=2), IMAGES[0]),
    rows("pixel_shuffle", "self: Tensor, upscale_factor: int", one(upscale_factor=2), *IMAGES),
    rows("pixel_unshuffle", "self: Tensor, downscale_factor: int", one(downscale_factor=2), *IMAGES),
    # copies of views
    viewed("alias_copy"),
    viewed("detach_copy"),
    viewed("lift_fresh_copy"),
    viewed("t_copy"),
    rows("view_copy", "self: Tensor, size: list[int]", one(size=[-1]), MATRICES[0]),
    viewed("permute_copy", "dims: list[int]", dims=[1, 0]),
    viewed("transpose_copy", "dim0: int, dim1: int", dim0=0, dim1=1),
    viewed("expand_copy", "size: list[int], *, implicit: bool = False", size=[2, -1, -1]),
    viewed("squeeze_copy", "dim: int | list[int] | None = None"),
    viewed("unsqueeze_copy", "dim: int", dim=1),
    viewed("narrow_copy", "dim: int, start: int, length: int", dim=1, start=1, length=3),
    viewed("select_copy", "dim: int, index: int", dim=0, index=1),
    viewed(
        "slice_copy",
        "dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1",
        dim=1,
        start=1,
        step=2,
    ),
    viewed("diagonal_copy", "offset: int = 0, dim1: int = 0, dim2: int = 1", offset=1),
    viewed("unfold_copy", "dimension: int, size: int, step: int", dimension=1, size=3, step=2),
    rows(
        "as_strided_copy",
        "self: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None",
        one(size=[2, 3], stride=[3, 1], storage_offset=1),
        MATRICES[0],
    ),
    # copies with a part replaced; gradients of views
    rows(
        "select_scatter",
        "self: Tensor, src: Tensor, dim: int, index: int",
        pair(lambda x: x.select(1, 2), dim=1, index=2),
    ),
    rows(
        "slice_scatter",
        "self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1",
        pair(lambda x: x[:, 1:4], dim=1, start=1, end=4),
    ),
    rows(
        "diagonal_scatter",
        "self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1",
        pair(lambda x: x.diagonal(1), offset=1),
    ),
    rows(
        "as_strided_scatter",
        "self: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None",
        pair(lambda x: x[:2, :3], size=[2, 3], stride=[64, 1]),
        MATRICES[0],
    ),
    rows(
        "select_backward",
        "grad_output: Tensor, input_sizes: list[int], dim: int, index: int",
        gradient(lambda x: x.select(1, 2), dim=1, index=2),
    ),
    rows(
        "slice_backward",
        "grad_output: Tensor, input_sizes: list[int], dim: int, start: int, end: int, step: int",
        gradient(lambda x: x[:, 1:4], dim=1, start=1, end=4, step=1),
    ),
    rows(
        "diagonal_backward",
        "grad_output: Tensor, input_sizes: list[int], offset: int, dim1: int, dim2: int",
        gradient(lambda x: x.diagonal(1), offset=1, dim1=0, dim2=1),
    ),
)


def several_results(d: Draw) -> dict[str, Any]:
    x = d.full()
    return {"self": x, "split_sizes": [1, x.shape[1] - 1], "dim": 1}


LISTS = (
    rows("split_with_sizes_copy", "self: Tensor, split_sizes: list[int], dim: int = 0", several_results),
    rows("split_copy", "self: Tensor, split_size: int, dim: int = 0", one(split_size=3), *MATRICES[:1]),
    rows("unbind_copy", "self: Tensor, dim: int = 0", one(), *MATRICES[:1]),
)


# ---- with arithmetic ------------------------------------------------------------------------------------------------


def _windows(d: Draw) -> dict[str, Any]:
    x = d.full()
    grad = d._new(tuple(x.unfold(1, 3, 2).shape), d.dtype)
    return {"grad_in": grad, "input_sizes": list(x.shape), "dim": 1, "size": 3, "step": 2}


def _polar(d: Draw) -> dict[str, Any]:
    wide = opmath_dtype(d.dtype)  # ATen's polar does not support 16-bit dtypes
    return {"abs": d.full().to(wide).abs(), "angle": d.full().to(wide)}


def _repeats(d: Draw) -> dict[str, Any]:
    counts = torch.arange(d.case.shape[0], device=d.device) % 4
    return {"repeats": counts, "output_size": int(counts.sum())}


ARITHMETIC = (
    rows("unfold_backward", "grad_in: Tensor, input_sizes: list[int], dim: int, size: int, step: int", _windows),
    rows("polar", "abs: Tensor, angle: Tensor", _polar, MATRICES[0]),
    rows("repeat_interleave", "repeats: Tensor, *, output_size: int | None = None", _repeats, Case((5,)), Case((70,))),
)

ops: dict[str, Any] = {}
for _row in (*TABLE, *LISTS):
    ops[_row.name] = op(_row.reference(dict(globals())), space="aten", samples=_row.samples, tol=EXACT)
for _row in ARITHMETIC:
    ops[_row.name] = op(_row.reference(dict(globals())), space="aten", samples=_row.samples)
