"""The loss of a language model without its logits: the head computes the loss of its input.

The model's own forward runs. While it does, the head (a linear layer) returns the loss of the hidden states instead of
their logits, and the model's loss function returns that loss. So what gathers the head's weight (FSDP, ZeRO-3), the
model's other losses (of routers) and its outputs stay as they are.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..functional import losses
from .forms import parsed

Forward = Callable[..., Any]


class Head(NamedTuple):
    """What a model does with its logits before the loss: expressions of `self`."""

    times: str | None = None
    over: str | None = None
    softcap: str | None = None


class Unknown(Exception):
    """A forward that computes its loss in a way that is not known."""


@functools.cache
def head_of(forward: Forward) -> Head:
    """How a model's forward computes logits and loss; raises Unknown with the reason."""
    definition = parsed(forward)
    if definition is None:
        raise Unknown("its source cannot be read")
    heads, calls, changes = [], [], []
    local: dict[str, ast.expr] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.lm_head":
            heads.append(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.loss_function":
            calls.append(node)
        if isinstance(node, ast.NamedExpr):
            local[node.target.id] = node.value
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "logits":
            changes.append(node.value)
    if len(heads) != 1 or len(calls) != 1:
        raise Unknown("it does not call self.lm_head and self.loss_function once each")
    shown = [ast.unparse(a) for a in calls[0].args] + [f"{k.arg}={ast.unparse(k.value)}" for k in calls[0].keywords]
    if not {"logits", "logits=logits"} & set(shown) or not {"labels", "labels=labels"} & set(shown):
        raise Unknown("its loss is not one of logits and labels")
    if any(word.startswith("shift_labels=") for word in shown):
        raise Unknown("its labels are shifted in a way of its own")
    return _changed(changes, heads[0], local)


def _changed(changes: list[ast.expr], head: ast.Call, local: dict[str, ast.expr]) -> Head:
    """What the assignments to logits do after the head."""
    known: dict[str, str] = {}
    steps = []
    for value in changes:
        if any(node is head for node in ast.walk(value)):
            value, first = _after_head(value, head)
            if first is not None:
                steps.append(first)
        elif isinstance(value, ast.BinOp) and ast.unparse(value.left) in ("logits", "logits.float()"):
            steps.append((type(value.op), value.right))
        elif ast.unparse(value) == "torch.tanh(logits)":
            steps.append((ast.Call, value))
        else:
            raise Unknown(f"it changes its logits: {ast.unparse(value)}")
    resolve = lambda node: ast.unparse(local.get(node.id, node) if isinstance(node, ast.Name) else node)
    kinds = [kind for kind, _ in steps]
    if [ast.Div, ast.Call, ast.Mult] == kinds[-3:]:
        cap, again = resolve(steps[-3][1]), resolve(steps[-1][1])
        if cap != again:
            raise Unknown("it caps its logits in a way that is not known")
        known["softcap"], steps = cap, steps[:-3]
    for kind, operand in steps:
        name = {ast.Mult: "times", ast.Div: "over"}.get(kind)
        if name is None or name in known:
            raise Unknown("it changes its logits in a way that is not known")
        known[name] = resolve(operand)
    if any(not text.startswith("self.") for text in known.values()):
        raise Unknown(f"it changes its logits by {', '.join(known.values())}")
    return Head(**known)


def _after_head(value: ast.expr, head: ast.Call) -> tuple[ast.expr, tuple[Any, ast.expr] | None]:
    """The step in the statement that calls the head: none, .float(), or a factor."""
    if value is head or ast.unparse(value) == f"{ast.unparse(head)}.float()":
        return value, None
    if isinstance(value, ast.BinOp) and value.left is head:
        return value, (type(value.op), value.right)
    raise Unknown(f"it changes its logits: {ast.unparse(value)}")


@functools.cache
def _getter(text: str) -> Callable[[Any], Any]:
    return eval(f"lambda self: {text}")  # an expression of the model's own forward


def without_logits(head: Head, original: Forward) -> Forward:
    """A model's forward that computes the loss of labels in training without logits; its outputs have none."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        layer = _linear(self) if self.training and kwargs.get("labels") is not None else None
        if layer is None:
            return original(self, *args, **kwargs)
        as_tuple = kwargs.pop("return_dict", self.config.return_dict) is False
        with _loss_in_head(self, layer, head, kwargs):
            outputs = original(self, *args, **kwargs, return_dict=True)
        outputs.logits = None
        return outputs.to_tuple() if as_tuple else outputs

    return forward


def _linear(model: Any) -> nn.Linear | None:
    """The model's head, if it is a plain linear layer and the loss is that of next tokens."""
    if getattr(model.loss_function, "__name__", "") != "ForCausalLMLoss":
        return None
    layer = model.lm_head
    copies = getattr(layer, "modules_to_save", None)  # of PEFT, which trains a copy of the layer
    if copies is not None and len(layer.active_adapters) == 1 and layer.active_adapters[0] in copies:
        layer = copies[layer.active_adapters[0]]
    plain = type(layer).forward is nn.Linear.forward and "forward" not in layer.__dict__  # FSDP's class inherits it
    return layer if plain else None


@contextlib.contextmanager
def _loss_in_head(model: Any, layer: nn.Linear, head: Head, kwargs: dict[str, Any]) -> Iterator[None]:
    """While a forward runs: the head returns the loss, and the loss function what the head returned."""
    made: list[Tensor] = []

    def loss_of(input: Tensor) -> Tensor:
        made.append(_loss(model, layer, head, input, kwargs))
        return made[0]

    before = model.__dict__.get("_loss_function")
    layer.forward = loss_of
    model._loss_function = lambda *args, **kwargs: made[0]
    try:
        yield
    finally:
        del layer.forward
        if before is None:
            del model._loss_function
        else:
            model._loss_function = before


def _loss(model: Any, layer: nn.Linear, head: Head, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
    ignored = kwargs.get("ignore_index", -100)
    target = kwargs.get("shift_labels")
    if target is None:
        target = nn.functional.pad(kwargs["labels"], (0, 1), value=ignored)[..., 1:]
    if head.times is not None:
        hidden = hidden * _getter(head.times)(model)
    if head.over is not None:
        hidden = hidden / _getter(head.over)(model)
    count = kwargs.get("num_items_in_batch")
    loss = losses.fused_linear_cross_entropy(
        hidden,
        layer.weight,
        target.to(hidden.device).reshape(hidden.shape[:-1]),
        layer.bias,
        ignore_index=ignored,
        reduction="mean" if count is None else "sum",
        softcap=None if head.softcap is None else _getter(head.softcap)(model),
    )
    assert isinstance(loss, Tensor)
    return loss if count is None else loss / (count.to(loss.device) if torch.is_tensor(count) else count)
