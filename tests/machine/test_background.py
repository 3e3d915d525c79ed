"""Functions that another thread has the main thread call: not while that imports or holds a lock."""

from __future__ import annotations

import importlib
import sys
import threading
import time

import pytest

from opmux.core.lock import lock
from opmux.cpp import background
from opmux.cpp import library as native_library


@pytest.fixture
def called(monkeypatch):
    """The results of `observe`, which the main thread calls when it is not busy; `request` has it called."""
    monkeypatch.setattr(background, "RETRY", 0.01)
    return []


def request(called, observe=lambda: True):
    thread = threading.Thread(target=background.in_main_thread, args=(lambda: called.append(observe()),))
    thread.start()
    thread.join()


def run_for(seconds):
    """Execute instructions, as a program does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def import_slowly(folder, monkeypatch, name, called, seconds):
    """Import a module that takes its time, while another thread requests a call."""
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


def test_a_program_that_is_not_busy_is_interrupted_at_once(called):
    request(called, lambda: threading.current_thread() is threading.main_thread())
    until(lambda: called)
    assert called == [True]


def test_a_module_is_imported_to_its_end_first(called, monkeypatch, tmp_path):
    """The function may import the same module, and would see half of it."""
    import_slowly(tmp_path, monkeypatch, "slow_module", called, 0.3)
    until(lambda: called)
    assert called == [True]


def test_a_program_that_runs_while_it_is_imported_is_interrupted(called, monkeypatch, tmp_path):
    """`python -c "import train"`, where train.py does not return."""
    monkeypatch.setattr(background, "LONG", 0.1)
    import_slowly(tmp_path, monkeypatch, "training", called, 1)
    assert called == [False]


@pytest.mark.parametrize("held", [lock, native_library._State.loading], ids=["core", "native library"])
def test_what_holds_a_lock_of_ours_is_not_interrupted(called, held):
    """The lock is re-entrant: the function would see half of a change."""
    with held.held:
        request(called, lambda: held.held._is_owned())
        run_for(0.1)
        assert not called
    until(lambda: called)
    assert called == [False]
