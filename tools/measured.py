"""What was measured for each op: the stored runs of `opmux bench`, and the times that vendors' folders ship.

`speeds()` has one text for each op: `1.11x torch, 96 % of the copy limit (H200, 2026-11-15)`. The copy limit is the
time of a copy of as many bytes as the op moves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opmux.core.spec import specs
from opmux.faces.aten import decisions
from opmux.faces.aten.overloads import table
from opmux.tools.report.speed import ClassSpeed, class_speeds
from opmux.tools.speed.command import mean, ratios
from opmux.tuning import provider_speed
from opmux.tuning.speed_files import origin_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BACKENDS = ROOT / "src" / "opmux" / "backends"

Run = tuple[str, list[float], list[float]]  # op key, torch's time / ours for each case, shares of the copy limit


def speeds() -> dict[str, str]:
    """Op key -> what was measured. Stored runs come before shipped times; of two runs, the later one counts."""
    return {**_shipped_overloads(), **_shipped_providers(), **_stored_runs()}


def _stored_runs() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(RESULTS.glob("*.json"), key=lambda f: re.findall(r"\d{4}-\d\d-\d\d", f.name)):
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.get("schema") == 1 and "rows" in data:
            facts, rows = data["facts"], _bench_rows(data["rows"])
        elif file.name.startswith("llm_ops_"):
            facts, rows = data, _llm_ops_rows(data)
        else:
            continue
        for key, ratios_to_torch, shares in rows:
            parts = [f"{mean(ratios_to_torch):.2f}x torch"] if ratios_to_torch else []
            parts += [f"{100 * mean(shares):.0f} % of the copy limit"] if shares else []
            if parts:
                found[key] = f"{', '.join(parts)} ({_chip(facts['chip'])}, {facts['date']})"
    return found


def _bench_rows(rows: list[dict[str, Any]]) -> Iterator[Run]:
    """The rows of `opmux bench`, by op."""
    device = [r for r in rows if r["metric"] == "device" and r["status"] == "ok"]
    case = lambda r: (r["key"], r["variant"], *r["shape"], r["dtype"])
    native = {case(r): r["ms"] for r in device if r["provider"] == "native"}
    ours = [r for r in device if r["provider"] == "ours"]
    for key in dict.fromkeys(r["key"] for r in ours):
        own = [r for r in ours if r["key"] == key]
        against = [native[case(r)] / r["ms"] for r in own if case(r) in native]
        yield key, against, [r["share"] for r in own if r["limit"] == "copy"]


def _llm_ops_rows(data: dict[str, Any]) -> Iterator[Run]:
    """The cases of benchmarks/llm_ops.py that are named after an op: `silu_mul 8192 x 8192`."""
    cases = [(name.partition(" ")[0], case) for name, case in data.items() if isinstance(case, dict)]
    for op in dict.fromkeys(op for op, _ in cases if f"opmux::{op}" in specs.by_key):
        for part, key in (("forward", f"opmux::{op}"), ("backward", f"opmux::{op}_bwd")):
            own = [case[part] for name, case in cases if name == op and part in case]
            if own and key in specs.by_key:
                yield key, [c["torch"]["ms"] / c["ours"]["ms"] for c in own], [c["ours"]["share"] for c in own]


def tex_speeds() -> dict[str, str]:
    """Function of tex -> its share of the copy limit, from the runs of benchmarks/tex.py."""
    found: dict[str, str] = {}
    for file in sorted(RESULTS.glob("tex_*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        where = f"of the copy limit ({_chip(data['chip'])}, {data['date']})"
        found |= {name: f"{100 * row['share']:.0f} % {where}" for name, row in data["rows"].items()}
    return found


def _shipped_overloads() -> dict[str, str]:
    """The overloads of ATen that an op computes: the geometric mean over them and dtypes, at the largest size."""
    found: dict[str, str] = {}
    for file in sorted(BACKENDS.rglob(decisions.FILES.name or "")):
        by_op: dict[str, list[float]] = {}
        for name, speed in decisions.FILES.read(file).items():
            overload = table().get(name)
            if overload is not None and overload.bases:
                by_op.setdefault(overload.bases[0], []).extend(ratios(speed))
        found |= {key: f"{mean(values):.2f}x torch {_made_for(file)}" for key, values in by_op.items() if values}
    return found


def _shipped_providers() -> dict[str, str]:
    """Ops that libraries compute too: our fastest implementation and the fastest library, for each kind of calls."""
    found: dict[str, str] = {}
    for file in sorted(BACKENDS.rglob(provider_speed.FILES.name or "")):
        by_op: dict[str, list[ClassSpeed]] = {}
        for row in class_speeds(provider_speed.FILES.read(file)):
            by_op.setdefault(row.op, []).append(row)
        for op, rows in by_op.items():
            faster = sum(row.ratio > 1 for row in rows)
            text = f"{mean(r.ratio for r in rows):.2f}x the fastest library, ours faster for {faster} of {len(rows)}"
            found[specs.find(op, ("opmux", "aten")).key] = f"{text} kinds of calls {_made_for(file)}"
    return found


def _made_for(file: Path) -> str:
    made_for = origin_of(file)
    return f"({_chip(made_for['chip'])}, torch {made_for['torch'].partition('+')[0]})"


def _chip(name: str) -> str:
    return name.removeprefix("NVIDIA ")
