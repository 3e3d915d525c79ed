"""Names for shell completion, read from files: importing torch would take seconds at every press of the tab key."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def ops(begin: str) -> list[str]:
    """The ops whose names begin with `begin`; functions of tex have the prefix `tex::`."""
    own, tex = _functions("ops.pyi"), [f"tex::{name}" for name in _functions("tex.pyi")]
    return [name for name in (*own, *tex) if name.startswith(begin)]


def _functions(stub: str) -> list[str]:
    try:
        text = (PACKAGE / stub).read_text(encoding="utf-8")
    except OSError:  # an installation without stubs completes nothing
        return []
    return sorted(set(re.findall(r"^def (\w+)\(", text, re.MULTILINE)))


def families(begin: str) -> list[str]:
    own = [path.stem for path in (PACKAGE / "specs").glob("[a-z]*.py")]
    tex = [f"tex_{path.stem}" for path in (PACKAGE / "faces" / "tex" / "ops").glob("[a-z]*.py")]
    return sorted(name for name in (*own, *tex) if name.startswith(begin) and name != "samples")
