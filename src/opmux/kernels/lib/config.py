"""The sizes a kernel works in, and who may change them: a default for any chip, a vendor's heuristics, tuning.

    @tunable("softmax.rows")
    def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
        return Tiles(threads=256, BLOCK_M=1, BLOCK_N=max(triton.next_power_of_2(n), 16))

    config = row_tiles(n=n, dtype=x.dtype).config(even=even, LOG=False, WIDE=tl.float32)

The decorated function is the safe default. Its name is what vendors write in `heuristics_config_utils.py` and
`tune_configs.yaml`, and what `opmux tune` remembers. It is asked when a plan is made, never on the way of a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .launch import Config


@dataclass(frozen=True, init=False)
class Tiles:
    """Threads, stages, and the constants that change a kernel's speed but never its result."""

    threads: int
    stages: int
    sizes: Mapping[str, Any]

    def __init__(self, threads: int = 128, stages: int = 2, **sizes: Any):
        object.__setattr__(self, "threads", threads)
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "sizes", sizes)

    def __getitem__(self, name: str) -> Any:
        return self.sizes[name]

    def config(self, *, even: bool = False, **constants: Any) -> Config:
        """What the kernel is compiled with: these sizes, and the constants that say what it computes."""
        return Config({**constants, **self.sizes}, self.threads, self.stages, even)


class Tunable:
    """A choice of tiles by facts (sizes, dtypes, flags), under a name."""

    def __init__(self, name: str, default: Callable[..., Tiles]):
        self.name, self.default = name, default
        self.facts = tuple(inspect.signature(default).parameters)
        self.__doc__ = default.__doc__

    def __call__(self, **facts: Any) -> Tiles:
        return self.default(**facts)


tunables: dict[str, Tunable] = {}


def tunable(name: str) -> Callable[[Callable[..., Tiles]], Tunable]:
    """Declare a choice of tiles; the decorated function is its default for any chip."""

    def declare(default: Callable[..., Tiles]) -> Tunable:
        if name in tunables:
            raise ValueError(f"tunable {name!r} is declared twice")
        tunables[name] = made = Tunable(name, default)
        return made

    return declare
