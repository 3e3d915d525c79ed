"""Launches from C++, with a driver in Python on the CPU's dispatch key: kernels that add two tensors, or a number."""

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
from opmux.faces.aten.schema import Shape
from opmux.tools.size_classes import Formula

FUNCTION = {"add.Tensor": 7, "add_.Tensor": 8, "exp": 9, "clamp": 10, "clone": 11, "cat": 12}


def floats(address, n):
    return (ctypes.c_float * n).from_address(address)


class World:
    """Overrides that launch kernels of their own, and the driver that C++ launches them by."""

    def __init__(self):
        self.from_python, self.from_cpp = [], []
        self.status = 0  # what the driver returns, after launches that it does
        self.does = 0
        self.extra = None  # what an override does besides, with its first tensor
        self.names = list(FUNCTION)

    def kernel(self, name, x, other, y, n, scale):
        """What the kernel of an override computes: y = x + scale * other."""
        a = floats(x, n)
        b = floats(other, n) if other else [0.0] * n
        floats(y, n)[:] = [p + scale * q for p, q in zip(a, b, strict=True)]

    def launch(self, name, x, other, y, scale):
        """As `Launcher.__call__` of kernels/lib/launch.py."""
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
            mine.launches.append(launches.Launch(compiled, (3, 1, 1), args))

    def override(self, name):
        def new(x, other=None, *rest, alpha=1, **_):
            if self.extra is not None:
                self.extra(x)
            x = x[0] if isinstance(x, list) else x  # of cat
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
        at = [word(i, ctypes.c_uint64) for i in range(pointers)]
        n, scale = word(pointers, ctypes.c_int32), word(pointers + 1, ctypes.c_double)
        assert not word(pointers + 2, ctypes.c_uint64) and not word(pointers + 3, ctypes.c_uint64)  # scratch memories
        self.kernel(name, at[0], at[1] if pointers == 3 else 0, at[-1], n, scale)
        return 0


@pytest.fixture
def world(monkeypatch):
    made = World()
    with launching_by(made.drive, monkeypatch):
        yield from overridden(made)


def overridden(made):
    lib = torch.library.Library("aten", "IMPL")
    gates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in made.names:
            one = gate.Gate("cpu", Shape(name), "CPU", launches=True)
            lib.impl(name, made.override(name), "CPU")
            one.install()
            gates.append(one)
    gate.select(frozenset(made.names), None)
    yield made
    gate.select(frozenset(), None)
    for one in gates:
        one.remove()
    lib._destroy()


def often(world, call, times=CALLS_TO_RECORD):
    """Call it so often that it is recorded, and once more."""
    for _ in range(times):
        call()
    assert not world.from_cpp
    call()


def test_calls_with_one_key_are_launched_from_cpp(world):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    with torch.no_grad():
        first = torch.add(x, y, alpha=2)
        often(world, lambda: torch.add(x, y, alpha=2), CALLS_TO_RECORD - 1)
        a, b = torch.rand(4, 8), torch.rand(4, 8)
        made = torch.add(a, b, alpha=2)
    assert world.from_cpp == [("add.Tensor", (3, 1, 1), (128, 1, 1), 256)] * 2
    assert len(world.from_python) == CALLS_TO_RECORD
    assert torch.allclose(made, a.sub(b, alpha=-2))
    assert made.stride() == first.stride() and made.dtype == torch.float32 and not made.requires_grad


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: torch.add(x[:2], y[:2], alpha=2),  # a shape
        lambda x, y: torch.add(x, y, alpha=3),  # a number
        lambda x, y: torch.add(x, x, alpha=2),  # one tensor twice
        lambda x, y: torch.add(
            torch.rand(40).view(-1)[3:35].view(4, 8), y, alpha=2
        ),  # a pointer that is no multiple of 16
    ],
)
def test_a_call_with_another_key_goes_to_python(world, other):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    often(world, lambda: torch.add(x, y, alpha=2))
    world.from_python.clear()
    world.from_cpp.clear()
    other(x, y)
    assert world.from_python == ["add.Tensor"] and not world.from_cpp


def test_the_gate_forgets_with_the_functions(world):
    """They are one library: one `clear` voids the records of both."""
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    often(world, lambda: torch.add(x, y, alpha=2))
    world.from_python.clear()
    before = native_library.loaded().functions_epoch()
    launching.clear()
    assert native_library.loaded().functions_epoch() == before + 1
    torch.add(x, y, alpha=2)
    assert world.from_python == ["add.Tensor"]


def test_numbers_that_stand_for_tensors_are_part_of_the_key(world):
    x = torch.rand(4, 8)
    often(world, lambda: x + 2.5)
    assert torch.allclose(x + 2.5, x)  # the kernel here adds nothing without a second tensor
    assert len(world.from_cpp) == 2
    x + 3.5
    x + 2
    assert len(world.from_cpp) == 2


def test_calls_that_differ_in_the_last_number_alone_are_all_kept(world):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    for _ in range(2):
        for alpha in (0.5, 2.0, 3.0, 4.0, -1.5, 0.044715):
            for _ in range(CALLS_TO_RECORD):
                torch.add(x, y, alpha=alpha)
    assert len(world.from_python) == len(world.from_cpp) == 6 * CALLS_TO_RECORD


def test_many_calls_do_not_drive_each_other_out(world):
    """As in a model: sums of two shapes that fell on one place cost two calls of Python in each step."""
    tensors = [torch.ones(n) for n in range(1, 101)]
    for x in tensors:
        for _ in range(CALLS_TO_RECORD + 1):
            x + x
    known = len(world.from_python)
    for _ in range(CALLS_TO_RECORD + 1):
        for x in tensors:
            x + x
    assert len(world.from_python) == known


@pytest.mark.slow
def test_a_long_run_goes_on_recording_and_frees_what_it_replaces(world):
    """The table of an op stopped recording for good after 4,096 calls, whatever had become of those."""
    x, known, most = torch.ones(1), launching.live_records(), 0
    for n in range(5000):
        for _ in range(CALLS_TO_RECORD):
            torch.add(x, x, alpha=n + 0.5)
        most = max(most, launching.live_records() - known)
    assert not world.from_cpp and 256 < most <= 256 * 4 + 1
    torch.add(x, x, alpha=4999.5)
    assert len(world.from_cpp) == 1


def test_threads_read_while_records_are_replaced(world):
    """More calls than there is room for, in several threads at once: none gets another's launch."""
    x, problems = torch.ones(8), []

    def work(me):
        for n in range(me, 1500, 3):
            for _ in range(CALLS_TO_RECORD + 2):
                made = torch.add(x, x, alpha=n)
                if made[7].item() != n + 1:
                    problems.append((n, made))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems and world.from_cpp


def test_a_call_whose_second_launch_fails_is_not_run_again(world):
    """Its first launch has changed the tensor: the whole call once more would change it twice."""
    x, other = torch.ones(4), torch.ones(4)
    world.extra = lambda t: world.launch("add_.Tensor", t, other, t, 1.0)
    for _ in range(CALLS_TO_RECORD):
        x.add_(other)
    assert x[0] == 1 + 2 * CALLS_TO_RECORD and not world.from_cpp
    x.add_(other)
    assert x[0] == 3 + 2 * CALLS_TO_RECORD and len(world.from_cpp) == 2
    world.status, world.does, world.from_python = 700, 1, []
    with pytest.raises(RuntimeError, match="launch 2 of 2 of this call failed on cpu with the driver's status 700"):
        x.add_(other)
    assert not world.from_python and x[0] == 4 + 2 * CALLS_TO_RECORD


def test_calls_that_never_come_back_leave_room_for_others(world):
    x = torch.ones(1)
    for n in range(3000):
        torch.add(x, x, alpha=n + 0.5)
    for _ in range(CALLS_TO_RECORD):
        for n in range(60):
            torch.add(x, x, alpha=-n - 0.5)
    known = len(world.from_python)
    for n in range(60):
        torch.add(x, x, alpha=-n - 0.5)
    assert len(world.from_python) == known


LIMITS = {torch.float32: 16}, {torch.float32: 1024}  # of calls that C++ launches, and of those that Python runs


@pytest.fixture
def auto(world):
    """As in auto mode, where Python may take as long as it likes."""
    gate.select(frozenset(world.names), lambda name, device: (*LIMITS, True))
    gate.allow(1.0, 1e9)
    yield world
    gate.allow()


@pytest.mark.parametrize("size, way", [(2048, "python"), (512, "torch"), (8, "torch")])
def test_a_call_that_cannot_be_launched_is_ours_where_python_gains(world, size, way):
    """And one that was seen too seldom."""
    gate.select(frozenset(world.names), lambda name, device: (*LIMITS, False))
    x = torch.rand(size)
    torch.exp(x)
    assert len(world.from_python) == (way == "python")
    world.extra = lambda x: x.sin()
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not world.from_cpp
    # two calls are recorded, as they may turn out to be a single launch
    assert len(world.from_python) == (1 + 3 * CALLS_TO_RECORD if way == "python" else 2 * (size > 16))


def test_a_small_call_is_launched_once_it_is_known(world):
    gate.select(frozenset(world.names), lambda name, device: (*LIMITS, False))
    x = torch.rand(64)
    for _ in range(CALLS_TO_RECORD + 3):
        torch.exp(x)
    assert len(world.from_python) == 1 and len(world.from_cpp) == 3


@pytest.mark.parametrize("size", [64, 2048])
def test_auto_mode_runs_torchs_kernel_until_a_call_is_recorded(auto, size):
    x = torch.rand(size)
    natively = x.double().exp().float()
    for n in range(CALLS_TO_RECORD + 3):  # ours computes another function: x + 0
        torch.testing.assert_close(torch.exp(x), natively if n < CALLS_TO_RECORD - 1 else x)
    assert auto.from_python.count("exp") == 1 and sum(name == "exp" for name, *_ in auto.from_cpp) == 3


def test_auto_mode_never_enters_python_for_shapes_that_do_not_come_back(auto):
    for n in range(16, 4016):
        torch.exp(torch.rand(n))
    assert not auto.from_python and not auto.from_cpp


def test_auto_mode_keeps_a_planned_call_in_python_where_that_gains(auto):
    """C++ cannot launch a call that does more than launch kernels: Python runs it from the sixth call on."""
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
    assert len(auto.from_python) == 12  # two attempts to record it, as Python is no gain


def test_auto_mode_records_within_the_time_that_it_may_spend(auto):
    """One recording that takes longer than that uses up what was saved; the next ones wait."""
    gate.allow(0.02, 0.001)
    auto.extra = lambda x: time.sleep(0.01)
    for n in range(20):
        for _ in range(CALLS_TO_RECORD):
            torch.exp(torch.rand(100 + n))
    assert len(auto.from_python) == 1
    gate.allow(1.0, 1e9)
    torch.exp(torch.rand(100 + 19))  # due since its sixth call
    assert len(auto.from_python) == 2


# ---- a planner in another process -----------------------------------------------------------------------------------

LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p)
SET_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))


HEAD = 7  # words of a request before those of the key: overload, epoch, hash, pattern, which are sizes, their number


class FakePlanner:
    """Stands in for tools/planning.py: answers the requests of the gate with the test's own kernels."""

    def __init__(self, world, file):
        self.world, self.file, self.requests, self.loaded, self.wide = world, file, [], [], []
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
        launching.drive(driver_of(world.drive, *loads))
        gate.plan(self.ours)

    def send(self, *words):
        self.theirs.send(struct.pack(f"<{len(words)}Q", *words))

    def read(self):
        message = self.theirs.recv(1 << 16)
        self.requests.append(struct.unpack(f"<{len(message) // 8}Q", message))
        return self.requests[-1]

    def answer(self, *request, shape=(4, 8), kernel=0):
        """One launch of exp: its argument and its result, their elements, and 1.0."""
        self.send_kernel(kernel)
        self.send(2, *request[:3], *self.launch(request, shape, kernel))
        self.send(6)

    def send_kernel(self, kernel):
        pad = lambda text: struct.unpack(f"<{-(-len(text) // 8)}Q", text + b"\0" * (-len(text) % 8))
        path = str(self.file).encode()
        self.send(1, kernel, 64 * 1024, len(b"exp_kernel"), *pad(b"exp_kernel"), len(path), *pad(path))

    def launch(self, request, shape, kernel=0):
        """The words of an answer: the key of the request, then one launch of exp."""
        n = shape[0] * shape[1]
        params = (0, 0, 0), (1, 0, 0), (3, 0, n), (3, 0, struct.unpack("<Q", struct.pack("<d", 1.0))[0])
        result = 6, 2, *shape, shape[1], 1
        launch = kernel, 3, 1, 1, 128, len(params), *(word for param in params for word in param)
        return *request[HEAD - 1 :], 1, *result, 0, 1, *launch

    def answer_class(self, request, at, low, high, step, formulas):
        """Calls of exp on [v, 8], where v is the word `at` of the key."""
        answer = self.launch(request, (request[HEAD - 1 + at], 8))
        numbers = (word for one in formulas for word in one)
        self.send_kernel(0)
        self.send(5, *request[:2], at, low, high, step, len(formulas), *numbers, *answer)
        self.send(6)


@pytest.fixture
def planned(auto, tmp_path):
    file = tmp_path / "0.cubin"
    file.write_bytes(b"ELF!")
    made = FakePlanner(auto, file)
    yield made
    gate.plan(None)
    made.ours.shutdown(socket.SHUT_RDWR)
    KEPT.append(made.ours)


def until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not within 10 s")


def test_the_planner_gets_a_request_at_the_second_call_and_its_record_is_launched(planned):
    x = torch.rand(4, 8)
    natively = x.double().exp().float()
    torch.testing.assert_close(torch.exp(x), natively)
    torch.testing.assert_close(torch.exp(x), natively)
    request = planned.read()
    assert request[HEAD - 1] == len(request) - HEAD  # the words of the key
    before = launching.live_records()
    planned.answer(*request)
    until(lambda: launching.live_records() > before)
    for _ in range(3):
        z = torch.rand(4, 8)
        assert torch.equal(torch.exp(z), z)  # the kernel here copies
    assert planned.loaded == [b"ELF!"] and planned.wide == [(FUNCTION["exp"], 8, 64 * 1024)]  # once
    assert not planned.world.from_python and len(planned.requests) == 1


def test_a_program_does_not_wait_for_the_planner(planned):
    """It answers nothing here, and no message fits after some hundred."""
    for n in range(16, 3000):
        x = torch.rand(n)
        torch.exp(x)
        torch.exp(x)
    assert not planned.world.from_python and not planned.world.from_cpp


def test_a_kernel_is_not_loaded_while_a_graph_is_captured(planned):
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    planned.capturing, before = 1, launching.live_records()
    planned.answer(*planned.read())
    until(lambda: launching.live_records() > before)
    torch.testing.assert_close(torch.exp(x), x.double().exp().float())
    planned.capturing = 0
    assert torch.equal(torch.exp(x), x)


@pytest.mark.parametrize("size", [32, 2048])
def test_what_the_planner_refuses_is_torchs(planned, size):
    """Also where Python would gain: to enter it for the first time takes seconds of imports."""
    x = torch.rand(size)
    torch.exp(x), torch.exp(x)
    slot, epoch, hashed, *_ = planned.read()
    planned.send(3, slot, epoch, hashed)
    planned.send(6)
    until(lambda: not gate.waiting())
    for _ in range(200):
        torch.exp(x)
    torch.testing.assert_close(torch.exp(x), x.double().exp().float())
    assert not planned.world.from_python and not planned.world.from_cpp
    planned.theirs.settimeout(0.01)
    with pytest.raises(TimeoutError):
        planned.read()  # it is not requested again


@pytest.mark.parametrize("words", [(2, 10**9, 1, 1), (2,), (7, 1), (1, 0, 0, 3)], ids=str)
def test_a_message_that_makes_no_sense_changes_nothing(planned, words):
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    request = planned.read()
    planned.send(*words)
    before = launching.live_records()
    planned.answer(*request)
    until(lambda: launching.live_records() > before)
    assert torch.equal(torch.exp(x), x)


def test_an_answer_may_come_for_a_gate_that_was_never_called(planned):
    """After `disable()` and `enable()` a new gate has the number of the one that sent the request."""
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    request = planned.read()
    other = gate.slots()["cpu", "clamp"]
    before = launching.live_records()
    planned.answer(other, *request[1:])
    planned.answer(*request)
    until(lambda: launching.live_records() == before + 2)
    assert torch.equal(torch.exp(x), x)
    torch.testing.assert_close(torch.clamp(x, 0.2, 0.8), x.double().clamp(0.2, 0.8).float())


def test_what_was_planned_is_forgotten(planned, monkeypatch):
    monkeypatch.setattr(launching._State, "planned", True)
    x = torch.rand(4, 8)
    torch.exp(x), torch.exp(x)
    before = launching.live_records()
    planned.answer(*planned.read())
    until(lambda: launching.live_records() > before)
    assert torch.equal(torch.exp(x), x)
    launching.clear()
    torch.testing.assert_close(torch.exp(x), x.double().exp().float())


def test_calls_are_recorded_here_when_the_planner_has_ended(planned):
    planned.theirs.close()
    x = torch.rand(4, 8)
    until(lambda: not native_library.loaded().gate_planned())
    for _ in range(CALLS_TO_RECORD + 1):
        torch.exp(x)
    assert planned.world.from_python == ["exp"] and len(planned.world.from_cpp) == 1


def test_a_planner_that_is_replaced_leaves_no_descriptor_open(world):
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
    """It would take answers that are the parent's, and keep the connection open."""
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
    """Call exp on [n, 8] for each n; whether each was torch's."""
    found = []
    for n in rows:
        x = torch.rand(n, 8)
        y = torch.exp(x)
        found.append(not torch.equal(y, x))  # the kernel here copies
        expected = [math.exp(a) if found[-1] else a for a in x.flatten().tolist()]  # without ops that are requested
        assert y.flatten().tolist() == pytest.approx(expected, rel=1e-5)
    return found


def classified(planned, low=4, high=64, step=1, new=(100, 101, 102, 103)):
    """Have the planner answer the last of these with a class for [v, 8]."""
    new_sizes(planned, *new)
    request = planned.read()
    at, count = 4, request[HEAD - 1]  # positions in the answer: word 0 is the length of the key
    assert request[HEAD + 3 :] == (request[HEAD + at - 1], 8, 8, 1)  # sizes and strides
    plain = lambda at, factor: (at, 1, factor, 1, 1, 0)
    result, param = count + 4, count + 24  # its first size, and the kernel's parameter that is the number of elements
    planned.answer_class(request, at, low, high, step, [plain(result, 1), plain(param, 8)])
    until(lambda: not gate.waiting())
    return request


def test_calls_that_differ_in_sizes_are_requested_at_their_first_call(planned):
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


def test_a_size_class_launches_sizes_that_never_came(planned):
    classified(planned, 4, 64, 4)
    assert new_sizes(planned, 4, 64, 32, 5, 68, 0, 8) == [False, False, False, True, True, False, False]
    launched = len(planned.world.from_cpp)
    assert new_sizes(planned, 32, 32) == [False, False] and len(planned.world.from_cpp) == launched + 2
    assert not torch.equal(torch.exp(x := torch.rand(32, 9)), x)  # the other size is another one
    assert not torch.equal(torch.exp(x := torch.rand(8, 32).T), x)  # and so are the strides
    assert not planned.world.from_python


@pytest.mark.parametrize(
    "formula", [(2, 3, 64, 5, 2), (1, 9, 64, 1, 0), (0, 0, 1, 1, 7), (1, 8, 1, 1, -5 % 2**64)], ids=str
)
def test_formulas_are_evaluated_as_the_planner_does(planned, formula):
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
        assert planned.world.from_cpp[-1][1] == (ours.at(v), 1, 1)


def test_a_size_class_is_forgotten_with_what_was_planned(planned, monkeypatch):
    monkeypatch.setattr(launching._State, "planned", True)
    classified(planned)
    assert new_sizes(planned, 20) == [False]
    launching.clear()
    assert new_sizes(planned, 20, 21) == [True, True]


def test_a_size_that_was_torchs_before_its_class_came_is_launched_after(planned):
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
    new_sizes(planned, 40)  # the second call with a key is still sent to the planner
    planned.read()


@pytest.mark.parametrize(
    "words", [(), (0, 0, 0, 0), (1, 4, 64, 0, 0), (9999, 4, 64, 1, 0), (1, 4, 64, 1, 1, 9999, 1, 1, 1, 1, 0),
              (1, 4, 64, 1, 1, 3, 1, 1, 0, 1, 0), (1, 4, 64, 1, 5)], ids=str,
)  # fmt: skip
def test_a_class_that_makes_no_sense_changes_nothing(planned, words):
    new_sizes(planned, 10, 11, 12, 13)
    request = planned.read()
    planned.send_kernel(0)
    answer = planned.launch(request, (13, 8)) if len(words) > 2 and words[-1] != 5 else ()
    planned.send(5, *request[:2], *words, *answer)
    planned.send(6)
    until(lambda: not gate.waiting())
    assert new_sizes(planned, 14, 20) == [True, True]


def test_threads_call_new_sizes_while_classes_come(planned):
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
    plain = lambda at, factor: (at, 1, factor, 1, 1, 0)
    at, count = 4, request[HEAD - 1]
    for n in range(300):
        formulas = [plain(count + 4, 1), plain(count + 24, 8)]
        planned.answer_class(request, at, 4 + n % 8, 64, 1 + n % 3, formulas)
    for one in threads:
        one.join()
    assert not errors and new_sizes(planned, 63) == [False]


def test_how_far_a_pointer_is_from_a_multiple_of_16_is_part_of_the_key(world):
    """Triton compiles one kernel for multiples and another for the rest."""
    memory = torch.rand(41)
    often(world, lambda: torch.exp(memory[:32]))
    assert len(world.from_cpp) == 1
    for _ in range(CALLS_TO_RECORD):
        torch.exp(memory[1:33])
    assert len(world.from_cpp) == 1
    assert torch.equal(torch.exp(memory[1:33]), memory[1:33])  # the kernel here copies
    torch.exp(memory[5:37])  # as far
    assert len(world.from_cpp) == 3


def test_in_place(world):
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    same = x.add_(y)
    often(world, lambda: x.add_(y), CALLS_TO_RECORD - 1)
    assert world.from_cpp[0][0] == "add_.Tensor"
    z = torch.zeros(4, 8)
    assert z.add_(y) is z and same is x
    assert torch.equal(z, y) and len(world.from_cpp) == 2
    both = torch.zeros(5, 8)
    both[:4].add_(both[1:])  # they overlap: Python decides
    assert len(world.from_cpp) == 2


def test_a_gradient_and_a_view_make_no_difference_below_autograd(world):
    x, y = torch.rand(4, 8).requires_grad_(), torch.rand(4, 8)
    often(world, lambda: torch.add(x, y))
    z = torch.add(x, y)
    assert z.grad_fn is not None and len(world.from_cpp) == 2


@pytest.mark.parametrize(
    "extra", [lambda x: x.sin(), lambda x: x.mul(2), lambda x: torch.zeros(3)], ids=["sin", "mul", "zeros"]
)
def test_an_override_that_does_more_than_launch_stays_in_python(world, extra):
    world.extra = extra
    x = torch.rand(4, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not world.from_cpp and len(world.from_python) == 3 * CALLS_TO_RECORD


def test_a_call_that_was_recorded_while_it_was_planned_is_recorded_again(world):
    x, seen = torch.rand(4, 8), []
    world.extra = lambda x: seen.append(x) or (x * 2 if len(seen) == CALLS_TO_RECORD else None)
    often(world, lambda: torch.add(x, x), 2 * CALLS_TO_RECORD)
    assert len(world.from_cpp) == 1 and len(world.from_python) == 2 * CALLS_TO_RECORD


def test_views_and_allocations_are_no_work(world):
    world.extra = lambda x: (x.view(-1), torch.empty(4), x.t())
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
    assert len(world.from_cpp) == 1


def test_two_launches_with_a_workspace(world):
    def launch(name, x, other, y, scale):
        space = torch.empty_like(x)
        World.launch(world, name, x, None, space, scale)
        World.launch(world, name, space, None, y, scale)
        if launches.recording:
            launches.recording[threading.get_ident()].made.append(space)

    world.launch = launch
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
    z = torch.rand(4, 8)
    assert torch.equal(torch.exp(z), z)  # the kernel here copies
    assert [name for name, *_ in world.from_cpp] == ["exp"] * 4


def test_a_launch_into_memory_of_others_stays_in_python(world):
    world.extra = lambda x: world.launch("exp", x, None, torch.empty_like(x), 1.0)
    x = torch.rand(4, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not world.from_cpp


def test_a_result_that_no_launch_wrote_stays_in_python(world):
    world.launch = lambda name, x, other, y, scale: World.launch(world, name, x, other, torch.empty_like(x), scale)
    x = torch.rand(4, 8)
    for _ in range(3 * CALLS_TO_RECORD):
        torch.exp(x)
    assert not world.from_cpp


def test_what_was_recorded_can_be_forgotten_and_paused(world):
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
    launching.pause("counted", True)
    torch.exp(x)
    launching.pause("counted", False)
    assert len(world.from_cpp) == 1
    torch.exp(x)
    assert len(world.from_cpp) == 2
    launching.clear()
    for _ in range(CALLS_TO_RECORD):
        torch.exp(x)
    assert len(world.from_cpp) == 2
    torch.exp(x)
    assert len(world.from_cpp) == 3
    gate.inside(1)
    try:
        assert not torch.equal(torch.exp(x), x)  # ATen's: the kernel here copies
    finally:
        gate.inside(-1)
    assert len(world.from_cpp) == 3


def test_a_policy_scope_sends_calls_to_python_until_it_is_freed(world):
    """Also where no override is left that could be told of it."""
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
    with opmux.policy("reference"):
        torch.exp(x)
        assert len(world.from_cpp) == 1
    torch.exp(x)
    assert len(world.from_cpp) == 2


def test_a_record_counts_each_call_that_was_launched_from_cpp(world, monkeypatch):
    """`record=` with a real override: while a record is live, C++ launches nothing, and every call is counted."""

    def softmax(x, dim=-1):
        y = torch.empty_strided(x.shape, x.stride())
        world.launch("exp", x, None, y, 1.0)  # the kernel here copies
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
        often(world, call)
        assert torch.equal(call(), x) and len(world.from_cpp) == 2
        world.from_python.clear()
        with opmux.use(include=["_softmax"], mode="all", record=out):
            call(), call(), call()
        assert len(world.from_cpp) == 2 and len(world.from_python) == 3
        (counted,) = [json.loads(line) for line in out.getvalue().splitlines()]
        assert counted["overload"] == "_softmax" and counted["impl"] == "test.copies" and counted["count"] == 3
        for _ in range(CALLS_TO_RECORD):  # what was recorded before may be another implementation's: it is forgotten
            call()
        assert len(world.from_cpp) == 2
        call()
        assert len(world.from_cpp) == 3
    finally:
        opmux.disable()
        registry.unregister("opmux::softmax", "test.copies")


def test_a_launch_that_fails_goes_to_python(world):
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
    world.status, world.from_python = 700, []
    assert len(world.from_cpp) == 1
    assert torch.equal(torch.exp(x), x)  # the kernel here copies
    assert world.from_python == ["exp"]


def test_settings_of_torch_are_part_of_the_key(world):
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
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
    assert len(world.from_cpp) == 1
    torch.exp(x)
    assert len(world.from_cpp) == 2


def test_an_override_that_raises_ends_the_recording(world):
    def fail(x):
        raise ValueError("my own")

    x = torch.rand(4, 8)
    for _ in range(CALLS_TO_RECORD - 1):
        torch.exp(x)
    world.extra = fail
    with pytest.raises(ValueError, match="my own"):
        torch.exp(x)
    assert not launches.recording and not launching._recorders
    assert torch._C._len_torch_dispatch_stack() == 0


def test_threads_launch_at_once(world):
    x = torch.rand(4, 8)
    often(world, lambda: torch.exp(x))
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
    assert not wrong and len(world.from_cpp) == 201


def test_launches_that_are_not_plain_are_not_described():
    def described(**changed):
        given = {
            "function": 1,
            "packed_metadata": (4, 1, 0),
            "run": CudaLauncher(),
            "signature": {"n": "i32"},
        } | changed
        src = types.SimpleNamespace(signature=given.pop("signature"))
        launch = launches.Launch(types.SimpleNamespace(src=src, **given), (1,), {"n": -2})
        return launching.describe(launch, launching.RecordedLaunch())

    assert described()
    cooperative = CudaLauncher()
    cooperative.launch_cooperative_grid = True
    assert not described(run=cooperative)
    assert not described(run=object())
    assert not described(packed_metadata=(4, 2, 0))
    assert not described(signature={"n": "tensordesc<fp16[64, 64]>"})
    assert not described(signature={"m": "i32"})


def test_an_argument_that_is_not_given_has_a_key_of_its_own(world):
    x = torch.rand(4, 8)
    with torch.no_grad():
        often(world, lambda: torch.clamp(x, 0.5))
        assert len(world.from_cpp) == 1
        before = len(world.from_python)
        torch.clamp(x, None, 0.5)
        torch.clamp(x, 0.5, 0.0)
        torch.clamp(x, 0.5, 0)
        assert len(world.from_cpp) == 1 and len(world.from_python) == before + 3
        torch.clamp(x, 0.5)
    assert len(world.from_cpp) == 2


def test_a_format_and_a_list_are_part_of_the_key(world):
    x, y = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    last = torch.channels_last
    with torch.no_grad():
        often(world, lambda: torch.ops.aten.clone(x, memory_format=torch.contiguous_format))
        assert len(world.from_cpp) == 1
        torch.ops.aten.clone(x, memory_format=last)
        torch.ops.aten.clone(x)
        assert len(world.from_cpp) == 1
        world.from_cpp.clear()
        often(world, lambda: torch.cat([x, y]))
        assert len(world.from_cpp) == 1
        torch.cat([x])
        torch.cat([x, y, x])
        torch.cat([x, x])
        torch.cat([x, y], 1)
        assert len(world.from_cpp) == 1
        torch.cat([y, x])
    assert len(world.from_cpp) == 2
