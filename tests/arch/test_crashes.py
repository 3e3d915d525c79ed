"""A test that takes its process down is one failed test: the others run, and the report names it."""

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
SUITE = """
import os, signal, pytest

def crash():
    os.kill(os.getpid(), signal.SIGFPE)

@pytest.mark.parametrize("i", range({many}))
def test_alone(i):
    if i in {crashes}:
        crash()

@pytest.mark.xdist_group("g")
@pytest.mark.parametrize("i", range(4))
def test_group(i):
    if i == {in_group}:
        crash()
"""


@pytest.mark.parametrize(
    "many, crashes, in_group",
    [(12, (3, 8), 1), (3, (0, 1, 2), 3)],
    ids=["some", "all at once"],
)
def test_a_crash_is_one_failure(tmp_path, many, crashes, in_group):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_it.py").write_text(SUITE.format(many=many, crashes=crashes, in_group=in_group))
    # a worker of ours says so in its environment, and the run in here is not one of its workers
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-q", "-n", "2", "--dist", "loadgroup", "-rf"],
        cwd=tmp_path,
        env={**env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    names = {f"test_alone[{i}]" for i in crashes} | {f"test_group[{in_group}]"}
    assert done.returncode == 1 and "INTERNALERROR" not in done.stdout, done.stdout
    assert set(re.findall(r"FAILED test_it.py::(\S+)", done.stdout)) == names
    left = f"{many + 4 - len(names)} passed"
    assert f"{len(names)} failed, {left}" in done.stdout and done.stdout.count("crashed while running") >= len(names)
