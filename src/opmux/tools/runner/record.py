"""The record of a run: versions and facts, and the JSON object that it is stored as."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...core import knobs
from .. import doctor


@dataclass
class RunRecord:
    """The facts of a run. Each command's record adds its results."""

    schema: ClassVar[int] = 1

    facts: dict[str, Any]

    def text(self) -> str:
        data = {"schema": self.schema, **asdict(self), **self.totals()}
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)

    def totals(self) -> dict[str, Any]:
        """Entries of the JSON file in addition to the fields."""
        return {}


def made_with() -> dict[str, Any]:
    """The versions of opmux, python, torch and triton, the platform, the commit and the date."""
    return {**doctor.versions(), "commit": commit(), "date": date.today().isoformat()}


def chip(device: torch.device) -> str:
    if device.type == "cpu":
        return f"{platform.machine()} CPU, {os.cpu_count()} cores"
    name_of = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if name_of is None else name_of(device)


def driver() -> str | None:
    """The version of NVIDIA's driver, if the kernel reports it."""
    path = Path("/proc/driver/nvidia/version")
    match = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if match is None else match.group()


def commit() -> str | None:
    """The commit of this working tree, with -dirty if files differ from it. Without git, OPMUX_COMMIT."""
    file = Path(__file__)
    ours = _git("ls-files", "--error-unmatch", file.name)  # fails in another repository that has opmux installed in it
    return (ours and _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")) or knobs.COMMIT.get()


def _git(*args: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *args]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
