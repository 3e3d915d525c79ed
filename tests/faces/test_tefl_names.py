"""`transformer_engine.plugin.core` has every name that TransformerEngine-FL exports there, and the names work."""

from __future__ import annotations

import logging
import sys
import types

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, OpImpl, OpManager, OpRegistry, discovery, get_default_manager
from opmux.faces import compat

NAMES = """
BackendImplKind OpImpl OpManager OpRegistry SelectionPolicy PolicyManager TEFLBackendBase TEFLModule Logger
LoggerManager match_token get_tefl_module reset_tefl_module get_registry get_manager reset_registry get_default_manager
reset_default_manager get_policy set_global_policy reset_global_policy policy_context policy_from_env get_policy_epoch
bump_policy_epoch with_strict_mode with_preference with_allowed_vendors with_denied_vendors PREFER_DEFAULT PREFER_VENDOR
PREFER_REFERENCE VALID_PREFER_VALUES discover_plugin discover_from_entry_points discover_from_env_modules
get_discovered_plugin clear_discovered_plugin PLUGIN_GROUP PLUGIN_MODULES_ENV setup_module_aliases
register_as_transformer_engine_torch backends
""".split()
VENDOR = BackendImplKind.VENDOR


@pytest.fixture
def core():
    compat.install("transformer_engine")
    import transformer_engine.plugin.core as core

    yield core
    core.reset_global_policy()
    compat.uninstall()


@pytest.fixture
def plugin(monkeypatch, request):
    """A plugin that exists only in this process, as if the program had created it."""
    get_default_manager().prepare()  # plugins that are named later are found only after a reset
    module = types.ModuleType("tefl_names_plugin")

    def norm(input, weight, eps=1e-5, **kwargs):
        return torch.full_like(input, 7.0), torch.ones(input.shape[:-1])

    def register(registry):
        from transformer_engine.plugin.core import BackendImplKind, OpImpl

        impl = OpImpl("rmsnorm_fwd", "vendor.tefl_names", BackendImplKind.VENDOR, "tefl_names", norm, 200)
        registry.register_impl(impl)

    module.register = register
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("TE_FL_PLUGIN_MODULES", module.__name__)
    yield module.__name__
    registry = get_default_manager().registry
    if any(impl.impl_id == "vendor.tefl_names" for impl in registry.get_implementations("rmsnorm_fwd")):
        registry.unregister("rmsnorm_fwd", "vendor.tefl_names")


def impl(fn=lambda: None, impl_id="vendor.Acme", op="an_op"):
    return OpImpl(op, impl_id, VENDOR, "Acme", fn)


def test_all_names_are_served_in_both_packages(core):
    import transformer_engine.plugins.core as plugins_core

    assert len(NAMES) == 43 and plugins_core is core
    assert [name for name in NAMES if not hasattr(core, name)] == []
    assert core.OpImpl is opmux.core.OpImpl and core.NotSupported is opmux.core.NotSupported
    assert core.TEFLBackendBase is opmux.tex.TEXBackendBase
    with pytest.raises(AttributeError, match="no_such_name"):
        core.no_such_name  # noqa: B018


def test_names_can_be_imported_from_the_modules_of_the_package(core):
    from transformer_engine.plugin.core.discovery import PLUGIN_GROUP
    from transformer_engine.plugin.core.logger_manager import get_logger
    from transformer_engine.plugin.core.manager import get_default_manager as manager
    from transformer_engine.plugin.core.ops import TEFLModule
    from transformer_engine.plugin.core.policy import policy_from_env
    from transformer_engine.plugin.core.registry import OpRegistry as registry
    from transformer_engine.plugin.core.types import match_token

    assert (PLUGIN_GROUP, registry, TEFLModule) == ("te_fl.plugin", OpRegistry, core.TEFLModule)
    assert manager is get_default_manager and match_token is core.match_token
    assert policy_from_env() == core.get_policy() and get_logger().logger.name == "opmux"


def test_a_reset_finds_a_plugin_that_was_named_since(core, plugin, setenv):
    """A program may set the environment variables after it has used the manager."""
    x, weight = torch.randn(2, 4, 8), torch.ones(8)
    manager = core.get_manager()
    setenv(TE_FL_PREFER="vendor")
    assert "vendor.tefl_names" not in [i.impl_id for i in core.get_registry().get_implementations("rmsnorm_fwd")]
    core.reset_default_manager()
    assert core.get_manager() is manager
    out, rsigma = manager.call("rmsnorm_fwd", x, weight, eps=1e-5)
    assert out.eq(7).all() and rsigma.shape == (2, 4)
    assert (plugin, "env_module", True) in core.get_discovered_plugin()
    core.reset_registry()  # registered impls stay, and are not registered twice
    assert manager.call("rmsnorm_fwd", x, weight)[0].eq(7).all()


def test_plugins_can_register_in_a_given_registry(core, plugin):
    mine = core.OpRegistry()
    assert core.discover_from_entry_points(mine) == 0 and mine.list_operators() == []
    assert core.discover_from_env_modules(mine) == 1
    assert [i.impl_id for i in mine.get_implementations("rmsnorm_fwd")] == ["vendor.tefl_names"]
    assert core.discover_plugin(core.OpRegistry()) == 1
    assert core.discover_from_entry_points(core.OpRegistry()) == 0  # does not empty the list
    assert core.get_discovered_plugin() == [(plugin, "env_module", True)]
    core.clear_discovered_plugin()
    assert core.get_discovered_plugin() == [] and discovery.plugins() == []


def test_a_blocked_module_is_known_while_packages_are_searched(core, plugin, setenv, caplog):
    setenv(OPMUX_BLOCK_PLUGINS=plugin)
    assert core.discover_from_entry_points(core.OpRegistry()) == 0
    assert "names 'tefl_names_plugin', which is neither" not in caplog.text


def test_a_failed_impl_is_tried_again_after_a_reset(core):
    state = {"broken": True}

    def fails(x):
        if state["broken"]:
            raise RuntimeError("broken")
        return "acme"

    core.get_registry().register_impl(impl(fails, op="tefl_names_op"))
    other = OpImpl("tefl_names_op", "reference.x", BackendImplKind.REFERENCE, fn=lambda x: "x")
    core.get_registry().register_impl(other)
    try:
        manager = core.get_manager()
        assert manager.call("tefl_names_op", torch.ones(1)) == "x"
        state["broken"] = False
        assert manager.call("tefl_names_op", torch.ones(1)) == "x"
        core.reset_default_manager()
        assert manager.call("tefl_names_op", torch.ones(1)) == "acme"
    finally:
        core.get_registry().unregister("tefl_names_op")


def test_match_token_accepts_the_tokens_of_an_order(core):
    assert core.match_token(impl(), "vendor") and core.match_token(impl(), "vendor:acme")
    assert core.match_token(impl(), "vendor:Acme") and core.match_token(impl(), "impl:vendor.Acme")
    assert not any(core.match_token(impl(), token) for token in ("flagos", "reference", "vendor:bolt", "nonsense"))
    kinds = {core.PREFER_DEFAULT: BackendImplKind.DEFAULT, core.PREFER_REFERENCE: BackendImplKind.REFERENCE}
    for token, kind in kinds.items():
        assert core.match_token(OpImpl("an_op", "any", kind, fn=lambda: None), token)
    assert {*kinds, core.PREFER_VENDOR} == core.VALID_PREFER_VALUES


def test_the_policy_manager_sets_the_process_policy(core, setenv):
    manager = core.PolicyManager.get_instance()
    assert manager is core.PolicyManager.get_instance()
    before, epoch = core.get_policy(), core.get_policy_epoch()
    new = core.SelectionPolicy(prefer="vendor")
    assert core.set_global_policy(new) == before and manager.get_policy() == new
    assert core.get_policy_epoch() > epoch
    with manager.create_policy_context(core.SelectionPolicy(prefer="reference")):
        assert core.get_policy().prefer == "reference"
    epoch = manager.get_policy_epoch()
    assert manager.bump_policy_epoch() > epoch
    manager.reset_global_policy()
    setenv(TE_FL_DENY_VENDORS="bolt")
    assert core.policy_from_env().deny_vendors == {"bolt"} == core.get_policy().deny_vendors


def test_the_tefl_module_has_the_functions_of_tex(core):
    x = torch.randn(3, 8)
    tefl = core.get_tefl_module()
    torch.testing.assert_close(tefl.gelu(x, None), opmux.tex.gelu(x, None))
    assert tefl.DType is opmux.tex.DType and "gelu" in dir(tefl)
    assert core.get_tefl_module() is tefl
    core.reset_tefl_module()
    assert core.get_tefl_module() is not tefl
    registry = OpRegistry()
    registry.register_impl(impl(lambda x, quantizer: "mine", op="gelu"))
    own = core.TEFLModule(OpManager(registry))
    assert own.gelu(x, None) == "mine" and own.DType is opmux.tex.DType
    with pytest.raises(AttributeError, match="no_such_op"):
        tefl.no_such_op  # noqa: B018


def test_methods_with_once_show_a_message_once(core, caplog):
    log = core.Logger("opmux.tefl_names", "INFO")
    with caplog.at_level(logging.INFO, "opmux.tefl_names"):
        for _ in range(2):
            log.info("each time")
            log.warning_once("one time")
            log.debug("never")
    assert [r.message for r in caplog.records] == ["each time", "one time", "each time"]
    assert core.LoggerManager.get_instance().get_logger().logger is logging.getLogger("opmux")
    with pytest.raises(AttributeError, match="no attribute 'shout'"):
        log.shout("x")


def test_aliases_are_the_modules_that_compat_serves(core):
    core.setup_module_aliases()
    core.register_as_transformer_engine_torch()
    import transformer_engine_torch

    assert transformer_engine_torch is opmux.tex and compat.installed() == ("transformer_engine",)
    assert core.backends is sys.modules["opmux.faces.tex.backends"]
