"""Output: tables and JSON to stdout; log lines and progress bars to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..core import log

# Output to a file or a pipe has this width, so that lines are not wrapped, unless COLUMNS is set.
WIDE = 1000
# What a pipe does not get: spaces at the end of a line, and a rule beyond 80 columns.
ENDS = re.compile(r" +$|(?<=^ [─-]{78})[─-]+ *$", re.MULTILINE)

KIND_STYLES = {"flagos": "green", "cpp": "cyan", "vendor": "magenta", "reference": "blue"}
STATUS_STYLES = {"chosen": "bold green", "next": "", "refused": "dim"}


def out() -> Console:
    piped: Any = None if sys.stdout.isatty() else Piped(sys.stdout)
    return Console(file=piped, **_options(sys.stdout))


def err() -> Console:
    return Console(stderr=True, **_options(sys.stderr))


def _options(stream: Any) -> dict[str, Any]:
    own = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()  # rich reads COLUMNS
    return {"width": None if own else WIDE, "highlight": False, "soft_wrap": False}


class Piped:
    """A file or a pipe, without the spaces and the long rules that make lines as wide as a table."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(ENDS.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def beside(json: str | None) -> Console:
    """The console of a command that may write JSON. It is stderr if the JSON goes to stdout (`-`)."""
    return err() if json == "-" else out()


def keep(record: Any, json: str | None, html: Path | None = None, page: Callable[[Any], str] | None = None) -> None:
    """Write a record to the requested files."""
    console = err()
    if json == "-":
        sys.stdout.write(record.text() + "\n")
    elif json is not None:
        write(Path(json), record.text() + "\n")
        console.print(Text(f"written: {json}", "dim"))
    if html is not None and page is not None:
        write(html, page(record))
        console.print(Text(f"written: {html}", "dim"))


def write(path: Path, text: str) -> None:
    """Write a file, and create its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def paged() -> Iterator[Console]:
    """A console that uses a pager if the output is longer than the terminal. A file or pipe gets it directly."""
    console = out()
    if not console.is_terminal:
        yield console
        return
    with console.capture() as captured:
        yield console
    text = captured.get()
    if text.count("\n") < console.height or not _page(text):
        sys.stdout.write(text)


def _page(text: str) -> bool:
    """Show the text in $PAGER, or in less if that is unset. Returns False if there is no such program."""
    command = shlex.split(os.environ.get("PAGER", "")) or ["less"]
    if command[0] in ("", "cat") or shutil.which(command[0]) is None:
        return False
    env = {"LESS": "-FRX", **os.environ}  # show colours, and leave the text on the screen
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the user quit the pager
        subprocess.run(command, input=text, encoding="utf-8", env=env, check=False)
    return True


def show_log() -> None:
    """Show log lines of level WARNING and above, unless the settings name another level."""
    log.show("WARNING")
    log.from_knobs()


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=not takes_unicode()) + "\n")


def takes_unicode() -> bool:
    """Whether stdout can encode any character."""
    return "utf" in (sys.stdout.encoding or "").casefold()


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 op`, `2 ops`, `2 families`."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def some(names: Iterable[str], most: int = 12) -> str:
    """The first `most` names in one line, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


class WordTable(Table):
    """A table that breaks lines between words only, if its longest words fit beside each other."""

    def widths(self, console: Console, options: ConsoleOptions) -> tuple[list[int], list[int]]:
        """The width of the longest word of each column, and the width of its longest cell."""
        unlimited = options.update_width(WIDE)
        shortest, longest = [], []
        for column in self.columns:
            cells = [Measurement.get(console, unlimited, cell) for cell in (column.header, *column.cells)]
            least, most = column.min_width or 0, column.max_width or WIDE
            shortest.append(min(max(least, *(c.minimum for c in cells)), most))
            longest.append(min(max(least, *(c.maximum for c in cells)), most))
        return shortest, longest

    def _room(self, options: ConsoleOptions) -> int:
        """What a line has for text, without padding and borders."""
        padding = sum(self._get_padding_width(at) for at in range(len(self.columns)))
        return options.max_width - padding - self._extra_width

    def fits(self, console: Console, options: ConsoleOptions) -> bool:
        return sum(self.widths(console, options)[0]) <= self._room(options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shortest, longest = self.widths(console, options)
        room = self._room(options)
        if sum(shortest) <= room:
            # rich ignores `min_width` when it makes columns narrower, and would cut lines off.
            for column, width in zip(self.columns, shares(room, shortest, longest), strict=True):
                column.width = width
        yield from super().__rich_console__(console, options)


def shares(room: int, shortest: list[int], longest: list[int]) -> list[int]:
    """Widths of columns that fit in `room`: makes the widest column narrower, but none narrower than its `shortest`."""
    widths = list(longest)
    for _ in range(sum(longest) - room):
        widest = max((i for i, width in enumerate(widths) if width > shortest[i]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


class Narrow:
    """Shows `table`, or `narrow` on a screen where `table` would break words."""

    def __init__(self, table: WordTable, narrow: WordTable):
        self.table, self.narrow = table, narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table if self.table.fits(console, options) else self.narrow


def table(*columns: str | tuple[str, dict[str, Any]], title: str | None = None) -> WordTable:
    """A table in the common style. A column is a heading, or a heading with options."""
    styled = WordTable(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        heading, options = (column, {}) if isinstance(column, str) else column
        styled.add_column(heading, **{"overflow": "fold", **options})
    return styled


def pairs(rows: Iterable[tuple[str, Any]], title: str | None = None) -> Table:
    """Facts as names and values, one per line."""
    facts = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in rows:
        facts.add_row(f"  {name}", value if isinstance(value, Text) else Text(str(value)))
    return facts


@contextlib.contextmanager
def progress(*more: str) -> Iterator[Progress]:
    """A progress bar on stderr; log lines are printed above it. `more` are fields to show."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        *(TextColumn(f"{field} {{task.fields[{field}]}}") for field in more),
        TimeElapsedColumn(),
    )
    before = sys.stderr
    with Progress(*columns, console=err()) as bar, _log_above(before):
        yield bar


@contextlib.contextmanager
def live(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yields a function that updates a view on a terminal. Log lines appear above it. The end erases the view."""
    before = sys.stderr
    with Live(console=console, auto_refresh=False, transient=True) as view, _log_above(before):
        yield lambda shown: view.update(shown, refresh=True)


@contextlib.contextmanager
def _log_above(before: Any) -> Iterator[None]:
    """While something is live, sys.stderr is rich's proxy, which prints above it. Let our log handler use the proxy."""
    ours = [h for h in log.logger.handlers if isinstance(h, logging.StreamHandler) and h.stream is before]
    for handler in ours:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in ours:
            handler.setStream(before)
