"""Functions made from source text, for calls so short that a loop or a packed argument list would show.

The text is kept in `linecache`, so that tracebacks, debuggers and `inspect.getsource` show its lines.
"""

from __future__ import annotations

import linecache
import types
from typing import Any


def function(text: str, name: str, where: str, names: dict[str, Any]) -> types.FunctionType:
    """The function `name` that `text` defines; `names` become its globals, `where` is its file in tracebacks."""
    # dont_inherit: without this module's postponed annotations, which Triton could not read
    exec(compile(text, _remember(text, where), "exec", dont_inherit=True), names)
    return names[name]


def _remember(text: str, where: str) -> str:
    """Keep a text in linecache, under a file name that no other text has."""
    lines, number = text.splitlines(keepends=True), 1
    while True:
        filename = f"<opmux {where}>" if number == 1 else f"<opmux {where} #{number}>"
        # no modification time: `linecache.checkcache` leaves such an entry alone
        entry = linecache.cache.setdefault(filename, (len(text), None, lines, filename))
        if entry[2:3] == (lines,):
            return filename
        number += 1
