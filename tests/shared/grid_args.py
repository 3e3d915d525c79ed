"""Arguments of elementwise ops: all combinations of some values."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from opmux.specs import pointwise


def required(name: str) -> list[inspect.Parameter]:
    """The tensor arguments of an op that have no default."""
    params = pointwise.ops[name].spec.signature.parameters.values()
    return [p for p in params if p.default is p.empty and p.name not in pointwise.ROWS[name].numbers]


def grid_args(name: str, values: torch.Tensor) -> list[Any]:
    """The op's arguments, with all combinations of the values for the required ones."""
    need, numbers = required(name), pointwise.ROWS[name].numbers
    grids = iter(torch.meshgrid(*[values] * len(need), indexing="ij") if len(need) > 1 else [values])
    args = []
    for p in pointwise.ops[name].spec.signature.parameters.values():
        if p.name in numbers:
            args.append(numbers[p.name])
        elif p in need:
            t = next(grids)
            args.append(t > 0 if p.name in ("condition", "mask") else t)
        else:
            args.append(p.default)
    return args
