"""Files of measured times: in the folders of a chip's vendor and in the user's cache, which has precedence.

A file has its format, the chip and versions that were measured, remarks about the measurement, and one line per entry.

The user's files are in `tuning/` of the cache directory (`OPMUX_CACHE_DIR`). There is one file for each kind of
measurement, chip, driver and set of versions. Many processes and ranks share it. A file is replaced atomically, so a
reader sees the old or the new one. Writers merge their entries under a lock; a writer that does not get the lock stores
nothing. These files affect only speed, never results: a file that cannot be read is skipped with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from .. import cache as cache_dir
from ..core.errors import OpmuxError
from ..core.log import logger
from ..machine import devices
from ..machine.devices import Chip
from ..settings import CACHE_DIR
from . import tile_files

FORMAT = 2
SECTIONS = {1: ("entries", "ops"), FORMAT: ("entries",)}  # format -> the name of the section with the entries
LOCK_TIMEOUT = 300.0  # seconds to wait for other writers, each of which takes milliseconds
T = TypeVar("T")


class BadSpeeds(OpmuxError, ValueError):
    """A file of measurements that cannot be read; the message names it."""


def chip_of(device: str) -> Chip:
    """The chip of a device type; inside `assume`, the assumed chip."""
    if devices.assumed() is not None:
        package = devices.vendor_of(device)
        return Chip(None if package is None else package.name, devices.arch_of(device))
    return devices.chip_of(device)


@dataclass(frozen=True)
class SpeedFiles(Generic[T]):
    """One kind of file with measured times."""

    prefix: str  # start of the file's name in the cache
    of_data: Callable[[Any], T]  # JSON data -> entry; raises if the data is invalid
    as_data: Callable[[T], Any]
    name: str | None = None  # the file's name in a vendor's folders; None if no vendor ships such a file

    # -- reading

    def measured(self, chip: Chip) -> dict[str, T]:
        """The entries for a chip: the vendor's, overridden by the user's. An unreadable file causes one warning."""
        own, entries = self.path(chip), dict[str, T]()
        for file in (*self._shipped_files(chip), *([] if own is None else [own])):
            with contextlib.suppress(FileNotFoundError):
                entries |= self._read_or_warn(file, chip if file == own else None)
        return entries

    def files(self, chip: Chip) -> list[Path]:
        """The existing files for a chip. Later files override earlier ones."""
        own = self.path(chip)
        return [f for f in (*self._shipped_files(chip), *([] if own is None else [own])) if f.is_file()]

    def shipped(self, chip: Chip) -> dict[str, T]:
        """The entries in the folders of a chip's vendor. Raises BadSpeeds for a damaged file."""
        entries: dict[str, T] = {}
        for file in self._shipped_files(chip):
            entries |= self.read(file)
        return entries

    def path(self, chip: Chip) -> Path | None:
        """The user's file for a chip and the versions of this process; None if the chip is not present."""
        folder = directory()
        if folder is None or not chip.name:
            return None
        digest = hashlib.blake2b(json.dumps(made_for(chip), sort_keys=True).encode(), digest_size=5).hexdigest()
        return folder / f"{self.prefix}{re.sub(r'[^A-Za-z0-9]+', '_', chip.name).strip('_')}-{digest}.json"

    def read(self, file: Path) -> dict[str, T]:
        """The entries of a file; empty if there is no file. Raises BadSpeeds if an entry is damaged."""
        if not file.is_file():
            return {}
        try:
            entries, damaged = self._entries(file.read_bytes(), None)
        except _Unusable as error:
            raise BadSpeeds(f"{file}: {error}") from None
        if damaged:
            name, why = next(iter(damaged.items()))
            raise BadSpeeds(f"{file}: {name}: {why}")
        return entries

    def _shipped_files(self, chip: Chip) -> list[Path]:
        if self.name is None:
            return []
        paths = [tile_files.place(folder) / self.name for folder in reversed(tile_files.folders(chip))]
        return [file for file in paths if file.is_file()]

    def _read_or_warn(self, file: Path, chip: Chip | None) -> dict[str, T]:
        """The entries of a file, except damaged ones. `chip` is given only for a file in the cache."""
        try:
            if chip is None:
                data = file.read_bytes()
            else:
                cache_dir.check(file.parent)
                data = cache_dir.read(file)
            return self._intact(file, data, chip)
        except FileNotFoundError:
            raise
        except (OSError, _Unusable) as error:
            _warn_once(f"{file} is ignored: {error}")
            return {}

    def _intact(self, file: Path, data: bytes, chip: Chip | None) -> dict[str, T]:
        entries, damaged = self._entries(data, chip)
        if damaged:
            problems = ", ".join(f"{name!a} ({why})" for name, why in damaged.items())
            _warn_once(f"{file}: damaged entries are skipped, of {len(entries) + len(damaged)}: {problems}")
        return entries

    def _entries(self, text: bytes, chip: Chip | None) -> tuple[dict[str, T], dict[str, str]]:
        """The entries of a file, and the damaged ones with the reasons. With `chip`, the file must be made for it."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not text
            raise _Unusable(f"{type(error).__name__}: {error}") from None
        sections = next(
            (names for n, names in SECTIONS.items() if isinstance(data, dict) and data.get("format") == n), ()
        )
        if not sections:
            raise _Unusable(f"it is not of format {FORMAT}")
        if chip is not None and data.get("made_for") != made_for(chip):
            raise _Unusable("it was made for another chip or other versions")
        section = next((data[name] for name in sections if name in data), None)
        if not isinstance(section, dict):
            raise _Unusable("it has no entries")
        entries, damaged = dict[str, T](), dict[str, str]()
        for name, entry in section.items():
            try:
                entries[name] = self.of_data(entry)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                damaged[name] = f"{type(error).__name__}: {error}"
        return entries, damaged

    # -- writing

    def text(self, chip: Chip, entries: Mapping[str, T], more: Mapping[str, Any]) -> str:
        """The contents of a file of measurements, with one line per entry."""
        head = {"format": FORMAT, "made_for": made_for(chip), **more}
        lines = [f"  {json.dumps(n)}: {json.dumps(self.as_data(entries[n]))}" for n in sorted(entries)]
        return json.dumps(head, indent=1)[:-2] + ',\n "entries": {\n' + ",\n".join(lines) + "\n }\n}\n"

    def store(self, chip: Chip, entries: Mapping[str, T], more: Mapping[str, Any] | None = None) -> Path | None:
        """Add entries to the user's file; logs a warning and returns None if it cannot be written."""
        if not chip.name:
            raise ValueError(f"cannot store measurements of {chip}: this chip is not present")
        file = self.path(chip)
        if file is None:
            logger.warning("tuning results are not stored: there is no home directory. Set %s", CACHE_DIR.name)
            return None
        try:
            self._merge(file, chip, entries, more or {})
        except OSError as error:
            # Log the error as text: a stored log record would keep the error's frames, which may hold the lock.
            advice = "" if isinstance(error, TimeoutError) else f". Set {CACHE_DIR.name} to a writable folder"
            logger.warning("tuning results are not stored: %s%s", str(error), advice)
            return None
        return file

    def _merge(self, file: Path, chip: Chip, entries: Mapping[str, T], more: Mapping[str, Any]) -> None:
        """Add entries to a file; raises OSError if that could lose another process's entries."""
        cache_dir.make(file.parent)
        with exclusive(file.parent):
            cache_dir.sweep(file)
            before: dict[str, T] = {}
            try:
                before = self._intact(file, cache_dir.read(file), chip)
            except FileNotFoundError:
                pass
            except (cache_dir.NotTrusted, _Unusable) as error:
                cache_dir.move_aside(file, str(error))
            cache_dir.replace(file, self.text(chip, before | dict(entries), more).encode())


# ---- the user's files -----------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The folder of the user's files; None if neither the setting nor a home directory exists."""
    root = cache_dir.root()
    return None if root is None else root / "tuning"


def made_for(chip: Chip) -> dict[str, str]:
    """The chip and the versions that a measured time depends on."""
    package = sys.modules["opmux"]  # no import, because this package must not depend on layers above
    return {
        "chip": chip.name,
        "arch": chip.arch or "",
        "driver": chip.driver,
        "torch": torch.__version__,
        "triton": _triton(),
        "opmux": package.__version__,
    }


def origin_of(file: Path) -> dict[str, str]:
    """The chip, driver and versions that a file was measured with; empty if it cannot be read."""
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    made_for = data.get("made_for") if isinstance(data, dict) else None
    return {k: str(v) for k, v in made_for.items()} if isinstance(made_for, dict) else {}


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a vendor's build of Triton, under another name
        return getattr(sys.modules.get("triton"), "__version__", "")


def clear() -> list[Path]:
    """Remove the user's files of every kind, chip and version. Returns the removed files."""
    folder = directory()
    removed = []
    try:
        if folder is not None and folder.is_dir():
            cache_dir.check(folder)
            with exclusive(folder):
                for file in sorted([*folder.glob("*.json"), *folder.glob("*.json.damaged-*")]):
                    if not file.is_dir():
                        file.unlink(missing_ok=True)
                        removed.append(file)
    except OSError as error:
        logger.warning("the tuning cache is not cleared: %s", str(error))
    return removed


def exclusive(folder: Path) -> contextlib.AbstractContextManager[None]:
    """A lock that excludes other writers. A writer without the lock could drop the entries of others."""
    return cache_dir.locked(folder / ".lock", LOCK_TIMEOUT, required=True)


class _Unusable(ValueError):
    """Raised for a file without valid entries for this chip and these versions."""


_warned: set[str] = set()


def _warn_once(line: str) -> None:
    if line not in _warned:
        _warned.add(line)
        logger.warning("%s", line)


def forget_warnings() -> None:
    """Warn again about files that cannot be read."""
    _warned.clear()
