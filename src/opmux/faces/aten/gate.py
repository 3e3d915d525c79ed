"""The C++ entry of overrides: disabled calls, and calls too small for our kernel, run ATen's kernel without Python.

The first registration of overrides compiles the native library (cpp/library.py). A gate (native/gate.cpp) is then
installed in front of each override on its dispatch key. Without the library the Python overrides do the same work, but
cannot choose by size.

On CUDA the gate also launches kernels. In auto mode another process (planner.py) computes what a call launches; it sees
only the call's key: dtypes, shapes, strides, numbers. Without that process, the sixth call with a key is recorded. If
that call only allocated memory and launched Triton kernels, the gate launches later calls with the same key
(cpp/launching.py).
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
from .schema import OverloadSchema

NEVER = -1

# c10::ScalarType, whose numbers are part of torch's file format
_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}


class _Selection(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int64), ("rows", ctypes.c_void_p))


# ---- one gate -------------------------------------------------------------------------------------------------------

_slots: dict[tuple[str, str], int] = {}  # (device type, overload) -> its index, which is the same in all selections


class Gate:
    """The gate of one overload on one device. Call `install` after the override is registered."""

    def __init__(self, device: str, shape: OverloadSchema, key: str, launches: bool = False):
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
        handle, self._made = self._made, None
        self._library.gate_delete(handle)

    def _checked(self, result: Any, shape: OverloadSchema) -> Any:
        if not result:
            raise RuntimeError(
                f"aten::{shape.name} cannot be overridden from C++: {self._library.gate_error().decode()}"
            )
        return result


# Overloads that go to Python although C++ launches their families: gate.cpp has no entry for their signatures, so torch
# calls them with a boxed stack.
RARE = frozenset(
    """
    _native_batch_norm_legit _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training
    _weight_norm_interface _weight_norm_interface_backward addr_ all.dims any.dims clamp.Tensor clamp_.Tensor
    count_nonzero count_nonzero.dim_IntList cummax cummin cumprod_ cumsum_ div_.Scalar_mode div_.Tensor_mode elu
    elu_ elu_backward gelu_ logit logit_ logit_backward mvlgamma_ nan_to_num nan_to_num_ norm.ScalarOpt_dim
    norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype polygamma polygamma_ prod.dim_int round_.decimals
    """.split()
)


# C++ also launches these overloads of other families: models call them often, and the arguments determine the kernels.
MORE = frozenset(
    {
        "select_backward",
        "slice_backward",
        "constant_pad_nd",
        "repeat",
        "clone",
        "_to_copy",
        "copy_",
        "cat",
    }
)


def may_launch(device: str, shape: OverloadSchema, family: str) -> bool:
    """Whether calls of an overload may be launched from C++."""
    if device != "cuda" or shape.kind == "out":
        return False
    return shape.name in MORE or (family in launching.FAMILIES and shape.name not in RARE)


def make(device: str, shape: OverloadSchema, key: str, family: str = "") -> Gate | None:
    """A gate that stores ATen's current kernel, or None if torch must call the override through Python.

    The result is None if the library is not loaded, ATen has no kernel of the overload, or the overload delegates to
    another. `family` determines whether C++ may launch the overload.
    """
    if native_library.loaded() is None or shape.name in native.DELEGATES or not native.exists(shape, key):
        return None
    seeded = torch.Tag.nondeterministic_seeded in shape.op.tags
    return Gate(device, shape, key, may_launch(device, shape, family) and not seeded and launching.drives())


# ---- what is on -----------------------------------------------------------------------------------------------------

Limits = Mapping[torch.dtype, int]
Thresholds = Callable[[str, str], tuple[Limits, Limits, bool]]

_made: dict[tuple[tuple[int, ...] | None, ...], tuple[Any, ...]] = {}  # limits -> C data; kept: C++ has pointers
_selections: dict[tuple[frozenset[str], Thresholds | None, int], Any] = {}  # cache, keyed by the arguments of `select`


def select(names: frozenset[str], thresholds: Thresholds | None) -> None:
    """Enable these overloads and disable all others.

    `thresholds(overload, device)` returns two mappings from dtype to the smallest number of elements of the first
    tensor for which our kernel runs: one for calls that C++ launches, one for calls that go to Python. 0 means all
    calls; NEVER, or a dtype that is not listed, means none. A call without tensors runs our kernel if any dtype has a
    limit other than NEVER. If the third value is true, Python runs only frequent calls, within the time that `allow`
    grants, and torch's kernel runs the others. Without `thresholds`, all calls run our kernels.
    """
    library = native_library.loaded()
    if library is None:
        return
    requested = names, thresholds, len(_slots)
    address = _selections.get(requested)
    if address is None:
        contents = tuple(_row(n, d, thresholds, library.gate_types) if n in names else None for d, n in _slots)
        if contents not in _made:
            _made[contents] = _as_c(contents)
        address = _selections[requested] = ctypes.addressof(_made[contents][0])
    library.gate_select(address)


def forget() -> None:
    """Clear the cache: the next `select` computes thresholds again."""
    _selections.clear()


def _row(name: str, device: str, thresholds: Thresholds | None, types: int) -> tuple[int, ...]:
    if thresholds is None:
        return (0,) * (2 * types + 1)
    rows = []
    *limits, patient = thresholds(name, device)
    for thresholds_by_dtype in limits:
        row = [NEVER] * types
        for dtype, least in thresholds_by_dtype.items():
            if dtype in _TYPES:
                row[_TYPES[dtype]] = least
        if any(least != NEVER for least in thresholds_by_dtype.values()):
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
    """(device type, overload) -> the number that identifies it in requests to the planner."""
    return dict(_slots)


def plan(socket: socket.socket | None) -> None:
    """Request auto mode's launches from the planner at this socket; with None, record them in this process."""
    if (library := native_library.loaded()) is not None:
        library.gate_plan(-1 if socket is None else socket.fileno())


def waiting() -> int:
    """The number of requests that the planner has not answered yet."""
    library = native_library.loaded()
    return 0 if library is None else library.gate_waiting()


# Python may use this share of elapsed time; unused time accumulates up to MOST seconds.
SHARE, MOST = 0.02, 0.01


def allow(share: float = SHARE, seconds: float = MOST) -> None:
    """Limit the time that auto mode may spend in Python on calls that torch's kernel could run."""
    if (library := native_library.loaded()) is not None:
        library.gate_allow(share, seconds)


def inside(by: int) -> None:
    """Enter (1) or leave (-1) a reference implementation on this thread; inside it, ATen's kernels run."""
    if (library := native_library.loaded()) is not None:
        library.gate_inside(by)
