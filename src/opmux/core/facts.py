"""What dispatch may know of tensors and of the machine: the first tensor, its shape class, the chip's arch."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import wiring

# Why a vendor's own impls of an op come first; or a function that returns this, or None while they do not.
Preferred = str | Callable[[], str | None]


class Machine:
    """What core asks of the machine it runs on. The runtime layer answers; this one knows of a CPU and nothing else."""

    def accelerators(self) -> tuple[str, ...]:
        """The accelerator types of this machine; empty where there is none."""
        return ()

    def arch_of(self, device_type: str) -> str | None:
        """The arch of a device type ("sm_90", "gfx942"), or None where it states none."""
        return None

    def vendor_of(self, device_type: str) -> str | None:
        """Whose chip a device type is here."""
        return None

    def unused(self, device_type: str) -> Mapping[str, str]:
        """The ops (by key) that a device's vendor does not want our kernels for, and who says so."""
        return {}

    def preferred(self, device_type: str) -> Mapping[str, Preferred]:
        """The ops (by key) for which a device's vendor wants its own impls before our kernels for any chip, and why."""
        return {}

    def lacks(self, device_type: str) -> frozenset[torch.dtype]:
        """The dtypes that a device does not compute in."""
        return frozenset()

    def foreign_names(self) -> contextlib.AbstractContextManager[None]:
        """A block in which packages written for other libraries can be imported: their module names are served."""
        return contextlib.nullcontext()

    def take_vendor(self, plugin: Any, origin: Any) -> bool:
        """Take up what an entry point names, where that is a vendor's package."""
        return False

    def register(self, registry: Any) -> None:
        """Put what the vendors of this machine bring into a registry."""

    def extras(self) -> Mapping[str, Any]:
        """What vendors export under names that are no op: shown in `opmux.ops` as it is."""
        return {}


_machine: Machine | None = None


def set_machine(machine: Machine) -> None:
    """Tell core whom to ask about the machine."""
    global _machine
    _machine = machine


def machine() -> Machine:
    """Whom to ask about the machine; the layer that knows it is loaded by the first call."""
    global _machine
    if _machine is None:
        _machine = wiring.machine()
    return _machine


def arch_of(device_type: str) -> str | None:
    return machine().arch_of(device_type)


def accelerators() -> tuple[str, ...]:
    return machine().accelerators()


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ACCELERATOR = "accelerator"  # in `OpImpl.devices`: any device type but the CPU


def runs_on(devices: frozenset[str] | None, device_type: str) -> bool:
    """Whether an impl for these device types takes tensors of this one."""
    return devices is None or device_type in devices or (ACCELERATOR in devices and device_type != "cpu")


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in an argument, those inside nested lists, tuples, sets and dicts included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors(item)


def first_tensor(args: tuple, kwargs: dict) -> Tensor | None:
    for value in args:
        if isinstance(value, Tensor):
            return value
    found = next(tensors(args), None)
    return found if found is not None else next(tensors(kwargs), None)


def shape_class(tensor: Tensor | None) -> tuple[int, ...]:
    """Rank, then the power-of-two bucket of each dimension: 0 for 0, 1 for 1, and n for (2^(n-2), 2^(n-1)].

    Sizes with the same next power of two share a class, as they share a Triton block size.
    """
    if tensor is None:
        return ()
    try:
        return _classes(tensor.shape)
    except (RuntimeError, AttributeError, TypeError):  # nested and other tensors that have no plain sizes
        return (-1,)


@functools.lru_cache(maxsize=8192)
def _classes(shape: torch.Size) -> tuple[int, ...]:
    return (len(shape), *map(size_class, shape))


def size_class(n: int) -> int:
    """The power-of-two bucket of one length."""
    return 1 + (n - 1).bit_length() if n else 0


_PLAIN = (Tensor, torch.nn.Parameter)
_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is torch's own: no subclass, and not one that functorch has wrapped."""
    return type(tensor) in _PLAIN and not _wrapped(tensor)


def is_real(tensor: Tensor | None) -> bool:
    """Whether a tensor holds numbers: not on meta, not a stand-in of a tracer, not one of vmap's or jvp's."""
    if tensor is None or type(tensor) in _PLAIN:
        return tensor is None or not (tensor.is_meta or _wrapped(tensor))
    from torch._subclasses.fake_tensor import is_fake

    return not tensor.is_meta and not is_fake(tensor)


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor has numbers in memory of its own: not so a wrapper around other tensors."""
    if not is_real(tensor) or (tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() == 0):
        return False
    try:
        return tensor.layout is not torch.strided or tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # a wrapper subclass
        return False


def arch_refusal(min_arch: str, device_type: str) -> str | None:
    """Why a device of this type does not meet `min_arch`, or None when it does."""
    have = arch_of(device_type)
    if have is None:
        return f"needs {min_arch}, and '{device_type}' states no arch"
    want_prefix, want = split_arch(min_arch)
    have_prefix, number = split_arch(have)
    if want_prefix != have_prefix:
        return f"needs {min_arch}, this is {have}"
    return None if number >= want else f"needs at least {min_arch}, this is {have}"


def split_arch(arch: str) -> tuple[str, int]:
    """'sm_90a' -> ('sm', 90); 'gfx90a' -> ('gfx', 0x90a): the number after gfx is hex."""
    found = re.fullmatch(r"(gfx)_?([0-9a-f]{1,9})|([a-z]+?)[_-]?([0-9]{1,9})[a-z]?", arch.strip().casefold())
    if found is None:
        raise ValueError(f"arch '{arch}' is not of the form 'sm_90' or 'gfx942'")
    gfx, digits, prefix, number = found.groups()
    return (gfx, int(digits, 16)) if gfx else (prefix, int(number))


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
