"""`opmux doctor`: how opmux sees this machine and its settings, and what is wrong with them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console, Group
from rich.text import Text

from .. import __version__
from ..core import discovery, knobs, machine
from ..core import policy as policies
from ..core.default import get_default_manager
from ..core.errors import BadKnob
from ..core.tokens import shown
from ..cpp import build, launching
from ..cpp import library as native_library
from ..machine import devices, vendors
from ..tuning import tiles as tuning
from . import cpp, screen


@dataclass
class DoctorReport:
    """The report as data. `broken` has one sentence for each problem that must be fixed."""

    versions: dict[str, str] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    settings: list[dict[str, Any]] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    policy: str | None = None
    vendors: list[dict[str, Any]] = field(default_factory=list)
    chips: list[dict[str, Any]] = field(default_factory=list)
    plugins: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    tuning: dict[str, Any] = field(default_factory=dict)
    cpp: dict[str, str] = field(default_factory=dict)
    startup: str = ""
    broken: list[str] = field(default_factory=list)

    def invalid(self) -> list[str]:
        """The environment variables with invalid values."""
        return [s["source"].removeprefix("env ") for s in self.settings if s["error"]]

    def guard(self, what: str, probe: Callable[[], Any], otherwise: Any) -> Any:
        """The result of `probe`. If `probe` raises: `otherwise`, and a message is added to `broken`."""
        try:
            return probe()
        except Exception as error:  # report it, and continue
            message = str(error) if isinstance(error, BadKnob) else f"{what}: {type(error).__name__}: {error}"
            if message not in self.broken:
                self.broken.append(message)
            return otherwise


def run(as_json: bool) -> int:
    report = examine()
    if as_json:
        screen.print_json(asdict(report))
    else:
        with screen.paged() as console:
            show(report, console)
    return 1 if report.broken else 0


def examine() -> DoctorReport:
    report = DoctorReport(versions=versions(), startup=startup())
    report.devices = report.guard("devices", device_rows, [])
    # Check the file once. Otherwise each setting that is not in the environment would report the file's error again.
    file_is_good = report.guard("settings file", lambda: knobs.files() is not None, False)
    report.settings = [setting(k, file_is_good) for k in knobs.all_knobs()]
    report.broken += [s["error"] for s in report.settings if s["error"]]
    report.strangers = report.guard("settings", knobs.unknown_settings, [])
    with without(report.invalid()):  # so that the rest can be checked
        report.guard("log", screen.show_log, None)
        report.policy = report.guard("policy", lambda: str(policies.get_policy()), None)
        report.vendors = report.guard("implementations", vendor_rows, [])
        report.chips = report.guard("vendors", chips, [])
        report.plugins = report.guard("plugins", lambda: [asdict(p) for p in discovery.plugins()], [])
        report.tuning = report.guard("tuning cache", tuned, {})
        report.cpp = report.guard("C++", cpp_rows, {})
    report.broken += [f"plugin '{p['name']}': {p['reason']}" for p in report.plugins if p["status"] == "broken"]
    left_out = report.guard("vendors", vendors.broken, {})
    report.broken += [f"{module} is left out: {why}" for module, why in left_out.items()]
    report.quarantine = [failure(f) for f in get_default_manager().failures()]
    return report


@contextlib.contextmanager
def without(names: list[str]) -> Iterator[None]:
    """Remove environment variables with invalid values while the block runs."""
    removed = {n: os.environ.pop(n) for n in names if n in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)
        if removed:
            policies.reset_global_policy()


# ---- C++ ------------------------------------------------------------------------------------------------------------


def cpp_rows() -> dict[str, str]:
    """The C++ compiler, the state of each library, and whether kernels are launched from C++."""
    abi = int(torch.compiled_with_cxx11_abi())
    try:
        compiler = f"{build.compiler().version} ({shlex.join(build.compiler().command)})"
    except build.CannotBuild as error:
        compiler = str(error)
    rows = {"compiler": compiler, "made for": f"torch {torch.__version__}, C++11 ABI {abi}"}
    rows |= {library.name: cpp.state_of(library) for library in cpp.libraries()}
    if "cuda" in devices.accelerators():
        on = launching.drives() and native_library.possible()
        rows["launches"] = "kernels are launched from C++" if on else "kernels are launched from Python: see the log"
    return rows


# ---- checks ---------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    made_for = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    chip = ", ".join(f"{name} {version}" for name, version in made_for.items() if version)
    return {
        "opmux": __version__,
        "python": platform.python_version(),
        "torch": f"{torch.__version__} ({chip or 'no CUDA, no ROCm'})",
        "triton": _installed("triton"),
        "platform": platform.platform(),
    }


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def startup() -> str:
    """What opmux's file in site-packages does at each start of Python."""
    module = sys.modules.get("opmux_startup")
    if module is None:
        return (
            "opmux_startup is not imported at the start of Python: `import transformer_engine` is not served without "
            "`import opmux.te`, nor are processes that a program under `opmux run --as` starts. pip install adds it"
        )
    return (
        f"{module.__file__}, imported at each start of Python by opmux_startup.pth, serves `import transformer_engine` "
        f"(OPMUX_TE_STARTUP=0: not) and, in processes that a program under `opmux run --as` starts, the same libraries"
    )


def device_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"device": "cpu", "arch": platform.machine(), "name": f"{os.cpu_count()} cores"}]
    for kind in machine.accelerators():
        module = torch.get_device_module(kind)
        name_of = getattr(module, "get_device_name", None)
        for index in range(torch.accelerator.device_count()):
            name = kind if name_of is None else name_of(index)
            rows.append({"device": f"{kind}:{index}", "arch": machine.arch_of(kind), "name": name})
    return rows


def setting(knob: knobs.Knob[Any], file_is_good: bool) -> dict[str, Any]:
    """A setting with its value. If the value is invalid, its text and the error."""
    row = {"name": knob.name, "aliases": list(knob.aliases), "doc": knob.doc, "error": None}
    try:
        current = knob.look()
        return {**row, "value": _plain(current.value), "source": current.source}
    except BadKnob as error:
        name = next((n for n in (knob.name, *knob.aliases) if os.environ.get(n, "").strip()), None)
        if name is not None:
            return {**row, "value": os.environ[name], "source": f"env {name}", "error": str(error)}
        if not file_is_good:  # the file's error is reported once
            return {**row, "value": _plain(knob.default), "source": "default (the file cannot be read)"}
        file = next(f for f in knobs.files() if knob.key in f.table)
        return {**row, "value": str(file.table[knob.key]), "source": f"file {file.path}", "error": str(error)}


def _plain(value: Any) -> Any:
    """A value converted for JSON."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def vendor_rows() -> list[dict[str, Any]]:
    """The number of impls for each pair of vendor and kind."""
    manager = get_default_manager()
    for name in manager.registry.list_operators():  # loads families and plugins
        manager.resolve_candidates(name)  # loads the kernels
    counts: dict[tuple[str | None, str], int] = {}
    for impl in manager.registry.all_impls():
        counts[impl.vendor, str(impl.kind)] = counts.get((impl.vendor, str(impl.kind)), 0) + 1
    rows = sorted(counts.items(), key=lambda r: (r[0][0] or "", r[0][1]))
    return [{"vendor": vendor, "kind": kind, "impls": count} for (vendor, kind), count in rows]


def chips() -> list[dict[str, Any]]:
    """The known vendors, and which of them have a device in this machine."""
    local = {d: devices.vendor_of(d) for d in (*machine.accelerators(), "cpu")}
    rows = []
    for package in vendors.known().values():
        info = package.info
        row = {"vendor": package.name, "device": package.device, "dispatch_key": info.key, "verified": info.statement}
        active = local.get(package.device)
        here = active is not None and active.name == package.name
        why = "" if here else why_absent(package, None if active is None else active.name)
        rows.append(row | {"active": here, "why": why, "from": str(package.origin)})
    return rows


def why_absent(package: vendors.Package, instead: str | None) -> str:
    """Why no chip of a vendor was found.

    `instead`: the vendor whose chip was found under the same device type; None if there is none.
    """
    if instead is not None:
        return f"this machine's {package.device} is of {instead}"
    if devices.is_available(package.device):
        return f"torch can use {package.device}, but the chip is not of {package.name}"
    extra = package.info.torch_package
    if extra and importlib.util.find_spec(extra) is None:
        return f"{extra}, which adds {package.device} to torch, is not installed"
    if package.device == "cuda" and not (torch.version.cuda or torch.version.hip):
        return "this torch is built without CUDA and ROCm"
    if not hasattr(torch, package.device):
        return f"this torch has no device {package.device}"
    return f"torch.{package.device}.is_available() is False"


def tuned() -> dict[str, Any]:
    """Where tuning results are stored, and how many there are for this chip."""
    chip, folder = devices.current_chip(), tuning.directory()
    entries = {} if chip is None else tuning.entries(chip)
    return {"directory": None if folder is None else str(folder), "entries": len(entries)}


def failure(entry: Any) -> dict[str, Any]:
    return {"op": entry.op, "impl_id": entry.impl_id, "reason": entry.reason, "text": str(entry)}


# ---- showing --------------------------------------------------------------------------------------------------------


def show(report: DoctorReport, console: Console) -> None:
    console.print(screen.pairs(report.versions.items(), title="versions"))
    console.print(screen.pairs(_device_rows(report), title="\ndevices"))
    console.print(screen.pairs(_chip_rows(report), title="\nvendors"))
    console.print(screen.pairs(_vendor_rows(report), title="\nimplementations"))
    console.print(screen.pairs(list(report.cpp.items()), title="\nC++"))
    console.print(_title("plugins", _plugin_table(report) if report.plugins else "  none"))
    console.print(_title("settings", None))
    console.print(_settings_table(report, console.width))
    for stranger in report.strangers:
        console.print(Text(f"  ! {stranger}", "yellow"))
    console.print(screen.pairs(_state_rows(report)))
    console.print()
    for message in report.broken:
        console.print(Text(f"broken: {message}", "bold red"))
    notes = f", {len(report.strangers)} unknown settings" if report.strangers else ""
    if not report.broken:
        console.print(Text("nothing is broken" + notes, "bold green"))


def _title(title: str, body: Any) -> Group:
    return Group(Text(f"\n{title}", "bold"), *([] if body is None else [body]))


def _device_rows(report: DoctorReport) -> list[tuple[str, str]]:
    rows = [(d["device"], f"{d['name']} ({d['arch'] or 'states no arch'})") for d in report.devices]
    return rows if len(rows) > 1 else [*rows, ("accelerators", "none: ops run on the CPU")]


def _state_rows(report: DoctorReport) -> list[tuple[str, Any]]:
    left_out = ", ".join(s["source"] for s in report.settings if s["error"])
    policy = f"{report.policy} (without {left_out})" if left_out and report.policy else report.policy
    quarantine = [("quarantine", Text(f["text"], "yellow")) for f in report.quarantine]
    return [
        ("policy", policy or Text("none: see below", "bold red")),
        *(quarantine or [("quarantine", "empty")]),
        ("start-up", report.startup),
        ("tuning", f"{report.tuning.get('entries', 0)} entries for this chip in {report.tuning.get('directory')}"),
    ]


def _chip_rows(report: DoctorReport) -> list[tuple[str, str]]:
    rows = [
        (c["device"], f"{c['vendor']}, on {c['dispatch_key']} ({c['verified']})") for c in report.chips if c["active"]
    ]
    others = [c["vendor"] for c in report.chips if not c["active"]]
    return [*rows, ("known, not present", ", ".join(others) or "none")]


def _vendor_rows(report: DoctorReport) -> list[tuple[str, str]]:
    rows = [(v["vendor"] or "of no vendor", f"{v['impls']} of kind {shown(v['kind'])}") for v in report.vendors]
    return rows or [("none", "see below")]


def _plugin_table(report: DoctorReport) -> Any:
    table = screen.table("plugin", "from", "distribution", "status", "impls, or why not")
    styles = {"loaded": "green", "broken": "bold red", "blocked": "yellow"}
    for p in report.plugins:
        dist = f"{p['distribution']} {p['version']}" if p["distribution"] else ""
        about = p["reason"] or ", ".join(p["impls"]) or "none"
        cells = (p["name"], p["source"], dist, Text(p["status"], styles.get(p["status"], "")), Text(about))
        table.add_row(*cells)
    return table


def _settings_table(report: DoctorReport, width: int) -> Any:
    value = ("value", {"max_width": width // 5})  # a long path must leave space for the setting's meaning
    source = ("source", {"max_width": width // 5, "style": "dim"})
    table = screen.table(("setting", {"no_wrap": True}), value, source, ("meaning", {"style": "dim"}))
    for s in report.settings:
        unset = s["source"].startswith("default")
        style = "bold red" if s["error"] else "dim" if unset else "bold"
        value = Text(shown_value(s["value"]), style)
        meaning = Text(s["error"], "red") if s["error"] else Text(s["doc"])
        table.add_row(Text(s["name"], "" if unset else style), value, Text(s["source"]), meaning)
    return table


def shown_value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{op}={'|'.join(map(shown, order))}" for op, order in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return {None: "-", True: "1", False: "0"}.get(value, str(value)) if not isinstance(value, str) else shown(value)
