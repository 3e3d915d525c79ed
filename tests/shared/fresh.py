"""Run a Python program in a forked process that has imported torch but not opmux: `run` replaces `subprocess.run`.

Starting Python and importing torch takes two to three seconds, and tests run hundreds of programs. Here one process per
test worker imports torch once, and forks for each program. The child gets the arguments, environment, working directory
and module path of a new process, runs the program as `__main__`, and ends as Python does. Tests of how a process starts
(the import of torch itself, options of the interpreter, a `sitecustomize`) need `subprocess`.

It takes three seconds more to import every op family with its kernels, and the parts of torch that most programs need.
`run(..., warm=True)` forks from a process that has imported these (everything.py) and done nothing else: it has loaded
no plugin, probed no device, and read no setting. Use it for programs that do not test what an import does.

Python's own teardown destroys such a process object by object. It takes 0.3 to 1.5 s of CPU time, as long as most
programs. It runs only with --slow (`torn_down`); otherwise a program ends after its threads and its `atexit` functions.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Prefixes of variables that Python reads at its start or torch at its import. A program with another value needs a new
# process.
EARLY = tuple("PYTHON OMP_ MKL_ KMP_ GOMP_ TORCH PYTORCH LD_ CUDA_ LC_ LANG OPMUX_TE_STARTUP OPMUX_RUN_AS".split())
# exceptions: the child applies these variables itself, or torch reads them only on use
LATE = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "CUDA_HOME"}
# interpreter options that a forked child supports, with the supported value
FLAGS = {"-W": "ignore", "-X": "faulthandler"}

SRC = Path(__file__).parents[2] / "src"
OURS = (__file__, runpy.__file__, "<frozen runpy>")  # frames of these files are removed from a program's traceback

_fork_servers: dict[bool, ForkServer] = {}  # by `warm`
torn_down = True  # whether a program ends with Python's own teardown; tests/conftest.py sets it


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float | None = None,
    warm: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python -c code`, `python -m module` or `python file.py`; returns its output and exit status.

    `warm`: fork from a process that has imported every op, and every kernel for Triton's interpreter. If the tests run
    kernels on a device (--triton), `warm` has no effect.
    """
    program, *words = map(str, command)
    variables = dict(os.environ if env is None else env)
    warm = warm and os.environ.get("TRITON_INTERPRET") == "1"
    if warm:
        assert variables.setdefault("TRITON_INTERPRET", "1") == "1", "kernels that are compiled: not warm"
    if program != sys.executable or not _can_be_forked(words, variables):
        return subprocess.run(
            [program, *words], env=variables, cwd=cwd, capture_output=True, encoding="utf-8", timeout=timeout
        )
    server = _fork_servers.get(warm)
    if server is None or server.owner != os.getpid():
        server = _fork_servers[warm] = ForkServer(warm)
    status, out, err = server.run(words, variables, str(cwd or Path.cwd()), timeout)
    return subprocess.CompletedProcess([program, *words], status, out, err)


warm = functools.partial(run, warm=True)


def _can_be_forked(words: list[str], variables: Mapping[str, str]) -> bool:
    if not hasattr(os, "fork"):
        return False
    while words[0] in FLAGS and words[1] == FLAGS[words[0]]:
        words = words[2:]
    if words[0].startswith("-") and words[0] not in ("-c", "-m"):
        return False
    ours = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    early = {k: v for k, v in variables.items() if k.startswith(EARLY) and k not in LATE}
    return all(ours.get(k) == v for k, v in early.items())


class ForkServer:
    """A process that has imported torch (if `warm`, opmux too) and forks a child for each request."""

    def __init__(self, warm: bool) -> None:
        self.owner = os.getpid()
        ours, theirs = socket.socketpair()
        env = {k: v for k, v in os.environ.items() if k not in LATE} | {"PYTHONIOENCODING": "utf-8"}
        if warm:
            env["TRITON_INTERPRET"] = "1"
        command = [sys.executable, __file__, str(theirs.fileno()), "warm" if warm else ""]
        with theirs:
            self.process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.socket = ours
        atexit.register(self.close)

    def close(self) -> None:
        self.socket.close()  # the process ends when it reads the end of the stream
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)

    def run(self, words: list[str], variables: dict[str, str], cwd: str, timeout: float | None) -> tuple[int, str, str]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = {"words": words, "env": variables, "cwd": cwd, "torn_down": torn_down}
            request = json.dumps(request).encode()
            files = array.array("i", [out.fileno(), err.fileno()])
            head = struct.pack("!I", len(request))
            self.socket.settimeout(None)
            self.socket.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            self.socket.sendall(request)
            (pid,) = struct.unpack("!i", _exactly(self.socket, 4))
            self.socket.settimeout(timeout)
            try:
                (status,) = struct.unpack("!i", _exactly(self.socket, 4))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self.socket.settimeout(None)
                _exactly(self.socket, 4)
                raise subprocess.TimeoutExpired(words, timeout or 0, _text(out), _text(err)) from None
            return status, _text(out), _text(err)


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode()


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        if not more:
            raise EOFError("the other process has ended")
        data += more
    return data


# ---- in the other process -------------------------------------------------------------------------------------------


def _serve(stream: socket.socket, warm: bool) -> dict[str, Any] | None:
    """Fork for each request. Returns the request in the child. Returns None in the parent after the last request."""
    gc.disable()  # nothing that an import creates is garbage
    import torch  # noqa: F401

    gc.freeze()  # so children never traverse torch's half a million objects, not even at exit
    if warm:
        sys.path.insert(1, str(SRC))
        import everything  # noqa: F401

        sys.path.remove(str(SRC))
        gc.collect()
        gc.freeze()
    gc.enable()
    while True:
        try:
            head, rights, _, _ = socket.recv_fds(stream, 4, 2)
            if not head:
                return None
            request = json.loads(_exactly(stream, struct.unpack("!I", head)[0]))
        except (EOFError, ConnectionError):
            return None
        pid = os.fork()
        if pid == 0:
            stream.close()
            for file, to in zip(rights, (1, 2), strict=True):
                os.dup2(file, to)
            for file in rights:
                os.close(file)
            return request
        for file in rights:
            os.close(file)
        try:
            stream.sendall(struct.pack("!i", pid))
            stream.sendall(struct.pack("!i", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        except ConnectionError:
            return None


def _begin(request: dict[str, Any]) -> None:
    """Turn this child into the requested new process, and run its program."""
    words, base = request["words"], sys.path[1:]
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    while words[0] in FLAGS:
        if words[0] == "-W":
            import warnings

            warnings.simplefilter("ignore")
        else:
            import faulthandler

            faulthandler.enable()
        words = words[2:]
    first = {"-c": "", "-m": str(Path.cwd())}.get(words[0], str(Path(words[0]).resolve().parent))
    python_path = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [first, *python_path.split(os.pathsep), *base] if python_path else [first, *base]
    sys.path_importer_cache.clear()
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    elif words[0] == "-m":
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


def _status(request: dict[str, Any]) -> int:
    """Run the requested program; prints and returns what Python would print and return at its end."""
    try:
        _begin(request)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in OURS:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End the process as Python does, but without tearing down the interpreter."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _warm = sys.argv[2] == "warm"
    _request = _serve(socket.socket(fileno=int(sys.argv[1])), _warm)
    _code = 0 if _request is None else _status(_request)
    if _request is None or not _request["torn_down"]:
        _end(_code)
    if _warm:
        gc.unfreeze()  # at exit, triton reports frozen objects as leaked
    sys.exit(_code)
