"""ATen adapters of layer norm and RMS norm: results match ATen's own overloads, and unsupported calls go to torch."""

import itertools

import pytest
import torch

from opmux.core.held import HeldTensors
from opmux.faces.aten import norm

FAMILY = "norm"
aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES, torch.float64)
CASES = (((5, 16), 1), ((2, 3, 7), 1), ((2, 3, 7), 2), ((37,), 1), ((2, 3, 4, 5), 3), ((0, 4), 1), ((2, 1), 1))


def cases(dtype):
    return CASES if dtype is torch.float32 else CASES[1:3]


def drawn(shape, k, dtype, like=None):
    """x, normalized_shape, weight and bias; the dtype of weight and bias is `like`, or else that of x."""
    x = torch.randn(shape, dtype=dtype) * 2 + 1
    dims = list(shape[-k:])
    return x, dims, torch.randn(dims, dtype=like or dtype), torch.randn(dims, dtype=like or dtype)


def both(adapters, x, dims, weight, bias, masks=((True, True, True),)):
    """Whether a layer norm agrees with ATen in the forward and in all gradients that exist."""
    served = adapters.agrees("native_layer_norm", x, dims, weight, bias, 1e-5)
    _, mean, rstd = aten.native_layer_norm(x, dims, weight, bias, 1e-5)
    for dx, dw, db in masks:
        mask = [dx, dw and weight is not None, db and bias is not None]
        served += adapters.agrees(
            "native_layer_norm_backward", torch.randn_like(x), x, dims, mean, rstd, weight, bias, mask
        )
    return served == 1 + len(masks)


def test_adapter_signatures_match_aten(adapters):
    assert adapters.signatures_are_atens()
    forwards = {"native_layer_norm", "_fused_rms_norm"}
    assert set(adapters.table) == forwards | {f"{n}_backward" for n in forwards}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_matches_aten(dtype, adapters):
    for shape, k in cases(dtype):
        assert both(adapters, *drawn(shape, k, dtype))


def test_layer_norm_needs_no_weight_or_bias(adapters):
    for k, w, b in itertools.product((1, 2), (True, False), (True, False)):
        x, dims, weight, bias = drawn((2, 3, 7), k, torch.float32)
        assert both(adapters, x, dims, weight if w else None, bias if b else None)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_layer_norm_accepts_weights_of_a_wider_dtype(dtype, adapters):
    x, dims, weight, bias = drawn((2, 3, 7), 1, dtype, torch.float32)
    for w, b in ((weight, bias), (weight, None), (None, bias), (weight, bias.to(dtype)), (weight.to(dtype), bias)):
        if w is not None and (b is None or w.dtype is b.dtype):
            assert both(adapters, x, dims, w, b)
        served = adapters.agrees("native_layer_norm", x, dims, w, b, 1e-5)
        assert served == (len({t.dtype for t in (w, b) if t is not None}) == 1)


def test_layer_norm_accepts_any_strides(adapters):
    base, _, weight, bias = drawn((4, 6, 4, 8), 1, torch.float32)
    for x in (
        base.transpose(0, 2),
        base.contiguous(memory_format=torch.channels_last),
        base[:, ::2],
        base[0, 0, 0].expand(3, 8),
    ):
        assert both(adapters, x, [8], weight, bias)
        assert x.dim() < 4 or both(adapters, x, list(x.shape[2:]), None, None)


def test_layer_norm_backward_returns_none_for_masked_gradients(adapters):
    x, dims, weight, bias = drawn((3, 7), 1, torch.float32)
    masks = list(itertools.product((True, False), repeat=3))
    assert both(adapters, x, dims, weight, bias, masks)


def test_layer_norm_on_an_unknown_chip_returns_float32_statistics(adapters, monkeypatch):
    """As on CUDA, statistics are float32 for 16-bit input, and a weight of a wider dtype is declined."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    for k in (1, 2):
        x, dims, weight, bias = drawn((2, 3, 7), k, torch.bfloat16)
        for w in (weight, None):
            y, mean, rstd = adapters.run("native_layer_norm", x, dims, w, bias, 1e-5)
            assert y.dtype is torch.bfloat16 and mean.dtype is rstd.dtype is torch.float32
            assert mean.shape == rstd.shape == (*x.shape[:-k], *(1 for _ in dims))
            dx, *_ = adapters.run("native_layer_norm_backward", y, x, dims, mean, rstd, w, bias, [True, False, False])
            expected = torch.autograd.functional.vjp(
                lambda x, w=w, d=dims: torch.nn.functional.layer_norm(x, d, None if w is None else w.float()),
                x.float(),
                y.float(),
            )[1]
            torch.testing.assert_close(dx.float(), expected, rtol=3e-2, atol=3e-2)
        assert adapters.declines("native_layer_norm", x, dims, weight.float(), None, 1e-5)
        assert adapters.declines("_fused_rms_norm", x, dims, weight.float(), 1e-5)
        y, rstd = adapters.run("_fused_rms_norm", x, dims, weight, None)
        assert rstd.shape == mean.shape and rstd.dtype is torch.float32 and y.shape == x.shape


# ---- RMS norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", (None, 1e-2))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_matches_aten(dtype, eps, adapters):
    for shape, k in cases(dtype):
        x, dims, weight, _ = drawn(shape, k, dtype)
        x *= 1e-3  # small values, so that eps matters
        assert adapters.agrees("_fused_rms_norm", x, dims, weight, eps)
        assert adapters.agrees("_fused_rms_norm", x, dims, None, eps)


def test_rms_norm_accepts_wider_weights_and_any_strides(adapters):
    x, dims, weight, _ = drawn((2, 6, 4, 5), 1, torch.bfloat16, torch.float32)
    assert adapters.agrees("_fused_rms_norm", x, dims, weight, None)
    assert adapters.agrees("_fused_rms_norm", x.float().transpose(0, 1), dims, weight, None)
    assert not adapters.agrees("_fused_rms_norm", x.contiguous(memory_format=torch.channels_last), dims, weight, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_backward_matches_the_gradient_of_the_decomposition(dtype, adapters):
    """ATen has no RMS norm backward on the CPU, so differentiate the decomposed forward."""
    for (shape, k), bare in itertools.product(cases(dtype), (False, True)):
        x, dims, weight, _ = drawn(shape, k, dtype)
        leaves = [x.double().requires_grad_(), weight.double().requires_grad_()]
        y, rstd = aten._fused_rms_norm(leaves[0], dims, None if bare else leaves[1], 1e-5)
        dy = torch.randn_like(x)
        expected = torch.autograd.grad(y, leaves[: 1 if bare else 2], dy.double())
        stat = rstd.detach().to(torch.promote_types(dtype, torch.float32))
        args = (dy, x, dims, stat, None if bare else weight)
        got = adapters.run("_fused_rms_norm_backward", *args, [True, not bare])
        for a, b in zip(got, expected, strict=False):
            assert a.dtype is dtype and a.is_contiguous() and a.shape == b.shape
            torch.testing.assert_close(a.double(), b, rtol=2e-2, atol=3e-2)
        assert len(got) == 2 and (got[1] is None) == bare
        assert adapters.run("_fused_rms_norm_backward", *args, [False, False]) == (None, None)


def test_rms_norm_creates_its_weight_of_ones_once(adapters):
    x = torch.randn(3, 11)
    assert norm.ones(11, x.dtype, x) is norm.ones(11, x.dtype, x)
    assert norm.ones(11, torch.float64, x).dtype is torch.float64
    assert torch.equal(norm.ones(11, x.dtype, x), torch.ones(11))


def test_cache_of_ones_weights_drops_the_oldest_entry(monkeypatch):
    monkeypatch.setattr(norm, "_ones", HeldTensors(most=2))
    x = torch.randn(3)
    weights = [norm.ones(n, x.dtype, x) for n in (1, 2, 3)]
    assert [norm.ones(n, x.dtype, x) is t for n, t in zip((3, 2, 1), reversed(weights), strict=True)] == [
        True,
        True,
        False,
    ]


# ---- left to torch --------------------------------------------------------------------------------------------------


def test_norms_match_aten_on_opinfo_samples(adapters):
    assert adapters.answers_pytorchs_samples("nn.functional.layer_norm") >= 8


def test_norms_leave_invalid_calls_to_torch(adapters):
    x, w = torch.randn(3, 4), torch.randn(4)
    forwards = (
        (x, [3], w, w),  # weight shape differs from normalized_shape
        (x, [4], w[:3], w),
        (x, [4], w, w[:3]),
        (x, [4], w[None], w),
        (x, [2, 3, 4], None, None),
        (x, [], None, None),
        (x, [4], w.double(), w.double()),
        (x, [4], w, w.double()),
        (x.int(), [4], None, None),
        (x.to(torch.complex64), [4], None, None),
        (torch.tensor(1.0), [1], None, None),
        (torch.randn(3, 0), [0], None, None),
    )
    for x_, dims, weight, bias in forwards:
        assert not adapters.agrees("native_layer_norm", x_, dims, weight, bias, 1e-5)
        if bias is None or bias is w:
            assert adapters.declines("_fused_rms_norm", x_, dims, weight, 1e-5)
    _, mean, rstd = aten.native_layer_norm(x, [4], w, w, 1e-5)
    rest, backward = ([4], mean, rstd, w, w, [True] * 3), "native_layer_norm_backward"
    assert adapters.declines(backward, x.double(), x, *rest)
    assert adapters.declines(backward, x[:2], x, *rest, match="dy must have shape")
    assert adapters.declines(backward, x, x, [4], mean[:2], rstd, w, w, [True] * 3)
    assert adapters.declines(backward, x, x, [4], mean, rstd, None, w, [True] * 3)
    assert adapters.declines(backward, x, x, [4], mean, rstd, w, None, [True] * 3)
    assert adapters.declines("_fused_rms_norm_backward", x, x, [4], rstd, None, [True, True])
    assert adapters.declines("_fused_rms_norm_backward", x.double(), x, [4], rstd, w, [True, True])
    assert adapters.faults_are_no_refusals("native_layer_norm", x, [4], w, w, 1e-5)
    assert adapters.faults_are_no_refusals("native_layer_norm", x, [3, 4], None, None, 1e-5)
    assert adapters.faults_are_no_refusals("_fused_rms_norm", x, [4], w, 1e-5)
    assert adapters.faults_are_no_refusals(backward, x, x, *rest)
    assert adapters.faults_are_no_refusals("_fused_rms_norm_backward", x, x, [4], rstd, w, [True, True])
