"""The C++ entry of overrides: a call that is off, or too small to be ours, runs ATen's kernel without Python.

The native library (cpp/library.py) is compiled by the first registration of overrides, and its gate
(native/gate.cpp) is put in front of each override on its dispatch key. Without the library the overrides in Python do
the same by themselves, except for the choice by size.

On CUDA the gate also launches kernels. In auto mode another process computes what a call launches (planner.py), from
the call's key: dtypes, shapes, strides, numbers. Otherwise the sixth call with a key is recorded, and if the override
only allocated and launched Triton kernels, the gate launches further ones (cpp/launching.py).
"""

from __future__ import annotations

import ctypes
import functools
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ...cpp import launching
from ...cpp import library as native_library
from . import native
from .schema import Shape

NEVER = -1

# c10::ScalarType, whose numbers are part of torch's file format
_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


class _Selection(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int64), ("rows", ctypes.c_void_p))


# ---- one gate -------------------------------------------------------------------------------------------------------

_slots: dict[tuple[str, str], int] = {}  # (device type, overload) -> its place in a selection; never changes


class Gate:
    """The gate of one overload on one device; `install` puts it in front of the override that is registered by then."""

    def __init__(self, device: str, shape: Shape, key: str, launches: bool = False):
        library = native_library.loaded()
        assert library is not None
        self._library = library
        packet, _, overload = shape.name.partition(".")
        slot = _slots.setdefault((device, shape.name), len(_slots))
        self._made = self._checked(
            self._library.gate_new(slot, f"aten::{packet}".encode(), overload.encode(), key.encode(), launches), shape
        )
        self._shape = shape

    def install(self) -> None:
        self._checked(self._library.gate_install(self._made), self._shape)

    def remove(self) -> None:
        made, self._made = self._made, None
        self._library.gate_delete(made)

    def _checked(self, made: Any, shape: Shape) -> Any:
        if not made:
            raise RuntimeError(
                f"aten::{shape.name} cannot be overridden from C++: {self._library.gate_error().decode()}"
            )
        return made


# Of families that C++ launches: each has a signature of its own, which gate.cpp does not list, and so is entered with a
# stack and goes to Python.
RARE = frozenset({
    "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_no_training",
    "_weight_norm_interface", "_weight_norm_interface_backward", "addr_", "all.dims", "any.dims", "clamp.Tensor",
    "clamp_.Tensor", "count_nonzero", "count_nonzero.dim_IntList", "cummax", "cummin", "cumprod_", "cumsum_",
    "div_.Scalar_mode", "div_.Tensor_mode", "elu", "elu_", "elu_backward", "gelu_", "logit", "logit_", "logit_backward",
    "mvlgamma_", "nan_to_num", "nan_to_num_", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype",
    "polygamma", "polygamma_", "prod.dim_int", "round_.decimals",
})  # fmt: skip


# Of other families: their kernels depend on the arguments alone too, and models call them often.
MORE = frozenset({
    "select_backward", "slice_backward", "constant_pad_nd", "repeat", "clone", "_to_copy", "copy_", "cat",
})  # fmt: skip


def may_launch(device: str, shape: Shape, family: str) -> bool:
    """Whether calls of an overload may be launched from C++."""
    if device != "cuda" or shape.kind == "out":
        return False
    return shape.name in MORE or (family in launching.FAMILIES and shape.name not in RARE)


def make(device: str, shape: Shape, key: str, family: str = "") -> Gate | None:
    """A gate that has ATen's kernel of now, or None where the override must be entered through Python.

    That is so without the library, and for overloads that have no kernel of ATen's, or one that is in Python. Calls of
    these families may be launched from C++.
    """
    if native_library.loaded() is None or shape.name in native.DELEGATES or not native.exists(shape, key):
        return None
    seeded = torch.Tag.nondeterministic_seeded in shape.op.tags
    return Gate(device, shape, key, may_launch(device, shape, family) and not seeded and launching.drives())


# ---- what is on -----------------------------------------------------------------------------------------------------

Limits = Mapping[torch.dtype, int]
Thresholds = Callable[[str, str], tuple[Limits, Limits, bool]]

_made: dict[tuple[tuple[int, ...] | None, ...], tuple[Any, ...]] = {}  # by contents; C++ has pointers: never freed
_selections: dict[tuple[frozenset[str], Thresholds | None, int], Any] = {}  # by the arguments of `select`


def select(names: frozenset[str], thresholds: Thresholds | None) -> None:
    """Turn these overloads on, and no others.

    `thresholds(overload, device)` gives, by dtype, the smallest number of elements of the first tensor for which a call
    is ours: 0 for all calls, NEVER for none, which is also so for a dtype that it does not name. It gives that twice:
    for calls that are launched from C++, and for those that go to Python. A call without tensors is ours if any is. If
    the third value is true, Python runs only calls that come often, within the time that `allow` grants; torch's kernel
    runs the others. Without the function all calls are ours.
    """
    library = native_library.loaded()
    if library is None:
        return
    requested = names, thresholds, len(_slots)
    found = _selections.get(requested)
    if found is None:
        contents = tuple(_row(n, d, thresholds, library.gate_types) if n in names else None for d, n in _slots)
        if contents not in _made:
            _made[contents] = _as_c(contents)
        found = _selections[requested] = ctypes.addressof(_made[contents][0])
    library.gate_select(found)


def forget() -> None:
    """Compute thresholds again at the next `select`."""
    _selections.clear()


def _row(name: str, device: str, thresholds: Thresholds | None, types: int) -> tuple[int, ...]:
    if thresholds is None:
        return (0,) * (2 * types + 1)
    rows = []
    *limits, patient = thresholds(name, device)
    for given in limits:
        row = [NEVER] * types
        for dtype, least in given.items():
            if dtype in _TYPES:
                row[_TYPES[dtype]] = least
        if any(least != NEVER for least in given.values()):
            row[-1] = 0
        rows += row
    return (*rows, int(patient))


@functools.cache
def _row_as_c(row: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(row))(*row)


def _as_c(contents: Iterable[tuple[int, ...] | None]) -> tuple[Any, ...]:
    rows = [None if row is None else ctypes.addressof(_row_as_c(row)) for row in contents]
    pointers = (ctypes.c_void_p * len(rows))(*rows)
    return _Selection(len(rows), ctypes.addressof(pointers)), pointers


def slots() -> dict[tuple[str, str], int]:
    """The number of each overload on each device type, in requests to the planner."""
    return dict(_slots)


def plan(socket: socket.socket | None) -> None:
    """Request the launches of auto mode from the planner behind this socket; None: record in this process."""
    if (library := native_library.loaded()) is not None:
        library.gate_plan(-1 if socket is None else socket.fileno())


def waiting() -> int:
    """How many requests the planner has not answered yet."""
    library = native_library.loaded()
    return 0 if library is None else library.gate_waiting()


# Of the time that passes, and seconds that are saved up.
SHARE, MOST = 0.02, 0.01


def allow(share: float = SHARE, seconds: float = MOST) -> None:
    """How much time auto mode may spend in Python on calls that torch's kernel could run."""
    if (library := native_library.loaded()) is not None:
        library.gate_allow(share, seconds)


def inside(by: int) -> None:
    """Count this thread in (1) or out (-1) of references: it gets ATen's kernels while it runs one."""
    if (library := native_library.loaded()) is not None:
        library.gate_inside(by)
