"""Our modules as `transformer_engine.plugin` and `transformer_engine.plugins`: one import finder for those names.

A module is imported under its own name first, and is the same object under the foreign one: a second copy of it would
have other classes and another registry.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from . import finders

LAYER = "transformer_engine"
ROOTS = (f"{LAYER}.plugin", f"{LAYER}.plugins")  # one package under two names
SERVED = {
    "core": "opmux.core",
    "tex": "opmux.tex",
    "tex_interface": "opmux.faces.tex",
    "transformer_engine_fl_torch": "opmux.tex",
}


class PluginNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves ROOTS and what is below them. An installed package of that name keeps it, unless `shadow`."""

    def __init__(self, shadow: bool = False):
        self._shadow = shadow
        self._given: dict[str, Any] = {}  # what was put in sys.modules

    def install(self) -> None:
        finders.add(self)

    def remove(self) -> None:
        """Stop serving the names, and forget those that were imported."""
        finders.remove(self)
        for name, module in self._given.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        layer = sys.modules.get(LAYER)
        for root in ROOTS:
            last = root.rpartition(".")[2]
            if root in self._given and layer is not None and layer.__dict__.get(last) is self._given[root]:
                delattr(layer, last)
        self._given.clear()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        root = next((r for r in ROOTS if fullname == r or fullname.startswith(f"{r}.")), None)
        if root is None or not (self._shadow or self._is_free(root, fullname, path)):
            return None
        if fullname != root and not _exists(ours(fullname)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == root)

    @staticmethod
    def _is_free(root: str, name: str, path: Any) -> bool:
        """Whether no installed package has the name. The packages that we serve have no files."""
        if name == root:
            return importlib.machinery.PathFinder.find_spec(name, path) is None
        return not getattr(sys.modules.get(root), "__path__", None)

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if name in ROOTS:
            module.__doc__ = "TransformerEngine-FL's plugins, provided by opmux."
            module.__dict__["__getattr__"] = lambda child: _child(name, child)
        else:
            own = ours(name)
            assert own is not None
            sys.modules[name] = importlib.import_module(own)
        self._given[name] = sys.modules[name]


def ours(name: str) -> str | None:
    """The name of our module for one below ROOTS."""
    below = name.partition(".plugins." if name.startswith(f"{ROOTS[1]}.") else ".plugin.")[2]
    first, dot, rest = below.partition(".")
    return f"{SERVED[first]}{dot}{rest}" if first in SERVED else None


def _exists(name: str | None) -> bool:
    try:
        return name is not None and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # below a module that is no package
        return False


def _child(package: str, name: str) -> types.ModuleType:
    """An attribute of the package: one of its modules, imported on first access."""
    if name in SERVED:
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module '{package}' has no attribute '{name}'")
