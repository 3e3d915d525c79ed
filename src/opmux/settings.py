"""Settings outside of core: the chip's vendor, the cache directory, the use of NVIDIA's libraries, and C++."""

from __future__ import annotations

from collections.abc import Mapping

from .core.extension import Extension
from .core.knobs import flag, knob, modules, path, word

VENDOR = knob(
    "OPMUX_VENDOR",
    word,
    doc="the chip's vendor, if it should not be detected: nvidia, ascend, ...",
    example="nvidia",
)
SKIP_CUDA = knob("OPMUX_SKIP_CUDA", flag, default=False, doc="1 disables NVIDIA's own libraries; Triton on CUDA stays")
CACHE_DIR = knob(
    "OPMUX_CACHE_DIR",
    path,
    doc="where tuning results and compiled C++ are stored; unset: opmux in $XDG_CACHE_HOME or ~/.cache",
    in_file=False,
    example="/var/cache/opmux",
)
CPP = knob(
    "OPMUX_CPP",
    flag,
    default=True,
    doc="0 turns all C++ off: Python overrides and launches, a CPU runs torch's ops; else compiled on first use",
)
PLANNER = knob(
    "OPMUX_PLANNER",
    flag,
    default=True,
    doc="0: `enable()` plans and compiles in the program's own process, not in another one beside it",
)
VLLM = knob(
    "OPMUX_VLLM",
    flag,
    default=False,
    doc="1: `enable()` is called in each process in which vLLM loads its plugins",
)
RUN_AS = knob(
    "OPMUX_RUN_AS",
    modules,
    default=(),
    doc="set by `opmux run --as` for the processes that the program starts: libraries that opmux replaces",
    in_file=False,
    example="liger_kernel",
)
CUDA_HOME = knob("CUDA_HOME", path, doc="the path of the CUDA toolkit; shown, never changed", in_file=False)
CUDA_PATH = knob("CUDA_PATH", path, doc="as CUDA_HOME", in_file=False)


def _left_out() -> Mapping[str, str]:
    why = f"NVIDIA's libraries are disabled ({SKIP_CUDA.name})"
    return {"nvidia": why, "cuda": why} if SKIP_CUDA.get() else {}


EXTENSION = Extension(
    settings=(VENDOR, SKIP_CUDA, CACHE_DIR, CPP, PLANNER, VLLM, RUN_AS, CUDA_HOME, CUDA_PATH), left_out=_left_out
)
