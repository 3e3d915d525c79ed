"""Compile kernels for chips that this machine does not have, with a Triton driver that launches nothing.

    with compiling_for("sm_90") as built:
        norm.rms_norm(torch.empty(64, 4096, device="meta", dtype=torch.bfloat16), ...)   # the real wrapper
    built[0].asm["ptx"]

The wrapper runs on meta tensors. Kernels are compiled to machine code; a kernel that needs too much shared memory
raises the same error as on the chip. TRITON_INTERPRET must be unset.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from ...cpp import launching
from .plans import forget

# chip -> (Triton's compile target, maximum shared memory of a program)
CHIPS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 166_912),
    "sm_90": (GPUTarget("cuda", 90, 32), 232_448),
    "sm_100": (GPUTarget("cuda", 100, 32), 232_448),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 65_536),
}

# Chip -> multiprocessors of the largest product that has it.
CORES = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}

# Chip -> its newest matrix instruction.
MATRIX = {"sm_80": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05.mma", "gfx942": "v_mfma"}


@dataclass(frozen=True)
class Built:
    """A kernel compiled for a chip."""

    name: str
    chip: str
    grid: tuple[int, int, int]
    shared: int
    asm: Any

    def spills(self) -> int:
        """Spills: bytes of stack on NVIDIA, registers on AMD."""
        if "amdgcn" in self.asm:
            return sum(int(n) for n in re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", self.asm["amdgcn"]))
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.asm["cubin"])
            file.flush()
            said = subprocess.run(
                [tool, "--dump-resource-usage", file.name], capture_output=True, encoding="utf-8", check=True
            )
        return sum(int(n) for n in re.findall(r"STACK:(\d+)", said.stdout))

    def on_matrix_unit(self) -> bool:
        """Whether the kernel uses the chip's newest matrix instruction."""
        text = self.asm["amdgcn"] if "amdgcn" in self.asm else self.asm["ptx"]
        return MATRIX[self.chip] in text


# Lists of the active `compiling_for` blocks. Global, because Triton keeps a kernel's launcher until the process ends.
_building: list[list[Built]] = []
_compiled: dict[str, Any] = {}


class _Launcher:
    """Records a launch instead of running it."""

    def __init__(self, src: Any, metadata: Any):
        self.metadata = metadata
        for name in launching.EXTRAS:
            setattr(self, name, getattr(metadata, name, 0))

    def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
        chip = triton.runtime.driver.active.get_current_device()
        asm = _compiled[self.metadata.hash].asm
        _building[-1].append(Built(self.metadata.name, chip, (x, y, z), self.metadata.shared, asm))


class CompileOnly(DriverBase):
    """A driver for one chip that records launches."""

    launcher_cls = _Launcher

    def __init__(self, chip: str, shared: int, cores: int):
        self.chip, self._target = chip, target_of(chip)
        properties = {
            "max_shared_mem": shared,
            "multiprocessor_count": cores,
            "max_num_regs": 65_536,
            "warpSize": self._target.warp_size,
        }
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda name, kernel, shared, device: (object(), 1, 32, 0, 1024),
            unload_module=lambda module: None,
        )

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> Any:
        return self.chip  # part of the key of Triton's kernel cache, so that one process can compile for several chips

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        return lambda call, quantiles=None, **more: (call(), [1.0] * len(quantiles or [0]))[1]

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_empty_cache_for_benchmark(self) -> Any:
        return torch.empty(0)

    def clear_cache(self, cache: Any) -> None:
        return None


def target_of(chip: str) -> GPUTarget:
    """Triton's target for a chip in CHIPS, or for another NVIDIA chip such as "sm_89"."""
    if chip in CHIPS:
        return CHIPS[chip][0]
    if not re.fullmatch(r"sm_\d{2,3}", chip):
        raise ValueError(f"chip must be one of {', '.join(CHIPS)}, or sm_ and a number; got {chip!r}")
    return GPUTarget("cuda", int(chip[3:]), 32)


def _silence_notices() -> None:
    """Silence Triton 3.9's warnings about new defaults; setting the variables they name would change cache keys."""
    silence = getattr(importlib.import_module("triton._utils"), "prewarm_deprecation_warnings", None)
    if silence is not None:
        silence()


@contextmanager
def compiling_for(chip: str, shared: int = 0, cores: int = 0) -> Iterator[list[Built]]:
    """Compile the kernels launched in this block for `chip`; yields a list of them in order of launch.

    Args:
        chip: "sm_90", "gfx942".
        shared: maximum shared memory of a program in bytes; 0: the value in `CHIPS`.
        cores: number of multiprocessors; 0: 132, as on a large chip.
    """
    target_of(chip)  # raises if the name is unknown
    if triton.knobs.runtime.interpret:
        raise RuntimeError("kernels of this process are interpreted: unset TRITON_INTERPRET to compile them")
    _silence_notices()
    built: list[Built] = []
    _building.append(built)
    config = triton.runtime.driver
    before = config._active
    stock = triton.compiler.CompiledKernel._init_handles

    def remember(self: Any) -> None:
        _compiled[self.metadata.hash] = self
        stock(self)

    config.set_active(CompileOnly(chip, shared or CHIPS.get(chip, CHIPS["sm_80"])[1], cores or 132))
    forget()
    triton.compiler.compiler.max_shared_mem.cache_clear()
    triton.compiler.CompiledKernel._init_handles = remember
    try:
        yield built
    finally:
        _building.pop()
        triton.compiler.CompiledKernel._init_handles = stock
        config._active = before
        forget()
        triton.compiler.compiler.max_shared_mem.cache_clear()
