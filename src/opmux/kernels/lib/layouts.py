"""Finds reductions that Triton before 3.7 compiles wrongly, from the layouts in a kernel's TTGIR.

Its lowering of `tt.reduce` assumes that the lanes (and the warps) of each dimension are adjacent bits of the lane
(warp) index. That is true for blocked layouts. But a `tl.reshape` that merges two dimensions of a blocked layout gives
a linear layout, for which it may be false. Example: with lanes [[0, 4], [0, 8], [1, 0], [2, 0], [0, 16]], dimension 1
has bits 0, 1 and 4. The compiled kernel shuffles over bits 0, 1 and 2 instead, and silently sums elements of other rows
or of uninitialized shared memory. Triton 3.7 lowers all reductions correctly through linear layouts
(triton-lang/triton, pull request 9219).
"""

from __future__ import annotations

import functools
import re

import triton

from ...core.errors import OpmuxError

Bases = list[list[int]]

_LINEAR = re.compile(r"^(#\w+) = #ttg\.linear<\{.*?lane = (\[.*?\]), warp = (\[.*?\]), block", re.MULTILINE)
_REDUCE = re.compile(
    r'"tt\.reduce"\(.*?<\{axis = (?P<axis>\d+) : i32\}>.*?\n\s*\}\) : \((?P<types>.*?)\) -> ', re.DOTALL
)
_SLICED = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$")


class Miscompiled(OpmuxError, RuntimeError):
    """Triton compiled a kernel wrongly because of a known bug; its results must not be used."""


@functools.cache
def old_reductions() -> bool:
    """Whether this Triton lowers reductions as before 3.7."""
    major, minor = (int(n) for n in triton.__version__.split(".")[:2])
    return (major, minor) < (3, 7)


def wrong_reduction(ttgir: str) -> str:
    """A description of the first reduction that the old lowering compiles wrongly; "" if there is none."""
    layouts = {name: (_bases(lanes), _bases(warps)) for name, lanes, warps in _LINEAR.findall(ttgir)}
    if not layouts:
        return ""
    for match in _REDUCE.finditer(ttgir):
        kind = match["types"].split(", #", 1)
        for part, bases in zip(("lanes", "warps"), _resolve("#" + kind[1], layouts) if len(kind) > 1 else ()):
            if not _in_order(bases, int(match["axis"])):
                return f"a reduction along dimension {match['axis']} of {kind[0]}, ...> over {part} {bases}"
    return ""


def _bases(text: str) -> Bases:
    return [[int(n) for n in one.split(",")] for one in re.findall(r"\[([\d, ]+)\]", text)]


def _resolve(layout: str, layouts: dict[str, tuple[Bases, Bases]]) -> tuple[Bases, ...]:
    """Lane and warp bases of a linear layout, or of a slice of one; () for any other layout."""
    layout = layout.split(">, tensor<")[0].strip()
    name = re.match(r"#\w+", layout.removesuffix(">"))
    if name and name[0] in layouts:
        return layouts[name[0]]
    sliced = _SLICED.match(layout if layout.endswith("}>") else layout.removesuffix(">"))
    if sliced is None:
        return ()
    dim = int(sliced[1])
    return tuple([b[:dim] + b[dim + 1 :] for b in bases] for bases in _resolve(sliced[2], layouts))


def _in_order(bases: Bases, axis: int) -> bool:
    """Whether the bits of each dimension are adjacent. Zero bases (copies of an element) count only along `axis`."""
    if any(sum(map(bool, b)) > 1 for b in bases):
        return False
    dims = [next((d for d, n in enumerate(b) if n), None) for b in bases]
    real = [d for d in dims if d is not None]
    order = [d for i, d in enumerate(real) if i == 0 or real[i - 1] != d]
    along = [i for i, d in enumerate(dims) if d == axis]
    return len(order) == len(set(order)) and (not along or along[-1] - along[0] + 1 == len(along))
