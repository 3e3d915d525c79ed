"""C++ launches kernels on the CPU: a driver in Python stands in for CUDA's."""

import contextlib
import ctypes

import pytest

from opmux.core import policy
from opmux.core.default import get_default_manager
from opmux.cpp import functions, launching
from opmux.cpp import library as native_library

CALLS_TO_RECORD = 6  # as in launches.h
UINT = ctypes.c_uint
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, UINT, UINT, UINT, UINT, UINT, UINT, UINT, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip
KEPT: list[object] = []  # C++ may still call or read it after a test


class CudaLauncher:
    """Has the name of Triton's class: by it a plain launch is recognised."""

    launch_cooperative_grid = launch_pdl = False
    global_scratch_size = profile_scratch_size = 0


def driver_of(launch, *loads):
    """A driver that launches by this function; `loads` are functions too, as ctypes has them."""
    keep = LAUNCH(launch), *loads
    first, *others = (ctypes.cast(one, ctypes.c_void_p) for one in keep)
    made = launching.Driver.of(first, None, *others)
    KEPT.extend((keep, made))
    return made


@contextlib.contextmanager
def launching_by(launch, monkeypatch):
    """C++ launches kernels of overrides and of ops with gradients on the CPU by this function."""
    monkeypatch.setattr(functions._State, "device", "cpu")
    monkeypatch.setattr(launching._State, "drives", True)
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    get_default_manager().prepare()  # loading plugins makes C++ forget
    # A context of another test may still refer to a policy scope.
    monkeypatch.setattr(policy, "_live", {})
    monkeypatch.setattr(policy, "_told", False)
    monkeypatch.setattr(launching._State, "paused", set())
    before = launching._State.driver
    launching.drive(driver_of(launch))
    yield
    launching.clear()
    launching.drive(before)
