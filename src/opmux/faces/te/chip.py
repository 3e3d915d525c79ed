"""The chip of a machine without CUDA, as Transformer Engine's sources see it: all they ask of `torch.cuda` and more.

`torch` is not changed: only those sources see this, as `rewrite` puts it in their way. A chip with a module of its own
in torch (`torch.npu`) answers for itself; what it does not have, and all of it on a CPU, is neutral: a stream that is
always done, an event that has happened.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...core.errors import NotSupported

# What is answered where the layer asks which kinds of fp8 the device has. Ours are emulated where the chip has none;
# with these numbers delayed, current and block scaling are on, and what is a Blackwell's is off.
CAPABILITY = (9, 0)
CUDA_VERSION = "12.9"
CORES = 132  # of a chip of that capability, where this one does not say


class Chip:
    """The device that stands where the sources say "cuda"."""

    def __init__(self, kind: str):
        self.type = kind
        self.cuda = Cuda(kind)

    def device(self, device: Any = None, index: int | None = None, **named: Any) -> torch.device:
        """What `torch.device` makes of its arguments, and this chip for "cuda" and for a number."""
        device = named.pop("type", device)
        if isinstance(index, int):
            device = f"{device}:{index}"
        return torch.device(self.here(device))

    def here(self, device: Any) -> Any:
        """A device that was asked for, by name or number; this chip for "cuda"."""
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
        # A CPU has no numbers: cpu:0 is another device than cpu, and no tensor is on it.
        return torch.device(self.type) if index is None or self.type == "cpu" else torch.device(self.type, index)


class Cuda:
    """What stands for `torch.cuda`."""

    def __init__(self, kind: str):
        # torch.cpu has streams and a current device too, but no number for it and no generator.
        self._own = getattr(torch, kind, None) if kind != "cpu" else None
        self.amp = types.SimpleNamespace(autocast=_autocast(kind))
        self.nvtx = types.SimpleNamespace(range=_range, range_push=_nothing, range_pop=_nothing)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name, None)
        if found is None and name in NEUTRAL:
            found = NEUTRAL[name]
        if found is None:
            raise AttributeError(f"torch.cuda.{name} has no equal on this machine, which has no CUDA")
        return found

    def is_available(self) -> bool:
        return True

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return CAPABILITY

    def get_device_properties(self, device: Any = None) -> Any:
        own = getattr(self._own, "get_device_properties", None)
        real = None if own is None else own(device)
        major, minor = CAPABILITY
        return types.SimpleNamespace(
            major=major,
            minor=minor,
            multi_processor_count=getattr(real, "multi_processor_count", CORES),
            name=getattr(real, "name", "no CUDA device"),
            total_memory=getattr(real, "total_memory", 0),
        )

    def _lazy_init(self) -> None:
        """torch sets other devices up by itself."""

    def _lazy_call(self, call: Callable[[], Any], **_: Any) -> None:
        call()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What is asked of a device that has nothing to do."""


@contextlib.contextmanager
def _range(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _autocast(kind: str) -> Callable[..., Any]:
    def autocast(enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None) -> Any:
        return torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return autocast


class Event:
    """Something that has happened already."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    record = wait = synchronize = _nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 0.0


class Stream:
    """A queue where nothing waits."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    wait_stream = wait_event = synchronize = _nothing

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True


class CUDAGraph:
    """There is none; the layer asks what the class can do."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise NotSupported("CUDA graphs need a CUDA device; this machine has none. Call the module without a graph")


class device(contextlib.nullcontext):  # the name is torch.cuda's
    """The only device there is, made the current one."""


class _Generators:
    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator


NEUTRAL: dict[str, Any] = {
    "CUDAGraph": CUDAGraph,
    "Event": Event,
    "Stream": Stream,
    "current_device": lambda: 0,
    "current_stream": lambda device=None: Stream(),
    "default_generators": _Generators(),
    "default_stream": lambda device=None: Stream(),
    "device": device,
    "device_count": lambda: 1,
    "empty_cache": _nothing,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "graph": CUDAGraph,
    "is_current_stream_capturing": lambda: False,
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
    "max_memory_allocated": lambda device=None: 0,
    "memory_allocated": lambda device=None: 0,
    "reset_peak_memory_stats": _nothing,
    "set_device": _nothing,
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "stream": lambda stream: contextlib.nullcontext(stream),
    "synchronize": _nothing,
}
