"""Elementwise kernels that have several results, or load several elements for each index.

`Elements` generates the index arithmetic of a loop over a shape (lib/indexing.py); the caller writes the body:

    e = Elements(x.shape, {"x": (x.stride(), x.dtype), "y": (...), "z": (...)})
    body = [f"x = {e.load('x')}", e.store("y", "x + 1"), e.store("z", "x > 0")]
    launch = e.ready("plus_one", body, makes={"y": OutputSpec(...), "z": OutputSpec(...)})
    y, z = launch(x)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .indexing import Strides, choose_indexing
from .jit_source import jit_from_source
from .launch import Launcher, Output


class Elements:
    """A loop over a nonempty shape. The last operand must be a result: the loop follows its memory order."""

    def __init__(self, shape: Sequence[int], operands: Mapping[str, tuple[Strides, torch.dtype]]):
        strides, dtypes = zip(*operands.values(), strict=True)
        # Choose tiles for elements of at least 4 bytes: for 2 bytes, a thread would hold 16 elements of each operand.
        self.indexing = choose_indexing(shape, [tuple(s) for s in strides], [*dtypes, torch.float32])
        self.places = dict(zip(operands, self.indexing.places, strict=True))
        self.pointers = list(operands)

    def load(self, name: str, beyond: str = "", other: str = "") -> str:
        """The source text of a load; `beyond` is an expression that is added to the offset."""
        at, mask = self.places[name]
        other = f", other={other}" if other and mask else ""
        return f"tl.load({' + '.join(filter(None, (f'{name}_ptr', at, beyond)))}{_under(mask)}{other})"

    def store(self, name: str, value: str, beyond: str = "") -> str:
        at, mask = self.places[name]
        to = " + ".join(filter(None, (f"{name}_ptr", at, beyond)))
        return f"tl.store({to}, ({value}).to({name}_ptr.dtype.element_ty){_under(mask)})"

    def ready(
        self,
        name: str,
        body: Sequence[str],
        *,
        makes: Mapping[str, Output],
        single: Sequence[str] = (),
        numbers: Mapping[str, int] | None = None,
        runtime: Sequence[str] = (),
        **functions: Any,
    ) -> Callable[..., Any]:
        """launch(*inputs, *single, *runtime) -> outputs, where `makes` says which operands the launch allocates.

        `single`: names of pointers that the loop does not index. `numbers`: scalar arguments that are known now.
        `runtime`: scalar arguments given at each call. `functions`: functions that the body calls, by name.
        """
        numbers, indexing = dict(numbers or {}), self.indexing
        pointers = [*self.pointers, *single]
        constants = [f"{n}: tl.constexpr" for n in indexing.tiles.sizes]
        params = [*(f"{p}_ptr" for p in pointers), *indexing.sizes, *indexing.free, *numbers, *runtime, *constants]
        text = f"def {name}_{indexing.name}({', '.join(params)}):\n"
        text += "".join(f"    {line}\n" for line in (*indexing.head, *body))
        launcher = _launcher(text, " ".join(indexing.sizes), tuple(functions.items()))
        config = indexing.tiles.config(even=all(n % 16 == 0 for n in indexing.sizes.values()))
        known = (*indexing.sizes.values(), *indexing.free.values(), *numbers.values())
        return launcher.ready(indexing.grid, known, config, {pointers.index(n): o for n, o in makes.items()})


def _under(mask: str) -> str:
    return f", mask={mask}" if mask else ""


@functools.cache
def _launcher(text: str, sizes: str, functions: tuple[tuple[str, Any], ...]) -> Launcher:
    return Launcher(jit_from_source(text, **dict(functions)), sizes=sizes)
