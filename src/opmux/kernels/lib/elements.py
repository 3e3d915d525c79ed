"""Elementwise kernels with several results, or that read several elements at one place.

`Elements` makes the index arithmetic of a loop over a shape (lib/indexing.py); the caller writes the lines in between:

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
    """A loop over a shape with at least one element; the last operand is a result, whose memory order it follows."""

    def __init__(self, shape: Sequence[int], operands: Mapping[str, tuple[Strides, torch.dtype]]):
        strides, dtypes = zip(*operands.values(), strict=True)
        # tiles as for float32 at least: of 16 bits a thread would hold 16 elements of each operand
        self.indexing = choose_indexing(shape, [tuple(s) for s in strides], [*dtypes, torch.float32])
        self.places = dict(zip(operands, self.indexing.places, strict=True))
        self.pointers = list(operands)

    def load(self, name: str, beyond: str = "", other: str = "") -> str:
        """The source of a load; `beyond` is added to the offset."""
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
        late: Sequence[str] = (),
        **functions: Any,
    ) -> Callable[..., Any]:
        """A launch of these lines: launch(*tensors that are not made, *single, *late numbers) -> those that are.

        `single`: pointers that have no place in the loop. `numbers` are known now, `late` ones at the call; `functions`
        are names that the lines call.
        """
        numbers, found = dict(numbers or {}), self.indexing
        pointers = [*self.pointers, *single]
        constants = [f"{n}: tl.constexpr" for n in found.tiles.sizes]
        params = [*(f"{p}_ptr" for p in pointers), *found.sizes, *found.free, *numbers, *late, *constants]
        text = f"def {name}_{found.name}({', '.join(params)}):\n"
        text += "".join(f"    {line}\n" for line in (*found.head, *body))
        launcher = _launcher(text, " ".join(found.sizes), tuple(functions.items()))
        config = found.tiles.config(even=all(n % 16 == 0 for n in found.sizes.values()))
        known = (*found.sizes.values(), *found.free.values(), *numbers.values())
        return launcher.ready(found.grid, known, config, {pointers.index(n): o for n, o in makes.items()})


def _under(mask: str) -> str:
    return f", mask={mask}" if mask else ""


@functools.cache
def _launcher(text: str, sizes: str, functions: tuple[tuple[str, Any], ...]) -> Launcher:
    return Launcher(jit_from_source(text, **dict(functions)), sizes=sizes)
