"""The C++ entry of overrides: a call that is off, or too small to be ours, runs ATen's kernel without Python.

`gate.cpp` is compiled by the first registration of overrides (runtime/build.py), and put in front of each override on
its dispatch key. Without a compiler, or with OPMUX_CPP=0, the overrides in Python do the same by themselves, except for
the choice by size.

On CUDA the gate also launches: after some calls that look the same (dtypes, shapes, strides, numbers), one is recorded.
If the override did nothing but allocate its results and launch one Triton kernel, further calls are launched by the
gate, with the same numbers and the pointers of their own tensors. `clear` makes it forget.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...core import launches
from ...core.lock import ForkSafeLock
from ...core.log import logger
from ...core.policy import on_scopes
from ...runtime import build
from ...runtime.settings import CPP
from . import native
from .schema import Shape

SOURCES = (Path(__file__).with_name("gate.cpp"),)
NEVER = -1
# Families whose kernels depend on the arguments alone: products also on torch's precision for float32.
LAUNCHED = frozenset({"pointwise", "reduce", "scan", "softmax", "norm", "channel_norm", "activation"})

# c10::ScalarType, whose numbers are part of torch's file format
_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


class _Selection(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int64), ("rows", ctypes.c_void_p))


class _Library:
    """The functions of gate.cpp."""

    def __init__(self, loaded: ctypes.CDLL):
        holding = ctypes.PyDLL(None, handle=loaded._handle)  # keeps the GIL: for calls of some nanoseconds

        def function(name: str, returns: Any, *takes: Any, of: ctypes.CDLL = loaded) -> Any:
            made = getattr(of, f"opmux_gate_{name}")
            made.restype, made.argtypes = returns, takes
            return made

        text = ctypes.c_char_p
        self.error = function("error", text, of=holding)
        self.new = function("new", ctypes.c_void_p, ctypes.c_int64, text, text, text, ctypes.c_int)
        self.install = function("install", ctypes.c_int, ctypes.c_void_p)
        self.delete = function("delete", None, ctypes.c_void_p)
        self.select = function("select", None, ctypes.c_void_p, of=holding)
        self.inside = function("inside", None, ctypes.c_int, of=holding)
        self.driver = function("driver", None, ctypes.c_void_p, of=holding)
        self.launch = function("launch", None, ctypes.c_int, of=holding)
        self.launched = function("launched", ctypes.c_uint64, of=holding)
        self.clear = function("clear", None, of=holding)
        self.types: int = function("types", ctypes.c_int64)()


class _State:
    lock = ForkSafeLock().arm()  # a process may fork while another thread compiles
    library: _Library | None = None
    tried = False
    driver: _Driver | None = None  # C++ has its address
    drives: bool | None = None  # whether there is one for CUDA; None: not tried
    recorded = False  # whether anything was, since it was last cleared
    paused: set[str] = set()  # why no kernel is launched from C++ now: each call goes to Python


def available() -> bool:
    """Whether overrides have the entry in C++; compiles it on first use, unless OPMUX_CPP=0."""
    with _State.lock.held:
        if not _State.tried and CPP.get():
            try:
                _State.library = _Library(build.load("gate", SOURCES))
            except build.CannotBuild as error:
                logger.info("overrides of torch's ops are entered through Python: %s", error)
        _State.tried = True
    return _State.library is not None


def possible() -> bool:
    """The same, as far as it is known without compiling."""
    if _State.tried:
        return _State.library is not None
    try:
        return bool(CPP.get() and build.compiler())
    except build.CannotBuild:
        return False


# ---- one gate -------------------------------------------------------------------------------------------------------

_slots: dict[tuple[str, str], int] = {}  # (device type, overload) -> its place in a selection; never changes


class Gate:
    """The gate of one overload on one device; `install` puts it in front of the override that is registered by then."""

    def __init__(self, device: str, shape: Shape, key: str, launches: bool = False):
        assert _State.library is not None
        self._library = _State.library
        packet, _, overload = shape.name.partition(".")
        slot = _slots.setdefault((device, shape.name), len(_slots))
        self._made = self._checked(
            self._library.new(slot, f"aten::{packet}".encode(), overload.encode(), key.encode(), launches), shape
        )
        self._shape = shape

    def install(self) -> None:
        self._checked(self._library.install(self._made), self._shape)

    def remove(self) -> None:
        made, self._made = self._made, None
        self._library.delete(made)

    def _checked(self, made: Any, shape: Shape) -> Any:
        if not made:
            raise RuntimeError(f"aten::{shape.name} cannot be overridden from C++: {self._library.error().decode()}")
        return made


def may_launch(device: str, family: str) -> bool:
    """Whether calls of a family may be launched from C++."""
    return device == "cuda" and family in LAUNCHED


def make(device: str, shape: Shape, key: str, family: str = "") -> Gate | None:
    """A gate that has ATen's kernel of now, or None where the override must be entered through Python.

    That is so without the library, and for overloads that have no kernel of ATen's, or one that is in Python. Calls of
    these families may be launched from C++.
    """
    if _State.library is None or shape.name in native.DELEGATES or not native.exists(shape, key):
        return None
    seeded = torch.Tag.nondeterministic_seeded in shape.op.tags
    return Gate(device, shape, key, may_launch(device, family) and not seeded and _drives(_State.library))


# ---- what is on -----------------------------------------------------------------------------------------------------

Limits = Mapping[torch.dtype, int]
Thresholds = Callable[[str, str], tuple[Limits, Limits]]

_made: dict[tuple[tuple[int, ...] | None, ...], tuple[Any, ...]] = {}  # by contents; C++ has pointers: never freed
_selections: dict[tuple[frozenset[str], Thresholds | None, int], Any] = {}  # found again by what was asked for


def select(names: frozenset[str], thresholds: Thresholds | None) -> None:
    """Turn these overloads on, and no others.

    `thresholds(overload, device)` gives, by dtype, the smallest number of elements of the first tensor for which a call
    is ours: 0 for all calls, NEVER for none, which is also so for a dtype that it does not name. It gives that twice:
    for calls that are launched from C++, and for those that go to Python. A call without tensors is ours if any is.
    Without the function all calls are ours.
    """
    library = _State.library
    if library is None:
        return
    asked = names, thresholds, len(_slots)
    found = _selections.get(asked)
    if found is None:
        contents = tuple(_row(n, d, thresholds, library.types) if n in names else None for d, n in _slots)
        if contents not in _made:
            _made[contents] = _as_c(contents)
        found = _selections[asked] = ctypes.addressof(_made[contents][0])
    library.select(found)


def forget() -> None:
    """Ask for thresholds again."""
    _selections.clear()


def _row(name: str, device: str, thresholds: Thresholds | None, types: int) -> tuple[int, ...]:
    if thresholds is None:
        return (0,) * (2 * types)
    rows = []
    for given in thresholds(name, device):
        row = [NEVER] * types
        for dtype, least in given.items():
            if dtype in _TYPES:
                row[_TYPES[dtype]] = least
        if any(least != NEVER for least in given.values()):
            row[-1] = 0
        rows += row
    return tuple(rows)


@functools.cache
def _row_as_c(row: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(row))(*row)


def _as_c(contents: Iterable[tuple[int, ...] | None]) -> tuple[Any, ...]:
    rows = [None if row is None else ctypes.addressof(_row_as_c(row)) for row in contents]
    pointers = (ctypes.c_void_p * len(rows))(*rows)
    return _Selection(len(rows), ctypes.addressof(pointers)), pointers


def inside(by: int) -> None:
    """Count this thread in (1) or out (-1) of references: it gets ATen's kernels while it runs one."""
    if _State.library is not None:
        _State.library.inside(by)


# ---- launches -------------------------------------------------------------------------------------------------------

_MOST = 64  # parameters of a kernel: kMostParams
_FORMATS = {
    "i1": "<b", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<B", "u8": "<B", "u16": "<H", "u32": "<I",
    "u64": "<Q", "fp32": "<f", "f32": "<f", "fp64": "<d",
}  # fmt: skip


class _Seen(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_uint64), ("grid", ctypes.c_uint32 * 3), ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32), ("count", ctypes.c_int32), ("is_pointer", ctypes.c_uint8 * _MOST),
        ("values", ctypes.c_uint64 * _MOST),
    )  # fmt: skip


_BEGIN, _END = ctypes.CFUNCTYPE(ctypes.c_int), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Seen))


class _Driver(ctypes.Structure):
    _fields_ = (("launch", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("begin", _BEGIN), ("end", _END))


def _drives(library: _Library) -> bool:
    """Whether the gate can launch on CUDA: it has cuLaunchKernel and torch's current stream."""
    with _State.lock.held:
        if _State.drives is None:
            address = lambda of, name: ctypes.cast(getattr(of, name), ctypes.c_void_p)
            try:
                cuda = ctypes.CDLL("libcuda.so.1")
                of_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
                made = _Driver(
                    address(cuda, "cuLaunchKernel"), address(of_torch, "aoti_torch_get_current_cuda_stream"),
                    _BEGIN(_begin), _END(_end),
                )  # fmt: skip
                drive(library, made)
                _State.drives = True
            except (OSError, AttributeError) as error:
                logger.info("kernels are launched from Python: %s", error)
                _State.drives = False
        return _State.drives


def drive(library: _Library, with_: _Driver) -> None:
    """Launch with these functions from now on."""
    _State.driver = with_
    library.driver(ctypes.addressof(with_))
    if clear not in launches.on_forget:
        launches.on_forget.append(clear)
    _set_launching()


def pause(why: str, on: bool) -> None:
    """While there is a reason, no kernel is launched from C++: "counted", or "policy" for a live scope of one."""
    if on != (why in _State.paused):
        (_State.paused.add if on else _State.paused.discard)(why)
        _set_launching()


def clear() -> None:
    """Forget the launches: another implementation may be chosen, or other tiles."""
    if _State.recorded and _State.library is not None:
        _State.recorded = False
        _State.library.clear()


def launched() -> int:
    """How many kernels were launched from C++ in this process."""
    return 0 if _State.library is None else _State.library.launched()


def _set_launching() -> None:
    if _State.library is not None and _State.driver is not None:
        _State.library.launch(not _State.paused)


class _Watch(TorchDispatchMode):
    """Notes whether a call does anything on the device besides launching kernels of ours."""

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


_watches: dict[int, _Watch] = {}
_kernels: dict[int, Any] = {}  # function -> Triton's kernel, which must not be unloaded


def _begin() -> int:
    """Record what this thread launches; called by C++, which an exception must not reach."""
    me = threading.get_ident()
    if me in launches.recording or not _State.library:
        return 0
    watch = _Watch()
    watch.__enter__()
    _watches[me] = watch
    launches.recording[me] = []
    _State.recorded = True
    return 1


def _end(seen: Any) -> int:
    """Describe what was launched; 1 if it was one launch, and nothing else was done."""
    me = threading.get_ident()
    made, watch = launches.recording.pop(me), _watches.pop(me)
    watch.__exit__(None, None, None)
    try:
        return int(watch.pure and len(made) == 1 and describe(made[0], seen.contents))
    except (AttributeError, TypeError, ValueError, struct.error) as error:  # another Triton
        logger.debug("a launch cannot be described: %s", error)
        return 0


def describe(launch: launches.Launch, seen: _Seen) -> bool:
    """Fill in a launch for C++; False if it is not a plain one of Triton's on CUDA."""
    compiled, run = launch.compiled, getattr(launch.compiled, "run", None)
    plain = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size", "gsan_enabled")
    if type(run).__name__ != "CudaLauncher" or any(getattr(run, name, 0) for name in plain):
        return False
    warps, ctas, shared = compiled.packed_metadata
    signature = compiled.src.signature
    names = [n for n in signature if signature[n] != "constexpr"]
    if ctas != 1 or len(names) > _MOST or not all(n in launch.args for n in names):
        return False
    seen.function, seen.threads, seen.shared, seen.count = compiled.function, 32 * warps, shared, len(names)
    seen.grid[:] = (*launch.grid, 1, 1)[:3]
    for i, name in enumerate(names):
        kind, value = signature[name], launch.args[name]
        seen.is_pointer[i] = kind.startswith("*")
        if kind.startswith("*"):
            seen.values[i] = 0 if value is None else value.data_ptr()
        elif kind in _FORMATS:
            seen.values[i] = int.from_bytes(struct.pack(_FORMATS[kind], value), "little")
        else:
            return False
    _kernels[compiled.function] = compiled
    return True


on_scopes(functools.partial(pause, "policy"))
