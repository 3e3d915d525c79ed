"""The activation kernels beyond the samples: rows with gaps are not copied, and sums are deterministic."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import get_default_manager, specs
from opmux.kernels import norm
from opmux.kernels.activation import plain as kernels
from opmux.kernels.lib import rows

MODE = "interpret"


def kernel(name):
    get_default_manager().prepare()
    (impl,) = [i for i in get_default_manager().registry.impls(f"opmux::{name}") if i.impl_id == "default.flagos"]
    return impl.fn


def agree(name, *args):
    spec = specs.by_key[f"opmux::{name}"]
    got, want = kernel(name)(*args), spec.reference(*args)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        tol = spec.tol[b.dtype]
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)


@pytest.fixture
def no_copies(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a tensor was copied")

    monkeypatch.setattr(torch.Tensor, "contiguous", refuse)
    monkeypatch.setattr(torch.Tensor, "clone", refuse)


@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 22), (2, 1, 3, 600), (74,)])
def test_halves_of_a_tensor_are_not_copied(shape, no_copies):
    x = torch.randn(shape)
    n = shape[-1] // 2
    a, b, dy = x[..., :n], x[..., n:], torch.randn(*shape[:-1], n)
    agree("silu_mul", a, b)
    agree("silu_mul_bwd", dy, a, b)
    agree("silu_glu", x)
    agree("silu_glu_bwd", dy, x)


def test_rows_with_gaps_are_not_copied(no_copies):
    x, dy, bias = torch.randn(2, 3, 40)[..., :37], torch.randn(2, 3, 50)[..., 3:40], torch.randn(37)
    agree("gelu_tanh_bias", x, bias)
    agree("gelu_tanh_bias_bwd", dy, x, bias)
    agree("gelu_tanh_glu", x[..., 1:])


@pytest.mark.parametrize("shape", [(3, 5000), (1, 3), (700, 20), (2050, 2)])
def test_every_tile_shape_gives_the_same_result(shape):
    """Tests rows longer than a block, and more rows than fit in a block."""
    x, dy, bias = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])
    agree("silu_bias", x, bias)
    agree("silu_bias_bwd", dy, x, bias)
    agree("relu_glu_bwd", dy, torch.randn(*shape[:-1], 2 * shape[-1]))


def test_the_gradient_of_a_bias_is_deterministic():
    x, dy = torch.randn(300, 20), torch.randn(300, 20)
    once, again = (kernel("gelu_tanh_bias_bwd")(dy, x, None)[1] for _ in range(2))
    assert torch.equal(once, again)


def test_rows_out_of_bounds_do_not_contribute():
    """x is 0 in the padding; the slope at 0 plus the bias would be infinite."""
    x, dy = torch.full((3, 16), -3e38), torch.ones(3, 16)
    dx, dbias = kernel("srelu_bias_bwd")(dy, x, torch.full((16,), 3e38))
    assert dx.eq(0).all() and dbias.eq(0).all()


def test_blocks_waste_little():
    for n in (37, 256, 5504, 11008, 14336, 131072):
        block = kernels.least_gap(n, 2048)
        assert -n % block <= max(n // 16, 256) and block & (block - 1) == 0


def test_even_rows_have_the_stride_that_rows_reports():
    """If `even_rows` is true, the offset of element (row, column) is row * stride + column."""
    base = torch.arange(2 * 3 * 4 * 10)
    x = base.view(2, 3, 4, 10)
    even = [x, x[..., :5], x[..., 5:], x[:1, :, :1, :5], x[:, :, 0, :5], x.flatten(0, 2)[::2], x[1:, 1:2, 1:2, 2:4]]
    even += [base, x[0, 0, :0]]
    odd = [x[..., ::2], x[..., 0], x.mT, x.transpose(0, 1), x[..., :5].transpose(1, 2), x[:1].expand(2, 3, 4, 10)]
    odd += [x[:, :1, :, :5], x[:, :2], x[:, :, :2]]
    assert all(map(rows.even_rows, even)) and not any(map(rows.even_rows, odd))
    for t in (t for t in even if t.numel()):
        layout = rows.Rows.of(t)
        flat = t.reshape(-1, t.shape[-1])
        assert layout.count == len(flat)
        first = int(flat[0, 0])
        want = first + torch.arange(layout.count)[:, None] * layout.stride + torch.arange(t.shape[-1])
        assert torch.equal(flat, want)
    assert rows.Rows.of(x[0, 0, :0]).count == 0


def test_norms_take_rows_with_gaps_and_statistics_of_any_layout():
    x, dy, weight = torch.randn(2, 3, 2, 40)[..., :37], torch.randn(2, 3, 2, 37), torch.randn(37)
    backward = specs.by_key["opmux::rms_norm_bwd"]
    _, rstd = specs.by_key["opmux::rms_norm"].reference(x, weight)
    gaps = torch.empty(2, 3, 4)[..., :2].copy_(rstd)
    want = backward.reference(dy, x, weight, gaps, 0.0)
    for a, b in zip(norm.rms_norm_bwd(dy, x, weight, gaps, 0.0, "gemma"), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
