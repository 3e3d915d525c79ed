"""`opmux explain OP`: which implementation would run for such arguments, and why not the others."""

from __future__ import annotations

from typing import Any

import torch
from rich.text import Text
from torch import Tensor

from ..core import facts
from ..core.default import get_default_manager
from ..core.explain import Explanation, Verdict
from ..core.facts import dtype_name
from ..core.spec import Sample, Spec, specs
from . import arguments, listing, screen


def run(op: str, dtype: str, shape: str | None, device: str | None, as_json: bool) -> int:
    manager = get_default_manager()
    manager.registry.list_operators()  # loads the families and the plugins: any of them may have the op
    key = manager.explain(op).key  # an unknown op is the first thing to say
    asked = arguments.dtype(dtype), arguments.device(device)
    sizes = None if shape is None else arguments.shape(shape)
    spec = specs.by_key.get(key)
    sample = sample_of(spec, key, sizes, *asked)
    found = manager.explain(key, *sample.args, **sample.kwargs)
    if as_json:
        screen.print_json(as_data(found, spec, sample))
    else:
        _show(found, spec, sample)
    return 0 if found.chosen is not None else 1


def sample_of(
    spec: Spec | None, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device
) -> Sample:
    """Arguments of the op as its spec makes them; for an op without samples one tensor, where a shape is given."""
    made_by = getattr(spec, "samples", None)
    try:
        if made_by is None:
            return Sample(()) if shape is None else Sample((torch.zeros(shape, dtype=dtype, device=device),))
        return next(iter(made_by(dtype, device))) if shape is None else made_by.at(shape, dtype, device)
    except (TypeError, ValueError, KeyError, RuntimeError, MemoryError) as error:
        sizes = "" if shape is None else f" and shape {'x'.join(map(str, shape))}"
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise arguments.BadArgument(f"{name}: no arguments with {dtype_name(dtype)}{sizes}: {words}") from None


def in_words(value: Any) -> str:
    """An argument in a word: `float32[5x64]`, or the value as it is."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)}[{'x'.join(map(str, value.shape))}]"
    return dtype_name(value) if isinstance(value, torch.dtype) else repr(value)


def named(spec: Spec | None, sample: Sample) -> dict[str, str]:
    names = spec.names if spec is not None else tuple(f"argument {i}" for i in range(len(sample.args)))
    return {**dict(zip(names, map(in_words, sample.args))), **{k: in_words(v) for k, v in sample.kwargs.items()}}


def as_data(found: Explanation, spec: Spec | None, sample: Sample) -> dict[str, Any]:
    return {
        "op": found.op,
        "key": found.key,
        "policy": found.policy,
        "device": found.device,
        "arch": facts.arch_of(found.device),
        "arguments": named(spec, sample),
        "chosen": None if found.chosen is None else found.chosen.impl_id,
        "verdicts": [listing.verdict_data(v) for v in found.verdicts],
    }


def _show(found: Explanation, spec: Spec | None, sample: Sample) -> None:
    console = screen.out()
    arch = facts.arch_of(found.device)
    given = ", ".join(f"{k}={v}" for k, v in named(spec, sample).items())
    title = Text.assemble((found.key, "bold"), "  ", ("" if spec is None else spec.doc, "dim"))
    console.print(title)
    facts_shown = [
        ("arguments", given or "none: the op declares no samples; --shape gives it one tensor"),
        ("device", f"{found.device} ({arch})" if arch else found.device),
        ("policy", found.policy),
        ("runs", _chosen(found)),
    ]
    console.print(screen.pairs(facts_shown))
    table = screen.table("", "implementation", "kind", "vendor", ("priority", {"justify": "right"}), "verdict", "from")
    for verdict in found.verdicts:
        table.add_row(*_row(verdict))
    console.print(table)


def _chosen(found: Explanation) -> Text:
    if found.chosen is None:
        return Text("nothing can run", "bold red")
    return Text(found.chosen.impl_id, "bold green")


def _row(verdict: Verdict) -> list[Text]:
    impl, status = verdict.impl, verdict.status
    style = screen.STATUS_STYLES[status]
    words = f"{verdict.stage}: {verdict.reason}" if status == "refused" else status
    if status != "refused" and verdict.reason:
        words += f" ({verdict.reason})"
    return [
        Text({"chosen": "*", "next": "", "refused": "x"}[status], "bold green" if status == "chosen" else "red"),
        Text(impl.impl_id, style),
        Text(str(impl.kind), screen.KIND_STYLES[impl.kind.value]),
        Text(impl.vendor or ""),
        Text(str(impl.priority)),
        Text(words, "yellow" if status == "refused" else style),
        Text(str(verdict.origin) if verdict.origin.plugin != "opmux" else "opmux", "dim"),
    ]
