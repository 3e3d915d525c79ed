"""The first `enable()` on a machine: another process compiles the C++ library while torch's own kernels run."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

import opmux
from opmux.cpp import background
from opmux.cpp import library as native_library
from opmux.faces.aten import decisions, engine, switch
from opmux.faces.aten.decisions import Speed, Times

FAST = Speed((5.0, 4.0), {torch.float32: (Times(64, 10.0, 5.0), Times(1 << 20, 100.0, 50.0))})


def until(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.01)


@pytest.fixture
def preparing(monkeypatch):
    """The callbacks to call at the end of a compilation in the background; nothing is really compiled."""
    started = []
    monkeypatch.setattr(switch.Selection, "takes_long", lambda self: self.auto)
    monkeypatch.setattr(decisions, "measured", lambda chip: {"_softmax": FAST})
    monkeypatch.setattr(background, "run", lambda program, then, env=None: started.append(then))
    decisions._decide.cache_clear()
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    yield started
    opmux.disable()
    decisions._decide.cache_clear()


def test_ops_are_enabled_when_the_other_process_has_finished(preparing):
    assert opmux.enable() == opmux.enabled_ops() == []
    preparing[0]("")
    until(opmux.enabled_ops)
    assert opmux.enabled_ops() == ["_softmax"]


def test_ops_are_enabled_in_the_main_thread(preparing, monkeypatch):
    enabled = []
    turn_on = switch.Selection.turn_on
    note = lambda self, *args, **kwargs: (enabled.append(threading.current_thread()), turn_on(self, *args, **kwargs))
    monkeypatch.setattr(switch.Selection, "turn_on", note)
    opmux.enable()
    threading.Thread(target=preparing[0], args=("",)).start()
    until(opmux.enabled_ops)
    assert enabled == [threading.main_thread()]


@pytest.mark.parametrize(
    "undo", [opmux.disable, lambda: opmux.enable(include="softmax", mode="all")], ids=["off", "all"]
)
def test_a_selection_replaced_during_compilation_is_not_enabled(preparing, undo):
    opmux.enable()
    undo()
    left = opmux.enabled_ops()
    preparing[0]("")
    time.sleep(0.1)
    assert opmux.enabled_ops() == left


def test_a_failed_compilation_warns_and_torchs_kernels_run(preparing, caplog):
    opmux.enable()
    with caplog.at_level("WARNING"):
        preparing[0]("g++: no space left")
    assert "g++: no space left" in caplog.text and "torch's own kernels" in caplog.text
    assert opmux.enabled_ops() == []


def test_enable_with_wait_compiles_in_this_process(preparing):
    assert opmux.enable(wait=True) == ["_softmax"] and not preparing


def test_use_compiles_in_this_process(preparing):
    with opmux.use():
        assert opmux.enabled_ops() == ["_softmax"] and not preparing


def test_ops_are_enabled_if_no_process_can_be_started(preparing, monkeypatch):
    def fail(program, then, env=None):
        raise OSError("no more processes")

    monkeypatch.setattr(background, "run", fail)
    assert opmux.enable() == ["_softmax"]


def ended(program):
    ended = []
    background.run(program, ended.append)
    until(lambda: ended)
    return ended[0]


def test_the_compiling_program_succeeds():
    assert ended(switch.PREPARE.format(include=("softmax",), exclude=None)) == ""


def test_errors_of_a_background_process_are_reported():
    assert "there is no such thing" in ended("raise ValueError('there is no such thing')")
    assert "exit status 3" in ended("import sys; sys.exit(3)")
    assert ended(f"import sys; assert sys.path == {sys.path!r}") == ""


@pytest.mark.parametrize("replaced", [False, True])
def test_overloads_are_registered_in_short_steps(preparing, monkeypatch, own_cache, replaced):
    """No overload is enabled before all are registered. If `disable` is called meanwhile, none stays registered."""
    monkeypatch.setattr(decisions, "measured", lambda chip: dict.fromkeys(("_softmax", "glu", "_log_softmax"), FAST))
    monkeypatch.setattr(switch.Selection, "_is_saved", property(lambda self: self.auto))
    monkeypatch.setattr(switch, "AT_ONCE", 1)
    monkeypatch.setattr(switch, "PAUSE", 0.05)
    decisions._decide.cache_clear()
    chosen = opmux.enable(wait=True)
    assert len(chosen) == 3
    opmux.disable()
    steps, register = [], engine.register_deferred
    note = lambda *args, **kwargs: (register(*args, **kwargs), steps.append(opmux.enabled_ops()))
    monkeypatch.setattr(engine, "register_deferred", note)
    opmux.enable()
    preparing[0]("")
    if replaced:
        until(lambda: steps)
        opmux.disable()
        time.sleep(0.3)
        assert len(steps) <= 2 and not opmux.enabled_ops() and engine.native_of("_softmax", "cpu") is None
    else:
        until(opmux.enabled_ops)
        assert opmux.enabled_ops() == chosen and steps[:3] == [[], [], []]


def test_the_planner_starts_before_the_last_step_in_another_thread(preparing, monkeypatch, own_cache):
    monkeypatch.setattr(switch.Selection, "_is_saved", property(lambda self: self.auto))
    monkeypatch.setattr(switch.planner, "DEVICE", "cpu")
    opmux.enable(wait=True)
    opmux.disable()
    started = []
    note = lambda: started.append((threading.current_thread(), opmux.enabled_ops()))
    monkeypatch.setattr(switch.planner, "start", note)
    opmux.enable()
    threading.Thread(target=preparing[0], args=("",)).start()
    until(opmux.enabled_ops)
    thread, enabled = started[0]
    assert thread is not threading.main_thread() and not enabled


def test_an_error_in_the_main_thread_is_logged(caplog):
    def fail():
        raise ValueError("by us")

    background.in_main_thread(fail)
    until(lambda: "by us" in caplog.text)
