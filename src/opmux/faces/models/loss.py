"""The loss of a language model without its logits: the head computes the loss of its input.

The model's own forward runs. In training its head (a linear layer) returns the loss of the hidden states instead of
their logits, and the model's loss function returns that loss. So what gathers the head's weight (FSDP, ZeRO-3), the
model's other losses (of routers) and its outputs stay as they are.
"""

from __future__ import annotations

import ast
import functools
import weakref
from collections.abc import Callable, Iterable
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
    named: dict[str, list[ast.expr]] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.lm_head":
            heads.append(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.loss_function":
            calls.append(node)
        if isinstance(node, ast.NamedExpr):
            named.setdefault(node.target.id, []).append(node.value)
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            (changes if name == "logits" else named.setdefault(name, [])).append(node.value)
    if len(heads) != 1 or len(calls) != 1:
        raise Unknown("it does not call self.lm_head and self.loss_function once each")
    shown = [ast.unparse(a) for a in calls[0].args] + [f"{k.arg}={ast.unparse(k.value)}" for k in calls[0].keywords]
    if not {"logits", "logits=logits"} & set(shown) or not {"labels", "labels=labels"} & set(shown):
        raise Unknown("its loss is not one of logits and labels")
    if any(word.startswith("shift_labels=") for word in shown):
        raise Unknown("its labels are shifted in a way of its own")
    return _changed(changes, heads[0], {name: values[0] for name, values in named.items() if len(values) == 1})


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
    if any(not text.startswith(("self.", "getattr(self.")) for text in known.values()):
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


class Pending:
    """A loss that a head is to compute, and what it computed; shared by a model, its head and its loss function."""

    def __init__(self):
        self.loss_of: Callable[[Tensor, nn.Linear], Tensor] | None = None
        self.loss: Tensor | None = None


def _head_forward(pending: Pending, layer: nn.Linear, input: Tensor) -> Tensor:
    """The forward of a head: logits, or the loss of a model that waits for one."""
    if pending.loss_of is None:
        return nn.functional.linear(input, layer.weight, layer.bias)
    pending.loss = pending.loss_of(input, layer)
    return pending.loss


def _loss_function(pending: Pending, before: Forward, *args: Any, **kwargs: Any) -> Tensor:
    """The loss function of a model: what its head computed, if it did."""
    return before(*args, **kwargs) if pending.loss is None else pending.loss


_prepared: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _is_usual(model: Any) -> bool:
    return getattr(model.loss_function, "__name__", "") == "ForCausalLMLoss"


def _prepare(model: Any) -> Pending | None:
    """Let a model's head compute its loss; None if the head or the loss is not the usual one."""
    layer = model.lm_head
    copies = getattr(layer, "modules_to_save", None)  # of PEFT, which trains a copy of the layer
    if copies is not None and len(layer.active_adapters) == 1 and layer.active_adapters[0] in copies:
        layer = copies[layer.active_adapters[0]]
    pending, forward = _pending(vars(model).get("_loss_function"), _loss_function), vars(layer).get("forward")
    if pending is not None and _pending(forward, _head_forward) is pending:
        return pending
    if type(layer).forward is not nn.Linear.forward or forward is not None:  # FSDP's class inherits it
        return None
    if pending is None:
        if not _is_usual(model):
            return None
        pending = Pending()
        model.loss_function = functools.partial(_loss_function, pending, model.loss_function)
    layer.forward = functools.partial(_head_forward, pending, layer)  # also of a new head, if embeddings were resized
    _remember(model)
    return pending


def _pending(function: Any, ours: Forward) -> Pending | None:
    """What a function that was set on a model shares with it, if it is this one of ours."""
    return function.args[0] if isinstance(function, functools.partial) and function.func is ours else None


def _remember(model: nn.Module) -> None:
    if not torch.compiler.is_compiling():
        _prepared.add(model)


def restore(*models: nn.Module) -> None:
    """Undo what the forwards of `without_logits` and `of_logits` set on these models and their heads."""
    for module in models:
        own = vars(module)
        for name, ours in (("forward", (_head_forward,)), ("_loss_function", (_loss_function, ForCausalLMLoss))):
            if name in own and getattr(own[name], "func", own[name]) in ours:
                delattr(module, name)


def restore_all(classes: Iterable[type[nn.Module]]) -> None:
    """`restore` of the models of these classes that are known."""
    for model in [model for model in _prepared if isinstance(model, tuple(classes))]:
        restore(*model.modules())


def without_logits(head: Head, original: Forward) -> Forward:
    """A model's forward that computes the loss of labels in training without logits; its outputs have none."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        pending = _prepare(self) if self.training and kwargs.get("labels") is not None else None
        if pending is None:
            return original(self, *args, **kwargs)
        as_tuple = kwargs.pop("return_dict", self.config.return_dict) is False
        pending.loss_of = lambda hidden, layer: _loss(self, layer, head, hidden, kwargs)
        try:
            outputs = original(self, *args, **kwargs, return_dict=True)
            if pending.loss is not None:
                outputs.logits = None
        finally:
            pending.loss_of = pending.loss = None
        return outputs.to_tuple() if as_tuple else outputs

    return forward


def calls_loss_function(forward: Forward) -> bool:
    """Whether a model's forward calls self.loss_function."""
    definition = parsed(forward)
    calls = [] if definition is None else [node for node in ast.walk(definition) if isinstance(node, ast.Call)]
    return any(ast.unparse(node.func) == "self.loss_function" for node in calls)


def of_logits(original: Forward) -> Forward:
    """A model's forward that computes the loss of logits by our cross entropy, which makes no copy in float32."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("labels") is not None and "_loss_function" not in vars(self) and _is_usual(self):
            self.loss_function = ForCausalLMLoss
            _remember(self)
        return original(self, *args, **kwargs)

    return forward


def ForCausalLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """transformers' function of this name."""
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
    """The label of the next token, for each token."""
    return nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]


def _over(loss: Tensor, count: Tensor | int | None) -> Tensor:
    return loss if count is None else loss / (count.to(loss.device) if isinstance(count, Tensor) else count)


def _loss(model: Any, layer: nn.Linear, head: Head, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
    ignored = kwargs.get("ignore_index", -100)
    target = kwargs.get("shift_labels")
    if target is None:
        target = _next(kwargs["labels"], ignored)
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
    return _over(loss, count)
