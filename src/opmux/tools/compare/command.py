"""`opmux compare`: its options, its progress bar and its table."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.text import Text

from ...core.errors import BadArgument, quoted
from ...core.tensors import dtype_name
from ...faces.aten.switch import MODES
from .. import arguments, screen
from ..arguments import BadOption
from ..warm.compiling import first_line
from ..warm.model import config_of, errors_only, model_of
from .comparing import LIMITS, ModelComparison, compare_with_progress
from .timing import free_memory

MOST = 2**31 - 1  # the largest --batch, --length and --layers


@dataclass(frozen=True)
class CompareOptions:
    """The options of `opmux compare`."""

    what: str
    batch: int
    length: int
    layers: int | None
    dtype: str | None
    device: str | None
    train: bool
    mode: str
    seconds: float
    json: bool


def run(options: CompareOptions) -> int:
    """Build the model with random weights, compare, and show the table. Returns the exit code."""
    for name in ("batch", "length", "layers"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= MOST:
            raise BadOption(f"--{name} {value} is not allowed. Allowed: 1 to {MOST}")
    if options.mode not in MODES:
        raise BadOption(f"--mode {options.mode!r} is not allowed. Allowed: {', '.join(MODES)}")
    if not 0 < options.seconds < math.inf:
        raise BadOption(f"--seconds {options.seconds:g} is not allowed. Allowed: more than 0")
    if options.what.endswith(".py"):
        raise BadOption(
            f"{quoted(options.what)}: a script cannot be compared. Allowed: a model type (llama, qwen3), a config.json "
            "or its folder; in a program, call opmux.compare(model, batch)"
        )
    device = arguments.device(options.device)
    dtype = None if options.dtype is None else arguments.dtype(options.dtype, map(dtype_name, LIMITS))
    config = _layered(config_of(options.what), options)
    if device.type == "cpu" and dtype is None:
        dtype = torch.float32
    found = _compare(config, dtype, device, options)
    if options.json:
        screen.print_json(_as_json(found))
    else:
        _show(found)
    return int(not found.right)


@errors_only()
def _compare(config: Any, dtype: torch.dtype | None, device: torch.device, options: CompareOptions) -> ModelComparison:
    """Build the model and compare, with a progress bar."""
    model = _built(config, dtype, device, options)
    ids = torch.randint(0, _vocabulary(config), (options.batch, options.length), device=device)
    mode: Any = options.mode
    with screen.progress() as bar:
        task = bar.add_task("comparing", total=None)

        def show(now: str, done: int, total: int) -> None:
            if not bar.console.is_terminal and bar.tasks[0].description != now:
                bar.console.print(now)  # a bar would be printed only at its end
            bar.update(task, description=now, completed=done, total=total)

        try:
            return compare_with_progress(model, ids, None, mode, options.seconds, None, show)
        except BadArgument as error:
            raise BadOption(str(error)) from None
        except torch.OutOfMemoryError as error:
            raise BadOption(
                f"out of memory: {first_line(error)}. Use a smaller --batch, --length or --layers"
            ) from None


def _layered(config: Any, options: CompareOptions) -> Any:
    if options.layers is None:
        return config
    text = config.get_text_config()
    if not hasattr(text, "num_hidden_layers"):
        raise BadOption(f"--layers is not allowed here: the config of {quoted(options.what)} has no num_hidden_layers")
    text.num_hidden_layers = options.layers
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = text.layer_types[: options.layers]
    return config


def _vocabulary(config: Any) -> int:
    size = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(size, int):
        raise BadOption(
            f"a model of type '{config.model_type}' takes no token ids. Allowed: language models; for others call "
            "opmux.compare(model, batch) in a program"
        )
    return size


def _built(config: Any, dtype: torch.dtype | None, device: torch.device, options: CompareOptions) -> Any:
    """The model, if its weights and gradients fit in the free memory."""
    need = 2 * sum(p.nbytes for p in model_of(config, dtype, torch.device("meta")).parameters())
    free = free_memory(device)
    if free is not None and need > free:
        raise BadOption(
            f"{quoted(options.what)} does not fit: weights and gradients take {need / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free on {device}. Use fewer layers: --layers 2"
        )
    torch.manual_seed(0)
    return model_of(config, dtype, device).train(options.train)


def _show(found: ModelComparison) -> None:
    out = screen.out()
    out.print(Text(found.head, "bold"), soft_wrap=True)
    heads, *rows = found.table()
    right = {"ms", "speed", "MiB"}
    table = screen.table(*((head, {"justify": "right" if head in right else "left"}) for head in heads))
    for cells in rows:
        table.add_row(*(Text(cell, "bold red" if cell == "NO" else "") for cell in cells))
    out.print(table)
    out.print(Text(found.verdict, "bold green" if found.right else "bold red"), soft_wrap=True)
    for note in found.notes:
        out.print(Text(note, "dim"), soft_wrap=True)


def _as_json(found: ModelComparison) -> dict[str, Any]:
    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: cell(v) for k, v in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    rows = [asdict(row) | {"to_float64": row.to_float64 and row.to_float64._asdict()} for row in found.rows]
    return {
        "model": found.model,
        "device": str(found.device),
        "dtype": dtype_name(found.dtype),
        "training": found.training,
        "batch": found.batch,
        "limit": found.limit,
        "right": found.right,
        "rows": [cell(row) for row in rows],
        "notes": list(found.notes),
    }
