"""ATen's overloads as described by their schemas: arguments, written arguments, in-place and out= forms."""

from __future__ import annotations

import functools
import inspect
import keyword
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.lock import cached_property


@dataclass(frozen=True)
class OverloadSchema:
    """An overload of ATen, e.g. `add.out`."""

    name: str

    @cached_property
    def op(self) -> Any:
        """torch.ops.aten.<name>"""
        packet, _, overload = self.name.partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")

    @property
    def packet(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def arguments(self) -> list[Any]:
        return list(self.op._schema.arguments)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The names of the arguments that the overload writes."""
        return tuple(python_name(a.name) for a in self.arguments if a.alias_info is not None and a.alias_info.is_write)

    @cached_property
    def outs(self) -> tuple[str, ...]:
        """The names of the `out=` arguments."""
        return tuple(
            python_name(a.name)
            for a in self.arguments
            if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
        )

    @property
    def kind(self) -> str:
        if self.outs:
            return "out"
        return "inplace" if "self" in self.written else "functional" if not self.written else "other"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The Python names of all arguments except `out=`."""
        return tuple(n for n in (python_name(a.name) for a in self.arguments) if n not in self.outs)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The names of Tensor arguments; torch accepts a number for some of them."""
        return tuple(python_name(a.name) for a in self.arguments if str(a.type) == "Tensor")

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The indices of the Tensor arguments that are passed by position."""
        return tuple(i for i, a in enumerate(self.arguments) if str(a.type) == "Tensor" and not a.kwarg_only)

    @cached_property
    def signature(self) -> inspect.Signature:
        parameters = []
        for a in self.arguments:
            kind = inspect.Parameter.KEYWORD_ONLY if a.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
            default = _default(a) if a.has_default_value() else inspect.Parameter.empty
            parameters.append(inspect.Parameter(python_name(a.name), kind, default=default, annotation=_type(a)))
        return inspect.Signature(parameters)

    def has(self, key: str) -> bool:
        """Whether a kernel is registered on a dispatch key."""
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{self.name}", key)

    @cached_property
    def composite(self) -> bool:
        """Whether ATen composes the op from other ops and differentiates those: an override would lose the gradient."""
        return self.has("CompositeImplicitAutograd") and not self.has("Autograd")

    @property
    def view(self) -> bool:
        """Whether a result shares memory with an argument that is not written."""
        aliases = [r.alias_info for r in self.op._schema.returns]
        return any(alias is not None and not alias.is_write for alias in aliases)


def python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


# In schemas, defaults of these types are the numbers of C++ enums.
_ENUMS = {"ScalarType": {4: torch.int64}, "MemoryFormat": {0: torch.contiguous_format}}


def _default(argument: Any) -> Any:
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    value = argument.default_value
    return value if value is None or kind not in _ENUMS else _ENUMS[kind][value]


def _type(argument: Any) -> Any:
    text = str(argument.type)
    if text == "Tensor":
        return Tensor
    return Tensor | None if text == "Optional[Tensor]" else Any


@functools.cache
def overloads(packet: str) -> tuple[OverloadSchema, ...]:
    """The overloads of a packet in torch's dispatcher, without those that exist only for TorchScript."""
    op_packet = getattr(torch.ops.aten, packet, None)
    if op_packet is None:
        return ()
    names = [packet if o == "default" else f"{packet}.{o}" for o in op_packet.overloads()]
    return tuple(OverloadSchema(n) for n in names if torch._C._dispatch_has_kernel(f"aten::{n}"))


def siblings(shape: OverloadSchema) -> list[OverloadSchema]:
    """The in-place and `out=` overloads with the same arguments and results as a functional overload."""
    near = [*overloads(shape.packet), *overloads(inplace_name(shape.packet))]
    return [s for s in near if s.kind in ("inplace", "out") and _alike(shape, s)]


def inplace_name(packet: str) -> str:
    return f"__i{packet[2:]}" if packet.startswith("__") else f"{packet}_"


def _alike(a: OverloadSchema, b: OverloadSchema) -> bool:
    described = lambda s: [(x.name, str(x.type)) for x in s.arguments if python_name(x.name) not in s.outs]
    return described(a) == described(b)
