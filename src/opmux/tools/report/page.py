"""The HTML page of a report. It needs no script to be read: tables are folded with <details>, bars are SVG or CSS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ...core.tokens import shown
from ..doctor import DoctorReport, shown_value
from ..runner.html import BarPart, document, stack, table, text
from ..screen import count
from ..speed.command import mean
from .facts import BOTH, KINDS, NOTHING, OURS, REFERENCE, VENDORS, AtenUse, Family, ReportFacts, SameChoice
from .model import BATCH, LENGTH, ModelFacts, StepKernels
from .speed import ClassSpeed, MeasuredFile, OverloadSpeed, SpeedFacts

TITLE = "opmux report"  # the title of every report begins with it
COLOURS = {BOTH: "#4aa3b5", OURS: "#2f6fde", VENDORS: "#a35bb8", REFERENCE: "#8a94a6", NOTHING: "#c2555f"}
LABELS = {BOTH: "ours and a vendor's", OURS: "ours", VENDORS: "a vendor's only", REFERENCE: "the reference only"}
ENABLED, LEFT = "#2f6fde", "#8a94a6"
ROW = 30  # height of a bar with its label, in pixels


def page(facts: ReportFacts, date: str) -> str:
    sections = [
        ("advice", "Advice", _advice(facts)),
        ("machine", "Machine", _machine(facts.doctor, facts)),
        *([("model", f"Model: {facts.model.name}", _model(facts.model, facts))] if facts.model else []),
        ("coverage", "Implementations of our ops", _coverage(facts)),
        ("runs", "What runs, and why", _runs(facts)),
        ("aten", "torch's own ops, with opmux.enable()", _aten(facts.aten)),
        ("speed", "Measured speed", _speed(facts)),
        ("quarantine", "Quarantine", _quarantine(facts.doctor)),
    ]
    links = "".join(f'<a href="#{name}">{text(title)}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{text(title)}</h2>{html}</section>' for name, title, html in sections)
    return document(
        title=f"{TITLE}, {facts.where}",
        where=f"opmux report · {date}",
        headline=facts.where[:1].upper() + facts.where[1:],
        about=_about(facts),
        body=f"<nav>{links}</nav><main>{body}</main>",
        facts={},
        notes=[],
        style=STYLE,
        script="",
    )


def _about(facts: ReportFacts) -> str:
    ours = sum(f.best[BOTH] + f.best[OURS] for f in facts.families)
    said = [f"{ours} of {count(sum(f.ops for f in facts.families), 'op')} of opmux have a kernel of ours here"]
    if facts.aten is not None:
        said.append(f"opmux.enable() runs our kernels for {count(facts.aten.enabled, 'overload')} of ATen")
    if facts.speed is not None:
        timed = len(facts.speed.aten)
        said.append(
            f"{count(timed, 'overload')} were timed on this chip" if timed else "nothing was timed on this chip"
        )
    return "; ".join(said) + "."


def _missing() -> str:
    return "<p>This could not be found out: see what is broken, under Advice.</p>"


def _pairs(rows: Iterable[tuple[str, Any]]) -> str:
    return f"<dl>{''.join(f'<dt>{text(k)}</dt><dd>{text(v)}</dd>' for k, v in rows)}</dl>"


def _cells(*cells: Any, kind: str = "") -> str:
    row = "".join(f"<td>{text(c)}</td>" for c in cells)
    return f'<tr class="{kind}">{row}</tr>' if kind else f"<tr>{row}</tr>"


def _folded(summary: str, about: str, html: str) -> str:
    return f"<details><summary><b>{text(summary)}</b> <small>{text(about)}</small></summary>{html}</details>"


# ---- advice and the machine -----------------------------------------------------------------------------------------


def _advice(facts: ReportFacts) -> str:
    rows = [f"<li>{text(a.why)}{f' <code>{text(a.command)}</code>' if a.command else ''}</li>" for a in facts.advice]
    return f"<ol>{''.join(rows)}</ol>" if rows else "<p>Nothing needs to be done.</p>"


def _machine(machine: DoctorReport, facts: ReportFacts) -> str:
    found = [_cells(d["device"], d["name"], d["arch"] or "states no arch") for d in machine.devices]
    vendors = sorted(machine.chips, key=lambda c: not c["active"])
    rows = [
        _cells(c["vendor"], c["device"], "found" if c["active"] else "not found", c["why"], c["verified"], kind=kind)
        for c in vendors
        for kind in ["" if c["active"] else "absent"]
    ]
    impls = [(v["vendor"] or "of no vendor", f"{v['impls']} of kind {shown(v['kind'])}") for v in machine.vendors]
    tuned = f"{machine.tuning.get('entries', 0)} entries for this chip in {machine.tuning.get('directory')}"
    parts = [
        ("Versions", _pairs(machine.versions.items())),
        ("Devices", table(("device", "name", "arch"), found)),
        ("Vendors", table(("vendor", "device", "chip", "why not", "what was run on its hardware"), rows)),
        ("C++", _pairs(machine.cpp.items())),
        ("Implementations", _pairs(impls)),
        ("Policy and tuning", _pairs([("policy", machine.policy or "none: see what is broken"), ("tiles", tuned)])),
        ("Plugins", _plugins(machine)),
        ("Settings", _settings(machine)),
    ]
    note = "<p>This is the machine that wrote the report, not the assumed one.</p>" if facts.assumed else ""
    return note + "".join(f"<h3>{title}</h3>{html}" for title, html in parts)


def _plugins(machine: DoctorReport) -> str:
    rows = [
        _cells(p["name"], p["source"], p["status"], p["reason"] or ", ".join(p["impls"]) or "no implementations")
        for p in machine.plugins
    ]
    return table(("plugin", "from", "status", "implementations, or why not"), rows) if rows else "<p>none</p>"


def _settings(machine: DoctorReport) -> str:
    heads = ("setting", "value", "source", "meaning")
    is_set = lambda s: not s["source"].startswith("default")
    rows = lambda settings: [
        _cells(
            s["name"], shown_value(s["value"]), s["source"], s["error"] or s["doc"], kind="bad" if s["error"] else ""
        )
        for s in settings
    ]
    changed = [s for s in machine.settings if is_set(s)]
    defaults = [s for s in machine.settings if not is_set(s)]
    return (
        (table(heads, rows(changed)) if changed else "<p>No setting is set.</p>")
        + "".join(f"<p>{text(stranger)}</p>" for stranger in machine.strangers)
        + _folded(count(len(defaults), "setting"), "that have their default", table(heads, rows(defaults)))
    )


def _quarantine(machine: DoctorReport) -> str:
    rows = [_cells(f["op"], f["impl_id"], f["reason"]) for f in machine.quarantine]
    if rows:
        return table(("op", "implementation", "why it failed"), rows)
    return "<p>None in this process. Failures are kept by the process in which they occur, and not stored.</p>"


# ---- our ops --------------------------------------------------------------------------------------------------------


def _coverage(facts: ReportFacts) -> str:
    if not facts.families:
        return _missing()
    everything = sum((f.best for f in facts.families), start=type(facts.families[0].best)())
    ops = sum(f.ops for f in facts.families)
    about = (
        "For each op, which kinds of implementation can run it here. Every op has a reference in plain PyTorch, which "
        "runs if nothing else can. Ours are Triton kernels, and on a CPU C++."
    )
    bars = "".join(_bar(f"{f.name}, {count(f.ops, 'op')}", f) for f in facts.families)
    whole = stack(f"all, {count(ops, 'op')}", _parts(everything))
    return f'<p>{about}</p>{whole}<div class="columns">{bars}</div>'


def _bar(name: str, family: Family) -> str:
    return stack(name, _parts(family.best))


def _parts(best: Any) -> list[BarPart]:
    return [BarPart(LABELS.get(kind, kind), best[kind], COLOURS[kind]) for kind in KINDS]


def _runs(facts: ReportFacts) -> str:
    if not facts.families:
        return _missing()
    about = (
        f"What opmux chooses on {text(facts.device)} without knowing the tensors, and why the others do not run. If "
        "the chosen one fails or refuses a call, the others are tried in this order. Ops with the same choice share a "
        "row. For given dtypes and shapes: <code>opmux explain OP</code>."
    )
    return f"<p>{about}</p>" + "".join(_family(f) for f in facts.families)


def _family(family: Family) -> str:
    chosen = [c.chosen or "nothing" for c in family.choices]
    rows = [_choice(c) for c in family.choices]
    about = f"{count(family.ops, 'op')}: {', '.join(dict.fromkeys(chosen))}"
    return _folded(family.name, about, table(("ops", "runs", "the others, in order"), rows))


def _choice(choice: SameChoice) -> str:
    others = "<br>".join(f"{text(impl)} <small>{text(why)}</small>" for impl, why in choice.others)
    return (
        f'<tr><td class="wrap">{text(", ".join(choice.ops))}</td><td><b>{text(choice.chosen or "nothing")}</b></td>'
        f'<td class="wrap">{others or "<small>there are no others</small>"}</td></tr>'
    )


# ---- ATen -----------------------------------------------------------------------------------------------------------


def _aten(use: AtenUse | None) -> str:
    if use is None:
        return _missing()
    about = (
        f"opmux has kernels for {count(use.computed, 'overload')} of ATen on {text(use.device)}. Auto mode, which is "
        "the default of <code>opmux.enable()</code>, enables those that were measured to be at least as fast as "
        'torch\'s; <code>mode="all"</code> enables all of them.'
    )
    unknown = (
        "<p>This torch is built without that device, so overloads for which torch has no kernel there are not known; "
        "auto mode enables these too.</p>"
    )
    parts = [
        BarPart("enabled by auto mode", use.enabled, ENABLED),
        BarPart("left to torch", use.computed - use.enabled, LEFT),
    ]
    groups = "".join(
        _folded(
            f"{count(len(g.names), 'overload')}: {'enabled' if g.enabled else 'torch runs'}", g.why, _names(g.names)
        )
        for g in use.groups
    )
    rest = [
        f'<tr><td class="n" data-v="{n}">{n}</td><td class="wrap">{text(why)}</td></tr>'
        for why, n in use.rest.most_common()
    ]
    more = _folded(
        f"{count(use.rest.total(), 'other overload')}: torch runs",
        "opmux does not compute them here",
        table(("overloads", "why"), rest) + "<p>For one of them: <code>opmux explain NAME</code>.</p>",
    )
    bar = stack(f"{use.computed} overloads", parts) if use.computed else ""
    return f"<p>{about}</p>{unknown if use.torch_is_unknown else ''}{bar}{groups}{more}"


def _names(names: dict[str, str]) -> str:
    if not any(names.values()):
        return f'<p class="names">{text(", ".join(names))}</p>'
    alike: dict[str, list[str]] = {}
    for name, details in names.items():
        alike.setdefault(details, []).append(name)
    listed = "".join(f"<li><b>{text(', '.join(same))}</b> {text(details)}</li>" for details, same in alike.items())
    return f'<ul class="names">{listed}</ul>'


# ---- speed ----------------------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """A bar of a chart: torch's or a library's time divided by ours; above 1, ours is faster."""

    label: str
    value: float
    more: str = ""


def _speed(facts: ReportFacts) -> str:
    speed = facts.speed
    if speed is None:
        return _missing()
    if not speed.aten and not speed.providers:
        where = "on a machine with this chip" if facts.assumed else "here"
        return (
            f"<p>Nothing was measured on {text(facts.chip)}. {where[:1].upper() + where[1:]}, "
            "<code>opmux tune --aten</code> measures torch's ops, and <code>opmux tune --providers</code> products and "
            "attention.</p>"
        )
    return _files(speed.files) + _aten_speed(speed) + _provider_speed(speed)


def _files(files: Sequence[MeasuredFile]) -> str:
    keys = ("chip", "driver", "torch", "triton", "opmux")
    rows = [_cells(f.path.name, *(f.made_for.get(k, "") for k in keys), f.path) for f in files]
    return "<p>The times were read from these files; later ones override earlier ones.</p>" + table(
        ("file", *keys, "path"), rows
    )


def _aten_speed(speed: SpeedFacts) -> str:
    if not speed.aten:
        return "<p>No op of ATen was measured on this chip: <code>opmux tune --aten</code>.</p>"
    by_family: dict[str, list[OverloadSpeed]] = {}
    for row in speed.aten:
        by_family.setdefault(row.family or "other", []).append(row)
    overall = [
        Bar(family, mean(r.ratio for r in rows), count(len(rows), "overload")) for family, rows in by_family.items()
    ]
    behind = sum(row.ratio < 1 for row in speed.aten)
    about = (
        "torch's time on the device divided by ours, at the largest size: the geometric mean over dtypes. Right of the "
        f"line ours is faster. {behind} of {count(len(speed.aten), 'overload')} are below 1. An op that reads "
        "and writes its first tensor once can at best take the time of a copy of this tensor. The tables have our time "
        "relative to such a copy on the same chip; an op that only reads or only writes can be near 0.5."
    )
    folded = "".join(_family_speed(family, rows) for family, rows in by_family.items())
    return f"<h3>torch's ops</h3><p>{about}</p>{_chart('torch / ours, by family', overall)}{folded}"


def _family_speed(family: str, rows: list[OverloadSpeed]) -> str:
    lines = [
        _speed_row(r.name, r.ratio, r.torchs, r.ours, "" if r.copies is None else f"{r.copies:.2f}", r.size)
        for r in rows
    ]
    heads = ("overload", "the line is 1", "torch / ours", "torch, µs", "ours, µs", "ours / a copy", "first tensor")
    about = f"{count(len(rows), 'overload')}, {mean(r.ratio for r in rows):.2f}"
    return _folded(family, about, table(heads, lines))


def _speed_row(name: str, ratio: float, other: float, ours: float, *more: str) -> str:
    """A row with a bar of `ratio`, which is cut at 2, and two times in microseconds."""
    bar = f'<svg class="{_kind(ratio)}"><rect width="{60 * min(ratio, 2):.0f}"/></svg>'
    cells = (text(name), bar, f"{ratio:.2f}", f"{other:.1f}", f"{ours:.1f}", *map(text, more))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _kind(ratio: float) -> str:
    return "ahead" if ratio >= 1 else "behind"


def _provider_speed(speed: SpeedFacts) -> str:
    if not speed.providers:
        return "<p>Products and attention were not measured on this chip: <code>opmux tune --providers</code>.</p>"
    by_op: dict[str, list[ClassSpeed]] = {}
    for row in speed.providers:
        by_op.setdefault(row.op, []).append(row)
    bars = [
        Bar(op, mean(r.ratio for r in rows), f"ours is faster in {sum(r.ratio > 1 for r in rows)} of {len(rows)}")
        for op, rows in by_op.items()
    ]
    about = (
        "The time of the fastest library of a vendor divided by ours: the geometric mean over measured kinds of "
        "calls. For each kind, the fastest implementation runs."
    )
    folded = "".join(_op_speed(op, rows) for op, rows in by_op.items())
    return f"<h3>Products and attention</h3><p>{about}</p>{_chart('library / ours', bars)}{folded}"


def _op_speed(op: str, rows: list[ClassSpeed]) -> str:
    lines = [_speed_row(r.label, r.ratio, r.other, r.ours, r.by) for r in rows]
    heads = ("calls", "the line is 1", "library / ours", "library, µs", "ours, µs", "library")
    return _folded(op, f"{len(rows)} kinds of calls", table(heads, lines))


def _chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars. Positions are percentages, so that the text keeps its size on a narrow screen."""
    top = max(1.25, *(min(b.value, 4.0) for b in bars)) * 1.02  # longer bars are cut
    line = f"{100 / top:.2f}%"
    parts = [
        f'<text y="{i * ROW + 13}">{text(b.label)}<tspan class="tick" dx="8">{text(b.more)}</tspan></text>'
        f'<text class="end" x="100%" y="{i * ROW + 13}">{b.value:.2f}</text>'
        f'<rect class="{_kind(b.value)}" y="{i * ROW + 18}" height="7" rx="2" '
        f'width="{100 * min(b.value, top) / top:.1f}%"/>'
        for i, b in enumerate(bars)
    ]
    mark = f'<line class="limit" x1="{line}" x2="{line}" y1="0" y2="100%"/>'
    size = f'width="100%" height="{len(bars) * ROW}"'
    caption = f"<figcaption><b>{text(title)}</b> <small>the line is 1</small></figcaption>"
    svg = f'<svg role="img" aria-label="{text(title)}" {size}>{"".join(parts)}{mark}</svg>'
    return f"<figure>{caption}{svg}</figure>"


# ---- the model ------------------------------------------------------------------------------------------------------


def _model(model: ModelFacts, facts: ReportFacts) -> str:
    parts = [f"<p>{text(model.about)}. It was built without weights.</p>"]
    if model.report is None:
        parts.append(f"<p>{text(model.why_not)}</p>")
    else:
        runs = {op: c.chosen or "nothing" for f in facts.families for c in f.choices for op in c.ops}
        rows = [
            _wrapped(r.module, r.count, r.name, ", ".join(f"{op}: {runs.get(op, '?')}" for op in r.ops))
            for r in model.report.replaced
        ]
        left = [_wrapped(r.module, r.count or "", r.reason) for r in model.report.left]
        parts.append("<h3>Replaced by <code>opmux.patch_model(model)</code></h3>")
        parts.append(table(("modules", "number", "part", "ops and what runs them"), rows))
        parts.append("<h3>Left as it is</h3>")
        parts.append(table(("modules", "number", "why"), left) if left else "<p>nothing</p>")
    return "".join(parts) + "<h3>Kernels of a step</h3>" + _kernels(model)


def _wrapped(*cells: Any) -> str:
    return f'<tr>{"".join(f"<td>{text(c)}</td>" for c in cells[:-1])}<td class="wrap">{text(cells[-1])}</td></tr>'


def _kernels(model: ModelFacts) -> str:
    kernels = model.kernels
    if not isinstance(kernels, StepKernels):
        return f"<p>They are not known: {text(kernels)}</p>"
    rows = [_cells(name, number, kernels.missing[name] or "") for name, number in sorted(kernels.variants.items())]
    shape = f"{BATCH} sequences of {LENGTH} tokens"
    stopped = f"<p>The step was not run to its end: {text(kernels.stopped)}</p>" if kernels.stopped else ""
    return (
        f"<p>Our Triton kernels that a step in training launches on {text(kernels.arch)}, with {shape}.</p>{stopped}"
        + table(("kernel", "variants", "not compiled yet"), rows)
    )


STYLE = """
nav{display:flex;flex-wrap:wrap;gap:6px 16px;margin:14px 0;font-size:14px}a{color:inherit}
section{border-top:1px solid var(--line);margin-top:26px}h3{font-size:15px;margin:1.4em 0 .3em}
p{max-width:80ch}.scroll{margin-top:8px}li{margin:5px 0}li code{white-space:nowrap;background:var(--card);
padding:2px 6px;border:1px solid var(--line);border-radius:5px}
details{margin:6px 0;padding:6px 12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
summary{cursor:pointer}details .scroll{background:var(--bg)}details figure{border:0;padding:8px 0}
td.wrap{white-space:normal;min-width:220px;max-width:70ch;vertical-align:top;overflow-wrap:anywhere}
td{vertical-align:top}.n{text-align:right}.names{font-size:13px;overflow-wrap:anywhere;max-width:none}
.absent td{color:var(--dim)}.bad td{color:var(--bad)}
.columns{display:grid;gap:0 28px;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr))}
figure svg{display:block;margin-top:6px;max-width:760px;overflow:visible}
td svg{width:120px;height:13px;background:linear-gradient(currentColor,currentColor) 60px 0/1px 100% no-repeat}
td rect{y:2px;height:9px}
svg text{font-size:12.5px;fill:var(--fg)}.end{text-anchor:end}svg .tick{fill:var(--dim)}
.ahead{fill:#2f6fde}.behind{fill:#d98a2b}.limit{stroke:var(--dim);stroke-dasharray:4 3}
@media(max-width:600px){dl{grid-template-columns:1fr}dt{margin-top:5px}ol,ul{padding-left:20px}}
"""
