"""Let C++ launch kernels on the CPU: a driver written in Python replaces CUDA's."""

import contextlib
import ctypes

import pytest

from opmux.core import policy
from opmux.core.default import get_default_manager
from opmux.cpp import functions, launching
from opmux.cpp import library as native_library

CALLS_TO_RECORD = 6  # the constant in launches.h
UINT = ctypes.c_uint
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, UINT, UINT, UINT, UINT, UINT, UINT, UINT, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip
KEPT: list[object] = []  # objects that C++ may still call or read after a test


class CudaLauncher:
    """C++ recognises a launch without hooks or options by the name of Triton's launcher class, which is this name."""

    launch_cooperative_grid = launch_pdl = False
    global_scratch_size = profile_scratch_size = 0


def driver_of(launch, *loads):
    """A driver that launches through the function `launch`; `loads` are its other entry points, as ctypes functions."""
    keep = LAUNCH(launch), *loads
    first, *others = (ctypes.cast(one, ctypes.c_void_p) for one in keep)
    driver = launching.Driver.of(first, None, *others)
    KEPT.extend((keep, driver))
    return driver


@contextlib.contextmanager
def launching_by(launch, monkeypatch):
    """Make C++ call the function `launch` on the CPU to launch the kernels of overrides and of differentiable ops."""
    monkeypatch.setattr(functions._FunctionsState, "device", "cpu")
    monkeypatch.setattr(launching._LaunchingState, "drives", True)
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    get_default_manager().prepare()  # loading plugins later would clear the launches recorded in C++
    # A context of another test may still refer to a policy scope.
    monkeypatch.setattr(policy, "_live", {})
    monkeypatch.setattr(policy, "_notified", False)
    monkeypatch.setattr(launching._LaunchingState, "paused", set())
    before = launching._LaunchingState.driver
    launching.drive(driver_of(launch))
    yield
    launching.clear()
    launching.drive(before)
