"""Which overloads `mode="auto"` enables: those measured to be at least as fast as torch's own kernel on this chip.

`opmux tune --aten` measures the times. Times of some chips are shipped in their vendor's arch folder
(`aten_speed.json`); times in the user's cache override them. A decision depends on dtype and size: host time dominates
small calls, and torch's host time is shorter than ours. The C++ gate applies the size limits. Without the gate, each
call of an overridden op goes through Python. Auto mode then enables an op only if our kernel saves time on the shipped
model traces (`model_traces.json`) and is slower on none of them.
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
NEVER = -1  # a size limit that means: no call runs our kernel

DTYPES = tuple(sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str))
SAME_SPEED = {torch.float16: torch.bfloat16}  # dtype -> the dtype whose times apply: same kernels and traffic
# The device hides our host time if torch's own kernel takes at least this many times our host time.
HIDDEN = 2.0
NOISE = 1.01  # two measurements of the same kernel may differ by this factor
# Extra host time of a Python override in a model's step. Measured on the host of an H200: 4 us in a loop, but 43 us in
# the backward of BERT, which calls the override once per step.
PYTHON_US = 40.0
CLEAR_US = 5.0  # a Python override that saves this much host time in a loop also saves time in a model's step
COMPOSITIONS = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
# The dispatch key of functional ops that torch composes: structured ops from their `out=` form, which needs a kernel;
# the others (`view_copy`) from other ops.
FROM_OTHERS = "CompositeExplicitAutogradNonFunctional"

# Ops that read few elements of the first tensor, whatever its size: embedding reads one row for each token.
LOOKUPS = frozenset({"embedding", "index_select", "index", "gather", "take"})

# Overloads that are always entered through Python: the delegating ops and the ops they call.
NEEDS_PYTHON = {*native.DELEGATES, *native.DELEGATES.values()}


class Times(NamedTuple):
    """Times of one call on the device, in microseconds, for a first tensor of `numel` elements."""

    numel: int
    native: float
    ours: float


@dataclass(frozen=True)
class Speed:
    """Measured times of an overload: on the host (torch's, ours), and on the device for each dtype and size."""

    host: tuple[float, float]
    times: Mapping[torch.dtype, tuple[Times, ...]]

    def of(self, dtype: torch.dtype) -> tuple[Times, ...]:
        return self.times.get(dtype) or self.times.get(SAME_SPEED.get(dtype, dtype), ())

    def at(self, dtype: torch.dtype, numel: int) -> Times | None:
        """The times at a size: log-interpolated between measured sizes, proportional to the size above the largest."""
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
        """The times of Python calls in a model's step; `measured`: the times in `self` were measured through Python."""
        torchs, ours = self.host
        if measured and torchs - ours >= CLEAR_US:
            return self
        return Speed((torchs, max(ours, torchs + PYTHON_US)), self.times)

    def smallest(self, dtype: torch.dtype) -> int:
        """The smallest size at which our kernel, host time included, is as fast as torch's; NEVER if none."""
        known = self.of(dtype)
        wins = 0
        while wins < len(known) and known[-1 - wins].ours <= NOISE * known[-1 - wins].native:
            wins += 1
        if not wins:
            return NEVER
        if any(b.numel <= a.numel for a, b in itertools.pairwise(known)):  # size does not measure the work
            hidden = self.host[1] <= self.host[0] or known[0].native >= HIDDEN * self.host[1]
            return 0 if wins == len(known) and hidden else NEVER
        first = 0 if wins == len(known) else known[-wins].numel
        if self.host[1] <= self.host[0]:  # our host time does not exceed torch's: no need to hide it
            return first
        return max(first, self._hides(dtype, HIDDEN * self.host[1]))

    def _hides(self, dtype: torch.dtype, us: float) -> int:
        """The size at which torch's own kernel takes `us` microseconds."""
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
    """For which calls auto mode runs our kernel, and why.

    `limits` maps a dtype to the smallest size of the first tensor. Calls of other dtypes run torch's kernel.
    """

    why: str
    limits: Mapping[torch.dtype, int] = field(default_factory=dict)
    by_size: bool = False  # whether only the C++ gate can apply the limits
    by_python: Mapping[torch.dtype, int] | None = None  # limits of calls that C++ cannot launch; None: same as `limits`

    @property
    def taken(self) -> bool:
        return any(n != NEVER for n in self.limits.values())

    def takes(self, first: Any) -> bool:
        """Whether a call with this first tensor runs our kernel."""
        if not isinstance(first, torch.Tensor):
            return self.taken
        return _reaches(first, self.limits)

    def waits(self, first: Any) -> bool:
        """Whether a call runs our kernel only from the C++ gate; until the gate can launch it, torch's kernel runs."""
        if self.by_python is None or not isinstance(first, torch.Tensor):
            return False
        return self.takes(first) and not _reaches(first, self.by_python)


def _reaches(first: torch.Tensor, limits: Mapping[torch.dtype, int]) -> bool:
    limit = limits.get(first.dtype, NEVER)
    return limit != NEVER and first.numel() >= limit


ALWAYS = dict.fromkeys(DTYPES, 0)


def thresholds(name: str, device: str) -> tuple[Mapping[torch.dtype, int], Mapping[torch.dtype, int], bool]:
    """The limits for the C++ gate: dtype -> smallest size of the first tensor for which our kernel runs (-1: never).

    Returns the limits of calls that C++ launches, the limits of calls that go to Python, and whether Python runs only
    frequent calls (false if our kernel or a vendor's must run every call). Calls of a dtype without a limit run torch's
    kernel.
    """
    decision = _known.get((name, device))
    if decision is not None:
        return decision
    decision = decide(table()[name], device)
    by_python = decision.limits if decision.by_python is None else decision.by_python
    return decision.limits, by_python, decision.limits is not ALWAYS


def thresholds_while_counted(
    name: str, device: str
) -> tuple[Mapping[torch.dtype, int], Mapping[torch.dtype, int], bool]:
    """The `thresholds` while calls are counted: calls that C++ otherwise launches go to Python, which counts them."""
    limits, _, _ = thresholds(name, device)
    return limits, limits, False


_known: dict[tuple[str, str], tuple[Mapping[torch.dtype, int], Mapping[torch.dtype, int], bool]] = {}


def know(
    name: str, device: str, limits: Mapping[torch.dtype, int], by_python: Mapping[torch.dtype, int], patient: bool
) -> None:
    """Use thresholds that an earlier process has computed for an overload, until `forget`."""
    _known[name, device] = limits, by_python, patient


def decide(overload: Overload, device: str, by_gate: bool | None = None) -> Decision:
    """How auto mode uses an overload on a device type. To decide many overloads, pass `gated()` as `by_gate`."""
    return _decide(overload, device, vendors.generation(), gated() if by_gate is None else by_gate)


def gated() -> bool:
    """Whether the C++ gate, which checks sizes, can be used (loaded or compiled); if not, decisions ignore sizes.

    Takes 0.2 ms, to find the compiler and read the settings files.
    """
    return native_library.possible()


@functools.cache
def _decide(overload: Overload, device: str, generation: int, gated: bool) -> Decision:
    if device not in overload.rows and not has_kernel(overload, native.key_of(device)):
        return Decision("torch has no kernel for it on this device", ALWAYS)
    return by_times(overload, device, gated)


def by_times(overload: Overload, device: str, gated: bool) -> Decision:
    """Decide by the chip's measured times how auto mode uses an overload that torch can also run on this device."""
    if device in overload.rows:
        return Decision("its vendor provides a function for it", ALWAYS)
    if overload.shape.packet.startswith("_foreach_"):
        return Decision("the host's time depends on how long its lists are, and is not known for lists of models")
    chip = chip_of(device)
    speed = _speed(overload, chip)
    if speed is None:
        return Decision(f"it is not measured on {chip}: opmux tune --aten does that")
    by_size = (
        gated and not above.composed_on(overload.shape, native.key_of(device)) and overload.name not in NEEDS_PYTHON
    )
    from_cpp = by_size and gate.may_launch(device, overload.shape, overload.family)
    slower = speed.through_python(measured=not from_cpp)
    limits = {d: (speed if from_cpp else slower).smallest(d) for d in DTYPES if speed.of(d)}
    tells = any("Tensor" in str(a.type) for a in overload.shape.arguments) and overload.shape.packet not in LOOKUPS
    if not tells:  # the first tensor's size does not say how large the call is
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
    """The measured times of an overload, or of the functional overload that `standing_in` returns for it."""
    known = measured(chip)
    if overload.name in known:
        return known[overload.name]
    plain = standing_in(overload)
    speed = None if plain is None else known.get(plain.name)
    # the gate launches only functional and in-place forms; `out=` forms go through Python
    return speed.through_python() if speed is not None and overload.shape.kind == "out" else speed


def standing_in(overload: Overload) -> Overload | None:
    """The functional overload whose measured times are used for an in-place or `out=` form that was not measured.

    None if the times would differ, because torch composes the functional form from a copy and the in-place form, or
    because our in-place or `out=` form computes a new tensor and then copies it.
    """
    plain = functional(overload)
    if plain is None or any(plain.shape.has(k) for k in COMPOSITIONS) or _copies(overload):
        return None
    return plain


def _copies(overload: Overload) -> bool:
    """Whether all our impls of an in-place or `out=` form compute a new tensor and copy it."""
    specs.load_implementers(overload.family)
    impls = [i for base in overload.bases for i in get_default_manager().registry.impls(base)]
    return overload.adapter is not None or not any(i.into for i in impls)


def has_kernel(overload: Overload, key: str) -> bool:
    """Whether torch has a kernel or composition for a dispatch key, and it neither raises nor copies to the CPU."""
    shape, keys = overload.shape, (key, *COMPOSITIONS)
    if not native.exists(shape, key):
        return False
    if any(shape.has(k) for k in keys):
        return True
    outs = [s for s in siblings(shape) if s.kind == "out"]
    return shape.has(FROM_OTHERS) and all(any(s.has(k) for k in keys) for s in outs)


def _worst(speed: Speed) -> str:
    dtype, t = max(((d, rows[-1]) for d, rows in speed.times.items() if rows), key=lambda x: x[1].ours / x[1].native)
    return f"{t.ours:.1f} us, torch's {t.native:.1f} us, for {t.numel} elements of {dtype_name(dtype)}"


def _from(limits: Mapping[torch.dtype, int]) -> str:
    ranges = [f"{dtype_name(d)} from {n} elements" for d, n in limits.items() if n != NEVER]
    return ", ".join(ranges)


def gains(name: str, speed: Speed) -> tuple[str, float]:
    """The saving in microseconds if this overload is called through Python: ("", the saving on all traces).

    If one trace becomes slower: (that trace, its negative saving).
    """
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
    """For each shipped model: overload -> list of [dtype, size of the first tensor, calls per step]."""
    return json.loads(TRACES.read_text(encoding="utf-8")) if TRACES.is_file() else {}


vendors.on_change(_known.clear)


# ---- measurements ---------------------------------------------------------------------------------------------------

FILES = SpeedFiles("aten-", Speed.of_data, Speed.as_data, "aten_speed.json")
measured = functools.cache(FILES.measured)


def store(chip: Chip, speeds: Mapping[str, Speed], more: Mapping[str, Any]) -> Path | None:
    """Add measured times to the user's file; returns None if no file can be written."""
    file = FILES.store(chip, speeds, more)
    forget()
    return file


def forget() -> None:
    """Forget the measurements; the next use reads the files again."""
    _known.clear()
    for cached in (_decide, measured, traces):
        cached.cache_clear()
    gate.forget()
