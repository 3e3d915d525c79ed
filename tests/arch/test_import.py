"""`import opmux` is fast, imports little, and does not change the process."""

import json
import os
import sys
from pathlib import Path

import fresh
import pytest

SRC = Path(__file__).parents[2] / "src"
OURS = ("OPMUX", "TE_", "TEFL")
HEAVY = ("triton", "yaml", "rich", "typer", "opmux.specs.")

# These variables are set in the child, so that a loop over the whole environment reads them too.
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
    """Run code in a fork of a process that has imported torch, because every program here imports torch before it
    measures.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    # Allow bytecode files: without them the measured time would include compiling the sources.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPATH"] = str(SRC)
    result = fresh.run([sys.executable, "-c", code], env=env | extra, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def probe(body: str) -> dict:
    # Turn bytecode files off: the probe would record that they are written, but Python writes them, not opmux.
    return json.loads(python(PROBE.replace("{body}", body), PYTHONDONTWRITEBYTECODE="1", **BAIT).splitlines()[-1])


@pytest.fixture(scope="module")
def plain() -> dict:
    return probe("import opmux")


def heavy(modules: list[str]) -> list[str]:
    return [m for m in modules if f"{m}.".startswith(tuple(f"{h.rstrip('.')}." for h in HEAVY)) and m != "opmux.specs"]


def ours(reads: list[str]) -> list[str]:
    return [key for key in reads if key.startswith(OURS)]


def test_opmux_is_imported_from_this_tree(plain):
    assert plain["file"] and Path(plain["file"]).is_relative_to(SRC)


def test_import_takes_under_50_ms_after_torch():
    python("import opmux")  # writes the bytecode files
    best = 1.0
    for _ in range(5):  # the best of five runs: one may be slow on a busy machine
        best = min(best, float(python(TIME)))
        if best < 0.050:
            return
    pytest.fail(f"import opmux took {best * 1e3:.0f} ms after import torch, of 50 allowed")


def test_import_loads_no_heavy_module(plain):
    assert heavy(plain["modules"]) == []


def test_import_changes_no_process_state(plain):
    assert plain["changed"] == {}


def test_import_opens_no_file_and_starts_no_process(plain):
    assert plain["events"] == []


def test_import_reads_none_of_our_environment_variables(plain):
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


def test_the_probe_detects_every_kind_of_change():
    changes = probe(LOUD)
    assert set(changes["changed"]) == {
        "environment",
        "opmux log handlers",
        "root log handlers",
        "signal handlers",
        "sys.meta_path",
        "threads",
        "warning filters",
    }
    assert "open /dev/null" in changes["events"]
    assert {"subprocess.Popen", "socket.__new__"} <= set(changes["events"])
    assert {"OPMUX_VENDOR", "TE_PLUGIN"} <= set(ours(changes["reads"]))
    assert "yaml" in heavy(changes["modules"])


def test_the_probe_detects_iteration_over_the_environment():
    assert set(ours(probe("dict(os.environ)")["reads"])) == set(BAIT)


def test_heavy_modules_are_recognised_by_name():
    light = ["opmux", "opmux.core.spec", "opmux.specs", "richly", "torch"]
    assert heavy([*light, "rich", "rich.table", "opmux.specs.norm", "triton.language"]) == [
        "rich",
        "rich.table",
        "opmux.specs.norm",
        "triton.language",
    ]
