"""`opmux warm SCRIPT.py`: finds the kernels that a script launches, without a device.

The script runs once. Each tensor that it puts on a CUDA device becomes a meta tensor, which has a shape and a dtype but
no values. The run stops at the first line that needs a value (`loss.item()`, `print(x)`, a loop over a tensor); the
kernels launched before that line are compiled.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ...core.errors import quoted
from .. import arguments, device_translation
from .compiling import Workload

META = torch.device("meta")


class Enough(BaseException):
    """Raised at the time limit. A BaseException, so that `except Exception` in the script does not catch it."""


class Stopped(Exception):
    """Raised if the script exits with an error or reaches its time limit."""


def workload(name: str, args: list[str], seconds: float) -> Workload:
    """A workload that runs a script."""
    if not os.path.isfile(name):  # noqa: PTH113  # False for a name that is too long
        raise arguments.BadOption(f"there is no file {quoted(name)}. Allowed: a Python script, or a model")
    if not seconds > 0:
        raise arguments.BadOption(f"--seconds {seconds:g} is not allowed. Allowed: more than 0")
    return Workload(Path(name).name, lambda: _run(name, args, seconds), passes=1, may_stop=True)


def _run(name: str, args: list[str], seconds: float) -> None:
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [name, *args]
    sys.path.insert(0, str(Path(name).resolve().parent))
    try:
        with _limited(seconds), _a_gpu_without_memory(), contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(name, run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise Stopped(f"it exits with {stop.code}") from stop
    except Enough:
        raise Stopped(f"the time limit of {seconds:g} s was reached (--seconds)") from None
    finally:
        sys.argv[:], sys.path[:] = argv, path


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def over(number: int, frame: Any) -> None:
        raise Enough

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # repeated, as a bare `except` or `__del__` may swallow it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _a_gpu_without_memory() -> Iterator[None]:
    """Make torch report one CUDA device; tensors that are put there become meta tensors."""
    answers = {
        "is_available": True,
        "device_count": 1,
        "is_bf16_supported": True,
        "is_initialized": True,
        "init": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "get_device_name": "meta",
    }
    with contextlib.ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *args, value=value, **kwargs: value))
        stack.enter_context(device_translation.translating_to(META))
        yield
