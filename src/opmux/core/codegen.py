"""Functions made from source text, for calls so short that a loop or a packed argument list would show.

The text is kept in `linecache`, so that tracebacks, debuggers and `inspect.getsource` show its lines.
"""

from __future__ import annotations

import inspect
import linecache
import types
import typing
from collections.abc import Iterable
from typing import Any

from torch import Tensor


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


def lookup(
    make: Any, look: str, names: dict[str, Any], value: str = "{0}", then: str = "", params: Iterable[str] = ()
) -> Any:
    """A function of `make`'s parameters that finds its result in the dict `_found`, or calls `_make(key, *arguments)`.

    The key has `look` of each argument annotated `Tensor` or `Tensor | None` (also as `*args: Tensor`), a list as a
    tuple, and `value` of all others; both are expressions of "{0}". One tuple display is half the time of a loop over
    the arguments. `then`: what is done with the result ("(x, eps)": it is called); `params`: parameters other than
    make's, if `then` needs more.
    """
    signature = inspect.signature(make, eval_str=True)
    own, passed, key = [], [], []
    for p in signature.parameters.values():
        name = p.name
        if p.kind is p.VAR_POSITIONAL:
            own.append(f"*{name}")
            passed.append(f"*{name}")
            key.append(f"*[({look.format('t')}) for t in {name}]" if p.annotation is Tensor else f"*{name}")
            continue
        own.append(name)
        passed.append(name)
        if p.annotation is Tensor:
            key.append(look.format(name))
        elif p.annotation == Tensor | None:
            key.append(f"None if {name} is None else ({look.format(name)})")
        elif typing.get_origin(p.annotation) is list:
            key.append(f"tuple({name})")
        else:
            key.append(value.format(name))
    text = (
        f"def {make.__name__}({', '.join(params or own)}):\n"
        f"    key = ({', '.join(key)},)\n"
        "    try:\n        found = _found[key]\n    except KeyError:\n"
        f"        found = _make(key, {', '.join(passed)})\n"
        f"    return found{then}\n"
    )
    return function(text, make.__name__, f"lookup of {make.__module__}.{make.__name__}", dict(names))
