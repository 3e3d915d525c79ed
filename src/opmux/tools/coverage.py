"""Where a program's ops run: counts calls of ATen's ops that ran the chip's kernels, ours, torch's, or the CPU's.

with coverage.watch("npu") as seen:
    train()
seen.show()
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from ..core.default import get_default_manager
from ..core.errors import OpmuxError
from ..core.registry import BackendImplKind
from ..faces.aten import engine
from ..faces.aten.overloads import table
from . import screen, simulator

OWN, TRITON, NATIVE, CPU = (
    "the chip's own kernels",
    "default Triton",
    "torch's kernels",
    "CPU, as fallback",
)
STYLES = {OWN: "bold green", TRITON: "green", NATIVE: "yellow", CPU: "bold red"}


@dataclass(frozen=True)
class CoverageRow:
    op: str
    calls: int
    where: str
    impl: str


@dataclass
class SeenCalls:
    """The calls that were counted on a device."""

    device: str
    rows: list[CoverageRow] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Place -> the number of calls that ran there."""
        calls: Counter[str] = Counter()
        for row in self.rows:
            calls[row.where] += row.calls
        return {where: calls[where] for where in STYLES if calls[where]}

    def as_data(self) -> dict[str, Any]:
        return {"device": self.device, "calls": self.counts(), "ops": [vars(row) for row in self.rows]}

    def show(self) -> None:
        console = screen.out()
        table = screen.table("op of ATen", ("calls", {"justify": "right"}), "ran on", "implementation")
        for row in self.rows:
            table.add_row(row.op, str(row.calls), Text(row.where, STYLES[row.where]), Text(row.impl, "dim"))
        console.print(Text(f"what ran on {self.device}", "bold"))
        console.print(table)
        total = sum(r.calls for r in self.rows) or 1
        console.print(screen.pairs([(w, f"{n} calls, {100 * n / total:.0f} %") for w, n in self.counts().items()]))


@contextlib.contextmanager
def watch(device: str) -> Iterator[SeenCalls]:
    """Count the calls of ATen's ops on a device in a block. The counts are available when the block ends.

    Ops without a kernel of ours are counted only on a simulated device, which records its fallbacks.
    """
    seen = SeenCalls(device)
    before = Counter(simulator.fallbacks())
    with engine.counted() as counts:
        yield seen
    after = Counter(simulator.fallbacks())
    after.subtract(before)
    fallbacks = Counter({name.removeprefix("aten::"): n for name, n in after.items() if n > 0})
    rows = [_row(name, calls, device, fallbacks) for name, calls in counts.items()]
    rows += [CoverageRow(name, n, CPU, "cpu fallback") for name, n in fallbacks.items() if n > 0]
    order = list(STYLES)
    seen.rows = sorted(rows, key=lambda r: (order.index(r.where), -r.calls, r.op))


def _row(name: str, calls: int, device: str, fallbacks: Counter[str]) -> CoverageRow:
    if fallbacks[name] >= calls:  # our kernel declined every call
        fallbacks[name] -= calls
        return CoverageRow(name, calls, CPU, "native")
    chosen = _chosen(name, device)
    if chosen is None or chosen.kind is BackendImplKind.REFERENCE:
        return CoverageRow(name, calls, NATIVE, "native")
    return CoverageRow(name, calls, TRITON if chosen.vendor is None else OWN, chosen.impl_id)


def _chosen(name: str, device: str) -> Any:
    manager = get_default_manager()
    key = table()[name].key
    try:
        candidates = [i for i in manager.resolve_candidates(key) if manager.static_refusal(key, i, device) is None]
    except OpmuxError:
        return None
    return candidates[0] if candidates else None
