"""What kernels launch while someone records it, and what to do when plans are forgotten.

ATen's face records a call (`faces/aten/gate.py`); kernels are in a package that it does not import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Launch(NamedTuple):
    """One launch of a Triton kernel."""

    compiled: Any  # Triton's CompiledKernel; None where kernels are interpreted
    grid: tuple[int, ...]
    args: dict[str, Any]  # by the kernel's parameters, without constants; tensors, numbers, None


recording: dict[int, list[Launch]] = {}  # by thread; empty but for the length of a call
on_forget: list[Callable[[], None]] = []  # called when tiles have changed: plans are made again
