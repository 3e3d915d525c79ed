"""The outcomes of a kernel's check: a wrong result, a lost device, an error message."""

from __future__ import annotations

from typing import Any

from ...core.errors import OpmuxError

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


def in_one_line(error: BaseException, most: int = 200) -> str:
    """The class of an error and its message, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"


def as_tuple(results: Any) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
