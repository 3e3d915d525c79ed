"""What opmux replaces in a model of transformers, and the kernels that a step of it launches. No weights are needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import OpmuxError
from ...faces.models.patch import CannotPatch, Report, patch_model
from ..warm.compiling import At, assumed, check_installed, check_triton, kernels_of, target
from ..warm.model import errors_only, model_of, step_of

BATCH, LENGTH = 4, 512  # as in `opmux warm`


@dataclass(frozen=True)
class StepKernels:
    """The Triton kernels of a step in training: name -> how many variants, and how many are not compiled yet."""

    arch: str
    here: bool
    variants: Counter[str]
    missing: Counter[str]
    stopped: str


@dataclass(frozen=True)
class ModelFacts:
    """`report`: what `patch_model` did; if None, see `why_not`. `kernels`: those of a step, or why they are unknown."""

    name: str
    about: str
    report: Report | None
    why_not: str
    kernels: StepKernels | str


def chip_for_kernels(arch: str | None) -> At | str:
    """The chip whose kernels are listed, or why there is none. Uses a child process, so call it before CUDA is used."""
    try:
        check_installed()
        check_triton()
        return target(arch, option="--assume")
    except OpmuxError as error:
        return str(error)


@errors_only()
def examine(name: str, config: Any, at: At | str) -> ModelFacts:
    model = model_of(config, None, torch.device("meta")).train()
    parameters = sum(p.numel() for p in model.parameters())
    about = f"{type(model).__name__}, {parameters / 1e9:.2f} billion parameters"
    try:
        report = patch_model(model)
    except CannotPatch as error:
        return ModelFacts(name, about, None, str(error), "nothing is replaced, so no kernel of ours runs")
    return ModelFacts(name, about, report, "", at if isinstance(at, str) else _kernels(model, at))


def _kernels(model: Any, at: At) -> StepKernels | str:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="meta")
    try:
        with assumed(at):
            found, stopped = kernels_of(lambda: step_of(model, {"input_ids": ids, "labels": ids}, True))
    except OpmuxError as error:
        return str(error)
    missing, cached = (Counter(map(_name, kernels.values())) for kernels in (found.missing, found.cached))
    return StepKernels(at.arch, at.here, missing + cached, missing, stopped)


def _name(kernel: Any) -> str:
    """A kernel with the module that defines it: `norm._fwd`."""
    return f"{kernel.src.fn.__module__.rpartition('.')[2]}.{kernel.name}"
