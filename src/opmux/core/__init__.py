"""The dispatch core: specs, registry, policy, managers, plugins. Standard library and torch only."""

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
