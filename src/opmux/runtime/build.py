"""Compiling C++ against torch's headers with the compiler of the system, once for each machine.

What was built lies in `build/` of the cache directory (`OPMUX_CACHE_DIR`), named after all that it depends on: sources,
flags, torch, the compiler, and the processor where the code is made for it. A file appears there whole or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ..core import knobs
from ..core.errors import OpmuxError
from ..core.log import logger
from . import tuning

try:
    import fcntl
except ImportError:  # not a Unix: files are still replaced as a whole
    fcntl = None

LIMIT = 600.0  # seconds a compilation may take; 15 is usual
COMPILERS = ("g++", "c++", "clang++")
HEADERS = {".h", ".hpp", ".hh", ".inc"}
_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared")


class CannotBuild(OpmuxError, RuntimeError):
    """There is no compiler, it failed, or there is no place for what it makes; the message says which."""


class Compiler(NamedTuple):
    command: tuple[str, ...]
    version: str


def library(name: str, sources: Sequence[Path], *, flags: tuple[str, ...] = ()) -> Path:
    """The shared library made of these sources, compiled now if it never was; load it by `torch.ops.load_library`.

    Headers may stand among the sources: they are not compiled, but a change of them counts. `flags` come after ours.
    """
    used = compiler()
    given = (*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", *flags)
    folder = directory()
    target = folder / f"{name}-{_digest(sources, given, used)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_suffix(".lock")):
            if not target.exists():  # another process may have made it while this one waited
                _compile(name, target, [*used.command, *_inputs(sources), *given, *_torch()])
    except OSError as error:
        raise CannotBuild(
            f"{name} cannot be compiled: {error}. Set {knobs.CACHE_DIR.name} to a folder to write to"
        ) from error
    return target


def directory() -> Path:
    """The folder of what was built."""
    beside = tuning.directory()
    if beside is None:
        raise CannotBuild(f"nothing can be compiled: there is no home directory. Set {knobs.CACHE_DIR.name}")
    return beside.with_name("build")


# ---- what it depends on ---------------------------------------------------------------------------------------------


def compiler() -> Compiler:
    """The compiler of the system: $CXX, else the first one found."""
    asked = os.environ.get("CXX", "").strip()
    try:
        tried = [shlex.split(asked)] if asked else [[c] for c in COMPILERS]
    except ValueError as error:
        raise CannotBuild(f"CXX={asked!r} is no command: {error}. Set it to a C++ compiler, or unset it") from None
    for first, *rest in tried:
        program = shutil.which(first)
        if program is not None:
            return Compiler((program, *rest), _version(program, *rest))
    if asked:
        raise CannotBuild(f"CXX={asked!r}: there is no such command. Set it to a C++ compiler, or unset it")
    raise CannotBuild(f"there is no C++ compiler: none of {', '.join(COMPILERS)} is on PATH. Install one, or set CXX")


@functools.cache
def _version(*command: str) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"`{shlex.join(command)} --version` does not run: {error}. Set CXX to another") from error
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[0]
        raise CannotBuild(f"`{shlex.join(command)} --version` does not run: {said}. Set CXX to another")
    return done.stdout.partition("\n")[0]


def _torch() -> tuple[str, ...]:
    """Where torch's headers and libraries are. No rpath: whoever loads the result has those libraries loaded."""
    root = Path(torch.__file__).parent
    include = root / "include"
    # As headers of the system: torch's own warnings are torch's.
    headers = ("-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include"))
    return (*headers, f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10")


def _inputs(sources: Sequence[Path]) -> list[str]:
    return [str(s) for s in sources if s.suffix not in HEADERS]


def _digest(sources: Sequence[Path], flags: tuple[str, ...], used: Compiler) -> str:
    of_torch = (torch.__version__, str(torch.version.git_version))
    parts = [*of_torch, platform.machine(), *used.command, used.version, *flags]
    if any("native" in flag for flag in flags):
        parts.append(_processor())
    found = hashlib.blake2b("\0".join(parts).encode(), digest_size=8)
    for source in sources:
        try:
            text = source.read_bytes()
        except OSError as error:
            raise CannotBuild(f"a source cannot be read: {error}") from error
        found.update(b"\0%d\0" % len(text) + text)
    return found.hexdigest()


@functools.cache
def _processor() -> str:
    """What code made for "this processor" depends on: a home directory may be shared with another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


# ---- making it ------------------------------------------------------------------------------------------------------


def _compile(name: str, target: Path, command: list[str]) -> None:
    print(f"opmux: compiling {name.replace('_', ' ')} (once, about 20 s)", file=sys.stderr, flush=True)
    # The process id is not enough of a name: on a shared disk, another machine has the same one.
    fresh = target.with_name(f".{target.stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        status, said = _run([*command, "-o", str(fresh)])
        if status == 0:
            fresh.replace(target)
            return
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{name}: {command[0]} was stopped after {LIMIT:g} s") from None
    finally:
        fresh.unlink(missing_ok=True)
    log = target.with_suffix(".log")
    log.write_text(f"{shlex.join(command)}\n\n{said}", encoding="utf-8")
    raise CannotBuild(f"{name}: {command[0]} failed (exit status {status}): {_first_error(said)}. All of it: {log}")


def _run(command: list[str]) -> tuple[int, str]:
    """Run a compiler in a session of its own: what it starts must not outlive it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ | {"LC_ALL": "C"},  # errors are found by the English word
    )
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it said nothing")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from compiling the same thing; without locks they do, and the last one's file stays.

    The lock ends with its process, so what it waits for is a compiler at work.
    """
    lock = _lock_file(path) if fcntl is not None else None
    try:
        if lock is not None:
            _wait_for(lock)
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _lock_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        if not path.exists():
            raise
        # Another user's: to wait for it, reading is enough.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _wait_for(lock: int) -> None:
    assert fcntl is not None
    until = time.monotonic() + LIMIT
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                logger.warning("another process has been compiling for %g s: not waiting", LIMIT)
                return None
            time.sleep(0.05)
        except OSError as error:  # a file system without locks
            logger.info("compiling without a lock: %s", error)
            return None
