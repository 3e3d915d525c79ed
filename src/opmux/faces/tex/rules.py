"""Rules for tex's arguments: members of NVIDIA's enums, quantized tensors, devices by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.contract import FLOATS, Rule, either
from ...core.errors import BadArgument
from ...core.tensors import dtype_name
from ...specs._checks import type_name
from .enums import torch_dtype
from .grouped_tensor import is_grouped
from .quantized import QUANTIZERS, device_of, format_of, is_quantized


@dataclass(frozen=True)
class member(Rule):
    """A member of an enum (NVIDIA's or ours) or its number; with `names`, only these members."""

    enum: Any
    numbers: frozenset[int]

    def __init__(self, enum: Any, *names: str):
        object.__setattr__(self, "enum", enum)
        object.__setattr__(self, "numbers", frozenset(int(enum[n]) for n in names or enum.__members__))

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        try:
            right = int(value) in self.numbers
        except (TypeError, ValueError):
            right = False
        return None if right else f"be {self.doc()}"

    def got(self, value: Any) -> str:
        return repr(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "unknown", 99

    def doc(self) -> str:
        return either(m.name for m in self.enum if int(m) in self.numbers) if len(self.numbers) < 6 else self._enum()

    def _enum(self) -> str:
        left_out = [m.name for m in self.enum if int(m) not in self.numbers]
        return f"a member of {self.enum.__name__}" + (f" other than {either(left_out)}" if left_out else "")


@dataclass(frozen=True)
class any_dtype(Rule):
    """A member of DType, its number, or a torch.dtype."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        try:
            torch_dtype(value)
        except BadArgument as error:
            return error.expected
        return None

    def got(self, value: Any) -> str:
        return repr(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "unknown", 99

    def doc(self) -> str:
        return "a DType or a torch.dtype"


class TensorClass(Rule):
    """A tensor of a class for which `accepts` is True."""

    error = TypeError

    def accepts(self, value: Any) -> bool:
        raise NotImplementedError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if self.accepts(value) else f"be {self.doc()}"

    def got(self, value: Any) -> str:
        return type_name(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "a plain tensor", torch.zeros(2)


@dataclass(frozen=True)
class quantized_tensor(TensorClass):
    """A quantized tensor, or the storage of one."""

    def accepts(self, value: Any) -> bool:
        return is_quantized(value)

    def doc(self) -> str:
        return "a quantized tensor"


@dataclass(frozen=True)
class float_or_quantized(Rule):
    """A tensor of floats, or a quantized one."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        if is_quantized(value) or (isinstance(value, Tensor) and value.dtype in FLOATS):
            return None
        return f"be {either(map(dtype_name, FLOATS))}, or quantized" if isinstance(value, Tensor) else "be a Tensor"

    def got(self, value: Any) -> str:
        return dtype_name(value.dtype) if isinstance(value, Tensor) else type_name(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "ints", torch.zeros(2, dtype=torch.int32)
        yield "a list", [1.0]

    def doc(self) -> str:
        return "float or quantized"


@dataclass(frozen=True)
class beside(Rule):
    """A tensor on the device of another argument, which may be quantized."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if other is None or not (isinstance(other, Tensor) or is_quantized(other)):
            return None
        device = device_of(other)
        return None if value.device == device else f"be on {device}, the device of {{{self.of}}}"

    def got(self, value: Any) -> str:
        return str(value.device)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "another device", value.to("meta")

    def doc(self) -> str:
        return f"on the device of {self.of}"


@dataclass(frozen=True)
class grouped(TensorClass):
    """A GroupedTensor, or the storage of one."""

    def accepts(self, value: Any) -> bool:
        return is_grouped(value)

    def doc(self) -> str:
        return "a GroupedTensor"


@dataclass(frozen=True)
class quantizer_of(Rule):
    """A quantizer of one of these formats; without formats, any quantizer."""

    formats: tuple[str, ...]
    error = TypeError

    def __init__(self, *formats: str):
        object.__setattr__(self, "formats", formats or tuple(dict.fromkeys(QUANTIZERS.values())))

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if format_of(value) in self.formats else f"be {self.doc()}"

    def got(self, value: Any) -> str:
        return type_name(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "a word", "fp8"
        yield "None", None

    def doc(self) -> str:
        return f"of the format {either(self.formats)}"


@dataclass(frozen=True)
class generator(Rule):
    """A torch.Generator for the device of another argument, which may be quantized."""

    of: str
    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        if not isinstance(value, torch.Generator):
            return "be a torch.Generator or None"
        other = given.get(self.of)
        if other is None or value.device.type == device_of(other).type:
            return None
        return f"be on {device_of(other).type}, as {{{self.of}}} is"

    def got(self, value: Any) -> str:
        return f"one on {value.device}" if isinstance(value, torch.Generator) else type_name(value)

    def doc(self) -> str:
        return f"a torch.Generator on the device of {self.of}"


@dataclass(frozen=True)
class absent(Rule):
    """Must be None: we do not support what NVIDIA uses the argument for."""

    why: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return f"be None, as {self.why}"

    def got(self, value: Any) -> str:
        return type_name(value)

    def doc(self) -> str:
        return "None"


# ---- devices --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class device_name(Rule):
    """A torch.device, or an argument for torch.device."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
            return "be a torch.device"
        try:
            torch.device(value)
        except RuntimeError:
            return "name a device"
        return None

    def got(self, value: Any) -> str:
        return repr(value) if isinstance(value, (str, int)) else type_name(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "unknown", "no such device"
        yield "a bool", True

    def doc(self) -> str:
        return "a torch.device or its name"


@dataclass(frozen=True)
class on_device(Rule):
    """A tensor on the device that another argument names."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        device = given.get(self.of)
        if device is None or device_name().problem(device, given) is not None:
            return None
        expected = with_index(device)
        return None if value.device == expected else f"be on {expected}, the {{{self.of}}}"

    def got(self, value: Any) -> str:
        return str(value.device)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "another device", value.to("meta")

    def doc(self) -> str:
        return f"on {self.of}"


def this_device() -> torch.device:
    """The current accelerator device; the CPU if there is no accelerator."""
    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if current is None:
        return torch.device("cpu")
    return torch.device(current.type, torch.accelerator.current_device_index())


def with_index(device: Any) -> torch.device:
    """A device, with the current index if none was given."""
    resolved = torch.device(device)
    return resolved if resolved.index is not None or resolved.type == "cpu" else torch.empty(0, device=resolved).device
