"""Type stubs of the modules with dynamic attributes, `opmux/ops.pyi` and `opmux/tex.pyi`, generated from the specs.

Editors and type checkers read them; `python tools/docs.py` writes them next to the modules, and its `--check`
fails if one is out of date.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import torch

from opmux.core.spec import NAME_LOOKUP, Spec, specs
from opmux.faces.tex import interface, versions

HEAD = '''"""{doc} Made by `make docs` from the specs; do not edit."""

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

'''
# In a stub, a function hides a type of the same name from later lines, so `torch.` precedes dtype and device.
QUALIFIED = {torch.Tensor: "Tensor", torch.dtype: "torch.dtype", torch.device: "torch.device"}


def ops_stub() -> str:
    """The stub of `opmux.ops`: the primitives and the fused ops, under their names in `opmux.ops`."""
    declared: dict[str, Spec] = {}
    for space in reversed(NAME_LOOKUP["ops"]):
        declared |= {s.name: s for s in specs if s.space == space and s.primitive and not s.name.startswith("_")}
    body = "\n\n".join(_function(s.name, s.signature, s.doc) for _, s in sorted(declared.items()))
    return HEAD.format(doc="The ops of opmux.ops.").replace("from enum import IntEnum\n", "") + body + "\n"


def tex_stub() -> str:
    """The stub of `opmux.tex`, in its newest version."""
    parts = [_enum(e) for _, e in sorted(versions.enums(versions.NEWEST).items())]
    parts += [_opaque(name) for name in sorted({*interface.CLASSES, "TEXBackendBase"})]
    parts += [
        _function(s.name, interface.shown_signature(s), s.doc)
        for s in interface.tex_specs()
        if s.name not in interface.INSIDE
    ]
    parts += [f"def {n}(*args: Any, **kwargs: Any) -> Any: ..." for n in interface.MANAGEMENT if n != "TEXBackendBase"]
    return HEAD.format(doc="Transformer Engine's functions over opmux.") + "\n\n".join(parts) + "\n"


def _function(name: str, signature: inspect.Signature, doc: str) -> str:
    params: list[str] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in params:
            params.append("*")
        text = f"{p.name}: {_type(p.annotation)}"
        params.append(text if p.default is p.empty else f"{text} = {_default(p.default)}")
    returns = _type(signature.return_annotation)
    lines = "\n".join(f"    {line}".rstrip() for line in doc.replace("\\", "\\\\").splitlines())
    text = f'    """{lines.strip()}\n    """' if "\n" in lines else f'    """{lines.strip()}"""'
    return f"def {name}({', '.join(params)}) -> {returns}:\n{text}"


def _default(value: Any) -> str:
    plain = isinstance(value, (bool, int, float, str, type(None), torch.dtype)) and value == value
    return repr(value) if plain and value not in (float("inf"), float("-inf")) else "..."


def _type(annotation: Any) -> str:
    if annotation in (inspect.Parameter.empty, Any):
        return "Any"
    if annotation in (None, type(None)):
        return "None"
    if annotation in QUALIFIED:
        return QUALIFIED[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(a) for a in args)
    if origin is not None and args:
        name = re.sub(r"^collections\.abc\.", "", getattr(origin, "__name__", "Any"))
        return f"{name if name in ('list', 'tuple', 'dict') else 'list'}[{', '.join(map(_type, args))}]"
    if annotation in (int, float, bool, str, list, tuple, dict, complex):
        return annotation.__name__
    return "Any"


def _enum(enum: type[IntEnum]) -> str:
    return "\n".join([f"class {enum.__name__}(IntEnum):", *(f"    {m.name} = {int(m)}" for m in enum)])


def _opaque(name: str) -> str:
    return (
        f"class {name}:\n"
        "    def __init__(self, *args: Any, **kwargs: Any) -> None: ...\n"
        "    def __getattr__(self, name: str) -> Any: ..."
    )


def stubs() -> Iterable[tuple[str, str]]:
    """The file name and the text of each stub."""
    yield "ops.pyi", ops_stub()
    yield "tex.pyi", tex_stub()
