"""A step of a model on a batch, its results, and how far the results of two steps are apart."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...core.errors import BadArgument
from ...faces.models import ahead
from ...faces.models.modules import is_patched

Loss = Callable[[Any], Tensor]
SEED = 0
# The distance of a gradient is divided by its norm, or by this share of the largest norm if that is larger. Some
# gradients are 0 except for rounding (the bias of keys in attention), and their relative distance means nothing.
SMALL = 1e-3
SHOWN = 3  # of a batch's shapes, only the first ones are printed


# ---- the batch ------------------------------------------------------------------------------------------------------


class ForwardArguments(NamedTuple):
    """The arguments of a model's forward."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(tuple(self)) if isinstance(leaf, Tensor)]

    @property
    def sizes(self) -> str:
        """The batch's sizes: `batch size 4, sequence length 32`, or the shapes of its first tensors."""
        ids = self.kwargs.get("input_ids")
        if isinstance(ids, Tensor) and ids.dim() == 2:
            return f"batch size {ids.shape[0]}, sequence length {ids.shape[1]}"
        shapes = ["x".join(map(str, t.shape)) or "a number" for t in self.tensors]
        return f"batch {', '.join(shapes[:SHOWN])}" + (" and more" if len(shapes) > SHOWN else "")

    def widened(self) -> ForwardArguments:
        """The same arguments, with all floating-point tensors in float64."""
        wide = lambda x: x.detach().double() if isinstance(x, Tensor) and x.is_floating_point() else x
        return ForwardArguments(*pytree.tree_map(wide, tuple(self)))


def bad(argument: str, expected: str, got: str, kind: type[Exception] = ValueError) -> BadArgument:
    return BadArgument.of("compare", argument, expected, got, kind)


def check_model(model: Any) -> torch.device:
    """The device of a model that can be compared; raises BadArgument for any other."""
    if not isinstance(model, nn.Module):
        raise bad("model", "be a module of torch", type(model).__name__, TypeError)
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        found = " and ".join(sorted(map(str, devices))) or "no parameters"
        raise bad("model", "have parameters, all on one device", found)
    (device,) = devices
    if device.type == "meta":
        raise bad("model", "have weights", "parameters on the meta device")
    if is_patched(model):
        raise bad("model", "not be patched: call opmux.unpatch_model first", f"a patched {type(model).__name__}")
    return device


def check_batch(model: nn.Module, batch: Any, device: torch.device) -> ForwardArguments:
    """Turn a batch into arguments of the model's forward; raises BadArgument if the forward does not take them."""
    if _of_transformers(model) and isinstance(batch, (Tensor, Mapping)):
        try:
            return ForwardArguments((), ahead.checked(model, batch))
        except BadArgument as error:
            raise error.renamed("compare", {"example": "batch"}) from None
    if isinstance(batch, Tensor):
        given = ForwardArguments((batch,), {})
    elif isinstance(batch, Mapping):
        given = ForwardArguments((), dict(batch))
    else:
        given = ForwardArguments(tuple(batch) if isinstance(batch, (tuple, list)) else (), {})
    if not given.tensors:
        expected = "be a tensor, a tuple, or a dict of the arguments of the model's forward, with tensors in it"
        raise bad("batch", expected, type(batch).__name__, TypeError)
    for tensor in given.tensors:
        if tensor.device != device:
            raise bad("batch", f"have all tensors on the model's device, {device}", f"a tensor on {tensor.device}")
    return given


def _of_transformers(model: Any) -> bool:
    return hasattr(getattr(model, "config", None), "model_type")


# ---- a step ---------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """A step: loss and gradients of a model in training, else its outputs. It leaves no gradients."""

    model: nn.Module
    given: ForwardArguments
    loss: Loss | None

    @property
    def training(self) -> bool:
        return self.model.training

    def __call__(self) -> None:
        if self.training:
            self._loss_of(self._outputs()).backward()
            self.clear()
        else:
            with torch.no_grad():
                self._outputs()

    def clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def results(self) -> Results:
        """Loss and gradients, or loss and outputs, without dropout: kernels may draw differently from one seed."""
        torch.manual_seed(SEED)
        with WithoutDropout():
            if self.training:
                loss = self._loss_of(self._outputs())
                loss.backward()
                tensors = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
                self.clear()
                return Results(loss.item(), tensors)
            with torch.no_grad():
                outputs = self._outputs()
                found = _loss_in(outputs) if self.loss is None else self._loss_of(outputs)
        tensors = _floating(outputs)
        if not tensors:
            raise bad("model", "return a tensor of floating-point numbers", type(outputs).__name__)
        return Results(None if found is None else found.item(), tensors)

    def _outputs(self) -> Any:
        return self.model(*self.given.args, **self.given.kwargs)

    def _loss_of(self, outputs: Any) -> Tensor:
        found = _loss_in(outputs) if self.loss is None else self.loss(outputs)
        if found is None:
            how = "a function of the model's outputs, because these contain no loss; or put labels into the batch"
            raise bad("loss", f"be {how}", f"None, and outputs of the type {type(outputs).__name__}")
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
            shape = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise bad("loss", "return one floating-point number, as a tensor", shape)
        if self.training and not found.requires_grad:
            raise bad("model", "compute a loss that has a gradient, in training", "a loss that needs no gradient")
        return found


class Results(NamedTuple):
    """The results of a step."""

    loss: float | None
    tensors: dict[str, Tensor]  # the gradients, or the outputs


def _loss_in(outputs: Any) -> Tensor | None:
    """The loss in the outputs of a model of transformers, or a single number that a model returns."""
    if isinstance(outputs, Mapping):
        return outputs.get("loss")
    first = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
    first = getattr(first, "loss", first)
    return first if isinstance(first, Tensor) and first.dim() == 0 else None


def _floating(outputs: Any) -> dict[str, Tensor]:
    """The outputs that a program reads: the logits or the last hidden states, else all floating-point tensors."""
    for name in ("logits", "last_hidden_state"):
        found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return {name: found}
    leaves = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    return {str(i): leaf for i, leaf in enumerate(leaves)}


# Functions with dropout: the position and the name of its probability.
DROPPING: dict[Any, tuple[int, str]] = {
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout), (1, "p")),
    **dict.fromkeys((F.feature_alpha_dropout, torch.dropout), (1, "p")),
    F.scaled_dot_product_attention: (4, "dropout_p"),
}


class WithoutDropout(TorchFunctionMode):
    """Sets the probability of torch's dropout to 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if (place := DROPPING.get(func)) is not None:
            at, name = place
            if len(args) > at:
                args = (*args[:at], 0.0, *args[at + 1 :])
            else:
                kwargs[name] = 0.0
        return func(*args, **kwargs)


# ---- distances ------------------------------------------------------------------------------------------------------


class Distance(NamedTuple):
    """The largest relative distances between the results of two steps; infinite if one is NaN."""

    loss: float | None  # None if there is no loss
    tensors: float

    @property
    def largest(self) -> float:
        return max(self.loss or 0.0, self.tensors)


def distance(got: Results, want: Results) -> Distance:
    loss = None
    if got.loss is not None and want.loss is not None:
        loss = _finite(abs(got.loss - want.loss) / max(abs(want.loss), 1e-12))
    if got.tensors.keys() != want.tensors.keys():
        return Distance(loss, math.inf)
    norms = {name: float(tensor.double().norm()) for name, tensor in want.tensors.items()}
    least = max(SMALL * max(norms.values(), default=0.0), 1e-30)
    apart = [_apart(got.tensors[name], tensor) / max(norms[name], least) for name, tensor in want.tensors.items()]
    return Distance(loss, max(map(_finite, apart), default=0.0))


def _apart(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm()) if got.shape == want.shape else math.inf


def _finite(number: float) -> float:
    return number if math.isfinite(number) else math.inf


def reference(step: Step) -> Results:
    """The results of a copy of the model in float64. If the model cannot run in float64, its error is raised."""
    wide: Any = copy.deepcopy(step.model).double()
    if hasattr(wide, "set_experts_implementation"):
        wide.set_experts_implementation("eager")  # torch's grouped matrix products do not support float64
    return Step(wide, step.given.widened(), step.loss).results()


# ---- the state before -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kept(step: Step, device: torch.device) -> Iterator[None]:
    """Run steps without old gradients; then restore gradients, buffers and random number generators."""
    leaves = [*step.model.parameters(), *(t for t in step.given.tensors if t.is_leaf and t.requires_grad)]
    grads = [leaf.grad for leaf in leaves]
    buffers = [
        (module._buffers, dict(module._buffers), {n: b.clone() for n, b in module._buffers.items() if b is not None})
        for module in step.model.modules()
        if module._buffers
    ]
    accelerated = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=accelerated, device_type=device.type if accelerated else "cuda"):
        try:
            for leaf in leaves:
                leaf.grad = None
            yield
        finally:
            for leaf, grad in zip(leaves, grads, strict=True):
                leaf.grad = grad
            for current, before, values in buffers:
                current.clear()
                current.update(before)
                with torch.no_grad():
                    for name, value in values.items():
                        buffer = before[name]
                        if buffer is not None and not torch.equal(buffer, value):
                            buffer.copy_(value)
