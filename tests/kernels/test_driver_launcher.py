"""On NVIDIA GPUs with Triton before 3.7, a new kernel is launched through the driver until its launcher is compiled."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
import types

import pytest
import torch

pytest.importorskip("triton")
import triton

from opmux.cpp import background
from opmux.kernels.lib import driver_launcher

GRID, STREAM, FUNCTION = (3, 2, 1), 77, 99
SIGNATURE = {"x_ptr": "*bf16", "y_ptr": "*fp32", "n": "i32", "eps": "fp32", "BLOCK": "constexpr"}


class Utils:
    def __init__(self):
        self.loaded = []

    def get_device_properties(self, device):
        return {"max_shared_mem": 1000}

    def load_binary(self, name, kernel, shared, device):
        self.loaded.append(name)
        return "module", FUNCTION, 32, 0, 256


class CudaDriver:
    def __init__(self):
        self.utils = Utils()

    def get_current_device(self):
        return 0


class Source:
    name, signature = "kernel", SIGNATURE

    def __init__(self, *_):
        pass


class Kernel(driver_launcher.jit.JITFunction):
    ASTSource = Source

    def __init__(self):
        pass


def compiled_kernel(**metadata):
    about = {"shared": 64, "num_warps": 4, "num_ctas": 1, **metadata}
    return types.SimpleNamespace(
        name="kernel", kernel=b"cubin", src=Source(), module=None, function=None, _run=None,
        metadata=types.SimpleNamespace(**about), packed_metadata=(about["num_warps"], 1, about["shared"]),
    )  # fmt: skip


class Cuda:
    """The functions of libcuda.so.1 that opmux calls. They record launches, and return `status`."""

    def __init__(self):
        self.launches, self.status, self.context = [], 0, 1000

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1000 + device

    def cuCtxSetCurrent(self, context):
        self.context = context.value

    def cuLaunchKernel(self, function, x, y, z, threads, _, __, shared, stream, params, extra):
        if not self.context:
            return driver_launcher.NO_CONTEXT
        words = [ctypes.cast(p, ctypes.POINTER(ctypes.c_uint64))[0] for p in params]
        self.launches.append((function, (x, y, z), threads, shared, stream, words))
        return self.status

    def cuGetErrorString(self, status, text):
        text._obj.value = b"an illegal memory access"


@pytest.fixture
def cuda(monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr(driver_launcher, "_driver", lambda: cuda)
    return cuda


@pytest.fixture
def compile_it(monkeypatch):
    """`compile_it(seconds, **metadata)` pretends that Triton compiles for `seconds`; returns kernel and driver."""
    monkeypatch.setattr(driver_launcher, "_is_needed", lambda: True)
    driver = CudaDriver()
    monkeypatch.setattr(type(triton.runtime.driver), "active", property(lambda self: driver), raising=False)

    def run(seconds, **metadata):
        made = compiled_kernel(**metadata)

        def compile_kernel(self, *rest):
            time.sleep(seconds)
            return made

        monkeypatch.setattr(driver_launcher.jit.JITFunction, "_do_compile", compile_kernel)
        kernel = driver_launcher.launching_early(Kernel())
        assert kernel._do_compile("key", {}, 0, {}, None, {}, False) is made
        return made, driver

    return run


@pytest.fixture
def theirs(monkeypatch):
    """Triton's launcher. It counts as compiled once `theirs.ready` is set; `theirs.calls` lists its launches."""
    theirs = types.SimpleNamespace(ready=threading.Event(), calls=[])

    def compile_launcher(compiled):
        assert theirs.ready.wait(10)
        return lambda *args: theirs.calls.append(args)

    monkeypatch.setattr(driver_launcher, "triton_launcher", compile_launcher)
    yield theirs
    theirs.ready.set()
    for thread in tuple(background._threads):
        thread.join()


def launch(kernel, *args, enter=None, leave=None):
    kernel._run(*GRID, STREAM, kernel.function, kernel.packed_metadata, "notes", enter, leave, *args)


def on_gpu(address):
    return types.SimpleNamespace(is_cuda=True, data_ptr=lambda: address)


def test_a_new_kernel_is_launched_before_its_launcher_is_compiled(compile_it, theirs, cuda):
    kernel, driver = compile_it(0.05)
    events = []
    launch(kernel, on_gpu(4096), None, -5, 0.5, 128, enter=events.append, leave=events.append)
    half = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    assert cuda.launches == [(FUNCTION, GRID, 128, 64, STREAM, [4096, 0, 2**32 - 5, half, 0, 0])]
    assert events == ["notes", "notes"] and driver.utils.loaded == ["kernel"] and kernel.module == "module"


def test_the_compiled_launcher_takes_over(compile_it, theirs, cuda):
    kernel, _ = compile_it(0.05)
    theirs.ready.set()
    for thread in tuple(background._threads):
        thread.join()
    launch(kernel, on_gpu(4096), None, 5, 0.5, 128)
    assert len(theirs.calls) == 1 and not cuda.launches


def test_memory_of_the_host_is_left_to_the_compiled_launcher(compile_it, theirs, cuda):
    kernel, _ = compile_it(0.05)
    theirs.ready.set()
    launch(kernel, torch.ones(2), None, 5, 0.5, 128)
    assert len(theirs.calls) == 1 and not cuda.launches


def test_a_thread_that_has_not_used_cuda_can_launch(compile_it, theirs, cuda):
    kernel, _ = compile_it(0.05)
    cuda.context = 0
    launch(kernel, on_gpu(4096), None, 5, 0.5, 128)
    assert len(cuda.launches) == 1 and cuda.context == 1000


def test_an_error_of_the_driver_is_raised(compile_it, theirs, cuda):
    kernel, _ = compile_it(0.05)
    cuda.status = 700
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        launch(kernel, on_gpu(4096), None, 5, 0.5, 128)


@pytest.mark.parametrize(
    ("seconds", "metadata"),
    [
        (0, {}),  # loaded from Triton's cache
        (0.05, {"shared": 2000}),
        (0.05, {"num_warps": 16}),
        (0.05, {"num_ctas": 2}),
        (0.05, {"launch_cooperative_grid": True}),
        (0.05, {"global_scratch_size": 128}),
    ],
)
def test_other_kernels_are_left_to_triton(compile_it, theirs, seconds, metadata):
    kernel, _ = compile_it(seconds, **metadata)
    assert kernel.module is None and kernel._run is None


def test_newer_tritons_kernels_are_left_alone(monkeypatch):
    monkeypatch.setattr(driver_launcher.triton, "__version__", "3.7.1")
    driver_launcher._is_needed.cache_clear()
    kernel = Kernel()
    assert "_do_compile" not in vars(driver_launcher.launching_early(kernel))
    driver_launcher._is_needed.cache_clear()


def test_a_missing_private_member_is_no_error(compile_it, theirs, caplog, monkeypatch):
    monkeypatch.delattr(Utils, "load_binary")
    with caplog.at_level("DEBUG", logger="opmux"):
        kernel, _ = compile_it(0.05)
    assert kernel._run is None and "load_binary" in caplog.text


def test_without_a_c_compiler_the_driver_keeps_launching(compile_it, cuda, monkeypatch, caplog):
    def no_compiler(compiled):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(driver_launcher, "triton_launcher", no_compiler)
    with caplog.at_level("DEBUG", logger="opmux"):
        kernel, _ = compile_it(0.05)
        for thread in tuple(background._threads):
            thread.join()
    launch(kernel, on_gpu(4096), None, 5, 0.5, 128)
    assert len(cuda.launches) == 1 and "C compiler" in caplog.text
