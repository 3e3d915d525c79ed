"""The record of a run: machine facts, limits and rows; written to a JSON file and read back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ...core.errors import OpmuxError
from ..runner.record import RunRecord, chip, driver, made_with
from .engine import BenchRow
from .measure import Limits
from .providers import OURS, TORCH

# Ratios between this and 1 count as equally fast, because two runs of the same kernel differ by 2 %.
LEVEL = 0.98


class BadRecord(OpmuxError, ValueError):
    """The file does not hold a run of `opmux bench`."""


@dataclass
class BenchRecord(RunRecord):
    limits: dict[str, Any]
    rows: list[BenchRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> BenchRecord:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadRecord(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{path} is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("schema") != cls.schema:
            got = data.get("schema", "none") if isinstance(data, dict) else "no object"
            raise BadRecord(
                f"{path} is not a run of `opmux bench --json` of this version: schema {got}, expected {cls.schema}"
            )
        known = {f.name for f in fields(BenchRow)}
        try:
            rows = [BenchRow(**{k: v for k, v in row.items() if k in known}) for row in data["rows"]]
            return cls(data["facts"], data["limits"], rows, data["notes"])
        except (KeyError, TypeError, AttributeError) as error:
            raise BadRecord(f"{path} is not a complete run: {error}") from None

    # -- computed from the rows

    def cases(self) -> list[list[BenchRow]]:
        """The rows, grouped by case."""
        by_case: dict[tuple, list[BenchRow]] = {}
        for row in self.rows:
            by_case.setdefault((row.op, tuple(row.shape), row.dtype, row.metric), []).append(row)
        return list(by_case.values())

    def providers(self) -> list[str]:
        return list(dict.fromkeys(row.provider for row in self.rows))

    def against_torch(self) -> list[tuple[BenchRow, float]]:
        """For each case that torch has a time for: our row, and torch's best time divided by ours."""
        ratios = []
        for rows in self.cases():
            own = next((r for r in rows if r.provider == OURS and r.time_us), None)
            torch_times = [r.time_us for r in rows if r.provider in TORCH and r.time_us]
            if own is not None and own.time_us and torch_times:
                ratios.append((own, min(torch_times) / own.time_us))
        return ratios

    def headline(self) -> str:
        ratios = self.against_torch()
        if not ratios:
            return f"{len(self.cases())} cases measured"
        level = sum(ratio >= LEVEL for _, ratio in ratios)
        return f"{level} of {len(ratios)} cases at or above the best of torch"

    def behind(self) -> list[BenchRow]:
        """Our rows of cases in which another provider is more than 2 % faster, the worst first."""
        slower = [r for r in self.rows if r.provider == OURS and r.ratio is not None and r.ratio < LEVEL]
        return sorted(slower, key=lambda r: r.ratio or 0.0)

    def broken(self) -> list[BenchRow]:
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
        **made_with(),
        "preset": preset,
        "tensor_mib": mib,
        "compile": "any shape" if dynamic else "each shape",
    }
