"""The HTML page of a run: failures, checks, and where ops run."""

from __future__ import annotations

from collections.abc import Mapping

from ..runner.html import BarPart, document, stack, table, text
from .record import CHECKS, DISPATCH, FAIL, PASS, UNEXPECTED, WHERE, CheckResult, ConformRecord, Covered
from .report import MARKS, PLACES, failures, without_a_kernel

COLOURS: dict[str, str] = dict(
    zip(WHERE, ("#a35bb8", "#2f6fde", "#4aa3b5", "#8a94a6", "#d98a2b", "#c2555f"), strict=True)
)


def page(record: ConformRecord) -> str:
    return document(
        title=f"opmux conform, {record.facts['vendor']}",
        where=f"opmux conform · {record.facts['depth']} run, {record.facts['date']}, {record.seconds:.0f} s",
        headline=record.headline(),
        about=record.facts["where"],
        body=f"""<main>{"".join(_failure(r, too) for r, too in failures(record))}{_gaps(record)}
<h2>What was checked</h2>{_results(record.results)}
<h2>Where ops run</h2>{_bars(record)}{_coverage(record.coverage)}</main>""",
        facts=record.facts,
        notes=[*without_a_kernel(record), *record.unchecked, *record.notes],
        style=STYLE,
        script=SCRIPT,
    )


def _failure(result: CheckResult, too: bool) -> str:
    where = " ".join(filter(None, (result.dtype, result.sample)))
    who = f"{result.impl}{' (and so dispatch)' if too else ''}"
    head = f"<b>{text(result.op)}</b> {text(result.check)} by {text(who)} <small>{text(where)}</small>"
    return f"<article>{head}<p>{text(result.reason)}</p><code>{text(result.reproduce)}</code></article>"


def _gaps(record: ConformRecord) -> str:
    rows = [
        f"<li><b>{text(r.op)}</b> {text(r.check)} by {text(r.impl)}: {text(r.gap)}"
        + (" <b>It passes now.</b>" if r.status == UNEXPECTED else f" <small>{text(r.reason)}</small>")
        + "</li>"
        for r in record.results
        if r.gap is not None
    ]
    return f"<h2>Known gaps</h2><ul>{''.join(rows)}</ul>" if rows else ""


# ---- tables ---------------------------------------------------------------------------------------------------------


def _results(results: list[CheckResult]) -> str:
    rows: dict[tuple[str, str], dict[str, CheckResult]] = {}
    for result in results:
        rows.setdefault((result.key, result.impl), {})[result.check] = result
    checks = [c for c in CHECKS if any(r.check == c for r in results)]
    lines = []
    for checked in rows.values():
        first = next(iter(checked.values()))
        served = ", ".join(checked["values"].ran) if "values" in checked and first.impl == DISPATCH else ""
        who = f"{first.impl} → {served}" if served else first.impl
        cells = "".join(_cell(checked.get(c)) for c in checks)
        kind = ' class="own"' if first.own else ""
        lines.append(
            f"<tr{kind}><td>{text(first.family)}</td><td>{text(first.op)}</td><td>{text(who)}</td>{cells}</tr>"
        )
    return _table(("family", "op", "impl", *checks), lines)


def _cell(result: CheckResult | None) -> str:
    if result is None:
        return "<td></td>"
    label = MARKS[result.status][0]
    count = f"{result.failed}/{result.tried}" if result.status == FAIL else str(result.tried or "")
    refused = "; ".join(f"{r.impl} refused {r.samples}: {r.stage}: {r.reason}" for r in result.refusals)
    tip = "; ".join(filter(None, (result.reason, result.gap, refused)))
    mark = " *" if refused and result.status == PASS else ""
    return f'<td class="{result.status}" title="{text(tip)}">{label} <small>{count}{mark}</small></td>'


def _coverage(rows: list[Covered]) -> str:
    lines = [
        f"<tr><td>{text(r.space)}</td><td>{text(r.family)}</td><td>{text(r.op)}</td>"
        f'<td><i style="background:{COLOURS[r.where]}"></i>{text(PLACES[r.where])}</td><td>{text(r.impl or "")}</td>'
        f"<td>{text(r.why or ' '.join(r.on_cpu))}</td></tr>"
        for r in rows
    ]
    return _table(("space", "family", "op", "where", "impl", "why, or what ran on the CPU"), lines)


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    return '<input type="search" placeholder="find" aria-label="find in the table">' + table(heads, rows)


def _bars(record: ConformRecord) -> str:
    ours = [c for c in record.coverage if c.space != "aten"]
    lines = [
        ("ops of ours", record.covered(ours)),
        ("ATen, of ours", record.covered(c for c in record.coverage if c.space == "aten")),
        ("the rest of ATen", record.rest_of_aten),
    ]
    return "".join(_bar(name, counts) for name, counts in lines if sum(counts.values()))


def _bar(name: str, counts: Mapping[str, int]) -> str:
    return stack(name, [BarPart(PLACES[w], n, COLOURS[w]) for w, n in counts.items()])


STYLE = """
article{margin:10px 0;padding:10px 14px;background:var(--card);border:1px solid var(--line);border-radius:8px;
border-left:4px solid var(--bad)}
article p{margin:4px 0}
.fail{color:var(--bad);font-weight:600}.refused{color:var(--dim)}.expected,.unexpected{color:#b7791f}.pass{color:#2f8f5b}
.own td{background:color-mix(in srgb,#a35bb8 9%,transparent)}
td i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
input{margin-top:14px;padding:4px 9px;font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);
border-radius:7px}
.scroll{margin-top:8px;max-height:75vh}
"""

SCRIPT = """
document.querySelectorAll('input').forEach(find=>find.oninput=()=>{const words=find.value.toLowerCase().split(/\\s+/);
for(const r of find.nextElementSibling.querySelectorAll('tbody tr')){const t=r.textContent.toLowerCase();
r.hidden=!words.every(w=>t.includes(w))}});
"""
