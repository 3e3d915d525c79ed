"""The outcomes of a kernel's check: a wrong result, a lost device, an error message."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch

from ...core.errors import OpmuxError

OPMUX = Path(__file__).parents[2]
TOOLS, SIMULATOR = OPMUX / "tools", OPMUX / "tools" / "simulator"
# Folders whose code calls implementations, or is called by them.
AROUND = (Path(torch.__file__).parent, OPMUX / "core", OPMUX / "faces", OPMUX / "kernels" / "lib", SIMULATOR)

# Text in the messages of errors after which every call in the process fails.
BROKEN = ("CUDA error", "AcceleratorError", "HIP error", "device-side assert")


class Wrong(Exception):
    """Raised for a wrong result; the message describes it. `error` is the largest difference, or None if unknown."""

    def __init__(self, message: str, error: float | None = None):
        super().__init__(message)
        self.error = error


class DeviceLost(OpmuxError, RuntimeError):
    """Raised if a kernel has broken the device, so that nothing more can be measured."""


def has_broken_the_device(error: Exception | str) -> bool:
    return any(part in str(error) for part in BROKEN)


def short_error(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def raised(error: BaseException) -> str:
    """`raised KeyError: 'x' (at acme/ops/gelu.py:12)`, with the last line of the implementation that ran."""
    at = place(error)
    return f"raised {short_error(error)}" + (f" (at {at})" if at else "")


def place(error: BaseException) -> str:
    """File and line of the last frame of an implementation in an error's traceback; "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(TOOLS) and not file.is_relative_to(SIMULATOR):
            return ""  # all frames above this one belong to the command
        if file.is_file() and "triton" not in file.parts and not any(file.is_relative_to(a) for a in AROUND):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def in_one_line(error: BaseException, most: int = 200) -> str:
    """The class of an error and its message, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"


def as_tuple(results: Any) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
