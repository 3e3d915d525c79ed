"""A run as one self-contained HTML page: failures, checks, where ops run. It loads no other resources."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from ..bench.page import HEAD, STYLE
from .record import (
    CHECKS,
    CPU,
    DISPATCH,
    FAIL,
    NATIVE,
    NOWHERE,
    OWN,
    PASS,
    PLUGIN,
    TRITON,
    UNEXPECTED,
    Covered,
    Record,
    Result,
)
from .report import MARKS, PLACES, failures

COLOURS = {OWN: "#a35bb8", TRITON: "#2f6fde", PLUGIN: "#4aa3b5", NATIVE: "#8a94a6", CPU: "#d98a2b", NOWHERE: "#c2555f"}


def page(record: Record) -> str:
    facts = "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in record.facts.items() if v not in (None, []))
    notes = "".join(f"<li>{_text(n)}</li>" for n in (*map(str, record.unchecked), *record.notes))
    return (HEAD + PAGE).format(
        title=_text(f"opmux conform, {record.facts['vendor']}"),
        about=_text(record.facts["where"]),
        where=_text(f"opmux conform · {record.facts['depth']} run, {record.facts['date']}, {record.seconds:.0f} s"),
        headline=_text(record.headline()),
        failures="".join(_failure(r, too) for r, too in failures(record)),
        gaps=_gaps(record),
        results=_results(record.results),
        coverage=_bars(record) + _coverage(record.coverage),
        facts=facts,
        notes=f"<ul>{notes}</ul>" if notes else "",
        style=STYLE + MORE_STYLE,
        script=SCRIPT,
    )


def _text(words: Any) -> str:
    return html.escape(str(words), quote=True)


def _failure(result: Result, too: bool) -> str:
    where = " ".join(filter(None, (result.dtype, result.sample)))
    who = f"{result.impl}{' (and so dispatch)' if too else ''}"
    head = f"<b>{_text(result.op)}</b> {_text(result.check)} by {_text(who)} <small>{_text(where)}</small>"
    return f"<article>{head}<p>{_text(result.reason)}</p><code>{_text(result.reproduce)}</code></article>"


def _gaps(record: Record) -> str:
    rows = [
        f"<li><b>{_text(r.op)}</b> {_text(r.check)} by {_text(r.impl)}: {_text(r.gap)}"
        + (" <b>It passes now.</b>" if r.status == UNEXPECTED else f" <small>{_text(r.reason)}</small>")
        + "</li>"
        for r in record.results
        if r.gap is not None
    ]
    return f"<h2>Known gaps</h2><ul>{''.join(rows)}</ul>" if rows else ""


# ---- tables ---------------------------------------------------------------------------------------------------------


def _results(results: list[Result]) -> str:
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        rows.setdefault((result.key, result.impl), {})[result.check] = result
    checks = [c for c in CHECKS if any(r.check == c for r in results)]
    made = []
    for found in rows.values():
        first = next(iter(found.values()))
        served = ", ".join(found["values"].ran) if "values" in found and first.impl == DISPATCH else ""
        who = f"{first.impl} → {served}" if served else first.impl
        cells = "".join(_cell(found.get(c)) for c in checks)
        kind = ' class="own"' if first.own else ""
        made.append(
            f"<tr{kind}><td>{_text(first.family)}</td><td>{_text(first.op)}</td><td>{_text(who)}</td>{cells}</tr>"
        )
    return _table(("family", "op", "impl", *checks), made)


def _cell(result: Result | None) -> str:
    if result is None:
        return "<td></td>"
    word = MARKS[result.status][0]
    count = f"{result.failed}/{result.tried}" if result.status == FAIL else str(result.tried or "")
    refused = "; ".join(f"{r.impl} refused {r.samples}: {r.stage}: {r.reason}" for r in result.refusals)
    tip = "; ".join(filter(None, (result.reason, result.gap, refused)))
    mark = " *" if refused and result.status == PASS else ""
    return f'<td class="{result.status}" title="{_text(tip)}">{word} <small>{count}{mark}</small></td>'


def _coverage(rows: list[Covered]) -> str:
    made = [
        f'<tr><td>{_text(r.space)}</td><td>{_text(r.family)}</td><td>{_text(r.op)}</td>'
        f'<td><i style="background:{COLOURS[r.where]}"></i>{_text(PLACES[r.where])}</td><td>{_text(r.impl or "")}</td>'
        f"<td>{_text(r.why or ' '.join(r.on_cpu))}</td></tr>"
        for r in rows
    ]  # fmt: skip
    return _table(("space", "family", "op", "where", "impl", "why, or what ran on the CPU"), made)


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f'<th><button type="button">{_text(h)}</button></th>' for h in heads)
    find = '<input type="search" placeholder="find" aria-label="find in the table">'
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'{find}<div class="scroll"><table>{body}</table></div>'


def _bars(record: Record) -> str:
    ours = [c for c in record.coverage if c.space != "aten"]
    lines = [
        ("ops of ours", record.covered(ours)),
        ("ATen, of ours", record.covered(c for c in record.coverage if c.space == "aten")),
        ("the rest of ATen", record.rest_of_aten),
    ]
    return "".join(_bar(name, counts) for name, counts in lines if sum(counts.values()))


def _bar(name: str, counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    parts = "".join(
        f'<span style="width:{100 * n / total:.3f}%;background:{COLOURS[w]}" title="{_text(PLACES[w])}: {n}"></span>'
        for w, n in counts.items()
    )
    words = ", ".join(f"{PLACES[w]} {n}" for w, n in counts.items())
    return f'<div class="stack"><b>{_text(name)}</b> <small>{_text(words)}</small><div>{parts}</div></div>'


MORE_STYLE = """
h2{font-size:19px;margin:1.6em 0 .4em}
article{margin:10px 0;padding:10px 14px;background:var(--card);border:1px solid var(--line);border-radius:8px;
border-left:4px solid var(--bad)}
article p{margin:4px 0}code{font-size:12.5px;overflow-wrap:anywhere}
.fail{color:var(--bad);font-weight:600}.refused{color:var(--dim)}.expected,.unexpected{color:#b7791f}.pass{color:#2f8f5b}
.own td{background:color-mix(in srgb,#a35bb8 9%,transparent)}
td i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.stack{margin:8px 0}.stack div{display:flex;height:14px;border-radius:5px;overflow:hidden;margin-top:3px}
.stack span{min-width:2px}
input{margin-top:14px;padding:4px 9px;font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);
border-radius:7px}
.scroll{margin-top:8px;max-height:75vh}
"""

SCRIPT = """
document.querySelectorAll('table').forEach(table=>{const body=table.tBodies[0],heads=table.tHead.querySelectorAll('th');
heads.forEach((th,i)=>th.firstChild.onclick=()=>{const up=th.getAttribute('aria-sort')!=='ascending';
heads.forEach(o=>o.removeAttribute('aria-sort'));th.setAttribute('aria-sort',up?'ascending':'descending');
const rows=[...body.rows].map(r=>[r.cells[i].textContent,r]);
rows.sort((a,b)=>a[0]===''?1:b[0]===''?-1:a[0].localeCompare(b[0],undefined,{numeric:true})*(up?1:-1));
body.append(...rows.map(r=>r[1]))});
const find=table.parentNode.previousElementSibling;
find.oninput=()=>{const words=find.value.toLowerCase().split(/\\s+/);
for(const r of body.rows){const t=r.textContent.toLowerCase();r.hidden=!words.every(w=>t.includes(w))}}});
"""

PAGE = """\
<main>{failures}{gaps}
<h2>What was checked</h2>{results}
<h2>Where ops run</h2>{coverage}</main>
<footer>{notes}<dl>{facts}</dl></footer>
<script>{script}</script>
</body>
</html>
"""
