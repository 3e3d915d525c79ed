"""Declares torch's ops from tables of ATen's names and signatures; the reference of each is torch's own op."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core import codegen
from ..core.contract import FLOATS, INTS
from ..core.spec import Sample, Tol
from .samples import Case, Draw, Maker

# Tolerances of ops that only move elements.
EXACT = {dtype: Tol(0, 0) for dtype in (*FLOATS, *INTS, torch.bool)}

# The keyword arguments of factory functions.
FACTORY = "dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None"


@dataclass(frozen=True)
class RowMaker(Maker):
    """Samples that pass the arguments named in `keywords` by keyword."""

    keywords: frozenset[str] = frozenset()

    def __call__(self, dtype: torch.dtype, device: torch.device | str) -> Iterator[Sample]:
        for case in self.cases:
            yield self._sample(case, dtype, device)

    def at(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, **options: Any) -> Sample:
        return self._sample(Case(tuple(shape), options=options), dtype, device)

    def _sample(self, case: Case, dtype: torch.dtype, device: torch.device | str) -> Sample:
        arguments = self.named(case, dtype, device)
        args = tuple(v for n, v in arguments.items() if n not in self.keywords)
        return Sample(args, {n: v for n, v in arguments.items() if n in self.keywords}, case.id)


@dataclass(frozen=True)
class AtenOp:
    """An op: its arguments as Python source, and the function that draws its samples."""

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
    """Make a function that calls torch's own op; `args` is its signature as Python source, `names` its globals.

    The function omits arguments that are None: the called overload lacks them, or their default is None.
    """
    text = f"def {name}({args}) -> {result}:\n    return _call(torch.ops.aten.{name}, locals())\n"
    helpers = {"__name__": __name__, "_call": _call, "torch": torch}  # torch.compile looks them up in this module
    fn = codegen.function(text, name, f"reference of aten::{name}", {**names, **helpers})
    fn.__module__ = names["__name__"]
    fn.__doc__ = f"torch.ops.aten.{name}."
    return fn


def _call(op: Any, arguments: dict[str, Any]) -> Any:
    return op(**{name: value for name, value in arguments.items() if value is not None})
