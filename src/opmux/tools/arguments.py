"""Parses dtypes, shapes and devices of the command line; an error lists the allowed values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import torch

from ..core import machine
from ..core.errors import OpmuxError, nearest

DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool".split()
# The limit for a tensor. Arguments are allocated, and for a larger shape the system's OOM killer may end the process.
LARGEST = 2**28
SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SHORT |= {"double": "float64", "float": "float32", "half": "float16", "int": "int32"}


class BadOption(OpmuxError, ValueError):
    """A command-line option has an invalid value."""


def dtype(text: str, allowed: Iterable[str] = DTYPES) -> torch.dtype:
    """Parse a dtype, such as `bfloat16`, `bf16` or `torch.bfloat16`."""
    allowed = list(allowed)
    name = text.strip().casefold().removeprefix("torch.")
    name = SHORT.get(name, name)
    if name not in allowed:
        close = nearest(name, allowed)
        hint = f": did you mean {close}?" if close else "."
        raise BadOption(f"--dtype {text!r} is not allowed here{hint} Allowed: {', '.join(allowed)}")
    return getattr(torch, name)


def parts(values: Iterable[str]) -> Iterator[str]:
    """The values of a repeatable option. One word may have several values, separated by spaces: "4096x4096 8x128"."""
    return (part for value in values for part in value.split())


def shape(text: str, largest: int = LARGEST) -> tuple[int, ...]:
    """Parse a shape: `4096x4096`, `8,128,64` or `37`. Raises if it has more than `largest` elements."""
    sizes = re.split(r"\s*[x*,]\s*", text.strip().casefold())
    if not all(re.fullmatch(r"[0-9]+", s) for s in sizes):
        raise BadOption(f"--shape {text!r} cannot be read. Allowed: sizes with x between them, such as 4096x4096")
    dims = tuple(map(int, sizes))
    if math.prod(dims) > largest:
        raise BadOption(f"--shape {text!r} is too large to make tensors of. Allowed: up to {largest} elements")
    return dims


def devices() -> list[str]:
    """The device types of this machine; the default comes first."""
    return [*machine.accelerators(), "cpu"]


def device(text: str | None) -> torch.device:
    """Parse a device of this machine. None stands for its accelerator, or for the CPU if there is no accelerator."""
    have = devices()
    if text is None:
        return torch.device(have[0])
    try:
        parsed = torch.device(text.strip().casefold())
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in have:
        raise BadOption(f"--device {text!r} is not on this machine. Allowed: {', '.join(have)}")
    count = 1 if parsed.type == "cpu" else torch.accelerator.device_count()
    if (parsed.index or 0) >= count:
        raise BadOption(
            f"--device {text!r} is not on this machine. Allowed: {parsed.type}:0 to {parsed.type}:{count - 1}"
        )
    return parsed
