"""The entry point for vLLM: it does nothing unless OPMUX_VLLM=1. A loader like vLLM's calls it; vLLM is not needed."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

import opmux

GROUP = "vllm.general_plugins"
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load_plugins():
    """Load and call the plugins of this package as vLLM does, in each process and possibly twice."""
    for name, value in PROJECT["entry-points"][GROUP].items():
        importlib.metadata.EntryPoint(name, value, GROUP).load()()


@pytest.fixture
def enabled(monkeypatch):
    calls = []
    monkeypatch.setattr("opmux.integrations.vllm.enable", lambda: calls.append("enable"))
    return calls


@pytest.mark.parametrize("value", ["", "0"])
def test_the_plugin_does_nothing_by_default(monkeypatch, enabled, value):
    monkeypatch.setenv("OPMUX_VLLM", value)
    load_plugins()
    assert enabled == []


def test_the_plugin_enables_opmux_if_the_variable_is_set(monkeypatch, enabled):
    monkeypatch.setenv("OPMUX_VLLM", "1")
    load_plugins()
    assert enabled == ["enable"]


def test_the_plugin_may_be_called_twice(monkeypatch):
    monkeypatch.setenv("OPMUX_VLLM", "1")
    try:
        load_plugins()
        first = opmux.enabled_ops()
        load_plugins()
        assert opmux.enabled_ops() == first
    finally:
        opmux.disable()
