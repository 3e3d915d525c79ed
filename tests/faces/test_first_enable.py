"""The first `enable()` on a machine without a compiler, with a failing compiler, or without a writable cache.

The programs train a small model on a simulated device. If C++ cannot be compiled, a program must warn exactly once.
"""

from __future__ import annotations

import concurrent.futures
import json

import pytest

from opmux.tools import simulator

PROGRAM = """
import json, logging, os, time
os.environ.update(json.loads({env!r}))
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append([record.levelname, record.getMessage()])
logging.getLogger("opmux").addHandler(handler)
import torch
from torch import nn
import opmux
from opmux.faces.aten import switch
from opmux.cpp import library as native_library
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))

def loss(model, x, y):
    found = nn.functional.cross_entropy(model(x), y)
    found.backward()
    return found.item()

expected = loss(model, x, y)
model, x, y = model.to("npu"), x.to("npu"), y.to("npu")
began = time.monotonic()
returned = opmux.enable()
at_once = time.monotonic() - began
steps = []
end = time.monotonic() + {seconds}
while len(steps) < 5 or (time.monotonic() < end and not opmux.enabled_ops()):
    began = time.monotonic()
    assert abs(loss(model, x, y) - expected) < 1e-4
    steps.append(time.monotonic() - began)
    time.sleep(0.02)
on = len(opmux.enabled_ops())
for _ in range(3):
    assert abs(loss(model, x, y) - expected) < 1e-4
facts = dict(returned=len(returned), on=on, longest=max(steps), enable=at_once)
facts["library"] = native_library.loaded() is not None
facts["warnings"] = [text for level, text in said if level == "WARNING"]
print(json.dumps(facts))
"""
FAILS = "echo 'error: out of ink' >&2; exit 1"
CALLS = 'echo x >> "$0.log"; exec g++ "$@"'


@pytest.fixture
def compiler(tmp_path):
    """`compiler(lines)`: a fake compiler that runs these shell lines for each source file."""

    def make(lines):
        path = tmp_path / "compiler"
        path.write_text(
            f'#!/bin/sh\ncase " $* " in *--version*) echo made up 1.0; exit;; *" -c "*) {lines};; esac\nexec g++ "$@"\n'
        )
        path.chmod(0o755)
        return path

    return make


def run(simulated, seconds=200, **env):
    return simulated("npu", PROGRAM.format(env=json.dumps(env), seconds=seconds))


def run_at_once(count, seconds, **env):
    """Run the same program in several processes that start at the same time."""
    program = PROGRAM.format(env=json.dumps(env), seconds=seconds)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: simulator.run("npu", program, limit=800), range(count)))


def compiled_sources(path):
    log = path.with_name(f"{path.name}.log")
    return log.read_text().count("x") if log.exists() else 0


def loses_cpp_once(report, reason):
    (warning,) = [one for one in report["warnings"] if one.startswith("without opmux's native library")]
    assert reason in warning and len(report["warnings"]) == len(set(report["warnings"])), report["warnings"]
    assert report["on"] and not report["library"]


def test_without_a_compiler_enabled_ops_run_from_python(simulated, tmp_path):
    report = run(simulated, PATH=str(tmp_path), CXX="", OPMUX_CACHE_DIR=str(tmp_path / "cache"))
    loses_cpp_once(report, "there is no C++ compiler")


def test_a_failing_compiler_is_reported_once(simulated, tmp_path, compiler):
    path = compiler(FAILS)
    report = run(simulated, CXX=str(path), OPMUX_CACHE_DIR=str(tmp_path / "cache"))
    loses_cpp_once(report, "error: out of ink")
    assert not report["returned"]  # the compiler ran in the background


@pytest.mark.slow
def test_without_a_writable_folder_enabled_ops_run_from_python(simulated, compiler):
    """The folder is below /proc, because root can write to every other folder."""
    report = run(simulated, CXX=str(compiler(FAILS)), HOME="/proc", XDG_CACHE_HOME="/proc/opmux", OPMUX_CACHE_DIR="")
    loses_cpp_once(report, "Set OPMUX_CACHE_DIR to a writable folder")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_programs_at_once_compile_once_and_all_launch_from_cpp(simulated, tmp_path, compiler):
    path = compiler(CALLS)
    env = {"CXX": str(path), "OPMUX_CACHE_DIR": str(tmp_path / "cache")}
    reports = run_at_once(8, 250, **env)
    assert all(one["library"] and not one["warnings"] and not one["returned"] for one in reports), reports
    assert compiled_sources(path) == 2
