"""Compiles functions from source text that is made for one signature.

Such a function needs no loop over its arguments, which would take longer than the call itself.

The source is stored in `linecache`, so that tracebacks, debuggers and `inspect.getsource` show its lines.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import operator
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def function(text: str, name: str, where: str, names: dict[str, Any]) -> types.FunctionType:
    """The function `name` that `text` defines; `names` become its globals, `where` is its file in tracebacks."""
    # dont_inherit: this module's `from __future__ import annotations` must not apply, as Triton does not support it
    exec(compile(text, _remember(text, where), "exec", dont_inherit=True), names)
    return names[name]


def _remember(text: str, where: str) -> str:
    """Store source text in linecache under a unique file name."""
    lines, number = text.splitlines(keepends=True), 1
    while True:
        filename = f"<opmux {where}>" if number == 1 else f"<opmux {where} #{number}>"
        # no modification time: `linecache.checkcache` keeps such an entry
        entry = linecache.cache.setdefault(filename, (len(text), None, lines, filename))
        if entry[2:3] == (lines,):
            return filename
        number += 1


def lookup(
    make: Any,
    tensor_key: str,
    names: dict[str, Any],
    value: str = "{0}",
    then: str = "",
    params: Iterable[str] = (),
    calls: Mapping[str, str] = {},
    also: Mapping[str, str] = {},
) -> Any:
    """A function with `make`'s parameters that returns its cached result from `_found`, or calls `_make(key, *args)`.

    Each argument of `make` gives one part of the cache key, depending on its annotation. `Tensor` and `Tensor | None`
    (also `*args: Tensor`) give `tensor_key`; a list gives a tuple (also `int | list[int]` if `value` is the default);
    all others give `value`. A tuple literal takes half the time of a loop over the arguments.

    Args:
        tensor_key, value: expressions in which "{0}" stands for the argument.
        then: source appended to the cached result: "(x, eps)" calls it.
        params: the parameters in place of `make`'s, if `then` needs more.
        calls: expressions for parameters of `make` that callers do not pass.
        also: further names in `params`, each with an expression for the key; `_make` gets them after `make`'s
        parameters.
    """
    signature = inspect.signature(make, eval_str=True)
    own, passed, key = [], [], []
    for p in signature.parameters.values():
        name, annotation = calls.get(p.name, p.name), plain(p.annotation)
        if p.kind is p.VAR_POSITIONAL:
            own.append(f"*{name}")
            passed.append(f"*{name}")
            key.append(f"*[({tensor_key.format('t')}) for t in {name}]" if annotation is Tensor else f"*{name}")
            continue
        own.append(name)
        passed.append(name)
        if annotation is Tensor:
            key.append(tensor_key.format(name))
        elif annotation == Tensor | None:
            key.append(f"None if {name} is None else ({tensor_key.format(name)})")
        elif typing.get_origin(annotation) is list:
            key.append(f"tuple({name})")
        elif value == "{0}" and any(typing.get_origin(a) is list for a in typing.get_args(annotation)):
            key.append(f"tuple({name}) if type({name}) is list else {name}")
        else:
            key.append(value.format(name))
    passed += also
    key += [expression.format(name) for name, expression in also.items()]
    text = (
        f"def {make.__name__}({', '.join(params or own)}):\n"
        f"    key = ({', '.join(key)},)\n"
        "    try:\n        found = _found[key]\n    except KeyError:\n"
        f"        found = _make(key, {', '.join(passed)})\n"
        f"    return found{then}\n"
    )
    return function(text, make.__name__, f"lookup of {make.__module__}.{make.__name__}", dict(names))


def plain(annotation: Any) -> Any:
    """An annotation without rules: `Float[Tensor, "n"] | None` becomes `Tensor | None`."""
    if hasattr(annotation, "__metadata__"):
        return plain(annotation.__origin__)
    parts = typing.get_args(annotation)
    if not any(hasattr(p, "__metadata__") for p in parts):
        return annotation
    kind = typing.get_origin(annotation)
    return list[plain(parts[0])] if kind is list else functools.reduce(operator.or_, map(plain, parts))  # type: ignore[misc]
