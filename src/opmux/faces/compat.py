"""Provides other libraries' module names: an unmodified program that imports them gets opmux's modules.

    opmux.compat.install("transformer_engine")     # and opmux.compat.uninstall(...)
    opmux run --as transformer_engine script.py

If a library is installed, its own modules are imported unless `shadow=True`. Our modules may also be added to an
installed package without shadowing the package. The names are in `imports.py`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import OpmuxError, UnknownName
from ..imports import LAYER, PLUGINS, ROWS, Grant, finder

HOLDER = "opmux.compat"
LIBRARIES = (LAYER, "liger_kernel", "flag_gems")


class CannotServe(OpmuxError, RuntimeError):
    """Another library already provides a module of this name."""


@dataclass
class Installed:
    """The modules that we provide for a library, and the imported modules that they replaced."""

    grant: Grant
    times: int = 1  # the number of `install` calls that are not yet undone
    displaced: dict[str, types.ModuleType] = field(default_factory=dict)


reporting = False  # set by `opmux run` and in the processes that its program starts
_reported: set[str] = set()


def report(what: Any) -> None:
    """Show what a library's function has done, under `opmux run`: once for each text, and by the first rank only."""
    if not reporting or os.environ.get("RANK", "0") != "0":
        return
    text = str(what)
    if text not in _reported:
        _reported.add(text)
        print(f"opmux: {text}", file=sys.stderr)


_installed: dict[str, Installed] = {}


def install(*libraries: str, shadow: bool = False) -> None:
    """Provide these libraries' modules until every `install` has been undone by an `uninstall`."""
    for library in libraries:
        if library not in LIBRARIES:
            raise UnknownName("library", library, LIBRARIES, "(libraries whose modules opmux can provide)")
    for library in libraries:
        if library in _installed:
            _installed[library].times += 1
        else:
            names = tuple(row.name for row in ROWS.values() if row.library == library)
            own_names = tuple(name for name in names if name != LAYER)  # the layer package itself is never shadowed
            found = functools.partial(_distributions, library)
            grant = Grant(names, own_names if shadow else (), change=_hint, distributions=found)
            done = _installed[library] = Installed(grant)
            try:
                _serve(library, done, [name for name in own_names if "." not in name], shadow)
            except BaseException:
                uninstall(library)
                raise


def _serve(library: str, done: Installed, names: list[str], shadow: bool) -> None:
    taken = {name: location for name in names if (location := _taken(name)) is not None}
    if taken and not shadow:
        name, location = next(iter(taken.items()))
        raise CannotServe(
            f"'{name}' is installed ({location}) and keeps its name: uninstall it, or pass shadow=True "
            f"(opmux run --shadow)"
        )
    for name in [n for n in sys.modules if n.partition(".")[0] in taken]:
        done.displaced[name] = sys.modules.pop(name)
    if library == LAYER:
        _boot(shadow)
    finder.add(done.grant)
    for name in names:
        importlib.import_module(name)


def uninstall(*libraries: str) -> None:
    """Undo one `install` of each of these libraries; without names, undo every `install` of all libraries.

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
        finder.remove(done.grant)
        if library == LAYER:
            from .te import boot

            boot.uninstall(HOLDER)
        sys.modules.update(done.displaced)


def installed() -> tuple[str, ...]:
    return tuple(_installed)


def _boot(shadow: bool) -> None:
    """Install NVIDIA's Python layer over our tex if it already is, if `shadow`, or if its C++ extension is missing."""
    from .te import boot
    from .tex.backends.nvidia import nvidia

    is_new = LAYER not in sys.modules and finder.others(LAYER) is not None and (shadow or nvidia.find() is None)
    if boot.installed() or is_new:
        boot.install(HOLDER)


def _hint(name: str, spec: Any) -> None:
    """If the layer is not installed and only our modules exist, raise an error that says how to install it."""
    if spec is None and finder.serves(LAYER) and not name.startswith(PLUGINS):
        from .te import boot

        raise ModuleNotFoundError(
            f"No module named '{name}': {LAYER} is not installed, and opmux replaces only its compiled "
            f"extension and its plugins: {boot.INSTALL_HINT}",
            name=name,
        )


def _distributions(library: str, context: Any) -> Iterator[importlib.metadata.Distribution]:
    """What importlib.metadata finds for a library that opmux serves, if the library has a version."""
    name = getattr(context, "name", None)
    if name is None or name.replace("-", "_").casefold() != library or not finder.serves(library):
        return
    version = getattr(sys.modules[library], "__version__", None)
    if version is not None:
        yield ServedDistribution(library, version)


class ServedDistribution(importlib.metadata.Distribution):
    """The metadata of a library whose modules are ours: its name, and the version of the interface that we provide."""

    def __init__(self, library: str, version: str):
        self._metadata = f"Metadata-Version: 2.1\nName: {library}\nVersion: {version}\nSummary: provided by opmux\n"

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


def _taken(name: str) -> str | None:
    """The location of the installed module of this name; None if the module is ours."""
    module = sys.modules.get(name)
    if module is not None:
        return None if finder.serves(name) else getattr(module, "__file__", None) or "loaded"
    spec = finder.others(name)
    return None if spec is None else str(spec.origin)
