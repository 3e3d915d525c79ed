"""The dispatch core: specs, registry, policy, managers, plugins. Standard library and torch only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .default import (
        get_default_manager,
        policy_context,
        with_allowed_vendors,
        with_denied_vendors,
        with_preference,
        with_strict_mode,
    )
    from .errors import (
        BackendNotFound,
        BadImpl,
        BadKnob,
        BadPolicy,
        BadSpec,
        DispatchError,
        DuplicateImpl,
        NoImplementation,
        NotSupported,
        OpmuxError,
        PluginError,
        RanksDiffer,
        UnknownName,
    )
    from .explain import Explanation, Verdict
    from .manager import OpManager
    from .policy import SelectionPolicy, get_policy, reset_global_policy, set_global_policy
    from .registry import API_VERSION, BackendImplKind, OpImpl, OpRegistry, Origin, impl
    from .spec import BadSample, Sample, Spec, Tol, op, specs

# The module of each name. A name is imported when it is first used. If this file imported the modules, two
# threads that import different modules could wait for each other. Python would then let one of them use a module that
# is only partly imported.
_NAMES = {
    "default": "get_default_manager policy_context with_allowed_vendors with_denied_vendors with_preference "
    "with_strict_mode",
    "errors": "BackendNotFound BadImpl BadKnob BadPolicy BadSpec DispatchError DuplicateImpl NoImplementation "
    "NotSupported OpmuxError PluginError RanksDiffer UnknownName",
    "explain": "Explanation Verdict",
    "manager": "OpManager",
    "policy": "SelectionPolicy get_policy reset_global_policy set_global_policy",
    "registry": "API_VERSION BackendImplKind OpImpl OpRegistry Origin impl",
    "spec": "BadSample Sample Spec Tol op specs",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
MODULES = (
    *_NAMES,
    "discovery",
    "dispatch",
    "extension",
    "entry",
    "knobs",
    "library",
    "loading",
    "lock",
    "log",
    "machine",
    "ranks",
    "snapshot",
    "tensors",
    "tokens",
)

__all__ = [
    "API_VERSION",
    "BackendImplKind",
    "BackendNotFound",
    "BadImpl",
    "BadKnob",
    "BadPolicy",
    "BadSample",
    "BadSpec",
    "DispatchError",
    "DuplicateImpl",
    "Explanation",
    "NoImplementation",
    "NotSupported",
    "OpImpl",
    "OpManager",
    "OpRegistry",
    "OpmuxError",
    "Origin",
    "PluginError",
    "RanksDiffer",
    "Sample",
    "SelectionPolicy",
    "Spec",
    "Tol",
    "UnknownName",
    "Verdict",
    "get_default_manager",
    "get_policy",
    "impl",
    "op",
    "policy_context",
    "reset_global_policy",
    "set_global_policy",
    "specs",
    "with_allowed_vendors",
    "with_denied_vendors",
    "with_preference",
    "with_strict_mode",
]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *MODULES})
