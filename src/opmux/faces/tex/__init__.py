"""tex: functions with the names, signatures and results of NVIDIA's `transformer_engine_torch`, through the dispatcher.

`opmux.tex` (and `transformer_engine_fl_torch`) is the module itself. It has every public name, because callers use
`import *` and store the functions. A function chooses its backend at each call. The files of this package:

| file | what |
|---|---|
| ops/ | the functions: NVIDIA's signatures over the ops of `opmux.specs`, one file a family |
| enums.py, quantized.py, grouped_tensor.py, layouts.py, ... | code shared by those functions |
| interface.py | builds the module from functions, enums and classes; converts dtypes |
| versions.py | chooses the version of the interface; wrappers for the older version |
| base.py | `TEXBackendBase`: a backend as a class |
| registry.py | registers, lists and chooses backends by name |
| backends/ | the built-in backends, and `template.py` to copy |
| overlap.py | the classes for communication overlap, over torch.distributed |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends.flaggems import FlagGemsBackend
    from .backends.nvidia import NVIDIABackend
    from .backends.torch_backend import TorchBackend
    from .base import TEXBackendBase
    from .registry import get_backend, list_backends, register_backend, set_backend, unregister_backend

__all__ = [
    "FlagGemsBackend",
    "NVIDIABackend",
    "TEXBackendBase",
    "TorchBackend",
    "get_backend",
    "list_backends",
    "register_backend",
    "set_backend",
    "unregister_backend",
]

# Name -> the module that defines it, imported on first access: core imports this package only for its settings.
_MODULE_OF: dict[str, str] = dict.fromkeys(
    ("get_backend", "list_backends", "register_backend", "set_backend", "unregister_backend"), "registry"
)
_MODULE_OF |= {"TEXBackendBase": "base", "FlagGemsBackend": "backends.flaggems", "NVIDIABackend": "backends.nvidia"}
_MODULE_OF |= {"TorchBackend": "backends.torch_backend"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
