"""The facts of a report: what `opmux doctor` finds, what runs each op, how fast ops are, and what a model needs."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from ...core.default import get_default_manager
from ...core.explain import Explanation
from ...core.manager import default_device
from ...core.registry import BackendImplKind
from ...faces.aten import decisions, engine, left
from ...machine import devices
from ...machine.devices import Chip
from ...tuning.speed_files import chip_of
from .. import doctor, listing
from ..doctor import DoctorReport
from .advice import Advice, advice
from .model import ModelFacts
from .speed import SpeedFacts, speeds

BOTH, OURS, VENDORS = "ours and a vendor's", "ours", "a vendor's"
REFERENCE, NOTHING = "the reference only", "nothing"
KINDS = (BOTH, OURS, VENDORS, REFERENCE, NOTHING)


@dataclass(frozen=True)
class SameChoice:
    """Ops of a family with the same choice: the implementation that runs, and why each of the others does not."""

    chosen: str | None
    others: tuple[tuple[str, str], ...]  # (impl_id, why)
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """The ops of a family: how many have which kinds of implementation here, and what runs."""

    name: str
    ops: int
    best: Counter[str]  # one of KINDS -> the number of ops
    choices: tuple[SameChoice, ...]


@dataclass(frozen=True)
class AtenGroup:
    """Overloads of ATen that auto mode treats alike, and why."""

    enabled: bool
    why: str
    names: dict[str, str]  # overload -> details, or ""


@dataclass(frozen=True)
class AtenUse:
    """What `opmux.enable()` does with ATen's overloads on a device type."""

    device: str
    groups: tuple[AtenGroup, ...]
    rest: Counter[str]  # why -> the number of overloads that we do not compute on this device
    torch_is_unknown: bool  # this torch is built without the device, so torch's kernels for the device are not known

    @property
    def enabled(self) -> int:
        return sum(len(g.names) for g in self.groups if g.enabled)

    @property
    def computed(self) -> int:
        return sum(len(g.names) for g in self.groups)


@dataclass
class ReportFacts:
    """Everything that the page shows."""

    doctor: DoctorReport
    device: str
    chip: Chip
    assumed: bool
    policy: str = ""
    families: list[Family] = field(default_factory=list)
    aten: AtenUse | None = None
    speed: SpeedFacts | None = None
    model: ModelFacts | None = None
    advice: list[Advice] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The chip in words."""
        if self.assumed:
            return f"an assumed chip: {self.chip.vendor} {self.chip.arch or ''}".rstrip()
        return str(self.chip) if self.device != "cpu" else f"the CPU ({platform.machine()})"


Show = Callable[[str], None]


def collect(machine: DoctorReport, assumed: bool, show: Show, model: Callable[[], ModelFacts] | None) -> ReportFacts:
    """Collect the facts. `machine`: the result of `doctor.examine`; `show` is called with the name of each step."""
    with doctor.without(machine.invalid()):  # what is invalid is in `machine.broken`
        device = machine.guard("devices", default_device, "cpu")
        facts = ReportFacts(machine, device, machine.guard("chip", lambda: chip_of(device), Chip("cpu", None)), assumed)
        show("choosing implementations")
        facts.families = machine.guard("implementations of ops", families, [])
        show("deciding about ATen")
        facts.aten = machine.guard("ATen", lambda: aten_use(device, assumed), None)
        show("reading measured times")
        facts.speed = machine.guard("measured times", lambda: speeds(facts.chip), None)
        if model is not None:
            show("examining the model")
            facts.model = model()
    facts.advice = advice(machine, device, facts.chip, assumed, facts.speed, facts.model)
    return facts


# ---- our ops --------------------------------------------------------------------------------------------------------


def families() -> list[Family]:
    by_family: dict[str, list[listing.ListingRow]] = {}
    for row in listing.rows(get_default_manager()):
        by_family.setdefault(row.family, []).append(row)
    return [_family(name, rows) for name, rows in by_family.items()]


def _family(name: str, rows: list[listing.ListingRow]) -> Family:
    alike: dict[tuple[str | None, tuple[tuple[str, str], ...]], list[str]] = {}
    for row in rows:
        verdicts = row.explanation.verdicts
        others = tuple((v.impl.impl_id, v.words()) for v in verdicts if v.status != "chosen")
        chosen = row.explanation.chosen
        alike.setdefault((None if chosen is None else chosen.impl_id, others), []).append(row.name)
    choices = tuple(SameChoice(chosen, others, tuple(ops)) for (chosen, others), ops in alike.items())
    return Family(name, len(rows), Counter(best(row.explanation) for row in rows), choices)


def best(explanation: Explanation) -> str:
    """Which kinds of implementation can run an op: one of KINDS."""
    kinds = {v.impl.kind for v in explanation.verdicts if v.status != "refused"}
    ours = bool(kinds & {BackendImplKind.DEFAULT, BackendImplKind.CPP})
    if BackendImplKind.VENDOR in kinds:
        return BOTH if ours else VENDORS
    return OURS if ours else REFERENCE if kinds else NOTHING


# ---- ATen -----------------------------------------------------------------------------------------------------------

_NUMBERED = ("it is at least as fast on", "it is not faster on", "it is not measured on")


def aten_use(device: str, assumed: bool) -> AtenUse:
    """What auto mode enables on a device type, and why torch's own kernels run the rest."""
    computed = engine.choosable()[device]
    unknown = assumed and not devices.is_available(device)
    by_gate = decisions.gated()
    groups: dict[tuple[bool, str], dict[str, str]] = {}
    for name, overload in sorted(computed.items()):
        # On an assumed device this torch has no kernels, so `decide` would give that as the reason for every op.
        decision = (decisions.by_times if unknown else decisions.decide)(overload, device, by_gate)
        why, _, details = decision.why.partition(": ")
        if not why.startswith(_NUMBERED):
            why, details = decision.why, ""
        groups.setdefault((decision.taken, why), {})[name] = details if why.startswith(_NUMBERED[:2]) else ""
    ordered = sorted(groups.items(), key=lambda g: (not g[0][0], -len(g[1])))
    listed = tuple(AtenGroup(taken, why, names) for (taken, why), names in ordered)
    return AtenUse(device, listed, _rest(device, computed), unknown)


def _rest(device: str, computed: Iterable[str]) -> Counter[str]:
    ours, counted = set(computed), Counter[str]()
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if full.startswith("aten::") and name not in ours:
            why = left.reason(name) or f"opmux has kernels for it, but none of them runs on {device}"
            counted["ATen composes it from other ops" if why.startswith("ATen composes it") else why] += 1
    return counted
