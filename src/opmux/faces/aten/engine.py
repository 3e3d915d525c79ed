"""Overrides of torch's ops on a device's dispatch key; each override is an entry that checks whether it is enabled.

Overrides are registered once. `use()` changes the set of enabled overrides for the whole process, because backward
passes run on other threads. A disabled override calls ATen's original kernel, which is saved at registration.
`disable()` removes the overrides.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core import library, machine
from ...core.default import DefaultManager, get_default_manager
from ...core.dispatch import is_foreign
from ...core.entry import CallingConvention, EntryPoint
from ...core.lock import cached_property, lock
from ...core.log import logger
from ...core.registry import BackendImplKind, OpImpl
from ...core.spec import specs
from ...cpp import launching
from ...cpp import library as native_library
from ...machine import devices, vendors
from ...machine.here import HERE
from ...machine.vendor_ops import AtenRow
from ...machine.vendors import Autograd
from . import above, decisions, gate, native, record
from .overloads import Overload, declining_numbers, row_for, table, vendors_own
from .schema import OverloadSchema


class State:
    """The enabled overloads. An override reads only `on`, which contains their names."""

    def __init__(self) -> None:
        self.on: Any = frozenset()
        self.requested: frozenset[str] = frozenset()
        self.auto = False  # auto mode: the C++ gate runs our kernels only for calls that `decisions` selects
        self.inside: set[int] = set()  # threads that run a reference implementation: there overrides are disabled
        self.counts: Counter[str] | None = None  # counts calls of enabled overloads inside `counted()`

    def request(self, names: frozenset[str]) -> None:
        self.requested = names
        self.on = WatchedState(names, self.inside, self.counts) if self.inside or self.counts is not None else names
        launching.pause("counted", self.counts is not None or bool(record.live))
        thresholds = decisions.thresholds if self.counts is None else decisions.thresholds_while_counted
        gate.select(names, thresholds if self.auto else None)


class WatchedState:
    """Replaces the set `State.on` while calls are counted, or while a thread runs a reference implementation."""

    def __init__(self, names: frozenset[str], inside: set[int], counts: Counter[str] | None):
        self._names, self._inside, self._counts = names, inside, counts

    def __contains__(self, name: str) -> bool:
        on = name in self._names and threading.get_ident() not in self._inside
        if on and self._counts is not None:
            self._counts[name] += 1
        return on


STATE = State()


@contextlib.contextmanager
def counted(into: Counter[str] | None = None) -> Iterator[Counter[str]]:
    """Count the calls of enabled overloads in this block, on all threads; `into` is updated at each call."""
    with lock.held:
        before, STATE.counts = STATE.counts, Counter() if into is None else into
        STATE.request(STATE.requested)
        counts = STATE.counts
    try:
        yield counts
    finally:
        with lock.held:
            STATE.counts = before
            STATE.request(STATE.requested)


def off_inside(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the ATen ops it calls run ATen's kernels."""

    def reference(*args: Any, **kwargs: Any) -> Any:
        me = threading.get_ident()
        if me in STATE.inside:
            return fn(*args, **kwargs)
        with lock.held:
            STATE.inside.add(me)
            STATE.request(STATE.requested)
        gate.inside(1)
        try:
            return fn(*args, **kwargs)
        finally:
            gate.inside(-1)
            with lock.held:
                STATE.inside.discard(me)
                STATE.request(STATE.requested)

    reference.__wrapped__ = fn  # type: ignore[attr-defined]  # it has the signature of the function
    return reference


class DeviceOverrides:
    """The overrides on one device type."""

    def __init__(self, name: str):
        package = devices.vendor_of(name)
        self.name = name
        self.key = {"cpu": "CPU"}.get(name, "PrivateUse1") if package is None else package.info.key
        self.entries: dict[str, EntryPoint | Deferred] = {}  # the entries of the registered overrides
        self._made: dict[str, EntryPoint] = {}  # all entries ever created; they are reused
        self._libraries: list[torch.library.Library] = []  # one per registration
        self._gates: dict[str, gate.Gate] = {}  # the C++ gates in front of the registered overrides

    @cached_property
    def rows(self) -> Mapping[str, AtenRow]:
        return HERE.ops(self.name).rows

    @cached_property
    def unused(self) -> set[str]:
        return {n.removeprefix("aten::") for n in HERE.ops(self.name).unused}

    def choose(self) -> dict[str, Overload]:
        """The overloads for which some impl runs on this device."""
        for row in self.rows.values():
            self._add_row(row)
        candidates = {n: o for n, o in table().items() if n not in self.unused and o.shape.packet not in self.unused}
        manager = get_default_manager()
        for family in {o.family for o in candidates.values()} - {"vendor"}:
            specs.load_implementers(family)
        manager.prepare()
        return {n: o for n, o in candidates.items() if self._can(manager, o)}

    def _add_row(self, row: AtenRow) -> None:
        """Make a vendor's function an impl of its overload, if it accepts the overload's arguments."""
        overload = vendors_own(row.overload)
        call = row_for(overload, row)
        if call is None:
            logger.debug("%s does not fit aten::%s, and is not used there", row.impl_id, row.overload)
            return
        overload.rows[self.name] = OpImpl(
            overload.key,
            row.impl_id,
            BackendImplKind.DEFAULT,
            HERE.vendor_of(self.name),
            off_inside(declining_numbers(overload.shape, call)),
            row.priority,
            devices=frozenset({self.name}),
            outside=True,
        )

    def _can(self, manager: Any, overload: Overload) -> bool:
        if self.name == "cpu" and not native.exists(overload.shape, self.key):
            return False  # torch has no kernel to fall back to, and does not call the op on a CPU
        impls = (*overload.rows.values(), *(i for base in overload.bases for i in manager.registry.impls(base)))
        return any(
            i.kind is not BackendImplKind.REFERENCE
            and machine.runs_on(i.devices, self.name)
            and manager.static_refusal(overload.bases[0] if overload.bases else overload.key, i, self.name) is None
            for i in impls
        )

    def register(self, requested: Iterable[Overload]) -> bool:
        """Register overrides for these overloads on the device's dispatch key; False if they exist already."""
        new = [o for o in requested if o.name not in self.entries]
        if not new:
            return False
        before, self.entries = self.entries, dict(self.entries)
        lib = torch.library.Library("aten", "IMPL")
        try:
            with warnings.catch_warnings():  # torch warns about each replaced kernel, which is intended
                warnings.simplefilter("ignore")
                for overload in new:
                    self._register_one(overload, lib)
            self._libraries.append(lib)
        except BaseException:  # the next registration would mistake a leftover override for ATen's kernel
            self._destroy([lib], [o.name for o in new])
            self.entries = before
            raise
        return True

    def deferrable(self, name: str) -> bool:
        """Whether `register_deferred` can register an override: it is on the device's key, and not above autograd."""
        return name in self.entries and name not in self.rows and not above.composed_on(OverloadSchema(name), self.key)

    def register_deferred(self, families: Mapping[str, str]) -> bool:
        """Register gates, and overrides that load their kernels at the first call; `families`: overload -> family."""
        new = [n for n in families if n not in self.entries]
        before, self.entries = self.entries, dict(self.entries)
        lib = torch.library.Library("aten", "IMPL")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for name in new:
                    shape = OverloadSchema(name)
                    new_gate = gate.make(self.name, shape, self.key, families[name])
                    entry = self.entries[name] = Deferred(self, shape)
                    lib.impl(name, entry.fn, self.key)
                    if new_gate is not None:
                        self._gates[name] = new_gate
                        new_gate.install()
            self._libraries.append(lib)
        except BaseException:
            self._destroy([lib], new)
            self.entries = before
            raise
        return bool(new)

    def make(self, deferred: Deferred) -> EntryPoint:
        """Load the specs and kernels of a deferred override's family, and return its entry."""
        overload = table()[deferred.shape.name]
        specs.load_implementers(overload.family)
        get_default_manager().prepare()
        with lock.held:
            entry = self.entries.get(deferred.shape.name)
            if isinstance(entry, EntryPoint):
                return entry
            overload.natives[self.name] = deferred.native
            loaded = self._made.get(overload.name)
            if loaded is None:
                loaded = self._made[overload.name] = entry_point(overload, self.name)
            loaded.globals["_native"] = deferred.native
            self.entries[overload.name] = loaded
            return loaded

    def _register_one(self, overload: Overload, lib: torch.library.Library) -> None:
        """Register an override on the device's key, and above autograd if it would change gradients otherwise."""
        shape = overload.shape
        row = self.rows.get(overload.name) if self.name in overload.rows else None
        autograd = f"Autograd{self.key}"
        composed = above.composed_on(shape, self.key)
        lifts = composed or (row is not None and row.autograd is Autograd.enable)
        over = torch.library.get_kernel(f"aten::{shape.name}", autograd).call_boxed if lifts else None
        overload.natives[self.name] = kernel = native.kernel(shape, self.key)
        entry = self._made.get(overload.name)
        if entry is None:
            entry = self._made[overload.name] = entry_point(overload, self.name)
        entry.globals["_native"] = kernel
        self.entries[overload.name] = entry
        if over is not None:
            fn = native.taking_numbers(shape, over)
            if composed:
                fn = above.composed(overload, STATE, entry.fn, fn)
            if row is not None and row.autograd is Autograd.enable:
                fn = above.of_row(overload, row, overload.rows[self.name].fn, STATE, fn)
            lib.impl(shape.name, fn, autograd, with_keyset=True)
        new_gate = gate.make(self.name, shape, self.key, overload.family) if over is None else None
        lib.impl(shape.name, entry.fn, self.key)
        if new_gate is not None:
            self._gates[overload.name] = new_gate
            new_gate.install()

    def remove(self) -> None:
        """Remove the overrides."""
        self._destroy(self._libraries, self.entries)
        self.entries = {}

    def _destroy(self, libraries: Iterable[torch.library.Library], names: Iterable[str]) -> None:
        for name in names:
            if name in self._gates:
                self._gates.pop(name).remove()
        for lib in tuple(libraries):
            lib._destroy()
        self._libraries = [lib for lib in self._libraries if lib not in libraries]
        for name in names:
            if not isinstance(self.entries.get(name), Deferred):
                table()[name].natives.pop(self.name, None)


class Deferred:
    """An override that loads its specs and kernels at the first call."""

    def __init__(self, device: DeviceOverrides, shape: OverloadSchema):
        self.shape = shape
        self.native = native.kernel(shape, device.key)
        call: Callable[..., Any] | None = None

        def fn(*args: Any, **kwargs: Any) -> Any:
            nonlocal call
            if call is None:
                if shape.name not in STATE.on:
                    return self.native(*args, **kwargs)
                call = device.make(self).fn
            return call(*args, **kwargs)

        self.fn = fn


def entry_point(overload: Overload, device: str) -> EntryPoint:
    """The function that torch calls for an overload on a device."""
    form = _form(overload)

    def bind(entry: EntryPoint) -> None:
        manager = get_default_manager()
        assert isinstance(manager, DefaultManager)
        manager.bind_derived(overload, entry, device)

    def under(entry: EntryPoint, policy: Any) -> Any:
        manager = get_default_manager()
        assert isinstance(manager, DefaultManager)
        return manager.derived_pair(overload, entry, policy, device)

    entry = EntryPoint(form, bind, under)
    entry.globals.update(_state=STATE, _Tensor=Tensor)
    entry.watch_scopes(False)  # use the code variant that checks whether the overload is enabled
    return entry


@functools.cache
def _form(overload: Overload) -> CallingConvention:
    form = CallingConvention.of(overload.name.replace(".", "_"), overload.signature, differentiable=False)
    off = f"{overload.name!r} not in _state.on"
    if len(overload.shape.tensors) > 1:  # the first tensor chooses the impl, but torch may pass a number in its place
        off += f" or not isinstance({overload.shape.tensors[0]}, _Tensor)"
    form.gate = f"if {off}:\n        return _native({form.passed})"
    return form


# ---- all devices ----------------------------------------------------------------------------------------------------

_devices: dict[str, DeviceOverrides] = {}
_chosen: dict[str, dict[str, Overload]] = {}
_outside: frozenset[tuple[str, str]] = frozenset()  # (op, id) of impls that are not opmux's, at the last choice
_generation = 0  # incremented when registrations become stale: overrides removed, vendors changed


def generation() -> int:
    return _generation


def choosable() -> dict[str, dict[str, Overload]]:
    """For each device type of this machine, the overloads that can be overridden."""
    global _outside
    manager = get_default_manager()
    manager.prepare()  # load plugins first: a plugin may register a device's vendor
    outside = frozenset((i.op_name, i.impl_id) for i in manager.registry.all_impls() if is_foreign(i))
    with lock.held:
        if outside != _outside:
            _outside = outside
            _chosen.clear()
    choice = {}
    for name in HERE.devices():
        if name not in _chosen:
            device = _devices.get(name) or DeviceOverrides(name)
            chosen = device.choose()  # without the lock, because `choose` imports kernels and runs availability checks
            with lock.held:
                if name not in _chosen:
                    _devices[name], _chosen[name] = device, chosen
                    for entry in device.entries.values():
                        if isinstance(entry, Deferred):
                            table()[entry.shape.name].natives[name] = entry.native
        with lock.held:
            if name in _chosen:  # false if another thread has just cleared `_chosen`
                choice[name] = _chosen[name]
    return choice


def register(names: Mapping[str, Iterable[str]]) -> None:
    """Register overrides for these overloads, by device type."""
    chosen = choosable()
    if any(names.values()):
        native_library.available()  # before the lock is taken, because this may compile
    with lock.held:
        new = [
            _devices[device].register([o for n, o in chosen[device].items() if n in requested])
            for device, requested in ((d, _with_delegates(n)) for d, n in names.items())
            if device in _devices and device in chosen  # false if the device's vendor has been removed meanwhile
        ]
        _guard(any(new))


def register_deferred(families: Mapping[str, Mapping[str, str]], some: bool = False) -> None:
    """Register overrides that load their kernels at the first call; `families`: device type -> overload -> family.

    `some`: more overrides follow in a later call; until then none is enabled.
    """
    with lock.held:
        new = []
        for name, overload_families in families.items():
            device = _devices.get(name) or DeviceOverrides(name)
            _devices[name] = device
            no_family = dict.fromkeys(_with_delegates(overload_families), "")  # delegating overloads have no gate
            new.append(device.register_deferred(no_family | dict(overload_families)))
        if not some:
            _guard(any(new))


def _guard(new: bool) -> None:
    if new or (library.reference_guard is None and any(d.entries for d in _devices.values())):
        library.reference_guard = off_inside
        get_default_manager().invalidate("ATen's ops are overridden", keep_launches=True)


def deferrable_on(device: str) -> frozenset[str]:
    """The registered overrides of a device type that `register_deferred` could register in the next process."""
    overrides = _devices.get(device)
    return frozenset() if overrides is None else frozenset(n for n in overrides.entries if overrides.deferrable(n))


def _with_delegates(names: Iterable[str]) -> set[str]:
    """These overloads, and the overloads whose kernels call them with a number as a tensor (native.py)."""
    requested = set(names)
    return requested | {name for name, target in native.DELEGATES.items() if target in requested}


def leftovers(names: Mapping[str, Iterable[str]]) -> bool:
    """Whether overloads outside `names` have an override: their calls go through Python, even if it is disabled."""
    return any(not set(d.entries) <= _with_delegates(names.get(n, ())) for n, d in _devices.items())


def remove() -> None:
    """Remove all overrides."""
    global _generation
    with lock.held:
        _generation += 1
        gate.forget()
        for device in _devices.values():
            device.remove()
        if library.reference_guard is not None:
            library.reference_guard = None
            get_default_manager().invalidate("ATen's overrides are removed", keep_launches=True)


def forget() -> None:
    """Choose overloads again at the next use, because vendors changed. Registered overrides stay until removed."""
    global _generation
    with lock.held:
        _generation += 1
        for name in [n for n, d in _devices.items() if not d.entries]:
            del _devices[name]
            _chosen.pop(name, None)


vendors.on_change(forget)


def registered(name: str) -> bool:
    """Whether an overload has an override, enabled or disabled, on at least one device."""
    return any(name in device.entries for device in _devices.values())


def is_on(name: str, device: str) -> bool:
    """Whether an overload is overridden and enabled on a device type."""
    overrides = _devices.get(device)
    return name in STATE.requested and overrides is not None and name in overrides.entries


def native_of(name: str, device: str) -> Callable[..., Any] | None:
    """ATen's original kernel of an overload that is overridden on a device."""
    overrides = _devices.get(device)
    entry = None if overrides is None else overrides.entries.get(name)
    if entry is None:
        return None
    return entry.native if isinstance(entry, Deferred) else table()[name].natives.get(device)
