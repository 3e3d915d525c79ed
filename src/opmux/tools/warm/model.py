"""A model of transformers without weights, and a step of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...core.errors import nearest, quoted
from ...faces.models.patch import CannotPatch, patch_model
from ..arguments import BadOption
from .compiling import first_line


def config_of(what: str, or_script: bool = False) -> Any:
    """The model config that `what` names: a model type (with default sizes), a config.json, or the folder of one.

    `or_script`: whether the command also accepts a script. Its errors then say so.
    """
    transformers = _transformers(or_script)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = Path(what)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # not a possible file name
        exists = False
    if what in CONFIG_MAPPING and not exists:
        return CONFIG_MAPPING[what]()
    if not exists:
        close = nearest(what, list(CONFIG_MAPPING.keys()))
        hint = f": did you mean '{close}'?" if close else "."
        if "/" in what:
            hint = ". If it is a model of the Hugging Face Hub, download it first, and name its folder."
        allowed = "a model type (llama, qwen3), a config.json or its folder" + (", or a script (train.py)" * or_script)
        raise BadOption(
            f"{quoted(what)} is not a model type of transformers {transformers.__version__}, and there is no such file"
            f"{hint} Allowed: {allowed}"
        )
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise BadOption(f"{quoted(what)} has no config.json. Allowed: the folder of a model, as transformers saves it")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        kind = fields.pop("model_type")
    except (ValueError, KeyError, AttributeError, RecursionError, TypeError):
        raise BadOption(
            f"{quoted(str(file))} is not the config of a model: it must be JSON with a model_type, as transformers "
            "writes it"
        ) from None
    if kind not in CONFIG_MAPPING:
        raise BadOption(
            f"{quoted(str(file))}: transformers {transformers.__version__} has no model_type {quoted(str(kind))}"
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # raised by transformers for invalid values
        raise BadOption(f"{quoted(str(file))}: {first_line(error)}") from None


def _transformers(or_script: bool = False) -> Any:
    try:
        import transformers
    except ImportError:
        more = ". A script (train.py) does not need it" if or_script else ""
        raise BadOption(f"a model needs transformers: pip install transformers{more}") from None
    return transformers


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Show only errors of transformers in the block: neither warnings about a model that we made, nor progress bars.

    If the user has set TRANSFORMERS_VERBOSITY, that level stays.
    """
    _transformers()
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    if not os.environ.get("TRANSFORMERS_VERBOSITY"):
        logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def model_step(config: Any, batch: int, length: int, dtype: torch.dtype | None, train: bool) -> Callable[[], None]:
    """A step of a patched model without weights: loss and gradients with `train`, else logits and one token."""
    with errors_only():
        model = model_of(config, dtype, torch.device("meta"))
        try:
            patch_model(model.train(train))
        except CannotPatch as error:
            raise BadOption(str(error)) from None
    ids = torch.zeros(batch, length, dtype=torch.int64, device="meta")

    def step() -> None:
        with errors_only():
            step_of(model, {"input_ids": ids, **({"labels": ids} if train else {})}, train)

    return step


def model_of(config: Any, dtype: torch.dtype | None, device: torch.device) -> Any:
    """A model with random weights on a device. If `dtype` is None, it is the config's dtype, or else bfloat16."""
    transformers = _transformers()
    named = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
    if dtype is None:
        name = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # older versions: torch_dtype
        dtype = getattr(config, name, None) or torch.bfloat16
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    kind = transformers.AutoModelForCausalLM if named is None else named
    try:
        with device:
            return kind._from_config(config, dtype=dtype) if kind is named else kind.from_config(config, dtype=dtype)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise BadOption(f"the model cannot be made: {first_line(error)}") from None
        raise BadOption(
            f"transformers has no causal language model of type '{config.model_type}'. Allowed: those, a config.json "
            "that names its class in `architectures`, or a script"
        ) from None


def step_of(model: Any, batch: dict[str, Any], train: bool) -> None:
    """A step of a typical program: forward and backward with `train`, else the forward and one more token."""
    if train:
        first = model(**batch)[0]  # the loss, or without labels the tensor from which a program computes it
        first.backward(torch.zeros_like(first))
        model.zero_grad(set_to_none=True)
        return
    with torch.no_grad():
        outputs = model(**batch)
        cache = getattr(outputs, "past_key_values", None)
        if cache is not None and set(batch) == {"input_ids"}:
            model(input_ids=batch["input_ids"][:, :1], past_key_values=cache)
