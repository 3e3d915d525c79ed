"""Recognizes what a function computes from its source code, independent of the names of the function and its variables.

`transformers` has separate classes for each model, but few different sources: 136 classes have LlamaRMSNorm's code. A
form is a digest of the source and of the helpers that it calls, without variable names, annotations and docstrings. A
function of an unknown form is not replaced: the model computes something else, or the version is new.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any, NamedTuple

# Decorators from these packages handle outputs and docstrings; they do not change what a forward computes.
DECORATING = ("transformers", "torch")


def form(fn: Callable[..., Any], owner: type | None = None) -> str | None:
    """The form of a function, or of a method of class `owner`; None without a source, or with a user's decorator.

    Only parsed sources are cached: a user may replace a function or a helper at any time.
    """
    text = _canonical(fn, owner, ())
    return None if text is None else hashlib.blake2s(text.encode(), digest_size=6).hexdigest()


def unwrapped(fn: Any) -> Any:
    """Remove decorators that set `__wrapped__`, and return the function; None if a decorator is the user's own."""
    while hasattr(fn, "__wrapped__"):
        home = getattr(fn, "__globals__", {}).get("__name__", "")
        if home.partition(".")[0] not in DECORATING:
            return None
        fn = fn.__wrapped__
    return fn


def home_of(fn: Any) -> types.ModuleType | None:
    """The module whose globals a function reads; None if there is no such module."""
    space = getattr(fn, "__globals__", {})
    module = sys.modules.get(space.get("__name__", ""))
    return module if module is not None and vars(module) is space else None


def is_own(fn: Any, home: types.ModuleType) -> bool:
    """Whether a function was defined in a module, and is not a user's replacement."""
    return inspect.isfunction(fn) and fn.__code__.co_filename == home.__file__


def parsed(fn: Callable[..., Any]) -> ast.FunctionDef | None:
    """The syntax tree of a function's definition, without decorators of libraries."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(unwrapped(fn))))
    except (OSError, TypeError, SyntaxError):
        return None
    return tree.body[0] if isinstance(tree.body[0], ast.FunctionDef) else None


class Source(NamedTuple):
    """The source of a function without variable names, and the functions that it calls."""

    text: str
    functions: frozenset[str]  # global names
    methods: frozenset[str]  # names of methods of self


_sources: dict[types.CodeType, Source | None] = {}


def _source(fn: Any) -> Source | None:
    code = getattr(unwrapped(fn), "__code__", None)
    if code is None:
        return None
    if code not in _sources:
        definition = parsed(fn)
        _sources[code] = None if definition is None else _read(definition)
    return _sources[code]


def _read(definition: ast.FunctionDef) -> Source:
    called = [node.func for node in ast.walk(definition) if isinstance(node, ast.Call)]
    functions = frozenset(node.id for node in called if isinstance(node, ast.Name))
    methods = frozenset(
        node.attr for node in called if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    )
    first, *rest = definition.body
    body = rest if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else [first, *rest]
    rename = _Renamed().visit
    text = _text([rename(definition.args), *(rename(statement) for statement in body)])
    return Source(text, functions, methods)


def _canonical(fn: Any, owner: type | None, above: tuple[str, ...]) -> str | None:
    source = _source(fn)
    if source is None:
        return None
    helpers = sorted(_helpers(unwrapped(fn), owner, source), key=lambda helper: helper.__name__)
    texts = [_canonical(helper, owner, (*above, fn.__name__)) for helper in helpers if helper.__name__ not in above]
    return None if None in texts else "\n".join([source.text, *(text or "" for text in texts)])


def _text(node: Any) -> str:
    """A syntax tree as text, equal in all Python versions (unlike the text of `ast.dump` and `ast.unparse`)."""
    if isinstance(node, list):
        return ",".join(map(_text, node))
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [value for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment")]
    return f"{type(node).__name__}({';'.join(_text(value) for value in fields if value not in (None, []))})"


def _helpers(fn: Any, owner: type | None, source: Source) -> set[Callable[..., Any]]:
    """The functions of the same file that a function calls: methods of its class and functions of its module."""
    helpers = {fn.__globals__.get(name) for name in source.functions if inspect.isfunction(fn.__globals__.get(name))}
    if owner is not None:
        helpers |= {getattr(owner, name, None) for name in source.methods}
    return {helper for helper in helpers if inspect.isfunction(helper) and helper.__module__ == fn.__module__}


class _Renamed(ast.NodeTransformer):
    """Renames arguments and variables to v0, v1, ... in order of appearance, and drops annotations."""

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
