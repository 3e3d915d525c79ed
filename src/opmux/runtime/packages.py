"""The vendors that are known: the folders `opmux.backends._*`, what entry points bring, what code registers.

A package is imported when vendors are first asked for. One that is broken is left out, with one warning that names the
file and the line; the others work.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.default import get_default_manager
from ..core.errors import OpmuxError
from ..core.loading import Once, all_or_nothing, on_failure
from ..core.lock import lock
from ..core.log import logger
from ..core.registry import Origin
from .foreign import foreign_names
from .vendor import BadVendor, VendorInfo, VendorInfoBase

ROOT = "opmux.backends"


@dataclass(frozen=True)
class Package:
    """A vendor, and the package that speaks for it."""

    info: VendorInfoBase
    module: str  # its import name; "" for a vendor that code registered and that has no files
    origin: Origin = field(default_factory=Origin)
    arch_map: Mapping[Any, str] = field(default_factory=dict, hash=False)
    arch_of: Callable[[int], str | None] | None = None

    @property
    def name(self) -> str:
        return self.info.vendor_name

    @property
    def device(self) -> str:
        return self.info.device_name

    @property
    def folder(self) -> Path | None:
        found = _find(self.module) if self.module else None
        places = list(found.submodule_search_locations or ()) if found else []
        return Path(places[0]) if places else None


_known: dict[str, Package] = {}  # replaced as a whole
_broken: dict[str, str] = {}  # module -> why it is left out
_generation = 0  # counts the changes
_changed: list[Callable[[], None]] = []  # called when a vendor has come or gone
# By thread, the package whose import is under way: whom `register_vendor` speaks for.
_importing: dict[int, tuple[str, Origin]] = {}


def known() -> dict[str, Package]:
    """Every vendor by name. The first call imports the packages of the tree, and loads plugins, which bring more."""
    manager = get_default_manager()
    if not manager.started:
        manager.prepare(announce=False)
    return so_far()


def so_far() -> dict[str, Package]:
    """The vendors of the tree, and those that plugins and code have registered up to now."""
    if not _tree.done:
        _tree.run()
    # One that registered itself and then failed to import, as a plugin may, is not there any more.
    return {name: p for name, p in _known.items() if not p.module or p.module in sys.modules}


def _read_tree() -> None:
    for name in in_tree():
        _try(f"{ROOT}.{name}")


_tree = Once(_read_tree, "importing vendors' packages")


def generation() -> int:
    """A number that changes with the vendors: the key of what is kept about them."""
    return _generation


def broken() -> dict[str, str]:
    """The packages that are left out, and why."""
    known()
    return dict(_broken)


def in_tree() -> list[str]:
    """The folders of the tree; a vendor is added by adding one."""
    root = _find(ROOT)
    places = list(root.submodule_search_locations or ()) if root else []
    return sorted(m.name for m in pkgutil.iter_modules(places) if m.ispkg and m.name.startswith("_"))


def get(name: str) -> Package | None:
    return known().get(name.casefold())


def register_vendor(info: VendorInfo | VendorInfoBase) -> None:
    """Make a vendor known; its ops are those of the package that calls this. A second one of its name replaces it."""
    if isinstance(info, VendorInfo):
        info = info.in_full()
    if not isinstance(info, VendorInfoBase):
        raise BadVendor(f"register_vendor takes a VendorInfo or a VendorInfoBase; got {info!r}")
    importing = _importing.get(threading.get_ident())
    if importing is not None:
        module, origin = importing
    else:
        caller = sys._getframe(1).f_globals
        module = caller["__name__"] if caller.get("__path__") else _home_of(info)
        origin = Origin(caller["__name__"], file=caller.get("__file__"))
        so_far()  # those of the tree first: this one comes after, and may stand for one of them
    _add(info, module, origin)


def take(plugin: Any, origin: Origin) -> bool:
    """Take up what an entry point names, where that is a vendor's package (or its `vendor_info`)."""
    if isinstance(plugin, VendorInfoBase):
        module = _home_of(plugin)
    elif isinstance(plugin, ModuleType):
        module = plugin.__name__
    else:
        return False
    info = getattr(sys.modules.get(module), "vendor_info", None) if module else plugin
    if info is None:
        return any(p.module == module for p in so_far().values())  # it has called register_vendor
    so_far()
    _add(_checked(info, module), module, origin)
    return True


def _home_of(info: VendorInfoBase) -> str:
    """The package whose `vendor_info` this is; "" where there is none."""
    loaded = tuple(sys.modules.items())
    return next((n for n, m in loaded if hasattr(m, "__path__") and vars(m).get("vendor_info") is info), "")


def forget(name: str) -> None:
    """Undo a registration."""
    if name.casefold() in _known:
        _put({n: p for n, p in _known.items() if n != name.casefold()})


def on_change(listener: Callable[[], None]) -> None:
    _changed.append(listener)


def _put(packages: dict[str, Package]) -> None:
    """Put these vendors in the place of those, and tell who listens."""
    global _known, _generation
    with lock.held:
        before, added = _known, packages
        on_failure(lambda: _put(_merged(before, added, _known)))
        _known = packages
        _generation += 1
    for listener in _changed:
        listener()


def _merged(before: dict[str, Package], added: dict[str, Package], now: dict[str, Package]) -> dict[str, Package]:
    """What there is now, with one change taken back: others may have changed the rest since."""
    names = {n for n in {*before, *added} if before.get(n) is not added.get(n)}
    return {**{n: p for n, p in now.items() if n not in names}, **{n: p for n, p in before.items() if n in names}}


def _add(info: VendorInfoBase, module: str, origin: Origin) -> None:
    loaded = sys.modules.get(module)
    arch_map = getattr(loaded, "ARCH_MAP", {})
    if not isinstance(arch_map, Mapping):
        raise BadVendor(f"{module}: ARCH_MAP is {{arch: folder}}, such as {{'9': 'hopper'}}; got {arch_map!r}")
    made = Package(info, module, origin, arch_map, getattr(loaded, "arch_of", None))
    _put({**_known, info.vendor_name.casefold(): made})


def _try(module: str) -> None:
    try:
        all_or_nothing(lambda loading: _import(module, Origin("opmux")))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's code
        leave_out(module, error)


def _import(module: str, origin: Origin) -> None:
    me = threading.get_ident()
    _importing[me] = module, origin
    try:
        with foreign_names():
            loaded = importlib.import_module(module)
        info = getattr(loaded, "vendor_info", None)
        if info is not None:
            _add(_checked(info, module), module, origin)
        elif not any(p.module == module for p in _known.values()):
            raise BadVendor("it has no vendor_info = VendorInfoBase(...), and does not call register_vendor")
    finally:
        _importing.pop(me, None)


def _checked(info: Any, module: str) -> VendorInfoBase:
    if not isinstance(info, VendorInfoBase):
        raise BadVendor(f"{module}: vendor_info must be a VendorInfoBase; got {info!r}")
    return info


def leave_out(module: str, error: BaseException, part: str = "") -> None:
    """Say once that a package, or a part of one, cannot be used, and where the mistake is."""
    words = f"{place_of(module, error)}: {type(error).__name__}: {error}"
    name = f"{module}.{part}" if part else module
    if _broken.get(name) != words:
        _broken[name] = words
        logger.warning("%s is left out: %s", name, words)


def place_of(module: str, error: BaseException) -> str:
    """The file and line of a package where an error comes from."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    found = _find(module)
    home = str(Path(found.origin).parent) if found and found.origin else None
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if home and f.filename.startswith(home)]
    if inside:
        return f"{inside[-1].filename}:{inside[-1].lineno}"
    return str(found.origin) if found and found.origin else module


def _find(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError, OpmuxError):
        return None
