"""ATen's layout ops and factories, interpreted, against torch's own: values, dtypes, strides, `out` arguments."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.core.errors import NotSupported
from opmux.kernels import creation as creation_kernels  # noqa: F401
from opmux.kernels import layout as layout_kernels  # noqa: F401
from opmux.kernels.lib import moves
from opmux.specs import creation, layout

MODE = "interpret"
OPS = {**layout.ops, **creation.ops}
SAMPLES = {r.name: r.samples for r in (*layout.TABLE, *layout.LISTS, *layout.ARITHMETIC, *creation.TABLE)}
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64)


def impl_of(name):
    return triton_impl(OPS[name])


def listed(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def same(got, expected, what):
    for a, b in zip(listed(got), listed(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), what
        assert not a.numel() or a.stride() == b.stride(), f"{what}: strides {a.stride()}, not {b.stride()}"
        tolerance = (
            dict(rtol=0, atol=0)
            if name_is_exact(what)
            else dict(rtol=1e-2 if a.dtype.itemsize == 2 else 1e-6, atol=1e-6)
        )
        torch.testing.assert_close(a, b, **tolerance, equal_nan=True, msg=lambda m: f"{what}: {m}")


def name_is_exact(what):
    return what.split()[0] not in ("unfold_backward", "polar", "arange", "linspace", "logspace")


def agree(name, *args, **kwargs):
    spec = OPS[name].spec
    args, kwargs = spec.bound(args, kwargs)
    same(impl_of(name).fn(*args, **kwargs), spec.reference(*args, **kwargs), f"{name} {args[1:]} {kwargs}")


@pytest.mark.parametrize("number, name", list(enumerate(OPS)), ids=list(OPS))
def test_every_op_agrees_with_torch(number, name):
    """Tests all samples in one dtype, and one sample in another dtype."""
    makes = SAMPLES[name]
    for sample in (*makes(torch.float32, "cpu"), *itertools.islice(makes(DTYPES[1 + number % 4], "cpu"), 1)):
        try:
            expected = OPS[name].spec.reference(*sample.args, **sample.kwargs)
        except (RuntimeError, NotImplementedError):
            continue  # torch has no kernel for this dtype
        try:
            args, kwargs = OPS[name].spec.bound(sample.args, sample.kwargs)
            got = impl_of(name).fn(*args, **kwargs)
        except NotSupported:
            assert name in ("unfold_backward", "linspace", "logspace"), name  # our kernels decline integers
            continue
        same(got, expected, f"{name} {sample.id}")


X = torch.arange(60.0).view(3, 4, 5)


def test_many_moves_take_several_launches():
    agree("cat", [X + i for i in range(11)], 1)
    agree("stack", [X[:, :, i] for i in range(5)], 2)


def test_cat_accepts_mixed_dtypes_and_empty_tensors():
    agree("cat", [X, X.to(torch.int64), X.to(torch.float64)], 2)
    agree("cat", [torch.empty(0), X, X[:0]], 0)
    agree("cat", [X.to(memory_format=torch.contiguous_format)[:, :, ::2], X.transpose(0, 0)[:, :, 1:3]], -1)
    twice = [X, X]  # the same tensor twice, later two tensors with equal metadata
    agree("cat", twice, 0)
    agree("cat", [X, X + 1], 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int64, torch.float16, torch.bfloat16])
def test_copy_converts_as_torch_does(dtype):
    x = torch.tensor([[0.0, 1.5, -2.7, 100.9], [0.1, -0.0, 3.0, 7.0]])
    for source in (x, x.double(), x.to(torch.int64), x > 0, x.t().contiguous().t()):
        agree(
            "_to_copy", source.abs() if dtype is torch.uint8 and source.dtype is not torch.bool else source, dtype=dtype
        )


def test_copy_writes_any_layout():
    into = impl_of("copy").into
    for y in (torch.zeros(3, 4, 5), torch.zeros(5, 4, 3).permute(2, 1, 0), torch.zeros(3, 4, 10)[..., ::2]):
        for src in (X, X[0], X[:, :1, :], torch.tensor(7), X.double()):
            expected = torch.zeros(3, 4, 5).copy_(src)
            assert into(y, y, src, False) is y and torch.equal(y, expected)


def test_overlapping_memory_falls_back_to_torch():
    into, x = impl_of("copy").into, torch.arange(10.0)
    with pytest.raises(NotSupported, match="share memory"):
        into(x[1:], x[1:], x[:-1], False)
    with pytest.raises(NotSupported, match="share memory"):
        impl_of("cat").into(x, [x[:5], x[5:]], 0)
    with pytest.raises(NotSupported, match="share memory"):
        impl_of("fill").into(x, x, x[3])
    with pytest.raises(NotSupported, match="share memory"):
        into(torch.zeros(1).expand(4), torch.zeros(1).expand(4), x[:4], False)


@pytest.mark.parametrize("name, diagonal", list(itertools.product(("tril", "triu"), (0, 3, -2, 9))))
def test_triangles_agree_with_torch(name, diagonal):
    matrices = torch.randn(2, 7, 21)
    for x in (matrices, matrices.mT, matrices[:, ::2], matrices.expand(3, 2, 7, 21)[:, 0]):
        agree(name, x, diagonal)
    y = matrices.clone()
    assert torch.equal(impl_of(name).into(y, y, diagonal), getattr(torch, name)(matrices, diagonal))


@pytest.mark.parametrize("pad", [[1, 2], [0, 0, 3, 1], [-1, 2, -2, -1], [1, 1, 1, 1, 1, 1], [2, -2]])
def test_padding_agrees_with_torch(pad):
    agree("constant_pad_nd", X, pad, 1.5)
    agree("constant_pad_nd", X.to(torch.int32).transpose(0, 2), pad, 3)


def test_roll_flip_and_rot90_agree_with_torch():
    for shifts, dims in (([7], []), ([2, -1, 9], [0, 1, 2]), ([1, 1], [0, 0]), ([0], [1])):
        agree("roll", X, shifts, dims)
    for k in range(-1, 4):
        agree("rot90", X, k, [0, 2])
    agree("flip", X.transpose(0, 2)[:, ::2], [0, 1])
    agree("flip", torch.tensor(3.0), [])


def test_numbers_out_of_range_fall_back_to_torch():
    for dtype, value in ((torch.int8, 200), (torch.float16, 1e6), (torch.float32, 1e39)):
        with pytest.raises(NotSupported):
            moves.number_for(dtype)(value)
        with pytest.raises(RuntimeError):
            torch.empty(2, dtype=dtype).fill_(value)
    for dtype, value in ((torch.int32, 2.7), (torch.float16, float("inf")), (torch.bool, 0.5), (torch.int64, True)):
        agree("full", [3], value, dtype=dtype)


def test_ranges_agree_with_torch():
    for args in ((0, 10), (3, -5, -2), (0.5, 4.0), (0, 1, 0.3), (2, 2), (5, 0, -1.5)):
        agree("arange", *args)
    agree("arange", 0, 7.5, 2, dtype=torch.int64)
    agree("arange", 0, 7.5, dtype=torch.int32)
    agree("linspace", 0, 1, 1)
    agree("linspace", 0, 1, 0)
    for bad in ((0, -1, 1), (0, 1, 0), (0, float("nan"), 1)):
        with pytest.raises(NotSupported):
            impl_of("arange").fn(*bad)
    y = torch.empty(10)[::2]
    assert torch.equal(impl_of("arange").into(y, 0, 5, 1, None, None, None, None), torch.arange(0.0, 5.0))
    with pytest.raises(NotSupported):  # torch resizes out and warns
        impl_of("arange").into(y, 0, 6, 1, None, None, None, None)


def test_mismatched_results_and_arguments_fall_back_to_torch():
    for name, out, args in (
        ("cat", torch.empty(3), ([X, X], 0)),
        ("flip", torch.empty(3, 4, 5, dtype=torch.float64), (X, [0])),
        ("full", torch.empty(2), ([3], 1.0, None, None, None, None)),
        ("eye", torch.empty(2, 3), (2, None, None, None, None, None)),
    ):
        with pytest.raises(NotSupported, match="out is"):
            impl_of(name).into(out, *args)
    for name, args in (("cat", ([X, X[0]], 0)), ("flip", (X, [5])), ("t_copy", (X[0].to(torch.complex64),))):
        with pytest.raises(NotSupported):
            impl_of(name).fn(*args)


def test_repeat_interleave_agrees_with_torch():
    for repeats in ([0, 3, 0, 1], [5], [0, 0]):
        agree("repeat_interleave", torch.tensor(repeats))
    with pytest.raises(NotSupported):
        impl_of("repeat_interleave").fn(torch.tensor([1, -1, 2]))


@pytest.mark.parametrize(
    "name, more",
    [
        ("select_scatter", (1, 2)),
        ("slice_scatter", (1, 1, 4, 1)),
        ("diagonal_scatter", (1, 0, 1)),
        ("as_strided_scatter", ([4], [6], 0)),
    ],
)
def test_a_source_of_another_shape_falls_back_to_torch(name, more):
    """torch raises an error, while our kernel would broadcast the source or read out of bounds."""
    x = torch.zeros(5, 5)
    native = getattr(torch, name)
    part = {"select_scatter": (5,), "slice_scatter": (5, 3)}.get(name, (4,))
    same(impl_of(name).fn(x, torch.ones(part), *more), native(x, torch.ones(part), *more), name)
    for shape in ((1,), (1, 1), (7,), (0,), (*part[:-1], 1)):
        with pytest.raises(RuntimeError):
            native(x, torch.ones(shape), *more)
        with pytest.raises(NotSupported):
            impl_of(name).fn(x, torch.ones(shape), *more)
