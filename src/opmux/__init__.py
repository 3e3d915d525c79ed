"""opmux: declare an operator once, register many implementations of it, run the best one for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import wiring

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import backends, compat, core, functional, integrations, nn, ops, tex
    from .core.default import explain, policy, set_policy
    from .core.extension import Extension
    from .core.held import empty_cache
    from .core.machine import Machine
    from .core.manager import OpManager
    from .core.ranks import digest, sync
    from .faces.aten.switch import disable, enable, enabled_ops, native, use
    from .faces.models.patch import patch_model, unpatch_model
    from .faces.models.register import register_attention
    from .tools.compare.comparing import compare

__version__ = "0.2.0"
__all__ = [
    "__version__",
    "backends",
    "compare",
    "compat",
    "core",
    "digest",
    "disable",
    "empty_cache",
    "enable",
    "enabled_ops",
    "explain",
    "functional",
    "integrations",
    "native",
    "nn",
    "ops",
    "patch_model",
    "policy",
    "register_attention",
    "set_policy",
    "sync",
    "tex",
    "unpatch_model",
    "use",
]

# The module of each public name, imported on first access: `import opmux` alone is cheap and has no side effects.
_MODULE_OF = {"explain": "core.default", "policy": "core.default", "set_policy": "core.default"}
_MODULE_OF |= {"digest": "core.ranks", "sync": "core.ranks", "empty_cache": "core.held"}
_MODULE_OF |= dict.fromkeys(("disable", "enable", "enabled_ops", "native", "use"), "faces.aten.switch")
_MODULE_OF |= dict.fromkeys(("patch_model", "unpatch_model"), "faces.models.patch")
_MODULE_OF |= {"register_attention": "faces.models.register", "compare": "tools.compare.comparing"}
_MODULES = ("backends", "compat", "core", "faces", "functional", "integrations", "machine", "nn", "ops", "specs")
_MODULES += ("te", "tex", "tools")


# ---- what core and cpp need from the layers above; each function imports its layer on first use ------------------


def _machine() -> Machine:
    from .machine.here import HERE

    return HERE


def _manager() -> OpManager:
    from .core.default import get_default_manager

    return get_default_manager()


def _extensions() -> tuple[Extension, ...]:
    from . import settings
    from .faces.aten import extension as aten
    from .faces.tex import settings as tex

    return settings.EXTENSION, tex.EXTENSION, aten.EXTENSION


def _accelerate() -> Callable[..., Any]:
    from .cpp.functions import accelerate

    return accelerate


wiring.op_packages.register(lambda: ({"opmux.specs": "", "opmux.faces.tex.ops": "tex_"}, ("opmux.kernels",)))
wiring.machine.register(_machine)
wiring.manager.register(_manager)
wiring.extensions.register(_extensions)
wiring.accelerate.register(_accelerate)


# ---- the public names ------------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value
    raise AttributeError(f"module 'opmux' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
