"""Source files as syntax trees, each parsed once in a run of the tests.

A tree is found by the text of its file, so one that has changed is parsed anew. Tests share them: change none.
"""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path


def tree(path: Path) -> ast.Module:
    return _parse(path.read_text(encoding="utf-8"), str(path))


def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes of `ast.walk`, which are remembered at the tree."""
    found = tree.__dict__.get("walked")
    if found is None:
        found = tree.__dict__["walked"] = tuple(ast.walk(tree))
    return found


@functools.cache
def _parse(text: str, path: str) -> ast.Module:
    collecting = gc.isenabled()
    gc.disable()  # a million new objects, none of them garbage: to look through them again and again takes as long
    try:
        return ast.parse(text, path)
    finally:
        if collecting:
            gc.enable()
