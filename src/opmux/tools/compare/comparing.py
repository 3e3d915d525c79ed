"""`opmux.compare`: times, memory and results of a model's step: natively, enabled, patched, and both."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core.default import get_default_manager
from ...core.tensors import dtype_name
from ...faces.aten import engine, record, switch
from ...faces.models.patch import CannotPatch, Report, patch_model, unpatch_model
from . import timing
from .step import Distance, Loss, Results, Step, bad, check_batch, check_model, distance, kept, reference

# The largest relative distance to native's results that counts as equal. The demo's tests give the reasons.
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Results also count as right if their distance to the float64 results is at most this many times native's distance.
AS_EXACT = 1.5
UNRELIABLE = 0.2  # a larger standard error, or a larger difference between variants that run the same, gives a note
NAMED = 4  # replaced parts or ops that a row names


class ModelVariant(NamedTuple):
    """A way to run the model."""

    name: str
    enabled: bool
    patched: bool


VARIANTS = (
    ModelVariant("native", False, False),
    ModelVariant("enable", True, False),
    ModelVariant("patch_model", False, True),
    ModelVariant("both", True, True),
)


@dataclass(frozen=True)
class ComparisonRow:
    """What was measured of a variant."""

    name: str
    ms: float  # median time of a step
    speed: float  # native's time divided by this variant's
    speed_error: float  # standard error of `speed`
    rounds: int  # how many blocks of steps were timed
    peak: int | None  # the most bytes that a step adds to the memory in use; None if that cannot be measured
    loss_distance: float | None  # relative distance of the loss to native's; None if there is no loss
    distance: float  # largest relative distance of a gradient to native's; in eval mode of an output
    to_float64: Distance | None  # both distances, but to the results of a float64 copy of the model
    right: bool
    replaced: str

    # The names of version 0.2.0.
    error = property(lambda self: self.speed_error)
    loss = property(lambda self: self.loss_distance)
    results = property(lambda self: self.distance)
    exact = property(lambda self: self.to_float64)


@dataclass(frozen=True)
class ModelComparison:
    """What `compare` found; `str()` gives a table."""

    model: str
    device: torch.device
    dtype: torch.dtype
    training: bool
    limit: float  # the largest distance to native's results that counts as equal
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()
    batch: str = ""  # the sizes of the batch, in words

    @property
    def right(self) -> bool:
        """Whether the results of all variants are right."""
        return all(row.right for row in self.rows)

    @property
    def fastest(self) -> ComparisonRow:
        return max(self.rows, key=lambda row: row.speed)

    def row(self, name: str) -> ComparisonRow:
        return next(row for row in self.rows if row.name == name)

    @property
    def head(self) -> str:
        step = "a training step" if self.training else "inference"
        sizes = f", {self.batch}" if self.batch else ""
        return f"{self.model}: {step} on {self.device}, {dtype_name(self.dtype)}{sizes}"

    def table(self) -> list[tuple[str, ...]]:
        """The cells of the table; the first row has the headings. Columns without a value are left out."""
        what = "gradients" if self.training else "outputs"
        heads = ("", "ms", "speed", "MiB", "loss", what, f"{what} to float64", "right", "replaced")
        rows = [heads, *(_cells(row) for row in self.rows)]
        kept = [i for i in range(len(heads)) if any(cells[i] for cells in rows[1:])]
        return [tuple(cells[i] for i in kept) for cells in rows]

    @property
    def verdict(self) -> str:
        """The answer in a sentence or two."""
        wrong = [row.name for row in self.rows if not row.right]
        best = self.fastest
        if wrong:
            fast = f"{' and '.join(wrong)}: WRONG results, more than {self.limit:.0e} from native's."
        elif best.speed - 2 * best.speed_error > 1:
            fast = f"{best.name} is the fastest, {best.speed:.2f} times as fast as native."
        else:
            fast = "No variant is faster than native by more than the measurement error."
        return fast if wrong else f"{fast} All results are right: {self._why_right}."

    @property
    def _why_right(self) -> str:
        far = max(max(row.loss_distance or 0.0, row.distance) for row in self.rows)
        if far <= self.limit:
            return f"at most {far:.1e} from native's, and {self.limit:.0e} is allowed"
        return "about as near to the float64 results as native's are"

    def __str__(self) -> str:
        rows = self.table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.head, *lines, self.verdict, *self.notes])

    __repr__ = __str__


def _short(distance: float) -> str:
    return f"{distance:.0e}" if distance else "0"


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    native = row.name == VARIANTS[0].name
    return (
        row.name,
        f"{row.ms:.3g}" if row.ms < 100 else f"{row.ms:.0f}",
        "1" if native else f"{row.speed:.2f} ± {row.speed_error:.2f}",
        "" if row.peak is None else f"{row.peak / 2**20:.1f}",
        "" if native or row.loss_distance is None else _short(row.loss_distance),
        "" if native else _short(row.distance),
        "" if row.to_float64 is None else _short(row.to_float64.tensors),
        "" if native else "yes" if row.right else "NO",
        row.replaced,
    )


# ---- compare --------------------------------------------------------------------------------------------------------


def compare(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss | None = None,
    mode: switch.Mode = "auto",
    seconds: float = 20.0,
    float64: bool | None = None,
) -> ModelComparison:
    """Compare a model's step in plain torch with `enable()`, with `patch_model`, and with both.

    A step is forward and backward if the model is in training (`train()`), else the forward without gradients. Blocks
    of steps of the four variants alternate, so that a change of the machine's speed affects all of them. Loss and
    gradients (in `eval()`: loss and outputs) are computed once with each variant, from the same seed and without
    dropout. Afterwards everything is as before: weights, buffers, gradients, and what was enabled.

    Args:
        model: a model that is not patched, all of it on one device.
        batch: a dict or a tuple of arguments of the model's forward, or a tensor; for models of transformers a tensor
            is ids of shape [batch, length].
        loss: a function of the model's outputs that returns the loss; not needed if the outputs contain it.
        mode: the mode of `enable()`.
        seconds: how long to time steps. Preparing and checking take additional time.
        float64: whether to compare with a float64 copy of the model too. By default this is done if the copy fits in
            the free memory. If the model casts something to float32, the copy does too.

    Returns:
        An object with `rows`; `str()` gives a table. A row's speed is native's time divided by the variant's, as a
        median with its standard error. Distances are relative; for tensors, the distance is the largest |a - b| / |b|,
        where |b| counts as at least a thousandth of the largest |b|. A row's memory is what a step adds to the memory
        in use before the step. A row is right if its distances to native's results are at most 1e-9 for a float64
        model, 1e-4 for float32, 1e-2 for float16 and 5e-2 for bfloat16, or if its distances to float64's results are
        at most 1.5 times native's.
    """
    return compare_with_progress(model, batch, loss, mode, seconds, float64, lambda now, done, total: None)


def compare_with_progress(
    model: nn.Module,
    batch: Any,
    loss: Loss | None,
    mode: switch.Mode,
    seconds: float,
    float64: bool | None,
    show: timing.Show,
) -> ModelComparison:
    """`compare` with a function that shows the progress."""
    device = check_model(model)
    step = Step(model, check_batch(model, batch, device), loss)
    if loss is not None and not callable(loss):
        raise bad("loss", "be a function of the model's outputs", type(loss).__name__, TypeError)
    if mode not in switch.MODES:
        raise bad("mode", f"be one of {', '.join(map(repr, switch.MODES))}", repr(mode))
    if not 0 < seconds < math.inf:
        raise bad("seconds", "be a positive number", f"{seconds}")
    if record.live:
        raise bad("model", "be compared while no calls are recorded: call opmux.disable() first", "an active recorder")
    with kept(step, device), VariantSwitcher(model, mode).restored() as switcher:
        return _Run(step, device, switcher, show).comparison(seconds, float64)


class VariantSwitcher:
    """Switches between the variants of a model."""

    def __init__(self, model: nn.Module, mode: switch.Mode):
        self.model = model
        self.mode: switch.Mode = mode
        self.current = VARIANTS[0]
        self.report: Report | None = None  # of the last `patch_model`

    @contextlib.contextmanager
    def restored(self) -> Iterator[VariantSwitcher]:
        with switch.restored():
            switch.disable()
            try:
                yield self
            finally:
                if self.current.patched:
                    unpatch_model(self.model)

    def switch_to(self, variant: ModelVariant) -> None:
        if variant.patched and not self.current.patched:
            self.report = patch_model(self.model)
        elif self.current.patched and not variant.patched:
            unpatch_model(self.model)
        self.current = self.current._replace(patched=variant.patched)
        if variant.enabled and not self.current.enabled:
            switch.enable(mode=self.mode, wait=True)
        elif self.current.enabled and not variant.enabled:
            switch.disable()
        self.current = variant


class _Run:
    """The measurements of one comparison."""

    def __init__(self, step: Step, device: torch.device, switcher: VariantSwitcher, show: timing.Show):
        self.step, self.device, self.switcher, self.show = step, device, switcher, show
        self.dtype = next(step.model.parameters()).dtype
        self.limit = LIMITS.get(self.dtype, LIMITS[torch.bfloat16])
        self.notes: list[str] = []

    def comparison(self, seconds: float, float64: bool | None) -> ModelComparison:
        variants, results, typical, rows = self._variants(), {}, 0.0, []
        exact: Results | None = None
        for number, variant in enumerate(variants):
            self.show(f"checking {variant.name}", number, len(variants))
            self.switcher.switch_to(variant)
            # Warm up first: until auto mode has planned a call it runs torch's kernels, and they would be compared.
            typical += timing.warmed(self.step, self.device) / len(variants)
            found = results[variant.name] = self.step.results()
            self._check(variant, found)
            with engine.counted() as calls:  # in a separate step: C++ launches nothing while calls are counted
                self.step()
            peak = timing.peak(self.step, self.device)
            if number == 0:
                exact = self._reference(peak, float64)
            rows.append(self._row(variant, peak, found, results[variants[0].name], exact, calls))
            if number:
                del results[variant.name], found
        results.clear()
        exact = None
        rows = [replace(row, right=self._right(row, rows[0])) for row in rows]
        switches = [functools.partial(self.switcher.switch_to, variant) for variant in variants]
        paces = timing.paces(self.step, switches, self.device, typical, seconds, self.show)
        rows = [
            replace(row, ms=pace.ms, speed=pace.speed, speed_error=pace.speed_error, rounds=pace.rounds)
            for row, pace in zip(rows, paces, strict=True)
        ]
        name = type(self.step.model).__name__
        self._note(rows)
        failures = [f"An implementation failed and was skipped: {f}" for f in get_default_manager().failures()]
        notes = (*self.notes, *failures)
        fixed = (name, self.device, self.dtype, self.step.training, self.limit)
        return ModelComparison(*fixed, tuple(rows), notes, self.step.given.sizes)

    def _variants(self) -> list[ModelVariant]:
        """The variants to compare; if nothing in the model can be patched, only the variants without a patch."""
        try:
            self.switcher.switch_to(VARIANTS[2])
        except CannotPatch as error:
            self.notes.append(f"Not patched: {str(error).removeprefix('patch_model: ')}")
            return [variant for variant in VARIANTS if not variant.patched]
        finally:
            self.switcher.switch_to(VARIANTS[0])
        return list(VARIANTS)

    def _check(self, variant: ModelVariant, found: Results) -> None:
        finite = found.loss is None or math.isfinite(found.loss)
        if variant == VARIANTS[0] and not finite:
            raise bad("batch", "give the native model a finite loss", f"{found.loss}")
        if variant == VARIANTS[0] and not found.tensors:
            raise bad("model", "compute gradients, in training", "none")

    def _row(
        self,
        variant: ModelVariant,
        peak: int | None,
        found: Results,
        native: Results,
        exact: Results | None,
        calls: Counter[str],
    ) -> ComparisonRow:
        apart = distance(found, native)
        from_exact = None if exact is None else distance(found, exact)
        replaced = self._replaced(variant, calls)
        nan = math.nan
        return ComparisonRow(
            variant.name, nan, nan, nan, 0, peak, apart.loss, apart.tensors, from_exact, False, replaced
        )

    def _right(self, row: ComparisonRow, native: ComparisonRow) -> bool:
        if max(row.loss_distance or 0.0, row.distance) <= self.limit:
            return True
        if row.to_float64 is None or native.to_float64 is None:
            return False
        return row.to_float64.largest <= AS_EXACT * native.to_float64.largest < math.inf

    def _reference(self, peak: int | None, float64: bool | None) -> Results | None:
        if float64 is False or self.dtype == torch.float64:
            return None
        self.show("checking float64", 0, 1)
        if float64 is None and not _fits(self.step.model, self.dtype, peak, self.device):
            self.notes.append("Not compared with float64: a float64 copy of the model may not fit in the free memory.")
            return None
        try:
            return reference(self.step)
        except (RuntimeError, ValueError, TypeError) as error:  # an op lacks float64, or the model cannot be copied
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            self.notes.append(f"Not compared with float64: {reason}")
            return None

    def _replaced(self, variant: ModelVariant, calls: Counter[str]) -> str:
        parts = []
        if variant.patched and self.switcher.report is not None:
            counts: Counter[str] = Counter()
            for row in self.switcher.report.replaced:
                counts[row.name] += row.count
            parts.append(_some([f"{count} {name}" for name, count in counts.most_common()]))
        if variant.enabled:
            ours = [f"{count} {name}" for name, count in calls.most_common()]
            parts.append(_some(ours) if ours else "" if variant.patched else "no op")
        return "; ".join(part for part in parts if part)

    def _note(self, rows: list[ComparisonRow]) -> None:
        if not any(row.replaced != "no op" for row in rows if row.name == "enable"):
            why = (
                "none was measured to be faster there; opmux tune --aten measures"
                if self.switcher.mode == "auto"
                else "opmux has no other kernel here"
            )
            self.notes.append(f"enable() replaces no op of this step on {self.device.type}: {why}.")
        if any(
            row.speed_error > UNRELIABLE or (row.replaced == "no op" and abs(row.speed - 1) > UNRELIABLE)
            for row in rows
        ):
            self.notes.append(
                "The speeds are not reliable: other programs seem to use this machine. Repeat the comparison with more "
                "seconds, or with OMP_NUM_THREADS=1."
            )
        if rows[0].peak is None:
            self.notes.append(f"Memory is not in the table: it cannot be measured on {self.device.type} here.")


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _fits(model: nn.Module, dtype: torch.dtype, peak: int | None, device: torch.device) -> bool:
    """Whether a step of a float64 copy fits in the free memory, together with the gradients of both models."""
    weights = 8 * sum(p.numel() for p in model.parameters())
    need = 2 * weights + 8 // dtype.itemsize * (weights if peak is None else peak)
    free = timing.free_memory(device)
    return free is not None and need < free
