"""The report of `opmux demo` as one HTML page that loads nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..core.tensors import dtype_name
from . import demo_view
from .demo import Gaps, Session
from .runner import html

WIDTH, HEIGHT, LEFT, BOTTOM = 1000, 320, 56, 28

STYLE = """
svg{width:100%;height:auto;margin-top:18px}svg text{fill:var(--dim);font-size:13px}
.axis{stroke:var(--line)}polyline{fill:none;stroke-width:2}
.plain{stroke:var(--plain);stroke-width:6;opacity:.45}.ours{stroke:var(--ours)}
:root{--plain:#c026a8;--ours:#0a8f5b}@media(prefers-color-scheme:dark){:root{--plain:#f08be0;--ours:#4fd69c}}
.key i{display:inline-block;width:22px;height:4px;margin:0 6px 3px 14px}
.key .p{background:var(--plain);height:6px;opacity:.6}.key .o{background:var(--ours)}
.bad{color:var(--bad);font-weight:600}code{background:var(--card);padding:2px 6px;border-radius:5px}
"""


def page(session: Session, gaps: Gaps) -> str:
    differ = [
        f"<tr><td>{html.text(what)}</td><td>{gap:.1e}</td><td>{gaps.limit:.0e}</td>"
        f"<td>{'agree' if gap <= gaps.limit else '<span class=bad>DISAGREE</span>'}</td></tr>"
        for what, gap in demo_view.differences(session, gaps)
    ]
    happened = "".join(f"<li>{html.text(sentence)}</li>" for sentence in demo_view.sentences(session, gaps))
    commands = "".join(f"<li><code>{html.text(c)}</code> {html.text(w)}</li>" for c, w in demo_view.COMMANDS)
    body = "".join(
        (
            _curves([run.losses for run in session.runs]),
            '<p class="key"><i class="p"></i>plain torch<i class="o"></i>opmux</p>',
            _table(demo_view.runs(session)),
            _table(demo_view.implementations(session)),
            html.table(("largest relative difference", "found", "allowed", "verdict"), differ),
            f"<h2>What happened</h2><ul>{happened}</ul><h2>Try next</h2><ul>{commands}</ul>",
        )
    )
    title, _, about = demo_view.heading(session).plain.partition("\n")
    facts = {
        "opmux": __version__,
        "torch": torch.__version__,
        "Python": sys.version.split()[0],
        "device": session.device,
        "dtype": dtype_name(session.dtype),
    }
    headline = demo_view.verdict_of(session, gaps)
    return html.document("opmux demo", title, headline, about, body, facts, (), STYLE, "")


def _table(table: Table) -> str:
    """The same table as in the terminal."""
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    rows = [f"<tr>{''.join(f'<td>{html.text(c)}</td>' for c in row)}</tr>" for row in zip(*columns, strict=True)]
    return html.table([str(column.header) for column in table.columns], rows)


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _curves(curves: Sequence[Sequence[float]]) -> str:
    """The losses as curves."""
    finite = [loss for curve in curves for loss in curve if math.isfinite(loss)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    right, bottom = WIDTH - 10, HEIGHT - BOTTOM

    def points(curve: Sequence[float]) -> str:
        across, down = (right - LEFT) / max(len(curve) - 1, 1), (bottom - 10) / max(high - low, 1e-12)
        return " ".join(
            f"{LEFT + i * across:.1f},{10 + (high - loss) * down:.1f}"
            for i, loss in enumerate(curve)
            if math.isfinite(loss)
        )

    lines = "".join(
        f'<polyline class="{kind}" points="{points(curve)}"/>'
        for kind, curve in zip(("plain", "ours"), curves, strict=True)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="The losses of both runs">'
        f'<path class="axis" d="M{LEFT} 10V{bottom}H{right}" fill="none"/>{lines}'
        f'<text x="{LEFT - 8}" y="18" text-anchor="end">{high:.2f}</text>'
        f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end">{low:.2f}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">loss by step</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">step {len(curves[0])}</text></svg>'
    )
