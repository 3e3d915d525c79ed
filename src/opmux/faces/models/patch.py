"""`patch_model` and `unpatch_model`: fused functions in models of `transformers`."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core.default import explain
from ...core.errors import OpmuxError, UnknownName
from ...core.log import logger
from ...core.spec import specs
from ...cpp import prepare_triton
from ...machine import devices
from . import ahead, attention, loss
from .forms import form, is_own, unwrapped
from .known_classes import PARTS_OF
from .modules import (
    Slot,
    is_changed,
    own_forward,
    patch_class,
    patch_module,
    unpatch_class,
    unpatch_modules,
    why_changed,
)
from .replacements import (
    LEFT,
    NAMES,
    REPLACEMENTS,
    Forward,
    Replacement,
    attending,
    has_no_gate,
    makes_a_causal_mask,
    remember_activations,
    remember_norm,
    rotating,
    why_mask_is_left,
    without_mask,
)

# Suffixes of classes that a user may expect to be replaced. The report says why a class is not replaced.
EXPECTED = ("RMSNorm", "MLP", "DecoderLayer", "Experts")
MODELS = ("ForCausalLM", "ForConditionalGeneration")
REFERENCE = "reference.torch"
LOSS_OPS = ("token_cross_entropy", "token_cross_entropy_bwd_")


class CannotPatch(OpmuxError, ValueError):
    """No part of the model can be replaced."""


EXCLUDED = " is excluded"  # how a reason ends if `include` or `exclude` leaves a part out


@dataclass(frozen=True)
class ReportRow:
    """One line of a report: a class of modules."""

    module: str  # name of the class
    count: int  # number of modules; 0 if the class itself was patched
    name: str = ""  # what replaced its forward
    ops: tuple[str, ...] = ()
    reason: str = ""  # why it was not replaced


@dataclass(frozen=True)
class Report:
    """What `patch_model` did; `str()` gives a table."""

    of: str
    rows: tuple[ReportRow, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32

    @property
    def replaced(self) -> tuple[ReportRow, ...]:
        return tuple(row for row in self.rows if row.name)

    @property
    def left(self) -> tuple[ReportRow, ...]:
        return tuple(row for row in self.rows if not row.name)

    def runs(self, op: str) -> str:
        """The implementation of an op for tensors with the model's device and dtype."""
        return _implementation(op, self.device, self.dtype)

    def __str__(self) -> str:
        lines = [(row.module, str(row.count or ""), row.name, self._what_runs(row)) for row in self.replaced]
        table = _table([("module", "", "replaced by", "runs"), *lines])
        left = _table(
            [("left", "", "why", ""), *((row.module, str(row.count or ""), row.reason, "") for row in self.left)]
        )
        plain = any(self.runs(op) == REFERENCE for row in self.replaced for op in row.ops)
        note = (
            f"\n{REFERENCE} is plain PyTorch: on {self.device.type}, no kernel of opmux is chosen for these ops"
            if plain
            else ""
        )
        return f"{self.of}\n{table}{note}" + (f"\n\n{left}" if self.left else "")

    __repr__ = __str__

    def _what_runs(self, row: ReportRow) -> str:
        """The implementations of a part's ops, or why the part does nothing for this model."""
        if row.name == "attention" and row.count and not attention.has_flash(self.device):
            return f"nothing on {self.device.type}: it selects a kernel for NVIDIA GPUs"
        return ", ".join(f"{op}: {self.runs(op)}" for op in row.ops)


@dataclass(frozen=True)
class Restored:
    """What `unpatch_model` undid; `str()` gives one line."""

    of: str
    modules: tuple[tuple[str, int], ...]  # the class of modules, and their number; 0 if the class itself was patched

    def __str__(self) -> str:
        names = ", ".join(f"{count} {name}" if count else name for name, count in self.modules)
        return f"{self.of}: restored {names}" if names else f"{self.of}: nothing was patched"

    __repr__ = __str__


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


@functools.cache
def _implementation(op: str, device: torch.device, dtype: torch.dtype) -> str:
    samples = specs.find(op).samples
    assert samples is not None  # all of our ops have samples
    sample = next(iter(samples(dtype, device)))
    chosen = explain(op, *sample.args, **sample.kwargs).chosen
    return "nothing" if chosen is None else chosen.impl_id


# ---- what is patched ------------------------------------------------------------------------------------------------


_types: dict[str, list[Slot]] = {}  # patched model types: name of their Python module -> slots


def patch_model(
    model: nn.Module | type[nn.Module] | str,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    *,
    example: Mapping[str, Any] | torch.Tensor | None = None,
) -> Report:
    """Replace parts of a model of `transformers` with fused functions, in place.

    These parts are replaced: RMS norms ("rms_norm"), a residual sum and the norm after it ("add_rms_norm"), gated MLPs
    ("glu"), rotary embeddings ("rope"), attention of one new token in `generate` ("attention"), and experts ("moe").
    Training also skips a causal mask that torch's attention does not need ("mask"), and computes the loss without
    logits ("loss"): logits are computed only if `outputs.logits` is read. Where logits are needed anyway, our cross
    entropy computes the loss from them ("cross_entropy").

    A part is replaced only if its source is known to compute the same as our function. If a model or a version of
    `transformers` computes something else, its own code runs, and the report says so. Parameters and state dicts do not
    change.

    Args:
        model: a model, possibly wrapped by PEFT; or a model type ("llama") or class, to patch the classes of models
            created later.
        include: replace only these parts.
        exclude: do not replace these parts.
        example: a batch, as a dict of arguments of the model's forward, or as ids of shape [batch, length]. Other
            processes then compile the kernels of a step on the batch into Triton's cache (of a training step if the
            model is in training). The call does not wait for them. Without a GPU the batch is only checked.

    Returns:
        A report: which modules were replaced and by what, which implementation will run, and what was not replaced
        and why.
    """
    requested = _requested(include, exclude)
    arguments = None if example is None else ahead.checked(model, example)
    unpatch_model(model)
    remember_activations()
    if isinstance(model, nn.Module):
        parameter = next(model.parameters(), torch.empty(0))
        if parameter.device.type in devices.accelerators():
            prepare_triton.start()
        modules = list(model.modules())
        model_name, counts = type(model).__name__, Counter(type(module) for module in modules)
        plans = _plans(model_name, counts, requested)
        described = None if arguments is None else ahead.described(model, arguments)
        rows = _patch(modules, plans)
        if described is not None:
            ahead.start(described, {"include": sorted(requested)})
        return Report(model_name, rows, parameter.device, parameter.dtype)
    home = _home(model)
    model_name = home.__name__.rpartition(".")[2].removeprefix("modeling_")
    plans = _plans(model_name, Counter(dict.fromkeys(_classes(home), 0)), requested)
    _types[home.__name__] = [patch_class(cls, plan.forward) for cls, plan in plans.items() if plan.forward is not None]
    return Report(model_name, tuple(row for plan in plans.values() for row in plan.rows))


def unpatch_model(model: nn.Module | type[nn.Module] | str) -> Restored:
    """Undo `patch_model` for a model, a model type or a class; returns what was restored."""
    if isinstance(model, nn.Module):
        return Restored(type(model).__name__, tuple(unpatch_modules(*model.modules()).items()))
    home = _home(model).__name__
    slots = _types.pop(home, [])
    for slot in slots:
        unpatch_class(slot)
    names = tuple((slot.owner.__name__, 0) for slot in slots)
    return Restored(home.rpartition(".")[2].removeprefix("modeling_"), names)


def _requested(include: Iterable[str] | None, exclude: Iterable[str] | None) -> frozenset[str]:
    choices = [[names] if isinstance(names, str) else list(names or ()) for names in (include, exclude)]
    for name in (*choices[0], *choices[1]):
        if name not in NAMES:
            raise UnknownName("part of a model", name, NAMES, "(what patch_model replaces)")
    return frozenset(NAMES if include is None else choices[0]) - frozenset(choices[1])


def _home(model: type[nn.Module] | str) -> types.ModuleType:
    """The Python module of `transformers` that defines the classes of a model type."""
    if isinstance(model, type):
        return importlib.import_module(model.__module__)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    if model not in CONFIG_MAPPING_NAMES:
        raise UnknownName("model type", model, CONFIG_MAPPING_NAMES, "(of the installed transformers)")
    folder = model_type_to_module_name(model)
    return importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")


def _classes(home: types.ModuleType) -> Iterator[type[nn.Module]]:
    for value in vars(home).values():
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == home.__name__:
            yield value


# ---- replacements of each class -------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What we know of a class: its own forward, and the replacements of its parts or why there are none."""

    original: Forward
    parts: tuple[Replacement, ...] = ()
    reason: str = ""  # set if the user may expect a replacement


class PatchPlan(NamedTuple):
    """How to patch a class."""

    rows: tuple[ReportRow, ...]
    forward: Forward | None = None  # the new forward
    names: tuple[str, ...] = ()  # names of its replaced parts
    inner: tuple[str, ...] = ()  # attributes of submodules that the new forward does not call


def _known(cls: type[nn.Module]) -> Known:
    """Find a class's replacements. Not cached, because a user may replace the forward or a function that it calls."""
    original = own_forward(cls)
    if (replacement := REPLACEMENTS.get(form(original, cls) or "")) is not None:
        return Known(original, (replacement,))
    parts = tuple(part for part in (rotating(original), attending(original)) if part is not None)
    if parts:
        return Known(original, parts)
    if cls.__name__.endswith(MODELS):
        return _with_loss(original)
    if makes_a_causal_mask(original):
        return Known(original, (MASK,))
    return Known(original, reason=_why_left(cls, original) or why_mask_is_left(original))


MASK = Replacement("mask", without_mask, ())
# `_forward` applies the parts of a class in order, so the last part is the outermost, and gets a call first.
LOSS = Replacement("loss", loss.without_logits, LOSS_OPS, ("lm_head",))
CROSS_ENTROPY = Replacement("cross_entropy", loss.of_logits, LOSS_OPS)


def _with_loss(original: Forward) -> Known:
    """The replacements for a model that computes a loss."""
    if (reason := loss.why_not(original, "loss_function") or loss.remember_loss()) != "":
        return Known(original, (), f"its loss is left: {reason}")
    if (reason := loss.why_not(original, "lm_head")) != "":
        return Known(original, (CROSS_ENTROPY,), f"its loss is left: {reason}")
    return Known(original, (LOSS, CROSS_ENTROPY))


def _why_left(cls: type[nn.Module], original: Forward) -> str:
    """Why no part of a class is replaced; "" if a user would not expect a replacement."""
    if not cls.__name__.endswith(EXPECTED):
        return ""
    if cls.__name__.endswith("MLP") and has_no_gate(original):
        return "it has no gate that could be fused"
    return LEFT.get(form(original, cls) or "", "its forward is not one that is known")


def _why_lost(cls: type[nn.Module], known: Known) -> str:
    """Why parts of a class in `PARTS_OF` are not replaced; "" if they are replaced, or for other classes."""
    if not cls.__module__.startswith("transformers."):
        return ""
    replaced = {part.name for part in known.parts}
    lost = ", ".join(part for part in PARTS_OF.get(cls.__name__, ()) if part not in replaced)
    if not lost:
        return ""
    if not is_own(unwrapped(known.original), sys.modules[cls.__module__]):
        return f"{lost} is left: its forward was replaced"
    if known.reason.startswith("its loss"):
        return known.reason
    version = importlib.import_module("transformers").__version__
    reason = f"{lost} is left: its source, or what it calls, is not what opmux knows (transformers {version})"
    _warn(f"patch_model: {cls.__name__}: {reason}")
    return reason


@functools.cache
def _warn(message: str) -> None:
    """Log each message only once."""
    logger.warning("%s", message)


@functools.cache
def _forward(original: Forward, parts: tuple[Replacement, ...]) -> Forward:
    """A forward with these parts replaced."""
    for part in parts:
        original = part.make(original)
    return original


def _plans(
    model_name: str, counts: Counter[type[nn.Module]], requested: frozenset[str]
) -> dict[type[nn.Module], PatchPlan]:
    """How to patch each class; raises if no class can be patched."""
    plans: dict[type[nn.Module], PatchPlan] = {}
    for cls, count in counts.items():
        remember_norm(cls)
        known = _known(cls)
        parts = tuple(part for part in known.parts if part.name in requested)
        rows = [
            ReportRow(cls.__name__, count, part.name, part.ops)
            if part in parts
            else ReportRow(cls.__name__, count, reason=f"{part.name}{EXCLUDED}")
            for part in known.parts
        ]
        reason = _why_lost(cls, known) or known.reason
        if reason:
            rows.append(ReportRow(cls.__name__, count, reason=reason))
        forward = _forward(known.original, parts) if parts else None
        inner = tuple(name for part in parts for name in part.inner)
        plans[cls] = PatchPlan(tuple(rows), forward, tuple(part.name for part in parts), inner)
    if not any(plan.forward for plan in plans.values()):
        rows = [row for plan in plans.values() for row in plan.rows]
        reasons = "; ".join(f"{row.module}: {row.reason}" for row in rows) or "no class of it is known"
        raise CannotPatch(f"patch_model: nothing of {model_name} can be replaced, and it is unchanged: {reasons}")
    return plans


def _patch(modules: list[nn.Module], plans: dict[type[nn.Module], PatchPlan]) -> tuple[ReportRow, ...]:
    """Patch the modules of a model; returns the rows of the report, including modules that were not patched."""
    left: dict[type[nn.Module], Counter[str]] = {cls: Counter() for cls in plans}
    done: Counter[type[nn.Module]] = Counter()
    for module in modules:
        plan = plans[type(module)]
        if plan.forward is None:
            continue
        reason = patch_module(module, plan.forward)
        done[type(module)] += not reason
        for name in () if reason else plan.inner:
            if (why := _called(module, name)) != "":
                left[type(module)][why] += 1
        if reason:
            left[type(module)][reason] += 1
    rows: list[ReportRow] = []
    for cls, plan in plans.items():
        for row in plan.rows:
            if not row.name:
                rows.append(row)
            elif done[cls]:
                rows.append(replace(row, count=done[cls]))
        rows.extend(ReportRow(cls.__name__, count, reason=why) for why, count in left[cls].items())
    return tuple(rows)


def _called(module: Any, name: str) -> str:
    """Why a patched module still calls this submodule; "" if the submodule is fused."""
    if name == "lm_head":
        if loss.fused_layer(module) is not None:
            return ""
        return "its logits are computed: lm_head is not a plain linear layer, or has hooks"
    inner = getattr(module, name, None)
    return (
        f"its {name} {why_changed(inner)}, and is called" if isinstance(inner, nn.Module) and is_changed(inner) else ""
    )
