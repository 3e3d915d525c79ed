"""The pages of our ops: `docs/ops.md`, the index, and `docs/ops/<family>.md`, one page for each family.

Everything is derived: signatures, formulas and results from the specs, implementations from the registry and from the
folders of all vendors, speeds from the stored measurements (measured.py).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from pathlib import Path
from typing import NamedTuple

import measured

from opmux.core.default import get_default_manager
from opmux.core.registry import BackendImplKind, OpImpl
from opmux.core.spec import Spec, specs
from opmux.machine import vendor_ops, vendors

FILE = {"index": "index_ops"}  # family -> file name; mkdocs takes index.md for the page of the folder
BACKENDS = Path(__file__).parents[1] / "src" / "opmux" / "backends"
SPEED = [
    "**Speed** is torch's or the library's time on the device, divided by ours: above 1, ours is faster. It is a",
    "geometric mean over the measured shapes and dtypes. The copy limit is the time to copy as many bytes as the",
    "op moves. `opmux.enable()` runs our kernel only where it is at least as fast. [Benchmarks](../benchmarks.md) and",
    "[Tuning](../tuning.md) say how times are measured.",
    "",
]


class Implementation(NamedTuple):
    impl: OpImpl
    arch: str  # the vendor's arch folder that has it; "" for all of the vendor's chips


def pages() -> dict[str, str]:
    """File name in docs/ -> text."""
    families = {family: _ops_of(family) for family in specs.families}
    families = {family: ops for family, ops in families.items() if ops}
    index = _index(families)
    return {"ops.md": index} | {_file(family): _family_page(family, ops) for family, ops in families.items()}


def _file(family: str) -> str:
    return f"ops/{FILE.get(family, family)}.md"


def _ops_of(family: str) -> list[Spec]:
    specs.load(family)
    return [s for s in specs.by_key.values() if s.family == family and s.primitive]


def _about(ops: list[Spec]) -> str:
    """The first paragraph of the docstring of the file that declares these ops."""
    doc = inspect.getdoc(importlib.import_module(ops[0].reference.__module__)) or ""
    return _cell(doc.partition("\n\n")[0])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _index(families: dict[str, list[Spec]]) -> str:
    lines = [
        "# Ops",
        "",
        "Each op is a function `opmux.ops.<name>`; `help(opmux.ops.rms_norm)` says what its arguments",
        "are. NVIDIA's functions are in [`opmux.tex`](tex.md), and computed by these.",
        "",
        "The page of a family has for each of its ops the signature, the formula, the implementations and the speed.",
        "`opmux explain OP` says which implementation runs on your machine, and why.",
        "",
        "Made by `make docs` from the specs; do not edit.",
        "",
        "| family | computes | ops |",
        "|---|---|---|",
    ]
    for family, ops in families.items():
        names = ", ".join(f"`{s.name}`" for s in ops)
        lines.append(f"| [{family}]({_file(family)}) | {_about(ops)} | {names} |")
    return "\n".join([*lines, ""])


def _family_page(family: str, ops: list[Spec]) -> str:
    lines = [f"# Ops: {family}", "", _about(ops), "See [all families](../ops.md).", ""]
    lines += ["Made by `make docs` from the specs and the stored measurements; do not edit.", ""]
    lines += _implementations_table(ops)
    rows = [_row(s) for s in ops]
    names = ("op", "meaning", "returns", "backward", "writes", "implementations", "speed")
    columns = [i for i in range(len(names)) if any(row[i] for row in rows)]
    if 5 in columns and len({row[5] for row in rows}) == 1:
        columns.remove(5)
        lines += ["Each op has all of these implementations.", ""]
    if 6 in columns:
        lines += SPEED
    lines += table([[row[i] for i in columns] for row in (names, *rows)])
    return "\n".join([*lines, ""])


def table(rows: list[list[str]]) -> list[str]:
    """A table in Markdown; the first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|{'|'.join('---' for _ in rows[0])}|", *body]


def _row(spec: Spec) -> tuple[str, ...]:
    call, meaning, returns, backward, writes = spec_row(spec)
    impls = [i.impl for i in _implementations().get(spec.key, ()) if i.impl.kind is not BackendImplKind.REFERENCE]
    names = dict.fromkeys(f"`{impl.impl_id}`" for impl in impls)
    return call, meaning, returns, backward, writes, ", ".join(names), _speeds().get(spec.key, "")


def spec_row(spec: Spec) -> tuple[str, str, str, str, str]:
    """Call, meaning, results, backward, written arguments."""
    params = []
    for p in spec.signature.parameters.values():
        params.append(p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default!r}")
    call = f"`{spec.name}({', '.join(params)})`"
    backward = f"`{spec.grad}`" if spec.grad else ""
    return call, _cell(spec.summary), ", ".join(spec.out), backward, ", ".join(spec.mutates)


_speeds = functools.cache(measured.speeds)


# ---- implementations ------------------------------------------------------------------------------------------------


@functools.cache
def _implementations() -> dict[str, list[Implementation]]:
    """Op key -> the implementations in this tree, for any chip; the reference comes last."""
    registry = get_default_manager().registry
    registry.list_operators()  # loads all ops and kernels
    found: dict[tuple[str, str], Implementation] = {}
    for impl, arch in [*_of_vendors(), *((i, "") for key in registry for i in registry.impls(key) if not i.outside)]:
        found.setdefault((registry.key(impl.op_name), impl.impl_id), Implementation(impl, arch))
    by_op: dict[str, list[Implementation]] = {}
    for (key, _), one in found.items():
        by_op.setdefault(key, []).append(one)
    return {key: sorted(impls, key=_order) for key, impls in by_op.items()}


def _order(one: Implementation) -> tuple:
    impl = one.impl
    return impl.kind is BackendImplKind.REFERENCE, impl.vendor is not None, impl.vendor or "", impl.impl_id, one.arch


def _of_vendors() -> list[tuple[OpImpl, str]]:
    """The implementations in the folders of all built-in vendors, each with its arch folder."""
    found: list[tuple[OpImpl, str]] = []
    for _, package in sorted(vendors.known().items()):
        if package.folder is None or package.folder.parent != BACKENDS:
            continue  # a plugin's
        general = vendor_ops.read(package, None).impls
        key = lambda impl: (impl.op_name, impl.impl_id, impl.min_arch)
        known = set(map(key, general))
        found += [(impl, "") for impl in general]
        for arch, folder in package.arch_map.items():
            found += [(i, folder) for i in vendor_ops.read(package, str(arch)).impls if key(i) not in known]
    return found


def _implementations_table(ops: list[Spec]) -> list[str]:
    by_id: dict[str, list[Implementation]] = {}
    for one in sorted((i for s in ops for i in _implementations().get(s.key, ())), key=_order):
        by_id.setdefault(one.impl.impl_id, []).append(one)
    rows = [f"| `{impl_id}` | {_kind(own[0].impl)} | {_runs_on(own)} |" for impl_id, own in by_id.items()]
    return ["| implementation | is | runs on |", "|---|---|---|", *rows, ""]


def _kind(impl: OpImpl) -> str:
    match impl.kind:
        case BackendImplKind.REFERENCE:
            return "plain PyTorch; every op has it, and the others are compared with it"
        case BackendImplKind.CPP:
            return "our C++ kernel"
        case BackendImplKind.VENDOR:
            name = f"the library `{impl.impl_id.rpartition('.')[2]}`"
            return name if impl.available is None else f"{name}, if it is available"
    return "our Triton kernel" if impl.vendor is None else f"our kernel for {impl.vendor}"


def _runs_on(own: list[Implementation]) -> str:
    """The chips of one implementation of several ops."""
    impl = own[0].impl
    if impl.kind is BackendImplKind.REFERENCE:
        return "any device"
    if impl.vendor is None:
        return "any accelerator with Triton"
    limits = dict.fromkeys(_limit(one) for one in own)
    only = " or ".join(filter(None, limits))
    chips = "CPU" if impl.vendor == "cpu" else impl.vendor
    return chips if not only else f"{chips}; some ops only {only}" if "" in limits else f"{chips}, {only}"


def _limit(one: Implementation) -> str:
    return one.arch or (f"from {one.impl.min_arch} on" if one.impl.min_arch else "")
