"""Programs that tests run in a forked process (tests/shared/fresh.py) find what they would in a new one."""

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
    """Both ways to end a program."""
    monkeypatch.setattr(fresh, "torn_down", request.param)


def test_as_a_new_process(tmp_path, monkeypatch):
    """Arguments, environment, folder, module path, output, what happens at exit, and the traceback."""
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONIOENCODING": "utf-8", "MINE": "1"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", PORTRAIT, "a word"]
    wanted = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=100)
    for torn_down in (False, True):
        monkeypatch.setattr(fresh, "torn_down", torn_down)
        ours = fresh.run(command, env=env, cwd=tmp_path, timeout=100)
        assert (ours.returncode, ours.stdout, ours.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr)
        assert '"ours": false' in ours.stdout and "at the end" in ours.stdout and ours.returncode == 1


def test_how_programs_end(ended):
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
def test_only_some_ends_take_objects_apart(monkeypatch, torn_down):
    monkeypatch.setattr(fresh, "torn_down", torn_down)
    code = "class Last:\n def __del__(self, write=print): write('gone')\nlast = Last()"
    assert fresh.run([sys.executable, "-c", code], timeout=100).stdout == "gone\n" * torn_down


@pytest.mark.slow
def test_a_program_with_all_of_opmux_says_nothing_when_it_is_taken_apart(monkeypatch):
    """Other tests end their programs so with --slow only."""
    monkeypatch.setattr(fresh, "torn_down", True)
    code = "import torch, opmux; opmux.ops.rms_norm(torch.ones(2, 8), torch.ones(8)); opmux.enable()"
    done = fresh.warm([sys.executable, "-c", code], timeout=100, env={**os.environ, "PYTHONPATH": str(fresh.SRC)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_must_be_new_is_new():
    """A variable that is read when Python starts."""
    code = "import sys; print('torch' in sys.modules, sys.flags.hash_randomization)"
    run = lambda **more: fresh.run([sys.executable, "-c", code], env={**os.environ, **more}, timeout=100).stdout
    assert run(MINE="1") == "True 1\n" and run(PYTHONHASHSEED="0") == "False 0\n"
    assert run(OPMUX_TE_STARTUP="0") == "False 1\n"  # read by opmux_startup, which runs before any program
