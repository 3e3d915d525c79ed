"""`liger_kernel.transformers`: `apply_liger_kernel_to_<model>`, implemented by `opmux.patch_model`.

If a model is given, only that model is patched. Otherwise the classes of `transformers` are patched, for models that
are created later. `opmux.unpatch_model` undoes both. A part is replaced only if opmux knows its source code.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ...core.errors import BadArgument
from ...core.log import logger
from .. import compat
from ..models.patch import EXCLUDED, CannotPatch, patch_model
from .patched_models import MODELS, TYPES

# Flag of Liger -> the parts of a model that patch_model replaces. `layer_norm` replaces none: at the sizes of vision
# towers, torch's layer norm takes 23 us and ours 63 us (H200, 577 x 1024).
PARTS = {
    "rope": ("rope",),
    "rms_norm": ("rms_norm", "add_rms_norm"),
    "swiglu": ("glu", "moe"),
    "geglu": ("glu", "moe"),
    "relu_squared": ("glu",),
    "cross_entropy": ("cross_entropy",),
    "fused_linear_cross_entropy": ("loss",),
}
# The last line of a report, if Liger's flags leave parts out.
MORE = "opmux.patch_model(model) replaces the excluded parts too; Liger's flags have no name for attention and mask"


def is_transformers_available() -> bool:
    return importlib.util.find_spec("transformers") is not None


def __getattr__(name: str) -> Any:
    """Liger's constants about installed packages, computed on first access because they import transformers."""
    if name == "PEFT_AVAILABLE":
        return importlib.util.find_spec("peft") is not None
    if name not in ("transformer_version", "MIN_SUPPORTED_TRANSFORMERS_VERSION", "IS_TRANSFORMERS_V5_OR_LATER"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from packaging.version import parse

    if name == "MIN_SUPPORTED_TRANSFORMERS_VERSION":
        return parse("4.52.0")
    installed = parse(importlib.import_module("transformers").__version__)
    return installed if name == "transformer_version" else installed >= parse("5.0.0")


def _signature(arguments: str) -> inspect.Signature:
    """The signature for text such as `rope=True, model=None, **kwargs`."""
    values = {"True": True, "False": False, "None": None}
    parameters = []
    for argument in arguments.split(", "):
        name, is_given, value = argument.partition("=")
        if is_given:
            parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=values[value]))
        else:
            parameters.append(inspect.Parameter(name.lstrip("*"), inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _patcher(model_type: str, arguments: str) -> Callable[..., None]:
    """`apply_liger_kernel_to_<model type>` with these arguments."""
    signature = _signature(arguments)
    name = f"apply_liger_kernel_to_{model_type}"

    def apply(*args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        bound.apply_defaults()
        flags = bound.arguments
        if flags.get("cross_entropy") and flags.get("fused_linear_cross_entropy"):
            raise BadArgument.of(name, "cross_entropy", "be False if fused_linear_cross_entropy is True", "True")
        parts = {part for flag, parts in PARTS.items() if flags.get(flag) for part in parts}
        if not parts:
            return
        report = patch_model(model_type if flags["model"] is None else flags["model"], include=sorted(parts))
        excluded = any(row.reason.endswith(EXCLUDED) for row in report.left)
        compat.report(f"{report}\n{MORE}" if excluded else report)

    patcher: Any = apply
    patcher.__signature__, patcher.__name__, patcher.__qualname__ = signature, name, name
    patcher.__doc__ = f"Replace parts of {model_type}: of `model`, or of all models created later."
    return patcher


def _patchers() -> Iterator[tuple[str, Callable[..., None]]]:
    for arguments, models in MODELS.items():
        for model in models.split():
            yield model, _patcher(model, arguments)


_PATCHERS = dict(_patchers())
MODEL_TYPE_TO_APPLY_LIGER_FN = _PATCHERS | {model_type: _PATCHERS[model] for model_type, model in TYPES.items()}
globals().update({patcher.__name__: patcher for patcher in _PATCHERS.values()})


def _apply(model_type: str | None, model: Any, options: dict[str, Any]) -> None:
    """Patch a model or a model type, if the type is known. Options that the type does not have are ignored."""
    patcher = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type or "")
    if patcher is None:
        logger.info("liger_kernel: nothing is patched: the model type is %r, which has no patch", model_type)
        return
    known = inspect.signature(patcher).parameters
    try:
        patcher(**{name: value for name, value in options.items() if name in known}, model=model)
    except CannotPatch as error:
        logger.warning("%s", error)


def _apply_liger_kernel(model_type: str, **kwargs: Any) -> None:
    """Patch the classes of a model type, for models created later."""
    _apply(model_type, None, kwargs)


def _apply_liger_kernel_to_instance(model: Any, **kwargs: Any) -> None:
    """Patch a model."""
    _apply(getattr(getattr(model, "config", None), "model_type", None), model, kwargs)
