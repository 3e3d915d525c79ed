"""A replacement for `torch.cuda` in Transformer Engine's sources, for machines without CUDA.

`torch` is not changed: `rewrite` makes only Transformer Engine's sources use the replacement. If torch has a module for
the device (`torch.npu`), its functions are called. Functions that the module lacks, and all functions on a CPU, are
no-ops that return, for example, an idle stream or a completed event.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...core.errors import NotSupported

# The device properties that the layer reads to check for FP8 support. We emulate FP8 on chips without it; these
# numbers enable delayed, current and block scaling, and disable Blackwell's formats.
CAPABILITY = (9, 0)
CUDA_VERSION = "12.9"
CORES = 132  # cores of an H100; used if the device's number is unknown


class SubstituteDevice:
    """The device that replaces "cuda" in the sources."""

    def __init__(self, kind: str):
        self.type = kind
        self.cuda = Cuda(kind)

    def device(self, device: Any = None, index: int | None = None, **named: Any) -> torch.device:
        """Like `torch.device`, but returns this device for "cuda" or a number."""
        device = named.pop("type", device)
        if isinstance(index, int):
            device = f"{device}:{index}"
        return torch.device(self.here(device))

    def here(self, device: Any) -> Any:
        """The device with a name or number; this device for "cuda"."""
        if device is None or isinstance(device, bool):
            return device
        if isinstance(device, int):
            return self._numbered(device)
        if isinstance(device, str):
            kind, _, number = device.partition(":")
            if kind not in ("cuda", self.type):
                return device
            return self._numbered(int(number) if number else None)
        if isinstance(device, torch.device) and device.type == "cuda":
            return self._numbered(device.index)
        return device

    def _numbered(self, index: int | None) -> torch.device:
        # On a CPU, return no index: tensors are on "cpu", which is not equal to "cpu:0".
        return torch.device(self.type) if index is None or self.type == "cpu" else torch.device(self.type, index)


class Cuda:
    """The replacement for `torch.cuda`."""

    def __init__(self, kind: str):
        # Do not use torch.cpu: it has streams and a current device, but no device index and no generator.
        self._own = getattr(torch, kind, None) if kind != "cpu" else None
        self.amp = types.SimpleNamespace(autocast=_autocast(kind))
        self.nvtx = types.SimpleNamespace(range=_range, range_push=_no_op, range_pop=_no_op)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._own, name, None)
        if value is None and name in NEUTRAL:
            value = NEUTRAL[name]
        if value is None:
            raise AttributeError(f"torch.cuda.{name} has no equivalent on this machine, which has no CUDA")
        return value

    def is_available(self) -> bool:
        return True

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return CAPABILITY

    def get_device_properties(self, device: Any = None) -> Any:
        get_properties = getattr(self._own, "get_device_properties", None)
        real = None if get_properties is None else get_properties(device)
        major, minor = CAPABILITY
        return types.SimpleNamespace(
            major=major,
            minor=minor,
            multi_processor_count=getattr(real, "multi_processor_count", CORES),
            name=getattr(real, "name", "no CUDA device"),
            total_memory=getattr(real, "total_memory", 0),
        )

    def _lazy_init(self) -> None:
        """No-op: torch initializes other devices itself."""

    def _lazy_call(self, call: Callable[[], Any], **_: Any) -> None:
        call()


def _no_op(*args: Any, **kwargs: Any) -> None:
    """A no-op."""


@contextlib.contextmanager
def _range(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _autocast(kind: str) -> Callable[..., Any]:
    def autocast(enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None) -> Any:
        return torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return autocast


class Event:
    """An event that is always complete."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    record = wait = synchronize = _no_op

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 0.0


class IdleStream:
    """A stream that is always idle."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    wait_stream = wait_event = synchronize = _no_op

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True


class CUDAGraph:
    """Never instantiated: the layer only inspects the class."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise NotSupported("CUDA graphs need a CUDA device; this machine has none. Call the module without a graph")


class OnlyDevice(contextlib.nullcontext):
    """A no-op: there is only one device."""


class _Generators:
    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator


NEUTRAL: dict[str, Any] = {
    "CUDAGraph": CUDAGraph,
    "Event": Event,
    "Stream": IdleStream,
    "current_device": lambda: 0,
    "current_stream": lambda device=None: IdleStream(),
    "default_generators": _Generators(),
    "default_stream": lambda device=None: IdleStream(),
    "device": OnlyDevice,
    "device_count": lambda: 1,
    "empty_cache": _no_op,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "graph": CUDAGraph,
    "is_current_stream_capturing": lambda: False,
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
    "max_memory_allocated": lambda device=None: 0,
    "memory_allocated": lambda device=None: 0,
    "reset_peak_memory_stats": _no_op,
    "set_device": _no_op,
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "stream": lambda stream: contextlib.nullcontext(stream),
    "synchronize": _no_op,
}
