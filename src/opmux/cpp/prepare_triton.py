"""Prepares Triton in threads, as soon as it is known that kernels will be launched.

The first launch in a process needs two things, which can be prepared during other work. The hash of Triton's files is
part of every key in Triton's cache: computing it reads 500 MB and takes 0.3 to 1 s. The functions with which Triton
calls CUDA are C code, which takes 0.6 s to compile, once on a machine. Importing this module does not import Triton.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable

import torch

from ..core.lock import ForkSafeLock
from ..core.log import logger
from . import background


class _State:
    lock = ForkSafeLock().arm()
    started = False
    running: dict[str, threading.Event] = {}  # part -> an event that is set when its thread has prepared it


def start() -> None:
    """Prepare all parts, each in its own thread, once in a process."""
    with _State.lock.held:
        if _State.started:
            return
        _State.started = True
        for part, work in PARTS.items():
            finished = threading.Event()
            try:
                background.later(0.0, functools.partial(_run, work, finished))
            except RuntimeError:  # no more threads can be started, or Python is ending
                return
            _State.running[part] = finished


def wait(*parts: str) -> None:
    """Wait until the started threads have prepared these parts. Otherwise Triton would prepare them a second time."""
    if running := _State.running:
        for part in parts:
            if part in running:
                running[part].wait()


def hash_files() -> None:
    """Compute the hash of Triton's files. Triton keeps it for the rest of the process."""
    try:
        from triton.runtime.cache import triton_key
    except ImportError:  # Triton is not installed, or has another name for it
        return
    triton_key()


def compile_driver() -> None:
    """Compile and load the C code with which Triton calls CUDA."""
    if torch.version.cuda is None:
        return
    try:
        importlib.import_module("triton.backends.nvidia.driver").CudaUtils()
    except Exception as error:  # no such private name, or no C compiler: the first launch raises Triton's error
        logger.debug("Triton's functions for CUDA are left to its first launch: %s", error)


PARTS: dict[str, Callable[[], None]] = {"hash": hash_files, "driver": compile_driver}


def _run(work: Callable[[], None], finished: threading.Event) -> None:
    try:
        work()
    finally:
        finished.set()


_State.lock.after_fork.append(lambda: _State.running.clear())  # a forked child does not have the threads
