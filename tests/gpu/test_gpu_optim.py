"""tex's optimizer functions and dropout on the GPU, compared with the references; CUDA graphs; memory bandwidth."""

from __future__ import annotations

import copy
import time

import pytest
import torch

from opmux.core import specs
from opmux.faces.tex.ops import dropout as tex_dropout
from opmux.specs import dropout, optim

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ADAM, SGD = tuple(optim.ADAM.values()), tuple(optim.SGD.values())


@pytest.fixture(scope="module")
def kernels():
    from opmux.kernels import optim

    return optim


def tensors(value):
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def agree(kernels, name, args, what=""):
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    got, want = getattr(kernels, name)(*mine), specs.find(f"tex::{name}").reference(*theirs)
    if name.endswith("remainder"):
        for lists in (mine[2], theirs[2]):
            lists[1] = [optim.joined(a, b) for a, b in zip(lists[1], lists[4], strict=True)]
            lists.pop()
    for a, b in zip(tensors((mine, got)), tensors((theirs, want)), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if b.dtype.is_floating_point:
            tol = 1e-5 if b.dtype is torch.float32 else torch.finfo(b.dtype).eps
            torch.testing.assert_close(a, b, rtol=tol, atol=1e-6, equal_nan=True, msg=lambda m: f"{name} {what}: {m}")
        elif name.endswith("fp8"):  # bytes encode values that may differ in the last bit
            assert ((a.int() - b.int()).abs() <= 1).all() and (a != b).double().sum() <= 1 + 1e-3 * a.numel(), name
        else:
            assert torch.equal(a, b), f"{name} {what}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", optim.FORMS)
def test_every_optimizer_function_agrees_with_the_reference(kernels, name, dtype):
    for sample in specs.find(f"tex::{name}").samples(dtype, CUDA):
        agree(kernels, name, sample.args, sample.id)


def model(dtype, n=60, offset=0):
    """Create tensors of many sizes, of which every third one is unaligned."""
    torch.manual_seed(n)
    make = lambda k, i: torch.randn(k + 8, device=CUDA, dtype=torch.float32).to(dtype)[i % 3 * offset :][:k]
    return [make((1 << (i % 21)) + (i % 5) * 16 + i % 2, i) for i in range(n)]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_many_sizes_and_alignments_agree_with_the_reference(kernels, dtype, offset):
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    g, p = model(dtype, offset=offset), model(dtype, offset=offset)
    m, v, master = (model(torch.float32, offset=offset) for _ in range(3))
    v = [t.abs() for t in v]
    agree(kernels, "multi_tensor_adam", (0, flag, [g, p, m, v], *ADAM))
    agree(kernels, "multi_tensor_adam", (0, flag, [g, p, m, v, master], *ADAM))
    agree(kernels, "multi_tensor_sgd", (0, flag, [g, p, m], *SGD))
    agree(kernels, "multi_tensor_scale", (0, flag, [g, master], 0.5))
    agree(kernels, "multi_tensor_l2norm", (0, flag, [g], True))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_sgd_rounds_half_precision_twice(kernels, dtype):
    g, w, m = (torch.randn(1 << 20, device=CUDA).to(dtype) for _ in range(3))
    numbers = {**optim.SGD, "momentum": 0.0, "wd": 0.0}  # only one product, so an FMA changes nothing
    flag, want = torch.zeros(1, dtype=torch.int32, device=CUDA), w.clone()
    kernels.multi_tensor_sgd(0, flag, [[g], [w], [m]], *numbers.values())
    specs.find("tex::multi_tensor_sgd").reference(0, flag, [[g], [want], [m]], *numbers.values())
    assert torch.equal(w, want)


def test_numpy_scalars_are_accepted(kernels):
    numpy = pytest.importorskip("numpy")
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    of_numpy = {float: numpy.float32, int: numpy.int64, bool: numpy.bool_}
    make = lambda n: [[torch.rand(9, device=CUDA)] for _ in range(n)]
    agree(kernels, "multi_tensor_sgd", (0, flag, make(3), *[of_numpy[type(v)](v) for v in SGD]))
    agree(kernels, "multi_tensor_adam", (0, flag, make(4), *[of_numpy[type(v)](v) for v in ADAM]))
    agree(kernels, "multi_tensor_scale", (0, flag, make(2), numpy.float32(0.3)))


def test_l2norm_is_deterministic(kernels):
    flag, x = torch.zeros(1, dtype=torch.int32, device=CUDA), model(torch.bfloat16)
    first = kernels.multi_tensor_l2norm(0, flag, [x], True)
    for _ in range(5):
        again = kernels.multi_tensor_l2norm(0, flag, [x], True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_new_learning_rates_and_gradient_addresses_compile_nothing(kernels):
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    lists = [
        model(torch.bfloat16),
        model(torch.bfloat16),
        model(torch.float32),
        [t.abs() for t in model(torch.float32)],
    ]
    twin = copy.deepcopy(lists)
    reference = specs.find("tex::multi_tensor_adam").reference
    kernels.multi_tensor_adam(0, flag, lists, *ADAM)
    reference(0, flag, twin, *ADAM)
    torch.cuda.synchronize()
    for step in range(2, 30):
        lists[0] = [t.clone() for t in lists[0]]
        twin[0] = lists[0]
        args = (1e-3 / step, 0.9, 0.99, 1e-8, step, 1, 1, 0.1 / step)
        start = time.perf_counter()
        kernels.multi_tensor_adam(0, flag, lists, *args)
        assert time.perf_counter() - start < 0.1
        reference(0, flag, twin, *args)
    torch.testing.assert_close(lists[2:], twin[2:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("warm", [True, False], ids=["warmed up", "tables made while capturing"])
def test_an_adam_step_can_be_captured_in_a_graph(kernels, warm):
    flag, step = (torch.zeros(1, dtype=torch.int32, device=CUDA) for _ in range(2))
    lr, inv = torch.full((1,), 0.01, device=CUDA), torch.full((1,), 0.5, device=CUDA)
    lists = [model(d) for d in (torch.bfloat16, torch.bfloat16, *[torch.float32] * 3)]
    lists[3] = [t.abs() for t in lists[3]]
    run = lambda lists_of: kernels.multi_tensor_adam_capturable_master(
        0, flag, lists_of, lr, 0.9, 0.99, 1e-8, step, 1, 1, 0.1, inv
    )
    step.fill_(1)
    run(copy.deepcopy(lists))  # compiles the kernels; the copied lists use other tables
    start = copy.deepcopy(lists)
    if warm:
        run(lists)
        for a, b in zip(tensors(lists), tensors(start), strict=True):
            a.copy_(b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(lists)
    twin = copy.deepcopy(start)
    reference = specs.find("tex::multi_tensor_adam_capturable_master").reference
    for i in range(1, 4):
        step.fill_(i)
        lr.fill_(0.01 * i)
        flag.fill_(1 if i == 2 else 0)
        junk = [torch.full((1 << 16,), -1, dtype=torch.int64, device=CUDA) for _ in range(8)]  # overwrites freed memory
        graph.replay()
        reference(0, flag, twin, lr, 0.9, 0.99, 1e-8, step, 1, 1, 0.1, inv)
        del junk
    torch.testing.assert_close(lists[2:], twin[2:], rtol=1e-4, atol=1e-5)


def test_adam_through_the_dispatcher_agrees_with_the_reference(kernels):
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    lists = [model(torch.float32) for _ in range(4)]
    lists[3] = [t.abs() for t in lists[3]]
    twin = copy.deepcopy(lists)
    for step in range(1, 7):
        optim.multi_tensor_adam(0, flag, lists, 1e-2, 0.9, 0.99, 1e-8, step, 0, 1, 0.1)
        specs.find("tex::multi_tensor_adam").reference(0, flag, twin, 1e-2, 0.9, 0.99, 1e-8, step, 0, 1, 0.1)
    torch.testing.assert_close(lists, twin, rtol=1e-4, atol=1e-5)


# ---- dropout --------------------------------------------------------------------------------------------------------


def test_dropout_equals_the_reference_bit_for_bit():
    from opmux.kernels import dropout as dropout_kernels

    for shape, dtype in (((1000, 4096), torch.bfloat16), ((37, 48), torch.float16), ((16,), torch.float32)):
        x, seed = torch.randn(shape, device=CUDA).to(dtype), torch.tensor([11, 12], device=CUDA)
        for either in (seed, seed.cpu()):
            got, want = (
                dropout_kernels.philox_dropout_bits(x, either, 0.3),
                dropout.philox_dropout_bits.reference(x, either, 0.3),
            )
            assert torch.equal(got[1], want[1])
            torch.testing.assert_close(got[0], want[0])
        back = dropout_kernels.dropout_bits_bwd(x, got[1], 0.3)
        torch.testing.assert_close(back, dropout.dropout_bits_bwd.reference(x, got[1], 0.3))


def test_each_replay_of_dropout_draws_new_numbers():
    x = torch.ones(64, 1024, device=CUDA, dtype=torch.bfloat16)
    for _ in range(2):
        tex_dropout.dropout_fwd(x, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, mask = tex_dropout.dropout_fwd(x, 0.5)
    graph.replay()
    first = mask.clone()
    graph.replay()
    assert not torch.equal(first, mask)
    assert abs((y == 0).double().mean().item() - 0.5) < 0.02


# ---- speed ----------------------------------------------------------------------------------------------------------


def seconds(call, times=10):
    call()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    marks[0].record()
    for _ in range(times):
        call()
    marks[1].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / times / 1e3


@pytest.mark.slow
@pytest.mark.parametrize("form", ["float32", "bfloat16 with masters", "bfloat16"])
def test_adam_runs_at_the_speed_of_a_copy(kernels, form):
    """Updates 1.2 G parameters in 150 tensors with at least 0.85 of a copy's bandwidth, in at most 1.02 times torch's
    time.
    """
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    n, dtype = 8 << 20, torch.float32 if form == "float32" else torch.bfloat16
    new = lambda d: [torch.zeros(n, dtype=d, device=CUDA) for _ in range(150)]
    lists = [new(dtype), new(dtype), new(torch.float32), new(torch.float32)]
    lists += [new(torch.float32)] if "masters" in form else []
    moved = 150 * n * (sum(items[0].itemsize for items in lists) + sum(items[0].itemsize for items in lists[1:]))
    moved -= 150 * n * 2 if "masters" in form else 0  # p is only written
    took = seconds(lambda: kernels.multi_tensor_adam(0, flag, lists, *ADAM))
    source, target = (torch.empty(1 << 30, dtype=torch.int32, device=CUDA) for _ in range(2))
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source))
    share = moved / took / copied
    print(f"\n{form}: {took * 1e3:.2f} ms, {moved / took / 1e12:.2f} TB/s, {share:.2f} of a copy")
    assert share >= 0.85
    if form == "float32":
        steps = [torch.ones((), device=CUDA) for _ in range(150)]
        g, p, m, v = lists
        fused = seconds(
            lambda: torch._fused_adamw_(
                p, g, m, v, [], steps, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False,
                maximize=False,
            )
        )  # fmt: skip
        print(f"torch's: {fused * 1e3:.2f} ms")
        assert took <= 1.02 * fused


@pytest.mark.slow
def test_an_optimizer_step_takes_under_600_us_on_the_host(kernels):
    """Measures 600 tensors of 16 elements, first with cached tables, then with gradients at new addresses."""
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    lists = [[torch.zeros(16, device=CUDA) for _ in range(150)] for _ in range(4)]
    others = [[torch.zeros(16, device=CUDA) for _ in range(150)] for _ in range(200)]
    for what, sequence in (("kept", [lists[0]] * 200), ("moved", others)):
        kernels.multi_tensor_adam(0, flag, lists, *ADAM)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for g in sequence:
            kernels.multi_tensor_adam(0, flag, [g, *lists[1:]], *ADAM)
        took = (time.perf_counter() - start) / len(sequence)
        torch.cuda.synchronize()
        print(f"\n{what}: {took * 1e6:.0f} us")
        assert took < 600e-6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norm_and_scale_run_at_the_speed_of_memory(kernels, dtype):
    flag = torch.zeros(1, dtype=torch.int32, device=CUDA)
    x, y = ([torch.ones(8 << 20, dtype=dtype, device=CUDA) for _ in range(100)] for _ in range(2))
    source, target = (torch.empty(1 << 29, dtype=torch.int32, device=CUDA) for _ in range(2))
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source))
    size = sum(t.nbytes for t in x)
    calls = {"norm": (size, lambda: kernels.multi_tensor_l2norm(0, flag, [x], True)),
             "scale": (2 * size, lambda: kernels.multi_tensor_scale(0, flag, [x, y], 0.5))}  # fmt: skip
    for name, (moved, call) in calls.items():
        share = moved / seconds(call) / copied
        print(f"\n{name} {dtype}: {share:.2f} of a copy")
        assert share >= 0.8
