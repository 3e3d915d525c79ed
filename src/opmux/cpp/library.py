"""The native library: the C++ of `src/opmux/native`, compiled once per machine and loaded once per process.

`gate.cpp` is the entry of torch's overridden ops (faces/aten/gate.py), and `functions.cpp` launches ops with gradients
(functions.py). Both use the switches and the epoch of `launches.h` (launching.py). With OPMUX_CPP=0, Python does the
same work more slowly. Without a compiler, without Python's headers or with an untested version of torch, Python does it
too, and one warning says what that costs.

This module is not in `native/`, because the name `opmux.native` is a public function.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.lock import ForkSafeLock
from ..core.log import logger
from ..settings import CPP
from . import background, build, launching

NAME = "native"
FOLDER = Path(__file__).parents[1] / "native"
SOURCES = tuple(FOLDER / name for name in ("gate.cpp", "functions.cpp", "launches.h", "planner.h"))
LOST = (
    "overrides of torch's ops take 5 to 40 us more a call, auto mode overrides few ops, and ops with gradients take "
    "5 to 20 us more a call, because Python does what C++ would"
)
COMPILE = "from opmux.cpp import library; library.compile()"


class Untested(build.CannotBuild):
    """Raised for a torch version that was not tested: the library uses a private member of torch."""

    state = "off"


class Library:
    """The functions of the library, by their names in C++ without `opmux_`."""

    def __init__(self, loaded: ctypes.CDLL):
        holding = ctypes.PyDLL(None, handle=loaded._handle)  # keeps the GIL; for fast functions

        def function(name: str, returns: Any, *takes: Any, of: ctypes.CDLL = holding) -> Any:
            bound = getattr(of, f"opmux_{name}")
            bound.restype, bound.argtypes = returns, takes
            return bound

        text, thing, address, flag = ctypes.c_char_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_int
        word, recorded = ctypes.c_uint64, ctypes.POINTER(launching.Recorded)
        # launches.h
        self.launches_driver = function("launches_driver", None, address)
        self.launches_launch = function("launches_launch", None, flag)
        self.launches_launched = function("launches_launched", word)
        self.launches_records = function("launches_records", ctypes.c_int64)
        self.launches_clear = function("launches_clear", None)
        # gate.cpp; these functions release the GIL, because they may wait for the dispatcher's lock
        self.gate_error = function("gate_error", text)
        self.gate_new = function("gate_new", address, ctypes.c_int64, text, text, text, flag, of=loaded)
        self.gate_install = function("gate_install", flag, address, of=loaded)
        self.gate_delete = function("gate_delete", None, address, of=loaded)
        self.gate_select = function("gate_select", None, address)
        self.gate_inside = function("gate_inside", None, flag)
        self.gate_plan = function("gate_plan", None, flag)
        self.gate_waiting = function("gate_waiting", ctypes.c_int64)
        self.gate_planned = function("gate_planned", flag)
        self.gate_allow = function("gate_allow", None, ctypes.c_double, ctypes.c_double)
        self.gate_types: int = function("gate_types", ctypes.c_int64)()
        # functions.cpp
        self.functions_new = function("functions_new", thing, text, *[thing] * 5, flag, thing)
        self.functions_epoch = function("functions_epoch", word)
        self.functions_keep = function("functions_keep", flag, thing, thing, thing, recorded, word, thing, thing)
        self.functions_keep_backward = function(
            "functions_keep_backward", flag, thing, word, thing, thing, recorded, word
        )


class _LibraryState:
    loading = ForkSafeLock().arm()  # held while this process compiles and loads
    lock = ForkSafeLock().arm()  # protects everything below; never held during a compilation
    library: Library | None = None
    tried = False
    compiling = False  # whether another process or thread compiles the library now
    waiting: list[Callable[[], None]] = []  # called once the library is loaded


# A forked child has no thread that compiles.
_LibraryState.lock.after_fork.append(lambda: setattr(_LibraryState, "compiling", False))
background.locks.append(_LibraryState.loading)


def loaded() -> Library | None:
    """The library, if it is loaded; compiles nothing."""
    return _LibraryState.library


def available() -> bool:
    """Whether the library is loaded. The first call compiles and loads it, unless OPMUX_CPP=0."""
    if not _LibraryState.tried:
        with _LibraryState.loading.held:
            if not _LibraryState.tried:
                _load()
        _use()
    return _LibraryState.library is not None


def _load() -> None:
    with _LibraryState.lock.held:
        before, _LibraryState.compiling = _LibraryState.compiling, True
    try:
        if CPP.get():
            check()
            _LibraryState.library = Library(build.load(NAME, SOURCES, flags=flags()))
            launching.attach(_LibraryState.library)
    except build.CannotBuild as error:
        _warn(error)
    except BaseException:  # Ctrl-C: the next call tries again
        _LibraryState.compiling = before
        raise
    _LibraryState.tried = True


def must_be_compiled() -> bool:
    """Whether `available` would compile the library now, which takes about 30 s."""
    if _LibraryState.tried or not CPP.get():
        return False
    try:
        return not is_built()
    except build.CannotBuild:
        return False


def possible() -> bool:
    """Whether the library is loaded or, if loading was not tried yet, whether it could be compiled here."""
    if _LibraryState.tried:
        return _LibraryState.library is not None
    try:
        if not CPP.get():
            return False
        check()
        return bool(build.compiler())
    except build.CannotBuild:
        return False


def soon(use: Callable[[], None]) -> bool:
    """Compile the library in another process, then call `use`. Returns False if that is not needed or not possible.

    The call returns at once. If a compilation is already running, `use` is called when it has finished.
    """
    with _LibraryState.lock.held:
        if _LibraryState.tried or not CPP.get():
            return False
        if not _LibraryState.compiling:
            try:
                if is_built():
                    return False
                background.run(COMPILE, _compiled)
            except (build.CannotBuild, OSError) as error:
                logger.debug("nothing is compiled in the background: %s", error)
                return False  # `available` logs the reason
            _LibraryState.compiling = True
            logger.info("another process compiles the C++ library; until then Python launches ops with gradients")
        _LibraryState.waiting.append(use)
        return True


def _compiled(error: str) -> None:
    with _LibraryState.loading.held:
        if error and not _LibraryState.tried:  # if `tried` is set, this process has compiled it meanwhile
            _warn(error)
            _LibraryState.tried = True
    available()
    _use()


def _use() -> None:
    """Call the functions that wait for the library."""
    with _LibraryState.lock.held:
        if not _LibraryState.tried:
            return
        waiting, _LibraryState.waiting = _LibraryState.waiting, []
    for use in waiting if _LibraryState.library is not None else ():
        try:
            use()
        except Exception:  # no caller could handle it, and the other functions must still be called
            logger.exception("opmux: an op with gradients stays in Python")


def _warn(error: object) -> None:
    logger.warning("without opmux's native library %s: %s", LOST, error)


# ---- building -------------------------------------------------------------------------------------------------------


def flags() -> tuple[str, ...]:
    """Compiler flags for Python's headers and libtorch_python."""
    return ("-isystem", sysconfig.get_paths()["include"], "-ltorch_python")


def check() -> None:
    """Raise CannotBuild if the library must not be compiled here, or Python's headers are missing."""
    if untested := launching.untested("torch"):
        raise Untested(f"{untested}. Install a tested one, or a newer opmux")
    include = Path(sysconfig.get_paths()["include"])
    if not Path(include, "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise build.NoHeaders(
            f"Python's headers are missing: there is no {include / 'Python.h'}. Install python3-dev or "
            f"python{version}-dev (Debian, Ubuntu), python3-devel or python{version}-devel (Fedora, RHEL)"
        )


def is_built() -> bool:
    """Whether the library is compiled. Raises CannotBuild if it cannot be compiled."""
    check()
    return build.is_built(NAME, SOURCES, flags=flags())


def is_being_compiled() -> bool:
    """Whether another process compiles the library now. Raises CannotBuild if it cannot be compiled."""
    check()
    return build.is_being_compiled(NAME, SOURCES, flags=flags())


def compile(retry: bool = False) -> Path:
    """Compile the library if needed, without loading it. `retry`: even if compiling failed in the last six hours."""
    check()
    return build.library(NAME, SOURCES, flags=flags(), retry=retry)
