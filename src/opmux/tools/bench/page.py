"""The HTML page of a run: charts, a sortable table, and facts about the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..runner.html import document, table, text
from .cases import sizes
from .engine import BenchRow
from .providers import OURS
from .record import LEVEL, BenchRecord

# One colour per provider, in order; ours is always the first.
COLOURS = ("#2f6fde", "#8a94a6", "#d98a2b", "#3f9d6b", "#a35bb8", "#c2555f", "#4aa3b5", "#8b7d4e")
GROUP, BAR, HEIGHT, LEFT, TOP = 30, 15, 170, 38, 14
Groups = tuple[tuple[str, tuple[BenchRow, ...]], ...]
WIDE = 700  # a wider chart gets a line of the page to itself


@dataclass(frozen=True)
class Chart:
    """Groups of bars: one group per case, one bar per provider. `top` is the largest value on the axis."""

    title: str
    about: str
    groups: Groups
    host: bool

    @property
    def providers(self) -> set[str]:
        return {r.provider for _, rows in self.groups for r in rows}

    @property
    def width(self) -> int:
        return LEFT + len(self.groups) * (len(self.providers) * BAR + GROUP)

    @property
    def top(self) -> float:
        values = [v for _, rows in self.groups for r in rows if (v := self.value(r)) is not None]
        return max([*values, 0.0 if self.host else 1.0]) * 1.04 or 1.0

    def value(self, row: BenchRow) -> float | None:
        return row.host_us if self.host else row.share


def charts(record: BenchRecord) -> list[Chart]:
    """For each dtype: one chart per op with several shapes, one for all other ops, and one for host times."""
    by_op: dict[tuple[str, str], list[list[BenchRow]]] = {}
    alone: dict[str, list[list[BenchRow]]] = {}
    host: dict[str, list[list[BenchRow]]] = {}
    for rows in record.cases():
        first = rows[0]
        if first.metric == "host":
            host.setdefault(first.dtype, []).append(rows)
        else:
            by_op.setdefault((first.op, first.dtype), []).append(rows)
    for key in [k for k, cases in by_op.items() if len(cases) == 1]:
        alone.setdefault(key[1], []).extend(by_op.pop(key))
    drawn = [Chart(op, dtype, _groups(cases, _width), False) for (op, dtype), cases in by_op.items()]
    drawn += [Chart("one shape each", d, _groups(c, lambda r: r.op), False) for d, c in alone.items()]
    return drawn + [Chart("host time of a call, µs", d, _groups(c, lambda r: r.op), True) for d, c in host.items()]


def _groups(cases: list[list[BenchRow]], label: Callable[[BenchRow], str]) -> Groups:
    return tuple((label(rows[0]), tuple(rows)) for rows in cases)


def _width(row: BenchRow) -> str:
    n = row.shape[-1] if row.shape else 1
    return f"{n // 1024}K" if n >= 1024 and n % 1024 == 0 else str(n)


# ---- drawing --------------------------------------------------------------------------------------------------------


def _figure(chart: Chart, colours: dict[str, str]) -> str:
    title = f"<b>{text(chart.title)}</b> <small>{text(chart.about)}</small>"
    kind = " class=wide" if chart.width > WIDE else ""
    return f"<figure{kind}><figcaption>{title}</figcaption>{_svg(chart, colours)}</figure>"


def _svg(chart: Chart, colours: dict[str, str]) -> str:
    """The bars as SVG, so that the page shows them without JavaScript."""
    width = chart.width
    y = lambda value: TOP + HEIGHT * (1 - value / chart.top)
    size = f"min-width:{width * 0.85:.0f}px;max-width:{max(width * 1.3, 320):.0f}px"
    parts = [f'<svg viewBox="0 0 {width} {TOP + HEIGHT + 26}" style="{size}" role="img">']
    for value in _ticks(chart):
        line = "limit" if not chart.host and value == 1 else "grid"
        tick = f"{value:g}" if chart.host else f"{value:.0%}"
        parts.append(f'<line class="{line}" x1="{LEFT}" x2="{width}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{tick}</text>')
    slots = [p for p in colours if p in chart.providers]
    for i, (label, rows) in enumerate(chart.groups):
        left = LEFT + GROUP / 2 + i * (len(slots) * BAR + GROUP)
        parts += [_bar(chart, r, left + slots.index(r.provider) * BAR, y, colours[r.provider]) for r in rows]
        at = f'x="{left + len(slots) * BAR / 2:.1f}" y="{TOP + HEIGHT + 17}" text-anchor="middle"'
        parts.append(f'<text class="label" {at}>{text(label)}</text>')
    return "".join([*parts, "</svg>"])


def _bar(chart: Chart, row: BenchRow, x: float, y: Callable[[float], float], colour: str) -> str:
    tip = text(sentence(row))
    value = chart.value(row)
    if value is None:
        at = f'x="{x + BAR / 2:.1f}" y="{y(0) - 4:.1f}" text-anchor="middle"'
        return f'<text class="cross" tabindex="0" {at} data-tip="{tip}">✕</text>'
    shape = f'x="{x:.1f}" y="{y(value):.1f}" width="{BAR - 2}" height="{y(0) - y(value):.1f}" rx="2"'
    return f'<rect class="bar" tabindex="0" {shape} fill="{colour}" data-tip="{tip}" aria-label="{tip}"/>'


def _ticks(chart: Chart) -> list[float]:
    if not chart.host:
        return [v / 4 for v in range(int(chart.top * 4) + 1)]
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50, 100, 1e3, 1e4, 1e5, 1e6) if chart.top / s <= 6)
    return [step * i for i in range(int(chart.top / step) + 1)]


def sentence(row: BenchRow) -> str:
    """A provider's result in one sentence, which is the tooltip of a bar."""
    who = row.provider if row.impl in (None, row.provider) else f"{row.provider} ({row.impl})"
    facts = [f"{row.op} {sizes(row.shape)} {row.dtype}, {who}"]
    if row.status != "ok":
        return f"{facts[0]}: {row.status}, {row.reason}"
    if row.share is not None:
        facts.append(f"{row.share:.1%} of {row.limit}")
    facts += [f"{row.ms * 1e3:.1f} µs"] if row.ms is not None else []
    facts += [f"{row.gbs:.0f} GB/s"] if row.gbs is not None else []
    facts += [f"{row.tflops:.1f} TFLOP/s"] if row.tflops is not None else []
    facts += [f"host {row.host_us:.2f} µs"] if row.host_us is not None else []
    facts += [f"holds {row.peak_bytes / 2**20:.1f} MiB"] if row.peak_bytes is not None else []
    facts += [f"{row.ratio:.2f}x as fast as the best other"] if row.ratio is not None else []
    return "; ".join(facts)


# ---- the table ------------------------------------------------------------------------------------------------------

COLUMNS = (
    "op",
    "shape",
    "dtype",
    "provider",
    "share",
    "µs",
    "GB/s",
    "TFLOP/s",
    "host µs",
    "MiB held",
    "ratio",
    "error",
)


def _row(row: BenchRow) -> str:
    numbers = (
        (row.share, "{:.1%}"),
        (None if row.ms is None else row.ms * 1e3, "{:.1f}"),
        (row.gbs, "{:.0f}"),
        (row.tflops, "{:.1f}"),
        (row.host_us, "{:.2f}"),
        (None if row.peak_bytes is None else row.peak_bytes / 2**20, "{:.1f}"),
        (row.ratio, "{:.2f}"),
        (row.error, "{:.2g}"),
    )
    cells = [f"<td>{text(row.op)}</td>", f'<td data-v="{_product(row.shape)}">{sizes(row.shape)}</td>']
    cells.append(f"<td>{text(row.dtype)}</td>")
    who = row.provider if row.impl in (None, row.provider) else f"{row.provider} · {row.impl}"
    cells.append(f'<td title="{text(row.reason or "")}">{text(who)}</td>')
    if row.status == "ok":
        cells += [
            "<td></td>" if v is None else f'<td class="n" data-v="{v}">{form.format(v)}</td>' for v, form in numbers
        ]
    else:
        outcome = f"{row.status}: {row.reason}"
        cells.append(f'<td class="{row.status}" colspan="{len(numbers)}">{text(outcome)}</td>')
    behind = row.provider == OURS and row.ratio is not None and row.ratio < LEVEL
    return f'<tr class="{"behind" if behind else ""}">{"".join(cells)}</tr>'


def _product(shape: Iterable[int]) -> int:
    key = 1
    for n in shape:
        key = key * 1_000_003 + n  # sorts shapes by the first size, then by the next
    return key


# ---- the page -------------------------------------------------------------------------------------------------------


def page(record: BenchRecord) -> str:
    names = record.providers()
    order = [OURS, *(p for p in names if p != OURS)] if OURS in names else names
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(order)}
    legend = "".join(f'<span><i style="background:{c}"></i>{text(name)}</span>' for name, c in colours.items())
    drawn = "".join(_figure(c, colours) for c in charts(record))
    rows = table(COLUMNS, map(_row, record.rows))
    return document(
        title=f"opmux bench, {record.facts.get('chip', '')}",
        where=f"opmux bench · {record.facts.get('chip')}, {record.facts.get('date')}",
        headline=record.headline(),
        about=_about(record),
        body=f'<div class="legend">{legend}</div>\n<main><div class="charts">{drawn}</div>\n{rows}</main>\n{TIP}',
        facts={**record.facts, **_limits(record)},
        notes=record.notes,
        style=STYLE,
        script=SCRIPT,
    )


def _about(record: BenchRecord) -> str:
    limits = [f"a copy at {record.limits['copy_gbs']:.0f} GB/s"]
    limits += [f"a {d} matmul at {t:.1f} TFLOP/s" for d, t in record.limits["matmul_tflops"].items()]
    return (
        f"Within {1 - LEVEL:.0%} counts as level. Bars are shares of what the machine can do, measured in the same "
        f"run: {', '.join(limits)}. Bytes are the fewest an op must move. Every result was compared with the reference "
        f"before it was timed."
    )


def _limits(record: BenchRecord) -> dict[str, str]:
    limits = {"copy": f"{record.limits['copy_gbs']:.0f} GB/s"}
    return limits | {f"matmul {d}": f"{t:.1f} TFLOP/s" for d, t in record.limits["matmul_tflops"].items()}


STYLE = """
.legend{display:flex;flex-wrap:wrap;gap:6px 16px;margin:14px 0;
position:sticky;top:0;background:var(--bg);padding:6px 0;z-index:1}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.charts{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
figure.wide{grid-column:1/-1}
svg{width:100%;height:auto;display:block}
.tick,.label{font-size:11px;color:var(--dim);fill:var(--dim)}
.grid{stroke:var(--line)}.limit{stroke:var(--dim);stroke-dasharray:4 3}
.cross{fill:var(--bad);font-size:13px;cursor:help}.bar:hover,.bar:focus{opacity:.75;outline:none}
.n{text-align:right}.wrong,.failed{color:var(--bad);font-weight:600;white-space:normal}.declined{color:var(--dim)}
.behind td{background:color-mix(in srgb,orange 12%,transparent)}
#tip{position:fixed;pointer-events:none;max-width:min(360px,90vw);padding:6px 9px;border-radius:7px;
background:var(--fg);color:var(--bg);font-size:13px;display:none;z-index:2}
"""

TIP = '<div id="tip" role="status"></div>'

SCRIPT = """
const tip=document.getElementById('tip');
function show(e){const t=e.target.closest('[data-tip]');if(!t){tip.style.display='none';return}
tip.textContent=t.dataset.tip;tip.style.display='block';const b=t.getBoundingClientRect();
const x=Math.min(Math.max(8,b.left),innerWidth-tip.offsetWidth-8);let y=b.top-tip.offsetHeight-8;if(y<8)y=b.bottom+8;
tip.style.left=x+'px';tip.style.top=y+'px'}
for(const n of['pointerover','pointerdown','focusin'])document.addEventListener(n,show);
addEventListener('scroll',()=>tip.style.display='none',true);
"""
