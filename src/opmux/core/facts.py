"""What dispatch may know of tensors and of the machine: the first tensor, its shape class, the chip's arch."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# How core learns of the machine: (device type -> arch, () -> accelerator types). The runtime layer sets it.
_source: tuple[Callable[[str], str | None], Callable[[], tuple[str, ...]]] | None = None


def set_target_source(arch_of: Callable[[str], str | None], accelerators: Callable[[], tuple[str, ...]]) -> None:
    """Tell core how to learn a device type's arch, and which accelerator types this machine has."""
    global _source
    _source = (arch_of, accelerators)


def _machine() -> tuple[Callable[[str], str | None], Callable[[], tuple[str, ...]]]:
    if _source is None:
        importlib.import_module("opmux.runtime")  # by name: it sets the source, and core depends on nothing above it
    assert _source is not None
    return _source


def arch_of(device_type: str) -> str | None:
    """The arch of a device type ("sm_90", "gfx942"), or None where it states none."""
    return _machine()[0](device_type)


def accelerators() -> tuple[str, ...]:
    """The accelerator types of this machine; empty where there is none."""
    return _machine()[1]()


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


_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]


def is_real(tensor: Tensor | None) -> bool:
    """Whether a tensor holds numbers: not on meta, not a stand-in of a tracer, not one of vmap's or jvp's."""
    if tensor is None or type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor is None or not (tensor.is_meta or _wrapped(tensor))
    from torch._subclasses.fake_tensor import is_fake

    return not tensor.is_meta and not is_fake(tensor)


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
    """'sm_90a' -> ('sm', 90); 'gfx90a' -> ('gfx', 0x90a): AMD numbers its chips in hex."""
    found = re.fullmatch(r"(gfx)_?([0-9a-f]+)|([a-z]+?)[_-]?([0-9]+)[a-z]?", arch.strip().casefold())
    if found is None:
        raise ValueError(f"arch '{arch}' is not of the form 'sm_90' or 'gfx942'")
    gfx, digits, prefix, number = found.groups()
    return (gfx, int(digits, 16)) if gfx else (prefix, int(number))


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
