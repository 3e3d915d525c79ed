"""Plugins: found by entry point or by name, tried on a copy of the registry, taken over whole or not at all."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import facts, knobs
from .errors import PluginError, nearest
from .log import logger
from .registry import API_VERSION, OpImpl, OpRegistry, Origin, tagged
from .spec import specs

GROUPS = ("opmux.backends", "te_fl.plugin")


@dataclass(frozen=True)
class Plugin:
    """A plugin that was found, and what became of it."""

    name: str
    source: str  # "entry point opmux.backends", "env TE_FL_PLUGIN_MODULES"
    target: str  # module, or module:attribute
    distribution: str | None = None
    version: str | None = None
    status: str = "found"  # loaded, blocked, broken
    reason: str = ""
    impls: tuple[str, ...] = ()  # "op=impl_id"


_seen: dict[tuple[str, str], Plugin] = {}


def plugins() -> list[Plugin]:
    """Every plugin that discovery has met, in the order of loading."""
    return list(_seen.values())


def load(registry: OpRegistry) -> None:
    """Find and load all plugins; a broken one is reported once, with its traceback, and changes nothing."""
    from .policy import get_global_policy

    _seen.clear()
    for found, fetch in sorted(_found(), key=lambda f: (f[0].name, f[0].source)):
        done = _load_one(found, fetch, registry, strict=get_global_policy().strict)
        _seen[found.name, found.target] = done
        if done.status == "loaded":
            logger.debug("plugin '%s' (%s): %s", done.name, done.source, ", ".join(done.impls) or "no impl")


def _found() -> Iterator[tuple[Plugin, Callable[[], Any]]]:
    met = set()
    for group in GROUPS:
        for entry in importlib.metadata.entry_points(group=group):
            if entry.value in met:  # one plugin, announced in both groups or under two names
                continue
            met.add(entry.value)
            dist = entry.dist
            found = Plugin(
                entry.name,
                f"entry point {group}",
                entry.value,
                dist.name if dist else None,
                dist.version if dist else None,
            )
            yield found, entry.load
    modules = {target.partition(":")[0] for target in met}
    named = knobs.PLUGIN_MODULES.look()
    for name in dict.fromkeys(named.value or ()):
        if name not in modules:
            found = Plugin(name, named.source, name)
            yield found, lambda name=name: importlib.import_module(name)


def _load_one(found: Plugin, fetch: Callable[[], Any], registry: OpRegistry, strict: bool) -> Plugin:
    refusal = _blocked(found)
    if refusal is not None:
        return _with(found, "blocked", refusal)
    declared = set(specs.by_key)
    staged, base = registry.stage(), _contents(registry)
    before, waiting = _contents(staged), tuple(tagged)
    try:
        with foreign_names():
            plugin = fetch()
            _check_api(found, plugin)
            origin = Origin(found.name, found.distribution, found.version, getattr(plugin, "__file__", None))
            if not facts.machine().take_vendor(plugin, origin) or callable(getattr(plugin, "register", None)):
                _register(found, plugin)(staged)
        for made in _take_tagged(waiting):
            staged.register_impl(made)
        after = _contents(staged)
        gone = sorted(where for where, impl in before.items() if after.get(where) is not impl)
        if gone:
            raise PluginError(f"plugin '{found.name}' took out or replaced {gone}: a plugin may only add")
        added = [(key, impl) for (key, impl_id), impl in after.items() if (key, impl_id) not in before]
        _look_for_typos(found, [k for k, _ in added])
    except (Exception, SystemExit) as error:  # a vendor's import may call sys.exit where its chip is missing
        _take_tagged(waiting)
        _undo(registry, base)
        for key in set(specs.by_key) - declared:
            if specs.by_key[key].reference.__module__.partition(".")[0] != "opmux":
                specs.remove(specs.by_key[key])
        words = f"plugin '{found.name}' ({found.source}) could not be loaded: {type(error).__name__}: {error}"
        if strict:
            raise PluginError(words) from error
        logger.error("%s; nothing of it is registered\n%s", words, traceback.format_exc().rstrip())
        return _with(found, "broken", f"{type(error).__name__}: {error}")
    for key, impl in added:
        staged._origins[key, impl.impl_id] = Origin(
            found.name, found.distribution, found.version, staged.origin(key, impl.impl_id).file
        )
    registry.adopt(staged)
    return _with(found, "loaded", impls=tuple(f"{specs.short_name(k)}={i.impl_id}" for k, i in added))


def _contents(registry: OpRegistry) -> dict[tuple[str, str], OpImpl]:
    return {(key, impl.impl_id): impl for key in registry for impl in registry.impls(key)}


def _take_tagged(waiting: tuple[Any, ...]) -> list[OpImpl]:
    """What a plugin has tagged by @impl, taken off the list from which the default manager would take it up."""
    new = [row for row in tagged if row not in waiting]
    theirs = [row for row in new if _module_of(row[0].fn).partition(".")[0] != "opmux"]
    tagged[:] = [row for row in tagged if row not in theirs]
    return [made for made, _ in theirs]


def _module_of(value: Any) -> str:
    return getattr(value, "__module__", None) or ""


def _undo(registry: OpRegistry, before: dict[tuple[str, str], OpImpl]) -> None:
    """Take out what a failed plugin put straight into the registry, past the copy it was given."""
    for (key, impl_id), impl in _contents(registry).items():
        mine = impl_id == "reference.torch" and impl.fn.__module__.partition(".")[0] == "opmux"
        if (key, impl_id) not in before and not mine:
            registry.unregister(key, impl_id)


def _with(found: Plugin, status: str, reason: str = "", impls: tuple[str, ...] = ()) -> Plugin:
    return Plugin(found.name, found.source, found.target, found.distribution, found.version, status, reason, impls)


def _blocked(found: Plugin) -> str | None:
    """Why the lists keep a plugin out; asked before anything of it is imported."""
    module = found.target.partition(":")[0]
    names = _folded(n for n in (found.name, module, module.partition(".")[0], found.distribution) if n)
    if names & _folded(knobs.BLOCK_PLUGINS.get() or ()):
        return "named in OPMUX_BLOCK_PLUGINS"
    allowed = knobs.ALLOW_PLUGINS.get()
    if allowed is not None and not names & _folded(allowed):
        return f"not in OPMUX_ALLOW_PLUGINS ({', '.join(allowed) or 'empty'})"
    return None


def _folded(names: Iterable[str]) -> set[str]:
    return {n.casefold().replace("-", "_") for n in names}


def _check_api(found: Plugin, plugin: Any) -> None:
    wants = getattr(plugin, "OPMUX_API", None)
    if wants is None:  # a function, a class or an object: its module says
        wants = getattr(sys.modules.get(_module_of(plugin)), "OPMUX_API", None)
    if wants is not None and wants != API_VERSION:
        raise PluginError(
            f"plugin '{found.name}' is written for plugin interface {wants}, this opmux has {API_VERSION}: "
            f"install a matching version of either"
        )


def _register(found: Plugin, plugin: Any) -> Callable[[OpRegistry], Any]:
    """A plugin is a module, a class or an object with `register(registry)`, or a callable that takes the registry."""
    for name in ("te_fl_register", "register"):
        method = getattr(plugin, name, None)
        if callable(method):
            return method
    if callable(plugin) and not isinstance(plugin, type):
        return plugin
    raise PluginError(
        f"plugin '{found.name}' ({found.target}) is {type(plugin).__name__}: expected a module or an object with "
        f"register(registry), or a callable that takes the registry"
    )


def _look_for_typos(found: Plugin, keys: list[str]) -> None:
    """An op no spec knows is the plugin's own; one that nearly has a known name is worth a word."""
    known = specs.short_names()
    for key in dict.fromkeys(k for k in keys if k not in specs.by_key):
        close = nearest(key, known)
        hint = f"; did it mean '{close}'?" if close else ""
        say = logger.warning if close else logger.debug
        say("plugin '%s' adds an op of its own, '%s'%s", found.name, key, hint)


@contextmanager
def foreign_names() -> Iterator[None]:
    """While a plugin is imported, the names of other libraries that it may be written for are ours.

    `transformer_engine.plugin.core` is opmux.core; what vendors' packages ask for, the machine says. A library that is
    installed keeps its name, and where it does not load by itself (NVIDIA's, without its extension) it is an empty one.
    """
    added: dict[str, types.ModuleType] = {}
    core = sys.modules["opmux.core"]
    if not _provided():
        _stand_in(TEFL, core, added)
        # Its submodules too: loaded again under the other name, they would bring a second OpImpl.
        for name in [n for n in sys.modules if n.startswith("opmux.core.")] if TEFL in added else ():
            added[TEFL + name.removeprefix("opmux.core")] = sys.modules[name]
    for name, module in facts.machine().stand_ins().items():
        _stand_in(name, module, added)
    sys.modules.update(added)
    root = _Installed(TEFL.partition(".")[0], added)
    sys.meta_path.insert(0, root)
    try:
        root.complete()
        yield
    finally:
        sys.meta_path.remove(root)
        root.restore()
        for name, module in added.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


TEFL = "transformer_engine.plugin.core"


def _stand_in(full: str, module: types.ModuleType, added: dict[str, types.ModuleType]) -> None:
    """Put a module under a foreign name, with packages above it; not where the name is taken."""
    parts = full.split(".")
    if full in sys.modules or (len(parts) == 1 and importlib.util.find_spec(full) is not None):
        return
    if len(parts) > 1 and full != TEFL and parts[0] not in sys.modules and importlib.util.find_spec(parts[0]):
        return
    for n in range(1, len(parts)):
        name = ".".join(parts[:n])
        if name in sys.modules or name in added or (n == 1 and importlib.util.find_spec(name) is not None):
            continue
        package = types.ModuleType(name, "Stands in while a plugin is imported.")
        package.__path__ = []
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)  # find_spec asks for it
        added[name] = package
    added[full] = module
    for n in range(1, len(parts)):
        parent = added.get(".".join(parts[:n]))
        child = added.get(".".join(parts[: n + 1]))
        if parent is not None and child is not None:
            setattr(parent, parts[n], child)


class _Installed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an installed package and loads it, with what we add below it; an empty one where it raises."""

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
            logger.debug("%s is installed and does not load: %s: %s", self._name, type(error).__name__, error)
            for name in [n for n in sys.modules if n.startswith(f"{self._name}.") and n not in there]:
                del sys.modules[name]
            why = f"{self._name} is installed and does not load: {type(error).__name__}: {error}"
            module.__dict__.update(__path__=[], __getattr__=functools.partial(_absent, why))
            self._added[self._name] = module
        self.complete(module)

    def complete(self, module: types.ModuleType | None = None) -> None:
        """`import a.b` gives `a` its `b` where it loads it: what is there already must be given."""
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
    """Whether an installed transformer_engine has a plugin.core of its own; looked up without importing it."""
    found = importlib.util.find_spec("transformer_engine") if "transformer_engine" not in sys.modules else None
    loaded = sys.modules.get("transformer_engine")
    paths = list(getattr(loaded, "__path__", None) or (found.submodule_search_locations or () if found else ()))
    return any((Path(p) / "plugin" / f).exists() for p in paths for f in ("core", "core.py"))
