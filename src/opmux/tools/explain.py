"""`opmux explain OP`: which implementation would run for given arguments, and why the others would not."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.text import Text
from torch import Tensor

from ..core import machine, tensors
from ..core.default import get_default_manager
from ..core.errors import NotSupported, OpmuxError, UnknownName, quoted, suggestion
from ..core.explain import Explanation, Verdict
from ..core.extension import NATIVE
from ..core.registry import BackendImplKind, OpImpl
from ..core.spec import Sample, Spec, specs
from ..core.tensors import dtype_name
from ..core.tokens import shown
from ..faces.aten import decisions, engine
from ..machine import devices, vendors
from ..machine.devices import Chip
from ..machine.here import HERE
from . import arguments, listing, screen


def run(op: str, dtype: str, shape: str | None, device: str | None, as_json: bool, assume: str | None = None) -> int:
    if assume is None:
        return _run(op, dtype, shape, device, as_json, None)
    if device is not None:
        raise arguments.BadOption("--assume names a chip that is not present, --device one that is: pass one of them")
    chip = chip_of(assume)
    if chip.vendor == "cpu":  # the CPU is always present
        return _run(op, dtype, shape, "cpu", as_json, None)
    with assuming(chip):
        return _run(op, dtype, shape, "meta", as_json, chip)


@contextlib.contextmanager
def assuming(chip: Chip) -> Iterator[None]:
    """In a block, dispatch as on a machine with this chip."""
    try:
        with devices.assume(str(chip.vendor), chip.arch):
            _chip_changed()
            yield
    finally:
        _chip_changed()


def _chip_changed() -> None:
    engine.forget()
    decisions.forget()
    HERE.changed()


def chip_of(text: str) -> Chip:
    """Parse a chip, such as `nvidia:sm_90`, `sm_90` or `ascend`: a known vendor, an arch, or both."""
    try:
        if ":" in text or vendors.get(text) is None:
            chip = Chip.of_arch(text)
        else:
            chip = Chip(text.casefold(), None)
    except ValueError:
        chip = Chip(text, None)
    package = vendors.get(chip.vendor or "")
    if package is None:
        raise UnknownName("vendor", chip.vendor or text, list(vendors.known()))
    return chip if chip.arch is None else Chip(package.name, _known_arch(text, chip.arch, package))


def _known_arch(text: str, arch: str, package: vendors.Package) -> str:
    """The arch as its vendor names it: `sm_90` for `sm_90a` and `SM90`. Raises if the vendor names no such chip."""
    try:
        number = machine.split_arch(arch)
    except ValueError as error:
        raise arguments.BadOption(f"--assume {quoted(text)}: {error}") from None
    known = [name for name in package.info.targets if name]
    for name in known:
        if name == arch.casefold() or (number[0] == "sm" and machine.split_arch(name) == number):
            return name
    if not known:  # the vendor does not name its chips
        return arch
    hint = suggestion(arch, known, ": did you mean {}?") or "."
    raise arguments.BadOption(
        f"--assume {quoted(text)}: {package.name} has no chip {quoted(arch)} that opmux knows{hint} "
        f"Allowed: {', '.join(known)}"
    )


def _run(op: str, dtype: str, shape: str | None, device: str | None, as_json: bool, chip: Chip | None) -> int:
    manager = get_default_manager()
    manager.registry.list_operators()  # loads all families and plugins, because any may have the op
    key = manager.explain(op).key  # before the arguments, so that an unknown op is reported first
    requested = arguments.dtype(dtype), torch.device("meta") if chip is not None else arguments.device(device)
    sizes = None if shape is None else arguments.shape(shape)
    spec = specs.get(key)
    sample, note = nearest_sample(spec, key, sizes, *requested)
    explanation = manager.explain(key, *sample.args, **sample.kwargs)
    notes = [n for n in (note, explanation.remark, _without_triton(explanation)) if n]
    tiles: list[dict[str, str]] = []
    if explanation.chosen is not None and spec is not None:
        tiles, why = tiles_of(explanation.chosen, spec, sample, chip)
        notes += [why] if why else []
    if as_json:
        screen.print_json(as_data(explanation, spec, sample) | {"tiles": tiles, "note": note, "notes": notes})
    else:
        _show(explanation, spec, sample, tiles, notes)
    return 0 if explanation.chosen is not None else 1


def _without_triton(explanation: Explanation) -> str | None:
    """A hint for the user if there are no kernels of ours because triton is not installed."""
    if explanation.device == "cpu" or importlib.util.find_spec("triton") is not None:
        return None
    if any(v.impl.kind is BackendImplKind.DEFAULT for v in explanation.verdicts):
        return None
    return "triton is not installed, so our Triton kernels are not among the candidates: pip install triton"


def tiles_of(impl: OpImpl, spec: Spec, sample: Sample, chip: Chip | None) -> tuple[list[dict[str, str]], str | None]:
    """The tiles that our kernel would use on a chip (default: this one) with their source, and a note.

    If opmux cannot compile for the chip, the vendor's rules and configs give the tiles, and the note says what the
    tiles depend on. If the tiles are not known, the note says why.
    """
    if impl.kind is not BackendImplKind.DEFAULT or importlib.util.find_spec("triton") is None:
        return [], None
    from ..kernels.lib.compile_only import CHIPS

    if chip is None and found_on_cpu(sample):
        return [], None
    name = None if chip is None else chip.arch if chip.arch in CHIPS else f"{chip.vendor}:{chip.arch or ''}"
    try:
        tiles = _tiles_on(name, impl, spec, sample)
    except Exception as error:
        if impl.vendor is None or isinstance(error, OpmuxError):
            raise
        # a vendor's code may raise anything for tensors without data
        return [], f"tiles are not known: {impl.impl_id} failed without its chip: {type(error).__name__}: {error}"
    if chip is None or chip.arch in CHIPS:
        return tiles, None
    if not tiles:
        return [], f"{impl.impl_id} looks up no tiles for these arguments"
    return tiles, (
        f"on the chip itself the tiles may differ, because they may depend on its number of cores; {chip.vendor}'s "
        "heuristics_config_utils.py sets them (docs/new-backend.md#2-tiles)"
    )


def _tiles_on(chip: str | None, impl: OpImpl, spec: Spec, sample: Sample) -> list[dict[str, str]]:
    from ..kernels.lib import config
    from .dry_run import nothing_launched, standing_in

    args, kwargs = spec.bound(sample.args, sample.kwargs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(standing_in(chip))
        stack.enter_context(nothing_launched())
        calls = stack.enter_context(config.asked())
        stack.enter_context(torch.no_grad())
        # Ignore these errors, which are raised after tiles were chosen: an impl may refuse the arguments, and a
        # composition fails because its first part returns no results.
        lifted = (TypeError, AttributeError) if impl.parts else ()
        stack.enter_context(contextlib.suppress(NotSupported, *lifted))
        impl.call(*args, **kwargs)
    distinct = {call.key: call for call in calls}.values()
    return [{"tunable": a.key, "tiles": str(a.choice.tiles), "from": a.choice.source} for a in distinct]


def found_on_cpu(sample: Sample) -> bool:
    return all(t.is_cpu for t in tensors.tensors_in(sample.args))


def takes_shape(samples: Any, dtype: torch.dtype) -> bool:
    """Whether these samples can be made in any given shape.

    This is tested with the first sample's shape. If the first sample itself cannot be made, the dtype is the cause, not
    the shape, and the answer is True.
    """
    if not hasattr(samples, "at"):
        return False
    cpu, own = torch.device("cpu"), next(iter(getattr(samples, "cases", ())), None)
    if own is None or _goes(lambda: samples.at(own.shape, dtype, cpu)):
        return True
    return not _goes(lambda: next(iter(samples(dtype, cpu))))


def _goes(make: Callable[[], Any]) -> bool:
    try:
        make()
    except Exception:  # sample code may raise anything
        return False
    return True


def nearest_sample(
    spec: Spec | None, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device
) -> tuple[Sample, str | None]:
    """Arguments in the given shape. If the op's samples have fixed shapes: the first sample, and a note about it."""
    samples = getattr(spec, "samples", None)
    if shape is None or samples is None or takes_shape(samples, dtype):
        return sample_of(spec, name, shape, dtype, device), None
    sample = sample_of(spec, name, None, dtype, device)
    return sample, f"its samples have fixed shapes: this is the first one, not {'x'.join(map(str, shape))}"


def sample_of(
    spec: Spec | None, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device
) -> Sample:
    """Arguments of the op from its samples. For an op without samples: one tensor if a shape is given, else nothing."""
    samples: Any = getattr(spec, "samples", None)
    try:
        if samples is None:
            return Sample(()) if shape is None else Sample((torch.zeros(shape, dtype=dtype, device=device),))
        if shape is not None:
            return samples.at(shape, dtype, device)
        sample = next(iter(samples(dtype, device)), None)
        if sample is None:
            raise ValueError("the op declares no such sample")
        return sample
    except Exception as error:  # sample code may raise anything
        sizes = "" if shape is None else f" and shape {'x'.join(map(str, shape))}"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise arguments.BadOption(f"{name}: no arguments with {dtype_name(dtype)}{sizes}: {reason}") from None


def in_words(value: Any) -> str:
    """An argument in short form: `float32[5x64]`, or its value."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)}[{'x'.join(map(str, value.shape))}]"
    return dtype_name(value) if isinstance(value, torch.dtype) else repr(value)


def named(spec: Spec | None, sample: Sample) -> dict[str, str]:
    names = spec.names if spec is not None else tuple(f"argument {i}" for i in range(len(sample.args)))
    return {**dict(zip(names, map(in_words, sample.args))), **{k: in_words(v) for k, v in sample.kwargs.items()}}


def as_data(explanation: Explanation, spec: Spec | None, sample: Sample) -> dict[str, Any]:
    return {
        "op": explanation.op,
        "key": explanation.key,
        "policy": explanation.policy,
        "device": explanation.device,
        "arch": machine.arch_of(explanation.device),
        "arguments": named(spec, sample),
        "chosen": None if explanation.chosen is None else explanation.chosen.impl_id,
        "runs": _runs(explanation),
        "verdicts": [listing.verdict_data(v) for v in explanation.verdicts],
    }


def _show(
    explanation: Explanation, spec: Spec | None, sample: Sample, tiles: list[dict[str, str]], notes: list[str]
) -> None:
    console = screen.out()
    arch = machine.arch_of(explanation.device)
    assumed = devices.assumed()
    suffix = f", an assumed {assumed.vendor} chip" if assumed else ""
    arguments_shown = ", ".join(f"{k}={v}" for k, v in named(spec, sample).items())
    title = Text.assemble((explanation.key, "bold"), "  ", ("" if spec is None else spec.summary, "dim"))
    console.print(title)
    facts_shown = [
        ("arguments", arguments_shown or "none: the op declares no samples; --shape gives it one tensor"),
        *(("note", note) for note in notes),
        ("device", (f"{explanation.device} ({arch})" if arch else explanation.device) + suffix),
        ("policy", explanation.policy),
        ("runs", _chosen(explanation)),
        *((f"tiles of {t['tunable'].partition('[')[0]}", f"{t['tiles']} ({t['from']})") for t in tiles),
    ]
    console.print(screen.pairs(facts_shown))
    unwrapped = {"no_wrap": True}  # do not truncate an id, so that it can be copied
    columns = ("", ("implementation", unwrapped), ("kind", unwrapped), ("priority", {"justify": "right", **unwrapped}))
    outside = any(v.origin.plugin != "opmux" for v in explanation.verdicts)
    table = screen.table(*columns, ("verdict", {"min_width": 16}), *(["from"] if outside else []))
    for verdict in explanation.verdicts:
        table.add_row(*_row(verdict)[: len(table.columns)])
    console.print(table)


def _runs(explanation: Explanation) -> str | None:
    """The id of the implementation that a call would run."""
    if explanation.torch_runs:
        return NATIVE
    return None if explanation.chosen is None else explanation.chosen.impl_id


def _chosen(explanation: Explanation) -> Text:
    runs = _runs(explanation)
    return Text("nothing can run", "bold red") if runs is None else Text(runs, "bold green")


def _row(verdict: Verdict) -> list[Text]:
    impl, status = verdict.impl, verdict.status
    style = screen.STATUS_STYLES[status]
    text = f"{verdict.stage}: {verdict.reason}" if status == "refused" else status
    if status != "refused" and verdict.reason:
        text += f" ({verdict.reason})"
    return [
        Text({"chosen": "*", "next": "", "refused": "x"}[status], "bold green" if status == "chosen" else "red"),
        Text(impl.impl_id, style),
        Text(f"{shown(impl.kind)} {impl.vendor or ''}".rstrip(), screen.KIND_STYLES[impl.kind.value]),
        Text(str(impl.priority)),
        Text(text, "yellow" if status == "refused" else style),
        Text(str(verdict.origin) if verdict.origin.plugin != "opmux" else "opmux", "dim"),
    ]
