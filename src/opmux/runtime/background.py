"""Work that another process does beside the program, and what this one does when it is over."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..core.log import logger
from . import build

_CHARACTERS = 400  # characters of an error that are kept
_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # functions that Python may still call


def run(program: str, then: Callable[[str], None], env: dict[str, str] | None = None) -> None:
    """Run Python source in another process; then call `then` with "" or what went wrong, in a thread of its own.

    The process has this one's sys.path and environment. OSError if it cannot be started.
    """
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {module_path()!r}\n{program}"]
    process = build.start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=os.environ | (env or {}), start_new_session=True,
    )  # fmt: skip

    def wait() -> None:
        _, errors = process.communicate()
        text = errors.decode(errors="replace").strip()
        then("" if process.returncode == 0 else text[-_CHARACTERS:] or f"exit status {process.returncode}")

    threading.Thread(target=wait, name="opmux background", daemon=True).start()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_rank() -> int:
    """The same, divided by the ranks on this machine (LOCAL_WORLD_SIZE)."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable_cores() // (max(1, int(told)) if told.isdigit() else 1))


def module_path() -> list[str]:
    """sys.path for another process; Python ignores entries that are not strings, such as a Path."""
    return [one for one in sys.path if isinstance(one, str)]


def in_main_thread(call: Callable[[], None]) -> None:
    """Have Python's main thread call a function soon, between two of its instructions."""

    def pending(_: Any) -> int:
        _kept.remove(made)
        try:
            call()
        except KeyboardInterrupt:  # for the program, not for this function
            signal.raise_signal(signal.SIGINT)
        except Exception:  # there is no caller to raise to
            logger.exception("opmux: what was prepared in the background could not be used")
        return 0

    made = _PENDING(pending)
    _kept.append(made)
    while ctypes.pythonapi.Py_AddPendingCall(made, None):  # the queue is full
        threading.Event().wait(0.01)
