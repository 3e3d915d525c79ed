"""Calls ATen's ops with the arguments of FlagGems' functions, which have other names, another order or other defaults.

Arguments that are already in ATen's form are passed on unchanged. Otherwise each argument goes to ATen's argument of
the same name or, if there is none, of the same position. A default that only FlagGems' function has is filled in.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..aten.schema import OverloadSchema
from . import names, original

# FlagGems' function -> ATen's op, if the op's name cannot be derived from the function's.
OPS = {
    "greater_out": "gt",
    "max_pool2d_backward": "max_pool2d_with_indices_backward",
    "nll_loss_nd_forward": "nll_loss_nd",
    "repeat_interleave_tensor": "repeat_interleave",
    "scaled_dot_product_attention": "scaled_dot_product_attention",
    "where_scalar_other": "where",
    "where_scalar_self": "where",
}
# FlagGems' function -> the arguments of ATen's op, in the order of FlagGems' arguments.
ORDERS = {
    "max_pool2d_backward": "grad_output self indices kernel_size stride padding dilation ceil_mode",
}
KEYWORDS = {"gen": "generator"}  # FlagGems' keyword -> ATen's
# FlagGems' argument -> the function in which it is ignored: ATen's op lacks it, and no value changes the result.
IGNORED = {"layout": "pixel_unshuffle", "requires_grad": "new_full"}


def target(function: str) -> tuple[Any, Any, Any] | None:
    """ATen's op for a function, its overload if only one fits, and a schema; None if ATen has no op for it."""
    keys = names.functions().get(function) if function not in OPS else None
    if keys is not None:
        shape = OverloadSchema(keys[0])
        return getattr(torch.ops.aten, shape.packet), shape.op if len(keys) == 1 else None, shape.op._schema
    plain, is_out = function.removesuffix("_out"), function.endswith("_out")
    for name in (OPS.get(function, plain), f"_{plain}"):
        packet = getattr(torch.ops.aten, name, None) if name and not name.startswith("__") else None
        if packet is not None:
            overload = getattr(packet, "out", None) if is_out else None
            return packet, overload, (overload or getattr(packet, packet.overloads()[0]))._schema
    return None


def call_of(function: str) -> Callable[..., Any] | None:
    """The function that takes FlagGems' arguments and calls ATen's op; None if ATen has no op for it."""
    found = target(function)
    if found is None:
        return None
    packet, overload, schema = found
    run = packet if overload is None else overload
    theirs = original.signature(function)
    convert = None if theirs is None else _conversion(function, theirs, schema)
    by_position = [a for a in schema.arguments if not a.kwarg_only]
    by_name = {a.name: a for a in schema.arguments}

    def call(*args: Any, **kwargs: Any) -> Any:
        converted = None if convert is None else convert(args, kwargs)
        positional, named, through_packet = (list(args), kwargs, False) if converted is None else converted
        values = [*zip(by_position, positional), *((by_name[n], v) for n, v in named.items() if n in by_name)]
        if any(isinstance(value, int | float | complex) and _is_tensor(a) for a, value in values):
            through_packet = True  # the packet finds the overload that takes a number
        lists = {a.name: [value] * a.N for a, value in values if type(value) is int and _is_list(a)}
        if lists:
            positional = [lists.get(a.name, value) for a, value in zip(by_position, positional)]
            named = {name: lists.get(name, value) for name, value in named.items()}
        return (packet if through_packet else run)(*positional, **named)

    return call


def _is_tensor(argument: Any) -> bool:
    return str(argument.type) in ("Tensor", "Optional[Tensor]")


def _is_list(argument: Any) -> bool:
    return bool(argument.N) and "List[int]" in str(argument.type)


Converted = tuple[list[Any], dict[str, Any], bool]


def _conversion(
    function: str, theirs: inspect.Signature, schema: Any
) -> Callable[[tuple[Any, ...], dict[str, Any]], Converted | None]:
    """Return a function that converts a call's arguments to those of ATen's op, or returns None if they are ATen's."""
    ours = {a.name: a for a in schema.arguments}
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    order = ORDERS[function].split() if function in ORDERS else positional
    renamed: dict[str, str] = {}  # FlagGems' argument -> ATen's; missing if the op lacks it
    same = set(theirs.parameters) & set(ours) if function not in ORDERS else set()
    for i, (name, parameter) in enumerate(theirs.parameters.items()):
        if name in same:
            renamed[name] = name
        elif KEYWORDS.get(name) in ours:
            renamed[name] = KEYWORDS[name]
        elif parameter.kind is not parameter.KEYWORD_ONLY and i < len(order) and order[i] not in same:
            renamed[name] = order[i]
    defaults = {name: _value(p.default) for name, p in theirs.parameters.items() if p.default is not p.empty}

    def convert(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Converted | None:
        if all(name in ours and name not in theirs.parameters for name in kwargs) and kwargs:
            return None
        try:
            given = theirs.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        values: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in given.items():
            if name in renamed:
                values[renamed[name]] = value
            elif not (_equal(value, defaults.get(name, _NOT_A_LITERAL)) or function == IGNORED.get(name)):
                extra[name] = value
        for name, value in defaults.items():
            new_name = renamed.get(name)
            if new_name is not None and new_name not in values and not ours[new_name].has_default_value():
                values[new_name] = value
        through_packet = bool(extra)
        for name in [n for n, value in values.items() if value is None and not _takes_none(ours[n])]:
            del values[name]
            through_packet = True
        lead: list[Any] = []
        for name in positional:
            if name not in values:
                break
            lead.append(values.pop(name))
        return lead, {**values, **extra}, through_packet

    return convert


_NOT_A_LITERAL = object()


def _equal(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float) and value == default)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return _NOT_A_LITERAL  # a name such as torch.strided: ATen has a default for it


def _takes_none(argument: Any) -> bool:
    return "Optional" in str(argument.type) or (argument.has_default_value() and argument.default_value is None)
