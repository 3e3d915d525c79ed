"""Calls in the main thread for another thread: not during an import, and not while the main thread holds a lock."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time

import pytest

from opmux.core.lock import lock
from opmux.cpp import background
from opmux.cpp import library as native_library


@pytest.fixture
def called(monkeypatch):
    """The results of `observe` in the main thread. `request` schedules a call of `observe` from another thread."""
    monkeypatch.setattr(background, "RETRY", 0.01)
    return []


def request(called, observe=lambda: True):
    thread = threading.Thread(target=background.in_main_thread, args=(lambda: called.append(observe()),))
    thread.start()
    thread.join()


def run_for(seconds):
    """Execute Python instructions for this many seconds, because a scheduled call runs between two instructions."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def import_slowly(folder, monkeypatch, name, called, seconds):
    """Import a module that takes `seconds`, and schedule a call from another thread during the import."""
    (folder / f"{name}.py").write_text(SLOW.format(seconds=seconds))
    monkeypatch.syspath_prepend(str(folder))
    observe = lambda: hasattr(sys.modules[name], "done")
    monkeypatch.setattr(sys, "request_a_call", lambda: request(called, observe), raising=False)
    importlib.import_module(name)


SLOW = """
import sys, time
sys.request_a_call()
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    time.sleep(0.001)
done = True
"""


def test_an_idle_main_thread_is_interrupted_at_once(called):
    request(called, lambda: threading.current_thread() is threading.main_thread())
    until(lambda: called)
    assert called == [True]


def test_an_import_finishes_before_the_call(called, monkeypatch, tmp_path):
    """The scheduled call might import the same module, which it would see half initialised."""
    import_slowly(tmp_path, monkeypatch, "slow_module", called, 0.3)
    until(lambda: called)
    assert called == [True]


def test_an_import_that_does_not_return_is_interrupted(called, monkeypatch, tmp_path):
    """`python -c "import train"` does not return if train.py runs the whole training."""
    monkeypatch.setattr(background, "LONG", 0.1)
    import_slowly(tmp_path, monkeypatch, "training", called, 1)
    assert called == [False]


@pytest.mark.parametrize("held", [lock, native_library._LibraryState.loading], ids=["core", "native library"])
def test_code_that_holds_one_of_our_locks_is_not_interrupted(called, held):
    """The lock is re-entrant, so a call in the same thread would see a change that is half made."""
    with held.held:
        request(called, lambda: held.held._is_owned())
        run_for(0.1)
        assert not called
    until(lambda: called)
    assert called == [False]


ENDS = """
import time, torch
from opmux.cpp import background
def work(error):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    print("done", flush=True)
background.run("pass", work)
background.later(60, lambda: print("never"))
time.sleep({seconds})
"""


@pytest.mark.parametrize("seconds, message", [(0, ""), (1.5, "done")])
def test_a_program_ends_while_a_background_thread_works(seconds, message):
    """Otherwise Python would stop the thread in the middle of its work, which aborts the program."""
    result = subprocess.run([sys.executable, "-c", ENDS.format(seconds=seconds)], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, message, "")
