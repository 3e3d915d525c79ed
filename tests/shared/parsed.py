"""Source files as syntax trees, each parsed once per test run.

The cache key is the text, so a changed file is parsed again. Tests share the trees and must not modify them.
"""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path


def tree(path: Path) -> ast.Module:
    return _parse(path.read_text(encoding="utf-8"), str(path))


def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes of `ast.walk`, cached in the tree."""
    nodes = tree.__dict__.get("walked")
    if nodes is None:
        nodes = tree.__dict__["walked"] = tuple(ast.walk(tree))
    return nodes


@functools.cache
def _parse(text: str, path: str) -> ast.Module:
    collecting = gc.isenabled()
    gc.disable()  # garbage collections would double the time: a million new objects, and no garbage
    try:
        return ast.parse(text, path)
    finally:
        if collecting:
            gc.enable()
