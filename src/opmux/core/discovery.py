"""Plugins: found by entry point or by name, and loaded into a copy of the registry, which is merged as a whole."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import knobs, machine
from .errors import PluginError, nearest, suggestion
from .extension import extensions
from .loading import Transaction, all_or_nothing
from .log import logger
from .policy import get_global_policy
from .registry import API_VERSION, OpImpl, OpRegistry, Origin
from .spec import specs

GROUP = "opmux.backends"  # the entry point group; extensions may add more groups


@dataclass(frozen=True)
class Plugin:
    """A discovered plugin and its status."""

    name: str
    source: str  # "entry point opmux.backends", "env OPMUX_PLUGIN_MODULES"
    target: str  # module, or module:attribute
    distribution: str | None = None
    version: str | None = None
    status: str = "found"  # loaded, blocked, broken
    reason: str = ""
    impls: tuple[str, ...] = ()  # "op=impl_id"


Handled = dict[tuple[str, str], Plugin]  # key: (name, target)

_handled: Handled = {}


def plugins() -> list[Plugin]:
    """Every plugin that was found, in the order of loading."""
    return list(_handled.values())


def clear() -> None:
    """Empty the list of `plugins`; what they have registered stays."""
    _handled.clear()


def load(registry: OpRegistry, done: Handled | None = None, is_wanted: Callable[[Plugin], bool] | None = None) -> bool:
    """Find and load all plugins, or the wanted ones. A broken plugin registers nothing; its traceback is logged once.

    `done` receives the plugins, and holds those that an earlier, interrupted load has handled. Returns False if this
    thread is importing a plugin, which must then be loaded later.
    """
    done = {} if done is None else done
    if is_wanted is None:
        _handled.clear()
    discovered = sorted(_discover(), key=lambda f: (f[0].name, f[0].source))
    _check_lists([plugin for plugin, _ in discovered])
    later = False
    for plugin, fetch in discovered:
        if is_wanted is not None and not is_wanted(plugin):
            continue
        where = plugin.name, plugin.target
        if where not in done:
            _load_one(plugin, fetch, registry, get_global_policy().strict, done)
        if where in done:
            _handled[where] = done[where]
        later = later or where not in done
    return not later


def _discover() -> Iterator[tuple[Plugin, Callable[[], Any]]]:
    targets, modules = set(), set()
    for group in (GROUP, *(g for e in extensions() for g in e.plugin_groups)):
        for entry in importlib.metadata.entry_points(group=group):
            if entry.value in targets:  # the same plugin in two groups or under two names
                continue
            targets.add(entry.value)
            dist = entry.dist
            plugin = Plugin(
                entry.name,
                f"entry point {group}",
                entry.value,
                dist.name if dist else None,
                dist.version if dist else None,
            )
            if _blocked(plugin) is None:
                modules.add(entry.value.partition(":")[0])
            yield plugin, entry.load
    named = knobs.PLUGIN_MODULES.look()
    for name in dict.fromkeys(named.value or ()):
        if name not in modules:
            plugin = Plugin(name, named.source, name)
            yield plugin, lambda name=name: importlib.import_module(name)


def plugins_are_named() -> bool:
    """Whether any plugin is installed or named; nothing is imported."""
    return bool(knobs.PLUGIN_MODULES.look().value) or _is_installed(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _is_installed(path: tuple[str, ...]) -> bool:
    """Whether a distribution on this path has an entry point for plugins."""
    groups = (GROUP, *(g for e in extensions() for g in e.plugin_groups))
    return any(importlib.metadata.entry_points(group=group) for group in groups)


def _load_one(plugin: Plugin, fetch: Callable[[], Any], registry: OpRegistry, strict: bool, done: Handled) -> None:
    """Load a plugin completely or not at all. A plugin that this thread is already importing is not added to `done`."""
    where, refusal = (plugin.name, plugin.target), _blocked(plugin)
    if refusal is not None:
        done[where] = replace(plugin, status="blocked", reason=refusal)
        return
    try:
        all_or_nothing(lambda loading: _load_staged(plugin, fetch, registry, loading, done))
    except _StillImporting:
        return
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's module may call sys.exit if its chip is missing
        message = f"plugin '{plugin.name}' ({plugin.source}) could not be loaded: {type(error).__name__}: {error}"
        if strict:
            raise PluginError(message) from error
        done[where] = replace(plugin, status="broken", reason=f"{type(error).__name__}: {error}")
        logger.error("%s; none of its impls is registered\n%s", message, traceback.format_exc().rstrip())


def _load_staged(
    plugin: Plugin, fetch: Callable[[], Any], registry: OpRegistry, loading: Transaction, done: Handled
) -> None:
    staged, loading.tagged = registry.stage(), []
    before, modules_before = _contents(staged), set(sys.modules)
    settings = {name: os.environ.get(name) for name in knobs.variables()}
    loading.first = lambda: _forget_modules(plugin, modules_before)
    loading.note(lambda: _restore(settings), None)
    with machine.current().foreign_names():
        module = importlib.import_module(_module(plugin))  # waits if another thread is importing it
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            raise _StillImporting
        loaded = fetch()
        _check_api(plugin, loaded)
        origin = Origin(plugin.name, plugin.distribution, plugin.version, getattr(loaded, "__file__", None))
        of_vendor = machine.current().register_vendor(loaded, origin)
        by_import = _registered_by_import(plugin, registry, {p.name for p in done.values()})
        if not of_vendor or callable(getattr(loaded, "register", None)):
            register = _register(loaded)
            if register is None and not by_import and not loading.tagged:
                raise PluginError(
                    f"plugin '{plugin.name}' ({plugin.target}) is {type(loaded).__name__}: expected a module or an "
                    f"object with register(registry), a callable that takes the registry, or a module whose import "
                    f"registers impls or backends"
                )
            if register is not None:
                register(staged)
    for row in loading.tagged:
        staged.register_impl(row.impl)
    after = _contents(staged)
    removed = sorted(where for where, impl in before.items() if after.get(where) is not impl)
    if removed:
        raise PluginError(f"plugin '{plugin.name}' removed or replaced {removed}: a plugin may only add impls")
    added = [(key, impl) for (key, impl_id), impl in after.items() if (key, impl_id) not in before]
    _log_new_ops(plugin, [k for k, _ in added])
    for key, impl in added:
        staged._origins[key, impl.impl_id] = Origin(
            plugin.name, plugin.distribution, plugin.version, staged.origin(key, impl.impl_id).file
        )
    for key, impl in by_import:
        registry.set_origin(key, impl.impl_id, Origin(plugin.name, plugin.distribution, plugin.version, origin.file))
    impls = tuple(f"{specs.short_name(k)}={i.impl_id}" for k, i in (*added, *by_import))
    record = replace(plugin, status="loaded", impls=impls)
    loading.note(lambda: done.pop((plugin.name, plugin.target), None), None)
    registry.adopt(staged)
    done[plugin.name, plugin.target] = record
    logger.debug("plugin '%s' (%s): %s", plugin.name, plugin.source, ", ".join(record.impls) or "no impl")


class _StillImporting(Exception):
    """Raised if this thread is importing the plugin and that import calls an op, so register() does not exist yet."""


def _module(plugin: Plugin) -> str:
    return plugin.target.partition(":")[0].strip()


def _forget_modules(plugin: Plugin, modules_before: set[str]) -> None:
    """Remove the modules of the plugin's package from sys.modules, so that a later load imports them again.

    Extension modules stay in sys.modules: most of them cannot be loaded twice.
    """
    own = _module(plugin).partition(".")[0]
    for name in [n for n in tuple(sys.modules) if n not in modules_before and n.partition(".")[0] == own]:
        loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
        if not isinstance(loader, importlib.machinery.ExtensionFileLoader):
            sys.modules.pop(name, None)


def _restore(settings: dict[str, str | None]) -> None:
    """Restore the opmux settings that a failed plugin has changed."""
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _contents(registry: OpRegistry) -> dict[tuple[str, str], OpImpl]:
    return {(key, impl.impl_id): impl for key in registry for impl in registry.impls(key)}


def _registered_by_import(plugin: Plugin, registry: OpRegistry, others: set[str]) -> list[tuple[str, OpImpl]]:
    """The impls that a decorator registered while modules of the plugin's package were imported.

    Impls of other plugins in the same package are left out.
    """
    package = _module(plugin).partition(".")[0]
    rows = ((key, impl) for key in registry for impl in registry.impls(key))
    own = ((key, impl) for key, impl in rows if _module_of(impl.fn).partition(".")[0] == package)
    return [(key, impl) for key, impl in own if registry.origin(key, impl.impl_id).plugin not in others]


def _module_of(value: Any) -> str:
    return getattr(value, "__module__", None) or ""


def _blocked(plugin: Plugin) -> str | None:
    """Why the allow and block lists exclude a plugin; None if they do not. Called before the plugin is imported."""
    names = _names_of(plugin)
    if names & _normal(knobs.BLOCK_PLUGINS.get() or ()):
        return "named in OPMUX_BLOCK_PLUGINS"
    allowed = knobs.ALLOW_PLUGINS.get()
    if allowed is not None and not names & _normal(allowed):
        return f"not in OPMUX_ALLOW_PLUGINS ({', '.join(allowed) or 'empty'})"
    return None


def _names_of(plugin: Plugin) -> set[str]:
    """The names of a plugin in the lists: its distribution's name, because names of entry points are not unique.

    A module from OPMUX_PLUGIN_MODULES has no distribution. Its names are its own and those of its parent packages.
    """
    if plugin.distribution is not None:
        return _normal([plugin.distribution])
    parts = _module(plugin).split(".")
    return _normal(".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _normal(names: Iterable[str]) -> set[str]:
    """Names of distributions, normalized as in PEP 503."""
    return {re.sub(r"[-_.]+", "-", n).lower() for n in names}


_warned: set[tuple[str, str]] = set()


def _check_lists(discovered: list[Plugin]) -> None:
    """Warn once about a list entry that matches no plugin, because a misspelt entry blocks or allows nothing."""
    known = {name for plugin in discovered for name in _names_of(plugin)}
    for knob in (knobs.ALLOW_PLUGINS, knobs.BLOCK_PLUGINS):
        for name in knob.get() or ():
            if _normal([name]) <= known or (knob.name, name) in _warned:
                continue
            _warned.add((knob.name, name))
            logger.warning(
                "%s names '%s', which is neither a distribution with a plugin nor a module of OPMUX_PLUGIN_MODULES%s",
                knob.name,
                name,
                _hint(name, discovered),
            )


def _hint(name: str, discovered: list[Plugin]) -> str:
    means = sorted({str(p.distribution) for p in discovered if p.distribution and _normal([name]) <= _other_names(p)})
    if means:
        return f": use the name of its distribution, {', '.join(means)}"
    return suggestion(name, sorted({p.distribution or _module(p) for p in discovered}), ": did you mean '{}'?")


def _other_names(plugin: Plugin) -> set[str]:
    """Other names that a user may take for the plugin's name."""
    module = _module(plugin)
    return _normal((plugin.name, module, module.partition(".")[0]))


def _check_api(plugin: Plugin, loaded: Any) -> None:
    required = getattr(loaded, "OPMUX_API", None)
    if required is None:  # a function, class or object: read OPMUX_API from its module
        required = getattr(sys.modules.get(_module_of(loaded)), "OPMUX_API", None)
    if required is not None and required != API_VERSION:
        raise PluginError(
            f"plugin '{plugin.name}' is written for plugin interface {required}, this opmux has {API_VERSION}: "
            f"install a matching version of either"
        )


def _register(plugin: Any) -> Callable[[OpRegistry], Any] | None:
    """A plugin is a module, a class or an object with `register(registry)`, or a callable that takes the registry."""
    for name in (*(n for e in extensions() for n in e.register_names), "register"):
        method = getattr(plugin, name, None)
        if callable(method):
            return method
    return plugin if callable(plugin) and not isinstance(plugin, type) else None


def _log_new_ops(plugin: Plugin, keys: list[str]) -> None:
    """Log the ops that only the plugin knows; warn if such a name is close to a known op's."""
    known = specs.short_names()
    for key in dict.fromkeys(k for k in keys if k not in specs.by_key):
        close = nearest(key, known)
        hint = f"; did it mean '{close}'?" if close else ""
        log = logger.warning if close else logger.debug
        log("plugin '%s' adds an op of its own, '%s'%s", plugin.name, key, hint)
