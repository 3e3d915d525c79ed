"""The tuning cache: which tiles were fastest on which chip, in files that many processes and ranks share.

One JSON file for each chip, driver and set of versions, in `tuning/` of the cache directory (`OPMUX_CACHE_DIR`). A file
is replaced as a whole, so a reader sees the old one or the new one; writers merge under a lock, and a writer that does
not get it stores nothing. Results never depend on this cache, only speed: what cannot be read is left out, with a
warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
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
PATIENCE = 300.0  # seconds to wait for other writers; each takes milliseconds


@dataclass(frozen=True)
class Entry:
    """What was found for one key: the tiles, and how it was measured."""

    tiles: dict[str, Any]  # threads, stages, sizes: where they are not the default's
    ms: float
    before_ms: float  # with the tiles that held until then
    op: str
    sample: str


def key(name: str, facts: Mapping[str, Any]) -> str:
    """`softmax.rows[dtype=bfloat16 n<=8192]`: lengths by their shape class, all else as it is."""
    return f"{name}[{' '.join(_word(k, facts[k]) for k in sorted(facts))}]"


def _word(fact: str, value: Any) -> str:
    if type(value) is int and value >= 0:
        return f"{fact}<={1 << (size_class(value) - 1) if value else 0}"
    return f"{fact}={dtype_name(value) if isinstance(value, torch.dtype) else value}"


# ---- where ----------------------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The folder of the files; None where there is neither a setting nor a home."""
    root = cache_dir.root()
    return None if root is None else root / "tuning"


def path(chip: Chip) -> Path | None:
    """The file of a chip under the versions of this process; a chip that is not here has none."""
    folder = directory()
    if folder is None or not chip.name:
        return None
    facts = made_for(chip)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=5).hexdigest()
    return folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', chip.name).strip('_')}-{digest}.json"


def made_for(chip: Chip) -> dict[str, str]:
    """What a measured time depends on."""
    ours = importlib.import_module("opmux")  # by name: runtime depends on nothing above it
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
_said: set[str] = set()


def find(chip: Chip, key: str) -> Entry | None:
    """What is remembered for a key on this chip."""
    table = _tables.get(chip)
    if table is None:
        table = _tables[chip] = entries(chip)
    return table.get(key)


def entries(chip: Chip) -> dict[str, Entry]:
    """All that the file of a chip holds now."""
    file = path(chip)
    if file is None:
        return {}
    try:
        cache_dir.check(file.parent)
        return _read(file, made_for(chip))
    except FileNotFoundError:
        return {}
    except (OSError, _Unusable) as error:
        _say_once(f"tuning cache {file} is ignored: {error}")
        return {}


def forget() -> None:
    """Read the files again when next asked."""
    _tables.clear()
    _said.clear()


class _Unusable(ValueError):
    """A file that holds nothing for this chip and these versions."""


def _read(file: Path, expected: dict[str, str]) -> dict[str, Entry]:
    """The entries of a file; those that are damaged are left out, with one line in the log."""
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
        _say_once(f"tuning cache {file}: left out as damaged, of {len(made)} entries: {', '.join(bad)}")
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


def _say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        logger.warning("%s", line)


# ---- writing --------------------------------------------------------------------------------------------------------


def store(chip: Chip, found: Mapping[str, Entry]) -> Path | None:
    """Add entries to the file of a chip; None, and a warning, where it cannot be written."""
    if not chip.name:
        raise ValueError(f"nothing can have been measured on {chip}, which is not here")
    file = path(chip)
    if file is None:
        logger.warning("what was tuned is not kept: there is no home directory. Set %s", CACHE_DIR.name)
        return None
    try:
        table = _merge(file, made_for(chip), found)
    except TimeoutError as error:
        logger.warning("what was tuned is not kept: %s", error)
        return None
    except OSError as error:
        logger.warning("what was tuned is not kept: %s. Set %s to a folder to write to", error, CACHE_DIR.name)
        return None
    _tables[chip] = table
    return file


def _merge(file: Path, expected: dict[str, str], found: Mapping[str, Entry]) -> dict[str, Entry]:
    """Add entries to a file and return all that it holds; OSError where that could lose entries of another process."""
    cache_dir.make(file.parent)
    with _alone(file.parent):
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
    """Remove every file of the cache, of any chip and version; returns what was removed."""
    folder = directory()
    gone = []
    try:
        if folder is not None and folder.is_dir():
            cache_dir.check(folder)
            with _alone(folder):
                for file in sorted([*folder.glob("*.json"), *folder.glob("*.json.damaged-*")]):
                    if not file.is_dir():
                        file.unlink(missing_ok=True)
                        gone.append(file)
    except OSError as error:
        logger.warning("the tuning cache is not cleared: %s", error)
    forget()
    return gone


def _alone(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Keep other writers out. A writer who cannot must not write: it would drop what they add."""
    return cache_dir.locked(folder / ".lock", PATIENCE, required=True)
