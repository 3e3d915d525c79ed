"""Triton kernels launched from C++. This module turns native/launches.h on and off, and records launches for it.

C++ repeats calls that Python has recorded. A `LaunchRecorder` records what a call does. If the call only allocated and
launched kernels, further calls with the same key (dtypes, shapes, strides, numbers) launch the same kernels with the
same numbers; only the pointers are those of the new tensors. `clear` discards all recorded calls.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import re
import struct
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..core import launches
from ..core.lock import ForkSafeLock
from ..core.log import logger
from ..core.policy import on_scopes

# Families whose launches depend only on the arguments. Matrix products also depend on torch's float32 precision.
FAMILIES = frozenset({"pointwise", "reduce", "scan", "softmax", "norm", "channel_norm", "activation"})

_MOST_PARAMS, _MOST_LAUNCHES, _MOST_SPACES, MOST_TENSORS = 64, 4, 8, 8  # must match launches.h
_FORMATS = {
    "i1": "<b",
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u1": "<B",
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "f32": "<f",
    "fp64": "<d",
}


class RecordedLaunch(ctypes.Structure):
    """One launch."""

    _fields_ = (
        ("function", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("count", ctypes.c_int32),
        ("is_pointer", ctypes.c_uint8 * _MOST_PARAMS),
        ("values", ctypes.c_uint64 * _MOST_PARAMS),
    )


class _Space(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class Recorded(ctypes.Structure):
    """All launches of a call."""

    _fields_ = (
        ("launches", ctypes.c_int32),
        ("spaces", ctypes.c_int32),
        ("launch", RecordedLaunch * _MOST_LAUNCHES),
        ("space", _Space * _MOST_SPACES),
    )


_BEGIN, _END = ctypes.CFUNCTYPE(ctypes.c_int), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Recorded))


class Driver(ctypes.Structure):
    """The driver functions with which C++ launches, and the functions with which it makes Python record a call."""

    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("begin", _BEGIN),
        ("end", _END),
        ("load", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("attribute", ctypes.c_void_p),
        ("capturing", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, launch: ctypes.c_void_p, stream: ctypes.c_void_p | None, *loads: ctypes.c_void_p) -> Driver:
        """`loads`: the functions that load a kernel compiled by another process (cuModuleLoadData and so on)."""
        return cls(launch, stream, _BEGIN(_begin), _END(_end), *loads)


_LOADS = ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuStreamIsCapturing")


class _LaunchingState:
    lock = ForkSafeLock().arm()
    library: Any = None  # native_library.Library
    driver: Driver | None = None  # C++ has its address, so keep it alive
    drives: bool | None = None  # whether C++ can launch on CUDA; None: not yet determined
    recorded = False  # whether anything was recorded since the last `clear`
    planned = False  # whether another process may send launch records to C++ at any time
    paused: set[str] = set()  # reasons why C++ launches nothing now; with any reason, every call goes to Python


def attach(library: Any) -> None:
    """Make the native library launch kernels."""
    with _LaunchingState.lock.held:
        _LaunchingState.library = library
        drive(_LaunchingState.driver)


def drives() -> bool:
    """Whether C++ can launch on CUDA: cuLaunchKernel and torch's stream are found, and Triton's version is tested.

    The native library checks torch's version itself, before it is compiled.
    """
    with _LaunchingState.lock.held:
        if _LaunchingState.drives is None and (why := untested("triton")):
            logger.warning("kernels are launched from Python, 5 to 20 us slower per call: %s", why)
            _LaunchingState.drives = False
        if _LaunchingState.drives is None:
            address = lambda of, name: ctypes.cast(getattr(of, name), ctypes.c_void_p)
            try:
                cuda = ctypes.CDLL("libcuda.so.1")
                of_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
                stream = address(of_torch, "aoti_torch_get_current_cuda_stream")
                drive(Driver.of(address(cuda, "cuLaunchKernel"), stream, *(address(cuda, name) for name in _LOADS)))
                _LaunchingState.drives = True
            except (OSError, AttributeError) as error:
                logger.info("kernels are launched from Python: %s", error)
                _LaunchingState.drives = False
        return _LaunchingState.drives


# The first and the last version whose internals were tested. C++ uses a private member of torch's dispatcher.
# Triton's kernels take additional arguments after their parameters: two pointers to scratch memory.
TESTED = {"torch": ((2, 11), (2, 13)), "triton": ((3, 6), (3, 9))}


def untested(package: str) -> str:
    """Why C++ must not be used with the installed version of torch or Triton; "" if it may be."""
    first, last = TESTED[package]
    try:
        version = torch.__version__ if package == "torch" else importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a vendor may distribute its build under another name
        return ""
    installed = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if first <= installed <= last:
        return ""
    allowed = " to ".join(".".join(map(str, v)) for v in (first, last))
    return f"{package} {version} is installed; C++ was tested with {package} {allowed}"


def drive(driver: Driver | None) -> None:
    """Launch with these functions from now on. `driver` must stay alive, because C++ may read it at any time."""
    _LaunchingState.driver = driver
    if _LaunchingState.library is not None:
        _LaunchingState.library.launches_driver(None if driver is None else ctypes.addressof(driver))
    for hooks in (launches.on_forget, launches.on_rebind):
        if clear not in hooks:
            hooks.append(clear)
    _set_launching()


def pause(why: str, on: bool) -> None:
    """Add (`on`) or remove a reason not to launch from C++: "counted", or "policy" for a live policy scope."""
    if on != (why in _LaunchingState.paused):
        (_LaunchingState.paused.add if on else _LaunchingState.paused.discard)(why)
        _set_launching()


def planned() -> None:
    """Remember that another process plans launches: its records may arrive at any time (faces/aten/planner.py)."""
    _LaunchingState.planned = True


def clear() -> None:
    """Discard the launch records, because another implementation or other tiles may be chosen."""
    if _LaunchingState.recorded or _LaunchingState.planned:
        _LaunchingState.recorded = False
        if _LaunchingState.library is not None:
            _LaunchingState.library.launches_clear()


def launched() -> int:
    """How many kernels were launched from C++ in this process."""
    return 0 if _LaunchingState.library is None else _LaunchingState.library.launches_launched()


def live_records() -> int:
    """How many launch records are in memory: in C++'s tables, or for the backward of a graph."""
    return 0 if _LaunchingState.library is None else _LaunchingState.library.launches_records()


def _set_launching() -> None:
    if _LaunchingState.library is not None:
        _LaunchingState.library.launches_launch(_LaunchingState.driver is not None and not _LaunchingState.paused)


# ---- recording ------------------------------------------------------------------------------------------------------


class _Watch(TorchDispatchMode):
    """Records whether a call does anything on the device besides launching our kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.pure = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.pure = self.pure and (func in _ALLOCATE or _is_view(func))
        return func(*args, **(kwargs or {}))


_ALLOCATE = (
    torch.ops.aten.empty.memory_format,
    *(getattr(torch.ops.aten, n).default for n in ("empty_strided", "empty_like", "new_empty", "new_empty_strided")),
)


def _is_view(func: Any) -> bool:
    schema = func._schema
    return bool(schema.returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


class LaunchRecorder:
    """Records what this thread does in a `with` block. C++ calls `_begin` and `_end` instead."""

    def __init__(self) -> None:
        self._watch = _Watch()
        self.record = launches.Record()

    def __enter__(self) -> LaunchRecorder:
        self._watch.__enter__()
        launches.recording[threading.get_ident()] = self.record
        _LaunchingState.recorded = True
        return self

    def __exit__(self, *error: Any) -> None:
        del launches.recording[threading.get_ident()]
        self._watch.__exit__(*error)

    @property
    def pure(self) -> bool:
        """Whether the call did nothing but allocate, make views and launch our kernels."""
        return self._watch.pure

    def describe(self, into: Recorded) -> bool:
        """Describe the launches for C++. Returns False if the call did anything else or C++ cannot repeat a launch."""
        record = self.record
        if not self.pure or not 0 < len(record.launches) <= _MOST_LAUNCHES:
            return False
        spaces = [t.untyped_storage() for t in record.made if t.numel()]
        if len(spaces) > _MOST_SPACES:
            return False
        try:
            if not all(map(describe, record.launches, into.launch)):
                return False
        except (AttributeError, TypeError, ValueError, struct.error) as error:  # an untested version of Triton
            logger.debug("a launch cannot be described: %s", error)
            return False
        into.launches, into.spaces = len(record.launches), len(spaces)
        for space, storage in zip(into.space, spaces):
            space.address, space.bytes = storage.data_ptr(), storage.nbytes()
        return True


def is_recording() -> bool:
    """Whether the launches of this thread are being recorded."""
    return threading.get_ident() in launches.recording


_recorders: dict[int, LaunchRecorder] = {}
_kernels: dict[int, Any] = {}  # function -> Triton's kernel, kept so that it is not unloaded
# The classes of launchers whose kernels C++ can launch: Triton's, and that of kernels/lib/driver_launcher.py.
LAUNCHERS = frozenset({"CudaLauncher", "DriverLauncher"})
# Features of a launch that C++ does not support, because it passes nothing but parameters.
EXTRAS = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size", "gsan_enabled")


def _begin() -> int:
    """Start to record what this thread launches. C++ calls this function, so it must not raise."""
    if is_recording():
        return 0
    _recorders[threading.get_ident()] = LaunchRecorder().__enter__()
    return 1


def _end(into: Any) -> int:
    """Stop recording and describe the launches. Returns 1 if C++ can repeat the call."""
    recorder = _recorders.pop(threading.get_ident())
    recorder.__exit__(None, None, None)
    return int(recorder.describe(into.contents))


def describe(launch: launches.TritonLaunch, into: RecordedLaunch) -> bool:
    """Describe one launch for C++. Returns False if it is not on CUDA, or uses features in `EXTRAS` or clusters."""
    compiled, run = launch.compiled, getattr(launch.compiled, "run", None)
    if type(run).__name__ not in LAUNCHERS or any(getattr(run, name, 0) for name in EXTRAS):
        return False
    warps, ctas, shared = compiled.packed_metadata
    if ctas != 1:
        return False
    try:
        params = parameters(launch)
    except ValueError:
        return False
    into.function, into.threads, into.shared, into.count = compiled.function, 32 * warps, shared, len(params)
    into.grid[:] = (*launch.grid, 1, 1)[:3]
    for i, (kind, value) in enumerate(params):
        into.is_pointer[i] = kind.startswith("*")
        into.values[i] = value if not kind.startswith("*") else 0 if value is None else value.data_ptr()
    _kernels[compiled.function] = compiled
    return True


def parameters(launch: launches.TritonLaunch) -> list[tuple[str, Any]]:
    """The parameters of a launch: (Triton's type, value). The value is a tensor or None, or a number's bytes.

    Raises ValueError if C++ cannot pass one of them.
    """
    pairs = [(name, kind) for name, kind in launch.compiled.src.signature.items() if kind != "constexpr"]
    values = launch.args
    if len(pairs) > _MOST_PARAMS or not all(name in values for name, _ in pairs):
        raise ValueError(f"parameters {pairs} of {values.keys()}")
    described = []
    for name, kind in pairs:
        if not (is_number(kind) or kind.startswith("*")):
            raise ValueError(f"'{name}' is a {kind}")
        described.append((kind, values[name] if kind.startswith("*") else bits(kind, values[name])))
    return described


def is_number(kind: Any) -> bool:
    """Whether `bits` can convert values of a parameter's Triton type."""
    return isinstance(kind, str) and kind in _FORMATS


def bits(kind: str, value: Any) -> int:
    """The bytes of a number of Triton's type `kind`, as an integer."""
    return int.from_bytes(struct.pack(_FORMATS[kind], value), "little")


on_scopes(functools.partial(pause, "policy"))
