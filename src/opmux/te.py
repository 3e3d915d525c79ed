"""NVIDIA's Transformer Engine over opmux, with or without CUDA.

    import opmux.te                              # first, so that Transformer Engine runs on our tex
    import transformer_engine.pytorch as te      # NVIDIA's Python, as it was installed

    te.Linear(1024, 1024)                        # opmux.te.Linear is the same class

Importing this module makes `transformer_engine` use opmux's tex; `uninstall()` undoes that.
"""

from __future__ import annotations

import importlib
from typing import Any

from .faces.te.boot import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]

install()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if not installed():
        raise AttributeError(f"opmux.te was uninstalled, and '{name}' with it: opmux.te.install() brings it back")
    return getattr(importlib.import_module("transformer_engine.pytorch"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(importlib.import_module("transformer_engine.pytorch"))})
