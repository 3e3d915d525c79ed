"""`opmux list VENDOR`: everything that a vendor's package implements, for any of its chips."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..core.manager import OpManager
from ..core.registry import OpImpl
from ..core.spec import specs
from ..core.tensors import dtype_name
from ..machine import vendor_ops
from ..machine.vendors import Package
from . import screen

VendorImpl = dict[str, Any]


def implementations(package: Package, manager: OpManager) -> list[VendorImpl]:
    """The vendor's implementations of our ops and of ATen's overloads, including those for a single arch."""
    found: dict[tuple[str, str], VendorImpl] = {}
    for arch in (None, *map(str, package.arch_map)):
        ops = vendor_ops.read(package, arch)
        for impl in ops.impls:
            found.setdefault((impl.op_name, impl.impl_id), _of_impl(impl))
        for name, row in ops.rows.items():
            data = {"op": f"aten::{name}", "impl_id": row.impl_id, "limits": _limits(row.fn), "where": _where(row.fn)}
            found.setdefault((f"aten::{name}", row.impl_id), data)
    for key in manager.registry:
        for impl in manager.registry.impls(key):
            if impl.of_vendor(package.name):
                found.setdefault((key, impl.impl_id), _of_impl(impl))
    return sorted(found.values(), key=lambda data: (data["op"].startswith("aten::"), data["op"], data["impl_id"]))


def _of_impl(impl: OpImpl) -> VendorImpl:
    limits = _limits(impl.fn, impl.supported_dtypes, impl.min_arch, impl.when)
    return {"op": specs.short_name(impl.op_name), "impl_id": impl.impl_id, "limits": limits, "where": _where(impl.fn)}


def _limits(fn: Any, dtypes: Any = None, min_arch: str | None = None, when: Any = None) -> str:
    """The calls that an implementation takes, in short form."""
    dtypes, min_arch, when = (
        given if given is not None else getattr(fn, name, None)
        for given, name in ((dtypes, "dtypes"), (min_arch, "min_arch"), (when, "when"))
    )
    listed = [", ".join(sorted(map(dtype_name, dtypes)))] if dtypes else []
    return "; ".join([*listed, *([f"{min_arch} or newer"] if min_arch else []), *(["fn.when"] if when else [])])


def _where(fn: Any) -> str:
    """File and line of a function; only the file if the function is generated."""
    code = getattr(inspect.unwrap(getattr(fn, "forward", fn)), "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return f"{(getattr(fn, '__module__', None) or '?').rpartition('.')[2]}.py"
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def show(package: Package, found: list[VendorImpl], here: bool, console: Console) -> None:
    """Print the vendor, its implementations, and how to see which of them runs."""
    info = package.info
    console.print(
        Text(f"{package.name}: device type {package.device}, {'here' if here else 'not on this machine'}", "bold")
    )
    facts = [("package", package.folder or package.origin)]
    console.print(screen.pairs([*facts, *([("verified", info.statement)] if info.statement else [])]))
    if not found:
        console.print(f"{package.name} has no implementations of its own: its chips run opmux's kernels for any chip")
        return
    table = screen.table(
        ("op", {"no_wrap": True}), ("implementation", {"no_wrap": True}), "limits", ("where", {"style": "dim"})
    )
    for data in found:
        table.add_row(*(Text(data[name]) for name in ("op", "impl_id", "limits", "where")))
    console.print(table)
    how = f"opmux explain {found[0]['op']}" + ("" if here else f" --assume {package.name}")
    console.print(f"{screen.count(len(found), 'implementation')}; `{how}` says which one runs, and why")
