"""tests/gpu/in_parallel.py: a run that is stopped at the time limit says which tests had failed by then."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import time

def test_wrong():
    assert 1 == 2

def test_long():
    open({started!r}, "w").close()
    time.sleep(60)
"""


@pytest.fixture
def in_parallel(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu")
    import in_parallel

    return in_parallel


@pytest.mark.parametrize("fails", [True, False])
def test_a_stopped_run_names_the_tests_that_failed(in_parallel, tmp_path, fails):
    started, log, file = tmp_path / "started", tmp_path / "run.log", tmp_path / "test_it.py"
    text = TESTS.format(started=str(started))
    file.write_text(text if fails else text.replace("1 == 2", "True"), encoding="utf-8")
    run = in_parallel.Run("test_it.py", False, log)
    command = [*in_parallel.PYTEST, "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
    run.output = log.open("wb")
    run.process = subprocess.Popen(command, cwd=tmp_path, stdout=run.output, stderr=subprocess.STDOUT)
    ends = time.monotonic() + 60
    while not started.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    run.interrupt()
    run.stop(patience=30)
    result = run.result()
    assert result["ok"] is (False if fails else None)
    assert [name.rpartition("::")[2] for name in result["failed"]] == (["test_wrong"] if fails else [])
    assert ("assert 1 == 2" in log.read_text(encoding="utf-8")) is fails
