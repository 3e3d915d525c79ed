"""Measured times of this chip, from files that `opmux tune` writes and from files in vendors' folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.tensors import dtype_name
from ...faces.aten import decisions
from ...faces.aten.overloads import table
from ...machine.devices import Chip
from ...tuning import provider_speed
from ...tuning.speed_files import SpeedFiles, origin_of
from ..speed.command import mean, ratios

COPY = "clone"  # the overload whose time is that of a copy
# Families that are limited by arithmetic, not by memory, so a comparison with a copy means nothing.
COMPUTE = frozenset({"attention", "attention_general", "convolution", "distance", "gemm", "sorting"})


@dataclass(frozen=True)
class OverloadSpeed:
    """The measured speed of an overload of ATen at the largest size.

    `ratio`: torch's time divided by ours, as the mean over dtypes. `torchs`, `ours`: the two times for one dtype, in
    microseconds. `copies`: our time, relative to a copy of the first tensor on the same chip; None if a copy of this
    size was not measured, or if the op is not limited by memory.
    """

    name: str
    family: str
    ratio: float
    torchs: float
    ours: float
    size: str
    copies: float | None


@dataclass(frozen=True)
class ClassSpeed:
    """A class of calls of an op that vendors' libraries compute too: our fastest time, and theirs, in microseconds."""

    op: str
    label: str
    ours: float
    other: float
    by: str

    @property
    def ratio(self) -> float:
        return self.other / self.ours


@dataclass(frozen=True)
class MeasuredFile:
    path: Path
    made_for: dict[str, str]  # chip, arch, driver and versions


@dataclass(frozen=True)
class SpeedFacts:
    aten: tuple[OverloadSpeed, ...]
    providers: tuple[ClassSpeed, ...]
    aten_files: tuple[MeasuredFile, ...]
    provider_files: tuple[MeasuredFile, ...]

    @property
    def files(self) -> tuple[MeasuredFile, ...]:
        return (*self.aten_files, *self.provider_files)


def speeds(chip: Chip) -> SpeedFacts:
    return SpeedFacts(
        _overloads(chip),
        class_speeds(provider_speed.FILES.measured(chip)),
        _files(decisions.FILES, chip),
        _files(provider_speed.FILES, chip),
    )


def _files(kind: SpeedFiles, chip: Chip) -> tuple[MeasuredFile, ...]:
    return tuple(MeasuredFile(file, origin_of(file)) for file in kind.files(chip))


def _overloads(chip: Chip) -> tuple[OverloadSpeed, ...]:
    known = decisions.FILES.measured(chip)
    rows = []
    for name, speed in known.items():
        if ratios(speed):
            rows.append(_overload(name, speed, known.get(COPY)))
    return tuple(sorted(rows, key=lambda row: (row.family, -row.ratio)))


def _overload(name: str, speed: decisions.Speed, copy: decisions.Speed | None) -> OverloadSpeed:
    dtype, times = next(((d, rows[-1]) for d, rows in speed.times.items() if rows))
    overload = table().get(name)
    family = "" if overload is None else overload.family
    copied = next((t for t in (copy.of(dtype) if copy else ()) if t.numel == times.numel), None)
    return OverloadSpeed(
        name,
        family,
        mean(ratios(speed)),
        times.native,
        times.ours,
        f"{dtype_name(dtype)}[{times.numel}]",
        None if copied is None or family in COMPUTE else times.ours / copied.native,
    )


def class_speeds(measured: Mapping[str, provider_speed.Times]) -> tuple[ClassSpeed, ...]:
    """The classes in which both we and a library were measured."""
    rows = []
    for label, times in sorted(measured.items()):
        ours = [us for impl, us in times.items() if impl.startswith("default.flagos")]
        others = [(us, impl) for impl, us in times.items() if not impl.startswith("default.flagos")]
        if ours and others:
            other, by = min(others)
            op, _, facts = label.removesuffix("]").partition("[")
            rows.append(ClassSpeed(op, facts, min(ours), other, by))
    return tuple(rows)
