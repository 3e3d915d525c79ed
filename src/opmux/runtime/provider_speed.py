"""Chooses among the implementations of a compute-bound op by their measured times on this chip.

`opmux tune --providers` measures; a vendor's arch folder ships its results (`provider_speed.json`), and those in the
user's cache come first. A file has the time of each implementation for a class of calls (`speed_classes`). An
implementation's `when` is extended by `by_speed`: it refuses a call if another one that can run is faster by more than
`MARGIN`. For a class without measurements the order of candidates is as it would be without any.

A policy that tells implementations apart is obeyed: only those that it ranks alike are compared. Under a strict policy
nothing is: there a refusal is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core import machine
from ..core import policy as policies
from ..core.default import get_default_manager
from ..core.dispatch import refusal_of
from ..core.manager import OpManager
from ..core.policy import ORDERS, SelectionPolicy, choose, matches
from ..core.registry import BackendImplKind, OpImpl, When
from ..core.spec import specs
from .devices import Chip
from .speed_classes import CLASSES
from .speed_files import SpeedFiles, chip_of

MARGIN = 1.02  # a difference below this is noise, and the order stays
OURS = "default.flagos"
MOST = 4096  # classes that an implementation remembers its answer for

Times = dict[str, float]  # impl_id -> microseconds


def _times(data: Any) -> Times:
    if not isinstance(data, dict) or not all(isinstance(us, (int, float)) and us > 0 for us in data.values()):
        raise ValueError(f"expected the microseconds of each implementation, got {data!r}")
    return data


FILES = SpeedFiles("provider_speed.json", "providers-", _times, dict)


@functools.cache
def measured(chip: Chip) -> Mapping[str, Mapping[str, Times]]:
    """For each op that was measured on a chip: the label of a class -> the times."""
    found: dict[str, dict[str, Times]] = {}
    for label, times in FILES.measured(chip).items():
        found.setdefault(label.partition("[")[0], {})[label] = times
    return found


def store(chip: Chip, found: Mapping[str, Times], more: Mapping[str, Any]) -> Path | None:
    """Add measurements to the user's file; None if there is no place for it."""
    file = FILES.store(chip, found, more)
    forget()
    return file


def forget() -> None:
    """Read the files again on next use."""
    measured.cache_clear()
    get_default_manager().invalidate("the measured times have changed")


# ---- choosing -------------------------------------------------------------------------------------------------------


class Rival(NamedTuple):
    """An implementation for which another one is refused, if it takes the call."""

    reason: str
    when: When | None


class Answer(NamedTuple):
    """What `BySpeed` says for a class of calls under one policy: it refuses if one of the rivals takes the call."""

    policy: SelectionPolicy
    rivals: tuple[Rival, ...]


class BySpeed:
    """A `when`: that of an implementation, then its time against those of the others."""

    def __init__(self, key: str, impl_id: str, when: When | None):
        self.key, self.impl_id, self.own = key, impl_id, when
        self._decides = False  # whether a call may be refused
        self._class = CLASSES[key]
        self._of = self._class.of
        self._manager: OpManager | None = None
        self._epoch = -1
        self._on_cpu = False
        self._rows: Mapping[str, Times] = {}
        self._answers: dict[tuple, Answer] = {}

    def __call__(self, *args: Any) -> bool | str | None:
        if self.own is not None:
            answer = self.own(*args)
            if answer is not True and answer is not None:
                return answer
        if self._manager is None or self._epoch != self._manager.epoch:
            self._renew()
        if not self._decides or args[0].is_cpu is not self._on_cpu:
            return True
        found = self._of(*args)
        known = self._answers.get(found)
        if known is None or known.policy is not policies.get_policy():
            known = self._answer(found, args)
        for rival in known.rivals:
            if rival.when is None or refusal_of(rival.when(*args)) is None:
                return rival.reason
        return True

    def _renew(self) -> None:
        """Read the times of the chip again: policy, registry, quarantine or the chip have changed."""
        self._manager = get_default_manager()
        self._epoch = self._manager.epoch
        self._on_cpu = _device() == "cpu"
        self._rows = measured(chip_of(_device())).get(_name(self.key), {})
        self._decides = bool(self._rows) or (_is_ours(self.impl_id) and _preferred(self.key) is not None)
        self._answers = {}

    def _answer(self, found: tuple, args: tuple) -> Answer:
        policy, first = policies.get_policy(), specs.by_key[self.key].first_tensor(args, {})
        assert first is not None
        rivals = () if policy.strict else tuple(self._rivals(policy, found, first.dtype))
        if len(self._answers) >= MOST:
            self._answers.clear()
        known = self._answers[found] = Answer(policy, rivals)
        return known

    def _rivals(self, policy: SelectionPolicy, found: tuple, dtype: torch.dtype) -> Iterator[Rival]:
        """The implementations for which this one is refused, the most important first."""
        assert self._manager is not None
        label = self._class.label(_name(self.key), found)
        times = self._rows.get(label, {})
        mine = times.get(self.impl_id)
        others = [i for i in _usable(self._manager, self.key, policy, dtype) if i.impl_id != self.impl_id]
        said = functools.partial(_words, times=times, mine=mine, label=label)
        why = _yields(self.key, self.impl_id, policy) if _is_ours(self.impl_id) else None
        if why is not None:
            # As the order is, the vendor's run: so the first that takes the call must have been measured and be slower.
            compared, some = False, _for_some_calls(self.key)
            for i in others:
                theirs = times.get(i.impl_id)
                if some and theirs is None and i.kind is BackendImplKind.REFERENCE:
                    continue
                if _is_ours(i.impl_id):
                    if theirs is not None and mine is not None and theirs * MARGIN < mine:
                        yield Rival(said(i), own_when(i))
                    continue
                compared = compared or theirs is not None
                if not compared or (theirs is not None and (mine is None or theirs <= MARGIN * mine)):
                    yield Rival(f"{why}; {said(i)}" if times else why, own_when(i))
        elif mine is not None:
            rank = _ranks(policy, self.key)
            own = next((rank(i) for i in self._manager.registry.impls(self.key) if i.impl_id == self.impl_id), -1)
            faster = [i for i in others if times.get(i.impl_id, mine) * MARGIN < mine and rank(i) == own]
            for i in sorted(faster, key=lambda i: times[i.impl_id]):
                yield Rival(said(i), own_when(i))


def by_speed(key: str, impl_id: str, when: When | None = None) -> When | None:
    """The `when` of an implementation, extended by measured times if its op is compute-bound."""
    return BySpeed(key, impl_id, when) if key in CLASSES else when


def _words(other: OpImpl, times: Times, mine: float | None, label: str) -> str:
    us = lambda time: "not measured" if time is None else f"{time:.4g} us"
    facts = label.partition("[")[2].removesuffix("]")
    return (
        f"measured on {chip_of(_device())}: {other.impl_id} {us(times.get(other.impl_id))}, this {us(mine)} ({facts})"
    )


@dataclass(frozen=True)
class ForSomeCalls:
    """A reason of `get_preferred_ops` that holds for the calls that the vendor's libraries take; ours runs the rest."""

    why: Callable[[], str | None]

    def __call__(self) -> str | None:
        return self.why()


class LibrariesFirst:
    """Why a vendor's libraries come before our kernel of an op, as `get_preferred_ops` says.

    None if ours was measured to be faster for some calls, or the libraries take only some: then ours is a candidate,
    and its `when` decides for each call.
    """

    def __init__(self, key: str, why: machine.Preferred):
        self.key, self._why = key, why
        self.for_some_calls = key in CLASSES and isinstance(why, ForSomeCalls)

    def __call__(self) -> str | None:
        found = self.always()
        if self.for_some_calls:
            return None
        if found is None or self.key not in CLASSES or policies.get_policy().strict:
            return found
        rows = measured(chip_of(_device())).get(_name(self.key), {})
        return None if any(OURS in times and _wins(times) for times in rows.values()) else found

    def always(self) -> str | None:
        """The reason, whatever was measured."""
        return self._why() if callable(self._why) else self._why


def _wins(times: Times) -> bool:
    return all(us > MARGIN * times[OURS] for impl_id, us in times.items() if impl_id != OURS)


def _is_ours(impl_id: str) -> bool:
    """Whether it is a kernel of ours: for any chip, or that of one chip (`default.flagos.nvidia.hopper`)."""
    return impl_id == OURS or impl_id.startswith(f"{OURS}.")


def _yields(key: str, impl_id: str, policy: SelectionPolicy) -> str | None:
    """Why the vendor's libraries come before a kernel of ours where nothing is measured; None if they do not."""
    here, device, why = machine.current(), _device(), _preferred(key)
    if why is None:
        return None
    ours = next((i for i in get_default_manager().registry.impls(key) if i.impl_id == impl_id), None)
    return None if ours is None or policy.asks_for(ours, key, instead_of=here.vendor_of(device) or device) else why


def _for_some_calls(key: str) -> bool:
    first = machine.current().preferred(_device()).get(key)
    return isinstance(first, LibrariesFirst) and first.for_some_calls


def _preferred(key: str) -> str | None:
    """Why the vendor's libraries come before our kernels of an op, whatever was measured; None if they do not."""
    first = machine.current().preferred(_device()).get(key)
    return first.always() if isinstance(first, LibrariesFirst) else None


def _usable(manager: OpManager, key: str, policy: SelectionPolicy, dtype: torch.dtype) -> list[OpImpl]:
    """The implementations that may run here, in order; without those that have failed for any call."""
    device = _device()
    ordered, _ = choose(policy, key, manager.registry.impls(key))
    return [
        i
        for i in ordered
        if (i.supported_dtypes is None or dtype in i.supported_dtypes)
        and (key, i.impl_id) not in manager.memory.failures
        and manager.static_refusal(key, i, device) is None
    ]


def _ranks(policy: SelectionPolicy, key: str) -> Callable[[OpImpl], int]:
    """Where a policy ranks implementations: alike if it is the default, else by the tokens of its order."""
    order = policy.order_for(key)
    if order == ORDERS["flagos"] and not policy.by_space:
        return lambda impl: 0
    tokens = [t for token in order for t in (policy.rest() if token == "*" else (token,))]
    return lambda impl: next((n for n, token in enumerate(tokens) if matches(token, impl)), len(tokens))


def own_when(impl: OpImpl) -> When | None:
    """The `when` of an implementation without its times."""
    return impl.when.own if isinstance(impl.when, BySpeed) else impl.when


def _device() -> str:
    """The device type that measurements are for: an accelerator of this machine, else its CPU."""
    found = machine.accelerators()
    return found[0] if found else "cpu"


def _name(key: str) -> str:
    return key.rpartition("::")[2]
