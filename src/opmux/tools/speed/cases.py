"""Arguments of a given size for torch's overloads, recorded from programs or made from the schema.

A case is a call of an overload, with its arguments, that torch makes while a program (`programs.py`) runs. For an
overload that no program calls, arguments are made from their names and types, if torch checks that the arguments fit
together. `out=` and in-place overloads use the cases of the functional overload.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.tensors import tensors_in
from ...faces.aten.overloads import Overload, functional
from ..runner.check import in_one_line
from .programs import PROGRAMS, REFUSALS, Program

CASES = 3  # at most this many cases of an overload per size: along rows, along columns, another layout
SMALL = 1 << 13  # elements of the tensors with which programs are tried


@dataclass(frozen=True)
class OverloadCase:
    """One call of an overload."""

    args: tuple
    kwargs: dict[str, Any]
    result_numel: int = 0  # elements of the results; 0 if unknown

    @property
    def first(self) -> Tensor | None:
        """The tensor whose size and dtype decide in the C++ gate whether our kernel runs."""
        return next(tensors_in((self.args, self.kwargs)), None)

    @property
    def numel(self) -> int:
        """The size by which the C++ gate decides: that of `first`, or of the result if there is no tensor argument."""
        return self.result_numel if self.first is None else self.first.numel()

    def fills(self, numel: int) -> bool:
        """Whether the call is about as large as requested."""
        return 8 * max(self.result_numel, sum(t.numel() for t in tensors_in((self.args, self.kwargs)))) >= numel

    @property
    def layout(self) -> Any:
        """A value that is equal for two calls which differ only in the contents of tensors."""
        return _layout((self.args, self.kwargs))


def _layout(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_layout, value))
    if isinstance(value, dict):
        return tuple((k, _layout(v)) for k, v in sorted(value.items()))
    return type(value) if isinstance(value, torch.Generator) else value


class CallFound(Exception):
    """Raised to end a program after the requested call."""


class CallCatcher(TorchDispatchMode):
    """Records the first call of each overload, with the original arguments. A call of `last` ends the program."""

    def __init__(self, names: Collection[str], last: str = "") -> None:
        super().__init__()
        self._names, self._last = names, last
        self.cases: dict[str, OverloadCase] = {}
        self.refused: dict[str, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, as nothing is compiled: True would import torch._dynamo, which takes seconds in each process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if name not in self._names or name in self.cases:
            return func(*args, **kwargs)
        try:
            results = func(*args, **kwargs)
        except REFUSALS as error:
            self.refused[name] = in_one_line(error)
            raise
        self.cases[name] = OverloadCase(tuple(args), dict(kwargs), sum(t.numel() for t in tensors_in(results)))
        if name == self._last:
            raise CallFound
        return results


# ---- arguments by the schema ----------------------------------------------------------------------------------------

# Argument name -> value, for numbers without a default in the schema. All others are 2.
_NUMBERS = {
    "exponent": 2.0,
    "min": -1.0,
    "max": 1.0,
    "p": 0.5,
    "weight": 0.5,
    "value": 1.0,
    "lambd": 0.5,
    "negative_slope": 0.1,
    "threshold": 0.1,
    "alpha": 1.0,
    "scale": 1.0,
    "input_scale": 1.0,
    "beta": 1.0,
    "eps": 1e-5,
    "lower": 0.1,
    "upper": 0.3,
    "delta": 1.0,
    "from": 0.0,
    "to": 1.0,
    "mean": 0.0,
    "std": 1.0,
}
_INTS = {
    "dim": -1,
    "dims": -1,
    "k": 1,
    "p": 1,
    "decimals": 2,
    "n": 2,
    "diagonal": 0,
    "reduction": 1,
    "shifts": 3,
    "from": 0,
    "to": 100,
}


def fits_any(overload: Overload) -> bool:
    """Whether an overload can safely be called with any tensors of the same shape: the call works, or torch raises.

    torch does not check all arguments. With tensors of the same shape, `_cdist_backward` accesses illegal memory, which
    ends the process.
    """
    tensors = [a for a in overload.shape.arguments if "Tensor" in str(a.type)]
    if "backward" in overload.name or overload.shape.kind not in ("functional", "inplace"):
        return False
    return len(tensors) == 1 or (len(tensors) > 1 and _pointwise(overload))


def _pointwise(overload: Overload) -> bool:
    return overload.family == "pointwise" and overload.adapter is None and "backward" not in overload.name


def by_schema(overload: Overload, x: Tensor) -> OverloadCase | None:
    """Arguments of an overload, made from their names and types; None if one of them cannot be made."""
    if not fits_any(overload):
        return None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for a in overload.shape.arguments:
        value = _value(a, x, first=not args)
        if value is _UNKNOWN:
            return None
        if not a.kwarg_only:
            args.append(value)
        elif not a.has_default_value():
            kwargs[a.name] = value
    return OverloadCase(tuple(args), kwargs)


_UNKNOWN = object()


def _value(a: Any, x: Tensor, first: bool) -> Any:
    kind = str(a.type)
    if kind == "Tensor":
        if a.name in ("mask", "condition"):
            return x > 0
        if a.name == "value":
            return x.new_ones(())
        if a.name == "p":
            return _like(x.float())
        return x if first else _like(x)
    if kind == "List[Tensor]":
        return [x, _like(x)]
    if a.name in ("min", "max") and "Optional" in kind:
        return (_like(x) - 1 if a.name == "min" else _like(x)) if "Tensor" in kind else _NUMBERS[a.name]
    if a.has_default_value():
        return a.default_value
    if kind.startswith("Optional"):
        return None
    if kind == "bool":
        return False
    if kind == "List[int]":
        return [-1] if a.name in ("dim", "dims") else list(x.shape) if a.name in ("size", "shape") else _UNKNOWN
    if kind == "int":
        return _INTS.get(a.name, _UNKNOWN)
    if kind == "number":
        value = _NUMBERS.get(a.name, 2.0)
        return value if x.is_floating_point() else int(value)
    return _NUMBERS.get(a.name, _UNKNOWN)


def _like(x: Tensor) -> Tensor:
    return torch.rand(x.shape, device=x.device).mul_(0.7).add_(0.25).to(x.dtype) if x.is_floating_point() else x.clone()


# ---- all overloads --------------------------------------------------------------------------------------------------


def sized(numel: int, dtype: torch.dtype, device: str) -> Tensor:
    """A matrix of about `numel` elements, with values that functions accept."""
    columns = 4096 if numel >= 1 << 24 else 1024 if numel >= 1 << 16 else 64
    if not dtype.is_floating_point:
        return torch.randint(1, 60, (numel // columns, columns), dtype=dtype, device=device)
    return torch.rand(numel // columns, columns, device=device).mul_(0.7).add_(0.25).to(dtype)


def derived(overload: Overload, case: OverloadCase, native: Callable[..., Any]) -> OverloadCase | None:
    """A case of an in-place or `out=` overload, made from a case of the functional overload."""
    shape = overload.shape
    if shape.kind == "out":
        try:
            results = native(*case.args, **case.kwargs)
        except REFUSALS:
            return None
        outs = results if isinstance(results, (tuple, list)) else (results,)
        if len(outs) != len(shape.outs) or not all(isinstance(o, Tensor) for o in outs):
            return None
        return OverloadCase(case.args, case.kwargs | dict(zip(shape.outs, outs, strict=True)))
    first = case.args[0]
    written = [t.clone() for t in first] if isinstance(first, (list, tuple)) else first.clone()
    return OverloadCase((written, *case.args[1:]), case.kwargs)


class CaseSource(NamedTuple):
    """How to make a case: from a matrix of a dtype, by a program, or from the schema if `program` is None."""

    dtype: torch.dtype
    program: Program | None
    numel: int  # `OverloadCase.numel` on a small matrix
    layout: Any


class Sources:
    """The sources of each overload, by the dtype of the first tensor. They are found once, with small tensors."""

    def __init__(self, names: Iterable[str], device: str, dtypes: Iterable[torch.dtype]):
        self._names, self._device, self._dtypes = set(names), device, tuple(dtypes)
        self._reached: dict[str, dict[torch.dtype, list[CaseSource]]] = {}  # found by running programs
        self._sources: dict[str, dict[torch.dtype, list[CaseSource]]] = {}
        self.refused: dict[str, str] = {}  # why torch refused a program's call of an overload
        for dtype in self._dtypes:
            for program in PROGRAMS:
                for name, case in self._run(program, sized(SMALL, dtype, device)).items():
                    if case.fills(SMALL):
                        sources = self._reached.setdefault(name, {}).setdefault(_dtype(case, dtype), [])
                        sources.append(CaseSource(dtype, program, case.numel, case.layout))

    def _run(self, program: Program, x: Tensor, last: str = "") -> dict[str, OverloadCase]:
        calls = CallCatcher({last} if last else self._names, last)
        # This torch may refuse a call of this dtype or size. The calls that the program made before are still used.
        with torch.enable_grad(), calls, contextlib.suppress(CallFound, *REFUSALS):
            program(x)
        self.refused |= calls.refused
        return calls.cases

    def _of(self, overload: Overload) -> dict[torch.dtype, list[CaseSource]]:
        """The sources of an overload, by the dtype of the first tensor."""
        if overload.name not in self._sources:
            self._sources[overload.name] = self._find(overload)
        return self._sources[overload.name]

    def _find(self, overload: Overload) -> dict[torch.dtype, list[CaseSource]]:
        reached = {} if _pointwise(overload) else self._reached.get(overload.name, {})  # programs' layouts vary
        by_dtype = {d: _different(d, sources)[:CASES] for d, sources in reached.items()}
        for dtype in self._dtypes:
            case = None if dtype in by_dtype else by_schema(overload, sized(SMALL, dtype, self._device))
            if case is not None:
                by_dtype.setdefault(_dtype(case, dtype), []).append(CaseSource(dtype, None, case.numel, case.layout))
        return by_dtype

    def _plain(self, overload: Overload) -> Overload | None:
        """The functional overload whose cases are converted for an overload; None if the overload has its own cases."""
        own = overload.name in self._reached and not _pointwise(overload)
        return None if own else functional(overload)

    def dtypes(self, overload: Overload) -> list[torch.dtype]:
        """The dtypes of the first tensor for which there are cases."""
        return list(self._of(self._plain(overload) or overload))

    def cases(self, overload: Overload, numel: int, dtype: torch.dtype) -> Iterator[OverloadCase]:
        """The cases of an overload for a size and a dtype of the first tensor. Each case has new tensors."""
        plain, name = self._plain(overload), overload.name
        if plain is not None:
            converted = (derived(overload, case, plain.shape.op) for case in self.cases(plain, numel, dtype))
            yield from (case for case in converted if case is not None)
            return
        for program_dtype, program, *_ in self._of(overload).get(dtype, ()):
            x = sized(numel, program_dtype, self._device)
            case = by_schema(overload, x) if program is None else self._run(program, x, name).get(name)
            if case is not None and case.fills(numel):
                yield case


def _different(dtype: torch.dtype, sources: list[CaseSource]) -> list[CaseSource]:
    """Sources with different layouts whose first tensors have about the same size, because times are stored by size."""
    sources = [s for s in sources if s.dtype is dtype] or sources  # with other dtypes, programs only convert a weight
    sizes = [s.numel for s in sources]
    best = max((n for n in sizes if n <= SMALL), default=min(sizes))
    return list({s.layout: s for s in reversed(sources) if best < 2 * s.numel < 4 * best}.values())[::-1]


def _dtype(case: OverloadCase, default: torch.dtype) -> torch.dtype:
    return default if case.first is None else case.first.dtype
