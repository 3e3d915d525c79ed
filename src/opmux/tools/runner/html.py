"""A self-contained HTML page: sortable tables, bars, and facts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


def text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def table(heads: Iterable[str], rows: Iterable[str]) -> str:
    """A table. A click on a heading sorts the rows by the cells' `data-v`, or by their text if they have none."""
    head = "".join(f'<th><button type="button">{text(h)}</button></th>' for h in heads)
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'


class BarPart(NamedTuple):
    """A part of a stacked bar."""

    name: str
    size: int
    colour: str


def stack(name: str, parts: Iterable[BarPart]) -> str:
    """A name, the count of each part, and a bar that shows their shares."""
    counted = [part for part in parts if part.size]
    total = sum(part.size for part in counted)
    spans = "".join(
        f'<span style="width:{100 * part.size / total:.3g}%;background:{part.colour}" '
        f'title="{text(part.name)}: {part.size}"></span>'
        for part in counted
    )
    legend = ", ".join(f"{part.name} {part.size}" for part in counted)
    return f'<div class="stack"><b>{text(name)}</b> <small>{text(legend)}</small><div>{spans}</div></div>'


def document(
    title: str,
    where: str,
    headline: str,
    about: str,
    body: str,
    facts: Mapping[str, Any],
    notes: Iterable[Any],
    style: str,
    script: str,
) -> str:
    """A page. `body`, `style` and `script` are inserted unchanged, all other text is escaped."""
    listed = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in facts.items() if v not in (None, []))
    items = "".join(f"<li>{text(n)}</li>" for n in notes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{text(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<header><small>{text(where)}</small><h1>{text(headline)}</h1><p class="about">{text(about)}</p></header>
{body}
<footer>{f"<ul>{items}</ul>" if items else ""}<dl>{listed}</dl></footer>
<script>{SCRIPT}{script}</script>
</body>
</html>
"""


STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b2330;--dim:#667085;--line:#e3e7ee;--card:#f7f9fc;--bad:#c2343f}
@media(prefers-color-scheme:dark){:root{--bg:#11151c;--fg:#e6eaf2;--dim:#8e99ad;--line:#2a3240;--card:#181e28;--bad:#ff7b84}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:20px 16px 48px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h2{font-size:19px;margin:1.6em 0 .4em}
h1{font-size:clamp(22px,4.5vw,34px);line-height:1.2;margin:.2em 0}
small,.about,dt{color:var(--dim)}
.about{max-width:75ch}
.scroll{overflow-x:auto;margin-top:22px;border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{position:sticky;top:0;background:var(--card)}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid currentColor}
th[aria-sort=ascending] button::after{content:" ↑"}th[aria-sort=descending] button::after{content:" ↓"}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;font-size:13px}dd{margin:0;overflow-wrap:anywhere}
figure{margin:0;padding:12px 14px;background:var(--card);border:1px solid var(--line);border-radius:10px;
overflow-x:auto}
.stack{margin:8px 0}.stack div{display:flex;height:14px;border-radius:5px;overflow:hidden;margin-top:3px}
.stack span{min-width:2px}
code{font-size:12.5px;overflow-wrap:anywhere}
footer{margin-top:28px;border-top:1px solid var(--line);padding-top:8px}
"""

SCRIPT = """
const order=(a,b,sign)=>a===''?1:b===''?-1:typeof a!==typeof b?(typeof a==='number'?-1:1):
sign*(typeof a==='number'?a-b:a.localeCompare(b,undefined,{numeric:true}));
document.querySelectorAll('table').forEach(table=>{const body=table.tBodies[0],heads=table.tHead.querySelectorAll('th');
heads.forEach((th,i)=>th.firstChild.onclick=()=>{const up=th.getAttribute('aria-sort')!=='ascending';
heads.forEach(o=>o.removeAttribute('aria-sort'));th.setAttribute('aria-sort',up?'ascending':'descending');
const key=r=>{const c=r.cells[i];return c?(c.dataset.v!==undefined?+c.dataset.v:c.textContent):''};
const rows=[...body.rows].map(r=>[key(r),r]);
rows.sort((a,b)=>order(a[0],b[0],up?1:-1));body.append(...rows.map(r=>r[1]))})});
"""
