"""Recognises what a function computes by its source, whatever it is called and however its variables are named.

The classes of `transformers` are written out for each model, in few forms: 136 classes normalise as LlamaRMSNorm does.
A form is a digest of the source without names of variables, annotations and docstrings, and of the helpers that it
calls. A function of another form (a model that computes something else, a new version) is not recognised, and stays.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


@functools.cache
def form(fn: Callable[..., Any], owner: type | None = None) -> str | None:
    """The form of a function, or of a method of a class; None if its source cannot be read."""
    text = _canonical(fn, owner, ())
    return None if text is None else hashlib.blake2s(text.encode(), digest_size=6).hexdigest()


def parsed(fn: Callable[..., Any]) -> ast.FunctionDef | None:
    """The definition of a function, under decorators that keep it as `__wrapped__`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(fn))))
    except (OSError, TypeError, SyntaxError):
        return None
    return tree.body[0] if isinstance(tree.body[0], ast.FunctionDef) else None


def _canonical(fn: Callable[..., Any], owner: type | None, above: tuple[str, ...]) -> str | None:
    definition = parsed(fn)
    if definition is None:
        return None
    helpers = sorted(_helpers(inspect.unwrap(fn), owner, definition), key=lambda helper: helper.__name__)
    texts = [_canonical(helper, owner, (*above, fn.__name__)) for helper in helpers if helper.__name__ not in above]
    first, *rest = definition.body
    body = rest if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else [first, *rest]
    rename = _Renamed().visit
    own = _text([rename(definition.args), *(rename(statement) for statement in body)])
    return None if None in texts else "\n".join([own, *(text or "" for text in texts)])


def _text(node: Any) -> str:
    """A tree as text, the same in all versions of Python (`ast.dump` and `ast.unparse` are not)."""
    if isinstance(node, list):
        return ",".join(map(_text, node))
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [value for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment")]
    return f"{type(node).__name__}({';'.join(_text(value) for value in fields if value not in (None, []))})"


def _helpers(fn: Any, owner: type | None, definition: ast.FunctionDef) -> set[Callable[..., Any]]:
    """The functions of the same file that it calls: methods of its class, and functions of its module."""
    found: set[Callable[..., Any]] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            helper = fn.__globals__.get(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and owner is not None:
            helper = getattr(owner, node.func.attr, None) if ast.unparse(node.func.value) == "self" else None
        else:
            continue
        if inspect.isfunction(helper) and helper.__module__ == fn.__module__:
            found.add(helper)
    return found


class _Renamed(ast.NodeTransformer):
    """Names arguments and variables v0, v1, ... in order of appearance, and drops annotations."""

    def __init__(self):
        self.names: dict[str, str] = {}

    def _new(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg, node.annotation = self._new(node.arg), None
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if isinstance(node.ctx, ast.Store) or node.id in self.names:
            node.id = self._new(node.id)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.visit(ast.copy_location(plain, node))
