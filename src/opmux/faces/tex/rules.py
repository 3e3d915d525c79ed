"""Rules for arguments that only tex has: members of NVIDIA's enums, quantized tensors, devices by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...core.contract import Rule, either
from ...core.errors import BadArgument
from ...specs._checks import type_name
from .enums import torch_dtype
from .quantized import is_quantized


@dataclass(frozen=True)
class member(Rule):
    """A member of an enum, or its number, whoever's enum it is; with names, one of these."""

    enum: Any
    names: tuple[str, ...] = ()

    def __init__(self, enum: Any, *names: str):
        object.__setattr__(self, "enum", enum)
        object.__setattr__(self, "names", names)

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        try:
            found = self.enum(int(value))
        except (TypeError, ValueError):
            return f"be {self.doc()}"
        return None if not self.names or found.name in self.names else f"be {self.doc()}"

    def got(self, value: Any) -> str:
        return repr(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "unknown", 99

    def doc(self) -> str:
        return either(self.names) if self.names else f"a member of {self.enum.__name__}"


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


@dataclass(frozen=True)
class quantized_tensor(Rule):
    """A quantized tensor, or the storage of one."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if is_quantized(value) else f"be {self.doc()}"

    def got(self, value: Any) -> str:
        return type_name(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "a plain tensor", torch.zeros(2)

    def doc(self) -> str:
        return "a quantized tensor"


# ---- devices --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class device_name(Rule):
    """A torch.device, or what torch.device takes."""

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
        wanted = with_index(device)
        return None if value.device == wanted else f"be on {wanted}, the {{{self.of}}}"

    def got(self, value: Any) -> str:
        return str(value.device)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "another device", value.to("meta")

    def doc(self) -> str:
        return f"on {self.of}"


def with_index(device: Any) -> torch.device:
    """A device, with the index of the current one where none was named."""
    made = torch.device(device)
    return made if made.index is not None or made.type == "cpu" else torch.empty(0, device=made).device
