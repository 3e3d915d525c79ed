"""Prints a run: one line per case when it is done, then a summary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from .. import screen
from .cases import sizes
from .engine import BenchRow
from .providers import OURS
from .record import LEVEL, BenchRecord

STATUS = {"wrong": ("WRONG", "bold red"), "failed": ("failed", "red"), "declined": ("declined", "dim")}
STATUS["skipped"] = ("skipped", "dim")
SHOWN = 12  # at most this many entries of a list are printed


class Lines:
    """Prints the table line by line. Columns have a fixed width, so each line is printed when its case is done."""

    def __init__(self, console: Console, ops: Iterable[str], shapes: Iterable[str], providers: list[str]):
        self.console, self.providers = console, providers
        self.op = max(map(len, (*ops, "op")))
        self.shape = max(map(len, (*shapes, "shape")))
        self.widths = [max(len(p), 17) for p in providers]

    def head(self) -> None:
        names = "  ".join(f"{p:>{w}}" for p, w in zip(self.providers, self.widths))
        line = f"{'op':<{self.op}}  {'shape':<{self.shape}}  {'dtype':<8}  {names}  {'ours':>6}"
        self.console.print(Text(line, "bold"), soft_wrap=True)
        self.console.print(Text("─" * len(line), "dim"), soft_wrap=True)

    def add(self, rows: list[BenchRow]) -> None:
        by_name = {r.provider: r for r in rows}
        best = min((r for r in rows if r.time_us), key=lambda r: r.time_us or 0.0, default=None)
        first = rows[0]
        line = Text(f"{first.op:<{self.op}}  {sizes(first.shape):<{self.shape}}  {_short(first.dtype):<8}")
        for name, width in zip(self.providers, self.widths):
            text, style = cell(by_name.get(name), best)
            line.append("  ").append(f"{text:>{width}}", style)
        line.append("  ").append(*_ratio(by_name.get(OURS)))
        self.console.print(line, soft_wrap=True)


def cell(row: BenchRow | None, best: BenchRow | None) -> tuple[str, str]:
    """A provider's result as text: the share of the limit and the time, or why there is no result."""
    if row is None:
        return "-", "dim"
    if row.status != "ok":
        return STATUS[row.status]
    style = "bold green" if row is best else ""
    if row.metric == "host":
        return f"{row.host_us:.2f} us", style
    share = f"{row.share:7.1%}" if row.share is not None else ""
    return f"{share} {_time(row.ms)}", style


def _ratio(ours: BenchRow | None) -> tuple[str, str]:
    """The best time of the other providers divided by ours, as text. Above 1, ours is faster."""
    if ours is None or ours.ratio is None:
        return f"{'-':>6}", "dim"
    return f"{ours.ratio:5.2f}x", "green" if ours.ratio >= 1 else "" if ours.ratio >= LEVEL else "yellow"


def _time(ms: float | None) -> str:
    if ms is None:
        return ""
    return f"{ms * 1e3:.1f} us" if ms < 1 else f"{ms:.2f} ms"


def _short(dtype: str) -> str:
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}.get(dtype, dtype)


# ---- the head and the summary ---------------------------------------------------------------------------------------


def head(record: BenchRecord) -> Text:
    """One line: the chip, the versions, and the measured limits."""
    facts, limits = record.facts, record.limits
    line = f"{facts['chip']}, torch {facts['torch']}, triton {facts['triton']}"
    line += f"; a copy runs at {limits['copy_gbs']:.0f} GB/s"
    for dtype, tflops in limits["matmul_tflops"].items():
        line += f", a {dtype} matmul at {tflops:.1f} TFLOP/s"
    return Text(line, "dim")


def summary(record: BenchRecord) -> Group:
    """The summary: wrong results, cases in which ours is slower, and cases in which ours is furthest from the limit."""
    parts: list[Any] = [Text()]
    parts += _broken(record)
    parts += _elsewhere(record)
    parts += _behind(record)
    parts += _lowest(record)
    parts += [Text(f"note: {note}", "dim") for note in record.notes]
    parts.append(Text(f"{record.headline()} (within {1 - LEVEL:.0%})", "bold"))
    return Group(*parts)


def _broken(record: BenchRecord) -> list[Any]:
    broken = [r for r in record.rows if r.status in ("wrong", "failed")]
    broken += list({r.op: r for r in record.rows if r.status == "skipped"}.values())
    if not broken:
        return []
    table = screen.table("op", "shape", "dtype", "provider", "", "why", title="not timed")
    for row in broken:
        label, style = STATUS[row.status]
        where = Text(row.provider, "bold red" if row.provider == OURS else "")
        table.add_row(row.op, sizes(row.shape), row.dtype, where, Text(label, style), Text(row.reason or ""))
    return [table]


def _elsewhere(record: BenchRecord) -> list[Any]:
    """Cases in which our call ran the reference, although another impl for this device exists."""
    ops: dict[str, dict[str, None]] = {}
    for row in record.rows:
        if row.provider == OURS and row.impl == "reference.torch" and row.reason:
            ops.setdefault(row.reason, {})[row.op] = None
    return [Text(f"ours is reference.torch for {', '.join(names)}: {why}", "yellow") for why, names in ops.items()]


def _behind(record: BenchRecord) -> list[Any]:
    slower = record.behind()
    if not slower:
        return []
    columns = ("op", "shape", "dtype", ("ours", {"justify": "right"}), "best other", ("ours is", {"justify": "right"}))
    title = f"ours is slower by more than {1 - LEVEL:.0%} in {len(slower)} cases"
    table = screen.table(*columns, title=title)
    by_case = {id(r): rows for rows in record.cases() for r in rows}
    for row in slower[:SHOWN]:
        others = [r for r in by_case[id(row)] if r is not row and r.time_us]
        best = min(others, key=lambda r: r.time_us or 0.0)
        own_time, other_time = cell(row, None)[0].strip(), f"{best.provider} {cell(best, None)[0].strip()}"
        table.add_row(row.op, sizes(row.shape), row.dtype, own_time, other_time, f"{row.ratio:.2f}x")
    return [table]


def _lowest(record: BenchRecord) -> list[Any]:
    shares = [r for r in record.rows if r.provider == OURS and r.share is not None]
    lowest = min(shares, key=lambda r: r.share or 0.0, default=None)
    if lowest is None:
        return []
    where = f"{lowest.op} {sizes(lowest.shape)} {lowest.dtype}"
    return [Text(f"lowest share of the limit: {where}, {lowest.share:.1%} of {_limit(lowest.limit)}")]


def _limit(name: str | None) -> str:
    return {"copy": "a copy's speed", "matmul": "a matmul's speed"}.get(name or "", "the limit")
