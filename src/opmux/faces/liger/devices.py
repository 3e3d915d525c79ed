"""`liger_kernel.utils`: the device of this machine."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...machine import devices
from ...machine.devices import infer_device as infer_device

# Arch -> Liger's name for its generation. Other archs keep their own name.
GENERATIONS = {
    "sm_70": "volta_turing",
    "sm_75": "volta_turing",
    "sm_80": "ampere_ada",
    "sm_86": "ampere_ada",
    "sm_89": "ampere_ada",
    "sm_90": "hopper",
    "sm_100": "blackwell",
    "sm_103": "blackwell_ultra",
    "sm_120": "blackwell_consumer",
    "gfx908": "cdna",
    "gfx90a": "cdna2",
    "gfx940": "cdna3",
    "gfx941": "cdna3",
    "gfx942": "cdna3",
    "gfx1100": "rdna3",
    "gfx1101": "rdna3",
    "gfx1102": "rdna3",
}
# For devices whose arch torch does not report: device type -> substring of the chip's name -> generation.
NAMED = {
    "xpu": {"max": "pvc", "pvc": "pvc", "ponte": "pvc", "arc": "arc", "battlemage": "arc", "alchemist": "arc"},
    "npu": {"910": "ascend910", "310": "ascend310"},
}


def is_npu_available() -> bool:
    """Whether torch can use an Ascend NPU."""
    return "npu" in devices.accelerators()


def is_peft_available() -> bool:
    return importlib.util.find_spec("peft") is not None


@functools.cache
def infer_device_arch(device_id: int = 0) -> str:
    """The device's generation ("hopper", "cdna3", "pvc", "ascend910"); if unknown, its arch, or else its type."""
    device = infer_device()
    arch = devices.arch_of(device, device_id)
    if device in NAMED:
        name = torch.get_device_module(device).get_device_properties(device_id).name.lower()
        return next((generation for part, generation in NAMED[device].items() if part in name), device)
    return device if arch is None else GENERATIONS.get(arch, arch)


def infer_comm_backend() -> str:
    """The backend of torch.distributed for the device of this machine."""
    return torch.distributed.get_default_backend_for_device(infer_device())


def get_total_gpu_memory() -> int:
    """The memory of the first device, in GiB."""
    device = infer_device()
    if device == "cpu":
        raise RuntimeError("get_total_gpu_memory: this machine has no accelerator that torch can use")
    return torch.get_device_module(device).get_device_properties(0).total_memory // 2**30


def transformers_version_dispatch(
    required_version: str,
    before_fn: Callable[..., Any],
    after_fn: Callable[..., Any],
    before_args: tuple[Any, ...] = (),
    after_args: tuple[Any, ...] = (),
    before_kwargs: Mapping[str, Any] | None = None,
    after_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call `after_fn` if transformers has at least this version, else `before_fn`."""
    transformers = importlib.import_module("transformers")
    from packaging.version import parse

    if parse(transformers.__version__) < parse(required_version):
        return before_fn(*before_args, **(before_kwargs or {}))
    return after_fn(*after_args, **(after_kwargs or {}))
