"""Advice about a machine. Each piece of advice states the fact from which it follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ... import settings
from ...core import knobs
from ...machine.devices import Chip
from .. import cpp
from ..doctor import DoctorReport
from .model import ModelFacts, StepKernels
from .speed import MeasuredFile, SpeedFacts

# setting -> the value that turns something off (None: any value), and what that means
OFF: dict[str, tuple[Any, str]] = {
    settings.CPP.name: (False, "all C++ of opmux is off"),
    settings.PLANNER.name: (False, "auto mode plans and compiles in the program's own process, which waits for it"),
    settings.SKIP_CUDA.name: (True, "NVIDIA's libraries are not used"),
    knobs.PREFER.name: ("reference", "plain PyTorch is preferred to all kernels"),
    knobs.ALLOW_VENDORS.name: (None, "the implementations of other vendors do not run"),
    knobs.DENY_VENDORS.name: (None, "the implementations of these vendors do not run"),
    knobs.ALLOW_PLUGINS.name: (None, "other plugins are not loaded"),
    knobs.BLOCK_PLUGINS.name: (None, "these plugins are not loaded"),
}


class Advice(NamedTuple):
    """A fact, and what to do: a command, or a sentence."""

    why: str
    command: str = ""


def advice(
    machine: DoctorReport,
    device: str,
    chip: Chip,
    assumed: bool,
    speed: SpeedFacts | None,
    model: ModelFacts | None,
) -> list[Advice]:
    return [
        *(Advice(f"This is broken: {text}", "opmux doctor") for text in machine.broken),
        *_devices(machine, device, assumed),
        *_installed(machine),
        *_settings(machine),
        *_measured(chip, device, assumed, speed),
        *(_kernels(model) if model is not None else ()),
        *(Advice(f"This implementation has failed, and is skipped: {f['text']}") for f in machine.quarantine),
    ]


def _devices(machine: DoctorReport, device: str, assumed: bool) -> Iterator[Advice]:
    if assumed:
        yield Advice(
            "The chip is assumed, so what runs there and how fast is a prediction. To be sure, run the command there.",
            "opmux report",
        )
    elif device == "cpu":
        others = "torch has found no accelerator, so ops run on the CPU. A report about another chip is possible here."
        yield Advice(others, "opmux report --assume nvidia:sm_90")


def _installed(machine: DoctorReport) -> Iterator[Advice]:
    if machine.versions["triton"] == "not installed":
        yield Advice("Triton is not installed, so no kernel of ours runs on a GPU.", "pip install triton")
    for name, state in machine.cpp.items():
        if name in ("compiler", "made for", "launches"):  # not a library
            continue
        if state.startswith("not compiled yet"):
            yield Advice(f"{name} is {state}.", cpp.COMMAND)
        elif state.startswith("no compiler"):
            yield Advice(f"{name}: {state}.", "apt install g++ python3-dev && opmux build")
        elif not state.startswith(("compiled", "another process", "off")):
            yield Advice(f"{name}: {state}.", cpp.COMMAND)


def _settings(machine: DoctorReport) -> Iterator[Advice]:
    for row in machine.settings:
        value, meaning = OFF.get(row["name"], ("", ""))
        is_set = not row["source"].startswith("default") and not row["error"]
        if not meaning or not is_set or (value is not None and row["value"] != value):
            continue
        kind, _, place = row["source"].partition(" ")
        how = f"unset {place}" if kind == "env" else ""
        yield Advice(f"{row['name']} is set ({row['source']}): {meaning}.", how)
    for stranger in machine.strangers:
        yield Advice(f"A setting has no effect: {stranger}.", "opmux doctor")


def _measured(chip: Chip, device: str, assumed: bool, speed: SpeedFacts | None) -> Iterator[Advice]:
    if speed is None:
        return
    if not speed.aten:
        yield Advice(f"No op of ATen was measured on {chip}, so auto mode enables none.", "opmux tune --aten")
    if device != "cpu" and not speed.providers:
        yield Advice(f"Products and attention were not measured on {chip}.", "opmux tune --providers")
    if assumed:
        return
    measured = {"opmux tune --aten": speed.aten_files, "opmux tune --providers": speed.provider_files}
    for command, files in measured.items():
        if files and (differences := _differences(files[-1], chip)):
            yield Advice(f"{files[-1].path.name} was measured with {differences}. Times here may differ.", command)


def _differences(file: MeasuredFile, chip: Chip) -> str:
    """How the machine of a file differs from this one (another chip, another torch), or "" if it does not."""
    made_for = file.made_for
    chips = [made_for["chip"]] if chip.name and made_for.get("chip") not in (None, chip.name) else []
    version = made_for.get("torch", "")
    torchs = [f"torch {version} instead of {torch.__version__}"] if version not in ("", torch.__version__) else []
    return " and ".join([*chips, *torchs])


def _kernels(model: ModelFacts) -> Iterator[Advice]:
    kernels = model.kernels
    if isinstance(kernels, StepKernels) and kernels.missing:
        count = f"{kernels.missing.total()} of {kernels.variants.total()} kernels"
        chip = "" if kernels.here else f" --chip {kernels.arch}"
        yield Advice(
            f"{count} of the first step of {model.name} are not compiled yet; the step would wait for Triton.",
            f"opmux warm {model.name}{chip}",
        )
