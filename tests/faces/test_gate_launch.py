"""Launches from C++, with a driver in Python on the CPU's dispatch key: kernels that add two tensors, or a number."""

import ctypes
import io
import json
import threading
import types
import warnings

import pytest
import torch

import opmux
from opmux.core import launches, policy
from opmux.core.default import get_default_manager
from opmux.core.registry import BackendImplKind, OpImpl
from opmux.faces.aten import gate
from opmux.faces.aten.schema import Shape
from opmux.runtime import launching

UINT = ctypes.c_uint
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, UINT, UINT, UINT, UINT, UINT, UINT, UINT, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip
SIGHTINGS = 6
FUNCTION = {"add.Tensor": 7, "add_.Tensor": 8, "exp": 9, "clamp": 10, "clone": 11, "cat": 12}


class CudaLauncher:
    """By its name Triton's: that is how a plain launch is told."""

    launch_cooperative_grid = launch_pdl = False
    global_scratch_size = profile_scratch_size = 0


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
    if not gate.available():
        pytest.skip("gate.cpp cannot be compiled here")
    get_default_manager().prepare()  # loading plugins makes C++ forget
    # A context of another test may still refer to a policy scope.
    monkeypatch.setattr(policy, "_live", {})
    monkeypatch.setattr(launching._State, "paused", set())
    before, made = launching._State.driver, World()
    keep = LAUNCH(made.drive)
    driver = launching.Driver.of(ctypes.cast(keep, ctypes.c_void_p), None)
    launching.drive(driver)
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
    launching.clear()
    KEPT.extend((keep, driver))  # C++ may still read it
    launching.drive(before)


KEPT: list[object] = []


def often(world, call, times=SIGHTINGS):
    """Call it so often that it is recorded, and once more."""
    for _ in range(times):
        call()
    assert not world.from_cpp
    call()


def test_calls_that_look_the_same_are_launched_from_cpp(world):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    with torch.no_grad():
        first = torch.add(x, y, alpha=2)
        often(world, lambda: torch.add(x, y, alpha=2), SIGHTINGS - 1)
        a, b = torch.rand(4, 8), torch.rand(4, 8)
        made = torch.add(a, b, alpha=2)
    assert world.from_cpp == [("add.Tensor", (3, 1, 1), (128, 1, 1), 256)] * 2
    assert len(world.from_python) == SIGHTINGS
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
def test_a_call_that_looks_otherwise_goes_to_python(world, other):
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    often(world, lambda: torch.add(x, y, alpha=2))
    world.from_python.clear()
    world.from_cpp.clear()
    other(x, y)
    assert world.from_python == ["add.Tensor"] and not world.from_cpp


def test_numbers_that_stand_for_tensors_are_part_of_the_look(world):
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
            for _ in range(SIGHTINGS):
                torch.add(x, y, alpha=alpha)
    assert len(world.from_python) == len(world.from_cpp) == 6 * SIGHTINGS


def test_many_calls_do_not_drive_each_other_out(world):
    """As in a model: sums of two shapes that fell on one place cost two calls of Python in each step."""
    tensors = [torch.ones(n) for n in range(1, 101)]
    for x in tensors:
        for _ in range(SIGHTINGS + 1):
            x + x
    known = len(world.from_python)
    for _ in range(SIGHTINGS + 1):
        for x in tensors:
            x + x
    assert len(world.from_python) == known


@pytest.mark.slow
def test_a_long_run_goes_on_recording_and_frees_what_it_replaces(world):
    """The table of an op stopped recording for good after 4,096 calls, whatever had become of those."""
    x, known, most = torch.ones(1), launching.recipes(), 0
    for n in range(5000):
        for _ in range(SIGHTINGS):
            torch.add(x, x, alpha=n + 0.5)
        most = max(most, launching.recipes() - known)
    assert not world.from_cpp and 256 < most <= 256 * 4 + 1
    torch.add(x, x, alpha=4999.5)
    assert len(world.from_cpp) == 1


def test_threads_read_while_recipes_are_replaced(world):
    """More calls than there is room for, in several threads at once: none gets another's launch."""
    x, problems = torch.ones(8), []

    def work(me):
        for n in range(me, 1500, 3):
            for _ in range(SIGHTINGS + 2):
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
    for _ in range(SIGHTINGS):
        x.add_(other)
    assert x[0] == 1 + 2 * SIGHTINGS and not world.from_cpp
    x.add_(other)
    assert x[0] == 3 + 2 * SIGHTINGS and len(world.from_cpp) == 2
    world.status, world.does, world.from_python = 700, 1, []
    with pytest.raises(RuntimeError, match="launch 2 of 2 of this call failed on cpu with the driver's status 700"):
        x.add_(other)
    assert not world.from_python and x[0] == 4 + 2 * SIGHTINGS


def test_calls_that_never_come_back_leave_room_for_others(world):
    x = torch.ones(1)
    for n in range(3000):
        torch.add(x, x, alpha=n + 0.5)
    for _ in range(SIGHTINGS):
        for n in range(60):
            torch.add(x, x, alpha=-n - 0.5)
    known = len(world.from_python)
    for n in range(60):
        torch.add(x, x, alpha=-n - 0.5)
    assert len(world.from_python) == known


@pytest.mark.parametrize("size, way", [(2048, "python"), (512, "torch"), (8, "torch")])
def test_a_call_that_cannot_be_launched_is_ours_where_python_gains(world, size, way):
    """And one that was seen too seldom."""
    gate.select(frozenset(world.names), lambda name, device: ({torch.float32: 16}, {torch.float32: 1024}))
    x = torch.rand(size)
    torch.exp(x)
    assert len(world.from_python) == (way == "python")
    world.extra = lambda x: x.sin()
    for _ in range(3 * SIGHTINGS):
        torch.exp(x)
    assert not world.from_cpp
    # two calls are recorded, as they may turn out to be a single launch
    assert len(world.from_python) == (1 + 3 * SIGHTINGS if way == "python" else 2 * (size > 16))


def test_a_small_call_is_launched_once_it_is_known(world):
    gate.select(frozenset(world.names), lambda name, device: ({torch.float32: 16}, {torch.float32: 1024}))
    x = torch.rand(64)
    for _ in range(SIGHTINGS + 3):
        torch.exp(x)
    assert len(world.from_python) == 1 and len(world.from_cpp) == 3


def test_how_far_a_pointer_is_from_a_multiple_of_16_is_part_of_the_look(world):
    """Triton compiles one kernel for multiples and another for the rest."""
    memory = torch.rand(41)
    often(world, lambda: torch.exp(memory[:32]))
    assert len(world.from_cpp) == 1
    for _ in range(SIGHTINGS):
        torch.exp(memory[1:33])
    assert len(world.from_cpp) == 1
    assert torch.equal(torch.exp(memory[1:33]), memory[1:33])  # the kernel here copies
    torch.exp(memory[5:37])  # as far
    assert len(world.from_cpp) == 3


def test_in_place(world):
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    same = x.add_(y)
    often(world, lambda: x.add_(y), SIGHTINGS - 1)
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
    for _ in range(3 * SIGHTINGS):
        torch.exp(x)
    assert not world.from_cpp and len(world.from_python) == 3 * SIGHTINGS


def test_a_call_that_was_recorded_while_it_was_planned_is_recorded_again(world):
    x, seen = torch.rand(4, 8), []
    world.extra = lambda x: seen.append(x) or (x * 2 if len(seen) == SIGHTINGS else None)
    often(world, lambda: torch.add(x, x), 2 * SIGHTINGS)
    assert len(world.from_cpp) == 1 and len(world.from_python) == 2 * SIGHTINGS


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
    for _ in range(3 * SIGHTINGS):
        torch.exp(x)
    assert not world.from_cpp


def test_a_result_that_no_launch_wrote_stays_in_python(world):
    world.launch = lambda name, x, other, y, scale: World.launch(world, name, x, other, torch.empty_like(x), scale)
    x = torch.rand(4, 8)
    for _ in range(3 * SIGHTINGS):
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
    for _ in range(SIGHTINGS):
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
        for _ in range(SIGHTINGS):  # what was recorded before may be another implementation's: it is forgotten
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


def test_settings_of_torch_are_part_of_the_look(world):
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
    for _ in range(SIGHTINGS - 1):
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
        return launching.describe(launch, launching.Seen())

    assert described()
    cooperative = CudaLauncher()
    cooperative.launch_cooperative_grid = True
    assert not described(run=cooperative)
    assert not described(run=object())
    assert not described(packed_metadata=(4, 2, 0))
    assert not described(signature={"n": "tensordesc<fp16[64, 64]>"})
    assert not described(signature={"m": "i32"})


def test_an_argument_that_is_not_given_is_a_look_of_its_own(world):
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


def test_a_format_and_a_list_are_part_of_the_look(world):
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
