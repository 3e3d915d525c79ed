"""`opmux run --device DEVICE`: runs a program that says "cuda" on another device.

Devices are translated where torch uses them: the arguments of torch's functions, autocast, `torch.load`, and the
functions of `torch.cuda` that wait, count memory or select a device. docs/programs.md lists what cannot be translated.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import arguments

# Functions of torch.cuda that do not exist for a CPU -> what they return instead.
NEUTRAL: dict[str, Any] = dict.fromkeys(
    "synchronize set_device empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated".split()
)
NEUTRAL |= dict.fromkeys("memory_allocated max_memory_allocated memory_reserved max_memory_reserved".split(), 0)
NEUTRAL |= {"current_device": 0}


@contextlib.contextmanager
def translating(device: str | None) -> Iterator[None]:
    """Redirect CUDA devices to `device`. A no-op if it is None or a CUDA device."""
    target = None if device is None else arguments.device(device)
    if target is None or target.type == "cuda":
        yield
        return
    with translating_to(target):
        yield


@contextlib.contextmanager
def translating_to(target: torch.device) -> Iterator[None]:
    """Redirect CUDA devices to another device, or to meta tensors."""
    with contextlib.ExitStack() as patches:
        for owner, name, value in _replacements(target):
            patches.enter_context(mock.patch.object(owner, name, value))
        patches.enter_context(Translation(target))
        yield


class Translation(TorchFunctionMode):
    """Replaces CUDA devices in the arguments of every torch function that this thread calls."""

    def __init__(self, target: torch.device):
        super().__init__()
        self.target = target

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda:
            return _cuda(self.target, *args, **kwargs)
        if self.target.type == "cpu":
            if func is Tensor.pin_memory:
                return args[0]
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
        args = tuple(translated(a, self.target) for a in args)
        return func(*args, **{k: translated(v, self.target) for k, v in kwargs.items()})


def _cuda(
    target: torch.device,
    tensor: Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """`Tensor.cuda` on the target."""
    where = target if device is None else translated(f"cuda:{device}" if isinstance(device, int) else device, target)
    return tensor.to(where, non_blocking=non_blocking, memory_format=memory_format)


def translated(value: Any, target: torch.device) -> Any:
    """Replace a CUDA device, or its name, by the target; other values are unchanged. A CPU has no index."""
    if isinstance(value, str):
        if value != "cuda" and not value.startswith("cuda:"):
            return value
        return str(translated(torch.device(value), target))
    if not isinstance(value, torch.device) or value.type != "cuda":
        return value
    if target.type == "cpu":
        return torch.device("cpu")
    return target if value.index is None else torch.device(target.type, value.index)


def _replacements(target: torch.device) -> Iterator[tuple[Any, str, Any]]:
    autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    yield autocast, "__init__", _with_device(autocast.__init__, "device_type", lambda d: translated(d, target))
    yield scaler, "__init__", _with_device(scaler.__init__, "device", lambda d: translated(d, target))
    yield torch, "Generator", _generator(target)
    yield torch, "load", _with_device(torch.load, "map_location", lambda d: translated(d, target))
    module = None if target.type in ("cpu", "meta") else torch.get_device_module(target)
    for name, value in NEUTRAL.items():
        yield torch.cuda, name, getattr(module, name, None) or _returning(value)
    yield torch.cuda, "Event", getattr(module, "Event", HostEvent)


def _generator(target: torch.device) -> type:
    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, translated(device, target))

    return Generator


def _with_device(fn: Callable[..., Any], name: str, translate: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap a function so that one of its arguments is translated."""
    signature = inspect.signature(fn)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if name in bound.arguments:
            bound.arguments[name] = translate(bound.arguments[name])
        elif signature.parameters[name].default == "cuda":
            bound.arguments[name] = translate("cuda")
        return fn(*bound.args, **bound.kwargs)

    return call


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


class HostEvent:
    """`torch.cuda.Event` on a CPU. It only stores the time, because calls on a CPU return when their work is done."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds from this event to `end`."""
        if self._seconds is None or end._seconds is None:
            raise RuntimeError("elapsed_time needs two recorded events: call record() on both first")
        return (end._seconds - self._seconds) * 1e3

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def wait(self, stream: Any = None) -> None:
        """Return at once."""
