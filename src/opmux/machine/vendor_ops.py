"""Reads a vendor's `ops/`: impls of our ops, functions for ATen's overloads, unused and preferred ops, extra names.

`__all__` names ops. Each name is looked up in our ops, then in tex's, then in ATen's; the first op that has all
parameters of the function is used. `get_specific_ops()` gives rows for ATen (`("add.Tensor", add, Autograd.disable)`),
`get_unused_ops()` names ops that torch should run, and `get_preferred_ops()` names the ops for which the vendor's
libraries come before our kernels, with the reason. An invalid entry is skipped and logged once with its file and line.

If an autograd.Function has one of Liger's names (`LigerGELUMulFunction`) and its arguments fit, it implements the
forward and backward of the op of this name. liger_kernel.ops also exports the Function, as an extra name.

Attributes of an exported function become fields of its `OpImpl`: see TAGS. `kind` and `impl_id` distinguish several
kernels of a vendor for one op. `op` is the name of the op if it is not the function's name, so that several exports can
implement one op.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from ..core.errors import BadImpl, nearest, suggestion
from ..core.loading import all_or_nothing
from ..core.log import logger
from ..core.machine import Preferred
from ..core.registry import BackendImplKind, Fit, OpImpl, Origin, check_fit
from ..core.spec import NAME_LOOKUP, Spec, specs
from ..imports import foreign_names
from ..tuning.provider_speed import LibrariesFirst
from ..tuning.tile_files import folders
from . import liger_names, vendors
from .devices import Chip
from .vendors import Autograd, Package

PRIORITY = {"vendor": 100, "arch": 200}  # our kernels for any chip have priority 0

HOOKS = ("get_specific_ops", "get_unused_ops", "get_preferred_ops")

# An attribute of an exported function -> the field of OpImpl. (OpImpl itself reads `_is_available`.)
TAGS = {
    "dtypes": "supported_dtypes",
    "when": "when",
    "min_arch": "min_arch",
    "priority": "priority",
    "kind": "kind",
    "impl_id": "impl_id",
    "declines_tracers": "declines_tracers",
}


@dataclass(frozen=True)
class AtenRow:
    """A vendor's function for an overload of ATen."""

    overload: str  # "add.Tensor"; "relu" for the default overload
    fn: Callable[..., Any]
    autograd: Autograd
    impl_id: str
    priority: int

    @property
    def call(self) -> Callable[..., Any]:
        """The function to call; for an autograd.Function, its `apply`."""
        fn: Any = self.fn
        return fn.apply if _is_autograd_function(fn) else fn


@dataclass
class VendorOps:
    """Everything in the folders for one chip; a more specific folder overrides a less specific one."""

    impls: list[OpImpl] = field(default_factory=list)
    rows: dict[str, AtenRow] = field(default_factory=dict)  # overload -> row
    unused: dict[str, str] = field(default_factory=dict)  # op or overload ("cumsum", "add.Tensor") -> the reason
    preferred: dict[str, Preferred] = field(default_factory=dict)  # op's key -> why the vendor's libraries come first
    extras: dict[str, Any] = field(default_factory=dict)


def read(package: Package, arch: str | None) -> VendorOps:
    """Read a vendor's folders for a chip of this arch."""
    ops = VendorOps()
    for folder in folders(Chip(package.name, arch)):
        module = load(folder)
        if module is not None:
            _OpsReader(package, folder, module, ops).read()
    return ops


@functools.cache
def load(folder: str) -> ModuleType | None:
    """The module `ops` of a folder. None if it is missing or cannot be imported; a failed import is logged once."""
    name = f"{folder}.ops"
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return all_or_nothing(lambda loading: _import(name))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's code may raise anything
        vendors.skip_package(name, error)
        return None


def _import(name: str) -> ModuleType:
    with foreign_names():
        return importlib.import_module(name)


vendors.on_change(load.cache_clear)


class _OpsReader:
    """Reads one `ops` module into `into`. Entries that are already there, from more specific folders, are kept."""

    def __init__(self, package: Package, folder: str, module: ModuleType, into: VendorOps):
        self.package, self.module, self.into = package, module, into
        variant = folder.removeprefix(package.module).strip(".")
        self.id = ".".join(filter(None, ("default.flagos", package.name, variant)))
        self.library_id = ".".join(filter(None, ("vendor", package.name, variant)))  # for functions of kind VENDOR
        self.priority = PRIORITY["arch" if variant else "vendor"]
        self.rows: dict[tuple[str, bool], AtenRow] = {}  # key: overload, and whether the row names it explicitly

    def read(self) -> None:
        rows = self._call("get_specific_ops")
        # A row for one overload takes precedence over a row for all overloads, in whichever order they are listed.
        for row in sorted(rows, key=lambda row: not _is_row(row) or "." not in row[0]):
            named = isinstance(row, tuple) and row and isinstance(row[0], str)
            what = f"the row of '{row[0]}'" if named else f"the row {row!r}"
            self._guard(lambda row=row: self._row(row), what, "get_specific_ops")
        for name in (*self._call("get_unused_ops"), *self._customized_unused_ops()):
            self._guard(lambda name=name: self._unused(name), f"the unused op {name!r}", "get_unused_ops")
        for name, why in self._call("get_preferred_ops", dict).items():
            what = f"the preferred op {name!r}"
            self._guard(lambda name=name, why=why: self._preferred(name, why), what, "get_preferred_ops")
        taken = {fn for _, fn in ((r.overload, r.fn) for r in self.into.rows.values())}
        for name in self._names(bool(rows)):
            value = getattr(self.module, name, None)
            if value is None:
                public = [n for n in vars(self.module) if not n.startswith("_") and n not in HOOKS]
                self._warn(f"__all__ has '{name}', which the module does not define{suggestion(name, public)}")
            elif not (_hashable(value) and value in taken):  # a row takes precedence over __all__
                self._guard(lambda name=name, value=value: self._export(name, value), f"'{name}'", name)

    def _customized_unused_ops(self) -> Iterable[str]:
        """`CUSTOMIZED_UNUSED_OPS` of the folder's `__init__.py`: recent versions of FlagGems list unused ops there."""
        return getattr(sys.modules.get(self.module.__name__.removesuffix(".ops")), "CUSTOMIZED_UNUSED_OPS", ())

    def _names(self, has_rows: bool) -> Iterable[str]:
        listed = getattr(self.module, "__all__", None)
        if isinstance(listed, str):
            self._warn(f"__all__ is the string {listed!r}, and is read as [{listed!r}]: write a list")
            return [listed]
        if listed is not None:
            return list(listed)
        if has_rows or hasattr(self.module, "get_specific_ops"):
            return ()
        public = (n for n in vars(self.module) if not n.startswith("_") and n not in HOOKS)
        return [n for n in public if _is_own(getattr(self.module, n), self.module)]

    def _call(self, name: str, read: Callable[..., Any] = tuple) -> Any:
        method = getattr(self.module, name, None)
        if method is None:
            return read()
        try:
            with foreign_names():
                result = method()
            if isinstance(result, str) or _is_row(result):
                shown = repr(result) if isinstance(result, str) else f"the row of '{result[0]}'"
                self._warn(
                    f"{name}() returns {shown}, and is read as a tuple with one entry: add a trailing comma", name
                )
                result = (result,)
            return read(result)
        except MemoryError:
            raise
        except Exception as error:  # a vendor's code may raise anything
            vendors.skip_package(self.module.__name__, error, name)
            return read()

    def _guard(self, take: Callable[[], None], what: str, at: str) -> None:
        try:
            take()
        except (BadImpl, ValueError, TypeError) as error:
            self._warn(f"{what} is left out: {error}", at)

    def _warn(self, message: str, at: str = "") -> None:
        """Log a warning that starts with the file and line of the module's attribute `at`."""
        logger.warning("%s: %s", _where(self.module, getattr(self.module, at, None)), message)

    def _row(self, row: Any) -> None:
        if not _is_row(row):
            raise BadImpl('expected ("add.Tensor", function, Autograd.disable)')
        name, fn, autograd = (*row, Autograd.disable)[:3]
        if getattr(autograd, "name", None) not in Autograd.__members__:
            raise BadImpl(f"the third entry is Autograd.enable or Autograd.disable; got {autograd!r}")
        refusals = {overload: misfit(fn, overload) for overload in overloads_of(name)}
        if all(refusals.values()):
            overload, why = next(iter(refusals.items()))
            raise BadImpl(f"{_where(self.module, fn)} cannot be called as aten::{overload}: {why}")
        for overload, why in refusals.items():
            if why:  # the vendor's function for all overloads cannot take the arguments of this overload
                logger.debug("%s: aten::%s is not served: %s", self.id, overload, why)
                continue
            aten_row = AtenRow(overload, fn, Autograd[autograd.name], self.id, self.priority)
            first = self.rows.setdefault((overload, "." in name), aten_row)
            if first.fn is not fn:
                used, other = _where(self.module, first.fn), _where(self.module, fn)
                self._warn(f"two rows for aten::{overload}: {used} is used, {other} is not", "get_specific_ops")
            self.into.rows.setdefault(overload, aten_row)
        spec = specs.lookup(name.partition(".")[0], NAME_LOOKUP["row"])
        if spec is not None:
            impl = self._impl(spec.key, fn)
            try:
                check_fit(spec, impl)
            except BadImpl as error:  # the function fits the overload but not our op: use it only for the overload
                logger.debug("%s: opmux.ops.%s does not use the row %s: %s", impl.impl_id, spec.name, name, error)
            else:
                self._add(impl)

    def _unused(self, name: Any) -> None:
        reason = f"{self.package.name} declares it unused ({_where(self.module)})"
        spec = specs.lookup(name, NAME_LOOKUP["export"])
        if spec is None:
            overloads_of(name)  # raises if ATen has no such op either
        self.into.unused.setdefault(name, reason)

    def _preferred(self, name: str, why: Any) -> None:
        spec = specs.lookup(name, NAME_LOOKUP["export"])
        if spec is None:
            raise BadImpl("opmux has no such op")
        if not (isinstance(why, str) or callable(why)):
            raise BadImpl(f"expected the reason, or a function that returns it or None; got {why!r}")
        self.into.preferred.setdefault(spec.key, LibrariesFirst(spec.key, why))

    def _export(self, name: str, value: Any) -> None:
        if name in liger_names.NAMES:
            self._liger(name, value)
            return
        op = getattr(value, "op", name) if callable(value) else name
        specs_of_name = [] if not callable(value) else [specs.lookup(op, (space,)) for space in NAME_LOOKUP["export"]]
        candidates = [spec for spec in specs_of_name if spec is not None and op in (spec.name, spec.key)]
        if not candidates:
            close = _misspelt(name) if callable(value) else None
            if close is not None:
                self._warn(
                    f"'{name}' is no op, and becomes a new function opmux.ops.{name}; did you mean '{close}'?", name
                )
            self.into.extras.setdefault(name, value)
            return
        fitting = [spec for spec in candidates if Fit.of(spec, self._impl(spec.key, value)).refusal is None]
        spec = next((s for s in fitting if _has_all_parameters(s, value)), (fitting or candidates)[0])
        impl = self._impl(spec.key, value)
        check_fit(spec, impl)
        self._add(impl)

    def _liger(self, name: str, value: Any) -> None:
        """Export a name of `liger_kernel.ops`. If it is an autograd.Function, it may also become an impl of an op."""
        self.into.extras.setdefault(name, value)
        op = liger_names.FUNCTION_OPS.get(name)
        if op is None or not _is_autograd_function(value):
            return
        spec = specs.lookup(op, ("opmux",))
        assert spec is not None, op
        impl = self._impl(spec.key, value)
        refusal = Fit.of(spec, impl).refusal
        if refusal is None:
            self._add(impl)
        else:
            self._warn(f"'{name}' is used only in liger_kernel.ops, not as {op}: {refusal}", name)

    def _impl(self, key: str, fn: Any) -> OpImpl:
        """The function as an OpImpl, with its attributes as fields."""
        is_library = getattr(fn, "kind", None) in (BackendImplKind.VENDOR, BackendImplKind.VENDOR.value)
        impl_id = self.library_id if is_library else self.id
        usual: dict[str, Any] = {"impl_id": impl_id, "kind": BackendImplKind.DEFAULT, "priority": self.priority}
        tagged = {field: getattr(fn, tag) for tag, field in TAGS.items() if hasattr(fn, tag)}
        devices, fields = frozenset({self.package.device}), usual | tagged
        return OpImpl(op_name=key, vendor=self.package.name, fn=fn, devices=devices, **fields)

    def _add(self, impl: OpImpl) -> None:
        if not any((i.op_name, i.impl_id) == (impl.op_name, impl.impl_id) for i in self.into.impls):
            self.into.impls.append(impl)


def _is_autograd_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def _is_row(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) in (2, 3) and isinstance(value[0], str) and callable(value[1])


def _misspelt(name: str) -> str | None:
    """The op or Liger name of which `name` seems to be a misspelling; None for the name of a new function."""
    ours = (k.removeprefix("opmux::") for k in specs.by_key if k.startswith("opmux::"))
    close = nearest(name, (*ours, *liger_names.NAMES))
    if close is None or len(name) < 5 or any(c.isdigit() for c in name):
        return None
    longer, shorter = (name, close) if len(name) >= len(close) else (close, name)
    if len(longer) == len(shorter):
        return close if sum(a != b for a, b in zip(longer, shorter)) <= 2 and sorted(name) == sorted(close) else None
    one_off = any(longer[:i] + longer[i + 1 :] == shorter for i in range(len(longer)))
    return close if one_off else None


def overloads_of(name: str) -> list[str]:
    """The overloads that a row names: `add.Tensor` names one, `add` all of them. Raises ValueError if ATen has none."""
    packet, dot, overload = name.removeprefix("aten::").partition(".")
    packet_op = getattr(torch.ops.aten, packet, None)
    if packet_op is None:
        raise ValueError(f"ATen has no op '{packet}'{suggestion(packet, aten_names())}")
    named = lambda n: f"aten::{packet}.{n}" if n != "default" else f"aten::{packet}"
    # Leave out TorchScript's overloads, because they take no tensors.
    have = [n.replace("default", "") for n in packet_op.overloads() if torch._C._dispatch_has_kernel(named(n))]
    if dot and overload != "default" and overload not in have:
        raise ValueError(
            f"aten::{packet} has no overload '{overload}'. It has: {', '.join(n or 'default' for n in have)}"
        )
    chosen = [overload.replace("default", "")] if dot else have
    return [f"{packet}.{n}" if n else packet for n in chosen]


def misfit(fn: Callable[..., Any], overload: str) -> str:
    """Why a function cannot be called with an overload's arguments, neither by name nor by position; "" if it can."""
    packet, _, name = overload.partition(".")
    arguments = getattr(getattr(torch.ops.aten, packet), name or "default")._schema.arguments
    is_class = _is_autograd_function(fn)
    try:
        signature = inspect.signature(fn.forward if is_class else fn)
    except (TypeError, ValueError):  # a builtin without a signature: assume that it fits
        return ""
    ctx = [None] if is_class else []
    plain, named = [a for a in arguments if not a.kwarg_only], {a.name: a for a in arguments if a.kwarg_only}
    try:
        signature.bind(*ctx, *plain, **named)
    except TypeError as error:
        try:
            signature.bind(*ctx, *arguments)
        except TypeError:
            return str(error)
    return ""


@functools.cache
def aten_names() -> list[str]:
    """The names of ATen's ops."""
    names = (s.name for s in torch._C._jit_get_all_schemas())
    return sorted({n.removeprefix("aten::") for n in names if n.startswith("aten::")})


def _has_all_parameters(spec: Spec, fn: Any) -> bool:
    """Whether an op has every parameter of a function: `gelu(x, *, approximate)` fits ATen's gelu, not ours."""
    is_class = _is_autograd_function(fn)
    try:
        params = list(inspect.signature(fn.forward if is_class else fn).parameters.values())[is_class:]
    except (TypeError, ValueError):  # a builtin without a signature: assume yes
        return True
    by_name = {p.name for p in params if p.kind is p.KEYWORD_ONLY}
    by_place = [p for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return by_name <= set(spec.names) and len(by_place) + len(by_name) <= len(spec.names)


def origin_of(package: Package, impl: OpImpl) -> Origin:
    file = getattr(inspect.unwrap(impl.fn), "__code__", None)
    path = file.co_filename if file is not None else None
    own = package.origin
    return Origin(own.plugin if own.plugin != "opmux" else "opmux", own.distribution, own.version, path)


def _is_own(value: Any, module: ModuleType) -> bool:
    """Whether a public name is defined in the package (and not only imported there)."""
    home = getattr(value, "__module__", None) or ""
    return callable(value) and home.startswith(module.__name__.rpartition(".")[0])


def _hashable(value: Any) -> bool:
    return getattr(value, "__hash__", None) is not None


def _where(module: ModuleType, fn: Any = None) -> str:
    """File and line of a function, or the file of its module."""
    code = getattr(inspect.unwrap(fn), "__code__", None) if callable(fn) else None
    if code is None and isinstance(fn, type):
        code = getattr(getattr(fn, "forward", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else str(module.__file__)


def unused_by_key(ops: VendorOps) -> Mapping[str, str]:
    """Key of our spec, or of an overload of ATen -> the reason, for the vendor's unused ops."""
    reasons = {}
    for name, reason in ops.unused.items():
        plain = name.removeprefix("aten::")
        keys = [f"{space}::{plain}" for space in NAME_LOOKUP["export"]]
        if plain.partition(".")[0] in aten_names():
            keys += [f"aten::{n if '.' in n else f'{n}.default'}" for n in overloads_of(plain)]
        reasons |= dict.fromkeys(keys, reason)
    return reasons
