"""Which overloads `mode="auto"` takes: those measured to be at least as fast as torch's own kernel on this chip.

`opmux tune --aten` measures; a vendor's arch folder ships its results (`aten_speed.json`), and those in the user's
cache come first. A decision depends on dtype and size: a small call is bound by the host, where torch is faster. The
C++ gate applies sizes. Without the gate, each call of an overridden op costs a call of Python: then an op is taken only
if it gains on each of the shipped traces of models (`model_traces.json`).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...core.default import get_default_manager
from ...core.spec import specs
from ...core.tensors import dtype_name
from ...cpp import library as native_library
from ...machine import vendors
from ...machine.devices import Chip
from ...tuning.speed_files import SpeedFiles, chip_of
from . import above, gate, native
from .overloads import Overload, functional, table
from .schema import siblings

TRACES = Path(__file__).with_name("model_traces.json")
NEVER = -1  # as a size: no call is ours

DTYPES = tuple(sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str))
SAME_SPEED = {torch.float16: torch.bfloat16}  # dtypes with the same kernels and traffic are measured once
# A call hides its time on the host if torch's own kernel takes so many times as long on the device.
HIDDEN = 2.0
NOISE = 1.01  # between two measurements of the same kernel
# A Python function behind torch's dispatcher, in a step of a model: 4 us where it is called in a loop, but 43 us more
# than torch's kernel in a backward, once in a step of a BERT, on the host of an H200.
PYTHON_US = 40.0
CLEAR_US = 5.0  # gained on the host in a loop, through Python: calls that come often in a step gain it there too
COMPOSITIONS = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
# Of a functional op from its `out=` form, which must have a kernel (structured ops), or from other ops (`view_copy`).
FROM_OTHERS = "CompositeExplicitAutogradNonFunctional"

# Ops that read few places of a first tensor of any size: one token of a vocabulary.
LOOKUPS = frozenset({"embedding", "index_select", "index", "gather", "take"})

# Overloads whose override, or that of an op which calls them, is entered through Python.
NEEDS_PYTHON = {*native.DELEGATES, *native.DELEGATES.values()}


class Times(NamedTuple):
    """Microseconds on the device for a first tensor of this size."""

    numel: int
    native: float
    ours: float


@dataclass(frozen=True)
class Speed:
    """What was measured of an overload: on the host (torch's time, ours), and on the device by dtype and size."""

    host: tuple[float, float]
    times: Mapping[torch.dtype, tuple[Times, ...]]

    def of(self, dtype: torch.dtype) -> tuple[Times, ...]:
        return self.times.get(dtype) or self.times.get(SAME_SPEED.get(dtype, dtype), ())

    def at(self, dtype: torch.dtype, numel: int) -> Times | None:
        """The times at a size: between two measured ones by the logarithm; beyond the largest in proportion."""
        known = self.of(dtype)
        if not known:
            return None
        i = bisect_left(known, numel, key=lambda t: t.numel)
        if i == 0:
            return Times(numel, known[0].native, known[0].ours)
        if i == len(known):
            scale = numel / known[-1].numel
            return Times(numel, known[-1].native * scale, known[-1].ours * scale)
        a, b = known[i - 1], known[i]
        share = math.log(numel / a.numel) / math.log(b.numel / a.numel)
        between = lambda x, y: x * (y / x) ** share
        return Times(numel, between(a.native, b.native), between(a.ours, b.ours))

    def through_python(self, measured: bool = False) -> Speed:
        """The same for calls that go to Python in a step of a model; `measured`: they did when they were measured."""
        torchs, ours = self.host
        if measured and torchs - ours >= CLEAR_US:
            return self
        return Speed((torchs, max(ours, torchs + PYTHON_US)), self.times)

    def smallest(self, dtype: torch.dtype) -> int:
        """The smallest size from which ours is at least as fast, the host's time included; NEVER if there is none."""
        known = self.of(dtype)
        wins = 0
        while wins < len(known) and known[-1 - wins].ours <= NOISE * known[-1 - wins].native:
            wins += 1
        if not wins:
            return NEVER
        if any(b.numel <= a.numel for a, b in itertools.pairwise(known)):  # the first tensor does not tell the size
            hidden = self.host[1] <= self.host[0] or known[0].native >= HIDDEN * self.host[1]
            return 0 if wins == len(known) and hidden else NEVER
        first = 0 if wins == len(known) else known[-wins].numel
        if self.host[1] <= self.host[0]:  # small calls may be ours too
            return first
        return max(first, self._hides(dtype, HIDDEN * self.host[1]))

    def _hides(self, dtype: torch.dtype, us: float) -> int:
        """The size at which torch's own kernel takes so long."""
        known = self.of(dtype)
        for a, b in itertools.pairwise(known):
            if a.native >= us:
                return a.numel
            if b.native >= us:
                share = math.log(us / a.native) / math.log(b.native / a.native)
                return math.ceil(a.numel * (b.numel / a.numel) ** share)
        return math.ceil(known[-1].numel * max(1.0, us / known[-1].native))

    def as_data(self) -> dict[str, Any]:
        times = {dtype_name(d): [[t.numel, t.native, t.ours] for t in rows] for d, rows in self.times.items()}
        return {"host": list(self.host), **times}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Speed:
        times = {getattr(torch, n): tuple(Times(*t) for t in rows) for n, rows in data.items() if n != "host"}
        return cls((data["host"][0], data["host"][1]), times)


@dataclass(frozen=True)
class Decision:
    """For which calls auto mode takes an overload, and why: by dtype, the smallest size of the first tensor.

    A dtype that is not listed is torch's.
    """

    why: str
    limits: Mapping[torch.dtype, int] = field(default_factory=dict)
    by_size: bool = False  # whether the limits hold only where the C++ gate applies them
    by_python: Mapping[torch.dtype, int] | None = None  # of calls that the gate cannot launch; None: as the others

    @property
    def taken(self) -> bool:
        return any(n != NEVER for n in self.limits.values())

    def takes(self, first: Any) -> bool:
        """Whether a call with this first tensor is ours."""
        if not isinstance(first, torch.Tensor):
            return self.taken
        return _reaches(first, self.limits)

    def waits(self, first: Any) -> bool:
        """Whether such a call is ours only where the C++ gate launches it; until then it is torch's."""
        if self.by_python is None or not isinstance(first, torch.Tensor):
            return False
        return self.takes(first) and not _reaches(first, self.by_python)


def _reaches(first: torch.Tensor, limits: Mapping[torch.dtype, int]) -> bool:
    limit = limits.get(first.dtype, NEVER)
    return limit != NEVER and first.numel() >= limit


ALWAYS = dict.fromkeys(DTYPES, 0)


def thresholds(name: str, device: str) -> tuple[Mapping[torch.dtype, int], Mapping[torch.dtype, int], bool]:
    """For the C++ gate: by dtype, the smallest size of the first tensor from which a call is ours; -1: never.

    Of calls that are launched from C++, and of those that go to Python. A dtype that is not listed is torch's. Last,
    whether Python may run only calls that come often: false where torch has no kernel, or a vendor provides one.
    """
    found = _known.get((name, device))
    if found is not None:
        return found
    found = decide(table()[name], device)
    by_python = found.limits if found.by_python is None else found.by_python
    return found.limits, by_python, found.limits is not ALWAYS


_known: dict[tuple[str, str], tuple[Mapping[torch.dtype, int], Mapping[torch.dtype, int], bool]] = {}


def know(
    name: str, device: str, limits: Mapping[torch.dtype, int], by_python: Mapping[torch.dtype, int], patient: bool
) -> None:
    """Take these thresholds for an overload, as an earlier process has decided, until `forget`."""
    _known[name, device] = limits, by_python, patient


def decide(overload: Overload, device: str, by_gate: bool | None = None) -> Decision:
    """Whether auto mode takes an overload on a device type; pass `gated()` as `by_gate` to decide many overloads."""
    return _decide(overload, device, vendors.generation(), gated() if by_gate is None else by_gate)


def gated() -> bool:
    """Whether the C++ gate is loaded, or may be, as there is a compiler: then the size of a call decides, in C++.

    To look for the compiler and read settings files takes 0.2 ms.
    """
    return native_library.possible()


@functools.cache
def _decide(overload: Overload, device: str, generation: int, gated: bool) -> Decision:
    key = native.key_of(device)
    if device in overload.rows:
        return Decision("its vendor provides a function for it", ALWAYS)
    if not has_kernel(overload, key):
        return Decision("torch has no kernel for it on this device", ALWAYS)
    if overload.shape.packet.startswith("_foreach_"):
        return Decision("the host's time depends on how long its lists are, and is not known for lists of models")
    chip = chip_of(device)
    speed = _speed(overload, chip)
    if speed is None:
        return Decision(f"it is not measured on {chip}: opmux tune --aten does that")
    by_size = gated and not above.composed_on(overload.shape, key) and overload.name not in NEEDS_PYTHON
    from_cpp = by_size and gate.may_launch(device, overload.shape, overload.family)
    slower = speed.through_python(measured=not from_cpp)
    limits = {d: (speed if from_cpp else slower).smallest(d) for d in DTYPES if speed.of(d)}
    tells = any("Tensor" in str(a.type) for a in overload.shape.arguments) and overload.shape.packet not in LOOKUPS
    if not tells:  # the first tensor, of the size of a call
        limits = {d: 0 if n == 0 else NEVER for d, n in limits.items()}
    if all(n == NEVER for n in limits.values()):
        if any(Speed((0.0, 0.0), speed.times).smallest(d) != NEVER for d in limits):
            return Decision(f"on {chip} its time on the host is longer than torch's, and is not hidden")
        return Decision(f"it is not faster on {chip}: {_worst(speed)}")
    if by_size:
        why = f"it is at least as fast on {chip}: {_from(limits)}"
        by_python = {d: NEVER if n == NEVER else slower.smallest(d) for d, n in limits.items()} if from_cpp else None
        return Decision(why, limits, by_size, by_python)
    lost, gained = gains(overload.name, speed)
    if lost:
        return Decision(f"without the C++ gate each call goes through Python, and that is slower for {lost}")
    if not gained:
        return Decision("without the C++ gate each call goes through Python, and no shipped trace shows a gain")
    return Decision(f"it gains {gained:.0f} us on the shipped traces of models", ALWAYS)


def _speed(overload: Overload, chip: Chip) -> Speed | None:
    """What was measured of an overload, or of the one that stands for it."""
    known = measured(chip)
    if overload.name in known:
        return known[overload.name]
    plain = standing_in(overload)
    found = None if plain is None else known.get(plain.name)
    # the gate launches functional and in-place forms alone
    return found.through_python() if found is not None and overload.shape.kind == "out" else found


def standing_in(overload: Overload) -> Overload | None:
    """The functional overload by whose measurement an in-place or `out=` one goes that has none of its own.

    None where torch composes the functional one of a copy and the in-place one, which takes longer than that; and where
    ours computes a new tensor and then copies it, which takes longer than the functional one.
    """
    plain = functional(overload)
    if plain is None or any(plain.shape.has(k) for k in COMPOSITIONS) or _copies(overload):
        return None
    return plain


def _copies(overload: Overload) -> bool:
    """Whether our impls of an in-place or `out=` form make a tensor of their own first."""
    specs.load_implementers(overload.family)
    impls = [i for base in overload.bases for i in get_default_manager().registry.impls(base)]
    return overload.adapter is not None or not any(i.into for i in impls)


def has_kernel(overload: Overload, key: str) -> bool:
    """Whether torch has a kernel or a composition for a dispatch key, and does not raise or copy to the CPU."""
    shape, found = overload.shape, (key, *COMPOSITIONS)
    if not native.exists(shape, key):
        return False
    if any(shape.has(k) for k in found):
        return True
    outs = [s for s in siblings(shape) if s.kind == "out"]
    return shape.has(FROM_OTHERS) and all(any(s.has(k) for k in found) for s in outs)


def _worst(speed: Speed) -> str:
    dtype, t = max(((d, rows[-1]) for d, rows in speed.times.items() if rows), key=lambda x: x[1].ours / x[1].native)
    return f"{t.ours:.1f} us, torch's {t.native:.1f} us, for {t.numel} elements of {dtype_name(dtype)}"


def _from(limits: Mapping[torch.dtype, int]) -> str:
    words = [f"{dtype_name(d)} from {n} elements" for d, n in limits.items() if n != NEVER]
    return ", ".join(words)


def gains(name: str, speed: Speed) -> tuple[str, float]:
    """A trace on which an overload loses, or "", and the gain in microseconds on all of them; through Python."""
    host, total = speed.host[0], 0.0
    python = max(speed.host[1], host + PYTHON_US)
    for model, calls in traces().items():
        gained = 0.0
        for dtype, numel, count in calls.get(name, ()):
            t = speed.at(getattr(torch, dtype), numel)
            gained += count * (host - python if t is None else max(host, t.native) - max(python, t.ours))
        if gained < 0:
            return model, gained
        total += gained
    return "", total


@functools.cache
def traces() -> dict[str, dict[str, list[tuple[str, int, int]]]]:
    """For each shipped model: overload -> [dtype, size of the first tensor, calls in a step]."""
    return json.loads(TRACES.read_text(encoding="utf-8")) if TRACES.is_file() else {}


vendors.on_change(_known.clear)


# ---- measurements ---------------------------------------------------------------------------------------------------

FILES = SpeedFiles("aten-", Speed.of_data, Speed.as_data, "aten_speed.json")
measured = functools.cache(FILES.measured)


def store(chip: Chip, speeds: Mapping[str, Speed], more: Mapping[str, Any]) -> Path | None:
    """Add to the user's file what was measured; None if there is no place for it."""
    file = FILES.store(chip, speeds, more)
    forget()
    return file


def forget() -> None:
    """Read the files again on next use."""
    _known.clear()
    for cached in (_decide, measured, traces):
        cached.cache_clear()
    gate.forget()
