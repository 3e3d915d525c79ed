"""The record of a run (facts, results, coverage), from which the report, the JSON file and the page are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..runner.record import RunRecord

REFERENCE = "reference.torch"  # the id of each op's reference
DISPATCH = "dispatch"  # stands for an impl's id: the op as users call it, with dispatch's choice

# In the order of the columns. docs/conform.md describes each check.
CHECKS = ("load", "values", "mutation", "errors", "fake", "gradient", "opcheck", "compile", "opinfo")
PASS, REFUSED, FAIL, EXPECTED, UNEXPECTED = STATUSES = ("pass", "refused", "fail", "expected", "unexpected")
# Where an op runs.
OWN, TRITON, PLUGIN, NATIVE, CPU, NOWHERE = WHERE = ("own", "triton", "plugin", "native", "cpu", "nowhere")


@dataclass(frozen=True)
class ImplRefusal:
    """Samples that an impl refuses, and why. The stage is dtype, device, when, vendor (an unused op), and so on."""

    impl: str
    stage: str
    reason: str
    samples: int
    dtypes: list[str]


@dataclass
class CheckResult:
    """One check of one impl of one op, over all samples that were tried."""

    op: str
    key: str
    family: str
    impl: str
    own: bool  # whether the impl is the vendor's
    check: str
    status: str = PASS
    reason: str | None = None  # if failed, the first difference; if refused, the reason
    sample: str | None = None  # the id of the first sample that failed
    dtype: str | None = None
    tried: int = 0
    failed: int = 0
    refusals: list[ImplRefusal] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)  # the impls that dispatch has run
    gap: str | None = None  # the reason in the vendor's xfail.toml
    reproduce: str | None = None  # a command line that reproduces the failure
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.op} by {self.impl}"

    def count(self, wrong: str | None, sample: str | None = None, dtype: str | None = None) -> None:
        """Count a sample. If it failed, `wrong` is the reason. The first failure is recorded."""
        self.tried += 1
        if wrong is not None:
            self.failed, self.status = self.failed + 1, FAIL
        if wrong is not None and self.reason is None:
            self.reason, self.sample, self.dtype = wrong, sample, dtype


@dataclass(frozen=True)
class Unchecked:
    """An op or a tunable of the vendor that could not be checked, and why."""

    op: str
    impl: str
    reason: str

    def __str__(self) -> str:
        return f"not checked: {self.op}: {self.reason}"


@dataclass(frozen=True)
class Covered:
    """Where an op runs on this device, and which impl runs it."""

    op: str
    key: str
    space: str
    family: str
    where: str
    impl: str | None
    why: str | None = None  # why neither the vendor's kernel nor ours runs
    on_cpu: list[str] = field(default_factory=list)  # ATen's ops that ran on the CPU during the call


@dataclass
class ConformRecord(RunRecord):
    results: list[CheckResult] = field(default_factory=list)
    coverage: list[Covered] = field(default_factory=list)
    rest_of_aten: dict[str, int] = field(default_factory=dict)  # place -> number of other overloads that run there
    unchecked: list[Unchecked] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[CheckResult]:
        return [r for r in self.results if r.status == FAIL]

    def of(self, *statuses: str) -> list[CheckResult]:
        return [r for r in self.results if r.status in statuses]

    def counts(self) -> dict[str, int]:
        counter = Counter(r.status for r in self.results)
        return {s: counter.get(s, 0) for s in STATUSES}

    def covered(self, rows: Iterable[Covered] | None = None) -> dict[str, int]:
        counter = Counter(c.where for c in (self.coverage if rows is None else rows))
        return {w: counter[w] for w in WHERE if counter[w]}

    def without_a_kernel(self) -> list[str]:
        """Ops for which dispatch ran only the reference, so that the reference was compared with itself."""
        through = [r for r in self.results if r.impl == DISPATCH and r.check == "values" and r.ran]
        return [r.op for r in through if set(r.ran) == {REFERENCE}]

    def headline(self) -> str:
        """One sentence: what was checked, and the outcome."""
        ops, counts = len({r.key for r in self.results}), self.counts()
        outcomes = [f"{counts[FAIL]} failed" if counts[FAIL] else "nothing failed"]
        outcomes += [f"{counts[s]} {w}" for s, w in LATER.items() if counts[s]]
        outcomes += [f"{len(self.unchecked)} not checked"] if self.unchecked else []
        checks = f"{len(self.results)} check{'s' if len(self.results) != 1 else ''}"
        return f"{self.facts['vendor']}: {checks} of {ops} op{'s' if ops != 1 else ''}, {', '.join(outcomes)}"

    def totals(self) -> dict[str, Any]:
        return {"counts": self.counts(), "covered": self.covered()}


LATER = {REFUSED: "refused", EXPECTED: "failed as expected", UNEXPECTED: "passed against expectation"}
