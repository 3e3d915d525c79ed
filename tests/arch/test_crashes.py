"""A test that takes its process down is one failed test: the others run, and the report names it.

And tests that share something costly run on one worker.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist")

CONFTEST = f"""
import os, runpy, sys, types
if "PYTEST_XDIST_WORKER" not in os.environ:
    sys.modules["torch"] = types.ModuleType("torch")  # not needed here, and slow to import
    ours = runpy.run_path({str(Path(__file__).parents[1] / "conftest.py")!r})
    pytest_xdist_make_scheduler = ours["pytest_xdist_make_scheduler"]
"""
ALONE = """
import os, signal, pytest

@pytest.mark.parametrize("i", range({many}))
def test_alone(i):
    if i in {crashes}:
        os.kill(os.getpid(), signal.SIGFPE)
"""
GROUP = """
import os, signal, pytest
pytestmark = pytest.mark.xdist_group("g")

@pytest.mark.parametrize("i", range(4))
def test_group(i):
    if i == {in_group}:
        os.kill(os.getpid(), signal.SIGFPE)
"""
PIDS = """
import os, time, pytest
pytestmark = pytest.mark.xdist_group("p")

@pytest.mark.parametrize("i", range(8))
def test_pid(i):
    with open("pids", "a") as file:
        print(os.getpid(), file=file)
    time.sleep(0.05)  # so that the other worker has time for the next one
"""


@pytest.mark.parametrize(
    "many, crashes, in_group",
    [(12, (3, 8), 1), (3, (0, 1, 2), 3)],
    ids=["some", "all at once"],
)
@pytest.mark.turns(8)
def test_a_crash_is_one_failure(tmp_path, many, crashes, in_group):
    alone = ALONE.format(many=many, crashes=crashes)
    done = run(tmp_path, {"test_alone.py": alone, "test_group.py": GROUP.format(in_group=in_group)})
    names = {f"test_alone[{i}]" for i in crashes} | {f"test_group[{in_group}]"}
    assert done.returncode == 1 and "INTERNALERROR" not in done.stdout, done.stdout
    assert set(re.findall(r"FAILED test_\w+.py::([^\s@]+)", done.stdout)) == names
    left = f"{many + 4 - len(names)} passed"
    assert f"{len(names)} failed, {left}" in done.stdout and done.stdout.count("crashed while running") >= len(names)


def test_a_group_stays_on_one_worker(tmp_path):
    done = run(tmp_path, {"test_pids.py": PIDS, "test_alone.py": ALONE.format(many=8, crashes=())})
    assert done.returncode == 0, done.stdout
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 8 and len(set(pids)) == 1


def run(tmp_path, files):
    for name, text in {"conftest.py": CONFTEST, "pytest.ini": "[pytest]", **files}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    # a worker of ours says so in its environment, and the run in here is not one of its workers
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-q", "-n", "2", "--dist", "loadgroup", "-rf"],
        cwd=tmp_path,
        env={**env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[1] / "shared")},
        capture_output=True,
        text=True,
        timeout=120,
    )
