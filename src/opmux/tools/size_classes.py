"""Size classes: for a range of sizes, the launches of a call as formulas of the size.

If batch lengths change, every call has a new key. But calls that differ only in one size, such as the length, launch
the same kernels. Only sizes, strides, grids and scalar arguments change, and they are functions of that size v:
768 * v elements, ceil(3 * v / 4) programs. A size class holds these formulas; C++ computes the launch record of a new
key from them (planner.h).

The sizes of a class lie between two consecutive powers of two and have the same largest power-of-two divisor (2^13 at
most). Both affect which kernel is launched: a block is a power of two, the mask is omitted if the block divides the
size, and Triton specialises on divisibility by 16. `fit` derives the formulas from some planned calls, and then plans
every other size of the class. The class keeps only sizes for which the formulas give the planned launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

import torch
from torch import Tensor

MOST_TWOS = 13  # the largest block is 2^13, so a multiple of 2^13 is a multiple of every block
MOST_SIZES = 256  # at most this many sizes are in a class; planning a size takes 0.3 to 1 ms
MOST_CALLS = 40  # at most this many calls are planned to find the formulas
MOST_FORMULAS = 1000  # at most this many candidate formulas are compared for one word
LIMIT = 1 << 62  # all computed values stay below this

Words = list[int]
Plan = Callable[[int], Words | None]  # size -> the words of the call's launches; None: C++ cannot launch it


class Formula(NamedTuple):
    """The value times * ceil(factor * v^power / divisor) + plus of a size v."""

    power: int = 0
    factor: int = 0
    divisor: int = 1
    times: int = 1
    plus: int = 0

    def at(self, v: int) -> int:
        return self.times * -(-self.factor * v**self.power // self.divisor) + self.plus

    def fits(self, largest: int) -> bool:
        """Whether no value overflows 64 bits for sizes up to `largest`."""
        return self.times * (self.factor * largest**self.power + self.divisor) + abs(self.plus) < LIMIT


class SizeClass(NamedTuple):
    """Formulas for the sizes from `low` to `high` whose largest power-of-two divisor is 2^twos.

    If twos is MOST_TWOS, these are all multiples of 2^twos.
    """

    low: int
    high: int
    twos: int
    formulas: dict[int, Formula]  # position of a word -> its formula

    def sizes(self) -> range:
        step = 1 << self.twos
        return range(self.low, self.high + 1, step if self.twos == MOST_TWOS else 2 * step)


def class_of(v: int) -> SizeClass | None:
    """The class of a size, without formulas; None if the class would have no other size."""
    if not 2 <= v < LIMIT:
        return None
    twos = min((v & -v).bit_length() - 1, MOST_TWOS)
    step = 1 << twos if twos == MOST_TWOS else 2 << twos
    start, end = 1 << v.bit_length() - 1, (1 << v.bit_length()) - 1
    while (end - start) // step >= MOST_SIZES:
        middle = (start + end + 1) // 2
        start, end = (middle, end) if v >= middle else (start, middle - 1)
    low = v - (v - start) // step * step
    high = v + (end - v) // step * step
    return SizeClass(low, high, twos, {}) if low < high else None


def key_formulas(first: Sequence[int], second: Sequence[int], sizes: Iterable[int]) -> tuple[int, dict[int, Formula]]:
    """The position of the size in which two keys differ, and for each word that differs a formula of that size.

    Args:
        first, second: the words of two keys that are equal except for sizes and strides.
        sizes: the positions of words that are sizes.

    Raises ValueError if the keys differ in more than one size. A formula that fits two keys by chance is harmless: the
    class is used only for keys that equal its formulas in every word.
    """
    differ = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    for position in sizes:
        if position not in differ:
            continue
        v, w = first[position], second[position]
        formulas = {i: _through(v, w, first[i], second[i]) for i in differ}
        if all(formulas.values()):
            return position, {i: formula for i, formula in formulas.items() if formula is not None}
    raise ValueError("they differ in more than one size")


def _through(v: int, w: int, a: int, b: int) -> Formula | None:
    """A formula f with f(v) = a and f(w) = b; None if none is found."""
    for power in (1, 2):
        factor = a // v**power
        if factor and factor * v**power == a and factor * w**power == b:
            return Formula(power, factor)
    slope, rest = divmod(b - a, w - v)
    return None if rest or slope <= 0 else Formula(1, slope, plus=a - slope * v)


def fit(within: SizeClass, v: int, planned: Words, free: Set[int], plan: Plan) -> SizeClass | None:
    """The class around the size v, with formulas that give the planned words of each size; None if there is none.

    Args:
        within: the largest class that may be returned.
        v: the size of a call that was planned.
        planned: the words of that call's launches.
        free: the positions of words that may depend on the size; all other words must be equal in all calls.
        plan: plans the call with another size; None if C++ cannot launch it.
    """
    calls = _Calls(v, planned, free, plan)
    sizes = list(within.sizes())
    start = sizes.index(v)
    try:
        low, high = start - calls.reach(sizes[start::-1]), start + calls.reach(sizes[start:])
        formulas = calls.formulas(sizes[low : high + 1]) if low < high else {}
    except _NoClass:
        return None
    up = calls.agree(sizes[start : high + 1], formulas)
    down = calls.agree(sizes[low : start + 1][::-1], formulas)
    if up + down < 3:  # both counts include v
        return None
    return SizeClass(sizes[start - down + 1], sizes[start + up - 1], within.twos, formulas)


class _NoClass(Exception):
    """Raised if a call of the class launches other kernels, or if too many calls would have to be planned."""


class _Calls:
    """The planned calls of one class."""

    def __init__(self, v: int, words: Words, free: Set[int], plan: Plan):
        self.known, self._free, self._plan, self._left = {v: words}, free, plan, MOST_CALLS
        self._first, self._fixed = words, self._without_free(words)

    def _without_free(self, words: Words) -> Words:
        return [0 if i in self._free else word for i, word in enumerate(words)]

    def is_alike(self, v: int) -> bool:
        """Whether the launches of a call with this size differ only in words that may depend on the size."""
        if v in self.known:
            return True
        if not self._left:
            raise _NoClass
        self._left -= 1
        words = self._plan(v)
        if words is None or self._without_free(words) != self._fixed:
            return False
        self.known[v] = words
        return True

    def agree(self, sizes: list[int], formulas: dict[int, Formula]) -> int:
        """The number of sizes, counted from the first, for which the formulas give the planned words."""
        for count, v in enumerate(sizes):
            words = self.known.get(v) or self._plan(v)
            if words is None or self._without_free(words) != self._fixed:
                return count
            if any(words[i] != (formulas[i].at(v) if i in formulas else self._first[i]) for i in self._free):
                return count
        return len(sizes)

    def add(self, v: int) -> None:
        if not self.is_alike(v):
            raise _NoClass

    def reach(self, sizes: list[int]) -> int:
        """The index of a size up to which all calls have the first call's launches. Plans at most four calls.

        Kernels are chosen by thresholds, so if the calls at both ends launch the same kernels, all calls between them
        do.
        """
        last = len(sizes) - 1
        if self.is_alike(sizes[last]):
            return last
        good, bad = 0, last
        for _ in range(3):
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self.is_alike(sizes[middle]) else (good, middle)
        return good

    def formulas(self, sizes: list[int]) -> dict[int, Formula]:
        """A formula for each word that changes. While several formulas fit but disagree, more calls are planned."""
        at = torch.tensor(sizes)
        while True:
            agreed: dict[tuple[int, ...], Formula] = {}
            positions = {}
            differs = torch.zeros(len(sizes), dtype=torch.int64)
            for i in sorted(self._free):
                values = tuple(words[i] for words in self.known.values())
                if len(set(values)) == 1:
                    continue
                positions[i] = values
                if values not in agreed:
                    agreed[values], unsure = _agreed(list(zip(self.known, values, strict=True)), at)
                    differs += unsure
            planned = torch.tensor([size in self.known for size in sizes])
            if not (differs.bool() & ~planned).any():
                return {i: agreed[values] for i, values in positions.items()}
            self.add(sizes[int(torch.where(planned, -1, differs).argmax())])


def _agreed(points: list[tuple[int, int]], sizes: Tensor) -> tuple[Formula, Tensor]:
    """A formula through these points, and for each size whether other formulas that fit give another value."""
    formulas = formulas_of(points, int(sizes[-1]))
    if not formulas:
        raise _NoClass
    if len(formulas) > MOST_FORMULAS:
        return formulas[0], torch.ones(len(sizes), dtype=torch.int64)
    power, factor, divisor, times, plus = torch.tensor(formulas).T.unsqueeze(-1)
    values = times * ((factor * torch.where(power == 2, sizes * sizes, sizes) + divisor - 1) // divisor) + plus
    return formulas[0], (values != values[0]).any(0).long()


def formulas_of(points: list[tuple[int, int]], largest: int) -> list[Formula]:
    """The formulas that give these distinct values for these sizes; at most about MOST_FORMULAS of them."""
    values = [y for _, y in points]
    if max(values) >= LIMIT:
        return []
    formulas = [formula for formula in _linear(points) if formula.fits(largest)]
    if not all(values):
        return formulas
    shared = math.gcd(*values)
    for times in (t for t in range(1, min(shared, 4096) + 1) if shared % t == 0):
        for power in (1, 2):
            for divisor in (1 << k for k in range(1, MOST_TWOS + 1)):
                formulas += (f for f in _ceilings(points, power, divisor, times) if f.fits(largest))
                if len(formulas) > MOST_FORMULAS:
                    return formulas
    return formulas


def _linear(points: list[tuple[int, int]]) -> list[Formula]:
    (v, a), (w, b) = points[0], next(p for p in points if p[1] != points[0][1])
    formulas = []
    for power in (1, 2):
        slope, rest = divmod(b - a, w**power - v**power)
        formula = Formula(power, slope, plus=a - slope * v**power)
        if not rest and slope > 0 and all(formula.at(x) == y for x, y in points):
            formulas.append(formula)
    return formulas


def _ceilings(points: list[tuple[int, int]], power: int, divisor: int, times: int) -> list[Formula]:
    """Formulas with this divisor and odd factors, because a formula with an even factor has a smaller divisor too."""
    least = max(divisor * (y // times - 1) // v**power + 1 for v, y in points)
    most = min(divisor * (y // times) // v**power for v, y in points)
    first = max(least | 1, 1)
    most = min(most, first + 2 * MOST_FORMULAS)
    return [Formula(power, factor, divisor, times) for factor in range(first, most + 1, 2)]
