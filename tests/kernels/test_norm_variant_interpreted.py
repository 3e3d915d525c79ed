"""Modulated RMS norm, PolyNorm, dynamic tanh and sparsemax, interpreted, beyond the samples: rows in pieces."""

from __future__ import annotations

import math

import pytest
import torch

from opmux.core import specs

pytest.importorskip("triton")
from opmux.kernels import norm_variant, sparsemax
from opmux.kernels.lib import plans
from opmux.kernels.lib.config import Tiles

MODE = "interpret"
N = 150  # columns: three pieces of 64


@pytest.fixture
def pieces(monkeypatch):
    for tiles in (norm_variant.row_tiles, sparsemax.tiles_of):
        monkeypatch.setattr(tiles, "default", lambda n, dtype: Tiles(64, BLOCK_N=64))
    plans.forget()
    yield
    plans.forget()


def agrees(name, *args):
    spec = specs.find(name)
    module = sparsemax if name.startswith("sparsemax") else norm_variant
    as_tuple = lambda result: result if isinstance(result, tuple) else (result,)
    want = as_tuple(spec.reference(*args))
    for which, a, b in zip(spec.out, as_tuple(getattr(module, name)(*args)), want, strict=True):
        tol = spec.tol[b.dtype]
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, msg=lambda m, w=which: f"{name} {w}: {m}")
    return want


@pytest.mark.parametrize("dtype, casting", [(torch.float32, "gemma"), (torch.bfloat16, "llama")], ids=str)
def test_long_rows_agree_with_the_reference(pieces, dtype, casting):
    draw = lambda *shape: torch.randn(shape).to(dtype)
    x, dy, weight, scale, shift = draw(6, N), draw(6, N), draw(N), draw(2, N), draw(2, N)
    _, rstd = agrees("modulated_rms_norm", x, weight, scale, shift, 1e-6, 0.5, casting)
    agrees("modulated_rms_norm_bwd", dy, x, weight, scale, rstd, 0.5, casting)
    _, rstd = agrees("poly_norm", x, draw(3), draw(1), 1e-6)
    agrees("poly_norm_bwd", dy, x, draw(3), draw(1), rstd)
    (y,) = agrees("sparsemax", x * 0.05)
    agrees("sparsemax_bwd", dy, y)


def test_sparsemax_handles_masked_large_and_equal_elements(pieces):
    x = torch.randn(4, N)
    x[0, 10:140] = -math.inf
    x[1] += 1e4
    x[2] = 3.0
    x[3, :-1] = -50.0  # only the last element is in the support
    (y,) = agrees("sparsemax", x)
    torch.testing.assert_close(y.sum(-1), torch.ones(4))
    torch.testing.assert_close(y[2], torch.full((N,), 1 / N))
    assert y[3, -1] == 1 and not y[0, 10:140].any()
