"""`opmux list`: shows the families of ops and the known vendors.

For named ops it shows their implementations in dispatch's order; for a vendor's name, the vendor's implementations
(vendor_listing.py).
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from rich.console import Console
from rich.text import Text

from ..core import extension
from ..core import policy as policies
from ..core.default import get_default_manager
from ..core.errors import UnknownName
from ..core.explain import Explanation, Verdict
from ..core.lock import cached_property
from ..core.manager import OpManager
from ..core.spec import Spec, specs
from ..core.tokens import shown
from ..machine import devices, vendors
from ..machine.here import HERE
from ..machine.vendors import Package
from . import screen, vendor_listing

NO_SPEC = "(no spec)"


@dataclass(frozen=True)
class ListingRow:
    """One op: its declaration, if it has one, and its impls in dispatch's order."""

    name: str
    key: str
    family: str
    spec: Spec | None
    manager: OpManager

    @cached_property
    def explanation(self) -> Explanation:
        return self.manager.explain(self.key)  # imports the family's kernels

    @property
    def space(self) -> str:
        return self.key.partition("::")[0] if "::" in self.key else ""

    @property
    def call(self) -> str:
        return "" if self.spec is None else short_signature(self.spec)

    @property
    def grad(self) -> str:
        return (self.spec.grad if self.spec is not None else None) or ""


def rows(manager: OpManager) -> list[ListingRow]:
    """Every op that has an impl, sorted by family, then in the order of declaration. Ops without a spec come last."""
    manager.prepare()  # loads the plugins
    keys = [*(s.key for s in specs), *sorted(k for k in manager.registry if k not in specs.by_key)]
    listed = []
    for key in dict.fromkeys(keys):
        spec = specs.by_key.get(key)
        family = NO_SPEC if spec is None else spec.family
        listed.append(ListingRow(specs.short_name(key), key, family, spec, manager))
    return sorted(listed, key=lambda r: (r.spec is None, r.family))


def select(rows: list[ListingRow], named: list[str], family: str | None, glob: str | None) -> list[ListingRow]:
    """The rows that match all given selectors: `named` (families, ops, or globs of either), `family` and `glob`."""
    if named:
        keys = {row.key for name in named for row in _named(rows, name)}
        rows = [r for r in rows if r.key in keys]
    if family is not None:
        families = [r.family for r in rows]
        if family.casefold() not in families:
            raise UnknownName("family", family, families)
        rows = [r for r in rows if r.family == family.casefold()]
    if glob is not None:
        names = [r.name for r in rows]
        rows = [r for r in rows if _matches(glob, r.name, r.key)]
        if not rows:
            raise UnknownName("op", glob, names)
    return rows


def _named(rows: list[ListingRow], name: str) -> list[ListingRow]:
    folded = name.strip().casefold().removeprefix("family:")
    for hits in (
        [r for r in rows if r.family == folded],
        [r for r in rows if _matches(folded, r.name, r.key, r.family)],
    ):
        if hits:
            return hits
    known = [*{r.family for r in rows}, *(r.name for r in rows), *vendors.known()]
    raise UnknownName("op, family or vendor", name, known)


def _matches(glob: str, *names: str) -> bool:
    return any(fnmatchcase(n.casefold(), glob.casefold()) for n in names)


def run(named: list[str], family: str | None, glob: str | None, as_json: bool) -> None:
    every = rows(get_default_manager())
    if family is None and glob is None and len(named) == 1 and named[0].casefold() not in {r.family for r in every}:
        package = vendors.get(named[0].casefold())
        if package is not None:
            _show_vendor(package, as_json)
            return
    selected = select(every, named, family, glob)
    policy = str(policies.get_policy())
    if as_json:
        device = selected[0].explanation.device if selected else "cpu"
        data = {"policy": policy, "device": device, "ops": [as_data(r) for r in selected], "vendors": vendor_rows()}
        screen.print_json(data)
        return
    with screen.paged() as console:
        if not named and family is None and glob is None:
            _show_families(selected, console)
            return
        for name in dict.fromkeys(r.family for r in selected):
            console.print(_table(name, [r for r in selected if r.family == name], console.width))
        device = selected[0].explanation.device
        impls = sum(len(r.explanation.verdicts) for r in selected)
        ops = screen.count(len(selected), "op")
        console.print(f"{ops}, {screen.count(impls, 'implementation')}; policy {policy}, on {device}")
        console.print("*runs; the others follow from left to right; (no: why) cannot run here", style="dim")


def _show_vendor(package: Package, as_json: bool) -> None:
    found = vendor_listing.implementations(package, get_default_manager())
    if as_json:
        (about,) = (row for row in vendor_rows() if row["vendor"] == package.name)
        screen.print_json(about | {"implementations": found})
        return
    with screen.paged() as console:
        vendor_listing.show(package, found, _is_here(package), console)


def _show_families(rows: list[ListingRow], console: Console) -> None:
    """Print one line per family. Small families share one line, and so do the families of a namespace such as tex."""
    by_family: dict[str, list[ListingRow]] = {}
    for row in rows:
        by_family.setdefault(row.family, []).append(row)
    short: dict[str, list[str]] = {}
    shown = []
    for name, ops in by_family.items():
        if ops[0].space in extension.spaces():
            short.setdefault(ops[0].space, []).append(f"{name} {len(ops)}")
        elif len(ops) < 20 and name != NO_SPEC:
            short.setdefault("also", []).append(f"{name} {len(ops)}")
        else:
            shown.append((name, ops))
    table = screen.pairs([(f"{n:<13}{len(ops):>4}", _examples(ops, min(console.width, 100) - 24)) for n, ops in shown])
    console.print(table)
    for what, families in sorted(short.items()):
        console.print(Text.assemble((f"  {what}: ", "dim"), ", ".join(families)))
    local = [v["vendor"] for v in vendor_rows() if v["here"]]
    others = [v["vendor"] for v in vendor_rows() if not v["here"]]
    console.print(Text.assemble(("  vendors: ", "dim"), f"{', '.join(local)} (here), {', '.join(others)}"))
    counts = f"{screen.count(len(rows), 'op')}, {screen.count(len(by_family), 'family')}"
    console.print(f"{counts}; opmux list norm, rms_norm, '*_bwd' or nvidia shows implementations")


def _examples(ops: list[ListingRow], width: int) -> str:
    """The first names, as many as fit."""
    names = [r.name.rpartition("::")[2] for r in ops]
    shown = [n for i, n in enumerate(names) if len(", ".join(names[: i + 1])) <= width - 5]
    return ", ".join(shown) + (", ..." if len(shown) < len(names) else "")


def _table(family: str, rows: list[ListingRow], width: int) -> Any:
    """The table of a family. Below 120 columns it omits namespaces and backward ops, so that ids are not cut."""
    wide = width >= 120
    name, arguments = ("op", {"no_wrap": True}), ("arguments -> results", {"style": "dim"})
    more = [("space", {"style": "dim"})] if wide else []
    longest = max((len(t) for r in rows for v in r.explanation.verdicts for t in impl_text(v).plain.split()), default=0)
    impls = ("implementations, in order", {"min_width": min(longest, 30)})
    columns = [name, *more, arguments, *(["backward"] if wide else []), impls]
    table = screen.table(*columns, title=f"{family}: {screen.count(len(rows), 'op')}")
    for row in rows:
        cells = [Text(row.name), row.space, Text(row.call), Text(row.grad)]
        texts = Text("  ").join(impl_text(v) for v in row.explanation.verdicts)
        table.add_row(*(cells if wide else cells[::2]), texts)
    return table


def vendor_rows() -> list[dict[str, Any]]:
    """Every known vendor, whether or not its chip is present."""
    return [
        {
            "vendor": name,
            "device": package.device,
            "here": _is_here(package),
            "plugin": package.origin.plugin,
            "distribution": package.origin.distribution,
            "version": package.origin.version,
            "folder": None if package.folder is None else str(package.folder),
        }
        for name, package in sorted(vendors.known().items())
    ]


def _is_here(package: Package) -> bool:
    """Whether the vendor's device is present. Checks only available devices, as detection may run a command."""
    return package.device in HERE.devices() and devices.vendor_of(package.device) == package


def impl_text(verdict: Verdict) -> Text:
    """An impl in short form: its id, its kind and vendor if the id does not contain these, and where it comes from."""
    impl, origin = verdict.impl, verdict.origin
    style = "dim" if verdict.status == "refused" else screen.KIND_STYLES[impl.kind.value]
    text = Text("*" if verdict.status == "chosen" else "", "bold green")
    text.append(impl.impl_id, f"bold {style}" if verdict.status == "chosen" else style)
    usual = {
        "flagos": "default.flagos",
        "reference": "reference.torch",
        "cpp": "cpp",
        "vendor": f"vendor.{impl.vendor}",
    }
    about = []
    if not impl.impl_id.casefold().startswith(usual[impl.kind.value].casefold()):
        about.append(f"{shown(impl.kind)} {impl.vendor}" if impl.vendor else shown(impl.kind))
    if origin.plugin != "opmux":
        about.append(f"from {origin}")
    if verdict.status == "refused":
        about.append(f"no: {verdict.stage}")
    return text.append(f" ({', '.join(about)})", "dim") if about else text


def short_signature(spec: Spec) -> str:
    """`x, weight [eps, offset] -> y rstd`: required arguments, optional arguments, results."""
    parameters = spec.signature.parameters.values()
    must = ", ".join(p.name for p in parameters if p.default is inspect.Parameter.empty)
    may = ", ".join(p.name for p in parameters if p.default is not inspect.Parameter.empty)
    return f"{must}{f' [{may}]' if may else ''} -> {' '.join(spec.out)}"


# ---- as data --------------------------------------------------------------------------------------------------------


def as_data(row: ListingRow) -> dict[str, Any]:
    spec = row.spec
    return {
        "op": row.name,
        "key": row.key,
        "family": None if spec is None else row.family,
        "signature": None if spec is None else f"{spec.name}{inspect.signature(spec.reference)}",
        "results": None if spec is None else list(spec.out),
        "backward": row.grad or None,
        "doc": None if spec is None else spec.summary,
        "chosen": None if row.explanation.chosen is None else row.explanation.chosen.impl_id,
        "impls": [verdict_data(v) for v in row.explanation.verdicts],
    }


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    impl = verdict.impl
    return {
        "impl_id": impl.impl_id,
        "kind": impl.kind.value,
        "vendor": impl.vendor,
        "priority": impl.priority,
        "status": verdict.status,
        "stage": verdict.stage or None,
        "reason": verdict.reason or None,
        "origin": asdict(verdict.origin),
    }
