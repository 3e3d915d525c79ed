"""Logits that are computed on first read.

In training the loss is computed from the input of a model's head, without logits; the head returns `LateLogits`
instead. The model's own forward scales or caps these, and passes them to its loss function and its outputs. The outputs
compute the logits on the first read: `outputs.logits`, `outputs["logits"]`, `outputs[1]`, `outputs.to_tuple()`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...core.autocast import dtype_on

Step = tuple[str, Any]  # ("mul" or "div", number), ("tanh", None) or ("to", arguments of Tensor.to)


class LateLogits:
    """Logits that are not computed yet: a head, its input, and the steps (scaling, capping) to apply to its result."""

    def __init__(
        self, layer: nn.Module, hidden: Tensor, steps: tuple[Step, ...] = (), source: LateLogits | None = None
    ):
        self.layer, self.hidden, self.steps = layer, hidden, steps
        self.versions = _versions(layer) if source is None else source.versions
        self.autocast = dtype_on(hidden.device.type) if source is None else source.autocast
        self.grad = torch.is_grad_enabled() if source is None else source.grad
        self.computed: Tensor | None = None  # the logits after the first read; a model may modify them

    # ---- deferred steps ----

    def _then(self, kind: str, value: Any = None) -> Any:
        if self.computed is not None:
            return _STEPS[kind](self.computed, value)
        return LateLogits(self.layer, self.hidden, (*self.steps, (kind, value)), self)

    def __mul__(self, other: Any) -> Any:
        return self._then("mul", other) if isinstance(other, (int, float)) else self.read() * other

    def __truediv__(self, other: Any) -> Any:
        return self._then("div", other) if isinstance(other, (int, float)) else self.read() / other

    def tanh(self) -> Any:
        return self._then("tanh")

    def float(self) -> Any:
        return self._then("to", (torch.float32,))

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self.read().to(*args, **kwargs) if kwargs else self._then("to", args)

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    @property
    def dtype(self) -> torch.dtype:
        for kind, value in reversed(self.steps):
            for argument in value if kind == "to" else ():
                if isinstance(argument, torch.dtype):
                    return argument
        return self.hidden.dtype if self.autocast is None else self.autocast

    # ---- reading ----

    def read(self) -> Tensor:
        """The logits as the forward would have computed them, with the forward's autocast dtype and grad mode.

        Raises if the weight has changed since the forward, because the logits would belong to another step.
        """
        if self.computed is not None:
            return self.computed
        if self.versions != _versions(self.layer):
            raise RuntimeError(
                "outputs.logits: the head's weight has changed since the forward, which computed a loss without "
                'logits; read them before optimizer.step(), or use opmux.patch_model(model, exclude=["loss"])'
            )
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled() and not self.hidden.is_inference():
                stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if dtype_on(self.hidden.device.type) != self.autocast:
                enabled = self.autocast is not None
                stack.enter_context(torch.autocast(self.hidden.device.type, dtype=self.autocast, enabled=enabled))
            return self.read_now()

    def read_now(self) -> Tensor:
        """The logits, computed in the caller's grad mode and autocast."""
        if self.computed is not None:
            return self.computed
        logits = self.layer(self.hidden)
        for kind, value in self.steps:
            logits = _STEPS[kind](logits, value)
        self.computed = logits
        return logits

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look up special methods
            raise AttributeError(name)
        return getattr(self.read(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tanh and len(args) == 1 and not kwargs:
            return args[0].tanh()
        read = lambda value: value.read() if isinstance(value, LateLogits) else value
        args, kwargs = tree_map(read, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self) -> str:
        return "LateLogits(computed when outputs.logits is read)"

    def __reduce__(self) -> Any:
        return self.read().__reduce_ex__(4)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.read().detach().clone()


def _versions(layer: nn.Module) -> tuple[int, ...] | None:
    """Version counters of the head's parameters; None if they also change without an update (FSDP)."""
    if torch.compiler.is_compiling() or layer._forward_pre_hooks:
        return None
    tensors = (layer.weight, layer.bias)
    return tuple(t._version for t in tensors if isinstance(t, Tensor) and not t.is_inference())


_STEPS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "mul": operator.mul,
    "div": operator.truediv,
    "tanh": lambda logits, _: torch.tanh(logits),
    "to": lambda logits, given: logits.to(*given),
}


def _of_tensor(name: str) -> Callable[..., Any]:
    def method(self: LateLogits, *args: Any) -> Any:
        return getattr(self.read(), name)(*args)

    return method


# Defined on the class, because Python looks up special methods there.
for _name in (
    "add radd sub rsub rmul rtruediv matmul rmatmul pow neg abs invert mod floordiv lt le gt ge eq ne getitem setitem "
    "len iter bool int float array"
).split():
    setattr(LateLogits, f"__{_name}__", _of_tensor(f"__{_name}__"))
LateLogits.__hash__ = object.__hash__


def scale_of(steps: tuple[Step, ...]) -> tuple[float, float, float | None] | None:
    """(factor, divisor, softcap) for the logits after these steps; None if the steps do something else."""
    done = [(kind, value) for kind, value in steps if kind != "to"]
    factor, divisor, softcap = 1.0, 1.0, None
    if [kind for kind, _ in done[-3:]] == ["div", "tanh", "mul"] and done[-3][1] == done[-1][1]:
        softcap, done = done[-1][1], done[:-3]
    for kind, value in done:
        if kind == "tanh":
            return None
        factor, divisor = (factor * value, divisor) if kind == "mul" else (factor, divisor * value)
    return factor, divisor, softcap


# ---- outputs --------------------------------------------------------------------------------------------------------


def are_late(outputs: Any) -> bool:
    """Whether the logits of a model's outputs are not computed yet."""
    return isinstance(OrderedDict.get(outputs, "logits"), LateLogits)


def read_late(outputs: Any) -> Any:
    """Change a model's outputs so that the first read computes the logits; in compiled code, remove the logits."""
    if torch.compiler.is_compiling():
        if isinstance(outputs.logits, LateLogits):
            return type(outputs)(**{name: value for name, value in outputs.items() if name != "logits"})
        return outputs
    if are_late(outputs):
        outputs.__class__ = _reader(type(outputs))
    return outputs


@functools.cache
def _reader(cls: type) -> type:
    """A subclass of `cls` for outputs with late logits. The first read sets the class of the outputs back to `cls`.

    accelerate, DDP, FSDP and torch's pytrees iterate over all outputs, with `items()` or the dataclass's fields, and
    may create new outputs of the same class. This must not compute logits that nobody reads. So `items()` returns late
    logits, and the dataclass's field "logits" is named "late_logits".
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "late_logits" in kwargs:
            kwargs["logits"] = kwargs.pop("late_logits")
        self.__class__ = cls
        self.__init__(*args, **kwargs)
        read_late(self)

    def computed(self: Any) -> Any:
        late = OrderedDict.get(self, "logits")
        logits = late.read() if isinstance(late, LateLogits) else late
        self.__class__ = cls
        self.logits = logits
        return self

    def replaced(self: Any, value: Any) -> None:
        self.__class__ = cls
        self.logits = value
        if value is None:  # transformers would keep the key, with None
            OrderedDict.__delitem__(self, "logits")

    def getitem(self: Any, key: Any) -> Any:
        if isinstance(key, str):
            return computed(self)[key] if key == "logits" else cls.__getitem__(self, key)
        names = list(self.keys())[key]
        return tuple(self[name] for name in names) if isinstance(names, list) else self[names]

    fields: dict[str, Any] = {}
    for name, original in cls.__dataclass_fields__.items():
        field = copy.copy(original)
        field.name = "late_logits" if name == "logits" else name
        fields[field.name] = field
    members = {
        "__init__": init,
        "__dataclass_fields__": fields,
        "logits": property(lambda self: computed(self).logits, replaced),
        "late_logits": property(lambda self: OrderedDict.get(self, "logits")),
        "__getitem__": getitem,
        "get": lambda self, name, default=None: cls.get(computed(self) if name == "logits" else self, name, default),
        "__reduce__": lambda self: computed(self).__reduce__(),
        "__reduce_ex__": lambda self, protocol: computed(self).__reduce_ex__(protocol),
        "__repr__": lambda self: f"{cls.__name__}({', '.join(f'{k}={v!r}' for k, v in self.items())})",
        "__module__": __name__,
    }
    return type(f"Late{cls.__name__}", (cls,), members)  # not cls's name: torch registers pytree classes by name
