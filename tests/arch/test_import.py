"""`import opmux` is quick, brings little along, and leaves the process as it was."""

import json
import os
import sys
from pathlib import Path

import fresh
import pytest

SRC = Path(__file__).parents[2] / "src"
OURS = ("OPMUX", "TE_", "TEFL")
HEAVY = ("triton", "yaml", "rich", "typer", "opmux.specs.")

# Set in the child, so that a read which walks over the whole environment comes across them too.
BAIT = {
    "OPMUX_LOG_LEVEL": "DEBUG",
    "TE_FL_PREFER": "reference",
    "TEFL_LOG_LEVEL": "DEBUG",
    "TE_BACKEND": "torch",
}

TIME = """
import time, torch
t = time.perf_counter()
import opmux
print(time.perf_counter() - t)
"""

PROBE = """
import json, logging, os, signal, sys, threading, warnings
import torch

def state():
    return {
        "environment": dict(os.environ),
        "root log handlers": [repr(h) for h in logging.root.handlers],
        "opmux log handlers": [repr(h) for h in logging.getLogger("opmux").handlers],
        "opmux log level": logging.getLogger("opmux").level,
        "sys.meta_path": [repr(f) for f in sys.meta_path],
        "sys.path_hooks": [repr(f) for f in sys.path_hooks],
        "sys.path": list(sys.path),
        "sys.excepthook": repr(sys.excepthook),
        "warning filters": [repr(f) for f in warnings.filters],
        "signal handlers": [repr(signal.getsignal(s)) for s in sorted(signal.valid_signals())],
        "threads": threading.active_count(),
    }

reads, events, watching = [], [], False

def audit(event, args):
    if not watching:
        return
    if event == "open":
        path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes)) else repr(args[0])
        if not path.endswith((".py", ".pyc", ".so")) and not os.path.isdir(path):
            events.append(f"open {path}")
    elif event.startswith(("subprocess.", "socket.", "os.system", "os.exec", "os.fork", "os.posix_spawn")):
        events.append(event)

env = type(os.environ)
getitem = env.__getitem__

def recording(self, key):
    if watching:
        reads.append(key if isinstance(key, str) else repr(key))
    return getitem(self, key)

sys.addaudithook(audit)
before, had = state(), set(sys.modules)
env.__getitem__ = recording
watching = True
{body}
watching = False
env.__getitem__ = getitem
after = state()
print(json.dumps({
    "changed": {k: [before[k], after[k]] for k in before if before[k] != after[k]},
    "modules": sorted(set(sys.modules) - had),
    "events": events,
    "reads": reads,
    "file": sys.modules["opmux"].__file__ if "opmux" in sys.modules else None,
}))
"""


def python(code: str, **extra: str) -> str:
    """In a fork of a process that has imported torch: every program here does so before it looks."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    # Uncompiled sources would be timed with their compilation.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPATH"] = str(SRC)
    done = fresh.run([sys.executable, "-c", code], env=env | extra, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(body: str) -> dict:
    # Writing bytecode is a write of the interpreter's, not of ours.
    return json.loads(python(PROBE.replace("{body}", body), PYTHONDONTWRITEBYTECODE="1", **BAIT).splitlines()[-1])


@pytest.fixture(scope="module")
def plain() -> dict:
    return probe("import opmux")


def heavy(modules: list[str]) -> list[str]:
    return [m for m in modules if f"{m}.".startswith(tuple(f"{h.rstrip('.')}." for h in HEAVY)) and m != "opmux.specs"]


def ours(reads: list[str]) -> list[str]:
    return [key for key in reads if key.startswith(OURS)]


def test_this_tree_is_the_one_imported(plain):
    assert plain["file"] and Path(plain["file"]).is_relative_to(SRC)


def test_it_is_quick():
    python("import opmux")  # writes bytecode
    best = 1.0
    for _ in range(5):  # on a busy machine the first may be slow
        best = min(best, float(python(TIME)))
        if best < 0.050:
            return
    pytest.fail(f"import opmux took {best * 1e3:.0f} ms after import torch, of 50 allowed")


def test_it_brings_little_along(plain):
    assert heavy(plain["modules"]) == []


def test_it_changes_nothing(plain):
    assert plain["changed"] == {}


def test_it_opens_nothing_and_starts_nothing(plain):
    assert plain["events"] == []


def test_it_reads_no_variable_of_ours(plain):
    assert ours(plain["reads"]) == []


LOUD = """
import logging, signal, socket, subprocess, sys, threading, warnings, yaml
open("/dev/null").close()
socket.socket().close()
subprocess.run([sys.executable, "-c", ""])
os.environ.get("OPMUX_VENDOR")
"TE_PLUGIN" in os.environ
os.environ["ADDED"] = "1"
logging.getLogger("opmux").addHandler(logging.NullHandler())
logging.root.addHandler(logging.NullHandler())
sys.meta_path.append(object())
warnings.simplefilter("ignore")
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_the_probe_sees_what_it_is_for():
    seen = probe(LOUD)
    assert set(seen["changed"]) == {
        "environment",
        "opmux log handlers",
        "root log handlers",
        "signal handlers",
        "sys.meta_path",
        "threads",
        "warning filters",
    }
    assert "open /dev/null" in seen["events"]
    assert {"subprocess.Popen", "socket.__new__"} <= set(seen["events"])
    assert {"OPMUX_VENDOR", "TE_PLUGIN"} <= set(ours(seen["reads"]))
    assert "yaml" in heavy(seen["modules"])


def test_the_probe_sees_a_walk_over_the_environment():
    assert set(ours(probe("dict(os.environ)")["reads"])) == set(BAIT)


def test_heavy_names():
    light = ["opmux", "opmux.core.spec", "opmux.specs", "richly", "torch"]
    assert heavy([*light, "rich", "rich.table", "opmux.specs.norm", "triton.language"]) == [
        "rich",
        "rich.table",
        "opmux.specs.norm",
        "triton.language",
    ]
