"""Our modules under the names of other libraries' modules: a table of the names, and the finder that imports them.

| who adds a `Grant` to the finder | for which names | until |
|---|---|---|
| `faces/compat.py` | a library's names | `uninstall` |
| `foreign_names` | names that plugins and vendors' packages import | the package is imported |
| `faces/te/boot.py` | `transformer_engine_torch` and `.plugin(s)`; it changes the layer's modules | `uninstall` |
| `opmux_startup.py` | `transformer_engine.plugin(s)`, `backend_utils` | the process ends |

This finder serves only names that no other finder finds. So an installed library keeps its names, unless a grant
shadows them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

from .core.loading import on_failure
from .core.lock import lock
from .core.log import logger


class ForeignModule(NamedTuple):
    """The name of a foreign module, and our module that is imported instead. Submodules map to submodules.

    `ours` is the name of a module, or "module:table", where `table` maps foreign names to our modules. The modules of a
    table are put in sys.modules together, because importing a package of the library also imports its submodules. "" is
    an empty package.
    """

    library: str
    name: str
    ours: str


ROWS = {
    row.name: row
    for row in (
        ForeignModule("backend_utils", "backend_utils", "opmux.backends.backend_utils"),
        ForeignModule("flag_gems", "flag_gems", "opmux.faces.flag_gems.names:MODULES"),
        ForeignModule("liger_kernel", "liger_kernel", "opmux.faces.liger.names:SERVED"),
        # The parent package of the following modules if the library is not installed.
        ForeignModule("transformer_engine", "transformer_engine", ""),
        ForeignModule("transformer_engine", "transformer_engine_torch", "opmux.tex"),
        ForeignModule("transformer_engine", "transformer_engine.plugin", ""),
        ForeignModule("transformer_engine", "transformer_engine.plugin.core", "opmux.faces.tefl:PLUGIN_CORE"),
        ForeignModule("transformer_engine", "transformer_engine.plugin.tex", "opmux.tex"),
        ForeignModule("transformer_engine", "transformer_engine.plugin.tex_interface", "opmux.faces.tex"),
        ForeignModule("transformer_engine", "transformer_engine.plugin.transformer_engine_fl_torch", "opmux.tex"),
        ForeignModule("transformer_engine", "transformer_engine.plugins", ""),
        ForeignModule("transformer_engine", "transformer_engine.plugins.core", "opmux.faces.tefl:PLUGINS_CORE"),
        ForeignModule("transformer_engine", "transformer_engine.plugins.tex", "opmux.tex"),
        ForeignModule("transformer_engine", "transformer_engine.plugins.tex_interface", "opmux.faces.tex"),
        ForeignModule("transformer_engine", "transformer_engine.plugins.transformer_engine_fl_torch", "opmux.tex"),
    )
}
LAYER = "transformer_engine"  # NVIDIA's Python layer
TEX = "transformer_engine_torch"
PLUGINS = tuple(name for name in ROWS if name.startswith(f"{LAYER}.plugin"))


@dataclass(frozen=True, eq=False)
class Grant:
    """Permission for the finder to serve the modules `names` (keys of ROWS), with hooks of the module that adds it."""

    names: tuple[str, ...]
    shadows: tuple[str, ...] = ()  # modules to serve even if another finder finds them
    # Called for modules of the layer that are not ours, with the name and the spec that other finders return. Returns a
    # changed spec, or None to leave the spec unchanged.
    change: Callable[[str, ModuleSpec | None], ModuleSpec | None] = lambda name, spec: None
    distributions: Callable[..., Iterable[Any]] = lambda context: ()  # for importlib.metadata
    thread: int | None = None  # the thread that removes the grant; if another thread forks, the child removes it


class GrantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the modules of all grants. It is in `sys.meta_path` while there is a grant."""

    def __init__(self) -> None:
        self.grants: tuple[Grant, ...] = ()
        self.given: dict[str, types.ModuleType] = {}  # the modules that were put in sys.modules
        self._parents: dict[str, types.ModuleType] = {}  # name -> the parent module, of which it became an attribute

    def add(self, grant: Grant) -> None:
        with lock.held:
            self.grants = (*self.grants, grant)
            self._update_meta_path()

    def remove(self, grant: Grant) -> None:
        self.keep(lambda other: other is not grant)

    def keep(self, is_kept: Callable[[Grant], bool]) -> None:
        """Remove the grants for which `is_kept` is false, and the modules that no remaining grant serves."""
        with lock.held:
            self.grants = tuple(grant for grant in self.grants if is_kept(grant))
            self._update_meta_path()
            for name in [n for n in tuple(self.given) if not self._granted(n)]:
                if self.serves(name):
                    del sys.modules[name]
                if name in self._parents:
                    self._parents[name].__dict__.pop(name.rpartition(".")[2], None)
                    del self._parents[name]
                del self.given[name]

    def _update_meta_path(self) -> None:
        """Move this finder to the front of `sys.meta_path`, or remove it if there is no grant.

        Each change makes a new list. If this finder were removed in place, an import in another thread would skip the
        finder after it.
        """
        others = [other for other in sys.meta_path if other is not self]
        sys.meta_path = [self, *others] if self.grants else others

    def _granted(self, name: str) -> list[Grant]:
        row = _row(name)
        return [grant for grant in self.grants if row is not None and row.name in grant.names]

    def serves(self, name: str) -> bool:
        """Whether the module that is loaded under this name is ours."""
        return name in self.given and sys.modules.get(name) is self.given[name]

    # -- finding

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        row = _row(fullname)
        if row is None:
            return None
        granted = self._granted(fullname)
        if fullname != row.name:  # a name below one of our modules
            ours = bool(granted) and self.serves(fullname.rpartition(".")[0]) and _ours(fullname) is not None
        else:
            shadowed = any(fullname in grant.shadows for grant in granted)
            ours = shadowed or (bool(granted) and self.others(fullname, path, target) is None)
        if ours:
            return ModuleSpec(fullname, self, is_package=True)
        return self._changed(fullname, path, target) if fullname.partition(".")[0] == LAYER else None

    def _changed(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """The spec of the layer's module with the changes of all grants, oldest first; None if there is no change."""
        spec, changed = self.others(name, path, target), None
        for grant in self.grants:
            changed = grant.change(name, changed or spec) or changed
        return changed

    def others(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec from the other finders. opmux_startup's calls this finder, so it is asked only for the layer."""
        for other in list(sys.meta_path):
            calls_us = name != LAYER and getattr(other, "__module__", "") == "opmux_startup"
            if other is self or calls_us or not hasattr(other, "find_spec"):
                continue
            if (spec := other.find_spec(name, path, target)) is not None:
                return spec
        return None

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        for grant in self.grants:
            yield from grant.distributions(context)

    # -- loading

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        for foreign, ours in (_table(ROWS[name]) if name in ROWS else {name: _ours(name)}).items():
            if not ours:
                module.__dict__["__getattr__"] = functools.partial(_child, name)
            self.give(foreign, ours or module)

    def load(self, name: str) -> None:
        """Load a module without importing its parents."""
        self.exec_module(importlib.util.module_from_spec(ModuleSpec(name, self, is_package=True)))

    def give(self, name: str, ours: str | types.ModuleType) -> None:
        """Put our module in sys.modules under `name`. `ours` is the module, or its name, under which it is imported.

        The parent package gets the module as an attribute. If the module has a function of the same name, the parent
        gets the function instead, because packages export the function.
        """
        module = importlib.import_module(ours) if isinstance(ours, str) else ours
        above, _, last = name.rpartition(".")
        parent = sys.modules.get(above)
        if parent is not None and last not in parent.__dict__:
            self._parents[name] = parent
            named = vars(module).get(last)
            setattr(parent, last, named if callable(named) else module)
        self.given[name] = sys.modules[name] = module


finder = GrantFinder()


def _row(name: str) -> ForeignModule | None:
    """The entry of ROWS for a module, or for its nearest parent package that has one."""
    while name and name not in ROWS:
        name = name.rpartition(".")[0]
    return ROWS.get(name)


def _table(row: ForeignModule) -> Mapping[str, str | types.ModuleType]:
    """Foreign name -> our module, for all modules of an entry."""
    module, _, table = row.ours.partition(":")
    return getattr(importlib.import_module(module), table) if table else {row.name: module}


def _ours(name: str) -> str | types.ModuleType | None:
    """Our module for a foreign name, or the name of ours. "": an empty package. None: we have no such module."""
    row = _row(name)
    table, ancestor = _table(row) if row is not None else {}, name
    while ancestor and ancestor not in table:
        ancestor = ancestor.rpartition(".")[0]
    ours = table.get(ancestor)
    if ancestor == name:
        return ours
    ours = f"{ours}{name[len(ancestor) :]}" if ours and isinstance(ours, str) else None
    try:
        return ours if ours is not None and importlib.util.find_spec(ours) is not None else None
    except ModuleNotFoundError:  # the parent is not a package
        return None


def _child(package: str, name: str) -> types.ModuleType:
    """Look up an attribute of an empty package: imports the submodule of that name."""
    if f"{package}.{name}" in ROWS:
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module '{package}' has no attribute '{name}'")


# ---- from the start of Python ----------------------------------------------------------------------------------------

_FROM_START = Grant((*PLUGINS, "backend_utils"))


def at_start(name: str, path: Any, target: Any) -> ModuleSpec | None:
    """Find a module of `_FROM_START`. `opmux_startup` calls this for the first import; later imports use the finder."""
    if _FROM_START not in finder.grants:
        finder.add(_FROM_START)
    return finder.find_spec(name, path, target)


# ---- while plugins and vendors' packages are imported ----------------------------------------------------------------


@contextmanager
def foreign_names() -> Iterator[None]:
    """While a plugin is imported, the module names of libraries that it may be written for refer to our modules.

    `transformer_engine.plugin.core` is `faces/tefl.py`, `backend_utils` is FlagGems' module, and `flag_gems` and
    `liger_kernel` are `faces/flag_gems` and `faces/liger`. An installed library keeps its name. If the installed
    Transformer Engine cannot be imported (no compiled extension), an empty module replaces it.
    """
    names = (LAYER, *PLUGINS, "backend_utils", "flag_gems", "liger_kernel")
    grant = Grant(names, change=_tolerant, thread=threading.get_ident())
    on_failure(lambda: finder.remove(grant))
    try:
        finder.add(grant)
        _load_plugins()
        yield
    finally:
        finder.remove(grant)


def _after_fork() -> None:
    finder.keep(lambda grant: grant.thread in (None, threading.get_ident()))


lock.after_fork.append(_after_fork)


def _tolerant(name: str, spec: ModuleSpec | None) -> ModuleSpec | None:
    """The installed layer's spec, changed so that a failing import gives an empty package; None if it has plugins."""
    if name != LAYER or spec is None or spec.loader is None:
        return None
    if finder.others(PLUGINS[0], spec.submodule_search_locations or []) is not None:
        return None
    spec.loader = _Tolerant(spec.loader)
    return spec


class _Tolerant(importlib.abc.Loader):
    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        before = set(sys.modules)
        try:
            self._loader.exec_module(module)
        except Exception as error:
            why = f"{LAYER} is installed but cannot be imported: {type(error).__name__}: {error}"
            logger.debug("%s", why)
            for name in [n for n in sys.modules if n.startswith(f"{LAYER}.") and n not in before]:
                del sys.modules[name]
            module.__dict__.update(__path__=[], __getattr__=functools.partial(_absent, why))
            finder.give(LAYER, module)
        if finder.serves(PLUGINS[0]):
            finder.give(PLUGINS[0], sys.modules[PLUGINS[0]])  # also sets the layer's attribute


def _absent(why: str, name: str) -> Any:
    raise AttributeError(f"no attribute '{name}': {why}")


def _load_plugins() -> None:
    """Load our `transformer_engine.plugin.core`, unless the installed layer has its own plugins.

    Python then finds the module in sys.modules. Otherwise it would first import the layer, which takes seconds.
    """
    if PLUGINS[0] in sys.modules:
        return
    loaded, spec = sys.modules.get(LAYER), finder.others(LAYER)
    path = spec.submodule_search_locations if loaded is None and spec is not None else getattr(loaded, "__path__", [])
    if finder.others(PLUGINS[0], path or []) is None:
        for name in PLUGINS[:2]:
            finder.load(name)
