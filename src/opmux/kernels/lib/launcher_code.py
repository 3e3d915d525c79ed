"""Compiles the C code of a kernel's launcher while Triton compiles the kernel.

Before 3.7, Triton generates a C function for every signature that a kernel is launched with. A C compiler compiles this
function after the kernel is compiled. That takes 0.2 s per launcher, and 2.6 of the 6.6 s of the first step of a
patched Llama on an H200. The result goes to Triton's cache, where Triton finds it. This module calls private functions
of Triton: if one fails, Triton compiles the launcher as usual.
"""

from __future__ import annotations

import functools
import importlib
import re
import threading
from typing import Any

import triton
from triton.runtime import jit

from ...core.log import logger
from ...cpp import background

ONE_FOR_ALL = (3, 7)  # the first version of Triton with one launcher for all kernels
CACHED = 0.02  # seconds: if Triton takes less, it has loaded the kernel from its cache


def compiling_beside(kernel: Any) -> Any:
    """Make a kernel start the compilation of its launcher when it is compiled; returns the kernel."""
    if isinstance(kernel, jit.JITFunction) and _is_needed():
        kernel._do_compile = functools.partial(_compile, kernel)
    return kernel


@functools.cache
def _is_needed() -> bool:
    return tuple(int(n) for n in re.findall(r"\d+", triton.__version__)[:2]) < ONE_FOR_ALL


def _compile(
    kernel: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, *rest: Any
) -> Any:
    done = threading.Event()
    if type(triton.runtime.driver.active).__name__ == "CudaDriver":
        source = kernel.ASTSource(kernel, signature, constexprs, attrs)
        background.later(CACHED, lambda: None if done.is_set() else _compile_launcher(source))
    try:
        return jit.JITFunction._do_compile(kernel, key, signature, device, constexprs, options, attrs, *rest)
    finally:
        done.set()


def _compile_launcher(source: Any) -> None:
    try:
        importlib.import_module("triton.backends.nvidia.driver").CudaLauncher(source, None)
    except AttributeError:  # raised after compiling the code, where Triton reads the kernel's metadata
        pass
    except Exception as error:
        logger.debug("the launcher of kernel %s is compiled after it: %s", source.name, error)
