"""Runs work in another process, and then calls a function in this process."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from ..core.lock import ForkSafeLock, lock
from ..core.log import logger
from . import build

_CHARACTERS = 400  # maximum length of an error message; the end is kept
_MARK = "it failed: "
_PROGRAM = """\
import os, sys
sys.path[:] = {path!r}
os.nice({nice})
try:
    exec({program!r})
except Exception as error:
    sys.exit({mark!r} + f"{{type(error).__name__}}: {{error}}")
"""
_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
NICE = 5  # added to the niceness of the other process
RETRY = 0.2  # seconds between two attempts to call a function in the main thread
POLL = 0.1  # seconds between two polls of the other process
LONG = 2.0  # seconds after which an unfinished import no longer blocks the call
OURS = ("opmux", "torch", "triton")  # an unfinished import of one of these always blocks the call
locks: list[ForkSafeLock] = [lock]  # the main thread must hold none of these
_pending: list[Any] = []  # functions that Python may still call, which must not be freed


def run(program: str, then: Callable[[str], None], env: dict[str, str] | None = None) -> None:
    """Run Python source in another process. Afterwards call `then` in a new thread, with "" or the error.

    The new process has the same sys.path and environment, and a lower priority. If this process ends, the new process
    continues, and `then` is not called. Raises OSError if the process cannot be started.
    """
    command = [sys.executable, "-c", _PROGRAM.format(path=module_path(), nice=NICE, program=program, mark=_MARK)]
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - no pipe: the work continues after this process has ended
    process = build.start(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=os.environ | (env or {}),
        start_new_session=True,
    )

    def wait() -> None:
        while process.poll() is None:
            if _ending.wait(POLL):
                return
        with errors:
            errors.seek(0)
            text = errors.read().decode(errors="replace").rpartition(_MARK)[2].strip()
        then("" if process.returncode == 0 else text[-_CHARACTERS:] or f"exit status {process.returncode}")

    _start(wait)


def later(seconds: float, call: Callable[[], None]) -> None:
    """Call a function in a new thread after some seconds, unless the program has ended by then."""
    _start(lambda: None if _ending.wait(seconds) else call())


# Our threads must end before Python exits. At exit, Python stops daemon threads by unwinding their stacks. If torch's
# C++ is on such a stack, std::terminate is called, which aborts the program.
_ending = threading.Event()  # set when the program ends
_threads: set[threading.Thread] = set()


def _start(work: Callable[[], None]) -> None:
    def run() -> None:
        try:
            work()
        finally:
            _threads.discard(thread)

    thread = threading.Thread(target=run, name="opmux background", daemon=True)
    _threads.add(thread)
    thread.start()


@atexit.register
def _end() -> None:
    _ending.set()
    for thread in tuple(_threads):
        thread.join()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_rank() -> int:
    """`usable_cores()` divided by the number of ranks on this machine (LOCAL_WORLD_SIZE)."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable_cores() // (max(1, int(ranks)) if ranks.isdigit() else 1))


def module_path() -> list[str]:
    """sys.path for another process, without entries that are not strings (such as a Path), which Python ignores."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def in_main_thread(call: Callable[[], None]) -> None:
    """Make Python's main thread call a function soon, between two of its instructions.

    The call is postponed while that thread imports a module or holds one of our locks, because the function could see a
    half-imported module or an incomplete change. It is tried again every `RETRY` seconds.
    """
    _in_main_thread(call, {})


def _in_main_thread(call: Callable[[], None], imports: dict[str, float]) -> None:
    def pending(_: Any) -> int:
        _pending.remove(function)
        try:
            if _ending.is_set():
                return 0
            if _is_busy(imports):
                later(RETRY, lambda: _in_main_thread(call, imports))
            else:
                call()
        except KeyboardInterrupt:  # Ctrl-C is meant for the program, not for this function
            signal.raise_signal(signal.SIGINT)
        except Exception:  # there is no caller to raise to
            logger.exception("opmux: what was prepared in the background could not be used")
        return 0

    function = _PENDING(pending)
    _pending.append(function)
    while ctypes.pythonapi.Py_AddPendingCall(function, None):  # the queue is full
        if _ending.wait(0.01):
            return


def _is_busy(imports: dict[str, float]) -> bool:
    """Whether this thread must not be interrupted now. `imports`: unfinished import -> when it was first seen here."""
    if any(fork_lock.held._is_owned() for fork_lock in locks):  # type: ignore[attr-defined]
        return True
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.library":  # it may warn while it holds the dispatcher's lock
            return True
        frame = frame.f_back
    now = time.monotonic()
    specs = {name: getattr(module, "__dict__", {}).get("__spec__") for name, module in sys.modules.copy().items()}
    unfinished = {name for name, spec in specs.items() if getattr(spec, "_initializing", False)}
    for name in imports.keys() - unfinished:
        del imports[name]
    for name in unfinished:
        imports.setdefault(name, now)
    # Ignore other imports after `LONG` seconds: the module may be the program itself, which is imported until it ends.
    return any(name.partition(".")[0] in OURS or now - since < LONG for name, since in imports.items())
