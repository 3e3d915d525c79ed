"""`opmux list`: every op, and its implementations in the order of choice; then the vendors that are known."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from rich.text import Text

from ..core import policy as policies
from ..core.default import get_default_manager
from ..core.errors import UnknownName
from ..core.explain import Explanation, Verdict
from ..core.manager import OpManager
from ..core.spec import Spec, specs
from ..runtime import devices, vendors
from ..runtime.machine import HERE
from ..runtime.vendors import Package
from . import screen

NO_SPEC = "(no spec)"


@dataclass(frozen=True)
class Row:
    """One op: its declaration, if it has one, and its impls in dispatch's order."""

    name: str
    key: str
    family: str
    spec: Spec | None
    found: Explanation

    @property
    def space(self) -> str:
        return self.key.partition("::")[0] if "::" in self.key else ""

    @property
    def call(self) -> str:
        return "" if self.spec is None else short_signature(self.spec)

    @property
    def grad(self) -> str:
        return (self.spec.grad if self.spec is not None else None) or ""


def rows(manager: OpManager) -> list[Row]:
    """Every op that has an impl, by family, in the order of declaration; ops without a spec come last."""
    manager.registry.list_operators()  # loads the families and the plugins
    keys = [*(s.key for s in specs), *sorted(k for k in manager.registry if k not in specs.by_key)]
    made = []
    for key in dict.fromkeys(keys):
        spec = specs.by_key.get(key)
        family = spec.family if spec is not None else NO_SPEC
        made.append(Row(specs.short_name(key), key, family, spec, manager.explain(key)))
    return sorted(made, key=lambda r: (r.spec is None, r.family))


def select(found: list[Row], family: str | None, glob: str | None) -> list[Row]:
    """The rows of a family, and of ops whose short name or key matches."""
    if family is not None:
        families = [r.family for r in found]
        if family.casefold() not in families:
            raise UnknownName("family", family, families)
        found = [r for r in found if r.family == family.casefold()]
    if glob is not None:
        pattern = glob.casefold()
        names = [r.name for r in found]
        found = [r for r in found if any(fnmatchcase(n.casefold(), pattern) for n in (r.name, r.key))]
        if not found:
            raise UnknownName("op", glob, names)
    return found


def run(family: str | None, glob: str | None, as_json: bool) -> None:
    found = select(rows(get_default_manager()), family, glob)
    policy = str(policies.get_policy())
    device = found[0].found.device if found else "cpu"
    if as_json:
        data = {"policy": policy, "device": device, "ops": [as_data(r) for r in found], "vendors": vendor_rows()}
        screen.print_json(data)
        return
    console = screen.out()
    for name in dict.fromkeys(r.family for r in found):
        console.print(_table(name, [r for r in found if r.family == name]))
    if family is None and glob is None:
        console.print(_vendor_table())
    impls = sum(len(r.found.verdicts) for r in found)
    console.print(f"{count(len(found), 'op')}, {count(impls, 'implementation')}; policy {policy}, on {device}")
    console.print("*runs; the others follow from left to right; (no: why) cannot run here", style="dim")


def _table(family: str, found: list[Row]) -> Any:
    columns = ("op", ("space", {"style": "dim"}), ("arguments -> results", {"style": "dim"}), "backward")
    table = screen.table(*columns, "implementations, in order", title=f"{family}: {count(len(found), 'op')}")
    for row in found:
        impls = Text("  ").join(impl_text(v) for v in row.found.verdicts)
        table.add_row(Text(row.name), row.space, Text(row.call), Text(row.grad), impls)
    return table


def _vendor_table() -> Any:
    known = vendor_rows()
    table = screen.table("vendor", "device", "here", ("from", {"style": "dim"}), title=f"vendors: {len(known)}")
    for v in known:
        dist = f"{v['distribution']} {v['version']}" if v["distribution"] else v["plugin"]
        table.add_row(
            Text(v["vendor"]), v["device"], Text("yes", "green") if v["here"] else "", Text(f"{dist} ({v['folder']})")
        )
    return table


def vendor_rows() -> list[dict[str, Any]]:
    """Every vendor that is known, whether its chip is here or not."""
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
    """Only for available devices: finding out a device's vendor may run a query command."""
    return package.device in HERE.devices() and devices.vendor_of(package.device) == package


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def impl_text(verdict: Verdict) -> Text:
    """An impl in short form: its id, its kind and vendor if the id does not contain them, and its origin."""
    impl, origin = verdict.impl, verdict.origin
    style = "dim" if verdict.status == "refused" else screen.KIND_STYLES[impl.kind.value]
    text = Text("*" if verdict.status == "chosen" else "", "bold green")
    text.append(impl.impl_id, f"bold {style}" if verdict.status == "chosen" else style)
    told = {"flagos": "default.flagos", "reference": "reference.torch", "cpp": "cpp", "vendor": f"vendor.{impl.vendor}"}
    about = []
    if not impl.impl_id.casefold().startswith(told[impl.kind.value].casefold()):
        about.append(f"{impl.kind} {impl.vendor}" if impl.vendor else str(impl.kind))
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


def as_data(row: Row) -> dict[str, Any]:
    spec = row.spec
    return {
        "op": row.name,
        "key": row.key,
        "family": None if spec is None else row.family,
        "signature": None if spec is None else f"{spec.name}{inspect.signature(spec.reference)}",
        "results": None if spec is None else list(spec.out),
        "backward": row.grad or None,
        "doc": None if spec is None else spec.summary,
        "chosen": None if row.found.chosen is None else row.found.chosen.impl_id,
        "impls": [verdict_data(v) for v in row.found.verdicts],
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
