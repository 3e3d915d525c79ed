"""Files of measured times: those in the folders of a chip's vendor, and over them those in the user's cache.

A file has a format, what it was made for, remarks of whoever measured, and one line for each thing that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..core.errors import OpmuxError
from ..core.log import logger
from . import cache_dir, devices, tile_files, tuning
from .devices import Chip

FORMAT = 1
T = TypeVar("T")


class BadSpeeds(OpmuxError, ValueError):
    """A file of measurements that cannot be read; the message names it."""


def chip_of(device: str) -> Chip:
    """The chip of a device type; also one that is assumed to be here."""
    if devices.assumed() is not None:
        package = devices.vendor_of(device)
        return Chip(None if package is None else package.name, devices.arch_of(device))
    return devices.chip_of(device)


@dataclass(frozen=True)
class SpeedFiles(Generic[T]):
    """One kind of such files."""

    name: str  # in a vendor's folders
    prefix: str  # of the file in the cache
    of_data: Callable[[Any], T]
    as_data: Callable[[T], Any]

    def measured(self, chip: Chip) -> dict[str, T]:
        """What was shipped for a chip, and over it the user's; a file that cannot be read is one warning."""
        found: dict[str, T] = {}
        for file in self.files(chip):
            try:
                if file == self.path(chip):
                    cache_dir.check(file.parent)
                found |= self.read(file)
            except (OSError, BadSpeeds) as error:  # only speed depends on it
                logger.warning("%s is ignored: %s", file, error)
        return found

    def files(self, chip: Chip) -> list[Path]:
        """The files that exist for a chip; a later one comes before an earlier one."""
        mine = self.path(chip)
        found = [tile_files.place(folder) / self.name for folder in reversed(tile_files.folders(chip))]
        return [file for file in (*found, *([] if mine is None else [mine])) if file.is_file()]

    def shipped(self, chip: Chip) -> dict[str, T]:
        """What the folders of a chip's vendor have; raises BadSpeeds."""
        mine = self.path(chip)
        found: dict[str, T] = {}
        for file in self.files(chip):
            found |= self.read(file) if file != mine else {}
        return found

    def path(self, chip: Chip) -> Path | None:
        """The user's file for a chip and the versions of this process."""
        return tuning.path(chip, self.prefix)

    def read(self, file: Path) -> dict[str, T]:
        if not file.is_file():
            return {}
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}, expected {FORMAT}")
            return {name: self.of_data(one) for name, one in data["ops"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise BadSpeeds(f"{file}: {type(error).__name__}: {error}") from None

    def text(self, chip: Chip, found: Mapping[str, T], more: Mapping[str, Any]) -> str:
        """A file of measurements: one line for each name."""
        head = {"format": FORMAT, "made_for": tuning.made_for(chip), **more}
        lines = [f"  {json.dumps(n)}: {json.dumps(self.as_data(found[n]))}" for n in sorted(found)]
        return json.dumps(head, indent=1)[:-2] + ',\n "ops": {\n' + ",\n".join(lines) + "\n }\n}\n"

    def store(self, chip: Chip, found: Mapping[str, T], more: Mapping[str, Any]) -> Path | None:
        """Add to the user's file what was measured; None if there is no place for it."""
        file = self.path(chip)
        if file is not None:
            cache_dir.make(file.parent)
            try:
                before = self.read(file)
            except BadSpeeds as error:
                logger.warning("%s is written anew: %s", file, error)
                before = {}
            cache_dir.replace(file, self.text(chip, before | dict(found), more).encode())
        return file
