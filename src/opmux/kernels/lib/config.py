"""Tile sizes of kernels, and where they come from: a default for any chip, a vendor's heuristics, or tuning.

    @tunable("softmax.rows")
    def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
        return Tiles(threads=256, BLOCK_M=1, BLOCK_N=max(triton.next_power_of_2(n), 16))

    config = row_tiles(n=n, dtype=x.dtype).config(even=even, LOG=False, WIDE=tl.float32)

The decorated function is the safe default. Vendors use the name in `heuristics_config_utils.py` and
`tune_configs.yaml`, and `opmux tune` stores results under it. The function is called when a plan is made, not at every
call of the op. Its arguments (sizes, dtypes, flags) are the *facts* of the call.

Heuristics and tuning may replace some sizes, within two limits that kernels rely on. If the default chooses a tile size
to cover a fact (BLOCK_N holds a row of `n`), the replacement is not smaller than the fact. If the default tile size is
less than a fact, the replacement is not larger than the fact, because the kernel may load the block without a mask.
`@tunable(name, free="BLOCK_N")` exempts BLOCK_N from both limits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton

from ...core.loading import Declarations
from ...core.log import logger
from ...machine import devices
from ...machine.devices import Chip
from ...tuning import tile_files
from ...tuning import tiles as tuning
from ...tuning.tile_files import BadTiles
from .launch import Config, _compiling_only, warp_size
from .plans import keep

MOST_THREADS = 1024


@dataclass(frozen=True, init=False)
class Tiles:
    """Threads, pipeline stages, and constants that change a kernel's speed but not its result."""

    threads: int
    stages: int
    sizes: Mapping[str, Any]

    def __init__(self, threads: int = 128, stages: int = 2, **sizes: Any):
        object.__setattr__(self, "threads", threads)
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "sizes", sizes)

    def __getitem__(self, name: str) -> Any:
        return self.sizes[name]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.flat().items())

    def config(self, *, even: bool = False, **constants: Any) -> Config:
        """The compile options of the kernel: these sizes, and the constants that define what it computes."""
        return Config({**constants, **self.sizes}, self.threads, self.stages, even)

    def flat(self) -> dict[str, Any]:
        """Threads, stages and sizes in one dict."""
        return {"threads": self.threads, "stages": self.stages, **self.sizes}

    def changes(self, default: Tiles) -> dict[str, Any]:
        """The values that differ from the default. The tuning cache stores only these; the default gives the others."""
        usual = default.flat()
        return {name: value for name, value in self.flat().items() if value != usual[name]}

    def changed(self, sizes: Mapping[str, Any], where: str) -> Tiles:
        """These tiles with some values replaced. Accepts opmux's names or Triton's (num_warps, num_stages).

        Raises BadTiles with `where` (a file and a tunable), the value, and what is allowed.
        """
        new = self.flat()
        for name, value in sizes.items():
            ours = {"num_warps": "threads", "num_stages": "stages"}.get(name, name)
            if ours not in new:
                allowed = ", ".join(("num_warps", "num_stages", *self.sizes))
                raise BadTiles(f"{where}: {name} is not one of its sizes. Allowed: {allowed}")
            _check_value(name, value, new[ours], where)
            new[ours] = value * warp_size() if name == "num_warps" else value
        if new["threads"] > MOST_THREADS:
            raise BadTiles(f"{where}: {new['threads']} threads (warps of {warp_size()}). Allowed: up to {MOST_THREADS}")
        return Tiles(**new)


def _check_value(name: str, value: Any, default: Any, where: str) -> None:
    """Raise BadTiles for a value that a kernel cannot be compiled with."""
    if default is not None and type(value) is not type(default):
        allowed = f"{type(default).__name__}, as in the default ({default!r})"
    elif type(value) is not int:
        return
    elif (name in ("threads", "num_warps") or name.startswith("BLOCK")) and (value < 1 or value & (value - 1)):
        allowed = "a power of two"
    elif value < 1:
        allowed = "1 or more"
    else:
        return
    raise BadTiles(f"{where}: {name} = {value!r}. Allowed: {allowed}")


class Choice(NamedTuple):
    """The tiles for some facts, and where they come from."""

    tiles: Tiles
    source: str  # one of default, heuristics, cache, trying


class TunableCall(NamedTuple):
    """One call of a tunable, recorded by `asked`: its facts and its result."""

    tunable: Tunable
    key: str
    facts: dict[str, Any]
    choice: Choice


_MOST_KEPT = 4096  # the dict below is cleared when it has so many entries
_kept: dict[Any, Choice] = keep({})  # by tunable, chip and facts; without this cache, each choice takes 20 us
_trying: dict[str, Tiles] = {}  # key -> the tiles that the tuner is measuring
_listeners: list[list[TunableCall]] = []
_pretended: list[Chip | None] = []


class Tunable:
    """A function with a name that chooses tiles by the facts of a call (sizes, dtypes, flags)."""

    def __init__(self, name: str, default: Callable[..., Tiles], free: str = ""):
        self.name, self.default, self.free = name, default, frozenset(free.split())
        self.facts = tuple(inspect.signature(default).parameters)
        self.__doc__ = default.__doc__

    def __call__(self, /, **facts: Any) -> Tiles:
        return self.look(**facts).tiles

    def look(self, /, **facts: Any) -> Choice:
        """The tiles and their source: the tuner's trial, else the tuning cache, else heuristics, else the default."""
        if _listeners or _trying or _pretended:
            return self._look(facts)
        key = (self.name, this_chip(), *facts.items())
        if (kept := _kept.get(key)) is None:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[key] = kept = self._look(facts)
        return kept

    def _look(self, facts: dict[str, Any]) -> Choice:
        default = self.default(**facts)
        key = tuning.key(self.name, facts)
        tried = _trying.get(key)
        chip = this_chip() if tried is None else None
        choice = None if tried is None else Choice(tried, "trying")
        if chip is not None:
            choice = self._cached(chip, key, default, facts) or self._by_heuristics(chip, default, facts)
        choice = choice or Choice(default, "default")
        for heard in _listeners:
            heard.append(TunableCall(self, key, facts, choice))
        return choice

    def candidates(self, chip: Chip, /, **facts: Any) -> list[tuple[Tiles, str]]:
        """The vendor's candidates for tuning: tiles, and why they cannot be used for these facts ("" if they can)."""
        entry = tile_files.candidates(chip, self.name)
        if entry is None:
            return []
        default, where = self.default(**facts), f"{entry.file}: {self.name}"
        choices = [default.changed(given, where) for given in entry.given]
        return [(tiles, self._unfit(tiles, default, facts)) for tiles in choices]

    def _cached(self, chip: Chip, key: str, default: Tiles, facts: dict[str, Any]) -> Choice | None:
        """The tiles that the tuning cache has for `key`; None, with a warning, if the current code cannot use them."""
        entry = tuning.find(chip, key)
        if entry is None:
            return None
        try:
            tiles = default.changed(entry.tiles, key)
            unfit = self._unfit(tiles, default, facts)
        except BadTiles as error:
            tiles, unfit = default, str(error)
        if unfit:
            _say_once(f"ignoring tuned tiles: {key} in {tuning.path(chip)}: {unfit}")
            return None
        return Choice(tiles, "cache")

    def _by_heuristics(self, chip: Chip, default: Tiles, facts: dict[str, Any]) -> Choice | None:
        entry = tile_files.heuristics(chip, self.name)
        if entry is None:
            return None
        where = f"{entry.file}: {self.name}"
        warps = {"num_warps": max(1, default.threads // warp_size()), "num_stages": default.stages}
        args: dict[str, Any] = {"arch": chip.arch, **warps, **default.sizes, **facts}
        sizes = {}
        for name, rule in entry.given.items():
            try:
                value = rule(args) if callable(rule) else rule
            except Exception as error:  # a vendor's code may raise anything
                words = f"{type(error).__name__}: {error}"
                raise BadTiles(f"{where}: {name}: {words}. It was given {', '.join(args)}") from error
            if value is not None:
                sizes[name] = args[name] = value
        if not sizes:
            return None
        tiles = default.changed(sizes, where)
        unfit = self._unfit(tiles, default, facts)
        if unfit:
            raise BadTiles(f"{where}: {unfit}")
        return Choice(tiles, "heuristics")

    def _unfit(self, tiles: Tiles, default: Tiles, facts: dict[str, Any]) -> str:
        """Why these tiles may give wrong results for these facts; "" if they are safe."""
        lengths = {k: v for k, v in facts.items() if type(v) is int}
        for name, value in tiles.sizes.items():
            usual = default.sizes[name]
            for fact, n in lengths.items() if type(value) is int and name not in self.free else ():
                bound = "at most" if usual < n < value else ""
                if value < n <= usual and self._follows(name, fact, facts):
                    bound = "at least"
                if bound:
                    return f"{name} = {value} with {fact} = {n}. Allowed: {bound} {n}; the default is {usual}"
        return ""

    def _follows(self, size: str, fact: str, facts: dict[str, Any]) -> bool:
        """Whether the default chose this size to cover this fact.

        A size that covers the fact shrinks or grows with it; other sizes are larger than the fact by chance.
        """
        n = facts[fact]
        at = lambda length: self.default(**{**facts, fact: length}).sizes.get(size, 0)
        return at(max(1, n // 2)) < n or all(at(k * n) >= k * n for k in (2, 8, 64))


tunables: Declarations[Tunable] = Declarations()


def tunable(name: str, *, free: str = "") -> Callable[[Callable[..., Tiles]], Tunable]:
    """Declare a choice of tiles; the decorated function is its default for any chip.

    `free` names sizes that may be smaller or larger than any fact.
    """

    def declare(default: Callable[..., Tiles]) -> Tunable:
        choice = Tunable(name, default, free)
        if not tunables.declare(name, choice):
            raise ValueError(f"tunable {name!r} is declared twice")
        return choice

    return declare


# ---- which chip, and what the tuner does ----------------------------------------------------------------------------


def this_chip() -> Chip | None:
    """The chip that kernels are compiled for; None in the interpreter."""
    if _pretended:
        return _pretended[-1]
    if triton.knobs.runtime.interpret:
        return None
    if _compiling_only():
        return Chip.of_arch(triton.runtime.driver.active.get_current_device())
    return devices.current_chip()


@contextmanager
def as_on(chip: Chip | None) -> Iterator[None]:
    """Choose tiles as if on another chip; None: on an unknown chip."""
    _pretended.append(chip)
    try:
        yield
    finally:
        _pretended.pop()


@contextmanager
def trying(tiles: Mapping[str, Tiles]) -> Iterator[None]:
    """Use these tiles for the tunable calls with these keys, in this block.

    Plans keep the tiles that they were made with, so clear the plans before and after the block.
    """
    global _trying
    before, _trying = _trying, {**_trying, **tiles}
    try:
        yield
    finally:
        _trying = before


@contextmanager
def asked() -> Iterator[list[TunableCall]]:
    """Record each call of a tunable in this block, in order."""
    heard: list[TunableCall] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        # compare with `is`: another list may have the same content
        _listeners[:] = [one for one in _listeners if one is not heard]


_said: set[str] = set()


def _say_once(words: str) -> None:
    if words not in _said:
        _said.add(words)
        logger.warning(words)
