"""Launches from C++ under the CPU's dispatch key by a driver written in Python; kernels add a tensor or a number."""

import ctypes
import io
import json
import math
import os
import socket
import struct
import threading
import time
import types
import warnings
from pathlib import Path

import pytest
import torch
from native_launches import CALLS_TO_RECORD, KEPT, CudaLauncher, driver_of, launching_by

import opmux
from opmux.core import launches
from opmux.core.default import get_default_manager
from opmux.core.registry import BackendImplKind, OpImpl
from opmux.cpp import launching
from opmux.cpp import library as native_library
from opmux.faces.aten import gate
from opmux.faces.aten.schema import OverloadSchema
from opmux.tools.size_classes import Formula

FUNCTION = {"add.Tensor": 7, "add_.Tensor": 8, "exp": 9, "clamp": 10, "clone": 11, "cat": 12}


def floats(address, n):
    return (ctypes.c_float * n).from_address(address)


class FakeDevice:
    """Overrides that launch fake kernels, and the driver through which C++ launches them."""

    def __init__(self):
        self.from_python, self.from_cpp = [], []
        self.status = 0  # the driver returns this status after `does` launches
        self.does = 0
        self.extra = None  # called by every override with its first tensor
        self.names = list(FUNCTION)

    def kernel(self, name, x, other, y, n, scale):
        """The computation of an override's kernel: y = x + scale * other."""
        a = floats(x, n)
        b = floats(other, n) if other else [0.0] * n
        floats(y, n)[:] = [p + scale * q for p, q in zip(a, b, strict=True)]

    def launch(self, name, x, other, y, scale):
        """A fake of `Launcher.__call__` in kernels/lib/launch.py."""
        self.from_python.append(name)
        self.kernel(name, x.data_ptr(), other.data_ptr() if other is not None else 0, y.data_ptr(), x.numel(), scale)
        signature = {"x_ptr": "*fp32", "o_ptr": "*fp32" if other is not None else "constexpr", "y_ptr": "*fp32",
                     "n": "i32", "scale": "fp64", "BLOCK": "constexpr"}  # fmt: skip
        function = FUNCTION[name] + (0 if other is None else 100)
        compiled = types.SimpleNamespace(
            run=CudaLauncher(), packed_metadata=(4, 1, 256), function=function,
            src=types.SimpleNamespace(signature=signature),
        )  # fmt: skip
        mine = launches.recording.get(threading.get_ident())
        if mine is not None:
            args = {"x_ptr": x, "o_ptr": other, "y_ptr": y, "n": x.numel(), "scale": scale}
            mine.launches.append(launches.TritonLaunch(compiled, (3, 1, 1), args))

    def override(self, name):
        def new(x, other=None, *rest, alpha=1, **_):
            if self.extra is not None:
                self.extra(x)
            x = x[0] if isinstance(x, list) else x  # cat takes a list
            second = other if isinstance(other, torch.Tensor) else None
            scale = float(alpha) if second is not None else float(other) if isinstance(other, (int, float)) else 1.0
            y = x if name.startswith("add_") else torch.empty_strided(x.shape, x.stride())
            self.launch(name, x, second, y, scale)
            return y

        return new

    def drive(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        name = next(n for n, f in FUNCTION.items() if f == function % 100)
        self.from_cpp.append((name, (gx, gy, gz), (bx, by, bz), shared))
        if self.status:
            self.does -= 1
            if self.does < 0:
                return self.status
        word = lambda i, kind: ctypes.cast(params[i], ctypes.POINTER(kind))[0]
        pointers = 3 if function > 100 else 2
        addresses = [word(i, ctypes.c_uint64) for i in range(pointers)]
        n, scale = word(pointers, ctypes.c_int32), word(pointers + 1, ctypes.c_double)
        assert not word(pointers + 2, ctypes.c_uint64) and not word(pointers + 3, ctypes.c_uint64)  # no scratch memory
        self.kernel(name, addresses[0], addresses[1] if pointers == 3 else 0, addresses[-1], n, scale)
        return 0


@pytest.fixture
def fake_device(monkeypatch):
    new_device = FakeDevice()
    with launching_by(new_device.drive, monkeypatch):
        yield from overridden(new_device)


def overridden(driver_device):
    lib = torch.library.Library("aten", "IMPL")
    gates = []
    native_library.loaded().launches_clear()  # launch records of an earlier test
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in driver_device.names:
            one = gate.Gate("cpu", OverloadSchema(name), "CPU", launches=True)
            lib.impl(name, driver_device.override(name), "CPU")
            one.install()
            gates.append(one)
    gate.select(frozenset(driver_device.names), None)
    yield driver_device
    gate.select(frozenset(), None)
    for one in gates:
        one.remove()
    lib._destroy()


def often(fake_device, call, times=CALLS_TO_RECORD):
    """Repeat a call until C++ has recorded it, then call once more."""
    for _ in range(times):
        call()
    assert not fake_device.from_cpp
    call()


def test_calls_with_one_key_are_launched_from_cpp(fake_device):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    with torch.no_grad():
        first = torch.add(x, y, alpha=2)
        often(fake_device, lambda: torch.add(x, y, alpha=2), CALLS_TO_RECORD - 1)
        a, b = torch.rand(4, 8), torch.rand(4, 8)
        result = torch.add(a, b, alpha=2)
    assert fake_device.from_cpp == [("add.Tensor", (3, 1, 1), (128, 1, 1), 256)] * 2
    assert len(fake_device.from_python) == CALLS_TO_RECORD
    assert torch.allclose(result, a.sub(b, alpha=-2))
    assert result.stride() == first.stride() and result.dtype == torch.float32 and not result.requires_grad


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: torch.add(x[:2], y[:2], alpha=2),  # another shape
        lambda x, y: torch.add(x, y, alpha=3),  # another number
        lambda x, y: torch.add(x, x, alpha=2),  # one tensor twice
        lambda x, y: torch.add(
            torch.rand(40).view(-1)[3:35].view(4, 8), y, alpha=2
        ),  # a pointer that is no multiple of 16
    ],
)
def test_a_call_with_another_key_runs_in_python(fake_device, other):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    often(fake_device, lambda: torch.add(x, y, alpha=2))
    fake_device.from_python.clear()
    fake_device.from_cpp.clear()
    other(x, y)
    assert fake_device.from_python == ["add.Tensor"] and not fake_device.from_cpp


def test_clearing_launch_records_also_clears_the_gates(fake_device):
    """Gates and launch records are in one library, so one `clear` invalidates both."""
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    often(fake_device, lambda: torch.add(x, y, alpha=2))
    fake_device.from_python.clear()
    before = native_library.loaded().functions_epoch()
    launching.clear()
    assert native_library.loaded().functions_epoch() == before + 1
    torch.add(x, y, alpha=2)
    assert fake_device.from_python == ["add.Tensor"]


def test_numbers_in_place_of_tensors_are_part_of_the_key(fake_device):
    x = torch.rand(4, 8)
    often(fake_device, lambda: x + 2.5)
    assert torch.allclose(x + 2.5, x)  # without a second tensor the fake kernel adds nothing
    assert len(fake_device.from_cpp) == 2
    x + 3.5
    x + 2
    assert len(fake_device.from_cpp) == 2


def test_calls_that_differ_only_in_the_last_number_are_all_kept(fake_device):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    for _ in range(2):
        for alpha in (0.5, 2.0, 3.0, 4.0, -1.5, 0.044715):
            for _ in range(CALLS_TO_RECORD):
                torch.add(x, y, alpha=alpha)
    assert len(fake_device.from_python) == len(fake_device.from_cpp) == 6 * CALLS_TO_RECORD


def test_many_calls_do_not_evict_each_other(fake_device):
    """Otherwise, sums of two shapes with the same hash slot would cost two Python calls in each step of a model."""
    tensors = [torch.ones(n) for n in range(1, 101)]
    for x in tensors:
        for _ in range(CALLS_TO_RECORD + 1):
            x + x
    known = len(fake_device.from_python)
    for _ in range(CALLS_TO_RECORD + 1):
        for x in tensors:
            x + x
    assert len(fake_device.from_python) == known


@pytest.mark.slow
def test_a_long_run_keeps_recording_and_frees_replaced_records(fake_device):
    """An earlier version stopped recording an op after 4,096 calls, even if these calls never came again."""
    x, known, most = torch.ones(1), launching.live_records(), 0
    for n in range(5000):
        for _ in range(CALLS_TO_RECORD):
            torch.add(x, x, alpha=n + 0.5)
        most = max(most, launching.live_records() - known)
    assert not fake_device.from_cpp and 256 < most <= 256 * 4 + 1
    torch.add(x, x, alpha=4999.5)
    assert len(fake_device.from_cpp) == 1


def test_threads_launch_their_own_records_while_records_are_replaced(fake_device):
    """Several threads make more calls than the table has entries: no call may get the launch of another call."""
    x, problems = torch.ones(8), []

    def work(me):
        for n in range(me, 1500, 3):
            for _ in range(CALLS_TO_RECORD + 2):
                result = torch.add(x, x, alpha=n)
                if result[7].item() != n + 1:
                    problems.append((n, result))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems and fake_device.from_cpp


def test_a_call_whose_second_launch_fails_is_not_run_again(fake_device):
    """The first launch has changed the tensor, so running the call again would change the tensor twice."""
    x, other = torch.ones(4), torch.ones(4)
    fake_device.extra = lambda t: fake_device.launch("add_.Tensor", t, other, t, 1.0)
    for _ in range(CALLS_TO_RECORD):
        x.add_(other)
    assert x[0] == 1 + 2 * CALLS_TO_RECORD and not fake_device.from_cpp
    x.add_(other)
    assert x[0] == 3 + 2 * CALLS_TO_RECORD and len(fake_device.from_cpp) == 2
    fake_device.status, fake_device.does, fake_device.from_python = 700, 1, []
    with pytest.raises(RuntimeError, match="launch 2 of 2 of this call failed on cpu with the driver's status 700"):
        x.add_(other)
    assert not fake_device.from_python and x[0] == 4 + 2 * CALLS_TO_RECORD


def test_calls_that_never_repeat_leave_room_for_others(fake_device):
    x = torch.ones(1)
    for n in range(3000):
        torch.add(x, x, alpha=n + 0.5)
    for _ in range(CALLS_TO_RECORD):
        for n in range(60):
            torch.add(x, x, alpha=-n - 0.5)
    known = len(fake_device.from_python)
    for n in range(60):
        torch.add(x, x, alpha=-n - 0.5)
    assert len(fake_device.from_python) == known


# Smallest sizes of calls that C++ launches, then of calls that run in Python.
LIMITS = {torch.float32: 16}, {torch.float32: 1024}


@pytest.fixture
def auto(fake_device):
    """Settings of auto mode, without a limit on the time spent in Python."""
    gate.select(frozenset(fake_device.names), lambda name, device: (*LIMITS, True))
    gate.allow(1.0, 1e9)
    yield fake_device
    gate.allow()


@pytest.mark.parametrize("size, runs_in", [(2048, "python"), (512, "torch"), (8, "torch")])
def test_a_call_that_cannot_be_launched_is_ours_if_python_is_fast_enough(fake_device, size, runs_in):
    """This holds even for a call that has not been recorded yet."""
    gate.select(frozenset(fake_device.names), lambda name, device: (*LIMITS, False))
    x = torch.rand(size)
    torch.exp(x)
    assert len(fake_device.from_python) == (runs_in == "python")
    fake_device.extra = lambda x: x.sin()
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not fake_device.from_cpp
    # Two calls run in Python anyway, to record them in case they consist of a single launch.
    assert len(fake_device.from_python) == (1 + 3 * CALLS_TO_RECORD if runs_in == "python" else 2 * (size > 16))


def test_a_small_call_is_launched_from_cpp_once_it_is_recorded(fake_device):
    gate.select(frozenset(fake_device.names), lambda name, device: (*LIMITS, False))
    x = torch.rand(64)
    for _ in range(CALLS_TO_RECORD + 3):
        torch.exp(x)
    assert len(fake_device.from_python) == 1 and len(fake_device.from_cpp) == 3


@pytest.mark.parametrize("size", [64, 2048])
def test_auto_mode_runs_torchs_kernel_until_a_call_is_recorded(auto, size):
    x = torch.rand(size)
    natively = x.double().exp().float()
    for n in range(CALLS_TO_RECORD + 3):  # the fake kernel computes x + 0, not exp
        torch.testing.assert_close(torch.exp(x), natively if n < CALLS_TO_RECORD - 1 else x)
    assert auto.from_python.count("exp") == 1 and sum(name == "exp" for name, *_ in auto.from_cpp) == 3


def test_auto_mode_never_enters_python_for_shapes_that_do_not_repeat(auto):
    for n in range(16, 4016):
        torch.exp(torch.rand(n))
    assert not auto.from_python and not auto.from_cpp


def test_auto_mode_runs_a_call_in_python_if_that_is_faster_than_torch(auto):
    """C++ cannot replay a call that does more than launch kernels, so Python runs the call from the sixth time on."""
    auto.extra = lambda x: x.sin()
    small, large = torch.rand(64), torch.rand(2048)
    for _ in range(CALLS_TO_RECORD - 1):
        torch.exp(large)
    assert not auto.from_python
    for _ in range(10):
        torch.exp(large)
    assert len(auto.from_python) == 10
    for _ in range(2 * CALLS_TO_RECORD):
        torch.exp(small)
    assert len(auto.from_python) == 12  # + 2 attempts to record the small call: Python is too slow for it


def test_auto_mode_limits_the_time_spent_on_recording(auto):
    """A recording that takes too long uses up the time budget, so the next recordings wait."""
    gate.allow(0.02, 0.001)
    auto.extra = lambda x: time.sleep(0.01)
    for n in range(20):
        for _ in range(CALLS_TO_RECORD):
            torch.exp(torch.rand(100 + n))
    assert len(auto.from_python) == 1
    gate.allow(1.0, 1e9)
    torch.exp(torch.rand(100 + 19))  # its recording is due since its sixth call
    assert len(auto.from_python) == 2


# ---- a planner in another process -----------------------------------------------------------------------------------

LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p)
SET_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))


# The number of words in a request before the key: overload, epoch, hash, pattern, two bit masks that tell which words
# of the key are sizes, and the length of the key.
HEAD = 7


class FakePlanner:
    """Replaces tools/planning.py: answers the gate's requests with the test's fake kernels."""

    def __init__(self, fake_device, file):
        self.fake_device, self.file, self.requests, self.loaded, self.wide = fake_device, file, [], [], []
        self.capturing = 0
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs.settimeout(10)

        def load(module, image):
            self.loaded.append(ctypes.string_at(image, 4))
            module[0] = 5
            return 0

        def find(function, module, name):
            assert (module, name) == (5, b"exp_kernel")
            function[0] = FUNCTION["exp"]
            return 0

        def set_attribute(function, which, value):
            self.wide.append((function, which, value))
            return 0

        def capturing(stream, status):
            status[0] = self.capturing
            return 0

        loads = LOAD(load), FIND(find), SET_ATTRIBUTE(set_attribute), CAPTURING(capturing)
        launching.drive(driver_of(fake_device.drive, *loads))
        gate.plan(self.ours)

    def send(self, *words):
        self.theirs.send(struct.pack(f"<{len(words)}Q", *words))

    def read(self):
        message = self.theirs.recv(1 << 16)
        self.requests.append(struct.unpack(f"<{len(message) // 8}Q", message))
        return self.requests[-1]

    def answer(self, *request, shape=(4, 8), kernel=0):
        """Answer with one launch of exp, whose parameters are input, result, number of elements, and 1.0."""
        self.send_kernel(kernel)
        self.send(2, *request[:3], *self.launch(request, shape, kernel))
        self.send(6)

    def send_kernel(self, kernel):
        pad = lambda text: struct.unpack(f"<{-(-len(text) // 8)}Q", text + b"\0" * (-len(text) % 8))
        path = str(self.file).encode()
        self.send(1, kernel, 64 * 1024, len(b"exp_kernel"), *pad(b"exp_kernel"), len(path), *pad(path))

    def launch(self, request, shape, kernel=0):
        """The words of an answer: the request's key, then one launch of exp."""
        n = shape[0] * shape[1]
        params = (0, 0, 0), (1, 0, 0), (3, 0, n), (3, 0, struct.unpack("<Q", struct.pack("<d", 1.0))[0])
        result = 6, 2, *shape, shape[1], 1
        launch = kernel, 3, 1, 1, 128, len(params), *(word for param in params for word in param)
        return *request[HEAD - 1 :], 1, *result, 0, 1, *launch

    def answer_class(self, request, position, low, high, step, formulas):
        """Answer with a size class: all calls of exp on [v, 8], where v is word `position` of the key."""
        answer = self.launch(request, (request[HEAD - 1 + position], 8))
        numbers = (word for one in formulas for word in one)
        self.send_kernel(0)
        self.send(5, *request[:2], position, low, high, step, len(formulas), *numbers, *answer)
        self.send(6)


@pytest.fixture
def planned(auto, tmp_path):
    file = tmp_path / "0.cubin"
    file.write_bytes(b"ELF!")
    planner = FakePlanner(auto, file)
    yield planner
    gate.plan(None)
    planner.ours.shutdown(socket.SHUT_RDWR)
    KEPT.append(planner.ours)


def until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not within 10 s")


def test_the_second_call_requests_a_plan_and_the_third_launches_its_record(planned):
    x = torch.rand(4, 8)
    natively = x.double().exp().float()
    first, second = torch.exp(x), torch.exp(x)
    request = planned.read()
    assert request[HEAD - 1] == len(request) - HEAD  # length of the key in words
    planned.answer(*request)
    until(lambda: not gate.waiting())
    torch.testing.assert_close(first, natively)
    torch.testing.assert_close(second, natively)
    for _ in range(3):
        z = torch.rand(4, 8)
        assert torch.equal(torch.exp(z), z)  # the fake kernel copies
    assert planned.loaded == [b"ELF!"] and planned.wide == [(FUNCTION["exp"], 8, 64 * 1024)]  # loaded once
    assert not planned.fake_device.from_python and len(planned.requests) == 1


def test_a_program_does_not_wait_for_the_planner(planned):
    """The planner does not answer in this test, so after some hundred requests the connection is full."""
    for n in range(16, 3000):
        x = torch.rand(n)
        torch.exp(x)
        torch.exp(x)
    assert not planned.fake_device.from_python and not planned.fake_device.from_cpp


def test_no_kernel_is_loaded_during_a_graph_capture(planned):
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    planned.capturing = 1
    planned.answer(*planned.read())
    until(lambda: not gate.waiting())
    torch.testing.assert_close(torch.exp(x), x.double().exp().float())
    planned.capturing = 0
    assert torch.equal(torch.exp(x), x)


@pytest.mark.parametrize("size", [32, 2048])
def test_calls_that_the_planner_refuses_are_left_to_torch(planned, size):
    """Python never runs such a call, even if that would be faster: the first one would import modules for seconds."""
    x = torch.rand(size)
    torch.exp(x), torch.exp(x)
    slot, epoch, hashed, *_ = planned.read()
    planned.send(3, slot, epoch, hashed)
    planned.send(6)
    until(lambda: not gate.waiting())
    for _ in range(200):
        torch.exp(x)
    torch.testing.assert_close(torch.exp(x), x.double().exp().float())
    assert not planned.fake_device.from_python and not planned.fake_device.from_cpp
    planned.theirs.settimeout(0.01)
    with pytest.raises(TimeoutError):
        planned.read()  # the call is not requested again


@pytest.mark.parametrize("words", [(2, 10**9, 1, 1), (2,), (7, 1), (1, 0, 0, 3)], ids=str)
def test_a_malformed_message_changes_nothing(planned, words):
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    request = planned.read()
    planned.send(*words)
    planned.answer(*request)
    until(lambda: not gate.waiting())
    assert torch.equal(torch.exp(x), x)


def test_an_answer_may_arrive_for_a_gate_that_was_never_called(planned):
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    request = planned.read()
    other = gate.slots()["cpu", "clamp"]
    planned.send_kernel(0)
    planned.send(2, other, *request[1:3], *planned.launch(request, (4, 8)))
    planned.answer(*request)
    until(lambda: not gate.waiting())
    assert torch.equal(torch.exp(x), x)
    torch.testing.assert_close(torch.clamp(x, 0.2, 0.8), x.double().clamp(0.2, 0.8).float())


def test_clear_invalidates_planned_records(planned, monkeypatch):
    monkeypatch.setattr(launching._LaunchingState, "planned", True)
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    planned.answer(*planned.read())
    until(lambda: not gate.waiting())
    assert torch.equal(torch.exp(x), x)
    launching.clear()
    torch.testing.assert_close(torch.exp(x), x.double().exp().float())


def test_launch_records_stay_when_overrides_are_removed_and_registered_again(planned):
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    planned.answer(*planned.read())
    until(lambda: not gate.waiting())
    get_default_manager().invalidate("overrides are removed", keep_launches=True)
    lib, again = torch.library.Library("aten", "IMPL"), gate.Gate("cpu", OverloadSchema("exp"), "CPU", launches=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lib.impl("exp", planned.fake_device.override("exp"), "CPU", allow_override=True)
    again.install()
    assert torch.equal(torch.exp(x), x) and len(planned.requests) == 1  # the fake kernel copies
    again.remove()
    lib._destroy()


def test_calls_are_recorded_in_process_after_the_planner_has_ended(planned):
    planned.theirs.close()
    x = torch.rand(4, 8)
    until(lambda: not native_library.loaded().gate_planned())
    for _ in range(CALLS_TO_RECORD + 1):
        torch.exp(x)
    assert planned.fake_device.from_python == ["exp"] and len(planned.fake_device.from_cpp) == 1


def test_replacing_a_planner_leaves_no_descriptor_open(fake_device):
    descriptors = lambda: len(list(Path("/proc/self/fd").iterdir()))
    before = descriptors()
    for _ in range(5):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gate.plan(ours)
        gate.plan(None)
        gate.plan(ours)  # the same connection
        assert native_library.loaded().gate_planned()
        gate.plan(None)
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        theirs.close()
    until(lambda: descriptors() == before)


def test_a_forked_child_has_no_planner(planned):
    """Otherwise the child would read the parent's answers, and keep the connection open."""
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    assert gate.waiting() == 1
    child = os.fork()
    if child == 0:
        os._exit(gate.waiting() + 2 * native_library.loaded().gate_planned())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gate.waiting() == 1


# ---- size classes ---------------------------------------------------------------------------------------------------


def new_sizes(planned, *rows):
    """Call exp on [n, 8] for each n in `rows`; return for each n whether torch's kernel ran."""
    results = []
    for n in rows:
        x = torch.rand(n, 8)
        y = torch.exp(x)
        results.append(not torch.equal(y, x))  # the fake kernel copies
        # Uses `math`, because the gate would request a plan for torch.exp.
        expected = [math.exp(a) if results[-1] else a for a in x.flatten().tolist()]
        assert y.flatten().tolist() == pytest.approx(expected, rel=1e-5)
    return results


def classified(planned, low=4, high=64, step=1, new=(100, 101, 102, 103)):
    """Call exp with new sizes, and let the planner answer one request with a size class for [v, 8]."""
    new_sizes(planned, *new)
    request = planned.read()
    position, count = 4, request[HEAD - 1]  # positions in the answer; word 0 is the key's length
    assert request[HEAD + 3 :] == (request[HEAD + position - 1], 8, 8, 1)  # sizes and strides
    plain = lambda word, factor: (word, 1, factor, 1, 1, 0)
    # Positions of the result's first size, and of the kernel's parameter for the number of elements.
    result, param = count + 4, count + 24
    planned.answer_class(request, position, low, high, step, [plain(result, 1), plain(param, 8)])
    until(lambda: not gate.waiting())
    return request


def test_new_sizes_of_a_known_pattern_are_requested_at_their_first_call(planned):
    new_sizes(planned, 10, 11, 12)
    planned.theirs.settimeout(0.05)
    with pytest.raises(TimeoutError):
        planned.read()
    new_sizes(planned, 13, 14)
    first, second = planned.read(), planned.read()
    pattern, *which = first[3:6]
    assert second[3:6] == (pattern, *which) and first[2] != second[2]
    sizes = [i for i in range(first[HEAD - 1]) if which[i // 64] >> i % 64 & 1]
    assert [first[HEAD + i] for i in sizes] == [13, 8, 8, 1]  # sizes and strides
    new_sizes(planned, 13)
    torch.exp(torch.rand(13, 8, 2))  # another pattern
    with pytest.raises(TimeoutError):
        planned.read()


def test_a_size_class_launches_sizes_that_were_never_planned(planned):
    classified(planned, 4, 64, 4)
    assert new_sizes(planned, 4, 64, 32, 5, 68, 0, 8) == [False, False, False, True, True, False, False]
    launched = len(planned.fake_device.from_cpp)
    assert new_sizes(planned, 32, 32) == [False, False] and len(planned.fake_device.from_cpp) == launched + 2
    assert not torch.equal(torch.exp(x := torch.rand(32, 9)), x)  # the class requires size 8 here
    assert not torch.equal(torch.exp(x := torch.rand(8, 32).T), x)  # the class requires these strides, too
    assert not planned.fake_device.from_python


@pytest.mark.parametrize(
    "formula", [(2, 3, 64, 5, 2), (1, 9, 64, 1, 0), (0, 0, 1, 1, 7), (1, 8, 1, 1, -5 % 2**64)], ids=str
)
def test_formulas_have_the_same_value_in_cpp_and_in_the_planner(planned, formula):
    new_sizes(planned, 100, 101, 102, 103)
    request = planned.read()
    count, grid = request[HEAD - 1], request[HEAD - 1] + 11
    plain = [(count + 4, 1, 1, 1, 1, 0), (count + 24, 1, 8, 1, 1, 0)]
    planned.answer_class(request, 4, 4, 64, 1, [*plain, (grid, *formula)])
    until(lambda: not gate.waiting())
    power, factor, divisor, times, plus = formula
    ours = Formula(power, factor, divisor, times, plus - 2**64 if plus >> 63 else plus)
    for v in (4, 5, 33, 64):
        assert new_sizes(planned, v) == [False]
        assert planned.fake_device.from_cpp[-1][1] == (ours.at(v), 1, 1)


def test_clear_invalidates_size_classes(planned, monkeypatch):
    monkeypatch.setattr(launching._LaunchingState, "planned", True)
    classified(planned)
    assert new_sizes(planned, 20) == [False]
    launching.clear()
    assert new_sizes(planned, 20, 21) == [True, True]


def test_a_class_also_launches_sizes_that_torch_ran_before_it_came(planned):
    classified(planned, new=(20, 100, 101, 102))
    assert new_sizes(planned, 20) == [False]


def test_a_refused_pattern_is_not_requested_again(planned):
    new_sizes(planned, 10, 11, 12, 13)
    slot, epoch, hashed, pattern, *_ = planned.read()
    for refused in (hashed, pattern):
        planned.send(3, slot, epoch, refused)
    planned.send(6)
    until(lambda: not gate.waiting())
    new_sizes(planned, *range(20, 60))
    planned.theirs.settimeout(0.05)
    with pytest.raises(TimeoutError):
        planned.read()
    new_sizes(planned, 40)  # the second call with a key is still requested
    planned.read()


@pytest.mark.parametrize(
    "words", [(), (0, 0, 0, 0), (1, 4, 64, 0, 0), (9999, 4, 64, 1, 0), (1, 4, 64, 1, 1, 9999, 1, 1, 1, 1, 0),
              (1, 4, 64, 1, 1, 3, 1, 1, 0, 1, 0), (1, 4, 64, 1, 5)], ids=str,
)  # fmt: skip
def test_a_malformed_class_changes_nothing(planned, words):
    new_sizes(planned, 10, 11, 12, 13)
    request = planned.read()
    planned.send_kernel(0)
    answer = planned.launch(request, (13, 8)) if len(words) > 2 and words[-1] != 5 else ()
    planned.send(5, *request[:2], *words, *answer)
    planned.send(6)
    until(lambda: not gate.waiting())
    assert new_sizes(planned, 14, 20) == [True, True]


def test_threads_may_call_new_sizes_while_classes_arrive(planned):
    request = classified(planned, 1000, 1001)
    errors = []

    def call(number):
        try:
            for n in range(number, 400, 4):
                new_sizes(planned, n % 60 + 4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    plain = lambda word, factor: (word, 1, factor, 1, 1, 0)
    position, count = 4, request[HEAD - 1]
    for n in range(300):
        formulas = [plain(count + 4, 1), plain(count + 24, 8)]
        planned.answer_class(request, position, 4 + n % 8, 64, 1 + n % 3, formulas)
    for one in threads:
        one.join()
    assert not errors and new_sizes(planned, 63) == [False]


def test_pointer_offset_from_16_bytes_is_part_of_the_key(fake_device):
    """Triton compiles one kernel for pointers that are multiples of 16, and another one for all others."""
    memory = torch.rand(41)
    often(fake_device, lambda: torch.exp(memory[:32]))
    assert len(fake_device.from_cpp) == 1
    for _ in range(CALLS_TO_RECORD):
        torch.exp(memory[1:33])
    assert len(fake_device.from_cpp) == 1
    assert torch.equal(torch.exp(memory[1:33]), memory[1:33])  # the fake kernel copies
    torch.exp(memory[5:37])  # same offset from 16 bytes
    assert len(fake_device.from_cpp) == 3


def test_in_place_ops_are_launched_unless_arguments_overlap(fake_device):
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    same = x.add_(y)
    often(fake_device, lambda: x.add_(y), CALLS_TO_RECORD - 1)
    assert fake_device.from_cpp[0][0] == "add_.Tensor"
    z = torch.zeros(4, 8)
    assert z.add_(y) is z and same is x
    assert torch.equal(z, y) and len(fake_device.from_cpp) == 2
    both = torch.zeros(5, 8)
    both[:4].add_(both[1:])  # overlapping arguments run in Python
    assert len(fake_device.from_cpp) == 2


def test_tensors_that_require_grad_are_launched_from_cpp(fake_device):
    x, y = torch.rand(4, 8).requires_grad_(), torch.rand(4, 8)
    often(fake_device, lambda: torch.add(x, y))
    z = torch.add(x, y)
    assert z.grad_fn is not None and len(fake_device.from_cpp) == 2


@pytest.mark.parametrize(
    "extra", [lambda x: x.sin(), lambda x: x.mul(2), lambda x: torch.zeros(3)], ids=["sin", "mul", "zeros"]
)
def test_an_override_that_does_more_than_launch_runs_in_python(fake_device, extra):
    fake_device.extra = extra
    x = torch.rand(4, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not fake_device.from_cpp and len(fake_device.from_python) == 3 * CALLS_TO_RECORD


def test_a_call_that_did_more_while_it_was_recorded_is_recorded_again(fake_device):
    x, calls = torch.rand(4, 8), []
    fake_device.extra = lambda x: calls.append(x) or (x * 2 if len(calls) == CALLS_TO_RECORD else None)
    often(fake_device, lambda: torch.add(x, x), 2 * CALLS_TO_RECORD)
    assert len(fake_device.from_cpp) == 1 and len(fake_device.from_python) == 2 * CALLS_TO_RECORD


def test_views_and_allocations_do_not_prevent_a_launch_from_cpp(fake_device):
    fake_device.extra = lambda x: (x.view(-1), torch.empty(4), x.t())
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    assert len(fake_device.from_cpp) == 1


def test_two_launches_with_a_workspace_are_launched_from_cpp(fake_device):
    def launch(name, x, other, y, scale):
        space = torch.empty_like(x)
        FakeDevice.launch(fake_device, name, x, None, space, scale)
        FakeDevice.launch(fake_device, name, space, None, y, scale)
        if launches.recording:
            launches.recording[threading.get_ident()].made.append(space)

    fake_device.launch = launch
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    z = torch.rand(4, 8)
    assert torch.equal(torch.exp(z), z)  # the fake kernel copies
    assert [name for name, *_ in fake_device.from_cpp] == ["exp"] * 4


def test_a_launch_that_writes_an_unknown_tensor_runs_in_python(fake_device):
    fake_device.extra = lambda x: fake_device.launch("exp", x, None, torch.empty_like(x), 1.0)
    x = torch.rand(4, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not fake_device.from_cpp


def test_a_call_whose_result_no_launch_wrote_runs_in_python(fake_device):
    fake_device.launch = lambda name, x, other, y, scale: FakeDevice.launch(
        fake_device, name, x, other, torch.empty_like(x), scale
    )
    x = torch.rand(4, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not fake_device.from_cpp


def test_records_can_be_paused_and_cleared(fake_device):
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    launching.pause("counted", True)
    torch.exp(x)
    launching.pause("counted", False)
    assert len(fake_device.from_cpp) == 1
    torch.exp(x)
    assert len(fake_device.from_cpp) == 2
    launching.clear()
    for _ in range(CALLS_TO_RECORD):
        torch.exp(x)
    assert len(fake_device.from_cpp) == 2
    torch.exp(x)
    assert len(fake_device.from_cpp) == 3
    gate.inside(1)
    try:
        assert not torch.equal(torch.exp(x), x)  # ATen's kernel: the fake kernel copies
    finally:
        gate.inside(-1)
    assert len(fake_device.from_cpp) == 3


def test_a_policy_block_sends_calls_to_python_until_it_ends(fake_device):
    """The block clears the launch records even if no override is left that could be notified."""
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    with opmux.policy("reference"):
        torch.exp(x)
        assert len(fake_device.from_cpp) == 1
    torch.exp(x)
    assert len(fake_device.from_cpp) == 2


def test_a_record_counts_calls_that_cpp_would_launch(fake_device, monkeypatch):
    """Tests a real override. While a record is active, C++ launches nothing, so the record counts every call."""

    def softmax(x, dim=-1):
        y = torch.empty_strided(x.shape, x.stride())
        fake_device.launch("exp", x, None, y, 1.0)  # the fake kernel copies
        return y

    registry = get_default_manager().registry
    impl = OpImpl("opmux::softmax", "test.copies", BackendImplKind.DEFAULT, None, softmax, 1000, devices={"cpu"})
    monkeypatch.setattr(
        gate, "make", lambda device, shape, key, family="": gate.Gate(device, shape, key, launches=True)
    )
    registry.register_impl(impl)
    x, out = torch.rand(4, 8), io.StringIO()
    call = lambda: torch.ops.aten._softmax(x, -1, False)
    try:
        opmux.enable(include=["_softmax"], mode="all")
        # A callback of another test may run in the main thread during the recorded call; C++ then records a later call.
        for _ in range(4 * CALLS_TO_RECORD):
            if not fake_device.from_cpp:
                call()
        assert torch.equal(call(), x) and len(fake_device.from_cpp) == 2
        fake_device.from_python.clear()
        with opmux.use(include=["_softmax"], mode="all", record=out):
            call(), call(), call()
        assert len(fake_device.from_cpp) == 2 and len(fake_device.from_python) == 3
        (counted,) = [json.loads(line) for line in out.getvalue().splitlines()]
        assert counted["overload"] == "_softmax" and counted["impl"] == "test.copies" and counted["count"] == 3
        for _ in range(CALLS_TO_RECORD):  # leaving the block has cleared the launch records
            call()
        assert len(fake_device.from_cpp) == 2
        call()
        assert len(fake_device.from_cpp) == 3
    finally:
        opmux.disable()
        registry.unregister("opmux::softmax", "test.copies")


def test_a_launch_that_fails_runs_the_call_in_python(fake_device):
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    fake_device.status, fake_device.from_python = 700, []
    assert len(fake_device.from_cpp) == 1
    assert torch.equal(torch.exp(x), x)  # the fake kernel copies
    assert fake_device.from_python == ["exp"]


def test_settings_of_torch_are_part_of_the_key(fake_device):
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    torch.use_deterministic_algorithms(True)
    try:
        torch.exp(x)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        torch.exp(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(fake_device.from_cpp) == 1
    torch.exp(x)
    assert len(fake_device.from_cpp) == 2


def test_an_override_that_raises_ends_the_recording(fake_device):
    def fail(x):
        raise ValueError("my own")

    x = torch.rand(4, 8)
    for _ in range(CALLS_TO_RECORD - 1):
        torch.exp(x)
    fake_device.extra = fail
    with pytest.raises(ValueError, match="my own"):
        torch.exp(x)
    assert not launches.recording and not launching._recorders
    assert torch._C._len_torch_dispatch_stack() == 0


def test_threads_may_launch_at_once(fake_device):
    x = torch.rand(4, 8)
    often(fake_device, lambda: torch.exp(x))
    wrong = []

    def work():
        for _ in range(50):
            z = torch.rand(4, 8)
            if not torch.equal(torch.exp(z), z):
                wrong.append(z)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong and len(fake_device.from_cpp) == 201


def test_launches_that_cpp_cannot_repeat_are_not_described():
    def described(**changed):
        arguments = {
            "function": 1,
            "packed_metadata": (4, 1, 0),
            "run": CudaLauncher(),
            "signature": {"n": "i32"},
        } | changed
        src = types.SimpleNamespace(signature=arguments.pop("signature"))
        launch = launches.TritonLaunch(types.SimpleNamespace(src=src, **arguments), (1,), {"n": -2})
        return launching.describe(launch, launching.RecordedLaunch())

    assert described()
    cooperative = CudaLauncher()
    cooperative.launch_cooperative_grid = True
    assert not described(run=cooperative)
    assert not described(run=object())
    assert not described(packed_metadata=(4, 2, 0))
    assert not described(signature={"n": "tensordesc<fp16[64, 64]>"})
    assert not described(signature={"m": "i32"})


def test_a_missing_argument_has_its_own_key(fake_device):
    x = torch.rand(4, 8)
    with torch.no_grad():
        often(fake_device, lambda: torch.clamp(x, 0.5))
        assert len(fake_device.from_cpp) == 1
        before = len(fake_device.from_python)
        torch.clamp(x, None, 0.5)
        torch.clamp(x, 0.5, 0.0)
        torch.clamp(x, 0.5, 0)
        assert len(fake_device.from_cpp) == 1 and len(fake_device.from_python) == before + 3
        torch.clamp(x, 0.5)
    assert len(fake_device.from_cpp) == 2


def test_memory_formats_and_lists_are_part_of_the_key(fake_device):
    x, y = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    last = torch.channels_last
    with torch.no_grad():
        often(fake_device, lambda: torch.ops.aten.clone(x, memory_format=torch.contiguous_format))
        assert len(fake_device.from_cpp) == 1
        torch.ops.aten.clone(x, memory_format=last)
        torch.ops.aten.clone(x)
        assert len(fake_device.from_cpp) == 1
        fake_device.from_cpp.clear()
        often(fake_device, lambda: torch.cat([x, y]))
        assert len(fake_device.from_cpp) == 1
        torch.cat([x])
        torch.cat([x, y, x])
        torch.cat([x, x])
        torch.cat([x, y], 1)
        assert len(fake_device.from_cpp) == 1
        torch.cat([y, x])
    assert len(fake_device.from_cpp) == 2
