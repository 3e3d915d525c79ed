"""The backend `nvidia`: NVIDIA's compiled transformer_engine_torch, if it is installed.

It is loaded from its file on first use, not from `sys.modules`, where the name may refer to one of our modules. It has
its own enums: our enum members and torch dtypes are converted in arguments, and converted back in results.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.util
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .....core.errors import NotSupported
from .....core.spec import specs
from ... import enums
from ...base import METHODS, TEXBackendBase, as_method
from ...registry import register_backend

EXTENSION, CORE = "transformer_engine_torch", "libtransformer_engine.so"


def find() -> Path | None:
    """The path of NVIDIA's extension in one of TransformerEngine's install locations, or None."""
    package = PathFinder.find_spec("transformer_engine")
    homes = [Path(p) for p in (package.submodule_search_locations or ())] if package is not None else []
    for home in homes:
        for folder in (home, home.parent, home / "wheel_lib"):
            for suffix in EXTENSION_SUFFIXES:
                if (folder / f"{EXTENSION}{suffix}").is_file():
                    return folder / f"{EXTENSION}{suffix}"
    return None


@functools.cache
def load() -> ModuleType:
    """Load the extension, and the library that it needs."""
    file = find()
    if file is None:
        raise NotSupported(f"{EXTENSION} is not installed")
    for folder in (file.parent, file.parent / "wheel_lib", file.parent / "transformer_engine"):
        if (folder / CORE).is_file():
            ctypes.CDLL(str(folder / CORE), mode=ctypes.RTLD_GLOBAL)
            break
    spec = importlib.util.spec_from_file_location(EXTENSION, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(value: Any) -> Any:
    """Convert a dtype or enum member to the extension's enum."""
    if isinstance(value, torch.dtype):
        return load().DType(enums.NUMBERS[value])
    if isinstance(value, enum.IntEnum):
        kind = getattr(load(), type(value).__name__, None)
        return value if kind is None else kind(int(value))
    return value


def ours(value: Any) -> Any:
    """Convert a member of one of the extension's enums to our enum."""
    kind = getattr(enums, type(value).__name__, None)
    return kind(int(value)) if isinstance(kind, type) and issubclass(kind, enum.IntEnum) else value


def _forward(name: str) -> Callable[..., Any]:
    spec = specs.by_key[f"tex::{name}"]

    def method(self: TEXBackendBase, *args: Any, **kwargs: Any) -> Any:
        fn = getattr(load(), name, None)
        if fn is None:
            raise NotSupported(f"{name} not implemented by the installed {EXTENSION}")
        arguments = {**dict(zip(spec.names, args)), **kwargs}
        # its kernels ignore strides: pass contiguous tensors
        read = {n: v.contiguous() if type(v) is Tensor and n not in spec.mutates else v for n, v in arguments.items()}
        return ours(fn(*(theirs(read[n]) for n in spec.names[: len(args)]), **{n: theirs(read[n]) for n in kwargs}))

    return as_method(method, "NVIDIABackend", name)


class Forwards(TEXBackendBase):
    """Passes every function of tex to the extension."""


for _name in METHODS:
    setattr(Forwards, _name, _forward(_name))


@register_backend
class NVIDIABackend(Forwards):
    NAME = "nvidia"
    PRIORITY = 100
    IMPL_ID = "vendor.nvidia.transformer_engine"

    @property
    def vendor(self) -> str:
        return "NVIDIA"

    def is_available(self) -> bool:
        return self.why_unavailable() is None

    def why_unavailable(self) -> str | None:
        if find() is None:
            return f"{EXTENSION} is not installed"
        return None if torch.cuda.is_available() else "there is no CUDA device"
