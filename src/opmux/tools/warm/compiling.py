"""Compiles the kernels that a workload launches on a chip: runs it on meta tensors, with the chip's implementations.

A launch whose kernel is not in Triton's cache is listed and skipped (kernels/lib/compile_ahead.py). Several processes
then compile the list.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...core.default import get_default_manager
from ...core.errors import nearest
from ...core.log import logger
from ...machine import devices
from ...machine.devices import Chip
from ..arguments import BadOption

PASSES = 8  # if a kernel cannot be used, the next pass compiles its replacement; 2 were always enough


class At(NamedTuple):
    """The chip that kernels are compiled for."""

    chip: Chip
    shared: int  # bytes of shared memory that a program may have
    cores: int
    here: bool  # whether this machine has the chip

    @property
    def arch(self) -> str:
        assert self.chip.arch is not None
        return self.chip.arch


@dataclass
class Result:
    """The outcome of compiling."""

    cached: int = 0  # kernels that already were in Triton's cache
    compiled: int = 0  # compiled by this process
    shared: int = 0  # compiled meanwhile by another process
    failed: dict[str, str] = field(default_factory=dict)  # kernel -> reason
    stopped: str = ""  # where and why the workload stopped early
    too_large: int = 0  # kernels of the last pass that do not fit on the chip

    def record(self, name: str, outcome: str) -> None:
        """Count a kernel that was missing."""
        if outcome == "compiled":
            self.compiled += 1
        elif outcome == "there":
            self.shared += 1
        else:
            self.failed[name] = outcome

    @property
    def kernels(self) -> int:
        return self.cached + self.compiled + self.shared + len(self.failed)


class Workload(NamedTuple):
    """A model or script, which is run to find the kernels that it launches."""

    name: str
    step: Callable[[], None]
    passes: int = PASSES
    may_stop: bool = False  # whether it may stop before its end


def compile_for(
    step: Callable[[], None],
    at: At,
    jobs: int,
    show: Callable[[int, int, str], None] = lambda done, total, now: None,
    *,
    passes: int = PASSES,
    needed: Callable[[], bool] = lambda: True,
) -> Result:
    """Compile the kernels that a step launches on a chip. Call it inside `assumed`.

    Args:
        step: called once in each pass, on meta tensors.
        at: the chip.
        jobs: the number of processes.
        show: called with the number of finished kernels, the number of known kernels, and the kernel compiled last.
        passes: the maximum number of passes.
        needed: called every second while kernels are compiled. If it returns False, compiling stops.
    """
    from ...kernels.lib import compile_ahead

    result = Result()
    failed: dict[str, str] = {}  # kernel's key -> reason
    for number in range(passes):
        listed, result.stopped = kernels_of(step, failed)
        todo = list(listed.missing.values())
        if number == 0:
            result.cached = len(listed.cached)
            # Add cached kernels: they have no launchers if a machine without the chip has filled the cache.
            todo += list(listed.cached.values()) if at.here else []
        known = result.kernels + len(listed.missing)
        show(result.kernels, known, "")
        if not todo:
            break
        with contextlib.closing(compile_ahead.compile_all(todo, jobs, launchers=at.here, needed=needed)) as outcomes:
            for kernel, outcome in outcomes:
                if kernel.key in listed.missing:
                    result.record(kernel.name, outcome)
                    result.too_large += number == passes - 1 and kernel.shared_memory() > at.shared
                    show(result.kernels, known, kernel.name)
                if outcome not in (compile_ahead.COMPILED, compile_ahead.THERE):
                    failed[kernel.key] = outcome
        if not listed.missing or not needed():
            break
    return result


def kernels_of(step: Callable[[], None], failed: dict[str, str] | None = None) -> tuple[Any, str]:
    """The kernels that a step launches (a `Found`), and why it stopped early, or "". Call it inside `assumed`.

    `failed`: kernels that cannot be compiled, and why, by key.
    """
    from ...kernels.lib import compile_ahead

    with compile_ahead.listing(failed) as found:
        return found, _stopped(step)


def _stopped(step: Callable[[], None]) -> str:
    """Run a step. Returns "" if it finished, else why and where it stopped."""
    try:
        step()
    except Exception as error:
        logger.debug("the workload stops", exc_info=True)
        return f"{_where(error)}: {type(error).__name__}: {first_line(error)}"
    return ""


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _where(error: BaseException) -> str:
    """File and line in the program or the model where an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    of_torch, of_ours = Path(torch.__file__).parent, Path(__file__).parents[2]
    below = ("<", *(f"{folder}{os.sep}" for folder in (of_torch, of_torch.with_name("triton"), of_ours)))
    outside = [f for f in frames if not f.filename.startswith(below)] or frames
    return f"{outside[-1].filename}:{outside[-1].lineno}"


# ---- the chip -------------------------------------------------------------------------------------------------------


def target(chip: str | None, index: int = 0, option: str = "--chip") -> At:
    """The chip with this name, or this machine's chip if `chip` is None. `option`: what errors call the option.

    Shared memory and multiprocessors are queried from this machine's chip, and assumed for any other.
    """
    from ...kernels.lib.compile_only import CHIPS, CORES, target_of

    local = _in_another_process(index)
    if chip is None and local is None:
        raise BadOption(f"this machine has no GPU: name a chip with {option}. Allowed: {_allowed()}")
    if local is not None and chip in (None, local.arch):
        return local
    assert chip is not None
    try:
        target_of(chip)
    except ValueError:
        close = nearest(chip, CHIPS)
        hint = f": did you mean {close}?" if close else "."
        raise BadOption(f"{option} {chip!r} is not known{hint} Allowed: {_allowed()}") from None
    like = chip if chip in CHIPS else "sm_80"
    return At(Chip.of_arch(chip), CHIPS[like][1], CORES[like], False)


def _allowed() -> str:
    from ...kernels.lib.compile_only import CHIPS

    return f"{', '.join(CHIPS)}, or sm_ and the number of another chip of NVIDIA's"


def _in_another_process(index: int) -> At | None:
    """This machine's GPU, queried in a child process, because a process that has used CUDA should not fork."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            with os.fdopen(send, "wb") as out:
                out.write(json.dumps(_here(index)).encode())
        except Exception as error:  # any error of a driver
            logger.warning("this machine's GPU cannot be queried: %s: %s", type(error).__name__, error)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    chip = json.loads(text or "null")
    return None if chip is None else At(Chip(*chip["chip"]), chip["shared"], chip["cores"], True)


def _here(index: int) -> dict[str, Any] | None:
    if devices.infer_device() != "cuda":
        return None
    torch.cuda.set_device(index)
    chip, properties = devices.chip_of("cuda"), torch.cuda.get_device_properties(index)
    shared = getattr(properties, "shared_memory_per_block_optin", 0)
    return {"chip": list(vars(chip).values()), "shared": shared, "cores": properties.multi_processor_count}


@contextlib.contextmanager
def assumed(at: At) -> Iterator[At]:
    """In a block, plan and compile for a chip."""
    from ...kernels.lib import compile_only, config

    try:
        compile_only.target_of(at.arch)
    except ValueError:
        raise BadOption(f"kernels cannot be compiled ahead for {at.chip}. Allowed: {_allowed()}") from None
    assert at.chip.vendor is not None
    with (
        devices.assume(at.chip.vendor, at.arch),
        config.as_on(at.chip),
        compile_only.compiling_for(at.arch, at.shared, at.cores),
    ):
        get_default_manager().prepare()
        yield at


def check_installed() -> None:
    """Raise if kernels cannot be compiled on this system."""
    if importlib.util.find_spec("triton") is None or not hasattr(os, "fork"):
        raise BadOption("there is nothing to compile without Triton, on Linux: pip install triton")


def check_triton() -> None:
    """Raise if kernels cannot be compiled, or if later processes could not use them."""
    from triton import knobs

    if knobs.runtime.interpret:
        raise BadOption("TRITON_INTERPRET is set: kernels are interpreted, not compiled. Unset it")
    if knobs.compilation.always_compile:
        raise BadOption("TRITON_ALWAYS_COMPILE is set: Triton never uses its cache. Unset it")
