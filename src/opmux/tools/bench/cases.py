"""Selects the cases to measure (ops, shapes, dtypes), from the command line or from a preset."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ...core.errors import UnknownName
from ...core.spec import NAME_LOOKUP, Sample, Spec, specs
from ...core.tensors import dtype_name
from ...specs.samples import Case as Drawn
from ...specs.samples import Draw, Maker
from ..arguments import BadOption
from ..explain import takes_shape

Shape = tuple[int, ...]

# Ops that take a dimension are measured along the last one.
ALONG = {"dim": -1}
# A variant's name -> a function that changes the arguments of a sample.
VARIANTS: dict[str, Callable[[tuple], tuple]] = {
    "": lambda args: args,
    "scalar": lambda args: (args[0], 2.0, *args[2:]),
}


class QuickDraw(Draw):
    """Draws numbers on the device: a CPU takes 2 s to draw 128 M numbers. (Copying such a tensor takes 0.1 ms.)"""

    def _new(self, shape: Shape, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        if self.device.type == "cpu" or math.prod(shape) < 2**16:
            return super()._new(shape, dtype, scale)
        if not hasattr(self, "_on_device"):
            self._on_device = torch.Generator(self.device).manual_seed(zlib.crc32(self.case.id.encode()))
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return torch.randn(shape, generator=self._on_device, dtype=wide, device=self.device).mul_(scale).to(dtype)


def name_of(spec: Spec) -> str:
    """The op's name in `opmux.ops`, or its key if the name is ambiguous."""
    return spec.name if specs.lookup(spec.name, NAME_LOOKUP["ops"]) is spec else spec.key


def sample_of(spec: Spec, case: Drawn, dtype: torch.dtype, device: torch.device) -> Sample:
    """The arguments of an op for a case, along the last dimension by default. Sample code may raise any error."""
    samples: Any = spec.samples
    options = {**ALONG, **case.options}
    if isinstance(samples, Maker):
        named = samples.build(QuickDraw(replace(case, options=options), dtype, device))
        bound = spec.signature.bind(**named)
        return Sample(bound.args, bound.kwargs, id=case.id)
    if not hasattr(samples, "at"):
        raise ValueError("its samples have fixed shapes")
    return samples.at(case.shape, dtype, device, **options)


@dataclass(frozen=True)
class BenchCase:
    """One op on one shape in one dtype."""

    spec: Spec
    shape: Shape
    dtype: torch.dtype
    variant: str = ""
    host: bool = False  # compare providers by host time, not by device time

    @property
    def name(self) -> str:
        """The op's name in `opmux.ops`, followed by the variant."""
        return f"{name_of(self.spec)} ({self.variant})" if self.variant else name_of(self.spec)

    def __str__(self) -> str:
        return f"{self.name} {sizes(self.shape)} {dtype_name(self.dtype)}"

    def sample(self, device: torch.device, rows: int | None = None) -> Sample:
        """The arguments of the op. `rows` replaces the first size. Raises BadOption if the op has no such samples."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        try:
            drawn = sample_of(self.spec, Drawn(shape), self.dtype, device)
            return Sample(*self.spec.bound(VARIANTS[self.variant](drawn.args), drawn.kwargs), id=str(self))
        except Exception as error:  # sample code may come from a plugin and raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BadOption(f"{self}: no such arguments: {reason}") from None


def sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "0-dim"


# ---- presets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Ops that are measured on tensors with the same row lengths."""

    ops: str
    widths: tuple[int, ...]
    variant: str = ""


@dataclass(frozen=True)
class Preset:
    """A named set of cases."""

    name: str
    doc: str
    lines: tuple[Line, ...]
    dtypes: tuple[str, ...]
    rows: int | None = None  # None: as many rows as fit in a tensor of --mib MiB
    providers: str | None = None
    host: bool = False

    def shape(self, width: int, dtype: torch.dtype, mib: int) -> Shape:
        rows = (mib << 20) // dtype.itemsize // width if self.rows is None else self.rows
        return max(rows, 1), width


# Row lengths of real models, from hidden sizes to vocabularies.
WIDTHS = (2048, 4096, 8192, 16384, 32768, 131072)
ALONG_ROWS = (
    "rms_norm layer_norm add_rms_norm softmax log_softmax sum amax var_mean cumsum argmax "
    "rms_norm_bwd layer_norm_bwd add_rms_norm_bwd softmax_bwd log_softmax_bwd"
)
ELEMENTWISE = "silu_mul gelu_tanh_mul add gelu_tanh philox_dropout silu_mul_bwd gelu_tanh_bwd"

_ALL = (
    Preset(
        "memory-bound",
        "ops that memory limits, on tensors of --mib in bfloat16, rows of 2048 to 131072",
        (Line(ALONG_ROWS, WIDTHS), Line(ELEMENTWISE, (8192,))),
        ("bfloat16",),
    ),
    Preset(
        "quick",
        "a few small cases, seconds on a CPU",
        (Line("rms_norm softmax silu_mul gelu_tanh sum rms_norm_bwd softmax_bwd silu_mul_bwd", (1024,)),),
        ("float32",),
        rows=256,
        providers="ours,native",
    ),
    Preset(
        "host",
        "the host time of a call: tensors so small that the kernel does not matter, under no_grad",
        (
            Line("add", (256,)),
            Line("mul", (256,), "scalar"),
            Line("softmax rms_norm sum gelu_tanh layer_norm silu_mul", (256,)),
        ),
        ("bfloat16",),
        rows=16,
        providers="ours,native",
        host=True,
    ),
)
PRESETS = {p.name: p for p in _ALL}
# The presets for ops that are named without --preset.
NAMED = Preset("", "", (), ("bfloat16",))
NAMED_ON_CPU = Preset("", "", (), ("float32",), rows=256)
NAMED_WIDTHS = {"cpu": (1024,)}


# ---- choosing -------------------------------------------------------------------------------------------------------


def select(texts: Iterable[str]) -> list[Spec]:
    """The ops that names, `family:NAME` or globs select. Only names, and globs with `::`, select compositions."""
    chosen: dict[str, Spec] = {}
    for text in texts:
        chosen |= {s.key: s for s in _selected(text.strip())}
    return list(chosen.values())


def _selected(text: str) -> list[Spec]:
    if text.startswith("family:"):
        name = text.removeprefix("family:").casefold()
        if name not in specs.families:
            raise UnknownName("family", name, specs.families)
        return [s for s in specs if s.family == name and s.primitive]
    if set(text) & set("*?["):
        pattern = text.casefold()
        hit = [s for s in specs if fnmatchcase(s.key if "::" in text else s.name, pattern)]
        hit = [s for s in hit if s.primitive or "::" in text]
        if not hit:
            raise UnknownName("op", text, specs.short_names())
        return hit
    return [specs.find(text, NAME_LOOKUP["ops"])]


@dataclass(frozen=True)
class BenchPlan:
    """The cases to measure, and a note for each request that cannot be measured."""

    cases: list[BenchCase]
    notes: list[str]
    preset: Preset

    @property
    def ops(self) -> list[Spec]:
        return list({c.spec.key: c.spec for c in self.cases}.values())


def plan(
    words: list[str],
    preset: str | None,
    shapes: list[Shape],
    dtypes: list[torch.dtype],
    mib: int,
    device: str,
) -> BenchPlan:
    """Build the plan from the options of the command line."""
    notes: list[str] = []
    base, lines = _lines(words, preset, device, notes)
    kinds = dtypes or [getattr(torch, d) for d in base.dtypes]
    lines = _measurable(lines, kinds, notes)
    cases: dict[tuple, BenchCase] = {}
    for spec, line in lines:
        for dtype in kinds:
            for shape in shapes or [base.shape(w, dtype, mib) for w in line.widths]:
                case = BenchCase(spec, shape, dtype, line.variant, base.host)
                cases.setdefault((spec.key, shape, dtype, line.variant), case)
    return BenchPlan(list(cases.values()), notes, base)


def _lines(
    words: list[str], preset: str | None, device: str, notes: list[str]
) -> tuple[Preset, list[tuple[Spec, Line]]]:
    """The preset to use, and every op to measure, each with its line of the preset."""
    chosen = select(words)
    if preset is None and chosen:
        base = NAMED_ON_CPU if device == "cpu" else NAMED
        widths = NAMED_WIDTHS.get(device, WIDTHS)
        pairs = [(s, Line(s.name, widths)) for s in chosen]
    else:
        name = preset or ("quick" if device == "cpu" else "memory-bound")
        if name not in PRESETS:
            raise UnknownName("preset", name, PRESETS)
        base = PRESETS[name]
        pairs, missing = [], []
        for line in base.lines:
            for op in line.ops.split():
                spec = specs.lookup(op, NAME_LOOKUP["ops"])
                missing += [op] if spec is None else []
                pairs += [(spec, line)] if spec is not None and (not chosen or spec in chosen) else []
        if missing:
            notes.append(f"not available yet: {', '.join(missing)}")
        if chosen and not pairs:
            raise BadOption(f"--preset {name} has none of {', '.join(words)}: omit --preset, or name other ops")
    return base, pairs


def _measurable(lines: list[tuple[Spec, Line]], kinds: list[torch.dtype], notes: list[str]) -> list[tuple[Spec, Line]]:
    """Keep the ops whose samples can have any shape. Add a note on ops without samples, and one on fixed shapes."""
    ways: dict[str, list[str]] = {"": [], "no samples to measure with": [], "only samples of fixed shapes": []}
    fits, bare, own = ways.values()
    for spec in {s.key: s for s, _ in lines}.values():
        shaped = spec.samples is not None and any(takes_shape(spec.samples, kind) for kind in kinds)
        (fits if shaped else bare if spec.samples is None else own).append(spec.key)
    notes += [f"{why}: {', '.join(map(specs.short_name, keys))}" for why, keys in ways.items() if why and keys]
    return [(s, line) for s, line in lines if s.key in fits]
