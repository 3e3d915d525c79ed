"""Casts to float8 as kernels make them: bit for bit torch's, amax raised and never lowered, every way through a row."""

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

MODE = "interpret"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MOST = {E4M3: 448.0, E5M2: 57344.0}


@triton.jit
def cast_all(x_ptr, y_ptr, n, CAST: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, CAST(tl.load(x_ptr + o, mask=o < n, other=0.0)), mask=o < n)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_casts_are_torchs_bit_for_bit(dtype):
    """All float32 with their last 16 bits zero, all float8 numbers, the middles between them and their neighbours."""
    every = torch.arange(1 << 16, dtype=torch.int32).mul(1 << 16).view(torch.float32)
    grid = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    grid = grid[grid.isfinite()].sort().values
    middles = (grid[1:] + grid[:-1]) / 2
    inf = torch.tensor(float("inf"))
    x = torch.cat([every, grid, middles, middles.nextafter(inf), middles.nextafter(-inf), torch.tensor([1e-45, -0.0])])
    want = x.clamp(-MOST[dtype], MOST[dtype]).to(dtype).view(torch.uint8)
    got = torch.full_like(want, 0x55)
    cast_all[(triton.cdiv(len(x), 8192),)](x, got, len(x), fp8.CASTS[dtype][0], 8192)  # the other one is PTX
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


def both(name, given, scale, before, dtype=E4M3):
    """What the kernel and the reference make of the same, and what becomes of amax."""
    runs = []
    for fn in (KERNELS[name], specs.by_key[f"opmux::{name}"].reference):
        amax = torch.full((1,), before)
        runs.append((*fn(*given, torch.full((1,), scale), amax, dtype, *tail(name)), amax))
    return runs


def near(got, want):
    """Bytes may be neighbours, where a value lies on an edge; hardly any are. The sign of a NaN is nobody's."""
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
def test_amax_leaves_nan_out_and_not_infinity(name):
    given = arguments(name)
    x = given[0]
    x[0, 0], x[3, 1] = float("nan"), float("inf") if "norm" not in name else 1e30
    got, want = both(name, given, 3.0, 0.0)
    near([got[0], got[-1]], [want[0], want[-1]])
    assert got[0].view(E4M3).float().isnan().any()


@pytest.mark.parametrize("n", [5000, 33000])
@pytest.mark.parametrize("name", ["rms_norm_fp8", "layer_norm_fp8"])
def test_long_rows(name, n):
    near(*both(name, arguments(name, n, 2), 2.0, 0.0, E5M2))


@pytest.mark.parametrize("name", ["rms_norm_fp8", "layer_norm_fp8"])
def test_a_group_of_one(name, monkeypatch):
    choose = lambda n, dtype, centred: Tiles(128, BLOCK_N=128, PER_CORE=1)
    monkeypatch.setattr(norm.forward_cooperative_tiles, "default", choose)
    monkeypatch.setattr(norm, "can_cooperate", lambda wide: True)
    monkeypatch.setattr(norm, "FORWARD_TEAM", 0)
    forget()
    near(*both(name, arguments(name, 100, 20), 2.0, 0.0))
    forget()


def test_rows_beyond_the_last_do_not_count():
    """With an eps of 0 they are NaN, and with one of their bias alone they may be large."""
    x, w = torch.ones(3, 16), torch.full((16,), 0.5)
    y, _, _ = KERNELS["rms_norm_fp8"](x, w, torch.ones(1), amax := torch.zeros(1), E4M3, 0.0, 0.0)
    assert amax == 0.5 and (y.view(E4M3).float() == 0.5).all()


@pytest.mark.parametrize("shape", [(3, 5000), (700, 24), (2050, 4)])
def test_factors_of_wide_and_narrow_rows(shape):
    """More columns than a block, and more rows."""
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
