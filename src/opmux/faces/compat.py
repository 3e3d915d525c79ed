"""Foreign module names: an unchanged program that imports another library's modules gets ours.

    opmux.compat.install("transformer_engine")     # and opmux.compat.uninstall(...)
    opmux run --as transformer_engine script.py

An installed library keeps its name, unless `shadow=True`. Adding a module of ours to an installed package does not
shadow the package.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import OpmuxError, UnknownName
from ..runtime import finders, te_plugins
from .flag_gems import names as flag_gems
from .liger import names as liger

HOLDER = "opmux.compat"


class CannotServe(OpmuxError, RuntimeError):
    """A foreign module name that is already taken."""


def _tex() -> types.ModuleType:
    return importlib.import_module("opmux.tex")


# Library -> foreign module -> our module. The modules below `transformer_engine.plugin(s)` have a finder.
SERVED: dict[str, dict[str, Callable[[], types.ModuleType]]] = {
    "transformer_engine": {"transformer_engine_torch": _tex},
    liger.LIBRARY: liger.SERVED,
    flag_gems.LIBRARY: flag_gems.SERVED,
}

# Library -> a finder of what is below its modules, given `shadow`.
FINDERS: dict[str, Callable[[bool], Any]] = {
    te_plugins.LAYER: te_plugins.PluginNames,
    liger.LIBRARY: lambda shadow: liger.VendorFolders(),
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
    if taken and not shadow:
        name, where = next(iter(taken.items()))
        raise CannotServe(
            f"'{name}' is installed ({where}) and keeps its name: uninstall it, or pass shadow=True "
            f"(opmux run --shadow)"
        )
    done.displaced |= {name: sys.modules[name] for name in taken if name in sys.modules}
    if library == te_plugins.LAYER:
        _root(library, done, shadow)
    for name, serves in SERVED[library].items():
        _put(name, serves(), done)
    if library in FINDERS:
        names = FINDERS[library](shadow)
        names.install()
        done.undo.append(names.remove)


def _root(library: str, done: Installed, shadow: bool) -> None:
    """The library itself: the installed one, over our tex if it has no extension; else an empty package."""
    from .te import boot

    if boot.installed():
        _boot(done)
    if library in sys.modules:
        return
    if importlib.machinery.PathFinder.find_spec(library) is None:
        _put(library, _package(library, "Modules of a library that is not installed, provided by opmux."), done)
        missing = NotInstalled(library)
        finders.add(missing, last=True)  # last: asked about what no other finder has
        done.undo.append(lambda: finders.remove(missing))
    elif library == "transformer_engine":
        from .tex.backends.nvidia import nvidia

        if shadow or nvidia.find() is None:
            _boot(done)


class NotInstalled(importlib.abc.MetaPathFinder):
    """Says how to install a library of which only our modules are there."""

    def __init__(self, library: str):
        self.library = library

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.startswith(f"{self.library}.") and not fullname.startswith(te_plugins.ROOTS):
            from .te.boot import INSTALL_HINT

            raise ModuleNotFoundError(
                f"No module named '{fullname}': {self.library} is not installed, and opmux replaces only its compiled "
                f"extension and its plugins: {INSTALL_HINT}",
                name=fullname,
            )


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
    """The location of a foreign module, unless it is ours; of a module of a package, that of the package."""
    there = sys.modules.get(name)
    if there is not None:
        return (
            None if getattr(there, "__name__", "").startswith("opmux") else getattr(there, "__file__", None) or "loaded"
        )
    found = importlib.machinery.PathFinder.find_spec(name.partition(".")[0])
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
