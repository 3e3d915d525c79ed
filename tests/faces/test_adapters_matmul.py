"""ATen adapters of FP8 and grouped matmul: results match ATen's own overloads, and unsupported calls go to torch."""

import pytest
import torch

pytest.importorskip("triton")
from opmux.core.adapter import ADAPTERS
from opmux.core.errors import NotSupported
from opmux.faces.aten import matmul as _adapters_of_products  # noqa: F401
from opmux.kernels import wrappers
from opmux.specs import gemm

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")

CALLS = wrappers()
E4M3, BF16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
M, N, K, GROUPS = 20, 32, 256, 3


def adapted(name, *args):
    adapter = ADAPTERS[name]
    return adapter.fn(CALLS[adapter.over[0].key], *args)


def fp8(*shape):
    return torch.randn(shape).to(E4M3)


def close(got, want):
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    torch.testing.assert_close(got, want, rtol=1.6e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_scaled_mm_accepts_one_scale_per_tensor(dtype):
    a, b, one, two = fp8(M, K), fp8(N, K).t(), torch.tensor(0.1), torch.tensor(0.5)
    bias = None if dtype is F32 else torch.randn(N, dtype=dtype)
    args = (a, b, one, two, bias, None, dtype, False)
    close(adapted("_scaled_mm", *args), torch._scaled_mm(*args[:4], bias=bias, out_dtype=dtype))


def test_scaled_mm_accepts_a_scale_per_row_and_column():
    a, b, sa, sb = fp8(M, K), fp8(N, K).t(), torch.rand(M, 1) * 0.1, torch.rand(1, N)
    want = (sa * a.float() @ (b.float() * sb)).to(BF16)
    close(adapted("_scaled_mm", a, b, sa, sb, None, None, BF16, False), want)


@pytest.mark.parametrize("rows, columns", [(1, 128), (1, 1), (128, 1)])
def test_scaled_mm_accepts_block_scales(rows, columns):
    a, b = fp8(M, K), fp8(N, K)
    # each column of scales is contiguous
    scale = lambda x, r: torch.rand(tuple(reversed(gemm.scales_shape(x, r)))).t() * 0.1
    sa, sb = scale(a, rows), scale(b, columns)
    want = (a.float() * gemm.each(sa, rows, a.shape)) @ (b.float() * gemm.each(sb, columns, b.shape)).t()
    close(adapted("_scaled_mm", a, b.t(), sa, sb.t(), None, None, BF16, False), want.to(BF16))


def test_grouped_mm_accepts_groups_of_rows():
    offs = torch.tensor([8, 8, M], dtype=torch.int32)
    a, b = torch.randn(M, K, dtype=BF16), torch.randn(GROUPS, K, N, dtype=BF16) * K**-0.5
    for matrices in (b, b.mT.contiguous().mT):
        close(adapted("_grouped_mm", a, matrices, offs, None, None), torch._grouped_mm(a, matrices, offs=offs))
    x, dy = torch.randn(M + 4, K, dtype=BF16), torch.randn(M + 4, N, dtype=BF16)
    offs = torch.tensor([8, 8, M + 4], dtype=torch.int32)
    close(adapted("_grouped_mm", x.t(), dy, offs, None, None), torch._grouped_mm(x.t(), dy, offs=offs))


def test_grouped_mm_accepts_groups_of_columns():
    offs = torch.tensor([8, 8, N], dtype=torch.int32)
    a, b = torch.randn(GROUPS, M, K, dtype=BF16) * K**-0.5, torch.randn(K, N, dtype=BF16)
    for matrix in (b, b.t().contiguous().t()):
        close(adapted("_grouped_mm", a, matrix, offs, None, None), torch._grouped_mm(a, matrix, offs=offs))


def test_grouped_mm_accepts_batches_without_offsets():
    a, b = torch.randn(GROUPS, M, K, dtype=BF16) * K**-0.5, torch.randn(GROUPS, K, N, dtype=BF16)
    for matrices in (b, b.mT.contiguous().mT):
        close(adapted("_grouped_mm", a, matrices, None, None, None), torch._grouped_mm(a, matrices))


@pytest.mark.parametrize("m, k, n", [(20, 256, 32), (1, 40, 9), (3, 1, 2), (0, 4, 4), (4, 0, 4), (150, 1000, 70)])
def test_int_mm_is_exact(m, k, n):
    """Includes the largest products, and transposed matrices."""
    a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((m, k), (k, n)))
    for left, right in ((a, b), (a, b.t().contiguous().t()), (a.t().contiguous().t(), b), (a * 0 - 128, b * 0 - 128)):
        got, want = adapted("_int_mm", left, right), torch._int_mm(left, right)
        assert got.dtype is torch.int32 and got.stride() == want.stride() and torch.equal(got, want)


def test_scaled_grouped_mm_matches_the_formula():
    a, b, offs = fp8(M, K), fp8(GROUPS, N, K).mT, torch.tensor([8, 8, M], dtype=torch.int32)
    sa, sb = torch.rand(M) * 0.1, torch.rand(GROUPS, N)
    x, w = (a.float() * sa[:, None]), b.float() * sb[:, None]
    want = torch.cat([x[begin:end] @ w[g] for g, (begin, end) in enumerate(((0, 8), (8, 8), (8, M)))])
    close(adapted("_scaled_grouped_mm", a, b, sa, sb, offs, None, None, BF16, True), want.to(BF16))


def test_matmuls_leave_unsupported_calls_to_torch():
    a, b, one = fp8(M, K), fp8(N, K).t(), torch.ones(())
    for args in (
        (a, b.contiguous(), one, one, None, None, BF16, False),
        (a, b, one, one, None, None, None, False),
        (a, b, one.double(), one, None, None, BF16, False),
        (a, b, torch.ones(M, 1), one, None, None, BF16, False),
        (a[:, :-1], b[:-1], one, one, None, None, BF16, False),
        (a.to(torch.float8_e5m2), b.to(torch.float8_e5m2), one, one, None, None, BF16, False),
    ):
        with pytest.raises(NotSupported):
            adapted("_scaled_mm", *args)
    i = torch.ones(M, 8, dtype=torch.int8)
    for pair in ((i.int(), i.int().t()), (i, i), (i, i.t().float()), (i[0], i.t())):
        with pytest.raises(NotSupported):
            adapted("_int_mm", *pair)
    x, w, offs = torch.randn(M, K, dtype=BF16), torch.randn(GROUPS, K, N, dtype=BF16), torch.zeros(3, dtype=torch.int32)
    for args in (
        (x.float(), w.float(), offs, None, None),
        (x, w, None, None, None),
        (x, w, offs[:2], None, None),
        (w.mT, x.t(), offs, None, None),
        (x, w[..., :-1], offs, None, None),
        (w.mT, w, offs, None, None),
        (w.mT, w[:2], None, None, None),
        (w.mT, w[0], offs[:2], None, None),
    ):
        with pytest.raises(NotSupported):
            adapted("_grouped_mm", *args)
