"""`patch_model` and `unpatch_model`: fused functions in models of `transformers`."""

from __future__ import annotations

import functools
import importlib
import types
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core.default import explain
from ...core.errors import OpmuxError, UnknownName
from ...core.spec import specs
from . import loss
from .forms import form
from .replacements import (
    LEFT,
    NAMES,
    REPLACEMENTS,
    Forward,
    Replacement,
    attending,
    has_no_gate,
    makes_a_causal_mask,
    remember_norm,
    rotating,
    without_mask,
)

# Names of classes that one would expect to be replaced: the report says why they are not.
EXPECTED = ("RMSNorm", "MLP", "DecoderLayer", "Experts")
MODELS = ("ForCausalLM", "ForConditionalGeneration")
LOSS_OPS = ("token_cross_entropy", "token_cross_entropy_bwd_")


class CannotPatch(OpmuxError, ValueError):
    """A model of which no part is known."""


@dataclass(frozen=True)
class Row:
    """A class of modules in a report."""

    module: str  # the class
    count: int  # the modules of that class; 0 if a class was patched
    name: str = ""  # what replaced its forward
    ops: tuple[str, ...] = ()
    reason: str = ""  # why it was left


@dataclass(frozen=True)
class Report:
    """What `patch_model` did. `str()` of it is a table."""

    of: str
    rows: tuple[Row, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32

    @property
    def replaced(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.name)

    @property
    def left(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.name)

    def runs(self, op: str) -> str:
        """The implementation of an op that runs for tensors of the model's device and dtype."""
        return _implementation(op, self.device, self.dtype)

    def __str__(self) -> str:
        lines = [(row.module, str(row.count or ""), row.name, ", ".join(f"{op}: {self.runs(op)}" for op in row.ops))
                 for row in self.replaced]  # fmt: skip
        table = _table([("module", "", "replaced by", "runs"), *lines])
        kept = _table(
            [("left", "", "why", ""), *((row.module, str(row.count or ""), row.reason, "") for row in self.left)]
        )
        return f"{self.of}\n{table}" + (f"\n\n{kept}" if self.left else "")

    __repr__ = __str__


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


@functools.cache
def _implementation(op: str, device: torch.device, dtype: torch.dtype) -> str:
    samples = specs.find(op).samples
    assert samples is not None  # all ops of ours have
    sample = next(iter(samples(dtype, device)))
    chosen = explain(op, *sample.args, **sample.kwargs).chosen
    return "nothing" if chosen is None else chosen.impl_id


# ---- what is patched ------------------------------------------------------------------------------------------------


@dataclass
class Change:
    """An attribute of a module or a class that was set."""

    owner: Any
    attribute: str
    before: Any = None  # the value that it had; None if it had none of its own

    def undo(self) -> None:
        if self.before is None:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.before)


_models: weakref.WeakKeyDictionary[nn.Module, list[Change]] = weakref.WeakKeyDictionary()
_types: dict[str, list[Change]] = {}  # by the name of the module of their classes
_ours: set[Forward] = set()  # the forwards that were made


def patch_model(
    model: nn.Module | type[nn.Module] | str,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> Report:
    """Replace parts of a model of `transformers` by fused functions, in place.

    Replaced are RMS norms ("rms_norm"), the residual sum with the norm after it ("add_rms_norm"), gated MLPs ("glu"),
    rotary embeddings ("rope"), the attention of one new token in `generate` ("attention"), experts ("moe"), and in
    training a causal mask that torch's attention does not need ("mask"), and the logits with their loss ("loss"): they
    are never in memory, and `outputs.logits` is None. Where logits are computed, so is their loss ("cross_entropy").

    A part is replaced only if its source computes what ours does: a model or a version of `transformers` that computes
    something else keeps its own code, and the report says so. Parameters and state dicts do not change.

    Args:
        model: a model, also one wrapped by PEFT; or a model type ("llama") or class, whose models are then made from
            patched classes.
        include: replace only these.
        exclude: do not replace these.

    Returns:
        A report: which modules were replaced, by what, which implementation will run, and what was left and why.
    """
    wanted = _wanted(include, exclude)
    unpatch_model(model)
    if isinstance(model, nn.Module):
        modules = list(model.modules())
        of, counts = type(model).__name__, Counter(type(module) for module in modules)
        rows, forwards = _plan(of, counts, wanted)
        replaced = [_set_on(module, forwards[type(module)]) for module in modules if type(module) in forwards]
        _models[model] = [change for change in replaced if change is not None]
        where = next(model.parameters(), torch.empty(0))
        return Report(of, rows, where.device, where.dtype)
    home = _home(model)
    of = home.__name__.rpartition(".")[2].removeprefix("modeling_")
    rows, forwards = _plan(of, Counter(dict.fromkeys(_classes(home), 0)), wanted)
    _types[home.__name__] = [_set_on_class(cls, forward) for cls, forward in forwards.items()]
    return Report(of, rows)


def unpatch_model(model: nn.Module | type[nn.Module] | str) -> None:
    """Undo `patch_model`: of a model, or of a model type or class."""
    if isinstance(model, nn.Module):
        _restore(_models.pop(model, []))
        loss.restore(*model.modules())
        for module in model.modules():  # of a copy of a patched model
            if getattr(vars(module).get("forward"), "__func__", None) in _ours:
                del module.forward
    else:
        home = _home(model)
        _restore(_types.pop(home.__name__, []))
        loss.restore_all(_classes(home))


def _restore(changes: list[Change]) -> None:
    for change in reversed(changes):
        change.undo()


def _wanted(include: Iterable[str] | None, exclude: Iterable[str] | None) -> frozenset[str]:
    given = [[names] if isinstance(names, str) else list(names or ()) for names in (include, exclude)]
    for name in (*given[0], *given[1]):
        if name not in NAMES:
            raise UnknownName("part of a model", name, NAMES, "(what patch_model replaces)")
    return frozenset(NAMES if include is None else given[0]) - frozenset(given[1])


def _home(model: type[nn.Module] | str) -> types.ModuleType:
    """The module of `transformers` with the classes of a model type."""
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


# ---- what replaces what ---------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What is known of a class: its own forward and what replaces parts of it, or why nothing does."""

    original: Forward
    parts: tuple[Replacement, ...] = ()
    reason: str = ""  # if something is expected


@functools.cache
def _known(cls: type[nn.Module]) -> Known:
    original = cls.forward
    if (found := REPLACEMENTS.get(form(original, cls) or "")) is not None:
        return Known(original, (found,))
    parts = tuple(part for part in (rotating(original), attending(original)) if part is not None)
    if parts:
        return Known(original, parts)
    if cls.__name__.endswith(MODELS):
        return _with_loss(original)
    if makes_a_causal_mask(original):
        return Known(original, (Replacement("mask", without_mask, ()),))
    return Known(original, reason=_why_left(cls))


def _with_loss(original: Forward) -> Known:
    """What is known of a model that computes a loss. The last part is made last: it sees a call first."""
    parts, reason = [], ""
    try:
        head = loss.head_of(original)
        parts.append(Replacement("loss", functools.partial(loss.without_logits, head), LOSS_OPS))
    except loss.Unknown as error:
        reason = f"its loss is left: {error}"
    if loss.calls_loss_function(original):
        parts.append(Replacement("cross_entropy", loss.of_logits, LOSS_OPS))
    return Known(original, tuple(parts), reason)


def _why_left(cls: type[nn.Module]) -> str:
    """Why nothing of a class is replaced; "" if nothing is expected to be."""
    if not cls.__name__.endswith(EXPECTED):
        return ""
    if cls.__name__.endswith("MLP") and has_no_gate(cls.forward):
        return "it has no gate that could be fused"
    return LEFT.get(form(cls.forward, cls) or "", "its forward is not one that is known")


@functools.cache
def _forward(cls: type[nn.Module], names: frozenset[str]) -> Forward:
    """The forward of a class with its parts of these names replaced."""
    made, parts, _ = _known(cls)
    for part in parts:
        if part.name in names:
            made = part.make(made)
    _ours.add(made)
    return made


def _plan(
    of: str, counts: Counter[type[nn.Module]], wanted: frozenset[str]
) -> tuple[tuple[Row, ...], dict[type[nn.Module], Forward]]:
    """The rows of the report, and the new forward of each class that gets one; raises if none does."""
    rows, forwards = [], {}
    for cls, count in counts.items():
        remember_norm(cls)
        known = _known(cls)
        names = wanted & {part.name for part in known.parts}
        if names:
            forwards[cls] = _forward(cls, names)
        for part in known.parts:
            if part.name in names:
                rows.append(Row(cls.__name__, count, part.name, part.ops))
            else:
                rows.append(Row(cls.__name__, count, reason=f"{part.name} is excluded"))
        if known.reason:
            rows.append(Row(cls.__name__, count, reason=known.reason))
    if not forwards:
        reasons = "; ".join(f"{row.module}: {row.reason}" for row in rows) or "no class of it is known"
        raise CannotPatch(f"patch_model: nothing of {of} can be replaced, and it is as it was: {reasons}")
    return tuple(rows), forwards


def _set_on(module: nn.Module, forward: Forward) -> Change | None:
    """Replace the forward of one module; not if someone else did."""
    own, name = vars(module), "forward"
    if "_hf_hook" in own and "_old_forward" in own:
        name = "_old_forward"  # accelerate's forward calls it
    elif own.get(name, _own(module)) != _own(module):  # equal: what a pickle of a patched module has
        return None
    before = own["_old_forward"] if name == "_old_forward" else None
    setattr(module, name, types.MethodType(forward, module))
    return Change(module, name, before)


def _own(module: nn.Module) -> Any:
    return types.MethodType(type(module).forward, module)


def _set_on_class(cls: type[nn.Module], forward: Forward) -> Change:
    before = vars(cls).get("forward")
    cls.forward = forward
    return Change(cls, "forward", before)
