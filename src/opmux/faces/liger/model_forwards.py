"""`liger_kernel.transformers.model`: forwards of language models that compute the loss without logits.

A name `<function>@<model>` is the forward of the model's classes in `transformers`: the library's own forward, called
with a stand-in for the model (see `faces/models/loss.py`). Outputs are those of transformers, with token_accuracy and
predicted_tokens; logits are computed when they are read.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ..models import loss
from ..models.forms import unwrapped
from ..models.logits import LateLogits, read_late, scale_of
from ..models.modules import own_forward
from .losses import CrossEntropyOutput, Parts, liger_fused_linear_cross_entropy
from .sharding import _FSDPForwardRedirection

# Function of a module of Liger -> the end of the names of the classes whose forward it is.
CLASSES = {
    "causal_forward": ("ForCausalLM",),
    "multimodal_forward": ("ForConditionalGeneration",),
    "lce_forward": ("ForCausalLM", "ForConditionalGeneration"),
    "lce_forward_for_multimodal": ("ForConditionalGeneration",),
    "lce_forward_conditional_generation": ("ForConditionalGeneration",),
}
FOLDERS = {"hunyuan_v1": ("hunyuan_v1_dense", "hunyuan_v1_moe")}  # model -> its folders in transformers
Forward = Callable[..., Any]


def __getattr__(name: str) -> Any:
    function, at, model = name.partition("@")
    if at:
        return _forward(function, model)
    if name.startswith("Liger") and name.endswith("CausalLMOutputWithPast"):
        return _output_class(name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


# ---- forwards --------------------------------------------------------------------------------------------------------


@functools.cache
def _forward(function: str, model: str) -> Forward:
    """The forward of a model's classes; keeps the forwards that they have now, as a program may replace these by it."""
    originals: dict[type, Forward] = {}
    for folder in FOLDERS.get(model, (model,)):
        home = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
        for name, cls in vars(home).items():
            if isinstance(cls, type) and name.endswith(CLASSES[function]) and cls.__module__ == home.__name__:
                originals[cls] = own_forward(cls)

    def forward(self: Any, *args: Any, skip_logits: bool | None = None, **kwargs: Any) -> Any:
        original = next((originals[cls] for cls in type(self).__mro__ if cls in originals), None)
        if original is None:
            allowed = " or ".join(cls.__name__ for cls in originals)
            raise BadArgument.of(f"{function} of {model}", "self", f"be a {allowed}", type(self).__name__, TypeError)
        return _run(self, original, skip_logits, *args, **kwargs)

    forward.__name__ = forward.__qualname__ = function
    return forward


def _run(self: Any, original: Forward, skip_logits: bool | None, *args: Any, **kwargs: Any) -> Any:
    """Run a model's forward; without logits if `skip_logits` says so, or in training."""
    kwargs |= zip(list(inspect.signature(unwrapped(original) or original).parameters)[1:], args, strict=False)
    if kwargs.get("labels") is None and kwargs.get("shift_labels") is not None:
        kwargs["labels"] = kwargs["shift_labels"]  # the loss reads shift_labels
    labelled = kwargs.get("labels") is not None
    if skip_logits and not labelled:
        raise BadArgument.of(type(self).__name__, "skip_logits", "be False or None without labels", "True")
    requested = {name: kwargs.pop(name, False) for name in ("return_token_accuracy", "return_predicted_tokens")}
    layer = loss.fused_layer(self) if labelled else None
    skip = self.training if skip_logits is None else skip_logits
    if layer is None or not skip or loss._returns_tuple(self, kwargs):
        return original(self, **kwargs)
    extras: dict[str, Tensor | None] = {}
    stand_in = loss.ModelStandIn(self, functools.partial(_loss, self.loss_function, requested, extras), layer)
    outputs = original(stand_in, **kwargs)
    cls = _with_accuracy(type(outputs))
    return read_late(cls(**dict(outputs.items()), **extras) if any(requested.values()) else cls(**outputs))


def _loss(
    before: Forward, requested: dict[str, bool], extras: Any, logits: Any, labels: Tensor, *args: Any, **kwargs: Any
):
    """The loss of late logits, from the input of the head; writes the requested results to `extras`."""
    late = isinstance(logits, LateLogits)
    scale = scale_of(logits.steps) if late and logits.computed is None else None
    if scale is None:
        return before(logits.read_now() if late else logits, labels, *args, **kwargs)
    factor, divisor, softcap = scale
    layer: Any = logits.layer
    kwargs = {n: v for n, v in kwargs.items() if n not in ("vocab_size", "bias")}

    def run(hidden: Tensor) -> Tensor:
        bias = layer.bias
        scaled = [None if t is None else t * factor / divisor if factor != divisor else t for t in (hidden, bias)]
        result = LigerForCausalLMLoss(
            scaled[0],
            layer.weight,
            labels,
            hidden.shape[-1],
            final_logit_softcapping=softcap,
            bias=scaled[1],
            **requested,
            **kwargs,
        )
        value, _, accuracy, tokens = unpack_cross_entropy_result(result)
        extras.update(token_accuracy=accuracy, predicted_tokens=tokens)
        return value

    return loss._in_forward(layer, logits.hidden, run)


def lce_maybe_trainable_lm_head(
    self: Any, hidden_states: Tensor, hidden_size: int, labels: Any, shift_labels: Any, **loss_kwargs: Any
) -> Any:
    """The loss of a model's head, from its input; gathers the head's weight if FSDP has split it."""
    head = self.lm_head
    head = getattr(head, "modules_to_save", {"default": head})["default"]  # PEFT trains a copy of the layer

    def run(layer: Any) -> Any:
        options = {"shift_labels": shift_labels, **loss_kwargs}
        return LigerForCausalLMLoss(hidden_states, layer.weight, labels, hidden_size, **options)

    if hasattr(head, "_fsdp_wrapped_module"):
        return _FSDPForwardRedirection()(head, run, head.module)
    return run(head)


# ---- losses ----------------------------------------------------------------------------------------------------------


def unpack_cross_entropy_result(result: Any) -> Parts:
    """(loss, z_loss, token_accuracy, predicted_tokens) of a loss, a CrossEntropyOutput or a tuple."""
    if isinstance(result, CrossEntropyOutput):
        return result.loss, result.z_loss, result.token_accuracy, result.predicted_tokens
    values: Any = (*result, None, None, None) if isinstance(result, tuple) else (result, None, None, None)
    return values[0], values[1], values[2], values[3]


def fixed_fused_linear_cross_entropy(
    hidden_states: Tensor,
    lm_head_weight: Tensor,
    target: Tensor,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    final_logit_softcapping: float | None = None,
    accum_dtype: torch.dtype | None = None,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    **kwargs: Any,
) -> Any:
    """The mean loss of the tokens, or with num_items_in_batch their sum divided by it."""
    result = liger_fused_linear_cross_entropy(
        hidden_states,
        lm_head_weight,
        target,
        reduction="mean" if num_items_in_batch is None else "sum",
        ignore_index=ignore_index,
        softcap=final_logit_softcapping,
        accum_dtype=accum_dtype,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
        **kwargs,
    )
    value, _, accuracy, tokens = unpack_cross_entropy_result(result)
    if num_items_in_batch is not None:
        count = num_items_in_batch
        value = value / (count.to(value.device) if isinstance(count, Tensor) else count)
    if return_token_accuracy or return_predicted_tokens:
        return CrossEntropyOutput(value, token_accuracy=accuracy, predicted_tokens=tokens)
    return value


def LigerForCausalLMLoss(
    hidden_states: Any,
    lm_head_weight: Tensor,
    labels: Any,
    hidden_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    final_logit_softcapping: float | None = None,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    **kwargs: Any,
) -> Any:
    """The loss of a language model: each token predicts the label of the next one, or its own of `shift_labels`.

    Keywords that liger_fused_linear_cross_entropy does not have are ignored.
    """
    known = inspect.signature(liger_fused_linear_cross_entropy).parameters
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return fixed_fused_linear_cross_entropy(
        hidden_states.reshape(-1, hidden_size),
        lm_head_weight,
        shift_labels.reshape(-1).to(hidden_states.device),
        num_items_in_batch,
        ignore_index,
        final_logit_softcapping,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
        **{name: value for name, value in kwargs.items() if name in known},
    )


# ---- outputs ---------------------------------------------------------------------------------------------------------


@functools.cache
def _with_accuracy(base: type) -> type:
    """The subclass of a class of outputs of transformers that has token_accuracy and predicted_tokens too."""
    fields = {"token_accuracy": Tensor | None, "predicted_tokens": Tensor | None}
    members = {"__annotations__": fields, "__module__": __name__, **dict.fromkeys(fields)}
    return dataclasses.dataclass(type(f"Liger{base.__name__}", (base,), members))


# Output of a model -> the model's folder in transformers; other outputs are in transformers.modeling_outputs.
OUTPUTS = {
    "Gemma3": "gemma3",
    "Gemma4": "gemma4",
    "Glm4vMoe": "glm4v_moe",
    "InternVL": "internvl",
    "Llava": "llava",
    "PaliGemma": "paligemma",
    "Qwen2VL": "qwen2_vl",
    "Qwen2_5_VL": "qwen2_5_vl",
    "Qwen3VL": "qwen3_vl",
    "Qwen3VLMoe": "qwen3_vl_moe",
    "Qwen3_5": "qwen3_5",
    "Qwen3_5Moe": "qwen3_5_moe",
}


def _output_class(name: str) -> type:
    """One of Liger's classes of outputs; an AttributeError if this transformers does not have the model."""
    base = name.removeprefix("Liger")
    folder = OUTPUTS.get(base.removesuffix("CausalLMOutputWithPast"))
    where = "transformers.modeling_outputs" if folder is None else f"transformers.models.{folder}.modeling_{folder}"
    try:
        return _with_accuracy(getattr(importlib.import_module(where), base))
    except (ModuleNotFoundError, AttributeError):
        raise AttributeError(f"{name}: the installed transformers has no {where}.{base}") from None
