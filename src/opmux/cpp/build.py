"""Compiles C++ against torch's headers with the system's compiler, once per machine.

Libraries are in `build/` of the cache directory (`OPMUX_CACHE_DIR`). A library's name contains a hash of its sources,
the flags, torch, the compiler, and the processor if the code is specific to it. A library is compiled again if its file
has changed since it was built. A failed compilation is recorded, and tried again after six hours.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from .. import cache as cache_dir
from ..core.errors import OpmuxError
from ..core.lock import ForkSafeLock
from ..core.log import logger
from ..settings import CACHE_DIR

LIMIT = 600.0  # seconds after which a compilation is stopped; it usually takes 15
RETRY = 6 * 3600.0  # seconds after which a compilation that failed is tried again
COMPILERS = ("g++", "c++", "clang++")
HEADERS = {".h", ".hpp", ".hh", ".inc"}
_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared")


class CannotBuild(OpmuxError, RuntimeError):
    """Raised if there is no compiler, the compiler fails, or its output cannot be stored. The message says which."""

    state = "cannot be compiled"  # a short form for `opmux doctor`


class NoCompiler(CannotBuild):
    """No C++ compiler is installed, or the compiler that CXX names does not run."""

    state = "no compiler"


class CompilerFails(CannotBuild):
    """The compiler ran and failed."""

    state = "the compiler fails"


class NoHeaders(CannotBuild):
    """A header that does not come with torch is missing."""

    state = "headers are missing"


class CannotStore(CannotBuild):
    """The folder of compiled libraries cannot be written or trusted."""

    state = "the cache folder cannot be used"


class Compiler(NamedTuple):
    command: tuple[str, ...]
    version: str


def library(name: str, sources: Sequence[Path], *, flags: tuple[str, ...] = (), retry: bool = False) -> Path:
    """The path of the shared library of these sources, which is compiled now if there is no valid one.

    Headers in `sources` are not compiled, but changing one causes a rebuild. `flags` are appended to the default ones.
    `retry` starts the compiler even if it has failed within the last six hours.
    """
    with _open_library(name, sources, flags, retry) as file:
        return Path(file.name)


def is_built(name: str, sources: Sequence[Path], *, flags: tuple[str, ...] = ()) -> bool:
    """Whether `load` finds this library without compiling it. Raises CannotBuild if it cannot be compiled."""
    target = _target(name, sources, flags, compiler())
    try:
        cache_dir.check(target.parent)
        verified = _open_verified(target, warn=False)
    except OSError as error:
        raise CannotStore(f"{name} cannot be compiled: {error}. Set {CACHE_DIR.name} to a writable folder") from error
    if verified is not None:
        verified.close()
        return True
    _raise_known_failure(target)
    return False


def is_being_compiled(name: str, sources: Sequence[Path], *, flags: tuple[str, ...] = ()) -> bool:
    """Whether another process compiles this library now. Raises CannotBuild if it cannot be compiled."""
    lock = _target(name, sources, flags, compiler()).with_suffix(".lock")
    if not lock.is_file():
        return False
    try:
        release = cache_dir.try_lock(lock)
    except OSError:  # the file system has no locks
        return False
    if release is not None:
        release()
    return release is None


def load(name: str, sources: Sequence[Path], *, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Load the library of these sources into this process; the ops it registers are then in `torch.ops`."""
    file = _open_library(name, sources, flags)
    # Load the file through its open descriptor, whose bytes were verified. The path may lead to another file by now.
    verified = Path("/proc/self/fd", str(file.fileno()))
    try:
        loaded = ctypes.CDLL(str(verified) if verified.exists() else file.name)
    except OSError as error:
        file.close()
        raise CannotBuild(f"{file.name} was built, but cannot be loaded: {error}") from error
    # Never close the file: if its descriptor were reused, the loader would take the next library for this one.
    _loaded.append(file)
    return loaded


def directory() -> Path:
    """The folder of compiled libraries."""
    root = cache_dir.root()
    if root is None:
        raise CannotStore(f"nothing can be compiled: there is no home directory. Set {CACHE_DIR.name}")
    return root / "build"


_loaded: list[BinaryIO] = []


def _open_library(name: str, sources: Sequence[Path], flags: tuple[str, ...], retry: bool = False) -> BinaryIO:
    used = compiler()
    target = _target(name, sources, flags, used)
    folder = target.parent
    try:
        cache_dir.check(folder)
        verified = _open_verified(target, warn=False)
        if verified is not None:
            return verified
        if not retry:
            _raise_known_failure(target)
        cache_dir.make(folder)
        # A held lock means that a compiler is running, because the system releases a lock when its process ends.
        with cache_dir.locked(target.with_suffix(".lock"), LIMIT, required=False):
            cache_dir.sweep(target)
            verified = _open_verified(target, warn=True)  # another process may have compiled it meanwhile
            if verified is None:
                if not retry:
                    _raise_known_failure(target)
                _compile(name, target, used, _inputs(sources), (*_all_flags(flags), *_torch()))
                verified = _open_verified(target, warn=True)
    except OSError as error:
        raise CannotStore(f"{name} cannot be compiled: {error}. Set {CACHE_DIR.name} to a writable folder") from error
    if verified is None:
        raise CannotBuild(f"{name}: {target} does not contain what was written to it. Check the disk")
    return verified


def _all_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    return (*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", *flags)


def _target(name: str, sources: Sequence[Path], flags: tuple[str, ...], used: Compiler) -> Path:
    return directory() / f"{name}-{_digest(sources, _all_flags(flags), used)}.so"


# ---- dependencies ---------------------------------------------------------------------------------------------------


def compiler() -> Compiler:
    """The compiler to use: $CXX, else the first one found on this machine."""
    configured = os.environ.get("CXX", "").strip()
    try:
        tried = [shlex.split(configured)] if configured else [[c] for c in COMPILERS]
    except ValueError as error:
        raise NoCompiler(f"CXX={configured!r} is no command: {error}. Set it to a C++ compiler, or unset it") from None
    for first, *rest in tried:
        program = shutil.which(first)
        if program is not None:
            return Compiler((program, *rest), _version(program, *rest))
    if configured:
        raise NoCompiler(f"CXX={configured!r}: there is no such command. Set it to a C++ compiler, or unset it")
    raise NoCompiler(f"there is no C++ compiler: none of {', '.join(COMPILERS)} is on PATH. Install one, or set CXX")


@functools.cache
def _version(*command: str) -> str:
    try:
        process = _start([*command, "--version"], stderr=subprocess.PIPE)
        output, errors = _finish(process, 30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"`{shlex.join(command)} --version` does not run: {error}. Set CXX to another") from error
    if process.returncode:
        output = (errors.strip() or f"exit status {process.returncode}").splitlines()[0]
        raise NoCompiler(f"`{shlex.join(command)} --version` does not run: {output}. Set CXX to another")
    return output.partition("\n")[0]


def _torch() -> tuple[str, ...]:
    """Compiler flags for torch's headers and libraries. No rpath is needed: the loading process has loaded torch."""
    root = Path(torch.__file__).parent
    include = root / "include"
    # -isystem, so that warnings in these headers are not shown.
    headers = ("-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include"))
    return (*headers, f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10")


def _inputs(sources: Sequence[Path]) -> list[str]:
    return [str(s) for s in sources if s.suffix not in HEADERS]


def _digest(sources: Sequence[Path], flags: tuple[str, ...], used: Compiler) -> str:
    of_torch = (torch.__version__, str(torch.version.git_version))
    parts = [*of_torch, platform.machine(), *used.command, used.version, *flags]
    if any("native" in flag for flag in flags):
        parts.append(_processor())
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8)
    for source in sources:
        try:
            text = source.read_bytes()
        except OSError as error:
            raise CannotBuild(f"a source cannot be read: {error}") from error
        digest.update(b"\0%d\0" % len(text) + text)
    return digest.hexdigest()


@functools.cache
def _processor() -> str:
    """A description of this processor, which distinguishes builds with `-march=native` in a shared home directory."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    fields = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(fields)))


# ---- build records --------------------------------------------------------------------------------------------------

# The first line of `<library>.log` is our record: {"size": ..., "digest": ...} or {"failed": ..., "time": ...}. The
# command and the compiler's output follow.


def _open_verified(target: Path, *, warn: bool) -> BinaryIO | None:
    """The open library if its bytes match its record, else None. With `warn`, the reason for None is logged."""
    file = None
    try:
        file = cache_dir.open_file(target)
        data = file.read()
        record = _record(target)
        if record.get("size") == len(data) and record.get("digest") == _digest_of(data):
            return file
        why = f"its {len(data)} bytes are not those that were built" if record else "there is no record of its build"
    except FileNotFoundError:
        return None
    except OSError as error:
        why = str(error)
    if file is not None:
        file.close()
    if warn:
        logger.warning("%s is compiled again: %s", target, why)
    return None


def _digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def _record(target: Path) -> dict[str, Any]:
    """The record in a library's log; empty if it cannot be read."""
    try:
        first = cache_dir.read(target.with_suffix(".log")).partition(b"\n")[0]
        record = json.loads(first)
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_record(target: Path, facts: dict[str, Any], commands: list[list[str]], output: str) -> None:
    text = "\n".join((json.dumps(facts), "", *map(shlex.join, commands), "", output))
    cache_dir.replace(target.with_suffix(".log"), text.encode(errors="replace"))


def _raise_known_failure(target: Path) -> None:
    """Raise a recent failure again. A new attempt would take as long as a successful build."""
    known = _record(target)
    reason, at = known.get("failed"), known.get("time")
    if not isinstance(reason, str) or not isinstance(at, int | float):
        return
    ago = time.time() - at
    if 0 <= ago < RETRY:
        log = target.with_suffix(".log")
        raise CompilerFails(f"{reason}. Tried {ago / 60:.0f} minutes ago; to try again now, remove {log}")


# ---- compiling ------------------------------------------------------------------------------------------------------


_LINKING = ("-shared", "-l", "-L", "-Wl,")  # prefixes of linker flags


def _compile(name: str, target: Path, used: Compiler, inputs: list[str], flags: tuple[str, ...]) -> None:
    print(
        f"opmux: compiling {name.replace('_', ' ')} for this machine, once: half a minute on two idle cores",
        file=sys.stderr,
        flush=True,
    )
    written = cache_dir.temporary_name(target)
    objects = [str(written.with_suffix(f".{i}.tmp")) for i in range(len(inputs))] if len(inputs) > 1 else []
    plain = [flag for flag in flags if not flag.startswith(_LINKING)]
    commands = [[*used.command, "-c", source, *plain, "-o", compiled] for source, compiled in zip(inputs, objects)]
    command = [*used.command, *(objects or inputs), *flags, "-o", str(written)]
    try:
        status, output = _run_together(commands)  # one process per source, all at the same time
        if status == 0:
            status, output = _run(command)
        if status == 0 and written.exists():
            written.chmod(0o755)
            data = written.read_bytes()
            _write_record(target, {"size": len(data), "digest": _digest_of(data)}, [*commands, command], output)
            cache_dir.commit(written, target)
            return
        reason = f"{name}: {command[0]} failed (exit status {status}): {_first_error(output)}"
    except subprocess.TimeoutExpired:
        status, output, reason = 1, "", f"{name}: {command[0]} was stopped after {LIMIT:g} s"
    finally:
        for file in (written, *map(Path, objects)):
            file.unlink(missing_ok=True)
    if status < 0:
        raise CompilerFails(reason)  # killed by a signal; not recorded, because the next attempt may succeed
    try:
        _write_record(target, {"failed": reason, "time": time.time()}, [*commands, command], output)
    except OSError as error:
        raise CompilerFails(f"{reason}. Its output could not be stored: {error}") from error
    raise CompilerFails(f"{reason}. Full output: {target.with_suffix('.log')}")


# Held while a process is started, and by a thread that forks. Otherwise a child forked during a Popen would inherit the
# write end of the pipe on which Popen waits for the exec. Then this process would wait for the child's exit, while the
# child may wait for our file lock.
_starting = ForkSafeLock().arm()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _starting.held.acquire(), after_in_parent=lambda: _starting.held.release()
    )  # the child gets a new lock


def _run(command: list[str]) -> tuple[int, str]:
    """Run a compiler. Returns its exit status and its output, including errors."""
    return _run_together([command])


def _run_together(commands: list[list[str]]) -> tuple[int, str]:
    """Run several compilers at the same time. Returns the first failure, or status 0 and all outputs."""
    until, started = time.monotonic() + LIMIT, []
    try:
        for command in commands:
            started.append(_start(command, stderr=subprocess.STDOUT))
        outputs = []
        for process in started:
            output, _ = _finish(process, until - time.monotonic())
            if process.returncode:
                return process.returncode, output
            outputs.append(output)
        return 0, "".join(outputs)
    finally:
        for process in started:
            if process.returncode is None:
                _kill(process)


def _start(command: list[str], stderr: int) -> subprocess.Popen[str]:
    """Start a compiler in its own session, so that its child processes can be killed with it."""
    return start(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        env=os.environ | {"LC_ALL": "C"},  # English messages, because `_first_error` looks for "error"
    )


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Call subprocess.Popen while no other thread can fork."""
    with _starting.held:
        return subprocess.Popen(command, **options)


def _finish(process: subprocess.Popen[str], limit: float) -> tuple[str, str]:
    """Wait for a process; returns its output. It is killed after `limit` seconds, or if the wait is interrupted."""
    try:
        return process.communicate(timeout=limit)
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # Look for "error:" before "error", because the path of a source may contain the word.
    matches = [line for marker in ("error:", "error") for line in lines if marker in line.lower()]
    return (matches or lines[-1:] or ["no output"])[0]
