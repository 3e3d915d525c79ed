"""The tuning cache: the fastest tiles per chip, in files that many processes and ranks share.

One JSON file per chip, driver and set of versions, in `tuning/` of the cache directory (`OPMUX_CACHE_DIR`). A file is
replaced atomically, so a reader sees the old or the new one; writers merge under a lock, and a writer that does not get
it stores nothing. Only speed depends on this cache, never results: unreadable entries are skipped with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.log import logger
from ..core.tensors import dtype_name, size_class
from . import cache_dir
from .devices import Chip
from .settings import CACHE_DIR

FORMAT = 1
LOCK_TIMEOUT = 300.0  # seconds to wait for other writers; each takes milliseconds


@dataclass(frozen=True)
class Entry:
    """The result for one key: the tiles, and how they were measured."""

    tiles: dict[str, Any]  # warps, stages, sizes that differ from the default
    ms: float
    before_ms: float  # with the tiles that were used before
    op: str
    sample: str


def key(name: str, facts: Mapping[str, Any]) -> str:
    """`softmax.rows[dtype=bfloat16 n<=8192]`: lengths by their shape class, other facts by value."""
    return f"{name}[{' '.join(_word(k, facts[k]) for k in sorted(facts))}]"


def _word(fact: str, value: Any) -> str:
    if type(value) is int and value >= 0:
        return f"{fact}<={1 << (size_class(value) - 1) if value else 0}"
    return f"{fact}={dtype_name(value) if isinstance(value, torch.dtype) else value}"


# ---- where ----------------------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The folder of the files; None without a setting and a home directory."""
    root = cache_dir.root()
    return None if root is None else root / "tuning"


def path(chip: Chip, prefix: str = "") -> Path | None:
    """The file of a chip for the versions of this process; None for a chip that is not present."""
    folder = directory()
    if folder is None or not chip.name:
        return None
    facts = made_for(chip)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=5).hexdigest()
    return folder / f"{prefix}{re.sub(r'[^A-Za-z0-9]+', '_', chip.name).strip('_')}-{digest}.json"


def made_for(chip: Chip) -> dict[str, str]:
    """What a measured time depends on."""
    ours = sys.modules["opmux"]  # not imported: runtime depends on nothing above it
    return {
        "chip": chip.name,
        "arch": chip.arch or "",
        "driver": chip.driver,
        "torch": torch.__version__,
        "triton": _triton(),
        "opmux": ours.__version__,
    }


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a vendor's build of it, under another name
        return getattr(sys.modules.get("triton"), "__version__", "")


# ---- reading --------------------------------------------------------------------------------------------------------

_tables: dict[Chip, dict[str, Entry]] = {}
_warned: set[str] = set()


def find(chip: Chip, key: str) -> Entry | None:
    """The stored entry of a key for this chip."""
    table = _tables.get(chip)
    if table is None:
        table = _tables[chip] = entries(chip)
    return table.get(key)


def entries(chip: Chip) -> dict[str, Entry]:
    """All entries in the file of a chip."""
    file = path(chip)
    if file is None:
        return {}
    try:
        cache_dir.check(file.parent)
        return _read(file, made_for(chip))
    except FileNotFoundError:
        return {}
    except (OSError, _Unusable) as error:
        _warn_once(f"tuning cache {file} is ignored: {error}")
        return {}


def forget() -> None:
    """Drop the entries in memory: read the files again on next use."""
    _tables.clear()
    _warned.clear()


class _Unusable(ValueError):
    """A file without valid entries for this chip and these versions."""


def _read(file: Path, expected: dict[str, str]) -> dict[str, Entry]:
    """The entries of a file; damaged ones are skipped with one log line."""
    text = cache_dir.read(file)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not even text
        raise _Unusable(f"{type(error).__name__}: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _Unusable(f"it is not of format {FORMAT}")
    if data.get("made_for") != expected:
        raise _Unusable("it was made for another chip or other versions")
    if not isinstance(data.get("entries"), dict):
        raise _Unusable("it has no entries")
    made = {k: _entry(v) for k, v in data["entries"].items()}
    if bad := [ascii(k) for k, e in made.items() if e is None]:
        _warn_once(f"tuning cache {file}: damaged entries are skipped, of {len(made)}: {', '.join(bad)}")
    return {k: e for k, e in made.items() if e is not None}


def _entry(data: Any) -> Entry | None:
    try:
        made = Entry(**data)
    except TypeError:
        return None
    number = (int, float)
    right = isinstance(made.ms, number) and isinstance(made.before_ms, number)
    right = right and isinstance(made.op, str) and isinstance(made.sample, str)
    return made if right and isinstance(made.tiles, dict) else None


def _warn_once(line: str) -> None:
    if line not in _warned:
        _warned.add(line)
        logger.warning("%s", line)


# ---- writing --------------------------------------------------------------------------------------------------------


def store(chip: Chip, found: Mapping[str, Entry]) -> Path | None:
    """Add entries to the file of a chip; logs a warning and returns None if it cannot be written."""
    if not chip.name:
        raise ValueError(f"cannot store measurements of {chip}: this chip is not present")
    file = path(chip)
    if file is None:
        logger.warning("tuning results are not stored: there is no home directory. Set %s", CACHE_DIR.name)
        return None
    try:
        table = _merge(file, made_for(chip), found)
    except TimeoutError as error:
        logger.warning("tuning results are not stored: %s", error)
        return None
    except OSError as error:
        logger.warning("tuning results are not stored: %s. Set %s to a writable folder", error, CACHE_DIR.name)
        return None
    _tables[chip] = table
    return file


def _merge(file: Path, expected: dict[str, str], found: Mapping[str, Entry]) -> dict[str, Entry]:
    """Add entries to a file and return all its entries; OSError if that could lose another process's entries."""
    cache_dir.make(file.parent)
    with _exclusive(file.parent):
        cache_dir.sweep(file)
        table: dict[str, Entry] = {}
        try:
            table = _read(file, expected)
        except FileNotFoundError:
            pass
        except (cache_dir.NotTrusted, _Unusable) as error:
            cache_dir.move_aside(file, str(error))
        table |= found
        data = {"format": FORMAT, "made_for": expected, "entries": {k: asdict(table[k]) for k in sorted(table)}}
        cache_dir.replace(file, json.dumps(data, indent=1).encode() + b"\n")
    return table


def clear() -> list[Path]:
    """Remove all files of the cache, for every chip and version; returns the removed files."""
    folder = directory()
    gone = []
    try:
        if folder is not None and folder.is_dir():
            cache_dir.check(folder)
            with _exclusive(folder):
                for file in sorted([*folder.glob("*.json"), *folder.glob("*.json.damaged-*")]):
                    if not file.is_dir():
                        file.unlink(missing_ok=True)
                        gone.append(file)
    except OSError as error:
        logger.warning("the tuning cache is not cleared: %s", error)
    forget()
    return gone


def _exclusive(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Lock out other writers. A writer without the lock must not write: it would drop their entries."""
    return cache_dir.locked(folder / ".lock", LOCK_TIMEOUT, required=True)
