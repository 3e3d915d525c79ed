"""Symbolic shapes: `*rows n`, `2*n`, `topk*tokens`. The notation is explained in `contract`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import BadSpec


class Dim(NamedTuple):
    """One word of a shape."""

    name: str  # "" means any size
    star: bool = False  # any number of dimensions
    broadcast: bool = False  # size 1 matches too
    factor: int | str = 1  # a multiplier, or the name of an int argument that is the multiplier
    size: int | None = None  # a constant size
    plus: int = 0  # added to the size

    @classmethod
    def of(cls, word: str) -> Dim:
        if word == "...":
            return cls("", star=True)
        if word == "_":
            return cls("")
        if word.isdecimal():
            return cls(word, size=int(word))
        rest, _, plus = word.partition("+")
        factor, _, rest = rest.rpartition("*") if "*" in rest[1:] else ("", "", rest)
        star, rest = rest.startswith("*"), rest.removeprefix("*")
        broadcast, name = rest.startswith("#"), rest.removeprefix("#")
        right = name.isidentifier() and (not factor or factor.isdecimal() or factor.isidentifier())
        if not right or ("+" in word and not plus.isdecimal()):
            raise BadSpec(f"'{word}' is not a dimension: expected n, *n, #n, 2*n, k*n, n+1, 3, _ or ...")
        return cls(name, star, broadcast, factor if factor.isidentifier() else int(factor or 1), plus=int(plus or 0))

    def times(self, sizes: Mapping[str, Size]) -> int | None:
        """The factor as a number; None if it is unknown."""
        if isinstance(self.factor, int):
            return self.factor
        known = sizes.get(self.factor)
        return None if known is None else known.value

    def __str__(self) -> str:
        if not self.name:
            return ".." if self.star else "_"
        before = "*" if self.star else f"{self.factor}*" if self.factor != 1 else ""
        return f"{before}{self.name}" + (f"+{self.plus}" if self.plus else "")


class Size(NamedTuple):
    """A size, and the name of the argument that it comes from."""

    value: Any  # an int; for *name, a tuple of ints
    of: str


@dataclass(frozen=True)
class Dims:
    """The shape of a tensor, in terms of size names that the arguments of an op share."""

    words: tuple[Dim, ...]
    star: int | None  # the index of the word that stands for any number of dimensions
    fixed: int  # the number of other words

    @classmethod
    @functools.cache
    def of(cls, text: str) -> Dims:
        words = tuple(Dim.of(word) for word in text.split())
        stars = [i for i, w in enumerate(words) if w.star]
        if len(stars) > 1:
            raise BadSpec(f"shape '{text}': only one name can stand for any number of dimensions")
        return cls(words, stars[0] if stars else None, len(words) - len(stars))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.words))}]"

    def match(self, shape: tuple[Any, ...], sizes: dict[str, Size], name: str) -> bool:
        """Whether the shape of argument `name` matches. Sizes that were unknown are added to `sizes`."""
        star, spare = self.star, len(shape) - self.fixed
        if spare and (star is None or spare < 0):
            return False
        parts: Any = (
            shape if star is None else [*shape[:star], tuple(shape[star : star + spare]), *shape[star + spare :]]
        )
        return all(self._fits(word, part, sizes, name) for word, part in zip(self.words, parts, strict=True))

    @staticmethod
    def _fits(word: Dim, part: Any, sizes: dict[str, Size], name: str) -> bool:
        if word.size is not None:
            return part == word.size
        if not word.name:
            return True
        known, times = sizes.get(word.name), word.times(sizes)
        if times is None:
            return True
        if word.plus:
            part -= word.plus
            if part < 0:
                return False
        if known is None:
            if not word.star and times != 1:
                if not times or part % times:
                    return False
                part //= times
            if not (word.broadcast and part == 1):
                sizes[word.name] = Size(part, name)
            return True
        if word.star:
            if not word.broadcast:
                return part == known.value
            tail = known.value[len(known.value) - len(part) :]
            return len(part) <= len(known.value) and all(p in (1, k) for p, k in zip(part, tail, strict=True))
        return part == known.value * times or (word.broadcast and part == 1)

    def wanted(self, sizes: Mapping[str, Size]) -> tuple[Any, ...] | None:
        """The shape in numbers, or None if a size is unknown."""
        shape: list[Any] = []
        for word in self.words:
            known, times = sizes.get(word.name), word.times(sizes)
            if word.size is not None:
                shape.append(word.size)
            elif known is None or times is None:
                return None
            else:
                shape += known.value if word.star else [known.value * times + word.plus]
        return tuple(shape)

    def partly(self, sizes: Mapping[str, Size]) -> str:
        """The shape, with known sizes as numbers and unknown sizes as names."""
        named = lambda word: word._replace(factor=word.times(sizes) or word.factor)
        parts = [Dims((word,), None, 1).wanted(sizes) or (named(word),) for word in self.words]
        return f"({', '.join(str(size) for part in parts for size in part)})"
