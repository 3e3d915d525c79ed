"""Draws charts as SVG files that fit a phone, and follow the reader's light or dark mode.

A chart is a card of 440 pixels: a title, a legend, panels below each other, and notes. A panel holds bars, points with
an error, or small line charts. Colours come from one style sheet with a dark half; no chart loads anything.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, EDGE = 440, 18
RIGHT = WIDTH - EDGE
KINDS = ("ours", "also", "torch", "library")  # the colours: opmux, opmux in another way, torch, others

STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#24292f}
.title{font-size:17px;font-weight:600}.head,.strong{font-weight:600}.note{font-size:12px;fill:#57606a}
.card{fill:#fff;stroke:#d0d7de}.ours{fill:#00897b}.also{fill:#7fc8bf}.torch{fill:#afb8c1}.library{fill:#6d8fd1}
.mark{stroke:#57606a;stroke-dasharray:3 3}.grid{stroke:#d8dee4}.line{fill:none;stroke-width:2}.error{stroke-width:2}
.line.ours,.error.ours{stroke:#00897b}.line.torch{stroke:#8c959f}
.line.library,.error.library{stroke:#6d8fd1}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}.card{fill:#161b22;stroke:#3d444d}
.ours{fill:#26a69a}.also{fill:#14655d}.torch{fill:#59636e}.library{fill:#7d9fe0}.mark{stroke:#9198a1}.grid{stroke:#30363d}
.line.ours,.error.ours{stroke:#26a69a}.line.torch{stroke:#8b949e}
.line.library,.error.library{stroke:#7d9fe0}.line{fill:none}}
"""

Series = tuple[float | None, ...]  # None: there is no such measurement


@dataclass(frozen=True)
class Value:
    kind: str  # one of KINDS
    number: float | None  # None: there is no such measurement
    error: float = 0.0


@dataclass(frozen=True)
class Row:
    label: str
    values: tuple[Value, ...]
    strong: bool = False


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    place = f' text-anchor="{anchor}"' if anchor else ""
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{kind}{place}>{escape(words)}</text>'


def rule(x: float, top: float, bottom: float) -> str:
    return f'<path d="M{x:g} {top:g}V{bottom:g}" class="mark"/>'


def number(value: float | None, digits: int) -> str:
    return "not timed" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Panel:
    head: str
    rows: tuple[Row, ...]
    note: str = ""
    digits: int = 2
    one: bool = True  # ratios, with a dashed line at 1

    @property
    def top(self) -> int:
        """The height of the heading."""
        return 26 + 16 * bool(self.note)

    @property
    def left(self) -> float:
        return EDGE + 10 + max((8.8 if row.strong else 8.2) * len(row.label) for row in self.rows)

    @property
    def most(self) -> float:
        return max(value.number or 0 for row in self.rows for value in row.values)

    def heading(self, y: float) -> list[str]:
        note = [text(EDGE, y + 30, self.note, "note")] if self.note else []
        return [text(EDGE, y + 14, self.head, "head"), *note]

    def figures(self, names: dict[str, str]) -> str:
        """The panel in words."""

        def of(row: Row) -> str:
            values = ", ".join(f"{names.get(v.kind, '')} {number(v.number, self.digits)}".strip() for v in row.values)
            return f"{row.label}: {values}"

        return f"{self.head}: {'; '.join(of(row) for row in self.rows)}."


class Bars(Panel):
    """Horizontal bars from 0; a row with several values has a thin bar for each."""

    @property
    def thick(self) -> int:
        return 20 if max(len(row.values) for row in self.rows) == 1 else 13

    @property
    def gap(self) -> int:
        return 6 if self.thick == 20 else 8

    @property
    def height(self) -> int:
        return self.top + sum(len(row.values) * (self.thick + 1) + self.gap for row in self.rows) + 8

    def draw(self, y: float, left: float, most: float) -> Iterator[str]:
        """The panel at `y`, with bars from `left`; the longest is for `most` if it shows ratios."""
        yield from self.heading(y)
        figure = 10 + 8 * (self.digits + 2)  # the room for a figure
        scale = (RIGHT - left - figure) / (most if self.one else self.most)
        mark, bottom = round(left + scale, 1), y + self.height - 12
        y += self.top
        start = y
        for row in self.rows:
            middle, kind = y + len(row.values) * (self.thick + 1) / 2 + 4, "strong" if row.strong else ""
            yield text(left - 10, middle, row.label, kind, anchor="end")
            for value in row.values:
                end = round(left + (value.number or 0) * scale, 1)
                if value.number is not None:
                    size = f'width="{end - left:g}" height="{self.thick}"'
                    yield f'<rect x="{left:g}" y="{y:g}" {size} rx="2" class="{value.kind}"/>'
                    if self.one and mark - figure < end <= mark:  # keep the figure off the dashed line
                        end = mark
                yield text(end + 6, y + self.thick / 2 + 4.5, number(value.number, self.digits), kind)
                y += self.thick + 1
            y += self.gap
        if self.one:
            yield rule(mark, start - 4, bottom)


class Points(Panel):
    """A point with its standard error for each value, on a scale around 1."""

    ROW = 28

    @property
    def height(self) -> int:
        return self.top + self.ROW * len(self.rows) + 26

    def draw(self, y: float, left: float, most: float) -> Iterator[str]:
        """The panel at `y`, with points right of `left`, up to `most`."""
        yield from self.heading(y)
        low = math.floor(10 * min((v.number or 1) - v.error for row in self.rows for v in row.values)) / 10
        high = math.ceil(10 * most) / 10

        def at(value: float) -> float:
            return round(left + (value - low) / (high - low) * (RIGHT - left - 76), 1)

        top, bottom = y + self.top, y + self.top + self.ROW * len(self.rows)
        for tick in range(round(10 * low), round(10 * high) + 1):
            x = at(tick / 10)
            yield rule(x, top, bottom) if tick == 10 else f'<path d="M{x:g} {top:g}V{bottom:g}" class="grid"/>'
            yield text(x, bottom + 16, f"{tick / 10:.1f}", "note", anchor="middle")
        for i, row in enumerate(self.rows):
            middle = top + self.ROW * i + self.ROW / 2
            yield text(left - 10, middle + 4, row.label, anchor="end")
            for place, value in enumerate(row.values):
                if value.number is None:
                    continue
                line = middle + (10 * place - 5 if len(row.values) > 1 else 0)
                ends = at(value.number - value.error), at(value.number + value.error)
                yield f'<path d="M{ends[0]:g} {line:g}H{ends[1]:g}" class="error {value.kind}"/>'
                yield f'<circle cx="{at(value.number):g}" cy="{line:g}" r="4" class="{value.kind}"/>'
            words = ", ".join(number(v.number, self.digits) for v in row.values)
            yield text(RIGHT, middle + 4, words, anchor="end")

    @property
    def most(self) -> float:
        return max((value.number or 0) + value.error for row in self.rows for value in row.values)


@dataclass(frozen=True)
class Lines:
    """Small line charts, two beside each other: one for each row, with the values of a kind as a line."""

    head: str
    charts: tuple[tuple[str, dict[str, Series]], ...]  # name -> kind -> values
    steps: tuple[str, ...]  # the labels of the x axis
    note: str = ""
    TALL = 112

    @property
    def height(self) -> int:
        return 42 + math.ceil(len(self.charts) / 2) * (self.TALL + 58)

    def draw(self, y: float) -> Iterator[str]:
        yield text(EDGE, y + 14, self.head, "head")
        yield text(EDGE, y + 30, self.note, "note")
        wide = (RIGHT - EDGE - 24) / 2
        for i, (name, lines) in enumerate(self.charts):
            left = EDGE + 26 + (i % 2) * (wide + 24)
            yield from self._one(name, lines, left, y + 64 + (i // 2) * (self.TALL + 58), wide - 30)

    def _one(self, name: str, lines: dict[str, Series], left: float, top: float, wide: float) -> Iterator[str]:
        yield text(left, top - 8, name)
        bottom = top + self.TALL
        for value in (0, 0.5, 1):
            line, kind = bottom - value / 1.1 * self.TALL, "mark" if value == 1 else "grid"
            yield f'<path d="M{left:g} {line:.1f}h{wide:g}" class="{kind}"/>'
            yield text(left - 4, round(line + 4, 1), f"{value:g}", "note", anchor="end")
        step = wide / (len(self.steps) - 1)
        for i, label in enumerate(self.steps):
            if i in (0, len(self.steps) // 2, len(self.steps) - 1):
                yield text(round(left + i * step, 1), bottom + 16, label, "note", anchor="middle")
        for kind, values in lines.items():
            points = " ".join(
                f"{left + i * step:.1f},{bottom - value / 1.1 * self.TALL:.1f}"
                for i, value in enumerate(values)
                if value is not None
            )
            yield f'<polyline points="{points}" class="line {kind}"/>'

    def figures(self, names: dict[str, str]) -> str:
        def of(kind: str, values: Series) -> str:
            return f"{names[kind]} {', '.join(number(v, 2) for v in values)}"

        found = (
            f"{name}: {'; '.join(of(*line) for line in lines.items() if any(line[1]))}" for name, lines in self.charts
        )
        return f"{self.head}, for {', '.join(self.steps)}: {'. '.join(found)}."


@dataclass(frozen=True)
class Chart:
    name: str  # the file in docs/images, without .svg
    title: str
    panels: tuple[Bars | Points | Lines, ...]
    notes: tuple[str, ...]  # what was measured, where and when
    legend: tuple[tuple[str, str], ...] = ()  # kind and label, if a row has several values

    def figures(self) -> str:
        return " ".join(panel.figures(dict(self.legend)) for panel in self.panels)

    def alternative(self) -> str:
        """The alternative text of the image, for the pages that show it."""
        return f"{self.title}. {self.figures()}"

    def _legend(self, y: float) -> tuple[list[str], float]:
        lines, x = [], EDGE
        for kind, label in self.legend:
            wide = 36 + 7.2 * len(label)
            if x + wide > RIGHT:
                x, y = EDGE, y + 20
            lines.append(f'<rect x="{x:g}" y="{y:g}" width="12" height="12" rx="2" class="{kind}"/>')
            lines.append(text(x + 18, y + 11, label))
            x += wide
        return lines, y + 26 if self.legend else y

    def svg(self) -> str:
        legend, y = self._legend(56)
        body, tables = [], [panel for panel in self.panels if isinstance(panel, Panel)]
        left = max((panel.left for panel in tables), default=0)
        most = max((panel.most for panel in tables if panel.one), default=1)
        for panel in self.panels:
            body += panel.draw(y) if isinstance(panel, Lines) else panel.draw(y, left, most)
            y += panel.height + 8
        notes = [line for note in self.notes for line in textwrap.wrap(note, 64, break_on_hyphens=False)]
        for i, note in enumerate(notes):
            body.append(text(EDGE, y + 12 + 16 * i, note, "note"))
        height = round(y + 16 * len(notes) + 14)
        size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(" ".join([self.figures(), *self.notes]))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="card"/>',
            text(EDGE, 34, self.title, "title"),
            *legend,
            *body,
            "</svg>",
            "",
        ])  # fmt: skip
