"""Kernels that cast to float8 when they store: their bits equal torch's, they never lower amax, and every row algorithm
works.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from opmux.core import specs
from opmux.kernels import norm, wrappers
from opmux.kernels.activation import scaled
from opmux.kernels.lib import fp8
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget
from opmux.specs import quant

MODE = "interpret"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MOST = {E4M3: 448.0, E5M2: 57344.0}


@triton.jit
def cast_all(x_ptr, y_ptr, n, CAST: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, CAST(tl.load(x_ptr + o, mask=o < n, other=0.0)), mask=o < n)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_casts_equal_torchs_bit_for_bit(dtype):
    """Tests all float32 values whose last 16 bits are zero, all float8 values, the midpoints between float8 values, and
    the neighbours of these.
    """
    every = torch.arange(1 << 16, dtype=torch.int32).mul(1 << 16).view(torch.float32)
    grid = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    grid = grid[grid.isfinite()].sort().values
    middles = (grid[1:] + grid[:-1]) / 2
    inf = torch.tensor(float("inf"))
    x = torch.cat([every, grid, middles, middles.nextafter(inf), middles.nextafter(-inf), torch.tensor([1e-45, -0.0])])
    want = x.clamp(-MOST[dtype], MOST[dtype]).to(dtype).view(torch.uint8)
    got = torch.full_like(want, 0x55)
    # Triton kernels cast with a PTX instruction on chips that have it; the interpreter runs the cast in integer
    # arithmetic.
    cast_all[(triton.cdiv(len(x), 8192),)](x, got, len(x), fp8.CASTS[dtype][0], 8192)
    nan = x.isnan()
    assert torch.equal(got[~nan], want[~nan]) and got[nan].view(dtype).float().isnan().all()


def arguments(name, n=64, rows=5):
    g = torch.Generator().manual_seed(5)
    draw = lambda *s: torch.randn(*s, generator=g).bfloat16()
    return {
        "rms_norm_fp8": (draw(rows, n), draw(n)),
        "layer_norm_fp8": (draw(rows, n), draw(n), draw(n)),
        "act_fp8": (draw(rows, n),),
        "act_bwd_fp8": (draw(rows, n), draw(rows, n)),
        "act_bias_bwd_fp8": (draw(rows, n), draw(rows, n)),
        "glu_fp8": (draw(rows, 2 * n),),
        "glu_bwd_fp8": (draw(rows, n), draw(rows, 2 * n)),
    }[name]


def tail(name):
    return (1e-6, 0.0) if "norm" in name else ("gelu",)


KERNELS = {
    k.removeprefix("opmux::"): fn for k, fn in wrappers().items() if k.startswith("opmux::") and k.endswith("_fp8")
}
NAMES = sorted(KERNELS)


def both(name, args, scale, before, dtype=E4M3):
    """Return results and amax of the kernel and of the reference."""
    runs = []
    for fn in (KERNELS[name], specs.by_key[f"opmux::{name}"].reference):
        amax = torch.full((1,), before)
        runs.append((*fn(*args, torch.full((1,), scale), amax, dtype, *tail(name)), amax))
    return runs


def near(got, want):
    """Assert that few bytes differ, and only by one, because a value may be at a rounding boundary. Ignores the sign of
    NaN.
    """
    a, b = (torch.where(t.int() & 0x7F == 0x7F, 0x7F, t.int()) for t in (got[0], want[0]))
    assert got[0].dtype is torch.uint8 and (a - b).abs().max() <= 1 and (a != b).float().mean() < 1e-3
    for g, w in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(g, w, rtol=1.6e-2 if g.dtype is torch.bfloat16 else 2e-6, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_amax_is_raised_and_never_lowered(name):
    for before in (0.0, 1e-3, 1e4):
        got, want = both(name, arguments(name), 3.0, before)
        near(got, want)
        assert got[-1] >= before and (got[-1] == 1e4) == (before == 1e4)


@pytest.mark.parametrize("name", NAMES)
def test_amax_ignores_nan_but_not_infinity(name):
    args = arguments(name)
    x = args[0]
    x[0, 0], x[3, 1] = float("nan"), float("inf") if "norm" not in name else 1e30
    got, want = both(name, args, 3.0, 0.0)
    near([got[0], got[-1]], [want[0], want[-1]])
    assert got[0].view(E4M3).float().isnan().any()


@pytest.mark.parametrize("n", [5000, 33000])
@pytest.mark.parametrize("name", ["rms_norm_fp8", "layer_norm_fp8"])
def test_long_rows_agree_with_the_reference(name, n):
    near(*both(name, arguments(name, n, 2), 2.0, 0.0, E5M2))


@pytest.mark.parametrize("name", ["rms_norm_fp8", "layer_norm_fp8"])
def test_a_group_of_one_program_agrees_with_the_reference(name, monkeypatch):
    choose = lambda n, dtype, centred: Tiles(128, BLOCK_N=128, PER_CORE=1)
    monkeypatch.setattr(norm.forward_cooperative_tiles, "default", choose)
    monkeypatch.setattr(norm, "can_cooperate", lambda wide: True)
    monkeypatch.setattr(norm, "COOPERATIVE_FROM", 0)
    forget()
    near(*both(name, arguments(name, 100, 20), 2.0, 0.0))
    forget()


def test_rows_out_of_bounds_do_not_count():
    """With eps = 0 the padding lanes compute NaN, and with only a bias they may compute large values."""
    x, w = torch.ones(3, 16), torch.full((16,), 0.5)
    y, _, _ = KERNELS["rms_norm_fp8"](x, w, torch.ones(1), amax := torch.zeros(1), E4M3, 0.0, 0.0)
    assert amax == 0.5 and (y.view(E4M3).float() == 0.5).all()


@pytest.mark.parametrize("shape", [(3, 5000), (700, 24), (2050, 4)])
def test_row_factors_work_for_wide_and_narrow_rows(shape):
    """Tests more columns than fit in a block, and more rows than fit in a block."""
    g = torch.Generator().manual_seed(7)
    dy, x = torch.randn(shape, generator=g), torch.randn(*shape[:-1], 2 * shape[-1], generator=g)
    s = torch.rand(shape[0], generator=g)
    for name, args in {
        "clamped_glu": (x, s, 0.9, 1.2, 0.5, 4),
        "clamped_glu_bwd": (dy, x, s, 0.9, 1.2, 0.5, 4),
        "situ_glu_bwd": (dy, x, None, 1.5, 3.0, 0),
        "srelu_scaled_bwd": (dy, x[:, : shape[-1]], s),
    }.items():
        spec = specs.by_key[f"opmux::{name}"]
        got, want = getattr(scaled, name)(*args), spec.reference(*args)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-4)


# ---- fused quantization: the same bits as in two passes --------------------------------------------------------------

EVERY = {k.removeprefix("opmux::"): fn for k, fn in wrappers().items() if k.startswith("opmux::")}
FORMS = {"": (False, False), "_bwd": (False, True), "_glu": (True, False), "_glu_bwd": (True, True)}


def buffers(shape, kind, two_d=False):
    """Create the buffers for bytes, scales and transposes, filled with values that no kernel writes."""
    fresh = lambda s, dtype=torch.uint8: torch.full(s, 0x55, dtype=dtype)
    if kind == "mx":
        return [b for columnwise in (False, True) for b in (fresh(shape), fresh(quant.mx_scales(shape, columnwise)))]
    if kind != "blocks":
        return [fresh(shape), fresh(quant.transposed_shape(shape)), torch.zeros(1)]
    scales = [fresh(quant.block_scales(shape, two_d, way), torch.float32) for way in (False, True)]
    return [fresh(shape), scales[0], fresh(quant.transposed_shape(shape)), scales[1]]


def equal(got, want):
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def operands(form, m=150, n=72):
    g, (gated, backward) = torch.Generator().manual_seed(9), FORMS[form]
    x = torch.randn(m, 2 * n if gated else n, generator=g).bfloat16()
    return x, torch.randn(m, n, generator=g).bfloat16() if backward else None, gated


@pytest.mark.parametrize("two_d", [False, True], ids=["1x128", "128x128"])
@pytest.mark.parametrize("form", FORMS)
def test_block_scaled_activations_equal_two_passes(form, two_d):
    x, dy, gated = operands(form)
    r = EVERY[f"silu{form}"](*((x,) if dy is None else (dy, x)))
    want, got = buffers(r.shape, "blocks", two_d), buffers(r.shape, "blocks", two_d)
    EVERY["fp8_blocks_into"](r, *want, None, E4M3, two_d, True, 0.0)
    EVERY["act_fp8_blocks_into"](x, dy, *got, None, E4M3, "silu", gated, two_d, True, 0.0)
    equal(got, want)


@pytest.mark.parametrize("two_d", [False, True], ids=["1x32", "32x32"])
@pytest.mark.parametrize("form", FORMS)
def test_mxfp8_activations_equal_two_passes(form, two_d):
    """The boundary between the two halves of a gradient may be within a block."""
    x, dy, gated = operands(form, m=96, n=304 if form == "_glu_bwd" else 288)
    r = EVERY[f"silu{form}"](*((x,) if dy is None else (dy, x)))
    want, got = buffers(r.shape, "mx"), buffers(r.shape, "mx")
    EVERY["mxfp8_into"](r, *want, None, E4M3, two_d)
    EVERY["act_mxfp8_into"](x, dy, *got, None, E4M3, "silu", gated, two_d)
    equal(got, want)


def test_activations_that_are_not_0_at_0_ignore_padding():
    """The amax of the last blocks ignores elements out of bounds."""
    x = torch.full((150, 72), -6.0).bfloat16()
    want, got = buffers(x.shape, "blocks"), buffers(x.shape, "blocks")
    EVERY["fp8_blocks_into"](x.sigmoid(), *want, None, E4M3, False, True, 0.0)
    EVERY["act_fp8_blocks_into"](x, None, *got, None, E4M3, "sigmoid", False, False, True, 0.0)
    equal(got, want)


@pytest.mark.parametrize("form", FORMS)
def test_current_scaled_activations_equal_two_passes(form):
    x, dy, gated = operands(form)
    r = EVERY[f"gelu_tanh{form}"](*((x,) if dy is None else (dy, x)))
    want, got = buffers(r.shape, "current"), buffers(r.shape, "current")
    EVERY["fp8_current_into"](r, *want, None, E5M2, False, 0.0)
    EVERY["act_fp8_current_into"](x, dy, *got, None, E5M2, "gelu_tanh", gated, False, 0.0)
    equal(got, want)


@pytest.mark.parametrize("form", FORMS)
def test_delayed_scaled_activations_equal_two_passes(form):
    """The bytes equal those of the op without a transposed result; the transpose has the same bytes."""
    x, dy, gated = operands(form)
    scale, amaxes = torch.full((1,), 3.0), [torch.zeros(1), torch.zeros(1)]
    name = ("glu" if gated else "act") + ("_bwd_fp8" if dy is not None else "_fp8")
    y, inverse = EVERY[name](*((x,) if dy is None else (dy, x)), scale, amaxes[0], E4M3, "silu")
    got = buffers(y.shape, "delayed")
    EVERY["act_fp8_cast_into"](x, dy, scale, *got, amaxes[1], None, E4M3, "silu", gated)
    equal([*got, amaxes[1]], [y, y.t(), inverse, amaxes[0]])


@pytest.mark.parametrize("act", ["none", "srelu"])
@pytest.mark.parametrize("kind", ["delayed", "current", "blocks", "mx"])
def test_bias_sums_equal_two_passes(kind, act):
    x, dy, _ = operands("_bwd", *((320, 96) if kind == "mx" else (300, 72)))
    dy = None if act == "none" else dy
    r = x.float() if dy is None else dy.float() * 2 * x.float().relu()
    got, dbias = buffers(x.shape, kind), torch.full((x.shape[1],), float("nan"), dtype=x.dtype)
    if kind == "delayed":
        EVERY["act_fp8_cast_into"](x, dy, torch.ones(1), *got, None, dbias, E4M3, act, False)
    elif kind == "mx":
        EVERY["act_mxfp8_into"](x, dy, *got, dbias, E4M3, act, False, False)
    else:
        rest = (False, True, 0.0) if kind == "blocks" else (True, 0.0)
        EVERY[f"act_fp8_{kind}_into"](x, dy, *got, dbias, E4M3, act, False, *rest)
    torch.testing.assert_close(dbias, r.sum(0).bfloat16(), rtol=1e-2, atol=1e-5)


def norm_of(x, centred):
    """The weight, the bias (None for RMS norm), and the norm's result and statistics."""
    g = torch.Generator().manual_seed(3)
    w, b = (torch.randn(x.shape[-1], generator=g).to(x.dtype) for _ in range(2))
    if centred:
        y, *stats = EVERY["layer_norm"](x, w, b, 1e-5, 1.0)
    else:
        y, *stats = EVERY["rms_norm"](x, w, 1e-5, 1.0, "gemma")
    return w, b if centred else None, y, stats


@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("kind", ["current", "1x128", "128x128", "1x32", "32x32"])
def test_norms_equal_two_passes(kind, centred):
    x = torch.randn(160, 224, generator=torch.Generator().manual_seed(3)).bfloat16()
    w, b, y, stats = norm_of(x, centred)
    form, two_d = {"current": "current", "1x32": "mx", "32x32": "mx"}.get(kind, "blocks"), kind in ("128x128", "32x32")
    want, got = (buffers(x.shape, form, two_d) for _ in range(2))
    amax = torch.zeros(1) if kind == "current" else None
    args = (x, w, b, amax) if centred else (x, w, amax)
    our_stats = EVERY["layer_norm_stats" if centred else "rms_norm_stats"](*args, 1e-5, 1.0)
    our_stats = our_stats if centred else (our_stats,)
    equal(our_stats, stats)
    parts = (x, w, b, our_stats[0] if centred else None, our_stats[-1])
    if form == "blocks":
        EVERY["fp8_blocks_into"](y, *want, None, E4M3, two_d, True, 0.0)
        EVERY["norm_fp8_blocks_into"](*parts, *got, E4M3, 1.0, two_d, True, 0.0)
    elif form == "mx":
        EVERY["mxfp8_into"](y, *want, None, E4M3, two_d)
        EVERY["norm_mxfp8_into"](*parts, *got, E4M3, 1.0, two_d)
    else:
        assert amax == y.float().abs().max()
        EVERY["fp8_current_into"](y, *want, None, E4M3, False, 0.0)
        EVERY["norm_fp8_current_into"](*parts, amax, *got, E4M3, 1.0, False, 0.0)
    equal(got, want)


# With 5 and 70 columns a row is shorter than a 128-block; 16512 columns of float32 do not even fit in one program.
ROWS = {"1x128": (5, 70, 224, 4128, 16512), "1x32": (32, 224, 4128, 16512)}


@pytest.mark.few(6)
@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("kind, n", [(kind, n) for kind, sizes in ROWS.items() for n in sizes])
def test_row_quantized_norms_equal_two_passes(kind, n, centred):
    rows = 32 if kind == "1x32" else 3 if n > 5000 else 70
    x = torch.randn(rows, 2 * n, generator=torch.Generator().manual_seed(n))
    x = (x if n > 5000 else x.bfloat16())[:, :n]  # rows with gaps
    x = x.contiguous() if n == 4128 else x
    w, b, y, stats = norm_of(x, centred)
    want, got = (buffers(x.shape, "mx" if kind == "1x32" else "blocks")[:2] for _ in range(2))
    if kind == "1x32":
        EVERY["mxfp8_into"](y, *want, None, None, None, E4M3, False)
    else:
        EVERY["fp8_blocks_into"](y, *want, None, None, None, E4M3, False, False, 0.5)
    args = (x, w, b) if centred else (x, w)
    results = EVERY[f"{'layer' if centred else 'rms'}_norm_fp8_blocks_into"](*args, *got, E4M3, 1e-5, 1.0, False, 0.5)
    equal(results if centred else (results,), stats)
    equal(got, want)
