"""The table of real shapes: calls of ATen's ops that models make, and sizes for the ops of `opmux.ops`.

`real_shapes.json` has three parts. "aten" has calls, written by `benchmarks/collect_shapes.py`. There, `T[4x1024x768]`
is a tensor of the dtype under test, and `float32[768]` a tensor that always has this dtype. Strides of a tensor that is
not contiguous follow `@`. "ops" has cases for families of ops, with the shape, layout and options of their samples.
"models" says where the sizes come from.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.tensors import dtype_name

FILE = Path(__file__).with_name("real_shapes.json")
_TENSOR = re.compile(r"^(?P<dtype>\w+)\[(?P<shape>[\dx]*)\](?:@(?P<stride>[\d,]+))?$")
UNDER_TEST = "T"  # stands for the name of the dtype under test


@dataclass(frozen=True)
class TensorSpec:
    """The dtype, shape and strides of a tensor argument. dtype None is the dtype under test."""

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None  # None: contiguous

    def __str__(self) -> str:
        kind = UNDER_TEST if self.dtype is None else dtype_name(self.dtype)
        strides = "" if self.stride is None else "@" + ",".join(map(str, self.stride))
        return f"{kind}[{'x'.join(map(str, self.shape))}]{strides}"

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def of(cls, t: Tensor, under_test: torch.dtype) -> TensorSpec:
        dtype = None if t.dtype is under_test else t.dtype
        return cls(dtype, tuple(t.shape), None if t.is_contiguous() else t.stride())

    @classmethod
    def read(cls, text: str) -> TensorSpec | None:
        match = _TENSOR.match(text)
        if match is None:
            return None
        dtype = None if match["dtype"] == UNDER_TEST else getattr(torch, match["dtype"])
        numbers = lambda sizes, mark: tuple(int(n) for n in sizes.split(mark)) if sizes else ()
        return cls(dtype, numbers(match["shape"], "x"), numbers(match["stride"], ",") or None)


@dataclass(frozen=True)
class ModelCall:
    """A call of an overload of ATen. Arguments are numbers, strings, dtypes, lists of these, or a `TensorSpec`."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    models: tuple[str, ...]

    @property
    def tensor_specs(self) -> list[TensorSpec]:
        return [leaf for leaf in _leaves((self.args, self.kwargs)) if isinstance(leaf, TensorSpec)]

    def __str__(self) -> str:
        texts = [_argument_text(a) for a in self.args] + [f"{k}={_argument_text(v)}" for k, v in self.kwargs.items()]
        return " ".join(texts)


@dataclass(frozen=True)
class Sized:
    """A case for the samples of some families: of all their ops, or of the ops that `ops` selects."""

    families: tuple[str, ...]
    ops: tuple[str, ...]  # globs; empty: all ops
    shape: tuple[int, ...]
    models: tuple[str, ...]
    layout: str = "packed"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ShapeTable:
    models: dict[str, str]
    calls: tuple[ModelCall, ...]
    sized: tuple[Sized, ...]
    without: dict[str, str]  # op without a row -> the reason


@functools.cache
def read(file: Path = FILE) -> ShapeTable:
    data = json.loads(file.read_text(encoding="utf-8"))
    calls = tuple(
        ModelCall(op, tuple(map(_decoded, args)), {k: _decoded(v) for k, v in kwargs.items()}, tuple(models))
        for op, args, kwargs, models in data["aten"]
    )
    return ShapeTable(data["models"], calls, tuple(_sized(data["ops"])), data["without"])


def _sized(rows: Iterable[dict[str, Any]]) -> Iterator[Sized]:
    for row in rows:
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in row.get("options", {}).items()}
        for models, shapes in row["shapes"].items():
            for shape in shapes:
                yield Sized(
                    tuple(row["families"].split()),
                    tuple(row.get("only", "").split()),
                    tuple(shape),
                    tuple(models.split(", ")),
                    row.get("layout", "packed"),
                    options,
                )


# ---- as text --------------------------------------------------------------------------------------------------------


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _argument_text(value: Any) -> str:
    if isinstance(value, TensorSpec):
        return str(value)
    return UNDER_TEST if value is UnderTest else repr(value).replace("torch.", "")


def _encoded(value: Any, under_test: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return str(TensorSpec.of(value, under_test))
    if isinstance(value, (list, tuple)):
        return [_encoded(v, under_test) for v in value]
    if isinstance(value, torch.dtype):
        return f"torch.{UNDER_TEST}" if value is under_test else str(value)
    return str(value) if isinstance(value, torch.memory_format) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    if not isinstance(value, str):
        return value
    if value == f"torch.{UNDER_TEST}":
        return UnderTest
    if value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return TensorSpec.read(value) or value


class UnderTest:
    """Placeholder for an argument that is the dtype under test."""


def text_of(args: Any, kwargs: dict[str, Any], under_test: torch.dtype) -> str:
    """A call's arguments as one line of JSON. Equal calls give equal lines."""
    return json.dumps([_encoded(list(args), under_test), {k: _encoded(v, under_test) for k, v in kwargs.items()}])


def _tensor_specs(text: str) -> list[TensorSpec]:
    specs = (TensorSpec.read(leaf) for leaf in _leaves(json.loads(text)) if isinstance(leaf, str))
    return [spec for spec in specs if spec is not None]


def class_of(text: str) -> tuple:
    """A key that similar calls have in common: dtypes, bit lengths of sizes, contiguity, small numbers."""
    tensors = [(k.dtype, *(n.bit_length() for n in k.shape), k.stride is None) for k in _tensor_specs(text)]
    others = [v for v in _leaves(json.loads(text)) if isinstance(v, (bool, int)) and -8 < v < 8]
    return (*tensors, *others)


def elements(text: str) -> int:
    return sum(k.numel for k in _tensor_specs(text))


def oddness(text: str) -> int:
    """The number of sizes above 16 that are not a multiple of 16."""
    return sum(1 for k in _tensor_specs(text) for n in k.shape if n > 16 and n % 16)


def write_calls(calls: Iterable[tuple[str, str, list[str]]], file: Path = FILE) -> None:
    """Replace all calls under "aten" by these, one per line."""
    data = json.loads(file.read_text(encoding="utf-8"))
    data["aten"] = [[op, *json.loads(text), models] for op, text, models in calls]
    file.write_text(_page(data), encoding="utf-8")


def _page(data: dict[str, Any]) -> str:
    """The table as JSON, with one line per call or case."""
    parts = []
    for name, value in data.items():
        if isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            parts.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value, indent=2)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
