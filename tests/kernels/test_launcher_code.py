"""The C code of a launcher is compiled beside its kernel, by Triton before 3.7 on an NVIDIA GPU."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("triton")
import triton

from opmux.cpp import background
from opmux.kernels.lib import launcher_code


class CudaDriver:
    pass


class Source:
    name = "kernel"

    def __init__(self, *_):
        pass


class Kernel(launcher_code.jit.JITFunction):
    ASTSource = Source

    def __init__(self):
        pass


@pytest.fixture
def compiled(monkeypatch):
    """`compiled(seconds)`: the events of compiling a kernel in that time."""
    events = []
    monkeypatch.setattr(launcher_code, "_is_needed", lambda: True)
    monkeypatch.setattr(type(triton.runtime.driver), "active", property(lambda self: CudaDriver()), raising=False)
    monkeypatch.setattr(launcher_code, "_compile_launcher", lambda source: events.append("launcher"))

    def run(seconds):
        def compile_kernel(self, *rest):
            time.sleep(seconds)
            events.append("kernel")
            return "compiled"

        monkeypatch.setattr(launcher_code.jit.JITFunction, "_do_compile", compile_kernel)
        kernel = launcher_code.compiling_beside(Kernel())
        assert kernel._do_compile("key", {}, 0, {}, None, {}, False) == "compiled"
        for thread in tuple(background._threads):
            thread.join()
        return events

    return run


def test_the_launcher_is_compiled_while_the_kernel_is(compiled):
    assert compiled(0.5) == ["launcher", "kernel"]


def test_a_cached_kernel_starts_no_compilation(compiled):
    assert compiled(0) == ["kernel"]


def test_newer_tritons_kernels_are_left_alone(monkeypatch):
    monkeypatch.setattr(launcher_code.triton, "__version__", "3.7.1")
    launcher_code._is_needed.cache_clear()
    kernel = Kernel()
    assert "_do_compile" not in vars(launcher_code.compiling_beside(kernel))
    launcher_code._is_needed.cache_clear()


def test_a_missing_private_member_is_no_error(monkeypatch, caplog):
    monkeypatch.setattr(launcher_code.importlib, "import_module", lambda name: threading)  # has no CudaLauncher
    launcher_code._compile_launcher(Source())
    monkeypatch.setattr(launcher_code.importlib, "import_module", lambda name: __import__("no_such_module"))
    with caplog.at_level("DEBUG", logger="opmux"):
        launcher_code._compile_launcher(Source())
    assert "no_such_module" in caplog.text
