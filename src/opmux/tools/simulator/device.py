"""The module `torch.<device>` of a simulated device: the functions that vendors' packages provide."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

# torch's own functions for any accelerator.
current_device = torch.accelerator.current_device_index
synchronize = torch.accelerator.synchronize
empty_cache = torch.accelerator.empty_cache
memory_stats = torch.accelerator.memory_stats
memory_allocated = torch.accelerator.memory_allocated
memory_reserved = torch.accelerator.memory_reserved
max_memory_allocated = torch.accelerator.max_memory_allocated
max_memory_reserved = torch.accelerator.max_memory_reserved
reset_peak_memory_stats = torch.accelerator.reset_peak_memory_stats
reset_accumulated_memory_stats = torch.accelerator.reset_accumulated_memory_stats


@dataclass(frozen=True)
class Properties:
    """The properties of a device."""

    name: str
    arch: str | None
    total_memory: int = 16 << 30
    multi_processor_count: int = 8


# Set by `simulate`: the name of the device type, the number of devices, and their properties.
type_name, count = "", 0
properties = Properties("", None)

DeviceLike = torch.device | str | int | None


def index_of(device_like: DeviceLike = None) -> int:
    """The index of a device; the current one by default."""
    if isinstance(device_like, int):
        return device_like
    parsed = None if device_like is None else torch.device(device_like)
    if parsed is not None and parsed.type != type_name:
        raise ValueError(f"torch.{type_name} knows devices of type {type_name}; got {parsed}")
    return current_device() if parsed is None or parsed.index is None else parsed.index


# ---- devices --------------------------------------------------------------------------------------------------------


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """A no-op: the device is ready."""


# Torch uses these names to initialize a device on first use, and in checkpoint() to save its generator's state.
_lazy_init, _initialized = init, True


def _is_in_bad_fork() -> bool:
    return False  # a forked child can use host memory too


def device_count() -> int:
    return count


def set_device(device_like: DeviceLike) -> None:
    torch.accelerator.set_device_index(index_of(device_like))


class device:
    """`with torch.npu.device(1):` makes npu:1 the current device."""

    def __init__(self, device_like: DeviceLike):
        self.index = index_of(device_like)

    def __enter__(self) -> None:
        self.before = current_device()
        set_device(self.index)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        set_device(self.before)


class device_of(device):
    """`with torch.npu.device_of(t):` makes a tensor's device the current one. A no-op for other device types."""

    def __init__(self, tensor: torch.Tensor):
        super().__init__(tensor.device if tensor.device.type == type_name else None)


def get_device_properties(device_like: DeviceLike = None) -> Properties:
    if not 0 <= index_of(device_like) < device_count():
        raise ValueError(f"there is no device {type_name}:{index_of(device_like)}: {device_count()} are simulated")
    return properties


def get_device_name(device_like: DeviceLike = None) -> str:
    return get_device_properties(device_like).name


def mem_get_info(device_like: DeviceLike = None) -> tuple[int, int]:
    total = get_device_properties(device_like).total_memory
    return total - memory_allocated(index_of(device_like)), total


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


# ---- streams and events: work is done when a call returns -----------------------------------------------------------


class Stream(torch.Stream):
    """A stream. Kernels get its number, which is also its attribute `<device>_stream`."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **number: int) -> Stream:
        if number:
            return super().__new__(cls, priority=priority, **number)
        return super().__new__(cls, device=torch.device(type_name, index_of(device)), priority=priority)

    def __getattr__(self, name: str) -> Any:
        if name == f"{type_name}_stream":
            return self.stream_id
        raise AttributeError(f"a stream has no attribute {name!r}")


def Event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
    """An event. With `enable_timing`, elapsed time is measured by the host's clock."""
    # A function and not a subclass, because `elapsed_time` accepts only torch.Event itself.
    return torch.Event(
        torch.device(type_name), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
    )


def _ours(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device_like: DeviceLike = None) -> Stream:
    return _ours(torch.accelerator.current_stream(index_of(device_like)))


def default_stream(device_like: DeviceLike = None) -> Stream:
    now = torch.accelerator.current_stream(index_of(device_like))
    return Stream(stream_id=0, device_index=now.device_index, device_type=now.device_type)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream) -> torch.Stream:
    """`with torch.npu.stream(s):` makes s the current stream."""
    return stream


# ---- random numbers -------------------------------------------------------------------------------------------------


def _generator(device_like: DeviceLike = None) -> torch.Generator:
    return torch.ops.opmux_simulator.default_generator(index_of(device_like))


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(map(_generator, range(device_count())))
    raise AttributeError(f"the simulated torch.{type_name} has no attribute {name!r}")


def manual_seed(seed: int) -> None:
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def seed() -> None:
    _generator().seed()


def seed_all() -> None:
    manual_seed_all(_generator(0).seed())


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
