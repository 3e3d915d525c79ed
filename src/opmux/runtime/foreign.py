"""Foreign module names: while a plugin or vendor package is imported, other libraries' module names are ours."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import core, wiring
from ..core.loading import on_failure
from ..core.lock import lock
from ..core.log import logger
from . import finders
from .te_plugins import PluginNames


@contextmanager
def foreign_names() -> Iterator[None]:
    """While a plugin is imported, module names of the libraries that it may be written for refer to our modules.

    `transformer_engine.plugin.core` is opmux.core, `backend_utils` that of FlagGems, `liger_kernel` that of
    `faces/liger`. An installed library keeps its name; if it is installed but cannot be imported (NVIDIA's, without its
    extension), an empty module replaces it.
    """
    me, made = threading.get_ident(), _ForeignModules()
    depth = _importing.get(me, 0)
    on_failure(lambda: _leave(me, depth))
    try:
        with lock.held:
            _importing[me] = depth + 1
            if _ForeignModules.live is None:
                made.put()
        yield
    finally:
        _leave(me, depth)


def _leave(thread: int, depth: int) -> None:
    with lock.held:
        _importing.pop(thread, None)
        _importing.update({thread: depth} if depth else {})
        _ForeignModules.clear()


_importing: dict[int, int] = {}  # threads that import plugins or vendors' packages -> nesting depth


class _ForeignModules:
    """Our modules in sys.modules under foreign names, while some thread needs them."""

    live: _ForeignModules | None = None

    def __init__(self) -> None:
        self.added: dict[str, types.ModuleType] = {}
        if not _provided():
            _add_foreign_module(TEFL, core, self.added)
            # Its submodules too: a second import under the other name would create a second OpImpl.
            for name in core.MODULES if TEFL in self.added else ():
                self.added[f"{TEFL}.{name}"] = importlib.import_module(f"opmux.core.{name}")
        for name, ours in wiring.foreign_modules().items():
            _add_foreign_module(name, ours(), self.added)
        self.root = _Installed(TEFL.partition(".")[0], self.added)
        self.plugins = PluginNames()  # the others below TEFL's package

    def put(self) -> None:
        _ForeignModules.live = self
        sys.modules.update(self.added)
        finders.add(self.root)
        self.plugins.install()
        self.root.complete()

    @classmethod
    def clear(cls) -> None:
        """Remove them if no thread needs them any more."""
        if cls.live is None or _importing:
            return
        live = cls.live
        finders.remove(live.root)
        live.root.restore()
        live.plugins.remove()
        for name, module in live.added.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        cls.live = None


def _after_fork() -> None:
    me = threading.get_ident()
    for thread in [t for t in _importing if t != me]:
        del _importing[thread]
    _ForeignModules.clear()


lock.after_fork.append(_after_fork)

TEFL = "transformer_engine.plugin.core"


def _add_foreign_module(full: str, module: types.ModuleType, added: dict[str, types.ModuleType]) -> None:
    """Add a module under a foreign name, with its parent packages, unless the name is taken."""
    parts = full.split(".")
    if full in sys.modules or (len(parts) == 1 and _provided_elsewhere(full, module)):
        return
    if len(parts) > 1 and full != TEFL and parts[0] not in added:  # the library itself is installed
        return
    for n in range(1, len(parts)):
        name = ".".join(parts[:n])
        if name in sys.modules or name in added or (n == 1 and importlib.util.find_spec(name) is not None):
            continue
        package = types.ModuleType(name, "A placeholder while a plugin is imported.")
        package.__path__ = []
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)  # find_spec asks for it
        added[name] = package
    added[full] = module
    for n in range(1, len(parts)):
        parent = added.get(".".join(parts[:n]))
        child = added.get(".".join(parts[: n + 1]))
        if parent is not None and child is not None:
            setattr(parent, parts[n], child)


def _provided_elsewhere(name: str, ours: types.ModuleType) -> bool:
    """Whether another library provides a module of this name; the start-up finder finds ours."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin != getattr(ours, "__file__", None)


class _Installed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads an installed package and adds our submodules to it; an empty package if its import fails."""

    def __init__(self, name: str, added: dict[str, types.ModuleType]):
        self._name, self._added = name, added
        self._finding = False
        self._loader: Any = None
        self._given: list[tuple[types.ModuleType, str]] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._finding or TEFL not in self._added:
            return None
        self._finding = True
        try:
            found = importlib.util.find_spec(fullname)
        finally:
            self._finding = False
        if found is not None and found.loader is not None:
            self._loader, found.loader = found.loader, self
            return found
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        there = set(sys.modules)
        try:
            self._loader.exec_module(module)
        except Exception as error:
            logger.debug("%s is installed but cannot be imported: %s: %s", self._name, type(error).__name__, error)
            for name in [n for n in sys.modules if n.startswith(f"{self._name}.") and n not in there]:
                del sys.modules[name]
            why = f"{self._name} is installed but cannot be imported: {type(error).__name__}: {error}"
            module.__dict__.update(__path__=[], __getattr__=functools.partial(_absent, why))
            self._added[self._name] = module
        self.complete(module)

    def complete(self, module: types.ModuleType | None = None) -> None:
        """Set submodules as attributes: `import a.b` sets `a.b` only if it loads `a.b`, and ours are loaded already."""
        module = module or sys.modules.get(self._name)
        for name, below in self._added.items():
            above, _, last = name.rpartition(".")
            if above == self._name and module is not None and last not in module.__dict__:
                setattr(module, last, below)
                self._given.append((module, last))

    def restore(self) -> None:
        for module, name in self._given:
            module.__dict__.pop(name, None)


def _absent(why: str, name: str) -> Any:
    raise AttributeError(f"no attribute '{name}': {why}")


def _provided() -> bool:
    """Whether an installed transformer_engine has its own plugin.core; found without importing it."""
    found = importlib.util.find_spec("transformer_engine") if "transformer_engine" not in sys.modules else None
    loaded = sys.modules.get("transformer_engine")
    paths = list(getattr(loaded, "__path__", None) or (found.submodule_search_locations or () if found else ()))
    return any((Path(p) / "plugin" / f).exists() for p in paths for f in ("core", "core.py"))
