"""`AutoLigerKernelForCausalLM`: creates a model of `transformers` and patches it."""

from __future__ import annotations

import inspect
from typing import Any

from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from .patching import MODEL_TYPE_TO_APPLY_LIGER_FN, _apply_liger_kernel_to_instance

FLAGS = {
    name
    for made in MODEL_TYPE_TO_APPLY_LIGER_FN.values()
    for name, parameter in inspect.signature(made).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD and name != "model"
}


class AutoLigerKernelForCausalLM(AutoModelForCausalLM):
    """An `AutoModelForCausalLM` that patches the models it creates, except models of unknown types."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        flags = {name: kwargs.pop(name) for name in FLAGS & set(kwargs)}
        return _patched(super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs), flags)

    @classmethod
    def from_config(cls, config: Any, **kwargs: Any) -> Any:
        flags = {name: kwargs.pop(name) for name in FLAGS & set(kwargs)}
        return _patched(super().from_config(config, **kwargs), flags)


def _patched(model: Any, flags: dict[str, Any]) -> Any:
    _apply_liger_kernel_to_instance(model, **flags)
    return model
