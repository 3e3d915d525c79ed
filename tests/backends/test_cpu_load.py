"""Loading the C++ kernels while the process forks, and without holding the core lock."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fresh

from opmux.backends._cpu.ops import native
from opmux.cpp import build

SRC = Path(__file__).parents[2] / "src"

# A fake compiler that waits for a file, then writes a library that was built before.
COMPILER = """\
#!/bin/sh
case "$*" in *--version*) echo made up 1.0; exit;; esac
touch "$FOLDER/started"
while [ ! -e "$FOLDER/go" ]; do sleep 0.05; done
for last; do :; done
cp "$BUILT" "$last"
"""

FORK = """
import os, pathlib, signal, time, torch, opmux
from opmux.backends._cpu.ops import native

folder = pathlib.Path(os.environ["FOLDER"])


def call_until_loaded():
    signal.alarm(60)
    while not native._NativeState.loaded:
        assert opmux.ops.silu(torch.ones(2)).shape == (2,)
        time.sleep(0.02)


opmux.ops.silu(torch.ones(2))
why = str(opmux.explain("opmux::silu", torch.ones(2)))
while not (folder / "started").exists():
    time.sleep(0.02)
loaded = native._NativeState.loaded
child = os.fork()
if not child:
    call_until_loaded()
    os._exit(10 + native._NativeState.loaded)
(folder / "go").touch()
call_until_loaded()
print(loaded, "another process compiles" in why, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

HELD = """
import threading, torch, opmux
from opmux.backends._cpu.ops import native
from opmux.core import get_default_manager
from opmux.core.lock import lock
from opmux.cpp import build

free = []

def load(*args, **kwargs):
    def ask():
        free.append(lock.held.acquire(timeout=2))
        if free[-1]:
            lock.held.release()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    raise build.CannotBuild("only asking")

build.load = load
x = torch.ones(2, 8, requires_grad=True)
opmux.enable(mode="all")
for call in (
    lambda: opmux.ops.softmax(x.detach(), -1),
    lambda: opmux.ops.silu(x).sum().backward(),
    lambda: get_default_manager().call("opmux::silu", x),
    lambda: torch.nn.functional.silu(x),
    lambda: torch.nn.functional.rms_norm(x, (8,)),
):
    native._NativeState.reason = None
    get_default_manager().invalidate("again")
    call()
print(free)
"""


def run(code: str, **env: str) -> str:
    result = fresh.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC), **env},
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_calls_do_not_wait_for_the_compiler_and_a_forked_child_gets_the_kernels_too(tmp_path):
    built = build.library("cpu_kernels", native.SOURCES, flags=native.flags())
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    cache = tmp_path / "cache"
    env = {"CXX": str(compiler), "OPMUX_CACHE_DIR": str(cache), "FOLDER": str(tmp_path), "BUILT": str(built)}
    assert run(FORK, **env) == "False True 11"


def test_no_compilation_holds_the_core_lock():
    """A plugin, an import or a signal handler may need the core lock; a compilation would block them for seconds."""
    answer = run(HELD)
    assert answer.count("True") >= 4 and "False" not in answer
