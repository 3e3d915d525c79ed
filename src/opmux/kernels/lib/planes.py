"""Tensors with channels and one to three spatial dimensions: sizes, strides and index arithmetic.

Kernels compute one result element per lane, in the memory order of the results, and read inputs through strides, so
contiguous, channels-last and sliced inputs need no copy. Missing spatial dimensions have size 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.contract import FLOATS
from ...core.errors import NotSupported
from .config import Tiles, tunable
from .harness import Launch
from .indexing import index_dtype, reach
from .launch import Launcher
from .rows import OutputSpec

AXES = "zyx"


# ---- on the host ----------------------------------------------------------------------------------------------------


def check_floats(*tensors: Tensor | None) -> None:
    """Raise NotSupported unless all tensors have the same floating-point dtype."""
    found = {t.dtype for t in tensors if t is not None}
    if len(found) != 1 or not found <= {*FLOATS}:
        raise NotSupported(f"{', '.join(map(str, found))}: expected floats of one dtype")


def zyx(values: int | Sequence[int], rank: int, missing: int = 0) -> tuple[int, int, int]:
    """Values for z, y and x, from one value per spatial dimension or one value for all."""
    given = [values] if isinstance(values, int) else list(values)
    given = given * rank if len(given) == 1 else given
    if len(given) != rank:
        raise NotSupported(f"expected {rank} values, got {given}")
    return (*[missing] * (3 - rank), *given)  # type: ignore[return-value]


class Planes(NamedTuple):
    """The sizes and strides of a tensor [n, c, z, y, x]; a tensor without a batch has n = 1."""

    sizes: tuple[int, int, int, int, int]
    strides: tuple[int, int, int, int, int]

    @classmethod
    def of(cls, t: Tensor | OutputSpec, rank: int) -> Planes:
        shape = tuple(t.shape)
        stride = t.stride() if isinstance(t, Tensor) else t.stride
        batch = len(shape) == rank + 2
        if not batch and len(shape) != rank + 1:
            raise NotSupported(f"{len(shape)} dimensions, {rank} of them spatial")
        lead, missing = (shape[:2], stride[:2]) if batch else ((1, shape[0]), (0, stride[0])), 3 - rank
        at = len(shape) - rank
        sizes = (*lead[0], *[1] * missing, *shape[at:])
        return cls(sizes, (*lead[1], *[0] * missing, *stride[at:]))  # type: ignore[arg-type]

    @property
    def count(self) -> int:
        n, c, z, y, x = self.sizes
        return n * c * z * y * x

    @property
    def space(self) -> tuple[int, int, int]:
        return self.sizes[2:]

    @property
    def last(self) -> bool:
        """Whether the layout is channels-last."""
        _, c, z, y, x = self.sizes
        return self.dense((z * y * x * c, 1, y * x * c, x * c, c))

    @property
    def contiguous(self) -> bool:
        _, c, z, y, x = self.sizes
        return self.dense((c * z * y * x, z * y * x, y * x, x, 1))

    def dense(self, strides: tuple[int, ...]) -> bool:
        return all(a == b or n == 1 for a, b, n in zip(self.strides, strides, self.sizes, strict=True))

    def numbers(self, name: str) -> dict[str, int]:
        """The strides as kernel arguments."""
        return {f"{name}_s{axis}": s for axis, s in zip("nczyx", self.strides, strict=True)}

    @property
    def reach(self) -> int:
        """One more than the largest offset."""
        return reach(self.sizes, self.strides)


@tunable("planes")
def plane_tiles(last: bool, dtype: torch.dtype) -> Tiles:
    """Result elements per program. `last`: the layout is channels-last, which allows 16-byte loads."""
    return Tiles(128, BLOCK=128 * (max(2, 16 // dtype.itemsize) if last else 4))


def constants(out: Planes, tiles: Tiles, rank: int, *inputs: Planes) -> dict[str, Any]:
    """The constants that describe the layouts of result and inputs. Raises NotSupported if the result is not dense."""
    last = out.last and not out.contiguous
    if not (last or out.contiguous):
        raise NotSupported("results are neither contiguous nor channels-last")
    # for channels-last the channel stride is the constant 1, which keeps loads wide
    tight = last and all(p.strides[1] == 1 for p in inputs)
    index = index_dtype(max(p.reach for p in (out, *inputs)) + tiles["BLOCK"])
    return {"RANK": rank, "LAST": last, "TIGHT": tight, "INDEX": index, "FULL": out.count % tiles["BLOCK"] == 0}


def sizes_of(out: Planes) -> dict[str, int]:
    """The size arguments of a kernel: number of result elements, and sizes of the result."""
    _, c, z, y, x = out.sizes
    return {"n": out.count, "n_c": c, "n_z": z, "n_y": y, "n_x": x}


def per_element(
    kernel: Launcher,
    rank: int,
    dtype: torch.dtype,
    out: Planes,
    inputs: Mapping[str, Planes],
    numbers: Mapping[str, Any],
    names: Mapping[str, str | None],
    **constexprs: Any,
) -> Launch:
    """A launch with one lane per result element. `inputs`: the tensors that the kernel reads through strides."""
    tiles = plane_tiles(last=out.last, dtype=dtype)
    strides = {k: v for name, planes in inputs.items() for k, v in planes.numbers(name).items()}
    config = tiles.config(**constexprs | constants(out, tiles, rank, *inputs.values()))
    grid = (-(-out.count // tiles["BLOCK"]),)
    return Launch(kernel, grid, config, {**sizes_of(out), **strides, **numbers}, names)


def per_axis(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """Arguments for z, y and x: `per_axis("S", (1, 2, 2))` gives SZ, SY and SX; `per_axis("i_", ...)` i_z, ..."""
    upper = name.isupper()
    return {f"{name}{a.upper() if upper else a}": v for a, v in zip(AXES, values, strict=True)}


# ---- in kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def lanes(n, INDEX: tl.constexpr, FULL: tl.constexpr, BLOCK: tl.constexpr):
    """The result elements of this program, and a mask."""
    o = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    if FULL:
        inside = tl.full([BLOCK], 1, tl.int1)
    else:
        inside = o < n
    return o, inside


@triton.jit
def unravel_positions(o, n_z, n_y, n_x, RANK: tl.constexpr):
    """Batch, z, y and x of position o."""
    x = o % n_x
    o = o // n_x
    y = o * 0
    z = o * 0
    if RANK > 1:
        y = o % n_y
        o = o // n_y
    if RANK > 2:
        z = o % n_z
        o = o // n_z
    return o, z, y, x


@triton.jit
def unravel(o, n_c, n_z, n_y, n_x, RANK: tl.constexpr, LAST: tl.constexpr):
    """Batch, channel, z, y and x of element o in memory order."""
    if LAST:
        c = o % n_c
        b, z, y, x = unravel_positions(o // n_c, n_z, n_y, n_x, RANK)
    else:
        o, z, y, x = unravel_positions(o, n_z, n_y, n_x, RANK)
        c = o % n_c
        b = o // n_c
    return b, c, z, y, x


@triton.jit
def plane(b, c, s_n, s_c, TIGHT: tl.constexpr):
    """The offset of channel c of batch b."""
    if TIGHT:
        return b * s_n + c
    else:
        return b * s_n + c * s_c
