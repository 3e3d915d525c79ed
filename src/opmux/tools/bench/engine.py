"""Runs a benchmark: checks, then times each provider of each case, and yields rows of plain data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...core.default import get_default_manager, policy
from ...core.errors import NoImplementation, NotSupported, OpmuxError
from ...core.explain import Explanation
from ...core.registry import BackendImplKind
from ...core.spec import Sample, specs
from ...core.tensors import dtype_name
from ..runner import clock
from ..runner.check import Wrong, short_error
from . import measure
from .cases import BenchCase
from .measure import Limits, Truth
from .providers import COMPILE, OURS, BenchProvider, ProviderChoice

Started = Callable[[BenchCase, BenchProvider], None]
# A call on at most this many elements is also timed on the host, because launch overhead matters for such a call.
SMALL = 2**16
# The number of rows to check if the reference on all rows would not fit in memory.
FEW = 64


@dataclass
class BenchRow:
    """One provider's result on one case.

    A row with status `ok` has figures; a row with `wrong`, `failed`, `declined` or `skipped` has a reason. A provider
    is skipped if the case has no arguments, or if the reference fails.
    """

    op: str
    key: str
    family: str
    variant: str
    shape: list[int]
    dtype: str
    metric: str  # the time that is compared: "device" or "host"
    provider: str
    impl: str | None = None  # the impl of opmux that ran
    status: str = "ok"
    reason: str | None = None
    error: float | None = None  # the largest difference from the reference
    ms: float | None = None
    host_us: float | None = None
    bytes: int | None = None
    flops: int | None = None
    gbs: float | None = None
    tflops: float | None = None
    limit: str | None = None  # "copy" or "matmul"
    share: float | None = None  # the speed, as a share of that limit
    peak_bytes: int | None = None
    ratio: float | None = None  # best time of the other providers / this time

    @property
    def time_us(self) -> float | None:
        return self.host_us if self.metric == "host" else None if self.ms is None else 1e3 * self.ms


@dataclass(frozen=True)
class Bench:
    """The constants of a run: device, limits and providers."""

    device: torch.device
    limits: Limits
    choice: ProviderChoice

    def rows(self, cases: list[BenchCase], started: Started) -> Iterator[list[BenchRow]]:
        """Yields the rows of each case as soon as the case is done."""
        last = None
        providers: list[BenchProvider] = []
        for case in cases:
            if case.spec is not last:
                last, providers = case.spec, self.choice.of_op(case.spec)
                if any(p.name == COMPILE for p in providers):
                    _forget_compiled()
            with warnings.catch_warnings(), torch.no_grad():
                warnings.filterwarnings("ignore", module=r"torch\.")  # torch.compile's warnings would break the table
                rows = self._case(case, providers, started)
            yield rows

    def _case(self, case: BenchCase, providers: list[BenchProvider], started: Started) -> list[BenchRow]:
        rows = [self._empty(case, p) for p in providers]
        try:
            sample = case.sample(self.device)
            truth = self._truth(case, sample)
            work = _work(case, sample)
        except Exception as error:  # a reference may raise any error for a dtype
            for row in rows:
                row.status, row.reason = "skipped", _reason(error)
            return rows
        for row, provider in zip(rows, providers, strict=True):
            started(case, provider)
            row.bytes, row.flops = work
            self._row(row, case, provider, sample, truth)
        rank(rows)
        return rows

    def _empty(self, case: BenchCase, provider: BenchProvider) -> BenchRow:
        spec = case.spec
        metric = "host" if case.host else "device"
        shown = (case.name, spec.key, spec.family, case.variant, list(case.shape), dtype_name(case.dtype), metric)
        return BenchRow(*shown, provider.name, impl=provider.impl or None)

    def _truth(self, case: BenchCase, sample: Sample) -> Truth:
        """The reference's results for the case, or for only FEW rows of it if all rows would not fit in memory."""
        if measure.fits(case.spec, sample, self.device) or len(case.shape) < 2:
            try:
                return Truth.of(case.spec, sample)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        return Truth.of(case.spec, case.sample(self.device, rows=min(FEW, *case.shape[:1])))

    def _row(self, row: BenchRow, case: BenchCase, provider: BenchProvider, sample: Sample, truth: Truth) -> None:
        """Fill in a provider's row. If the provider raises, the row gets the error, and the run continues."""
        known = len(get_default_manager().failures())
        try:
            with provider.around():
                kind = {"exact": provider.impl is not None, "random": provider.random}
                row.error = truth.check(provider.build, provider.gives, **kind)
                call = provider.build(case.spec, sample)
                self._times(row, case, call)
                del call
            if provider.name == OURS:
                failures = get_default_manager().failures()[known:]
                if failures:  # dispatch fell back, so another impl was timed
                    raise RuntimeError(str(failures[0]))
                row.impl, row.reason = who_runs(case, sample)
            self._rates(row, case.dtype)
        except Wrong as error:
            row.status, row.reason = "wrong", str(error)
            row.error = error.error if error.error is not None and math.isfinite(error.error) else None
        except (NotSupported, NoImplementation) as error:
            row.status, row.reason = "declined", _reason(error)
        except Exception as error:
            row.status, row.reason = "failed", _reason(error)
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()

    def _times(self, row: BenchRow, case: BenchCase, call: Callable[[], Any]) -> None:
        row.peak_bytes = measure.peak_bytes(call, self.device)
        if not case.host:
            row.ms = clock.call_ms(call, self.device)
        if case.host or (self.device.type != "cpu" and math.prod(case.shape) <= SMALL):
            row.host_us = clock.host_us(call, self.device)

    def _rates(self, row: BenchRow, dtype: torch.dtype) -> None:
        if row.ms is None or row.bytes is None:
            return
        least, row.limit = self.limits.least_ms(row.bytes, row.flops, dtype)
        row.gbs, row.share = row.bytes / row.ms / 1e6, least / row.ms
        row.tflops = None if row.flops is None else row.flops / row.ms / 1e9


def _work(case: BenchCase, sample: Sample) -> tuple[int, int | None]:
    """The bytes that a call moves, and its flops (None if unknown)."""
    spec, args, kwargs = case.spec, sample.args, sample.kwargs
    return spec.bytes_moved(*args, **kwargs), None if spec.flops is None else int(spec.flops(*args, **kwargs))


def _forget_compiled() -> None:
    """Reset Dynamo. Called before each op, because Dynamo limits how often a function is recompiled."""
    import torch._dynamo

    torch._dynamo.reset()


def rank(rows: list[BenchRow]) -> None:
    """Set the ratio of each row: the best time of the other rows divided by the row's time."""
    for row in rows:
        others = [r.time_us for r in rows if r is not row and r.time_us is not None]
        row.ratio = min(others) / row.time_us if others and row.time_us else None


def who_runs(case: BenchCase, sample: Sample) -> tuple[str | None, str | None]:
    """The impl that dispatch runs for these arguments, and why dispatch skips a preferred impl."""
    explanation = get_default_manager().explain(case.spec.key, *sample.args, **sample.kwargs)
    if explanation.chosen is None or explanation.chosen.kind is BackendImplKind.REFERENCE:
        refused = next((v for v in explanation.verdicts if v.status == "refused"), None)
        why = None if refused is None else f"{refused.impl.impl_id}: {refused.reason}"
        return None if explanation.chosen is None else explanation.chosen.impl_id, why
    try:  # call the impl: it may still decline, and dispatch then uses the next one
        with policy(strict=True):
            specs.functions[case.spec.key](*sample.args, **sample.kwargs)
    except NotSupported as error:
        return _next_of(explanation), _reason(error)
    return explanation.chosen.impl_id, None


def _next_of(explanation: Explanation) -> str | None:
    return next((v.impl.impl_id for v in explanation.verdicts if v.status == "next"), None)


def _reason(error: Exception) -> str:
    return (
        (str(error).strip() or "no reason given").splitlines()[0]
        if isinstance(error, OpmuxError)
        else short_error(error)
    )
