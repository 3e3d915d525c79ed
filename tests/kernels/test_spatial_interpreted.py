"""Convolution, pooling, padding and resampling in the interpreter, against torch's own ops: values, dtypes, strides."""

from __future__ import annotations

import pytest
import torch

from opmux.core import BackendImplKind, get_default_manager, specs

pytest.importorskip("triton")

MODE = "interpret"
CPU = torch.device("cpu")
FAMILIES = ("convolution", "grid_sampler", "padding", "pooling", "rnn", "upsample")
DTYPES = (torch.bfloat16, torch.float16, torch.float64)


def collect():
    for family in FAMILIES:
        specs.load_implementers(family)
    manager = get_default_manager()
    manager.prepare()
    for spec in specs:
        if spec.family in FAMILIES:
            impls = manager.registry.get_implementations(spec.key) or []
            ours = [i for i in impls if i.kind is BackendImplKind.DEFAULT and i.vendor is None]
            assert len(ours) == 1, f"{spec.name} has no kernel"
            yield spec, ours[0]


OPS = list(collect())


def strides(t):
    """The strides of all dimensions with more than one element; other strides do not matter."""
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]


def agrees(spec, impl, sample):
    got, want = (r if isinstance(r, tuple) else (r,) for r in (impl.fn(*sample.args), spec.reference(*sample.args)))
    for a, b in zip(got, want, strict=True):
        if b is None:
            assert a is None
            continue
        assert a.dtype == b.dtype and strides(a) == strides(b)
        tol = spec.tol.get(b.dtype)  # indices must be equal
        close = dict(rtol=tol.rtol, atol=tol.atol) if tol else dict(rtol=0, atol=0)
        torch.testing.assert_close(a, b, **close, msg=lambda m: f"{spec.name} {sample.id}: {m}")


@pytest.mark.few(33)
@pytest.mark.parametrize("number, op", list(enumerate(OPS)), ids=[s.name for s, _ in OPS])
def test_samples_agree_with_torch(number, op, slow):
    """Tests two samples in float32 and one in a rotating dtype; with --slow all samples in all dtypes."""
    spec, impl = op
    for dtype in (torch.float32, *(DTYPES if slow else [DTYPES[number % 3]])):
        samples = list(spec.samples(dtype, CPU))
        few = [samples[number % len(samples)], samples[-1]] if dtype is torch.float32 else samples[:1]
        for sample in samples if slow else few:
            agrees(spec, impl, sample)


def find(name):
    return next(row for row in OPS if row[0].name == name)


@pytest.mark.parametrize("name", ["max_pool2d_with_indices", "adaptive_max_pool2d"])
def test_max_pooling_handles_nan_and_infinities(name):
    """NaN is the maximum; in a window of only -inf, the first index is the result."""
    x = torch.full((1, 2, 4, 4), float("-inf"))
    x[0, 0, 1, 2] = float("nan")
    x[0, 1, 2, 3] = float("inf")
    spec, impl = find(name)
    args = (x, [2, 2], [2, 2], [0, 0], [1, 1], False) if "with" in name else (x, [2, 2])
    for a, b in zip(impl.fn(*args), spec.reference(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_each_gradient_of_a_convolution_can_be_computed_alone():
    """The output mask selects one gradient at a time."""
    spec, impl = find("convolution_backward")
    *args, _ = next(iter(spec.samples(torch.float32, CPU))).args
    want = spec.reference(*args, [True, True, True])
    for i in range(3):
        got = impl.fn(*args, [k == i for k in range(3)])
        assert [t is None for t in got] == [k != i for k in range(3)]
        torch.testing.assert_close(got[i], want[i], rtol=1e-4, atol=1e-4)


def test_tf32_rounds_operands_instead_of_truncating(monkeypatch):
    """cuDNN rounds in the same way. The interpreter's product is exact. NaN with any payload stays NaN."""
    from opmux.kernels import convolution
    from opmux.kernels.lib.plans import forget

    monkeypatch.setattr(convolution, "_factors", lambda t, precise: "tf32")
    forget()
    x = torch.full((1, 16, 4, 4), 1 + 3 * 2.0**-12)  # between 1 and 1 + 2^-10, closer to 1 + 2^-10
    x[0, 0, 0, 0] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    y = find("convolution")[1].fn(x, torch.ones(16, 16, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    forget()
    assert y[0, :, 0, 0].isnan().all() and (y[0, :, 1:] == 16 * (1 + 2.0**-10)).all()


def test_calls_that_torch_rejects_are_declined():
    from opmux.core.errors import NotSupported

    x = torch.randn(1, 2, 4, 4)
    for name, args in {
        "reflection_pad2d": (x, [4, 0, 0, 0]),
        "avg_pool2d": (x, [2, 2], [2, 2], [2, 2], False, True, None),
        "convolution": (x, torch.randn(3, 5, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        "max_pool2d_with_indices": (x.to(torch.int32), [2, 2], [2, 2], [0, 0], [1, 1], False),
    }.items():
        with pytest.raises(NotSupported):
            find(name)[1].fn(*args)
