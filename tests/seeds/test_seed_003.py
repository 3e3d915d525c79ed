"""Follows TransformerEngine-FL's guide to custom backends from top to bottom: one test for each promise.

Effects of variables are tested in this process, outputs of programs in new ones. tests/examples tests `pip install` of
a plugin, and the two example programs.
"""

import os
import re
import sys
import textwrap
from pathlib import Path

import fresh
import pytest
import torch

from opmux.core import BackendImplKind, OpImpl, OpManager, OpRegistry, get_default_manager
from opmux.core.errors import UnknownName
from opmux.faces.tex import interface

tex = interface.module()
SRC = Path(__file__).parents[2] / "src"
VENDOR = BackendImplKind.VENDOR
VALUES = {"acme": 7.0, "bolt": 8.0, "nvidia": 9.0}  # the value that each vendor's norm returns


def run(*words, path=(), **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL", "TRITON"))}
    env = clean | {"PYTHONPATH": os.pathsep.join(map(str, (SRC, *path)))} | variables
    env |= {k: v for k, v in os.environ.items() if k == "OPMUX_CACHE_DIR"}
    result = fresh.run([sys.executable, *map(str, words)], env=env, timeout=240, warm=True)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture
def vendors():
    """Registers three vendors, each with its own norm."""
    registry = get_default_manager().registry
    for rank, (name, value) in enumerate(VALUES.items()):

        def norm(input, weight, eps, *rest, value=value):
            return torch.full_like(input, value), None, input.new_ones(input.shape[0])

        registry.register_impl(OpImpl("rmsnorm_fwd", f"vendor.{name}.test", VENDOR, name, norm, 300 - rank))
    yield registry
    for name in VALUES:
        registry.unregister("rmsnorm_fwd", f"vendor.{name}.test")
    get_default_manager().clear_quarantine()


def who_runs():
    """The vendor whose norm a call runs; asserts that the manager reports the same vendor."""
    out = tex.rmsnorm_fwd(torch.ones(3, 8), torch.ones(8), 1e-5, None, None, None, 0, False)[0]
    vendor = next((name for name, value in VALUES.items() if out.eq(value).all()), None)
    selected = get_default_manager().get_selected_impl_id("rmsnorm_fwd")
    assert selected == (f"vendor.{vendor}.test" if vendor else selected) and (vendor or "test" not in selected)
    return vendor or {"default.flagos": "flagos", "reference.torch": "reference"}[selected]


# ---- in-tree: a registry and a manager ------------------------------------------------------------------------------

INTREE = """
    import torch
    from transformer_engine.plugin.core import OpRegistry, OpManager, OpImpl, BackendImplKind

    def my_rmsnorm(input, weight, eps=1e-5, **kwargs):
        scale = torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps)
        return input * scale * weight, scale

    registry = OpRegistry()
    registry.register_impl(OpImpl(op_name="rmsnorm_fwd", impl_id="vendor.mybackend", kind=BackendImplKind.VENDOR,
                                  vendor="mybackend", fn=my_rmsnorm, priority=200))
    manager = OpManager(registry)
    output, rsigma = manager.call("rmsnorm_fwd", torch.randn(4, 8), torch.ones(8))
    print(tuple(output.shape), tuple(rsigma.shape))
"""


def test_the_three_steps_print_the_expected_output(tmp_path):
    program = tmp_path / "example_intree.py"
    program.write_text(textwrap.dedent(INTREE))
    result = run("-m", "opmux", "run", "--as", "transformer_engine", program, TEFL_LOG_LEVEL="INFO")
    assert result.stdout == "(4, 8) (4, 1)\n"
    messages = [re.fullmatch(r"\[opmux manager\.py:\d+ INFO\] (.*)", line) for line in result.stderr.splitlines()]
    assert [line and line[1] for line in messages] == [
        "Registered impl_ids: ['vendor.mybackend']",
        "Op 'rmsnorm_fwd' using 'vendor.mybackend' (kind=vendor, vendor=mybackend)",
    ]


def test_a_users_own_registry_is_empty_and_says_where_ours_are():
    with pytest.raises(UnknownName, match=r"unknown op 'layernorm_fwd'.*get_default_manager\(\)"):
        OpManager(OpRegistry()).call("layernorm_fwd")
    with pytest.raises(UnknownName) as error:
        OpManager(OpRegistry()).call("no_op_of_ours")
    assert "get_default_manager" not in str(error.value)


# ---- out of tree: a plugin, named by a variable ---------------------------------------------------------------------

PLUGIN = """
    import torch
    from transformer_engine.plugin.core import OpImpl, BackendImplKind

    def my_rmsnorm(input, weight, eps=1e-5, **kwargs):
        return torch.full_like(input, 7.0), torch.ones(input.shape[0])

    def register(registry):
        registry.register_impl(OpImpl(op_name="rmsnorm_fwd", impl_id="vendor.myvendor", kind=BackendImplKind.VENDOR,
                                      vendor="myvendor", fn=my_rmsnorm, priority=200))
"""
# The same plugin in a program that makes the module and sets the variables itself.
OUTTREE = """
    import os, sys, types
    import torch

    plugin = types.ModuleType("my_vendor_plugin")

    def my_rmsnorm_fwd(input, weight, eps=1e-5, **kwargs):
        rsigma = torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps)
        print("the plugin's norm")
        return input * rsigma * weight, rsigma

    my_rmsnorm_fwd._is_available = lambda: True

    def register(registry):
        from transformer_engine.plugin.core import BackendImplKind, OpImpl

        registry.register_impl(OpImpl(op_name="rmsnorm_fwd", impl_id="vendor.myvendor", kind=BackendImplKind.VENDOR,
                                      vendor="myvendor", fn=my_rmsnorm_fwd, priority=200))

    plugin.register = register
    sys.modules["my_vendor_plugin"] = plugin
    os.environ["TE_FL_PLUGIN_MODULES"] = "my_vendor_plugin"
    os.environ["TE_FL_PREFER"] = "vendor"

    from transformer_engine.plugin.core import get_manager, reset_default_manager

    reset_default_manager()
    output, rsigma = get_manager().call("rmsnorm_fwd", torch.randn(2, 4, 8), torch.ones(8), eps=1e-5)
    print(tuple(output.shape), tuple(rsigma.shape))
"""
CLASS = """
    from transformer_engine.plugins.tex_interface import TEXBackendBase, register_backend

    @register_backend
    class Another(TEXBackendBase):
        NAME = "another"

        def gelu(self, input, quantizer):
            return input + 1
"""
SCRIPT = """
    import torch
    import transformer_engine_fl_torch as tex
    from opmux.core import discovery
    x = torch.zeros(3, 8)
    print(tex.rmsnorm_fwd(x, torch.ones(8), 1e-5, None, None, None, 0, False)[0][0, 0].item())
    tex.set_backend("another")
    print(tex.gelu(x, None)[0, 0].item())
    print([(p.name, p.status, p.impls) for p in discovery.plugins()])
"""


def test_plugin_modules_log_level_and_a_per_op_order_are_read(tmp_path):
    """Uses two plugin modules: one has `register`, the other one has only a backend class."""
    for name, text in (("my_vendor_plugin", PLUGIN), ("another_plugin", CLASS)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    result = run(
        "-c",
        textwrap.dedent(SCRIPT),
        path=[tmp_path],
        TE_FL_PLUGIN_MODULES="my_vendor_plugin,another_plugin",
        TE_FL_PER_OP="rmsnorm_fwd=vendor:myvendor|flagos;rope_fwd=flagos|reference",
        TEFL_LOG_LEVEL="DEBUG",
    )
    plugins = [
        ("another_plugin", "loaded", ("gelu=vendor.another",)),
        ("my_vendor_plugin", "loaded", ("rmsnorm_fwd=vendor.myvendor",)),
    ]
    assert result.stdout.splitlines() == ["7.0", "1.0", str(plugins)]
    used = re.findall(r"INFO\] Op '(\w+)' using '([\w.]+)'", result.stderr)
    assert used == [("rmsnorm_fwd", "vendor.myvendor"), ("gelu", "vendor.another")]
    assert " DEBUG] plugin 'my_vendor_plugin'" in result.stderr


def test_a_program_that_makes_its_plugin_itself_runs_unchanged(tmp_path):
    program = tmp_path / "example_outtree.py"
    program.write_text(textwrap.dedent(OUTTREE))
    result = run("-m", "opmux", "run", "--as", "transformer_engine", program)
    assert result.stdout.splitlines() == ["the plugin's norm", "(2, 4, 8) (2, 4, 1)"]


# ---- the variables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "runs"),
    [
        ({}, "flagos"),
        ({"TE_FL_PREFER": "flagos"}, "flagos"),
        ({"TE_FL_PREFER": "vendor"}, "acme"),
        ({"TE_FL_PREFER": "reference"}, "reference"),
        ({"TE_FL_PREFER_VENDOR": "1"}, "acme"),
        ({"TE_FL_PREFER_VENDOR": "0"}, "flagos"),
        ({"TE_FL_PREFER_VENDOR": "1", "TE_FL_PREFER": "reference"}, "reference"),  # TE_FL_PREFER wins
        ({"TE_FL_PREFER": "vendor", "TE_FL_ALLOW_VENDORS": "nvidia,bolt"}, "bolt"),
        ({"TE_FL_PREFER": "vendor", "TE_FL_DENY_VENDORS": "acme,bolt"}, "nvidia"),
        ({"TE_FL_PREFER": "vendor", "TE_FL_DENY_VENDORS": "acme,bolt,nvidia"}, "flagos"),
        ({"TE_FL_PER_OP": "rmsnorm_fwd=vendor:bolt|flagos;rope_fwd=flagos|reference"}, "bolt"),
        ({"TE_FL_PER_OP": "rmsnorm_fwd=vendor:nvidia|reference", "TE_FL_SKIP_CUDA": "1"}, "reference"),
        ({"TE_FL_PREFER": "vendor", "TE_FL_ALLOW_VENDORS": "nvidia"}, "nvidia"),
        ({"TE_FL_PREFER": "vendor", "TE_FL_ALLOW_VENDORS": "nvidia", "TE_FL_SKIP_CUDA": "0"}, "nvidia"),
        ({"TE_FL_PREFER": "vendor", "TE_FL_ALLOW_VENDORS": "nvidia", "TE_FL_SKIP_CUDA": "1"}, "flagos"),
        ({"TE_FL_SKIP_CUDA": "1", "TE_FL_PREFER": "flagos"}, "flagos"),
    ],
    ids=lambda value: "+".join(f"{k[6:]}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_each_variable_selects_the_documented_implementation(variables, runs, vendors, setenv):
    setenv(**variables)
    assert who_runs() == runs


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError])
def test_strict_raises_and_otherwise_the_next_implementation_runs(error, vendors, setenv):
    """The arguments are valid, so any error is a fault of the implementation, which is quarantined and reported."""

    def fails(input, *rest):
        raise error("out of order")

    vendors.register_impl(OpImpl("rmsnorm_fwd", "vendor.bad.test", VENDOR, "bad", fails, 900))
    try:
        setenv(TE_FL_PREFER="vendor", TE_FL_STRICT="1")
        assert get_default_manager().get_selected_impl_id("rmsnorm_fwd") == "vendor.bad.test"
        with pytest.raises(error, match="out of order"):
            who_runs()
        setenv(TE_FL_STRICT="0")
        assert get_default_manager().get_selected_impl_id("rmsnorm_fwd") == "vendor.bad.test"
        assert who_runs() == "acme"  # also asserts the manager's report
        x, rest = torch.ones(3, 8), (torch.ones(8), 1e-5, None, None, None, 0, False)
        selected = get_default_manager().get_selected_impl_id
        assert selected("rmsnorm_fwd", x, *rest) == "vendor.acme.test"
        assert selected("rmsnorm_fwd", x.double(), *rest) == "vendor.bad.test"  # the quarantine is for float32 only
        get_default_manager().clear_quarantine("rmsnorm_fwd")
        assert selected("rmsnorm_fwd") == "vendor.bad.test"
    finally:
        vendors.unregister("rmsnorm_fwd", "vendor.bad.test")


def test_cuda_home_and_cuda_path_are_shown(monkeypatch):
    from opmux.core import knobs

    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.setenv("CUDA_PATH", "/opt/other")
    values = {row.name: str(row.look().value) for row in knobs.all_knobs() if row.name.startswith("CUDA_")}
    assert values == {"CUDA_HOME": "/opt/cuda", "CUDA_PATH": "/opt/other"}
