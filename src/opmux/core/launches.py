"""Records of kernel launches, and callbacks that run when plans are discarded.

cpp/launching.py does not import the package of the kernels. So the kernels report their launches through this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor


class TritonLaunch(NamedTuple):
    """One launch of a Triton kernel."""

    compiled: Any  # Triton's CompiledKernel; None where kernels are interpreted
    grid: tuple[int, ...]
    args: dict[str, Any]  # parameter name -> tensor, number or None; constexpr parameters are left out


@dataclass
class Record:
    """The launches that one thread has made in a call."""

    launches: list[TritonLaunch] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)  # allocated for the launches: results and workspaces


recording: dict[int, Record] = {}  # thread -> record; has entries only during a recorded call
on_forget: list[Callable[[], None]] = []  # called after tiles have changed, so that plans are made again
on_rebind: list[Callable[[], None]] = []  # called when another implementation of an op may be chosen
