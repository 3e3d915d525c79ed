"""Foreign module names: an unchanged program that imports another library's modules gets ours.

    opmux.compat.install("transformer_engine")     # and opmux.compat.uninstall(...)
    opmux run --as transformer_engine script.py

An installed library keeps its name, unless `shadow=True`. Adding a module of ours to an installed package does not
shadow the package.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..core.errors import OpmuxError, UnknownName

HOLDER = "opmux.compat"


class CannotServe(OpmuxError, RuntimeError):
    """A foreign module name that is already taken."""


def _tex() -> types.ModuleType:
    return importlib.import_module("opmux.tex")


def _ours(name: str) -> Callable[[], types.ModuleType]:
    return lambda: importlib.import_module(f"opmux.{name}")


# Submodules of `transformer_engine.plugin` and its alias `transformer_engine.plugins`.
BELOW_PLUGINS: dict[str, Callable[[], types.ModuleType]] = {
    "core": _ours("core"),
    "tex": _tex,
    "tex_interface": _ours("faces.tex"),
    "transformer_engine_fl_torch": _tex,
}

# Library -> foreign module -> our module; None is an empty parent package.
SERVED: dict[str, dict[str, Callable[[], types.ModuleType] | None]] = {
    "transformer_engine": {
        "transformer_engine_torch": _tex,
        **{
            f"transformer_engine.{plugins}{dot}{below}": serves
            for plugins in ("plugin", "plugins")
            for dot, below, serves in (("", "", None), *((".", n, s) for n, s in BELOW_PLUGINS.items()))
        },
    },
}


@dataclass
class Installed:
    """The modules that were added under foreign names, and how to remove them."""

    times: int = 1  # how often it was installed
    modules: dict[str, types.ModuleType] = field(default_factory=dict)
    displaced: dict[str, types.ModuleType] = field(default_factory=dict)
    attributes: list[tuple[types.ModuleType, str]] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)


_installed: dict[str, Installed] = {}


def install(*libraries: str, shadow: bool = False) -> None:
    """Provide these libraries' modules by ours, until each `install` is undone by an `uninstall`."""
    for library in libraries:
        if library not in SERVED:
            raise UnknownName("library", library, SERVED, "(libraries whose modules opmux can provide)")
    for library in libraries:
        if library in _installed:
            _installed[library].times += 1
        else:
            done = _installed[library] = Installed()
            try:
                _serve(library, done, shadow)
            except BaseException:
                uninstall(library)
                raise


def uninstall(*libraries: str) -> None:
    """Undo one `install` of each of these libraries; without names, every `install` of all of them.

    It does not undo `import opmux.te`: use `opmux.te.uninstall()`.
    """
    for library in libraries or tuple(_installed):
        done = _installed.get(library)
        if done is None:
            continue
        done.times -= 1
        if libraries and done.times:
            continue
        del _installed[library]
        _take_back(done)


def _take_back(done: Installed) -> None:
    from .te import boot

    for undo in reversed(done.undo):
        undo()
    for parent, name in done.attributes:
        parent.__dict__.pop(name, None)
    for name, module in done.modules.items():
        if sys.modules.get(name) is module and not boot.needs(name):
            del sys.modules[name]
    sys.modules.update(done.displaced)


def installed() -> tuple[str, ...]:
    return tuple(_installed)


def _serve(library: str, done: Installed, shadow: bool) -> None:
    taken = {name: where for name in SERVED[library] if (where := _taken(name)) is not None}
    for name, where in () if shadow else taken.items():
        if name.partition(".")[0] != library:
            raise CannotServe(
                f"'{name}' is installed ({where}) and keeps its name: uninstall it, or pass shadow=True "
                f"(opmux run --shadow)"
            )
    done.displaced |= {name: sys.modules[name] for name in taken if name in sys.modules}
    _root(library, done, shadow)
    for name, serves in SERVED[library].items():
        if name in taken and not shadow:  # keep the installed module
            continue
        module = serves() if serves is not None else _package(name, f"Modules of {library}, provided by opmux.")
        _put(name, module, done)
        if serves is not None:
            _with_submodules(name, module, done)


def _root(library: str, done: Installed, shadow: bool) -> None:
    """The library itself: the installed one, over our tex if it has no extension; else an empty package."""
    from .te import boot

    if boot.installed():
        _boot(done)
    if library in sys.modules:
        return
    if importlib.machinery.PathFinder.find_spec(library) is None:
        _put(library, _package(library, "Modules of a library that is not installed, provided by opmux."), done)
    elif library == "transformer_engine":
        from .tex.backends.nvidia import nvidia

        if shadow or nvidia.find() is None:
            _boot(done)


def _boot(done: Installed) -> None:
    """Install NVIDIA's layer over our tex."""
    from .te import boot

    boot.install(HOLDER)
    done.undo.append(lambda: boot.uninstall(HOLDER))


def _package(name: str, doc: str) -> types.ModuleType:
    made = types.ModuleType(name, doc)
    made.__path__ = []
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    return made


def _taken(name: str) -> str | None:
    """The location of a foreign module, unless it is ours."""
    there = sys.modules.get(name)
    if there is not None:
        return (
            None if getattr(there, "__name__", "").startswith("opmux") else getattr(there, "__file__", None) or "loaded"
        )
    top, _, below = name.partition(".")
    found = importlib.machinery.PathFinder.find_spec(top)
    for part in below.split(".") if below else ():
        if found is None or not found.submodule_search_locations:
            return None
        found = importlib.machinery.PathFinder.find_spec(f"{found.name}.{part}", found.submodule_search_locations)
    return None if found is None else str(found.origin)


def _put(name: str, module: types.ModuleType, done: Installed) -> None:
    if sys.modules.get(name) is module:
        return
    sys.modules[name] = done.modules[name] = module
    above, _, last = name.rpartition(".")
    parent = sys.modules.get(above)
    if parent is not None and last not in parent.__dict__:
        setattr(parent, last, module)
        done.attributes.append((parent, last))


def _with_submodules(name: str, module: types.ModuleType, done: Installed) -> None:
    """Add our module's submodules under the foreign name too: a second import would create second copies of them."""
    own = module.__name__
    for full, below in _loaded_below(own):
        _put(name + full.removeprefix(own), below, done)


def _loaded_below(own: str) -> Iterable[tuple[str, types.ModuleType]]:
    if own == "opmux.faces.tex":
        for part in ("base", "registry", "backends"):
            importlib.import_module(f"{own}.{part}")
    return [
        (n, m) for n, m in sorted(sys.modules.items()) if n.startswith(f"{own}.") and isinstance(m, types.ModuleType)
    ]
