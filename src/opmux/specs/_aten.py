"""Ops that are torch's: a table of ATen's names and signatures, with torch's own op as the reference of each."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core import codegen
from ..core.contract import FLOATS, INTS
from ..core.spec import Sample, Tol
from .samples import Case, Draw, Maker

# Elements are moved, not computed.
EXACT = {dtype: Tol(0, 0) for dtype in (*FLOATS, *INTS, torch.bool)}

# The options of factories.
FACTORY = "dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None"


@dataclass(frozen=True)
class RowMaker(Maker):
    """Samples of an op of which some arguments are passed by keyword."""

    keywords: frozenset[str] = frozenset()

    def __call__(self, dtype: torch.dtype, device: torch.device | str) -> Iterator[Sample]:
        for case in self.cases:
            yield self._sample(case, dtype, device)

    def at(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, **options: Any) -> Sample:
        return self._sample(Case(tuple(shape), options=options), dtype, device)

    def _sample(self, case: Case, dtype: torch.dtype, device: torch.device | str) -> Sample:
        made = self.named(case, dtype, device)
        args = tuple(v for n, v in made.items() if n not in self.keywords)
        return Sample(args, {n: v for n, v in made.items() if n in self.keywords}, case.id)


@dataclass(frozen=True)
class AtenRow:
    """One op: its arguments as Python source, and how its samples are drawn."""

    name: str
    args: str
    build: Callable[[Draw], dict[str, Any]]
    cases: tuple[Case, ...]
    tol: Mapping[torch.dtype, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return re.findall(r"(\w+):", self.args)

    @property
    def samples(self) -> RowMaker:
        keywords = self.args.partition("*, ")[2]
        return RowMaker(self.build, self.cases, frozenset(re.findall(r"(\w+):", keywords)))

    def reference(self, names: dict[str, Any]) -> Callable[..., Any]:
        return reference(self.name, self.args, names)


def reference(name: str, args: str, names: dict[str, Any], result: str = "Any") -> Callable[..., Any]:
    """torch's own op as a function of these arguments, which are Python source; `names` are its globals.

    An argument that is None is not passed: it belongs to another overload, or None is its default.
    """
    text = f"def {name}({args}) -> {result}:\n    return _call(torch.ops.aten.{name}, locals())\n"
    here = {"__name__": __name__, "_call": _call, "torch": torch}  # torch.compile looks globals up in this module
    made = codegen.function(text, name, f"reference of aten::{name}", {**names, **here})
    made.__module__ = names["__name__"]
    made.__doc__ = f"torch.ops.aten.{name}."
    return made


def _call(op: Any, given: dict[str, Any]) -> Any:
    return op(**{name: value for name, value in given.items() if value is not None})
