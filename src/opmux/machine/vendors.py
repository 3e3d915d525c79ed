"""How a vendor is described, and the table of known vendors.

Vendors come from the folders `opmux.backends._*`, from packages with entry points, and from code that registers them.
Packages are imported on first use. A broken package is skipped, with one warning that names the file and the line.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import torch

from ..core.default import get_default_manager
from ..core.discovery import plugins_are_named
from ..core.errors import OpmuxError, suggestion
from ..core.loading import Once, all_or_nothing, on_failure
from ..core.lock import lock
from ..core.log import logger
from ..core.registry import Available, BackendImplKind, Origin, When
from ..imports import foreign_names

F = TypeVar("F", bound=Callable[..., Any])

# ---- the description of a vendor ------------------------------------------------------------------------------------


class BadVendor(OpmuxError, ValueError):
    """Raised if a vendor's package cannot be used. The message names the file and the necessary change."""


class Autograd(Enum):
    """Whether the function of a `get_specific_ops` row is differentiable.

    `disable`: it computes only the result, and ATen's gradient is used. `enable`: it has its own gradient, because it
    is an autograd.Function or calls ops that autograd records.
    """

    disable = "disable"
    enable = "enable"


def implements(
    op: str,
    *,
    impl_id: str | None = None,
    kind: BackendImplKind | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    min_arch: str | None = None,
    when: When | None = None,
    available: Available | None = None,
    priority: int | None = None,
    declines_tracers: bool | None = None,
) -> Callable[[F], F]:
    """Say that a vendor's exported function implements an op, and in which cases.

    The arguments are fields of `OpImpl`. They are stored as attributes of the function, which may also be set directly.
    """
    fields: dict[str, Any] = {
        "op": op,
        "impl_id": impl_id,
        "kind": kind,
        "dtypes": None if dtypes is None else frozenset(dtypes),
        "min_arch": min_arch,
        "when": when,
        "_is_available": available,
        "priority": priority,
        "declines_tracers": declines_tracers,
    }

    def mark(fn: F) -> F:
        for name, value in fields.items():
            if value is not None:
                setattr(fn, name, value)
        return fn

    return mark


@dataclass(frozen=True)
class Target:
    """The sizes of a chip. If a field is None, the size is read from the device, or is unknown."""

    cores: int | None = None  # multiprocessors, compute units or vector cores
    shared_memory: int | None = None  # bytes available to one program
    warp_size: int | None = None
    registers: int | None = None  # 32-bit registers per core

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and (type(value) is not int or value < 1):
                raise BadVendor(f"Target({name}={value!r}): expected a number above 0, or None if unknown")


NOT_VERIFIED = "nothing was run on this hardware"


@functools.cache
def dispatch_keys() -> tuple[str, ...]:
    """torch's dispatch keys that have their own autograd key; these are the keys of devices."""
    names = torch._C.DispatchKey.__members__
    return tuple(sorted(n for n in names if f"Autograd{n}" in names and n != "Other"))


@dataclass(frozen=True)
class VendorInfoBase:
    """A vendor, its device type, and how to detect its device.

    `device_query_cmd` is a command that succeeds only on a machine with the vendor's chip. It is run without a shell
    and with a time limit, and only if torch does not identify the vendor. `dispatch_key` is torch's key for the
    device's kernels: by default the device's name in capitals if torch has such a key, else PrivateUse1.
    """

    vendor_name: str
    device_name: str
    device_query_cmd: str = ""
    dispatch_key: str | None = None
    torch_package: str = ""  # the package that adds torch.<device>: imported before the device is probed
    driver_files: tuple[str, ...] = ()  # paths that exist if the vendor's driver is installed: faster than the query
    triton_extra_name: str | None = None  # the name in tl.extra.<name>.libdevice, if it differs from device_name
    fp64_enabled: bool = True
    bf16_enabled: bool = True
    int64_enabled: bool = True
    targets: Mapping[str, Target] = field(default_factory=dict, hash=False)  # by arch; "" is any chip of the vendor
    # What was run on the hardware: a text, or {vendor_name: text}, which is ignored if another vendor copies the file.
    verified: str | Mapping[str, str] = field(default=NOT_VERIFIED, hash=False)

    def __post_init__(self) -> None:
        where = f"VendorInfoBase(vendor_name={self.vendor_name!r})"
        for name in ("vendor_name", "device_name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.replace("_", "a").isalnum():
                raise BadVendor(f"{where}: {name} = {value!r}. Allowed: a name of letters, digits and _")
        if not isinstance(self.device_query_cmd, str):
            raise BadVendor(f"{where}: device_query_cmd = {self.device_query_cmd!r}. Allowed: a command line, or ''")
        try:
            shlex.split(self.device_query_cmd)
        except ValueError as error:
            raise BadVendor(f"{where}: device_query_cmd = {self.device_query_cmd!r}: {error}") from None
        if self.dispatch_key is not None and self.dispatch_key not in dispatch_keys():
            hint = suggestion(self.dispatch_key, dispatch_keys()) if isinstance(self.dispatch_key, str) else ""
            raise BadVendor(
                f"{where}: dispatch_key = {self.dispatch_key!r}. Allowed: {', '.join(dispatch_keys())}{hint}"
            )
        object.__setattr__(self, "targets", MappingProxyType(dict(self.targets)))

    @property
    def vendor(self) -> str:
        """The same as `vendor_name`; `VendorInfo` calls it `vendor`."""
        return self.vendor_name

    @property
    def device(self) -> str:
        """The same as `device_name`; `VendorInfo` calls it `device`."""
        return self.device_name

    @property
    def statement(self) -> str:
        """What was run on this vendor's hardware, in words."""
        verified = self.verified
        return verified if isinstance(verified, str) else verified.get(self.vendor_name, NOT_VERIFIED)

    @property
    def key(self) -> str:
        """torch's dispatch key for this device."""
        if self.dispatch_key is not None:
            return self.dispatch_key
        return {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}.get(self.device_name, "PrivateUse1")

    def target(self, arch: str | None) -> Target:
        """The known sizes of a chip of this arch."""
        return self.targets.get(arch or "", self.targets.get("", Target()))


@dataclass(frozen=True)
class VendorInfo:
    """The short form: a vendor and its device type. Its ops are in `ops` of the package that registers the vendor."""

    vendor: str
    device: str

    def in_full(self) -> VendorInfoBase:
        return VendorInfoBase(self.vendor, self.device)


# ---- the known vendors ----------------------------------------------------------------------------------------------

ROOT = "opmux.backends"


@dataclass(frozen=True)
class Package:
    """A vendor and its package."""

    info: VendorInfoBase
    module: str  # the package's import name; "" if code outside of a package registered the vendor
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
        spec = _find(self.module) if self.module else None
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0]) if places else None


_known: dict[str, Package] = {}  # replaced, never changed in place
_broken: dict[str, str] = {}  # module -> why it is skipped
_generation = 0  # incremented by every change
_generation_of_tree = 0  # the value of `_generation` once the built-in vendors were loaded
_changed: list[Callable[[], None]] = []  # called when a vendor is added or removed
# Thread -> the package that it imports now. A call of `register_vendor` in that thread belongs to this package.
_importing: dict[int, tuple[str, Origin]] = {}


def known() -> dict[str, Package]:
    """Every vendor by name. The first call imports the built-in packages, and loads plugins, which may add vendors."""
    manager = get_default_manager()
    if not manager.started and plugins_are_named():
        manager.prepare(announce=False)
    return known_so_far()


def known_so_far() -> dict[str, Package]:
    """The built-in vendors, and those that plugins and code have registered so far."""
    if not _tree.done:
        _tree.run()
    # Leave out vendors of packages that are not imported: a package may register a vendor, and then fail to import.
    return {name: p for name, p in _known.items() if not p.module or p.module in sys.modules}


def _read_tree() -> None:
    global _generation_of_tree
    for name in in_tree():
        _import_or_skip(f"{ROOT}.{name}")
    _generation_of_tree = _generation


_tree = Once(_read_tree, "importing vendors' packages")


def generation() -> int:
    """A number for cache keys, which changes whenever the vendors change."""
    return _generation


def changed_in_code() -> bool:
    """Whether code has registered or removed a vendor since the built-in vendors were loaded."""
    known()
    return _generation != _generation_of_tree


def broken() -> dict[str, str]:
    """Package that is skipped -> the reason."""
    known()
    return dict(_broken)


def in_tree() -> list[str]:
    """The vendor folders in `opmux.backends`. Adding a folder adds a vendor."""
    root = _find(ROOT)
    places = list(root.submodule_search_locations or ()) if root else []
    return sorted(m.name for m in pkgutil.iter_modules(places) if m.ispkg and m.name.startswith("_"))


def get(name: str) -> Package | None:
    return known().get(name.casefold())


def register_vendor(info: VendorInfo | VendorInfoBase) -> None:
    """Register a vendor, whose ops are those of the calling package. A vendor of the same name is replaced."""
    if isinstance(info, VendorInfo):
        info = info.in_full()
    if not isinstance(info, VendorInfoBase):
        raise BadVendor(f"register_vendor takes a VendorInfo or a VendorInfoBase; got {info!r}")
    importing = _importing.get(threading.get_ident())
    if importing is not None:
        module, origin = importing
    else:
        caller = sys._getframe(1).f_globals
        module = caller["__name__"] if caller.get("__path__") else _package_of(info)
        origin = Origin(caller["__name__"], file=caller.get("__file__"))
        known_so_far()  # load the built-in vendors first, because the new vendor may replace one of them
    _add(info, module, origin)


def register_plugin(plugin: Any, origin: Origin) -> bool:
    """Register the object of an entry point if it is a vendor's package or its `vendor_info`."""
    if isinstance(plugin, VendorInfoBase):
        module = _package_of(plugin)
    elif isinstance(plugin, ModuleType):
        module = plugin.__name__
    else:
        return False
    info = getattr(sys.modules.get(module), "vendor_info", None) if module else plugin
    if info is None:
        return any(p.module == module for p in known_so_far().values())  # the module has called register_vendor
    known_so_far()
    _add(_checked(info, module), module, origin)
    return True


def _package_of(info: VendorInfoBase) -> str:
    """The package that has this object as its `vendor_info`; "" if there is none."""
    loaded = tuple(sys.modules.items())
    return next((n for n, m in loaded if hasattr(m, "__path__") and vars(m).get("vendor_info") is info), "")


def forget(name: str) -> None:
    """Undo a registration."""
    if name.casefold() in _known:
        _set_known({n: p for n, p in _known.items() if n != name.casefold()})


def on_change(listener: Callable[[], None]) -> None:
    _changed.append(listener)


def _set_known(packages: dict[str, Package]) -> None:
    """Replace the known vendors and notify listeners."""
    global _known, _generation
    with lock.held:
        before, added = _known, packages
        on_failure(lambda: _set_known(_merged(before, added, _known)))
        _known = packages
        _generation += 1
    for listener in _changed:
        listener()


def _merged(before: dict[str, Package], added: dict[str, Package], now: dict[str, Package]) -> dict[str, Package]:
    """The current vendors without the change from `before` to `added`. Later changes are kept."""
    names = {n for n in {*before, *added} if before.get(n) is not added.get(n)}
    return {**{n: p for n, p in now.items() if n not in names}, **{n: p for n, p in before.items() if n in names}}


def _add(info: VendorInfoBase, module: str, origin: Origin) -> None:
    loaded = sys.modules.get(module)
    arch_map = getattr(loaded, "ARCH_MAP", {})
    if not isinstance(arch_map, Mapping):
        raise BadVendor(f"{module}: ARCH_MAP is {{arch: folder}}, such as {{'9': 'hopper'}}; got {arch_map!r}")
    package = Package(info, module, origin, arch_map, getattr(loaded, "arch_of", None))
    _set_known({**_known, info.vendor_name.casefold(): package})


def _import_or_skip(module: str) -> None:
    try:
        all_or_nothing(lambda loading: _import(module, Origin("opmux")))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's code may raise anything
        skip_package(module, error)


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


def skip_package(module: str, error: BaseException, part: str = "") -> None:
    """Log once that a package or a part of it is skipped, with the file and line of the error."""
    problem = f"{place_of(module, error)}: {type(error).__name__}: {error}"
    name = f"{module}.{part}" if part else module
    if _broken.get(name) != problem:
        _broken[name] = problem
        logger.warning("%s is left out: %s", name, problem)


def place_of(module: str, error: BaseException) -> str:
    """The file and line in a package where an error was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    spec = _find(module)
    home = str(Path(spec.origin).parent) if spec and spec.origin else None
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if home and f.filename.startswith(home)]
    if inside:
        return f"{inside[-1].filename}:{inside[-1].lineno}"
    return str(spec.origin) if spec and spec.origin else module


def _find(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError, OpmuxError):
        return None
