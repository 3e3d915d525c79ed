"""The tuning cache: the fastest tiles per chip, in the user's files (`speed_files`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.tensors import dtype_name, size_class
from ..machine.devices import Chip
from . import speed_files
from .speed_files import SpeedFiles


@dataclass(frozen=True)
class Entry:
    """The result for one key: the tiles, and how they were measured."""

    tiles: dict[str, Any]  # warps, stages, and those sizes that differ from the default
    ms: float
    before_ms: float  # ms with the tiles that were used before tuning
    op: str
    sample: str

    @classmethod
    def of_data(cls, data: Any) -> Entry:
        entry, number = cls(**data), (int, float)
        right = isinstance(entry.ms, number) and isinstance(entry.before_ms, number) and isinstance(entry.tiles, dict)
        if not (right and isinstance(entry.op, str) and isinstance(entry.sample, str)):
            raise ValueError(f"expected tiles, milliseconds, op and sample, got {data!r}")
        return entry


FILES = SpeedFiles("", Entry.of_data, asdict)
path, directory = FILES.path, speed_files.directory


def key(name: str, facts: Mapping[str, Any]) -> str:
    """The key `softmax.rows[dtype=bfloat16 n<=8192]`: lengths appear by shape class, other facts by value."""
    return f"{name}[{' '.join(_fact_text(k, facts[k]) for k in sorted(facts))}]"


def _fact_text(fact: str, value: Any) -> str:
    if type(value) is int and value >= 0:
        return f"{fact}<={1 << (size_class(value) - 1) if value else 0}"
    return f"{fact}={dtype_name(value) if isinstance(value, torch.dtype) else value}"


_tables: dict[Chip, dict[str, Entry]] = {}


def find(chip: Chip, key: str) -> Entry | None:
    """The stored entry of a key for this chip."""
    table = _tables.get(chip)
    if table is None:
        table = _tables[chip] = entries(chip)
    return table.get(key)


def entries(chip: Chip) -> dict[str, Entry]:
    """All entries in the file of a chip."""
    return FILES.measured(chip)


def store(chip: Chip, measured: Mapping[str, Entry]) -> Path | None:
    """Add entries to the file of a chip. Logs a warning and returns None if the file cannot be written."""
    file = FILES.store(chip, measured)
    _tables.pop(chip, None)
    return file


def clear() -> list[Path]:
    """Remove all files of measured times from the cache, for every chip and version. Returns the removed files."""
    removed = speed_files.clear()
    forget()
    return removed


def forget() -> None:
    """Drop the entries in memory, so that the files are read again on next use."""
    _tables.clear()
    speed_files.forget_warnings()
