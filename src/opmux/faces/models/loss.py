"""Computes the loss of a language model from the input of its head, without logits.

The model's own forward runs with a stand-in for `self`. The stand-in's head returns `LateLogits`, and the stand-in's
loss function accepts them. Nothing is stored on the model: only the forward's own variables contain the late logits. So
calls do not interfere with each other, even on other threads, in replicas, interleaved, or after an error. Hooks that
gather the head's weight before its forward (FSDP, ZeRO-3) also gather the weight for our loss. Other losses (of
routers) and other outputs of the model are unchanged.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...functional import losses
from .forms import is_own, parsed
from .logits import LateLogits, read_late, scale_of
from .modules import is_changed

Forward = Callable[..., Any]

# Libraries whose hooks gather the weight of a layer for its forward, and change neither its input nor its result.
GATHERING = ("torch.distributed.fsdp.", "deepspeed.")


# ---- which models ---------------------------------------------------------------------------------------------------


def why_not(forward: Forward, *names: str) -> str:
    """Why a forward cannot run with a stand-in for `self` that replaces these methods; "" if it can."""
    definition = parsed(forward)
    if definition is None:
        return "its source cannot be read"
    called = {ast.unparse(node.func) for node in ast.walk(definition) if isinstance(node, ast.Call)}
    missing = " and ".join(f"self.{name}" for name in names if f"self.{name}" not in called)
    if missing:
        return f"it does not call {missing}"
    selves = {id(node) for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id == "self"}
    owners = {id(node.value) for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    return "it passes itself to a function" if selves - owners or "super" in called else ""


class _StandardLoss:
    """transformers' ForCausalLMLoss, if its source is known; set by `remember_loss`."""

    function: Forward | None = None
    helper: Forward | None = None
    home: Any = None


def remember_loss() -> str:
    """Find transformers' loss function of language models; returns why it cannot be replaced, or ""."""
    from transformers.loss import loss_utils

    _StandardLoss.home, _StandardLoss.function, _StandardLoss.helper = loss_utils, None, None
    function, helper = loss_utils.ForCausalLMLoss, loss_utils.fixed_cross_entropy
    names = inspect.signature(function).parameters.keys()
    if not is_own(function, loss_utils) or not is_own(helper, loss_utils):
        return "ForCausalLMLoss of transformers was replaced"
    if names != inspect.signature(ForCausalLMLoss).parameters.keys():
        return "ForCausalLMLoss of this transformers has other arguments"
    _StandardLoss.function, _StandardLoss.helper = function, helper
    return ""


def _is_standard(loss_function: Any) -> bool:
    """Whether a model's loss function is our replacement, or transformers' own with an unchanged helper."""
    if loss_function is ForCausalLMLoss:
        return True
    return (
        loss_function is not None
        and loss_function is _StandardLoss.function
        and _StandardLoss.home.fixed_cross_entropy is _StandardLoss.helper
    )


# ---- the stand-in ---------------------------------------------------------------------------------------------------


class ModelStandIn:
    """Replaces `self` in one call of a model's forward: it has another loss function, and with `layer` another head."""

    def __init__(self, model: Any, loss_function: Forward, layer: nn.Module | None = None):
        attributes = self.__dict__
        attributes["_model"], attributes["loss_function"] = model, loss_function
        if layer is not None:
            attributes["lm_head"] = Head(model.lm_head, layer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)


class Head:
    """A head that returns late logits."""

    def __init__(self, module: Any, layer: nn.Module):
        self._module, self._layer = module, layer

    def __call__(self, hidden: Tensor) -> LateLogits:
        return LateLogits(self._layer, hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def fused_layer(model: Any) -> Any:
    """The linear layer of a model's head if the loss can use its input directly; None if the head must be called."""
    layer: Any = getattr(model, "lm_head", None)
    copies = getattr(layer, "modules_to_save", None)  # PEFT trains a copy of the layer
    if copies is not None:
        active = layer.active_adapters
        if layer.disable_adapters or len(active) != 1 or active[0] not in copies or is_changed(layer):
            return None
        layer = copies[active[0]]
    if not isinstance(layer, nn.Module) or type(layer).forward is not nn.Linear.forward:  # FSDP's class inherits it
        return None
    return None if is_changed(layer) and not _only_gathers(layer) else layer


def _only_gathers(layer: nn.Module) -> bool:
    """Whether a layer has no changes except hooks that gather its weight."""
    if torch.compiler.is_compiling() or "forward" in vars(layer):
        return False
    hooks = [*layer._forward_hooks.values(), *layer._forward_pre_hooks.values()]
    if layer._backward_hooks or layer._backward_pre_hooks:
        return False
    everywhere = nn.modules.module
    globally = (
        everywhere._global_forward_hooks,
        everywhere._global_forward_pre_hooks,
        everywhere._global_backward_hooks,
        everywhere._global_backward_pre_hooks,
    )
    return not any(globally) and all((getattr(hook, "__module__", "") or "").startswith(GATHERING) for hook in hooks)


def _in_forward(layer: Any, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Run `run(hidden)` in place of a layer's forward, so that the layer's hooks gather its weight before it."""
    if not is_changed(layer):
        return run(hidden)
    call = object.__new__(type(layer))  # for this call only; it shares the layer's parameters and hooks
    call.__dict__ = {**vars(layer), "forward": run}
    return call(hidden)


# ---- forwards -------------------------------------------------------------------------------------------------------


def without_logits(original: Forward) -> Forward:
    """A forward that computes the loss without logits, if it is called with labels in training."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.training or kwargs.get("labels") is None or _returns_tuple(self, kwargs):
            return original(self, *args, **kwargs)
        loss_function, layer = self.loss_function, fused_layer(self)
        if layer is None or not _is_standard(loss_function):
            return original(self, *args, **kwargs)
        call = ModelStandIn(self, functools.partial(_loss_of_late, loss_function), layer)
        return read_late(original(call, *args, **kwargs))

    return forward


def _returns_tuple(model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the outputs are a tuple. If so, logits must be computed, because they are an item of the tuple."""
    return_dict = kwargs.get("return_dict")
    return not (model.config.return_dict if return_dict is None else return_dict)


def of_logits(original: Forward) -> Forward:
    """A forward that computes the loss by our cross entropy, which needs no float32 copy of the logits."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("labels") is None or not _is_standard(self.loss_function):
            return original(self, *args, **kwargs)
        return original(ModelStandIn(self, ForCausalLMLoss), *args, **kwargs)

    return forward


# ---- losses ---------------------------------------------------------------------------------------------------------


def ForCausalLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Replaces transformers' function of this name."""
    target = _next(labels, ignore_index) if shift_labels is None else shift_labels
    logits = logits.reshape(-1, vocab_size)
    loss = losses.cross_entropy(
        logits.float() if logits.dtype is torch.float64 else logits,
        target.reshape(-1).to(logits.device),
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
    )
    assert isinstance(loss, Tensor)
    return _over(loss, num_items_in_batch)


def _next(labels: Tensor, ignored: int) -> Tensor:
    """Shift labels by one: each token gets the label of the next token."""
    return nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]


def _over(loss: Tensor, count: Tensor | int | None) -> Tensor:
    return loss if count is None else loss / (count.to(loss.device) if isinstance(count, Tensor) else count)


def _loss_of_late(before: Forward, logits: Any, labels: Tensor, vocab_size: int, *args: Any, **kwargs: Any) -> Tensor:
    """Compute the loss of late logits without the logits; for other logits call `before`, the model's loss function."""
    late = isinstance(logits, LateLogits)
    scale = scale_of(logits.steps) if late and logits.computed is None else None
    if scale is None or args or logits.layer.out_features != vocab_size:
        return before(logits.read_now() if late else logits, labels, vocab_size, *args, **kwargs)
    run = functools.partial(_fused, logits.layer, scale, labels, kwargs)
    return _in_forward(logits.layer, logits.hidden, run)


def _fused(layer: Any, scale: Any, labels: Tensor, kwargs: dict[str, Any], hidden: Tensor) -> Tensor:
    factor, divisor, softcap = scale
    ignored, target = kwargs.get("ignore_index", -100), kwargs.get("shift_labels")
    if target is None:
        target = _next(labels, ignored)
    bias = layer.bias
    if factor != 1.0:
        hidden, bias = hidden * factor, None if bias is None else bias * factor
    if divisor != 1.0:
        hidden, bias = hidden / divisor, None if bias is None else bias / divisor
    count = kwargs.get("num_items_in_batch")
    loss = losses.fused_linear_cross_entropy(
        hidden,
        layer.weight,
        target.to(hidden.device).reshape(hidden.shape[:-1]),
        bias,
        ignore_index=ignored,
        reduction="mean" if count is None else "sum",
        softcap=softcap,
    )
    assert isinstance(loss, Tensor)
    return _over(loss, count)
