"""Generated index arithmetic for elementwise kernels over tensors with any strides.

    indexing = choose_indexing(shape, strides, dtypes)   # strides of each operand, the result last; 0 if broadcast
    indexing.head                                        # lines that compute the indices of a program
    indexing.places                                      # for each operand: offset and mask, as expressions
    indexing.sizes, indexing.free, indexing.grid, indexing.tiles

Dimensions of size 1 are dropped, and adjacent dimensions are merged where all operands allow it. Kinds of indexing:
  flat   one dimension, contiguous or a single element in every operand: wide loads;
  tiles  tiles of two dimensions, the others enumerated by programs: rows with gaps, a broadcast row or column (loaded
         once per tile), and transposes, which are loaded along their own contiguous dimension;
  steps  any number of dimensions, with an offset computed per element: small inner dimensions, strided slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .config import Tiles, tunable

Strides = tuple[int, ...]
LARGEST = 2**31 - 1  # largest 32-bit offset
SMALL = 256  # if two dimensions have fewer elements than this, a tile wastes more than it saves


class Indexing(NamedTuple):
    name: str
    head: list[str]
    places: list[tuple[str, str]]
    sizes: dict[str, int]  # arguments that allow wide loads if they are multiples of 16
    free: dict[str, int]  # other scalar arguments
    grid: tuple[int, int, int]
    tiles: Tiles


# ---- blocks ---------------------------------------------------------------------------------------------------------


def _per_program(dtype: torch.dtype) -> int:
    """Elements of a program of 128 threads, each with two 16-byte loads."""
    return 4096 // dtype.itemsize


@tunable("pointwise.flat")
def flat_tiles(dtype: torch.dtype) -> Tiles:
    """A one-dimensional block; `dtype` is the widest of all operands."""
    return Tiles(128, BLOCK=_per_program(dtype))


@tunable("pointwise.tiles")
def tile_tiles(m: int, n: int, turned: bool, dtype: torch.dtype) -> Tiles:
    """A tile of m rows and n columns; as square as possible if an operand is contiguous along m (`turned`)."""
    most = _per_program(dtype)
    if turned:
        side = 64 if dtype.itemsize <= 2 else 32
        return Tiles(256, BLOCK_M=min(side, triton.next_power_of_2(m)), BLOCK_N=min(side, triton.next_power_of_2(n)))
    across = min(triton.next_power_of_2(n), most)
    return Tiles(128, BLOCK_M=min(max(most // across, 1), triton.next_power_of_2(m)), BLOCK_N=across)


@tunable("pointwise.steps")
def step_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=512)


# ---- dimensions -----------------------------------------------------------------------------------------------------


def broadcast_strides(shape: Sequence[int], stride: Sequence[int], target: Sequence[int]) -> Strides:
    """The strides of a tensor broadcast to a larger shape: 0 along broadcast dimensions."""
    missing = len(target) - len(shape)
    return (*[0] * missing, *(0 if n == 1 else s for n, s in zip(shape, stride, strict=True)))


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """One more than the largest offset of an element; 0 for an empty tensor."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0


def bytes_of(t: Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    return reach(t.shape, t.stride()) * t.element_size()


def index_dtype(*counts: int) -> tl.dtype:
    """The dtype of indices that are less than each of these counts."""
    return tl.int64 if max(counts) > LARGEST else tl.int32


def collapsed(shape: Sequence[int], strides: Sequence[Strides]) -> tuple[list[int], list[Strides]]:
    """Sizes and strides with dimensions merged where possible, in the memory order of the last operand (the result)."""
    dims = [(n, tuple(s[d] for s in strides)) for d, n in enumerate(shape) if n != 1]
    dims.sort(key=lambda dim: tuple(reversed(dim[1])), reverse=True)
    merged: list[tuple[int, Strides]] = []
    for n, step in dims:
        if merged and all(outer == n * inner for outer, inner in zip(merged[-1][1], step, strict=True)):
            merged[-1] = (merged[-1][0] * n, step)
        else:
            merged.append((n, step))
    return [n for n, _ in merged], [tuple(step[i] for _, step in merged) for i in range(len(strides))]


def choose_indexing(shape: Sequence[int], strides: Sequence[Strides], dtypes: Sequence[torch.dtype]) -> Indexing:
    """The best indexing for these strides; the shape must not be empty."""
    sizes, steps = collapsed(shape, strides)
    widest = max(dtypes, key=lambda d: d.itemsize)
    if not sizes or (len(sizes) == 1 and steps[-1] == (1,) and all(s[0] in (0, 1) for s in steps)):
        return _flat(sizes[0] if sizes else 1, [bool(s and s[0] == 0) for s in steps], widest)
    if len(sizes) > 1:
        row = _second(steps)
        if len(sizes) == 2 or sizes[row] * sizes[-1] >= SMALL:
            return _tiles(sizes, steps, row, widest)
    return _steps(sizes, steps, widest)


def _second(steps: list[Strides]) -> int:
    """The dimension that forms a tile with the last one: where an operand is contiguous, else the second to last."""
    for s in steps:
        if s[-1] not in (0, 1) and 1 in s:
            return s.index(1)
    return len(steps[0]) - 2


# ---- the three kinds of indexing ------------------------------------------------------------------------------------


def _flat(n: int, single: list[bool], dtype: torch.dtype) -> Indexing:
    tiles = flat_tiles(dtype=dtype)
    head = ["o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "m = o < n"]
    places = [("", "") if one else ("o", "m") for one in single]
    return Indexing("flat", head, places, {"n": n}, {}, (-(-n // tiles["BLOCK"]), 1, 1), tiles)


def _tiles(sizes: list[int], steps: list[Strides], row: int, dtype: torch.dtype) -> Indexing:
    m, n = sizes[row], sizes[-1]
    transposed = any(s[row] == 1 for s in steps)
    tiles = tile_tiles(m=m, n=n, turned=transposed, dtype=dtype)
    downs, acrosses = -(-m // tiles["BLOCK_M"]), -(-n // tiles["BLOCK_N"])
    outer = [d for d in range(len(sizes) - 1) if d != row]
    strides = {"n": n}
    free = {} if transposed else {"m": m}
    strides |= {"m": m} if transposed else {}
    head = [
        "pid = tl.program_id(0)",
        "across = tl.cdiv(n, BLOCK_N)",
        "i_n = (pid % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
        "pid = pid // across",
    ]
    if outer:
        head += ["down = tl.cdiv(m, BLOCK_M)", "i_m = pid % down", "pid = (pid // down).to(tl.int64)"]
    else:
        head += ["i_m = pid"]
    head += ["i_m = i_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]"]
    for at, d in enumerate(reversed(outer)):
        last = at == len(outer) - 1
        head += [f"i_{d} = pid" if last else f"i_{d} = pid % n_{d}"] + ([] if last else [f"pid = pid // n_{d}"])
        free |= {} if last else {f"n_{d}": sizes[d]}
    head += ["m_n = i_n < n", "m_m = i_m < m", "m_mn = m_m & m_n"]
    places = []
    for i, s in enumerate(steps):
        terms = [_term(strides, f"i_{d}", f"s{i}_{d}", s[d]) for d in outer]
        terms += [_term(strides, "i_m", f"s{i}_m", s[row]), _term(strides, "i_n", f"s{i}_n", s[-1])]
        mask = {(True, True): "m_mn", (True, False): "m_m", (False, True): "m_n", (False, False): ""}
        places.append((" + ".join(t for t in terms if t), mask[s[row] != 0, s[-1] != 0]))
    grid = (math.prod(sizes[d] for d in outer) * downs * acrosses, 1, 1)
    return Indexing("tiles", head, places, strides, free, grid, tiles)


def _steps(sizes: list[int], steps: list[Strides], dtype: torch.dtype) -> Indexing:
    tiles = step_tiles(dtype=dtype)
    count = math.prod(sizes)
    farthest = max(sum((n - 1) * abs(s) for n, s in zip(sizes, one, strict=True)) for one in steps)
    index = "int32" if max(farthest, count + tiles["BLOCK"]) <= LARGEST else "int64"
    free = {"n": count}
    head = [f"i = tl.program_id(0).to(tl.{index}) * BLOCK + tl.arange(0, BLOCK)", "m = i < n"]
    for d in reversed(range(len(sizes))):
        if d == 0:
            head.append("i_0 = i")
        else:
            free[f"n_{d}"] = sizes[d]
            head += [f"i_{d} = i % n_{d}", f"i = i // n_{d}"]
    strides: dict[str, int] = {}
    places = []
    for i, s in enumerate(steps):
        terms = [_term(strides, f"i_{d}", f"s{i}_{d}", step) for d, step in enumerate(s)]
        places.append((" + ".join(t for t in terms if t), "m" if any(s) else ""))
    return Indexing("steps", head, places, strides, free, (-(-count // tiles["BLOCK"]), 1, 1), tiles)


def _term(strides: dict[str, int], index: str, name: str, step: int) -> str:
    """One term of an offset. A stride of 1 is left out, so that Triton knows that elements are contiguous."""
    if step in (0, 1):
        return index if step else ""
    strides[name] = step
    return f"{index} * {name}"
