"""Programs that tests run in a forked process (tests/shared/fresh.py) behave as in a new process."""

import os
import subprocess
import sys

import fresh
import pytest

PORTRAIT = """
import atexit, json, os, sys
import torch
atexit.register(print, "at the end")
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ), "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(), "ours": "opmux" in sys.modules,
    "encoding": sys.stdout.encoding, "tty": sys.stdout.isatty(),
    "bytecode": sys.dont_write_bytecode, "others": [m for m in ("fresh", "triton", "pytest") if m in sys.modules],
}, sort_keys=True))
sys.stdout.flush()
def fail():
    1 / 0
fail()
"""


@pytest.fixture(params=[False, True], ids=["ended early", "torn down"])
def ended(request, monkeypatch):
    """Run the test twice: programs end without Python's teardown, or with it."""
    monkeypatch.setattr(fresh, "torn_down", request.param)


def test_a_forked_program_behaves_as_in_a_new_process(tmp_path, monkeypatch):
    """Compares arguments, environment, working directory, module path, output, `atexit` functions, and the
    traceback.
    """
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONIOENCODING": "utf-8", "MINE": "1"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", PORTRAIT, "a word"]
    expected = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=100)
    for torn_down in (False, True):
        monkeypatch.setattr(fresh, "torn_down", torn_down)
        ours = fresh.run(command, env=env, cwd=tmp_path, timeout=100)
        assert (ours.returncode, ours.stdout, ours.stderr) == (expected.returncode, expected.stdout, expected.stderr)
        assert '"ours": false' in ours.stdout and "at the end" in ours.stdout and ours.returncode == 1


def test_exit_status_signals_timeouts_and_last_output_are_kept(ended):
    run = lambda code: fresh.run([sys.executable, "-c", code], timeout=100)
    assert run("raise SystemExit(7)").returncode == 7
    ended = run("import sys; sys.exit('no')")
    assert (ended.returncode, ended.stderr) == (1, "no\n")
    assert run("import os; os.kill(os.getpid(), 9)").returncode == -9
    with pytest.raises(subprocess.TimeoutExpired):
        fresh.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)
    assert run("print(1)").stdout == "1\n"
    waits = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('last'))).start()"
    assert run(waits).stdout == "last\n"
    assert run("import ctypes; ctypes.CDLL(None).puts(b'from C')").stdout == "from C\n"


@pytest.mark.parametrize("torn_down", [False, True])
def test_objects_are_destroyed_at_exit_only_with_torn_down(monkeypatch, torn_down):
    monkeypatch.setattr(fresh, "torn_down", torn_down)
    code = "class Last:\n def __del__(self, write=print): write('gone')\nlast = Last()"
    assert fresh.run([sys.executable, "-c", code], timeout=100).stdout == "gone\n" * torn_down


@pytest.mark.slow
def test_pythons_teardown_after_using_opmux_prints_nothing(monkeypatch):
    """Without --slow, the other tests skip this teardown."""
    monkeypatch.setattr(fresh, "torn_down", True)
    code = "import torch, opmux; opmux.ops.rms_norm(torch.ones(2, 8), torch.ones(8)); opmux.enable(mode='all')"
    result = fresh.warm([sys.executable, "-c", code], timeout=100, env={**os.environ, "PYTHONPATH": str(fresh.SRC)})
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_variable_that_is_read_at_start_needs_a_new_process():
    """The variable here is PYTHONHASHSEED."""
    code = "import sys; print('torch' in sys.modules, sys.flags.hash_randomization)"
    run = lambda **more: fresh.run([sys.executable, "-c", code], env={**os.environ, **more}, timeout=100).stdout
    assert run(MINE="1") == "True 1\n" and run(PYTHONHASHSEED="0") == "False 0\n"
    assert run(OPMUX_TE_STARTUP="0") == "False 1\n"  # read by opmux_startup, which runs before any program
