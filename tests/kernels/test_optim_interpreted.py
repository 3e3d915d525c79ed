"""The optimizer kernels, interpreted on the CPU, against their references: all samples, odd sizes and addresses."""

from __future__ import annotations

import copy

import pytest
import torch

from opmux.core import specs
from opmux.specs import optim as spec

pytest.importorskip("triton")
from opmux.kernels import optim as kernels

MODE = "interpret"
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def both(name, args):
    """Run kernel and reference; return the arguments and results of each."""
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    got, want = getattr(kernels, name)(*mine), specs.find(f"tex::{name}").reference(*theirs)
    return (mine, got), (theirs, want)


def tensors(value):
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def whole_weights(after):
    """Combine parameters and remainders into float32 weights, because a difference in the last bit may carry over into
    the parameter.
    """
    (_, _, (g, p, m, v, rest), *_), result = after
    joined = [spec.joined(a, b) for a, b in zip(p, rest, strict=True)]
    assert all(torch.equal(a, w.bfloat16()) for a, w in zip(p, joined, strict=True)), "p is not the rounded weight"
    return [g, joined, m, v], result


def agree(name, args, what=""):
    after, expected = both(name, args)
    if name.endswith("remainder"):
        after, expected = whole_weights(after), whole_weights(expected)
    for a, b in zip(tensors(after), tensors(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if b.dtype.is_floating_point:
            tol = 4e-6 if b.dtype is torch.float32 else torch.finfo(b.dtype).eps
            torch.testing.assert_close(a, b, rtol=tol, atol=1e-7, equal_nan=True, msg=lambda m: f"{name} {what}: {m}")
        elif name.endswith("adam_fp8"):  # bytes encode numbers that may differ in the last bit
            assert ((a.int() - b.int()).abs() <= 1).all() and (a != b).float().sum() <= 1, f"{name} {what}"
        else:
            assert torch.equal(a, b), f"{name} {what}"
    return after


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", spec.FORMS)
def test_every_function_agrees_with_the_reference(name, dtype):
    for sample in specs.find(f"tex::{name}").samples(dtype, CPU):
        agree(name, sample.args, f"{dtype} {sample.id}")


@pytest.mark.parametrize("name", spec.FORMS)
def test_functions_reject_what_the_reference_rejects(name):
    for bad in specs.find(f"tex::{name}").errors(CPU):
        with pytest.raises(bad.error, match=bad.match) as raised:
            getattr(kernels, name)(*bad.args)
        assert str(raised.value).startswith(f"{name}: ")


def test_scalars_are_checked_in_every_step():
    """Checks of tensors are cached by metadata, but numbers are checked in every call."""
    flag, lists = torch.zeros(1, dtype=torch.int32), [[torch.ones(3)] for _ in range(4)]
    for step in (1, 2, 3, 4):
        kernels.multi_tensor_adam(0, flag, lists, 0.1 / step, *ADAM[1:4], step, *ADAM[5:])
    for position, wrong, message in (
        (0, "0.1", "lr must be a number"), (4, 0, "step must be at least 1"), (4, -3, "step must be at least 1"),
        (4, 2.5, "step must be an int"), (5, 2, "mode must be one of 0, 1"), (5, 5, "mode must be one of 0, 1"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=f"multi_tensor_adam: {message}"):
            kernels.multi_tensor_adam(0, flag, lists, *ADAM[:position], wrong, *ADAM[position + 1 :])
    with pytest.raises(TypeError, match="multi_tensor_adam: noop_flag must be int32; got int64"):
        kernels.multi_tensor_adam(0, flag.long(), lists, *ADAM)


def test_only_lists_of_equal_lengths_may_be_empty():
    with pytest.raises(ValueError, match=r"multi_tensor_scale: tensor_lists\[1\] .*must have 1 tensors.*got 0"):
        kernels.multi_tensor_scale(0, torch.zeros(1, dtype=torch.int32), [[torch.ones(3)], []], 1.0)
    kernels.multi_tensor_scale(0, torch.zeros(1, dtype=torch.int32), [[], []], 1.0)


def spread(dtype, sizes, offset):
    """Create tensors in one buffer, from element `offset` on, so that their addresses have all alignments."""
    buffer = torch.randn(sum(sizes) + offset + len(sizes))
    tensors, start = [], offset
    for n in sizes:
        tensors.append(buffer.to(dtype)[start : start + n])
        start += n + 1
    return tensors


SIZES = (1, 16, 1024, 1025, 2047, 2048, 5000, 37)
ADAM = tuple(spec.ADAM.values())


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_sizes_around_a_chunk_work_at_any_address(offset):
    flag = torch.zeros(1, dtype=torch.int32)
    g, p = (spread(torch.bfloat16, SIZES, offset) for _ in range(2))
    m, v, w = (spread(torch.float32, SIZES, 2 * offset) for _ in range(3))
    agree("multi_tensor_adam", (0, flag, [g, p, m, [t.abs() for t in v], w], *ADAM))
    agree("multi_tensor_scale", (0, flag, [g, w], 0.5))
    agree("multi_tensor_l2norm", (0, flag, [spread(torch.float32, (20000, 3, 8192), offset)], True))


def test_nothing_is_written_outside_of_the_tensors():
    flag, edge = torch.zeros(1, dtype=torch.int32), 8
    whole = [[torch.full((n + 2 * edge,), 7.0) for n in (37, 1024, 1500)] for _ in range(4)]
    lists = [[t[edge:-edge] for t in items] for items in whole]
    kernels.multi_tensor_adam(0, flag, lists, *ADAM)
    for t in (t for items in whole for t in items):
        assert (t[:edge] == 7).all() and (t[-edge:] == 7).all()
    assert not (lists[1][2] == 7).any()


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_infinities_and_nan_set_the_flag(value):
    lists = [[torch.ones(3000), torch.ones(5)], [torch.ones(3000), torch.ones(5)]]
    lists[0][0][2999] = value
    for name, args in {"scale": (lists, 0.5), "l2norm": (lists[:1], False)}.items():
        flag = torch.zeros(1, dtype=torch.int32)
        (_, after, *_), _ = agree(f"multi_tensor_{name}", (0, flag, *args))
        assert after.item() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sgd_rounds_half_precision_as_the_reference_does(dtype):
    g, w, m = (torch.randn(3000).to(dtype) for _ in range(3))
    numbers = {**spec.SGD, "momentum": 0.0, "wd": 0.0}  # only one product, so an FMA changes nothing
    flag, want = torch.zeros(1, dtype=torch.int32), w.clone()
    kernels.multi_tensor_sgd(0, flag, [[g], [w], [m]], *numbers.values())
    spec.multi_tensor_sgd.reference(0, flag, [[g], [want], [m]], *numbers.values())
    assert torch.equal(w, want)


def test_numpy_numbers_reach_the_kernels_as_python_numbers():
    numpy = pytest.importorskip("numpy")
    flag = torch.zeros(1, dtype=torch.int32)
    of_numpy = {float: numpy.float32, int: numpy.int64, bool: numpy.bool_}
    numbers = {k: of_numpy[type(v)](v) for k, v in spec.SGD.items()}
    agree("multi_tensor_sgd", (0, flag, [[torch.randn(9)] for _ in range(3)], *numbers.values()))
    numbers = [of_numpy[type(v)](v) for v in spec.ADAM.values()]
    agree("multi_tensor_adam", (0, flag, [[torch.rand(9)] for _ in range(4)], *numbers))
    agree("multi_tensor_scale", (0, flag, [[torch.randn(9)] for _ in range(2)], numpy.float32(0.3)))


def test_flags_skip_only_the_right_ops():
    tensors_of = lambda n: [[torch.randn(40).abs()] for _ in range(n)]
    number = lambda v, dtype=torch.float32: torch.tensor([v], dtype=dtype)
    for flag in (0, 1):
        held = (number(0.1), 0.9, 0.99, 1e-8, number(3, torch.int32), 1, 1, 0.1, number(0.5))
        args = tensors_of(4)
        (_, _, after, *_), _ = agree("multi_tensor_adam_capturable", (0, number(flag, torch.int32), args, *held))
        assert all(torch.equal(a[0], b[0]) == bool(flag) for a, b in zip(after, args, strict=True))
        (_, _, after, *_), _ = agree("multi_tensor_sgd", (0, number(flag, torch.int32), args[:3], *spec.SGD.values()))
        assert torch.equal(after[1][0], args[1][0]) == bool(flag)
        (_, _, after, *_), _ = agree("multi_tensor_adam", (0, number(flag, torch.int32), args, *ADAM))
        assert not torch.equal(after[1][0], args[1][0])  # Adam ignores its flag


def test_lists_of_several_dtypes_are_supported():
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.bfloat16)
    g, p = ([torch.randn(40 + i).to(d) for i, d in enumerate(kinds)] for _ in range(2))
    m, v = ([torch.randn(40 + i).abs() for i in range(4)] for _ in range(2))
    flag = torch.zeros(1, dtype=torch.int32)
    agree("multi_tensor_adam", (0, flag, [g, p, m, v], *ADAM))
    agree("multi_tensor_scale", (0, flag, [g, p], 2.0))


def test_dense_tensors_in_any_order_are_supported():
    """Lists may all be channels-last as well as contiguous. Mixed orders are declined before anything is written."""
    from opmux.core import NotSupported

    flag = torch.zeros(1, dtype=torch.int32)
    last = lambda: torch.randn(2, 8, 3, 3).abs().to(memory_format=torch.channels_last)
    lists = [[last()] for _ in range(4)]
    mine, theirs = ([[t.clone() for t in items] for items in lists] for _ in range(2))
    kernels.multi_tensor_adam(0, flag, mine, *ADAM)
    specs.find("tex::multi_tensor_adam").reference(0, flag, theirs, *ADAM)
    torch.testing.assert_close(mine, theirs)
    mixed = [[torch.randn(2, 8, 3, 3)], *lists[1:]]
    before = [t.clone() for items in mixed for t in items]
    with pytest.raises(NotSupported, match="different orders"):
        kernels.multi_tensor_adam(0, flag, mixed, *ADAM)
    with pytest.raises(NotSupported, match="gaps"):
        kernels.multi_tensor_scale(0, flag, [[torch.randn(8, 4)[:, :2]], [torch.randn(8, 4)[:, :2]]], 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, (t for items in mixed for t in items), strict=True))


def test_tables_are_cached_by_addresses():
    from opmux.kernels.lib import lists as tables
    from opmux.kernels.lib.plans import forget

    forget()
    flag, lists = torch.zeros(1, dtype=torch.int32), [[torch.randn(40)], [torch.randn(40)]]
    for _ in range(3):
        kernels.multi_tensor_scale(0, flag, lists, 2.0)
    assert len(tables._tables) == 1 and len(tables._chunks) == 1
    others = [[torch.randn(40)] for _ in range(2 * tables.MOST)]
    for new in others:
        kernels.multi_tensor_scale(0, flag, [new, lists[1]], 2.0)
    assert len(tables._tables) == tables.MOST and len(tables._chunks) == 1


def test_scales_are_exact():
    """Compares bit for bit for every kind of amax: powers of two, the smallest, the largest, zero."""
    amax = torch.tensor([0.0, 1.0, 448.0, 3.3, 1e-45, 1e-38, 3e38, float("inf"), float("nan"), 2.0**-130, 1e-10])
    for pow2 in (False, True):
        for eps in (0.0, 1e-3):
            lists = [[amax.clone()], [torch.zeros_like(amax)], [torch.zeros_like(amax)]]
            (_, (_, _, got, *_)), (_, (_, _, want, *_)) = (
                (None, after[0]) for after in both(
                    "multi_tensor_compute_scale_and_scale_inv", (0, None, lists, 448.0, pow2, eps)
                )
            )  # fmt: skip
            for a, b in zip(got, want, strict=True):
                assert torch.equal(a[0].view(torch.int32), b[0].view(torch.int32))
    halves = amax.bfloat16()
    agree("multi_tensor_compute_scale_inv_e8m0", (0, None, [[halves], [torch.zeros(11, dtype=torch.uint8)]]))


def test_tables_that_a_captured_graph_reads_are_never_freed(monkeypatch):
    """Tables that the capturing stream created are kept too."""
    from types import SimpleNamespace

    from opmux.kernels.lib import lists as tables

    stream = SimpleNamespace(stream=7)
    monkeypatch.setattr(tables, "_stream", lambda index: 7)
    monkeypatch.setattr(tables.torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(tables, "_kept", [])
    device = SimpleNamespace(type="cuda", index=0)
    assert tables._cached({"key": stream}, "key", device, None) is stream
    assert tables._kept == [stream]
