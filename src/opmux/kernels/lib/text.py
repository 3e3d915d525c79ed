"""Functions from text that Triton can read: it wants their source, which a line cache under a made-up name gives it."""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable
from typing import Any

import triton.language as tl


def from_text(text: str, **names: Any) -> Callable[..., Any]:
    """The one function that the text defines, with `tl` and these globals; ready for `triton.jit`."""
    name = text.partition("(")[0].removeprefix("def ")
    file = f"<opmux {name} {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made: dict[str, Any] = {"__name__": __name__, "tl": tl, **names}
    # without this module's postponed annotations, under which Triton would not see the type of `v: "i64"`
    exec(compile(text, file, "exec", dont_inherit=True), made)
    return made[name]
