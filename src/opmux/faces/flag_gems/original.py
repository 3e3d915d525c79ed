"""The public names of FlagGems and the arguments of its functions: `original.txt`, by `tools/gems_census.py`.

opmux reads from it which modules exist, and in which order a function takes its arguments.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

Row = tuple[str, str, str]  # module, name, what the name is


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows; each name that a package exports is a row of its own."""
    found: list[Row] = []
    for line in Path(__file__).with_name("original.txt").read_text(encoding="utf-8").splitlines():
        module, name, what = line.split(" ", 2)
        source, _, names = what.partition(": ")
        found += [(module, each, source) for each in names.split()] if name == "*" else [(module, name, what)]
    return tuple(found)


@functools.cache
def modules() -> tuple[str, ...]:
    """The names of FlagGems' modules without the prefix `flag_gems.`; modules of vendors are left out."""
    return tuple(
        dict.fromkeys(module for module, _, what in rows() if module != "." and not what.startswith("module "))
    )


@functools.cache
def exports(package: str) -> tuple[str, ...]:
    """The names that a package exports: "ops", "fused", "utils", ..."""
    return tuple(name for module, name, what in rows() if module == package and what.startswith("from "))


@functools.cache
def _kinds() -> dict[tuple[str, str], str]:
    return {(module, name): what for module, name, what in rows()}


def what(module: str, name: str) -> str:
    """What a name is; "" if FlagGems does not have it."""
    return _kinds().get((module, name), "")


@functools.cache
def labels() -> dict[str, str]:
    """Function -> how FlagGems' log names it, if that is not the function's name in capitals."""
    lines = Path(__file__).with_name("logged.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


@functools.cache
def homes() -> dict[str, str]:
    """Function of `flag_gems.ops` -> the module that defines it: "ops.add"."""
    return {name: module for module, name, what in rows() if module.startswith("ops.") and what.startswith("(")}


@functools.cache
def _texts() -> dict[str, str]:
    """Function of `flag_gems.ops` -> its arguments as text."""
    return {name: what for module, name, what in rows() if module.startswith("ops.") and what.startswith("(")}


@functools.cache
def signature(function: str) -> inspect.Signature | None:
    """The arguments of a function of `flag_gems.ops`, without annotations; a default is its source text.

    None for a function that is not listed, and for one with `*args` or `**kwargs`, whose arguments are ATen's.
    """
    import ast

    text = _texts().get(function)
    if text is None:
        return None
    node = ast.parse(f"def f{text}: pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    args, kind = node.args, inspect.Parameter
    if args.vararg or args.kwarg:
        return None
    plain = [*args.posonlyargs, *args.args]
    found = [
        kind(a.arg, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if d is None else ast.unparse(d))
        for a, d in zip(plain, [None] * (len(plain) - len(args.defaults)) + list(args.defaults), strict=True)
    ]
    found += [
        kind(a.arg, kind.KEYWORD_ONLY, default=kind.empty if d is None else ast.unparse(d))
        for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return inspect.Signature(found)
