"""The gemm kernels beyond the samples: many tiles, odd sizes, FP8 on chips without it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import NotSupported
from opmux.kernels import gemm as kernels
from opmux.kernels.lib import products
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget
from opmux.specs import gemm as spec

MODE = "interpret"
CPU = torch.device("cpu")
F32 = torch.float32


@pytest.fixture(params=[(False, 1), (True, 1), (False, 2)], ids=["each", "in turn", "parts of K"])
def small_tiles(monkeypatch, request):
    """Use tiles so small that a small matrix has many, and that the last rows of tiles do not fill a group."""
    in_turn, splits = request.param
    tiles = Tiles(128, 2, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, GROUP=3, IN_TURN=in_turn, SPLITS=splits)
    monkeypatch.setattr(kernels, "gemm_tiles", lambda **facts: tiles)
    forget()
    yield
    forget()


def agree(op, *args):
    name = op.spec.name
    copies = [a.clone() if torch.is_tensor(a) and n in op.spec.mutates else a for n, a in zip(op.spec.names, args)]
    got, want = getattr(kernels, name)(*args), op.reference(*copies)
    if op.spec.mutates:
        got, want = args[0], copies[0]
    as_tuple = lambda v: v if isinstance(v, tuple) else (v,)
    for g, w in zip(as_tuple(got), as_tuple(want), strict=True):
        tol = op.spec.tol[w.dtype]
        torch.testing.assert_close(g, w, rtol=tol.rtol, atol=tol.atol)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("m, n, k", [(1, 72, 37), (60, 36, 40), (37, 1, 70), (68, 72, 64)])
@pytest.mark.few(9)
def test_products_of_any_size_agree_with_the_reference(m, n, k, trans_a, trans_b, small_tiles):
    a = torch.randn(*((k, m) if trans_a else (m, k))) / k**0.5
    b = torch.randn(*((n, k) if trans_b else (k, n)))
    flags = (trans_a, trans_b, 0.75)
    agree(spec.gemm, a, b, torch.randn(n), *flags, None)
    agree(spec.gemm_gelu, a, b, None, *flags, None)
    agree(spec.gemm_dgelu, a, b, torch.randn(m, n), *flags, None)
    wide = torch.randn(m, n + 5)
    agree(spec.gemm_add_, wide[:, :n], a, b, *flags, -0.5)
    before = wide.clone()
    kernels.gemm_add_(wide[:, :n], a, b, *flags, 0.0)
    assert torch.equal(wide[:, n:], before[:, n:])


@pytest.mark.parametrize("act, glu", [("silu", True), (None, True), ("gelu", False), (None, False)])
@pytest.mark.parametrize("m, n, k", [(1, 72, 40), (60, 36, 40), (37, 2, 70), (68, 40, 64)])
@pytest.mark.few(6)
def test_epilogues_of_linear_layers_agree_with_the_reference(m, n, k, act, glu, small_tiles):
    """Tests GLU halves that end within a tile, row- and column-major weights, and inputs with more than two
    dimensions.
    """
    x, w = torch.randn(m, k), torch.randn(n, k) / k**0.5
    bias, residual = torch.randn(n), torch.randn(m, n // 2 if glu else n)
    for weight in (w, w.t().contiguous().t()):
        agree(spec.linear_act, x, weight, bias, residual, act, glu, True)
        agree(spec.linear_act, x, weight, None, None, act, glu, False)
    rows = lambda t: t.view(1, m, -1)
    agree(spec.linear_act, rows(x), w, bias, rows(residual), act, glu, True)
    half = [t.bfloat16() for t in (x, w, bias)]
    agree(spec.linear_act, *half, residual, act, glu, True)  # a float32 residual with half-precision operands


@pytest.mark.parametrize("m, n", [(1, 40), (3, 33), (40, 1), (50, 2)])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.few(5)
def test_products_with_few_rows_agree_with_the_reference(m, n, layout, monkeypatch):
    """Tests both operands row-major, column-major with K split into parts, and a column-major result."""
    tiles = Tiles(128, 2, BLOCK_N=16, BLOCK_K=16, SPLITS=2)
    monkeypatch.setattr(kernels, "few_tiles", lambda **facts: tiles)
    forget()
    k = 70
    a, b = torch.randn(m, k) / k**0.5, torch.randn(k, n)
    a = a.t().contiguous().t() if layout[0] == "t" else a
    b = b.t().contiguous().t() if layout[1] == "t" else b
    agree(spec.matmul, a, b, torch.randn(m, n).t().contiguous().t(), 0.5, 2.0, None)
    agree(spec.gemm_gelu, a, b, torch.randn(n), False, False, 1.0, None)
    agree(spec.gemm_add_, torch.randn(m, n), a, b, False, False, 1.0, 0.5)
    forget()


@pytest.mark.parametrize("op", [spec.scaled_gemm, spec.block_scaled_gemm], ids=lambda op: op.spec.name)
def test_fp8_works_on_chips_that_do_not_multiply_it(op, monkeypatch):
    monkeypatch.setattr(products, "multiplies_fp8", lambda: False)
    forget()
    for sample in op.spec.samples(F32, CPU):
        agree(op, *sample.args)
    forget()


@pytest.mark.parametrize("dtype", spec.FP8)
def test_every_fp8_byte_is_decoded_correctly(dtype, monkeypatch):
    """Multiplies the bytes by a column of ones; they include the smallest values, infinities and NaN."""
    monkeypatch.setattr(products, "multiplies_fp8", lambda: False)
    forget()
    a = torch.arange(256, dtype=torch.uint8)[:, None]
    one = torch.ones(1)
    b = torch.ones(1, 1).to(spec.FP8[0]).view(torch.uint8)
    got = kernels.scaled_gemm(a, b, one, one, dtype, spec.FP8[0], None, F32, False)
    torch.testing.assert_close(got, a.view(dtype).float(), rtol=0, atol=0, equal_nan=True)
    forget()


def test_a_result_with_gaps_in_its_rows_is_declined():
    a, c = torch.randn(4, 4), torch.zeros(4, 8)[:, ::2]
    with pytest.raises(NotSupported, match="c must have its rows in one piece"):
        kernels.gemm_add_(c, a, a, False, False, 1.0, 1.0)
    assert not c.any()
