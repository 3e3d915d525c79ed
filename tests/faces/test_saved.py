"""What auto mode takes is saved for the next process, whose overrides are made when they are first called."""

from __future__ import annotations

import json

import pytest
import torch

import opmux
from opmux.cpp import library as native_library
from opmux.faces.aten import decisions, engine, gate, saved, switch
from opmux.faces.aten.decisions import Speed, Times
from opmux.faces.aten.engine import Deferred
from opmux.machine import vendors

BF16 = torch.bfloat16
FAST = Speed((5.0, 4.0), {BF16: (Times(64, 10.0, 5.0), Times(1 << 20, 100.0, 50.0))})


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """As on a machine where softmax was measured; `machine()` forgets what this process knows, as a new one."""
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(decisions, "measured", lambda chip: {"_softmax": FAST, "exp": FAST})
    monkeypatch.setattr(switch.Selection, "_is_saved", property(lambda self: self.auto and saved.usable()))
    monkeypatch.setattr(saved, "plugins_are_named", lambda: False)
    monkeypatch.setattr(vendors, "changed_in_code", lambda: False)  # other tests register some

    def again():
        opmux.disable()
        decisions._known.clear()
        decisions._decide.cache_clear()
        gate.forget()
        engine._devices.clear()
        engine._chosen.clear()

    again()
    yield again
    again()
    monkeypatch.undo()
    decisions.forget()


def files(folder):
    return sorted(folder.glob("auto/*.json"))


def test_the_second_process_reads_what_the_first_has_decided(machine, tmp_path, monkeypatch):
    first = opmux.enable()
    assert "_softmax" in first and len(files(tmp_path)) == 1
    rows = {name: decisions.thresholds(name, "cpu") for name in first}
    machine()
    monkeypatch.setattr(engine, "choosable", lambda: pytest.fail("specs and kernels are loaded"))
    assert opmux.enable() == first == opmux.enabled_ops()
    assert {name: decisions.thresholds(name, "cpu") for name in first} == rows
    assert all(isinstance(entry, Deferred) for entry in engine._devices["cpu"].entries.values())


def test_a_deferred_override_is_made_by_its_first_call(machine):
    opmux.enable()
    machine()
    opmux.enable()
    gate.select(frozenset({"_softmax"}), None)  # as in mode="all": each call is ours
    x = torch.randn(64, 128, dtype=BF16)
    want = torch.softmax(x.double(), -1)
    for _ in range(3):
        torch.testing.assert_close(torch.softmax(x, -1).double(), want, rtol=1e-2, atol=1e-3)
    kept = engine._devices["cpu"].entries["_softmax"]
    assert not isinstance(kept, Deferred) and engine.native_of("_softmax", "cpu") is not None
    torch.testing.assert_close(opmux.native("_softmax")(x, -1, False).double(), want, rtol=1e-2, atol=1e-3)


def test_a_deferred_override_leaves_nothing_when_it_is_removed(machine):
    opmux.enable()
    machine()
    opmux.enable()
    assert engine.native_of("_softmax", "cpu") is not None
    opmux.disable()
    assert engine.native_of("_softmax", "cpu") is None and not opmux.enabled_ops()
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.softmax(x, -1), torch.softmax(x.double(), -1).float())


def test_mode_all_takes_over_deferred_overrides(machine):
    opmux.enable()
    machine()
    opmux.enable()
    assert opmux.enable(include="softmax", mode="all") == ["_softmax", "_softmax.out"]
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.softmax(x, -1), torch.softmax(x.double(), -1).float())


def test_another_selection_or_setting_has_a_file_of_its_own(machine, tmp_path, monkeypatch):
    opmux.enable()
    machine()
    assert opmux.enable(include="softmax") == ["_softmax"]
    machine()
    monkeypatch.setenv("OPMUX_PREFER", "reference")
    opmux.enable()
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"taken": 1}', '{"taken": {"cpu": {"exp": 1}}}', '{"taken": null}'])
def test_a_file_that_cannot_be_read_is_written_again(machine, tmp_path, text):
    first = opmux.enable()
    (file,) = files(tmp_path)
    good = json.loads(file.read_text())
    file.write_text(text)
    machine()
    assert opmux.enable() == first
    assert json.loads(file.read_text()) == good


def test_a_file_of_another_user_is_not_read(machine, tmp_path):
    opmux.enable()
    (file,) = files(tmp_path)
    file.chmod(0o666)
    file.parent.chmod(0o777)
    machine()
    assert saved.read(None, None) is None
    assert "_softmax" in opmux.enable()


def test_a_registered_implementation_is_decided_about_in_its_process(machine):
    from opmux.core import BackendImplKind, OpImpl, get_default_manager

    assert saved.usable()
    registry = get_default_manager().registry
    mine = OpImpl("softmax", "vendor.mine", BackendImplKind.VENDOR, "mine", lambda x, dim: x, outside=True)
    registry.register_impl(mine)
    try:
        assert not saved.usable()
    finally:
        registry.remove_impls([("opmux::softmax", i) for i in registry.all_impls() if i.impl_id == mine.impl_id])
    assert saved.usable()


def test_plugins_are_decided_about_in_their_process(machine, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("OPMUX_PLUGIN_MODULES", "json")
    assert not saved.usable()
