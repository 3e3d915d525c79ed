"""Another process plans launches for auto mode, but only if it would choose the same implementations as this one."""

from __future__ import annotations

import types

import pytest

import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager, reset_global_policy
from opmux.core.dispatch import is_foreign
from opmux.faces.aten import gate, planner
from opmux.machine import vendors


@pytest.fixture
def as_at_start(monkeypatch):
    """Hides what other tests have registered or set, as if nothing had been set in code in this process."""
    registry = get_default_manager().registry
    known = [i for i in registry.all_impls() if is_foreign(i)]
    monkeypatch.setattr(planner, "is_foreign", lambda impl: is_foreign(impl) and all(impl is not one for one in known))
    monkeypatch.setattr(planner, "plugins_are_named", lambda: False)
    monkeypatch.setattr(vendors, "changed_in_code", lambda: False)
    monkeypatch.setattr(type(get_default_manager()), "failures", lambda self: [])
    reset_global_policy()
    assert planner._decides_alike()
    yield monkeypatch
    reset_global_policy()


def test_no_planner_after_set_policy_in_code(as_at_start):
    opmux.set_policy("reference")
    assert not planner._decides_alike()
    reset_global_policy()
    assert planner._decides_alike()


def test_a_policy_from_the_environment_allows_a_planner(as_at_start, setenv):
    setenv(OPMUX_PREFER="reference")
    assert planner._decides_alike()


def test_a_malformed_variable_prevents_a_planner_without_an_error(as_at_start):
    as_at_start.setenv("OPMUX_STRICT", "perhaps")
    assert not planner._decides_alike()


def test_no_planner_after_registering_an_implementation(as_at_start):
    registry = get_default_manager().registry
    registry.register_impl(
        OpImpl("softmax", "vendor.mine", BackendImplKind.VENDOR, "mine", lambda x, dim: x, outside=True)
    )
    try:
        assert not planner._decides_alike()
    finally:
        registry.unregister("opmux::softmax", "vendor.mine")
    assert planner._decides_alike()


def test_no_planner_after_an_implementation_has_failed(as_at_start):
    as_at_start.setattr(type(get_default_manager()), "failures", lambda self: ["a failure"])
    assert not planner._decides_alike()


def test_without_cuda_no_planner_is_started(as_at_start):
    as_at_start.setattr(planner.launching, "drives", lambda: False)
    as_at_start.setattr(planner, "_start", lambda *_: pytest.fail("a process was started"))
    planner.use(True)
    assert planner._PlannerState.socket is None and not gate.waiting()


def test_a_failing_planner_is_reported_once_with_its_output(as_at_start, caplog):
    as_at_start.setattr(planner, "_possible", lambda: not planner._PlannerState.failed)
    as_at_start.setattr(planner, "_facts", dict)
    as_at_start.setattr(planner, "PROGRAM", "raise OSError('no such chip')")
    as_at_start.setattr(planner.launching._LaunchingState, "planned", False)
    for name in ("failed", "process", "socket", "errors"):
        as_at_start.setattr(planner._PlannerState, name, getattr(planner._PlannerState, name))
    with caplog.at_level("WARNING"):
        planner.use(True)
        assert planner._PlannerState.process.wait(30) == 1
        planner.use(True)
        planner.use(True)
    assert caplog.text.count("no such chip") == 1 and planner._PlannerState.failed
    planner.stop()


def test_the_planner_can_be_disabled(as_at_start):
    as_at_start.setenv("OPMUX_PLANNER", "0")
    as_at_start.setattr(planner.launching, "drives", lambda: pytest.fail("was asked"))
    planner.use(True)


def test_fewer_cores_do_not_restart_the_planner(as_at_start):
    """A restart would discard every launch record when a program pins its threads."""
    chip = types.SimpleNamespace(name="a GPU", arch="sm_90")
    as_at_start.setattr(planner.devices, "chip_of", lambda kind: chip)
    as_at_start.setattr(
        planner.torch.cuda, "get_device_properties", lambda: types.SimpleNamespace(multi_processor_count=132)
    )
    as_at_start.setattr(planner.torch.cuda, "device_count", lambda: 1)
    as_at_start.setattr(planner.torch.cuda, "get_device_name", lambda i: chip.name)
    as_at_start.setattr(planner, "_start", lambda theirs, facts: started.append(facts) or Running())
    for name in ("failed", "process", "socket", "knows"):
        as_at_start.setattr(planner._PlannerState, name, getattr(planner._PlannerState, name))
    started = []
    for cores in (16, 1):
        as_at_start.setattr(planner.background, "usable_cores", lambda cores=cores: cores)
        planner._running()
    planner._PlannerState.socket.close()
    assert len(started) == 1


class Running:
    """A planner process that has not ended."""

    def poll(self):
        return None
