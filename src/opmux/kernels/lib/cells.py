"""Generated kernels that read or write x at positions given by index tensors, for any rank and number of indices.

`Cells` describes a loop over a shape: the strides of x (0 along an indexed dimension) and the indices. Dimensions are
merged where all tensors allow it. If no index varies along the last dimension, a slice along it is a row: the kernel
loads an index once per row, and reads the row with wide loads. Otherwise each element has its own index.

Indices out of range: reads give NaN (0 for integers), writes are dropped.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...core.errors import NotSupported
from .config import Tiles, tunable
from .indexing import LARGEST, Strides, collapsed, index_dtype, reach
from .jit_source import jit_from_source
from .launch import Launcher, Output
from .pointwise import DTYPES
from .rows import OutputSpec

INDICES = (torch.int64, torch.int32)


class Index(NamedTuple):
    """A tensor of indices along one dimension of x."""

    strides: Strides  # the strides of the index tensor over `Cells.shape`
    limit: int  # the size of x along that dimension
    step: int  # the stride of x along that dimension


class Cells(NamedTuple):
    shape: tuple[int, ...]
    x: Strides
    indices: tuple[Index, ...]
    wraps: bool = False  # whether negative indices count from the end

    @property
    def count(self) -> int:
        return functools.reduce(int.__mul__, self.shape, 1)


@tunable("index.rows", free="BLOCK_M BLOCK_N")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Tiles for rows of n elements: two 16-byte loads per thread."""
    across = min(triton.next_power_of_2(n), 4096 // dtype.itemsize)
    return Tiles(128, BLOCK_M=max(1, 4096 // dtype.itemsize // across), BLOCK_N=across)


@tunable("index.elements", free="BLOCK_M")
def element_tiles(dtype: torch.dtype) -> Tiles:
    """Tiles for one index per element: each thread has as many loads in flight as its registers allow."""
    return Tiles(128, BLOCK_M=1024)


# ---- the loop -------------------------------------------------------------------------------------------------------


class Loop:
    """Generates the source lines and scalar arguments of a kernel's loop over cells."""

    def __init__(self, cells: Cells, others: Sequence[Strides], dtypes: Iterable[torch.dtype], flat: bool = False):
        operands = [cells.x, *(k.strides for k in cells.indices), *others]
        self.sizes, steps = collapsed(cells.shape, operands)
        self.x, self.indices, self.others = steps[0], steps[1 : 1 + len(cells.indices)], steps[1 + len(cells.indices) :]
        self.rows = not flat and bool(self.sizes) and all(s[-1] == 0 for s in self.indices) and self.sizes[-1] > 1
        self.n = self.sizes[-1] if self.rows else 1
        self.outer = len(self.sizes) - self.rows
        self.m = functools.reduce(int.__mul__, self.sizes[: self.outer], 1)
        dtype = max(dtypes, key=lambda d: d.itemsize)
        self.tiles = row_tiles(n=self.n, dtype=dtype) if self.rows else element_tiles(dtype=dtype)
        self.numbers: dict[str, int] = {}
        self.used: set[int] = set()
        ends = [reach(self.sizes, one) for one in steps]
        ends += [self.m * self.n + 4096, ends[0] + sum((k.limit - 1) * k.step for k in cells.indices)]
        self.type = index_dtype(*ends)

    @property
    def grid(self) -> tuple[int, int, int]:
        across = -(-self.n // self.tiles["BLOCK_N"]) if self.rows else 1
        return (-(-self.m // self.tiles["BLOCK_M"]) * across, 1, 1)

    @property
    def mask(self) -> str:
        return "m_ij" if self.rows else "m_i"

    def at(self, name: str, strides: Strides, inner: bool = True) -> str:
        """The offset of an operand for each element of the block; without `inner`, for each row."""
        outer, terms = strides[: self.outer], []
        if all(a == b * n for a, b, n in zip(outer, outer[1:], self.sizes[1:])):
            terms.append(self._term("i", f"{name}_i", outer[-1]) if outer else "")
        else:
            self.used |= {d for d, s in enumerate(outer) if s}
            terms += [self._term(f"i_{d}", f"{name}_{d}", s) for d, s in enumerate(outer)]
        terms = terms if any(terms) else ["i * 0"]
        if self.rows and inner:
            terms.append(self._term("j", f"{name}_j", strides[-1]) or "j * 0")
        return " + ".join(t for t in terms if t)

    def _term(self, index: str, name: str, step: int) -> str:
        """One term of an offset. A stride of 1 is left out, so that Triton knows that elements are contiguous."""
        if step in (0, 1):
            return index if step else ""
        self.numbers[name] = step
        return f"{index} * {name}"

    def head(self) -> list[str]:
        """The lines that compute i and j. Call `head` last: it computes only dimensions that `at` has used."""
        lines = ["pid = tl.program_id(0)"]
        column = ""
        if self.rows:
            column = "[:, None]"
            lines += [
                "across = tl.cdiv(n, BLOCK_N)",
                "j = (pid % across).to(I) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
                "pid = pid // across",
            ]
        lines += [f"i = pid.to(I) * BLOCK_M + tl.arange(0, BLOCK_M){column}", "m_i = i < m"]
        lines += ["m_ij = m_i & (j < n)"] if self.rows else []
        if self.used:
            lines.append("r = i")
            for d in reversed(range(1, self.outer)):
                lines += [f"i_{d} = r % n_{d}", f"r = r // n_{d}"]
                self.numbers[f"n_{d}"] = self.sizes[d]
            lines.append("i_0 = r")
        return lines

    def places(self, cells: Cells, guard: str = "") -> list[str]:
        """The lines that load the indices and compute `o`, the offset in x, and `ok`, the mask."""
        lines, sums, checks = [], [self.at("x", self.x)], [self.mask, *([guard] if guard else [])]
        for k, (index, strides) in enumerate(zip(cells.indices, self.indices, strict=True)):
            lines.append(f"k{k} = tl.load(k{k}_ptr + {self.at(f'k{k}', strides, inner=False)}, mask=m_i, other=0)")
            lines += [f"k{k} = tl.where(k{k} < 0, k{k} + l{k}, k{k})"] if cells.wraps else []
            checks.append(f"(k{k} >= 0) & (k{k} < l{k})")
            self.numbers[f"l{k}"] = index.limit
            sums.append(self._term(f"k{k}.to(I)", f"t{k}", index.step))
        return [*lines, f"ok = {' & '.join(checks)}", f"o = {' + '.join(s for s in sums if s)}"]

    def launcher(
        self, name: str, pointers: Sequence[str], body: Sequence[str], runtime: Sequence[str] = ()
    ) -> Launcher:
        """The launcher of the generated kernel.

        Triton specializes only sizes that allow wide loads: strides and n if rows are loaded, else m.
        """
        lines = [*self.head(), *body]
        self.numbers |= {"m": self.m, **({"n": self.n} if self.rows else {})}
        wide = [n for n in self.numbers if n == "n" or n[:1] in "xyst"] if self.rows else ["m"]
        order = [*wide, *(n for n in self.numbers if n not in wide)]
        self.numbers = {n: self.numbers[n] for n in order}
        constants = ["I: tl.constexpr", *(f"{n}: tl.constexpr" for n in self.tiles.sizes)]
        params = ", ".join([*(f"{p}_ptr" for p in pointers), *order, *runtime, *constants])
        text = f"def {name}({params}):\n" + "".join(f"    {line}\n" for line in lines)
        return _launcher(text, " ".join(wide))

    def ready(self, launcher: Launcher, makes: Mapping[int, Output] | None = None) -> Callable[..., Any]:
        even = all(self.numbers[n] % 16 == 0 for n in launcher.sizes)
        config = self.tiles.config(even=even, I=self.type)
        return launcher.ready(self.grid, tuple(self.numbers.values()), config, makes)


@functools.cache
def _launcher(text: str, sizes: str) -> Launcher:
    return Launcher(jit_from_source(text), sizes=sizes)


# ---- reads and writes -----------------------------------------------------------------------------------------------


def take(cells: Cells, x: Tensor, y: Any, makes: bool, mask: Strides | None = None) -> Callable[..., Any]:
    """A launch that reads y from x: launch(x, *indices, y).

    `makes`: y is an OutputSpec, and launch(x, *indices) returns the new tensor. `mask`: strides of a mask over the
    cells; launch(x, *indices, mask, fill) writes `fill` where the mask is false.
    """
    strides = (y.stride if makes else y.stride()) or (1,) * len(cells.shape)  # a 0-dim y is a row of one element
    loop = Loop(cells, [*([] if mask is None else [mask]), strides], [x.dtype])
    pointers, runtime, body = ["x", *(f"k{k}" for k in range(len(cells.indices)))], [], []
    if mask is not None:
        pointers.append("g")
        runtime.append('fill: "fp64"' if x.dtype.is_floating_point else 'fill: "i64"')
        body.append(f"g = tl.load(g_ptr + {loop.at('g', loop.others[0])}, mask={loop.mask}, other=0) != 0")
    nothing = 'float("nan")' if x.dtype.is_floating_point else "0"
    body += loop.places(cells, "" if mask is None else "g")
    body.append(f"v = tl.load(x_ptr + o, mask=ok, other={nothing})")
    if mask is not None:
        body.append("v = tl.where(g, v, tl.full([], fill, v.dtype))")
    body.append(f"tl.store(y_ptr + {loop.at('y', loop.others[-1])}, v, mask={loop.mask})")
    launcher = loop.launcher("take", [*pointers, "y"], body, runtime)
    return loop.ready(launcher, {len(pointers): y} if makes else None)


def put(
    cells: Cells, x: Tensor, source: Strides | None, dtype: torch.dtype, add: bool = False, scaled: bool = False
) -> Callable[..., Any]:
    """A launch that writes or adds to x: launch(x, *indices, source[, alpha]), or launch(x, *indices, number)."""
    contiguous = _contiguous(cells.shape)
    loop = Loop(cells, [contiguous if source is None else source], [x.dtype, dtype])
    body, number = loop.places(cells), '"fp64"' if x.dtype.is_floating_point else '"i64"'
    pointers, runtime = ["x", *(f"k{k}" for k in range(len(cells.indices)))], []
    if source is None:
        runtime.append(f"v: {number}")
        body += [f"v = tl.full([BLOCK_M{', BLOCK_N' if loop.rows else ''}], v, x_ptr.dtype.element_ty)"]
    else:
        pointers.append("s")
        body += [f"v = tl.load(s_ptr + {loop.at('s', loop.others[0])}, mask={loop.mask})"]
    if scaled:
        runtime.append(f"alpha: {number}")
        body += ["v = v * tl.full([], alpha, v.dtype)"]
    if add:
        body += ['tl.atomic_add(x_ptr + o, v, mask=ok, sem="relaxed")']
    else:
        body += ["tl.store(x_ptr + o, v, mask=ok)"]
    return loop.ready(loop.launcher("put", pointers, body, runtime))


def keys(cells: Cells, x: Tensor, skips: bool = False, flat: bool = False) -> tuple[Callable[..., Tensor], Loop, int]:
    """Make the launch that computes offsets. Returns it, its loop, and the offset that stands for "out of range".

    launch(x, *indices[, skip]) returns the offset in x of each row of the cells, or of each element if `flat`. For an
    index out of range, this is the offset just beyond x. With `skips`, also for an index equal to `skip`.
    """
    loop = Loop(cells, [_contiguous(cells.shape)], [x.dtype], flat)
    if loop.rows and not loop.x[-1]:  # the index was expanded: all elements of a row refer to the same element of x
        loop = Loop(cells, [_contiguous(cells.shape)], [x.dtype], flat=True)
    beyond = reach(cells.shape, cells.x) + sum((k.limit - 1) * k.step for k in cells.indices)
    dtype = torch.int32 if beyond < LARGEST else torch.int64
    pointers = ["x", *(f"k{k}" for k in range(len(cells.indices)))]
    lanes = copy.copy(loop)
    lanes.rows, lanes.tiles = False, element_tiles(dtype=dtype)
    body = lanes.places(cells, "(k0 != skip)" if skips else "")
    body.append("tl.store(y_ptr + i, tl.where(ok, o, beyond), mask=m_i)")
    lanes.numbers["beyond"] = beyond
    launcher = lanes.launcher("keys", [*pointers, "y"], body, ['skip: "i64"'] if skips else [])
    return lanes.ready(launcher, {len(pointers): OutputSpec.of((loop.m,), dtype)}), loop, beyond


def _contiguous(shape: Sequence[int]) -> Strides:
    made, step = [], 1
    for n in reversed(shape):
        made.append(step)
        step *= n
    return tuple(reversed(made))


# ---- checks ---------------------------------------------------------------------------------------------------------


def check_tensors(x: Tensor, *others: Tensor, indices: Iterable[Tensor] = ()) -> None:
    """Raise NotSupported for dtypes, layouts and devices that the kernels do not support."""
    for t in (x, *others, *indices):
        if t.layout is not torch.strided or t.device != x.device or t.is_neg() or t.is_conj():
            raise NotSupported(f"tensors on {x.device} and {t.device}, {t.layout}")
    for t in (x, *others):
        if t.dtype not in DTYPES:
            raise NotSupported(f"a tensor of {t.dtype}")
    for t in indices:
        if t.dtype not in INDICES:
            raise NotSupported(f"an index of {t.dtype}")


def check_written(y: Tensor, *read: Tensor) -> None:
    """Raise NotSupported if the elements of y share memory with each other or with a tensor that is read."""
    if torch._debug_has_internal_overlap(y) == 1:
        raise NotSupported("elements of the result share memory")
    if any(torch._C._is_alias_of(y, t) for t in read):
        raise NotSupported("the result and an argument share memory")


# ---- cells of the ops -----------------------------------------------------------------------------------------------


def _sizes(x: Tensor) -> tuple[tuple[int, ...], Strides]:
    """Shape and strides; a 0-dim tensor counts as a row of one."""
    return (tuple(x.shape), x.stride()) if x.dim() else ((1,), (1,))


def _without(strides: Strides, dim: int) -> Strides:
    return (*strides[:dim], 0, *strides[dim + 1 :])


def of_gather(x: Tensor, dim: int, index: Tensor) -> Cells:
    """x[i][index[i, j]] along dim: one index per element."""
    (sizes, strides), (shape, steps) = _sizes(x), _sizes(index)
    dim %= len(sizes)
    return Cells(shape, _without(strides, dim), (Index(steps, sizes[dim], strides[dim]),))


def of_select(x: Tensor, dim: int, index: Tensor) -> Cells:
    """x[:, index] along dim: one index per slice."""
    if index.dim() > 1:
        raise NotSupported("an index that is not a vector")
    sizes, strides = _sizes(x)
    dim %= len(sizes)
    along = [0] * len(sizes)
    along[dim] = index.stride(0) if index.dim() else 0
    shape = (*sizes[:dim], index.numel(), *sizes[dim + 1 :])
    return Cells(shape, _without(strides, dim), (Index(tuple(along), sizes[dim], strides[dim]),))


def of_fill(x: Tensor, dim: int, index: Tensor) -> Cells:
    """Like `of_select`, but negative indices count from the end."""
    return of_select(x, dim, index)._replace(wraps=True)


def of_rows(x: Tensor, indices: Tensor) -> Cells:
    """x[indices]: one row per index."""
    index = Index((*indices.stride(), 0), x.shape[0], x.stride(0))
    return Cells((*indices.shape, x.shape[1]), (*[0] * indices.dim(), x.stride(1)), (index,))


def of_flat(x: Tensor, index: Tensor) -> Cells:
    """x.view(-1)[index]"""
    if not x.is_contiguous():
        raise NotSupported("a flat index into a tensor that is not contiguous")
    shape, steps = _sizes(index)
    return Cells(shape, (0,) * len(shape), (Index(steps, x.numel(), 1),), wraps=True)


def of_index(x: Tensor, at: Sequence[int], indices: Sequence[Tensor]) -> Cells:
    """x[indices], with the indices at the dimensions `at`."""
    if not indices or len(at) > x.dim() or at[-1] >= x.dim():
        raise NotSupported("no index, or more indices than x has dimensions")
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in indices))
    except RuntimeError as error:
        raise NotSupported(str(error)) from None
    together = at[-1] - at[0] == len(at) - 1
    before = [d for d in range(x.dim()) if d not in at and (together and d < at[0])]
    after = [d for d in range(x.dim()) if d not in at and d not in before]
    sizes = lambda dims: [x.shape[d] for d in dims]
    steps = lambda dims: [x.stride(d) for d in dims]
    zeros = [0] * len(shape)
    wide = lambda t: (*[0] * len(before), *t.expand(shape).stride(), *[0] * len(after))
    return Cells(
        (*sizes(before), *shape, *sizes(after)),
        (*steps(before), *zeros, *steps(after)),
        tuple(Index(wide(t), x.shape[d], x.stride(d)) for d, t in zip(at, indices, strict=True)),
        wraps=True,
    )
