"""The outcomes of a kernel's check: a wrong result, a lost device, an error message."""

from __future__ import annotations

from typing import Any

from ...core.errors import OpmuxError

# Parts of the messages of errors after which every call of the process fails.
BROKEN = ("CUDA error", "AcceleratorError", "HIP error", "device-side assert")


class Wrong(Exception):
    """An impl is wrong, and the message says how. `error` is the largest difference; None if there is no number."""

    def __init__(self, message: str, error: float | None = None):
        super().__init__(message)
        self.error = error


class DeviceLost(OpmuxError, RuntimeError):
    """A kernel broke the device, so that nothing more can be measured."""


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
