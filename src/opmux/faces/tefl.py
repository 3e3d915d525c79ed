"""`transformer_engine.plugin.core`: the names that TransformerEngine-FL exports there, on top of `opmux.core`.

TransformerEngine-FL has one module for each group of names (`types`, `policy`, `manager`, ...). In opmux all of them
are this module, which also has every name of `opmux.core`.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

from ..core import default, discovery
from ..core import log as logs
from ..core import policy as policies
from ..core.manager import OpManager
from ..core.policy import PolicyScope, SelectionPolicy
from ..core.registry import OpImpl, OpRegistry

GROUPS = ("discovery", "logger_manager", "manager", "ops", "policy", "registry", "types")  # modules in the package


def _modules(package: str) -> dict[str, str]:
    """Foreign name -> our module."""
    groups = {f"{package}.{group}": __name__ for group in GROUPS}
    return {package: __name__, **groups, f"{package}.backends": "opmux.faces.tex.backends"}


PLUGIN_CORE = _modules("transformer_engine.plugin.core")
PLUGINS_CORE = _modules("transformer_engine.plugins.core")

PREFER_DEFAULT, PREFER_VENDOR, PREFER_REFERENCE = "flagos", "vendor", "reference"
VALID_PREFER_VALUES = frozenset((PREFER_DEFAULT, PREFER_VENDOR, PREFER_REFERENCE))
PLUGIN_GROUP = "te_fl.plugin"
PLUGIN_MODULES_ENV = "TE_FL_PLUGIN_MODULES"


# ---- types ----------------------------------------------------------------------------------------------------------


def match_token(impl: OpImpl, token: str) -> bool:
    """Whether a word of a policy's order, such as `flagos`, `vendor:acme` or `impl:default.flagos`, selects an impl."""
    return policies.matches(token.casefold(), impl)


# ---- the policy -----------------------------------------------------------------------------------------------------


def policy_from_env() -> SelectionPolicy:
    """The policy that the environment variables and the settings file describe."""
    return policies.from_knobs()


def set_global_policy(policy: SelectionPolicy) -> SelectionPolicy:
    """Replace the process's policy, and return the previous one."""
    before = policies.get_global_policy()
    policies.set_global_policy(policy)
    return before


def get_policy_epoch() -> int:
    """A number that grows with every change of policy or registry."""
    return default.get_default_manager().epoch


def bump_policy_epoch() -> int:
    """Choose impls again at the next call of each op."""
    default.get_default_manager().invalidate("bump_policy_epoch was called")
    return get_policy_epoch()


class PolicyManager:
    """The functions above as methods."""

    get_policy = staticmethod(policies.get_policy)
    set_global_policy = staticmethod(set_global_policy)
    reset_global_policy = staticmethod(policies.reset_global_policy)
    get_policy_epoch = staticmethod(get_policy_epoch)
    bump_policy_epoch = staticmethod(bump_policy_epoch)

    @staticmethod
    @functools.cache
    def get_instance() -> PolicyManager:
        return PolicyManager()

    def create_policy_context(self, policy: SelectionPolicy) -> PolicyScope:
        return default.policy_context(policy)


# ---- the manager ----------------------------------------------------------------------------------------------------


def get_manager() -> OpManager:
    """The manager behind `opmux.ops`."""
    return default.get_default_manager()


def get_registry() -> OpRegistry:
    return get_manager().registry


def reset_default_manager() -> None:
    """Read the environment variables again, search for plugins again and forget failures.

    The manager stays the same object, because functions of `opmux.ops` refer to it. What is registered stays.
    """
    policies.reset_global_policy()
    default.restart()


def reset_registry() -> None:
    """Call `reset_default_manager` and `reset_tefl_module`."""
    reset_default_manager()
    reset_tefl_module()


# ---- the ops as a module --------------------------------------------------------------------------------------------


class TEFLModule:
    """Has each of tex's functions as an attribute. If a manager is given, the functions call its ops by name."""

    def __init__(self, manager: OpManager | None = None):
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        tex = importlib.import_module("opmux.tex")
        if self._manager is None or not callable(getattr(tex, name, None)) or isinstance(getattr(tex, name), type):
            return getattr(tex, name)
        return functools.partial(self._manager.call, name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module("opmux.tex"))


@functools.cache
def get_tefl_module() -> TEFLModule:
    """The `TEFLModule` of the default manager."""
    return TEFLModule()


def reset_tefl_module() -> None:
    """Make `get_tefl_module` return a new object."""
    get_tefl_module.cache_clear()


# ---- plugins --------------------------------------------------------------------------------------------------------


def discover_plugin(registry_module: OpRegistry) -> int:
    """Find plugins and let them register in this registry. Returns the number of plugins that were loaded."""
    return _discover(registry_module, ("entry_point", "env_module"))


def discover_from_entry_points(registry_module: OpRegistry) -> int:
    """As `discover_plugin`, for installed packages only."""
    return _discover(registry_module, ("entry_point",))


def discover_from_env_modules(registry_module: OpRegistry) -> int:
    """As `discover_plugin`, for modules that TE_FL_PLUGIN_MODULES or a settings file names."""
    return _discover(registry_module, ("env_module",))


def _discover(registry: OpRegistry, sources: tuple[str, ...]) -> int:
    """Load the plugins of `sources`, and return how many are loaded. The default manager loads those of all sources."""
    is_wanted = lambda plugin: _source(plugin) in sources
    if registry is get_registry():
        get_manager().prepare()
        found = discovery.plugins()
    else:
        handled: discovery.Handled = {}
        discovery.load(registry, handled, is_wanted)
        found = list(handled.values())
    return sum(plugin.status == "loaded" and is_wanted(plugin) for plugin in found)


def _source(plugin: discovery.Plugin) -> str:
    return "entry_point" if plugin.source.startswith("entry point") else "env_module"


def get_discovered_plugin() -> list[tuple[str, str, bool]]:
    """(name, "entry_point" or "env_module", whether it was loaded) of each plugin."""
    return [(plugin.name, _source(plugin), plugin.status == "loaded") for plugin in discovery.plugins()]


def clear_discovered_plugin() -> None:
    """Empty the list of `get_discovered_plugin`; what plugins have registered stays."""
    discovery.clear()


# ---- modules and log ------------------------------------------------------------------------------------------------


def setup_module_aliases() -> None:
    """Provide the names of Transformer Engine's modules that opmux serves."""
    from . import compat

    if compat.LAYER not in compat.installed():
        compat.install(compat.LAYER)


register_as_transformer_engine_torch = setup_module_aliases


class Logger:
    """A logger that can show a message only once."""

    def __init__(self, name: str, level: int | str = logging.INFO):
        self.logger = logging.getLogger(name)
        self.logger.setLevel(level)
        self._shown: set[tuple[int, str]] = set()

    def __getattr__(self, name: str) -> Callable[[str], None]:
        """debug, info, warning, error, critical, and each of them with `_once`."""
        level = logging.getLevelNamesMapping().get(name.removesuffix("_once").upper())
        if level is None or name != name.lower():
            raise AttributeError(f"Logger has no attribute '{name}'")
        return functools.partial(self._once if name.endswith("_once") else self.logger.log, level)

    def _once(self, level: int, message: str) -> None:
        if (level, message) not in self._shown:
            self._shown.add((level, message))
            self.logger.log(level, message)


class LoggerManager:
    """The log of opmux as a `Logger`. Its level is set by TEFL_LOG_LEVEL, as for all of opmux's messages."""

    def __init__(self) -> None:
        self.reset()

    @staticmethod
    @functools.cache
    def get_instance() -> LoggerManager:
        return LoggerManager()

    def get_logger(self) -> Logger:
        return self._logger

    def reset(self) -> None:
        """Let messages that were shown once be shown again."""
        self._logger = Logger(logs.logger.name, logs.logger.level)


def get_logger() -> Logger:
    return LoggerManager.get_instance().get_logger()


def __getattr__(name: str) -> Any:
    if name == "TEFLBackendBase":
        return importlib.import_module("opmux.faces.tex.base").TEXBackendBase
    if name == "backends":
        return importlib.import_module("opmux.faces.tex.backends")
    return getattr(importlib.import_module("opmux.core"), name)
