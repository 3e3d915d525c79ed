"""Saves which overloads auto mode enables on this machine, for the next process.

To choose the overloads, auto mode loads the specs and kernels of every family, which takes 2 to 3 s. The file name is a
digest of everything that the choice depends on: opmux's code, the versions of Python, torch and Triton, the chips,
settings, the policy and measured times. The digest does not cover plugins, nor vendors and implementations that code
has registered: processes that have some do not use the file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ... import cache as cache_dir
from ...core import knobs
from ...core.default import get_default_manager
from ...core.discovery import plugins_are_named
from ...core.dispatch import is_foreign
from ...core.log import logger
from ...core.policy import get_global_policy
from ...core.tensors import dtype_name
from ...cpp import library as native_library
from ...machine import devices, vendors
from ...settings import CACHE_DIR, PLANNER
from ...tuning.speed_files import chip_of
from . import decisions

FORMAT = 1
FOLDER = "auto"
DECIDING = ("OPMUX_", "TE_FL_", "TEFL_", "TE_")  # prefixes of variables that may change the choice of implementations
NOT_DECIDING = {knob.name for knob in (PLANNER, CACHE_DIR)} | {"OPMUX_LOG_LEVEL", "TEFL_LOG_LEVEL", "OPMUX_COMMIT"}
MAX_FILES = 32  # beyond this number, the oldest files are deleted
Names = tuple[str, ...] | None
Limits = Mapping[torch.dtype, int]


class Taken(NamedTuple):
    """How auto mode uses an overload on a device type: its op family, and the results of `decisions.thresholds`."""

    family: str
    limits: Limits
    by_python: Limits
    patient: bool


Selected = dict[str, dict[str, Taken]]  # device type -> overload -> how it is used


def usable() -> bool:
    """Whether saved selections may be used: auto mode's choice depends on nothing outside the digest."""
    if devices.accelerators() and not native_library.available():
        return False
    if plugins_are_named() or vendors.changed_in_code() or devices.assumed() is not None:
        return False
    manager = get_default_manager()
    return not any(is_foreign(i) for i in manager.registry.all_impls())


def read(include: Names, exclude: Names) -> Selected | None:
    """The saved selection for these `include` and `exclude` names; None if there is no readable file."""
    file = _file(include, exclude)
    if file is None:
        return None
    try:
        cache_dir.check(file.parent)
        data = json.loads(cache_dir.read(file))
        selected = {device: {n: _taken(*row) for n, row in names.items()} for device, names in data["taken"].items()}
        return selected if not any(selected.values()) or native_library.available() else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.info("%s cannot be read and will be written again: %s", file, error)
        return None


def write(include: Names, exclude: Names, selected: Selected) -> None:
    """Save a selection. Does nothing if there is no cache folder, or if it cannot be written.

    A selection that contains overloads is not saved without the native library, because reading it needs the library.
    """
    file = _file(include, exclude)
    if file is None or (any(selected.values()) and not native_library.available()):
        return
    data = {"taken": {d: {n: _data(taken) for n, taken in names.items()} for d, names in selected.items()}}
    try:
        cache_dir.make(file.parent)
        cache_dir.replace(file, json.dumps(data).encode())
        for old in sorted(file.parent.glob("*.json"), key=lambda f: _stamp(f)[2])[:-MAX_FILES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.info("auto mode's selection is not saved: %s", error)


def of(device: str, names: frozenset[str], families: Mapping[str, str]) -> dict[str, Taken]:
    """The decisions for these overloads on a device type."""
    return {n: Taken(families[n], *decisions.thresholds(n, device)) for n in names}


def _data(taken: Taken) -> list[Any]:
    plain = lambda limits: {dtype_name(d): n for d, n in limits.items()}
    return [taken.family, plain(taken.limits), plain(taken.by_python), taken.patient]


def _taken(family: str, limits: dict[str, int], by_python: dict[str, int], patient: bool) -> Taken:
    real = lambda by_name: {getattr(torch, d): int(n) for d, n in by_name.items()}
    return Taken(family, real(limits), real(by_python), patient)


def _file(include: Names, exclude: Names) -> Path | None:
    root = cache_dir.root()
    if root is None:
        return None
    facts = json.dumps([_facts(), include, exclude], sort_keys=True, default=str)
    return root / FOLDER / f"{hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()}.json"


def _facts() -> dict[str, Any]:
    kinds = devices.accelerators()
    chips = [chip_of(kind) for kind in kinds]
    times = [file for chip in chips if (file := decisions.FILES.path(chip)) is not None]
    return {
        "format": FORMAT,
        "versions": [
            sys.modules["opmux"].__version__,
            sys.version,
            torch.__version__,
            str(torch.version.git_version),
            _triton(),
        ],
        "code": _code(),
        "chips": [[kind, *vars(chip).values()] for kind, chip in zip(kinds, chips, strict=True)],
        "times": [_stamp(file) for file in times],
        "cpu": repr(decisions.measured(chip_of("cpu"))),  # times measured for CPUs are few: none are shipped
        "settings": sorted((k, v) for k, v in os.environ.items() if k.startswith(DECIDING) and k not in NOT_DECIDING),
        "files": [repr(file) for file in knobs.files()],
        "policy": repr(get_global_policy()),
        "gate": decisions.gated(),
    }


def _triton() -> str:
    from importlib import metadata

    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def _code() -> str:
    """A digest of the names, sizes and modification times of opmux's files."""
    root = Path(__file__).parents[2]
    digest = hashlib.blake2b(digest_size=12)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            digest.update(repr((name, *_stamp(Path(folder, name))[1:])).encode())
    return digest.hexdigest()


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError:
        return str(file), 0, 0
    return str(file), status.st_size, status.st_mtime_ns
