"""More rules for arguments: dimensions, sizes, memory, numbers of elements, multiples, lists of the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .contract import Rule, because, dim_of, either, parameters


@dataclass(frozen=True)
class ints(Rule):
    """An int, a sequence of ints, or None."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        several = value if isinstance(value, Sequence) else (value,)
        fine = value is None or all(isinstance(v, int) for v in several)
        return None if fine else "be an int, a sequence of ints, or None"

    def got(self, value: Any) -> str:
        return repr(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "text", "rows"
        yield "a float", 0.5


@dataclass(frozen=True)
class dims_of(Rule):
    """A dimension of another argument (see `dim_of`), a sequence of distinct dimensions, or None."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if value is None or not isinstance(other, Tensor):
            return None
        dims = (value,) if isinstance(value, int) else value
        problem = next(filter(None, (dim_of(self.of).problem(d, given) for d in dims)), None)
        if problem is None and len({d % max(other.dim(), 1) for d in dims}) < len(dims):
            return f"name each dimension once, as {{{self.of}}} is {tuple(other.shape)}"
        return problem

    def got(self, value: Any) -> str:
        return repr(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "too large", 99
        yield "the same twice", (0, 0)


@dataclass(frozen=True)
class multiple_of(Rule):
    """A multiple of a number or of another argument."""

    of: int | str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        by = given.get(self.of) if isinstance(self.of, str) else self.of
        if not isinstance(by, int) or by < 1 or value % by == 0:
            return None
        return f"be a multiple of {by}" + (f", the {{{self.of}}}" if isinstance(self.of, str) else "")

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "one more", value + 1

    def doc(self) -> str:
        return f"a multiple of {self.of}"


@dataclass(frozen=True)
class ndim(Rule):
    """A tensor whose number of dimensions is one of `allowed`."""

    allowed: tuple[int, ...]

    def __init__(self, *allowed: int):
        object.__setattr__(self, "allowed", allowed)

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if value.dim() in self.allowed else f"have {self.doc()}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "too many dimensions", value[(None,) * 9]

    def doc(self) -> str:
        return f"{either(map(str, self.allowed))} dimensions"


@dataclass(frozen=True)
class nonempty(Rule):
    """A tensor with at least one element. If a dimension is named, only its size must be at least 1."""

    dim: int | None = None

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        if self.dim is None:
            return None if value.numel() else "have at least one element"
        if not -value.dim() <= self.dim < value.dim() or value.shape[self.dim]:
            return None
        return f"have {self.doc()}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "empty", value.flatten()[:0] if self.dim is None else value.narrow(self.dim, 0, 0)

    def doc(self) -> str:
        if self.dim is None:
            return "at least one element"
        return f"at least one element along {'the last dimension' if self.dim == -1 else f'dimension {self.dim}'}"


@dataclass(frozen=True)
class adjacent(Rule):
    """A tensor whose elements are adjacent in memory along the last dimension."""

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if not value.dim() or value.stride(-1) == 1 else "have a stride of 1 in its last dimension"

    def got(self, value: Any) -> str:
        return f"strides {tuple(value.stride())}"

    def doc(self) -> str:
        return "elements of the last dimension are adjacent"


@dataclass(frozen=True)
class distinct(Rule):
    """A tensor in which no two elements share memory, so that it can be written to."""

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return "have elements that share no memory" if torch._debug_has_internal_overlap(value) == 1 else None

    def got(self, value: Any) -> str:
        return f"shape {tuple(value.shape)} and strides {tuple(value.stride())}"

    def doc(self) -> str:
        return "elements share no memory"


@dataclass(frozen=True)
class up_to_size(Rule):
    """An int from 1 to `size - less`, where `size` is the size of another argument in dimension `dim`."""

    of: str
    dim: int = -1
    less: int = 0

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if not isinstance(other, Tensor) or not -other.dim() <= self.dim < other.dim():
            return None
        most = other.shape[self.dim] - self.less
        return None if 1 <= value <= most else f"be between 1 and {most}, as {{{self.of}}} is {tuple(other.shape)}"

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "too small", 0
        yield "too large", 2**40

    def doc(self) -> str:
        which = "the last dimension" if self.dim == -1 else f"dimension {self.dim}"
        return f"from 1 to {f'{self.less} less than ' if self.less else ''}the size of {which} of {self.of}"


@dataclass(frozen=True)
class numel(Rule):
    """A tensor of any shape whose number of elements is a constant or is computed: `numel(lambda b: b + 1)`."""

    of: int | Callable[..., int]
    text: str = ""  # shown in the documentation
    least: bool = False  # whether more elements are accepted

    def __post_init__(self) -> None:
        object.__setattr__(self, "late", not isinstance(self.of, int))

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        names = () if isinstance(self.of, int) else parameters(self.of)
        if any(given.get(n) is None for n in names):
            return None
        expected = self.of if isinstance(self.of, int) else self.of(*(given[n] for n in names))
        if value.numel() == expected or (self.least and value.numel() > expected):
            return None
        least, plural = "at least " if self.least else "", "s"[: expected != 1]
        return f"have {least}{expected} element{plural}{because(names, given)}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        if not self.least:
            yield "one more", value.new_zeros(value.numel() + 1)
        elif isinstance(self.of, int):
            yield "too short", value.flatten()[: self.of - 1]

    def doc(self) -> str:
        count = self.text or (str(self.of) if isinstance(self.of, int) else "")
        return f"{'at least ' if self.least else ''}{count} elements" if count else ""


@dataclass(frozen=True)
class same_len(Rule):
    """A list with as many items as another list."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if not isinstance(other, (list, tuple)) or len(other) == len(value):
            return None
        return f"have {len(other)} items, as {{{self.of}}} has"

    def got(self, value: Any) -> str:
        return str(len(value))

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "longer", [*value, *value[:1]]

    def doc(self) -> str:
        return f"as many as {self.of}"
