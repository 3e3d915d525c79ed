"""`flag_gems.config`, `flag_gems.logging_utils`, and small modules of `flag_gems.utils` and `flag_gems.runtime`."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._prims_common import elementwise_dtypes
from torch.torch_version import TorchVersion

from ... import cache
from . import switch
from .runtime import torch_module

# ---- flag_gems.config -----------------------------------------------------------------------------------------------

has_c_extension = use_c_extension = use_env_c_extension = False
c_operators = None
aten_patch_list: list[str] = []


def load_enable_config_from_yaml(yaml_path: str | Path, key: str = "include") -> list[str]:
    """Read the list called "include" or "exclude" (`key`) from a YAML file. Without the file: a warning, and []."""
    if not Path(yaml_path).is_file():
        warnings.warn(f"flag_gems.config: no file {yaml_path}", stacklevel=2)
        return []
    return list(switch._listed(str(yaml_path), key))


def get_default_enable_config(vendor_name: str | None = None, arch_name: str | None = None) -> tuple[list[str], ...]:
    """The ops that `only_enable()` enables, and those that `enable()` excludes, if no names are given."""
    return list(switch.DEFAULT), []


def resolve_user_setting(user_setting_info: Any, user_setting_type: str = "include") -> list[str]:
    """Names from a list, a YAML file, or "default"."""
    if user_setting_info == "default" or (user_setting_info is None and user_setting_type == "include"):
        return get_default_enable_config()[user_setting_type != "include"]
    return list(switch._listed(user_setting_info, user_setting_type))


# ---- flag_gems.logging_utils ----------------------------------------------------------------------------------------


class LogOncePerLocationFilter(logging.Filter):
    """Lets only the first record of each line of code pass."""

    def __init__(self) -> None:
        super().__init__()
        self.logged_locations: set[tuple[str, int]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        at = (record.pathname, record.lineno)
        is_new = at not in self.logged_locations
        self.logged_locations.add(at)
        return is_new


_logs = ExitStack()


def setup_flaggems_logging(path: str | Path | None = None, record: bool = True, once: bool = False) -> None:
    """Log the calls of enabled ops to a file, until `teardown_flaggems_logging`."""
    if record:
        _logs.close()
        _logs.enter_context(switch.recorded(path, once))


def teardown_flaggems_logging(logger: logging.Logger | None = None) -> None:
    """Close the log of `setup_flaggems_logging`."""
    _logs.close()


# ---- flag_gems.runtime ----------------------------------------------------------------------------------------------


def device_not_found() -> None:
    raise RuntimeError("no accelerator was found; opmux also runs on the CPU: see `opmux doctor`")


def backend_not_support(device_name: str, backend_list: Iterable[str]) -> None:
    raise RuntimeError(f"the device {device_name!r} is not supported; supported are {list(backend_list)}")


def register_error(e: Exception) -> None:
    raise RuntimeError("an op could not be registered") from e


def customized_op_replace_error(e: Exception) -> None:
    raise RuntimeError("a vendor's op could not be registered") from e


# ---- flag_gems.utils ------------------------------------------------------------------------------------------------


@dataclass
class CodeGenConfig:
    """Settings of FlagGems' generator of pointwise kernels; they have no effect."""

    max_tile_size: int = 1024
    max_grid_size: tuple[int, ...] = (65535, 65535, 65535)
    max_num_warps_per_cta: int = 32
    prefer_block_pointer: bool = False
    prefer_1d_tile: bool = True
    is_scatter_slice: bool = False
    is_cat: bool = False


def get_codegen_config() -> CodeGenConfig:
    """The default settings."""
    return CodeGenConfig()


def cache_dir_path() -> Path:
    """The directory of FlagGems' caches: FLAGGEMS_CACHE_DIR, or ~/.flaggems. opmux writes only the log of `record`."""
    return Path(os.environ.get("FLAGGEMS_CACHE_DIR") or Path.home() / ".flaggems")


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def cache_dir() -> Path:
    return _made(cache_dir_path())


def code_cache_dir() -> Path:
    return _made(cache_dir_path() / "code_cache")


def config_cache_dir() -> Path:
    return _made(cache_dir_path() / "config_cache")


def clear_cache() -> None:
    """Delete the two directories below `cache_dir`."""
    for path in (code_cache_dir(), config_cache_dir()):
        shutil.rmtree(path)


def write_atomic(path_: str | Path, content: str | bytes, make_dirs: bool = False, encoding: str = "utf-8") -> None:
    """Write a file so that readers see the old or the new content."""
    path = Path(path_)
    if make_dirs:
        path.parent.mkdir(parents=True, exist_ok=True)
    cache.replace(path, content.encode(encoding) if isinstance(content, str) else content)


@dataclass
class DeviceInfo:
    """The facts about a GPU that kernels need."""

    device_id: int
    l2_cache_size: int
    sm_count: int
    major: int


def get_device_info() -> DeviceInfo:
    """The `DeviceInfo` of the current GPU."""
    return DeviceInfo(get_device_id(), get_l2_cache_size(), get_sm_count(), get_device_capability()[0])


def get_device_properties(device: Any = None) -> Any:
    """torch's properties of a device; default: the current one."""
    return torch_module().get_device_properties(get_device_id() if device is None else device)


def get_device_id() -> int:
    """The index of the current device; 0 on a CPU."""
    return int(torch_module().current_device()) if torch_module() is not torch.cpu else 0


def get_device_capability() -> tuple[int, int]:
    """The compute capability of the current GPU."""
    return torch_module().get_device_capability()


def get_l2_cache_size() -> int:
    return int(get_device_properties().L2_cache_size)


def get_sm_count() -> int:
    return int(get_device_properties().multi_processor_count)


def type_promotion(*args: Any, type_promotion: Any) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype of the result, by torch's rules for this kind of promotion."""
    return elementwise_dtypes(*args, type_promotion_kind=type_promotion)


def get_accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for sums: float32 for 16-bit floats, complex64 for complex32, else `dtype`."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return torch.complex64 if dtype is torch.complex32 else dtype


def philox_backend_seed_offset(increment: int, generator: torch.Generator | None = None) -> tuple[int, int]:
    """Seed and offset of a GPU's generator; the generator advances by `increment`, rounded up to a multiple of 4."""
    if generator is None:
        if torch_module() is torch.cpu:
            raise RuntimeError("philox_backend_seed_offset: a CPU's generator has no offset; pass a generator of a GPU")
        generator = torch_module().default_generators[torch_module().current_device()]
    assert generator is not None
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + -(-increment // 4) * 4)
    return seed, offset


def set_philox_state(seed: int, offset: int, device: Any = None) -> None:
    """Set seed and offset of a GPU's default generator; the offset must be a multiple of 4."""
    if offset % 4:
        raise ValueError(f"set_philox_state: offset must be a multiple of 4; got {offset}")
    index = torch_module().current_device() if device is None else torch.device(device).index or 0
    generator = torch_module().default_generators[index]
    generator.manual_seed(seed)
    generator.set_offset(offset)


def per_thread_offset(N: int, num_blocks: int, num_warps: int, warp_threads: int = 32) -> int:
    """How many random numbers each thread draws so that all draw at least N."""
    return -(-N // (num_blocks * num_warps * warp_threads))


def has_triton_tle(major: int = 0, minor: int = 0, patch: int = 0) -> bool:
    """Whether Triton has FlagTree's extension TLE; opmux does not use it."""
    return False


def _triton_version_at_least(major: int, minor: int, patch: int = 0) -> bool:
    import triton

    return TorchVersion(triton.__version__) >= f"{major}.{minor}.{patch}"
