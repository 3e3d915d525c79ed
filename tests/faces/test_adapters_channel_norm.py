"""ATen adapters of group, batch and weight norm: results match ATen's overloads, and unsupported calls go to torch."""

import itertools

import pytest
import torch

FAMILY = "channel_norm"
aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES, torch.float64)
MASKS = list(itertools.product((True, False), repeat=3))
last = torch.channels_last


def per_channel(dtype, *present, c=6):
    """Random weight, bias, running mean and (positive) running variance; None where `present` is false."""
    tensors = [torch.randn(c, dtype=dtype) if w else None for w in present]
    return [t if i < 3 or t is None else t.abs() + 0.5 for i, t in enumerate(tensors)]


def test_adapter_signatures_match_aten(adapters):
    assert adapters.signatures_are_atens()
    forwards = "native_group_norm native_batch_norm _weight_norm_interface".split()
    others = {"", ".no_stats", "_no_training"}
    assert set(adapters.table) == {
        *forwards, *(f"{n}_backward" for n in forwards), *(f"_native_batch_norm_legit{o}" for o in others),
        "native_batch_norm.out",
    }  # fmt: skip


def test_batch_norm_out_overloads_that_change_statistics_stay_with_torch():
    """An `out` overload derived from ours would check `out` only after it had changed the running statistics."""
    from opmux.faces.aten.overloads import table

    assert table()["native_batch_norm.out"].adapter.name == "native_batch_norm.out"


# ---- group norm -----------------------------------------------------------------------------------------------------


def group(adapters, x, groups, weight, bias, masks=([True] * 3,)):
    n, c, positions = x.shape[0], x.shape[1], x.shape[2:].numel()
    served = adapters.agrees("native_group_norm", x, weight, bias, n, c, positions, groups, 1e-5)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, n, c, positions, groups, 1e-5)
    dy = torch.randn_like(x)
    for dx, dw, db in masks:
        mask = [dx, dw and weight is not None, db and weight is not None]
        served += adapters.agrees(
            "native_group_norm_backward", dy, x, mean, rstd, weight, n, c, positions, groups, mask
        )
    return served == 1 + len(masks)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_matches_aten(dtype, adapters):
    weight, bias = per_channel(dtype, True, True)
    shapes = (((2, 6, 4, 5), 3), ((3, 6), 2), ((2, 6, 7), 6), ((1, 6, 5), 1))
    for shape, groups in shapes if dtype is torch.float32 else shapes[:1]:
        assert group(adapters, torch.randn(shape, dtype=dtype), groups, weight, bias)
    assert group(adapters, torch.randn(2, 6, 4, 5, dtype=dtype).contiguous(memory_format=last), 3, weight, bias)
    if dtype in HALVES:
        assert group(adapters, torch.randn(2, 6, 4, 5, dtype=dtype), 3, weight.float(), bias.float())


def test_group_norm_needs_no_weight_or_bias(adapters):
    x, (weight, bias) = torch.randn(2, 6, 5), per_channel(torch.float32, True, True)
    assert group(adapters, x, 3, weight, bias, MASKS)
    assert group(adapters, x, 3, None, None) and group(adapters, x, 3, weight, None)
    assert adapters.agrees("native_group_norm", x, None, bias, 2, 6, 5, 3, 1e-5)


def test_group_norm_leaves_invalid_calls_to_torch(adapters):
    x, (w, b) = torch.randn(2, 6, 4, 5), per_channel(torch.float32, True, True)
    for t, weight, bias, *sizes in (
        (x, w, b, 2, 6, 20, 4),  # channels not divisible by the groups
        (x, w, b, 2, 6, 20, 0),
        (x, w[:3], b, 2, 6, 20, 3),
        (x, w, b[:3], 2, 6, 20, 3),
        (x, w.double(), b.double(), 2, 6, 20, 3),
        (x.transpose(2, 3), w, b, 2, 6, 20, 3),
        (x[:0], w, b, 0, 6, 20, 3),
        (x, w, b, 6, 2, 20, 1),
        (x.int(), None, None, 2, 6, 20, 3),
        (x.to(torch.complex64), None, None, 2, 6, 20, 3),
    ):
        assert adapters.declines("native_group_norm", t, weight, bias, *sizes, 1e-5)
    _, mean, rstd = aten.native_group_norm(x, w, b, 2, 6, 20, 3, 1e-5)
    rest, backward = (2, 6, 20, 3, [True] * 3), "native_group_norm_backward"
    assert adapters.declines(backward, x, x, mean, rstd, None, *rest)
    assert adapters.declines(backward, x.double(), x, mean, rstd, w, *rest)
    assert adapters.declines(backward, x[:1], x, mean, rstd, w, *rest)
    assert adapters.declines(backward, x, x, mean[:1], rstd, w, *rest)
    assert adapters.faults_are_no_refusals("native_group_norm", x, w, b, 2, 6, 20, 3, 1e-5)
    assert adapters.faults_are_no_refusals(backward, x, x, mean, rstd, w, *rest)


def test_group_norm_on_other_chips_declines_channels_last_input(adapters, monkeypatch):
    """On other chips ATen's op takes no channels-last tensor, and statistics of 16-bit input have 16 bits."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    x = torch.randn(2, 6, 4, 5, dtype=torch.bfloat16)
    assert adapters.declines("native_group_norm", x.contiguous(memory_format=last), None, None, 2, 6, 20, 3, 1e-5)
    assert {t.dtype for t in adapters.run("native_group_norm", x, None, None, 2, 6, 20, 3, 1e-5)} == {torch.bfloat16}


# ---- batch norm -----------------------------------------------------------------------------------------------------

LAYOUTS = {
    "flat": lambda dtype: torch.randn(7, 6, dtype=dtype),
    "packed": lambda dtype: torch.randn(3, 6, 4, 5, dtype=dtype),
    "channels last": lambda dtype: torch.randn(3, 6, 4, 5, dtype=dtype).contiguous(memory_format=last),
    "five": lambda dtype: torch.randn(2, 6, 2, 3, 2, dtype=dtype).contiguous(memory_format=torch.channels_last_3d),
}


def batch(adapters, x, weight, bias, mean, var, masks=([True] * 3,)):
    """Compare training, its gradient, and evaluation with ATen, including the running statistics."""
    names = ["native_batch_norm"] if mean is None else ["native_batch_norm", "_native_batch_norm_legit"]
    for name in names:
        assert adapters.agrees(name, x, weight, bias, mean, var, True, 0.3, 1e-3)
        if mean is not None:
            assert adapters.agrees(name, x, weight, bias, mean, var, False, 0.3, 1e-3)
    if mean is None:
        assert adapters.agrees("_native_batch_norm_legit.no_stats", x, weight, bias, True, 0.3, 1e-3)
    else:
        assert adapters.agrees("_native_batch_norm_legit_no_training", x, weight, bias, mean, var, 0.3, 1e-3)
    _, *statistics = aten.native_batch_norm(x, weight, bias, None, None, True, 0.3, 1e-3)
    for dx, dw, db in masks:
        mask = [dx, dw and weight is not None, db and weight is not None]
        args = (torch.randn_like(x), x, weight, mean, var, *statistics, True, 1e-3, mask)
        assert adapters.agrees("native_batch_norm_backward", *args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batch_norm_matches_aten(dtype, adapters):
    for layout in LAYOUTS if dtype is torch.float32 else ("packed", "channels last"):
        batch(adapters, LAYOUTS[layout](dtype), *per_channel(dtype, True, True, True, True))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_batch_norm_accepts_parameters_of_a_wider_dtype(dtype, adapters):
    x, params = torch.randn(3, 6, 4, 5, dtype=dtype), per_channel(torch.float32, True, True, True, True)
    batch(adapters, x, *params)
    halves = [p.to(dtype) for p in params]
    assert not adapters.agrees("native_batch_norm", x, *halves[:2], *params[2:], True, 0.1, 1e-5)


def test_batch_norm_needs_no_weight_bias_or_running_statistics(adapters):
    x = torch.randn(3, 6, 4)
    for w, b, running in ((False, False, False), (True, False, True), (False, True, True)):
        batch(adapters, x, *per_channel(torch.float32, w, b, running, running))
    batch(adapters, x, *per_channel(torch.float32, True, True, False, False), MASKS)


def test_batch_norm_updates_running_statistics_once(adapters, monkeypatch):
    x, (w, b, mean, var) = torch.randn(5, 6), per_channel(torch.float32, True, True, True, True)
    before = mean.clone(), var.clone()
    adapters.run("native_batch_norm", x, w, b, mean, var, True, 0.25, 1e-5)
    torch.testing.assert_close(mean, 0.75 * before[0] + 0.25 * x.mean(0))
    torch.testing.assert_close(var, 0.75 * before[1] + 0.25 * x.var(0))


def test_batch_norm_statistics_on_other_chips_match_cuda(adapters, monkeypatch):
    """As on CUDA, statistics are float32 for 16-bit input; in evaluation, they are the running statistics."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    x = torch.randn(3, 6, 4, dtype=torch.bfloat16)
    for wide in (torch.bfloat16, torch.float32):
        w, b, mean, var = per_channel(wide, True, True, True, True)
        _, *statistics = adapters.run("native_batch_norm", x, w.bfloat16(), b.bfloat16(), mean, var, True, 0.1, 1e-5)
        assert {t.dtype for t in statistics} == {torch.float32}
        _, saved, invstd = adapters.run("native_batch_norm", x, w, b, mean, var, False, 0.1, 1e-5)
        torch.testing.assert_close(saved, mean.float(), rtol=0, atol=0)
        torch.testing.assert_close(invstd, torch.rsqrt(var.float() + 1e-5))


def test_batch_norm_leaves_invalid_calls_to_torch(adapters):
    x, (w, b, mean, var) = torch.randn(3, 6, 4), per_channel(torch.float32, True, True, True, True)
    for t, *params in (
        (x[:1, :, :1], w, b, mean, var),  # a single value per channel
        (x[:0], w, b, mean, var),
        (x[0, 0], w, b, mean, var),
        (x[:, :5], w, b, mean, var),
        (x, w[:5], b, mean, var),
        (x, w, b, mean, None),
        (x, w, b.double(), mean, var),
        (x, w, b, mean.double(), var.double()),
        (x.transpose(0, 2), *per_channel(torch.float32, True, True, True, True)),
        (x.int(), None, None, None, None),
    ):
        assert adapters.declines("native_batch_norm", t, *params, True, 0.1, 1e-5)
    assert adapters.declines("native_batch_norm", x, w, b, None, None, False, 0.1, 1e-5)
    assert adapters.declines("native_batch_norm.out", x, w, b, mean, var, True, 0.1, 1e-5)
    assert adapters.declines("_native_batch_norm_legit.no_stats", x, w, b, False, 0.1, 1e-5)
    _, *statistics = aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    backward = "native_batch_norm_backward"
    assert adapters.declines(backward, x, x, w, mean, var, *statistics, False, 1e-5, [True] * 3)
    assert adapters.declines(backward, x, x, w, mean, var, None, None, True, 1e-5, [True] * 3)
    assert adapters.declines(backward, x, x, None, mean, var, *statistics, True, 1e-5, [True] * 3)
    assert adapters.declines(backward, x.double(), x, w, mean, var, *statistics, True, 1e-5, [True] * 3)
    assert adapters.declines(backward, x[:2], x, w, mean, var, *statistics, True, 1e-5, [True] * 3)
    assert adapters.faults_are_no_refusals("native_batch_norm", x, w, b, mean, var, True, 0.1, 1e-5)
    assert adapters.faults_are_no_refusals("_native_batch_norm_legit_no_training", x, w, b, mean, var, 0.1, 1e-5)
    assert adapters.faults_are_no_refusals(backward, x, x, w, mean, var, *statistics, True, 1e-5, [True] * 3)


# ---- weight norm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weight_norm_matches_aten(dtype, adapters):
    for shape, dim in (((6, 5), 0), ((6, 5), 1), ((4, 3, 5), 0), ((4, 3, 5), 2), ((3, 1000), 0)):
        v = torch.randn(shape, dtype=dtype)
        g = torch.randn([n if i == dim else 1 for i, n in enumerate(shape)], dtype=dtype)
        assert adapters.agrees("_weight_norm_interface", v, g, dim)
        _, norms = aten._weight_norm_interface(v, g, dim)
        assert adapters.agrees("_weight_norm_interface_backward", torch.randn_like(v), v, g, norms, dim)


def test_weight_norm_leaves_invalid_calls_to_torch(adapters):
    v, g = torch.randn(4, 3, 5), torch.randn(4, 1, 1)
    _, norms = aten._weight_norm_interface(v, g, 0)
    for v_, g_, dim in (
        (v, torch.randn(1, 3, 1), 1),
        (v, torch.randn(1, 1, 5), -1),
        (v, g, 3),
        (v, g.double(), 0),
        (v, g[:2], 0),
        (v.transpose(0, 2), torch.randn(5, 1, 1), 0),
        (v[:0], g[:0], 0),
        (v.int(), g.int(), 0),
        (torch.tensor(1.0), torch.tensor(1.0), 0),
    ):
        assert adapters.declines("_weight_norm_interface", v_, g_, dim)
        assert adapters.declines("_weight_norm_interface_backward", v_, v_, g_, norms, dim)
    assert adapters.declines("_weight_norm_interface_backward", v.double(), v, g, norms, 0)
    assert adapters.faults_are_no_refusals("_weight_norm_interface", v, g)
    assert adapters.faults_are_no_refusals("_weight_norm_interface_backward", v, v, g, norms, 0)


@pytest.mark.parametrize("op, least", (("nn.functional.group_norm", 4), ("nn.functional.batch_norm", 4)))
def test_channel_norms_match_aten_on_opinfo_samples(op, least, adapters):
    assert adapters.answers_pytorchs_samples(op) >= least
