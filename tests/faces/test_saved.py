"""Auto mode saves its decisions for the next process, which creates each override only when it is first called."""

from __future__ import annotations

import json

import pytest
import torch

import opmux
from opmux.cpp import library as native_library
from opmux.faces.aten import decisions, engine, gate, saved
from opmux.faces.aten.decisions import Speed, Times
from opmux.faces.aten.engine import Deferred
from opmux.machine import vendors

BF16 = torch.bfloat16
FAST = Speed((5.0, 4.0), {BF16: (Times(64, 10.0, 5.0), Times(1 << 20, 100.0, 50.0))})


@pytest.fixture
def machine(monkeypatch, own_cache):
    """Pretends that softmax was measured on this machine; `machine()` clears all state, as in a new process."""
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    monkeypatch.setattr(decisions, "measured", lambda chip: {"_softmax": FAST, "exp": FAST})
    monkeypatch.setattr(saved, "plugins_are_named", lambda: False)
    monkeypatch.setattr(vendors, "changed_in_code", lambda: False)  # hides other tests' changes

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


def test_the_second_process_reads_the_decisions_of_the_first(machine, tmp_path, monkeypatch):
    first = opmux.enable()
    assert "_softmax" in first and len(files(tmp_path)) == 1
    rows = {name: decisions.thresholds(name, "cpu") for name in first}
    machine()
    monkeypatch.setattr(engine, "choosable", lambda: pytest.fail("specs and kernels are loaded"))
    assert opmux.enable() == first == opmux.enabled_ops()
    assert {name: decisions.thresholds(name, "cpu") for name in first} == rows
    assert all(isinstance(entry, Deferred) for entry in engine._devices["cpu"].entries.values())


def test_a_deferred_override_is_created_at_its_first_call(machine):
    opmux.enable()
    machine()
    opmux.enable()
    gate.select(frozenset({"_softmax"}), None)  # every call runs our kernel, as in mode="all"
    x = torch.randn(64, 128, dtype=BF16)
    want = torch.softmax(x.double(), -1)
    for _ in range(3):
        torch.testing.assert_close(torch.softmax(x, -1).double(), want, rtol=1e-2, atol=1e-3)
    entry = engine._devices["cpu"].entries["_softmax"]
    assert not isinstance(entry, Deferred) and engine.native_of("_softmax", "cpu") is not None
    torch.testing.assert_close(opmux.native("_softmax")(x, -1, False).double(), want, rtol=1e-2, atol=1e-3)


def test_an_op_without_a_gate_is_saved_too(machine, tmp_path, monkeypatch):
    """Example: on CUDA torch has no kernel of `max_pool2d_backward`, so our override has no gate."""
    has_kernel, make = decisions.has_kernel, gate.make
    monkeypatch.setattr(decisions, "has_kernel", lambda o, key: o.name != "glu" and has_kernel(o, key))
    monkeypatch.setattr(gate, "make", lambda d, shape, *more: None if shape.name == "glu" else make(d, shape, *more))
    first = opmux.enable()
    assert "glu" in first and len(files(tmp_path)) == 1
    machine()
    assert opmux.enable() == first
    assert isinstance(engine._devices["cpu"].entries["glu"], Deferred)
    x = torch.randn(8, 8)
    torch.testing.assert_close(torch.nn.functional.glu(x), torch.nn.functional.glu(x.double()).float())
    assert not isinstance(engine._devices["cpu"].entries["glu"], Deferred)


def test_ops_that_pass_on_a_number_are_deferred_with_the_op_that_they_call(machine):
    """Example: ATen's `searchsorted.Scalar` turns its number into a tensor and calls `searchsorted.Tensor`."""
    engine.register_deferred({"cpu": {"searchsorted.Tensor": "sorting"}})
    entry = engine._devices["cpu"].entries["searchsorted.Scalar"]
    assert torch.searchsorted(torch.arange(8.0), 2.5).item() == 3
    assert isinstance(entry, Deferred) and entry is engine._devices["cpu"].entries["searchsorted.Scalar"]


def test_removing_a_deferred_override_restores_atens_kernel(machine):
    opmux.enable()
    machine()
    opmux.enable()
    assert engine.native_of("_softmax", "cpu") is not None
    opmux.disable()
    assert engine.native_of("_softmax", "cpu") is None and not opmux.enabled_ops()
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.softmax(x, -1), torch.softmax(x.double(), -1).float())


def test_mode_all_replaces_deferred_overrides(machine):
    opmux.enable()
    machine()
    opmux.enable()
    assert opmux.enable(include="softmax", mode="all") == ["_softmax", "_softmax.out"]
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.softmax(x, -1), torch.softmax(x.double(), -1).float())


def test_each_selection_and_policy_has_its_own_file(machine, tmp_path, monkeypatch):
    opmux.enable()
    machine()
    assert opmux.enable(include="softmax") == ["_softmax"]
    machine()
    monkeypatch.setenv("OPMUX_PREFER", "reference")
    opmux.enable()
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"taken": 1}', '{"taken": {"cpu": {"exp": 1}}}', '{"taken": null}'])
def test_an_unreadable_file_is_rewritten(machine, tmp_path, text):
    first = opmux.enable()
    (file,) = files(tmp_path)
    good = json.loads(file.read_text())
    file.write_text(text)
    machine()
    assert opmux.enable() == first
    assert json.loads(file.read_text()) == good


def test_a_file_that_others_can_write_is_not_read(machine, tmp_path):
    opmux.enable()
    (file,) = files(tmp_path)
    file.chmod(0o666)
    file.parent.chmod(0o777)
    machine()
    assert saved.read(None, None) is None
    assert "_softmax" in opmux.enable()


def test_nothing_is_saved_after_registering_an_implementation(machine):
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


def test_nothing_is_saved_if_plugins_are_configured(machine, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("OPMUX_PLUGIN_MODULES", "json")
    assert not saved.usable()


def test_an_empty_selection_is_saved_too(machine, tmp_path, monkeypatch):
    """Auto mode selects nothing on a CPU without measured times. The second process reads this and loads no specs."""
    monkeypatch.setattr(decisions, "measured", lambda chip: {})
    assert not opmux.enable()
    assert len(files(tmp_path)) == 1
    machine()
    monkeypatch.setattr(engine, "choosable", lambda: pytest.fail("specs and kernels are loaded"))
    assert not opmux.enable()


def test_overloads_are_not_read_without_the_native_library(machine, tmp_path, monkeypatch):
    assert opmux.enable() and len(files(tmp_path)) == 1
    machine()
    monkeypatch.setattr(native_library, "available", lambda: False)
    assert saved.read(None, None) is None
