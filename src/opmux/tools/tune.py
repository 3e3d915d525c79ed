"""`opmux tune OP`: tries the tiles that a chip's vendor lists for a kernel, on the chip, and stores the fastest."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from triton import knobs

from ..core.default import get_default_manager, policy
from ..core.errors import OpmuxError
from ..core.machine import split_arch
from ..core.registry import BackendImplKind, OpImpl
from ..core.spec import NAME_LOOKUP, Sample, Spec, specs
from ..core.tensors import dtype_name
from ..kernels.lib import config
from ..kernels.lib.config import Tiles, TunableCall
from ..kernels.lib.plans import forget
from ..machine import vendor_ops, vendors
from ..machine.devices import Chip
from ..tuning import provider_speed, tile_files
from ..tuning import tiles as tuning
from . import arguments, explain, screen, tile_checks
from .dry_run import nothing_launched, standing_in
from .runner.check import DeviceLost, as_tuple, in_one_line
from .runner.clock import Call, median_ms

GAIN = 0.02  # a gain below 2 % is noise and is not stored
LONG_SUM = 10.0  # factor on the tolerance for long float32 sums, used if the current tiles need it
SHAPES, DTYPES = ("4096x8192",), ("bfloat16",)
STAND_IN = "sm_90"  # the chip to assume in a dry run on a machine without an accelerator
SHOWN = 12  # at most this many trials are in a table; slower ones are only counted

Bench = Callable[[Call], float]


@dataclass
class TileTrial:
    """Tiles to time, where they come from, and their time or the reason why there is no time."""

    tiles: Tiles
    source: str
    ms: float | None = None
    reason: str = ""


@dataclass
class TuneOutcome:
    """The outcome of tuning one tunable."""

    call: TunableCall
    trials: list[TileTrial]  # the current tiles come first
    best: TileTrial | None = None  # faster than the current tiles by GAIN in two measurements
    times: tuple[float, float] = (0.0, 0.0)  # ms of the current and of the fastest other tiles


@dataclass
class TuneCase:
    """An op with arguments, as `opmux tune` runs it."""

    spec: Spec
    call: Callable[..., Any]
    sample: Sample
    shape: str
    dtype: torch.dtype
    expected: Any = field(default=None, repr=False)
    slack: float = 1.0  # multiplies the op's tolerance

    def __str__(self) -> str:
        return f"{self.spec.name} {self.shape} {dtype_name(self.dtype)}"

    def run(self) -> Any:
        return self.call(*self.sample.args, **self.sample.kwargs)

    def plan(self) -> list[TunableCall]:
        """The tunables that the kernel looks up when it makes its plan, without duplicates."""
        forget()
        with config.asked() as calls, torch.no_grad():
            try:
                self.run()
            except (TypeError, ValueError, NotImplementedError) as error:  # the kernel refuses the arguments
                raise arguments.BadOption(f"{self}: {error}") from None
        return list({call.key: call for call in calls}.values())

    def disagreement(self) -> str:
        """How the result differs from the reference's, or "".

        Makes two calls, because the second one replays a recorded launch.
        """
        if self.expected is None:
            self.expected = as_tuple(self.spec.reference(*self.sample.args, **self.sample.kwargs))
        for _ in range(2):
            for name, a, b in zip(self.spec.out, as_tuple(self.run()), self.expected, strict=True):
                tol = self.spec.tol.get(b.dtype) if isinstance(b, torch.Tensor) else None
                rtol, atol = (None, None) if tol is None else (self.slack * tol.rtol, self.slack * tol.atol)
                try:
                    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
                except AssertionError as error:
                    return f"{name} is not the reference's: {' '.join(str(error).split())}"
        return ""


# ---- what to tune ---------------------------------------------------------------------------------------------------


def case_of(op: str, shape: str, dtype: str, device: torch.device, anywhere: bool) -> TuneCase:
    """Our kernel, or the vendor's, with arguments for it. With `anywhere`, its device need not be present."""
    spec = specs.find(op, NAME_LOOKUP["ops"])
    kind, sizes = arguments.dtype(dtype), arguments.shape(shape)
    if not hasattr(spec.samples, "at"):
        raise arguments.BadOption(f"{spec.name} declares no samples that take a shape, so there is nothing to time")
    if spec.mutates:
        reason = f"{spec.name} writes to {', '.join(spec.mutates)}, so a second run is not the same"
        raise arguments.BadOption(f"{reason}. Tune an op that does not")
    sample = explain.sample_of(spec, spec.name, sizes, kind, device)
    vendor_impl = _of_vendor(spec, config.this_chip())
    if vendor_impl is not None:
        return TuneCase(spec, vendor_impl.call, sample, "x".join(map(str, sizes)), kind)
    with policy("flagos", strict=True):
        explanation = get_default_manager().explain(spec.key, *sample.args, **sample.kwargs)
    ours = [v for v in explanation.verdicts if v.impl.kind is BackendImplKind.DEFAULT and v.impl.vendor is None]
    usable = [v.impl for v in ours if v.status == "chosen" or (anywhere and v.stage in ("device", "arch"))]
    if not usable:
        why = f"{ours[0].stage}: {ours[0].reason}" if ours else "there is none"
        raise arguments.BadOption(f"{spec.name} has no kernel of ours for such arguments: {why}")
    return TuneCase(spec, usable[0].call, sample, "x".join(map(str, sizes)), kind)


def _of_vendor(spec: Spec, chip: Chip | None) -> OpImpl | None:
    """The chip vendor's kernel for an op, if the module of the kernel declares tunables."""
    package = vendors.get(chip.vendor) if chip is not None and chip.vendor is not None else None
    if chip is None or package is None:
        return None
    impls = (i for i in vendor_ops.read(package, chip.arch).impls if i.op_name == spec.key)
    tuned = {t.default.__module__ for t in config.tunables.values()}
    return next((i for i in impls if i.kind is BackendImplKind.DEFAULT and i.fn.__module__ in tuned), None)


def trials_for(call: TunableCall, chip: Chip | None) -> list[TileTrial]:
    """The current tiles, the default, and the vendor's configs, without duplicates."""
    trials = [TileTrial(call.choice.tiles, call.choice.source)]
    listed = [] if chip is None else call.tunable.candidates(chip, **call.facts)
    for trial in (
        TileTrial(call.tunable.default(**call.facts), "default"),
        *(TileTrial(tiles, "tune_configs", reason=why) for tiles, why in listed),
    ):
        if all(trial.tiles != known.tiles for known in trials):
            trials.append(trial)
    return trials


# ---- measuring ------------------------------------------------------------------------------------------------------


@dataclass
class Tuner:
    """Tunes the tunables of one case one by one. The rest have the best tiles that were found so far."""

    case: TuneCase
    chip: Chip | None
    bench: Bench = median_ms
    held: dict[str, Tiles] = field(default_factory=dict)

    def tune(self, call: TunableCall, tick: Callable[[float | None], None] = lambda best: None) -> TuneOutcome:
        """Time every trial. After each one, `tick` gets the best time so far."""
        out = TuneOutcome(call, trials_for(call, self.chip))
        present, *others = out.trials
        self._time(call.key, present)
        if present.ms is None and self.case.slack == 1.0:
            self.case.slack = LONG_SUM
            self._time(call.key, present)
        if present.ms is None:
            raise OpmuxError(f"{self.case}: {call.key} with its current tiles cannot be timed: {present.reason}")
        best = present.ms
        tick(best)
        for trial in others:
            if not trial.reason:
                self._time(call.key, trial)
            best = min(best, trial.ms or best)
            tick(best)
        fastest = min((t for t in others if t.ms is not None), key=lambda t: t.ms or 0.0, default=None)
        if fastest is not None:
            out.times = self._side_by_side(call.key, present.tiles, fastest.tiles)
            if out.times[1] < out.times[0] * (1 - GAIN):
                out.best, self.held[call.key] = fastest, fastest.tiles
        return out

    def _time(self, key: str, trial: TileTrial) -> None:
        """Check and time a trial. If it raises or its result is wrong, the trial gets a reason instead of a time."""
        with self._using(key, trial.tiles):
            try:
                trial.reason = self.case.disagreement()
                if not trial.reason:
                    trial.ms = self.bench(self.case.run)
            except Exception as error:  # errors of compilers and drivers have no common class
                trial.reason = in_one_line(error, 2000)
                self._check_device(trial)

    def _side_by_side(self, key: str, current: Tiles, other: Tiles) -> tuple[float, float]:
        """Medians of three interleaved rounds, so that a drifting clock does not affect the comparison."""
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(3):
            for tiles, into in zip((current, other), times, strict=True):
                with self._using(key, tiles):
                    into.append(self.bench(self.case.run))
        return statistics.median(times[0]), statistics.median(times[1])

    @contextlib.contextmanager
    def _using(self, key: str, tiles: Tiles) -> Iterator[None]:
        forget()
        with config.trying({**self.held, key: tiles}), torch.no_grad():
            yield
        forget()

    def _check_device(self, trial: TileTrial) -> None:
        first = next((a for a in self.case.sample.args if isinstance(a, torch.Tensor)), None)
        try:
            torch.zeros(1, device=None if first is None else first.device).add_(1).item()
        except RuntimeError as error:
            message = f"{self.case}: the device is lost after {trial.tiles}: {trial.reason}"
            raise DeviceLost(f"{message}. Remove that config from tune_configs.yaml and start again") from error


def run(
    op: str, shapes: Sequence[str], dtypes: Sequence[str], device: str | None, dry_run: bool, chip: str | None
) -> int:
    specs.find(op, NAME_LOOKUP["ops"])  # first, so that an unknown op is reported
    at = arguments.device(device)
    if chip is not None and not dry_run:
        raise arguments.BadOption("--chip names a chip that is not present: nothing can be timed. Add --dry-run")
    timed = at.type != "cpu" and not knobs.runtime.interpret
    if not timed and not dry_run:
        where = "the CPU" if at.type == "cpu" else "the interpreter"
        reason = f"{op} cannot be tuned on {where}: its times are not those of a chip"
        raise arguments.BadOption(f"{reason}. Allowed: an accelerator, or --dry-run")
    cases = [(s, d) for s in shapes or SHAPES for d in dtypes or DTYPES]
    console = screen.out()
    if dry_run:
        with standing_in(chip if chip is not None or timed else STAND_IN), nothing_launched():
            for shape, dtype in cases:
                _show_plan(console, case_of(op, shape, dtype, at, anywhere=True), config.this_chip())
        return 0
    chip_here = config.this_chip()
    console.print(f"[bold]{op} on {chip_here}[/]")
    for shape, dtype in cases:
        _tune_case(console, case_of(op, shape, dtype, at, anywhere=False), chip_here)
    return 0


def _tune_case(console: Console, case: TuneCase, chip: Chip | None) -> None:
    tuner = Tuner(case, chip, median_ms)
    calls = case.plan()
    if not calls:
        console.print(f"{case}: its kernel has no tunables")
    for call in calls:
        with screen.progress("best") as bar:
            task = bar.add_task(f"{case} {call.tunable.name}", total=len(trials_for(call, chip)), best="     -")
            show = lambda best: bar.update(task, advance=1, best=f"{best:.4f} ms")  # noqa: B023 - used at once
            outcome = tuner.tune(call, show)
        _show_outcome(console, case, outcome)
        if outcome.best is not None and chip is not None:
            changes = outcome.best.tiles.changes(call.tunable.default(**call.facts))
            before, after = outcome.times
            stored = tuning.store(chip, {call.key: tuning.Entry(changes, after, before, case.spec.name, str(case))})
            console.print(
                f"  stored in {stored}" if stored is not None else "  not stored: see the warning", style="dim"
            )
    forget()


# ---- showing --------------------------------------------------------------------------------------------------------


def _show_plan(console: Console, case: TuneCase, chip: Chip | None) -> None:
    console.print(f"[bold]{case}, as on {chip or 'an unknown chip'}[/]: nothing is run")
    for call in case.plan():
        table = screen.table("", "tiles", "from", "", title=escape(call.key))
        trials = trials_for(call, chip)
        for i, trial in enumerate(trials):
            table.add_row("*" if i == 0 else "", str(trial.tiles), trial.source, Text(trial.reason, "yellow"))
        console.print(table)
        console.print(f"  {sum(not t.reason for t in trials)} to try; * is in use", style="dim")


def _show_outcome(console: Console, case: TuneCase, outcome: TuneOutcome) -> None:
    right = {"justify": "right"}
    table = screen.table(
        "", "tiles", "from", ("ms", right), ("speed", right), title=escape(f"{case}: {outcome.call.key}")
    )
    present = outcome.trials[0]
    timed = sorted((t for t in outcome.trials if t.ms is not None), key=lambda t: t.ms or 0.0)
    shown = timed[:SHOWN] + [t for t in timed[SHOWN:] if t is present]
    for trial in shown:
        mark = "*" if trial is present else "+" if trial is outcome.best else ""
        speed = f"{(present.ms or 0.0) / (trial.ms or 1.0):.3f}x"
        table.add_row(mark, str(trial.tiles), trial.source, f"{trial.ms:.4f}", speed)
    console.print(table)
    if len(timed) > len(shown):
        console.print(f"  and {len(timed) - len(shown)} slower ones", style="dim")
    for trial in outcome.trials:
        if trial.ms is None:
            console.print(Text(f"  skipped {trial.tiles}: {trial.reason[:200]}", "yellow"))
    console.print(Text(_summary(outcome), "bold green" if outcome.best is not None else ""))


def _summary(outcome: TuneOutcome) -> str:
    before, after = outcome.times
    if not before:
        return "  no other tiles could be timed; the current ones are kept"
    if outcome.best is None:
        share = after / before
        return f"  the current tiles are kept: the best others take {share:.3f}x their time, not under {1 - GAIN:g}x"
    return f"  {outcome.best.tiles}: {before:.4f} ms -> {after:.4f} ms, {before / after:.3f}x as fast"


# ---- --dry-run --chip, --list, --clear ------------------------------------------------------------------------------


def show_trials(chip: str) -> int:
    """Print the configs that the chip's files list for each tunable. Raises BadTiles if a kernel refuses one."""
    console = screen.out()
    with standing_in(chip):
        _load(chip)
        at = config.this_chip()
        assert at is not None
        entries = {name: tile_files.candidates(at, name) for name in sorted(config.tunables)}
        table = screen.table("tunable", "configs that would be tried", "from")
        for name, trials in entries.items():
            if trials is None:
                continue
            wrong = tile_checks.fault(at, config.tunables[name])
            if wrong is not None:
                raise tile_files.BadTiles(wrong)
            for i, sizes in enumerate(trials.given):
                text = " ".join(f"{size}={value}" for size, value in sizes.items())
                table.add_row(name if i == 0 else "", text, _folder(trials) if i == 0 else "")
    console.print(f"[bold]what `opmux tune` would try on {escape(chip)}[/]: nothing is run")
    if table.row_count:
        console.print(table)
    listed = [name for name, trials in entries.items() if trials is not None]
    console.print(f"{table.row_count} configs for {len(listed)} of {len(entries)} tunables", highlight=False)
    note = "the others have none in the chip's files: their rule or default applies. opmux tune OP --dry-run --chip"
    console.print(f"{note} {escape(chip)} shows one op at a shape", style="dim", highlight=False)
    return 0


def _load(chip: str | None) -> None:
    """Import every kernel, and those of the chip's vendor, so that all tunables are declared."""
    tile_checks.load()
    of_vendor = None if chip is None else tile_checks.of_vendor(chip)
    if of_vendor is not None and of_vendor.arch is not None:
        try:
            split_arch(of_vendor.arch)
        except ValueError as error:
            raise arguments.BadOption(f"--chip {chip}: {error}") from None
    if of_vendor is not None:
        for folder in tile_files.folders(of_vendor):
            vendor_ops.load(folder)


def show_list(chip: str | None) -> int:
    """Print every tunable, and where its values on this chip come from."""
    _load(chip)
    with standing_in(chip):
        at = config.this_chip()
    console = screen.out()
    console.print(f"[bold]tiles on {at if at is not None else 'this machine: no accelerator, defaults apply'}[/]")
    cached = [k.partition("[")[0] for k in (tuning.entries(at) if at is not None else {})]
    table = screen.table("tunable", "asked by", ("cache", {"justify": "right"}), "heuristics", "to try", "about")
    for name, tunable in sorted(config.tunables.items()):
        rules = None if at is None else tile_files.heuristics(at, name)
        trials = None if at is None else tile_files.candidates(at, name)
        table.add_row(
            name,
            " ".join(tunable.facts),
            str(cached.count(name) or ""),
            "" if rules is None else f"{_folder(rules)}: {' '.join(rules.given)}",
            "" if trials is None else f"{_folder(trials)}: {len(trials.given)}",
            Text((tunable.__doc__ or "").partition("\n")[0], "dim"),
        )
    console.print(table)
    for name, files in sorted((tile_files.names_in_files(at) if at is not None else {}).items()):
        if name not in config.tunables:
            message = f"! {name} is no tunable of this version: {', '.join(map(str, sorted(files)))}"
            console.print(Text(message, "yellow"))
    file = None if at is None else tuning.path(at)
    console.print(f"cache: {file or tuning.directory()}", style="dim")
    for line in provider_files(at) if at is not None else ():
        console.print(line, style="dim")
    return 0


def provider_files(chip: Chip) -> list[str]:
    """A line for each file with times of implementations on a chip, with the number of classes in it."""
    files = provider_speed.FILES.files(chip)
    return [f"times of implementations: {file}, {len(provider_speed.FILES.read(file))} classes" for file in files]


def _folder(entry: tile_files.FileEntry) -> str:
    """The folder of a file in short form: `_nvidia/hopper`."""
    parts = entry.file.parent.parts
    return "/".join(parts[next((i for i, p in enumerate(parts) if p.startswith("_")), len(parts) - 1) :])


def clear() -> int:
    removed = tuning.clear()
    forget()
    provider_speed.forget()
    folder = tuning.directory()
    screen.out().print(f"{len(removed)} files removed from {folder}" if removed else f"nothing to remove in {folder}")
    return 0
