"""A run as data: facts of the machine, limits, rows; kept in a JSON file and read back."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

import torch

from ...core import knobs
from ...core.errors import OpmuxError
from .. import doctor
from .engine import Row
from .measure import Limits
from .providers import OURS, TORCH

SCHEMA = 1
# How much slower than another is still level: two runs of one kernel differ by as much.
LEVEL = 0.98


class BadRecord(OpmuxError, ValueError):
    """A file that holds no run of `opmux bench`."""


@dataclass
class Record:
    facts: dict[str, Any]
    limits: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False, allow_nan=False)

    @classmethod
    def load(cls, path: Path) -> Record:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadRecord(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{path} is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            got = data.get("schema", "none") if isinstance(data, dict) else "no object"
            raise BadRecord(
                f"{path} is not a run of `opmux bench --json` of this version: schema {got}, expected {SCHEMA}"
            )
        known = {f.name for f in fields(Row)}
        try:
            rows = [Row(**{k: v for k, v in row.items() if k in known}) for row in data["rows"]]
            return cls(data["facts"], data["limits"], rows, data["notes"])
        except (KeyError, TypeError, AttributeError) as error:
            raise BadRecord(f"{path} is not a complete run: {error}") from None

    # -- what follows from the rows

    def cases(self) -> list[list[Row]]:
        """The rows, case by case."""
        found: dict[tuple, list[Row]] = {}
        for row in self.rows:
            found.setdefault((row.op, tuple(row.shape), row.dtype, row.metric), []).append(row)
        return list(found.values())

    def providers(self) -> list[str]:
        return list(dict.fromkeys(row.provider for row in self.rows))

    def against_torch(self) -> list[tuple[Row, float]]:
        """Ours in every case that torch has a time for too, with torch's best time over ours."""
        found = []
        for rows in self.cases():
            mine = next((r for r in rows if r.provider == OURS and r.time_us), None)
            theirs = [r.time_us for r in rows if r.provider in TORCH and r.time_us]
            if mine is not None and mine.time_us and theirs:
                found.append((mine, min(theirs) / mine.time_us))
        return found

    def headline(self) -> str:
        found = self.against_torch()
        if not found:
            return f"{len(self.cases())} cases measured"
        level = sum(ratio >= LEVEL for _, ratio in found)
        return f"{level} of {len(found)} cases at or above the best of torch"

    def behind(self) -> list[Row]:
        """Ours, where another provider is faster by more than 2 %, the worst first."""
        found = [r for r in self.rows if r.provider == OURS and r.ratio is not None and r.ratio < LEVEL]
        return sorted(found, key=lambda r: r.ratio or 0.0)

    def broken(self) -> list[Row]:
        return [r for r in self.rows if r.status in ("wrong", "failed")]

    def ours_is_broken(self) -> bool:
        return any(r.provider == OURS for r in self.broken())


def limits_data(limits: Limits) -> dict[str, Any]:
    return {"copy_gbs": limits.copy_gbs, "matmul_tflops": limits.matmul_tflops}


# ---- facts ----------------------------------------------------------------------------------------------------------


def facts(device: torch.device, preset: str | None, mib: int, dynamic: bool) -> dict[str, Any]:
    return {
        "chip": chip(device),
        "device": str(device),
        "driver": driver() if device.type == "cuda" else None,
        **doctor.versions(),  # opmux, python, torch, triton, platform
        "commit": commit(),
        "date": date.today().isoformat(),
        "preset": preset,
        "tensor_mib": mib,
        "compile": "any shape" if dynamic else "each shape",
    }


def chip(device: torch.device) -> str:
    if device.type == "cpu":
        return f"{platform.machine()} CPU, {os.cpu_count()} cores"
    name_of = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if name_of is None else name_of(device)


def driver() -> str | None:
    """The version of NVIDIA's driver, if the kernel reports it."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if found is None else found.group()


def commit() -> str | None:
    """The commit of this tree, with -dirty if files differ from it; without git, OPMUX_COMMIT."""
    here = Path(__file__)
    ours = _git("ls-files", "--error-unmatch", here.name)  # not another repository that contains an installed opmux
    return (ours and _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")) or knobs.COMMIT.get()


def _git(*words: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
