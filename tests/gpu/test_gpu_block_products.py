"""Block-scaled FP8 GEMM on Hopper gives the bits of float32 sums over blocks of 128 along K, as cuBLAS does."""

from __future__ import annotations

import pytest
import torch
from impls import refusal
from torch import Tensor

import opmux
from opmux.core import get_default_manager
from opmux.faces.tex import quantized as q
from opmux.faces.tex.ops import gemm as tex_gemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="not a Hopper chip"
    ),
]
CUDA = torch.device("cuda")
E4M3, E5M2, BF16, F32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32
PAIRS = [(1, 128), (1, 1), (128, 1)]  # rows per block of a and of b
SIZES = [(128, 128, 128), (320, 128, 336), (320, 64, 336), (320, 256, 336), (16, 128, 128), (1024, 4096, 1024)]
ODD = [(8, 384, 256), (37, 384, 256), (17, 256, 64), (129, 1008, 272), (48, 512, 16)]
KINDS = [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)]


def blocks(rows: int, k: int, high: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Random FP8 values, and one power-of-two scale for each block of high x 128 elements."""
    g = torch.Generator(CUDA).manual_seed(seed)
    down, wide = -(-rows // high), -(-k // 128)
    x = torch.zeros(down * high, wide * 128, device=CUDA)
    x[:rows, :k] = torch.randn(rows, k, device=CUDA, generator=g)
    x = x.view(down, high, wide, 128)
    scale = torch.exp2(torch.floor(torch.log2(torch.finfo(dtype).max / x.abs().amax((1, 3)).clamp(min=1e-12))))
    numbers = (x * scale[:, None, :, None]).view(down * high, wide * 128)[:rows, :k]
    return numbers.contiguous().to(dtype), 1 / scale


def by_blocks(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    """cuBLAS computes the product of each block of 128 along K; the scaled products are summed in float32."""
    one, (m, k), n = torch.ones((), device=CUDA), a.shape, b.shape[0]
    each = lambda rows, scale: scale if scale.shape[0] == rows else scale.repeat_interleave(128, 0)[:rows]
    sa, sb = each(m, a_scale), each(n, b_scale)
    y = torch.zeros(m, n, device=CUDA)
    for i in range(0, k, 128):
        x, w = a[:, i : i + 128].contiguous(), b[:, i : i + 128].contiguous()
        products = torch._scaled_mm(x, w.t(), one, one, out_dtype=F32, use_fast_accum=False)
        y += products * (sa[:, i // 128, None] * sb[None, :, i // 128])  # exact, because scales are powers of two
    return y


@pytest.fixture(autouse=True)
def nothing_failed():
    """Assert that no implementation raised, because the call would fall back to the reference, whose bits differ."""
    get_default_manager().clear_quarantine()
    yield
    failures = get_default_manager().memory.failures
    causes = {i: list(cases.values()) for (key, i), cases in failures.items() if key == "opmux::block_scaled_gemm"}
    assert not causes, causes


def same_bits(got: Tensor, want: Tensor, what: str) -> None:
    differ = (got != want).float().mean().item()
    assert got.dtype is want.dtype and not differ, f"{what}: {100 * differ:.2f} % of the elements differ"


@pytest.mark.parametrize("rows", PAIRS)
@pytest.mark.parametrize(
    ("m", "k", "n"), [*SIZES, (8, 384, 256), (37, 384, 256), (17, 256, 64), (129, 1008, 272), (48, 512, 16)]
)
def test_block_scaled_gemm_equals_float32_sums_over_blocks(m, k, n, rows):
    for kinds in KINDS if m == 320 else KINDS[:1]:
        (a, sa), (b, sb) = (blocks(r, k, h, kind, i) for i, (r, h, kind) in enumerate(zip((m, n), rows, kinds)))
        want = by_blocks(a, b, sa, sb)
        for dtype in (BF16, F32):
            args = (a.view(torch.uint8), b.view(torch.uint8), sa, sb, *kinds, None, *rows, dtype)
            chosen = get_default_manager().explain("block_scaled_gemm", *args).chosen.impl_id
            same_bits(opmux.ops.block_scaled_gemm(*args), want.to(dtype), f"{kinds} {dtype} by {chosen}")


@pytest.mark.parametrize("rows", PAIRS)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_every_implementation_for_hopper_gives_the_same_bits(m, k, n, rows):
    (a, sa), (b, sb) = (blocks(r, k, h, E4M3, i) for i, (r, h) in enumerate(zip((m, n), rows)))
    args = (a.view(torch.uint8), b.view(torch.uint8), sa, sb, E4M3, E4M3, None, *rows, F32)
    want, served = by_blocks(a, b, sa, sb), []
    opmux.ops.block_scaled_gemm(*args)  # the first call registers the implementations
    for impl in get_default_manager().registry.get_implementations("block_scaled_gemm"):
        own = impl.when
        if impl.impl_id != "reference.torch" and (own is None or own(*args) is True):
            served.append(impl.impl_id)
            same_bits(impl.fn(*args), want, impl.impl_id)
    assert {"vendor.nvidia.cublas", "default.flagos"} <= set(served) and "vendor.nvidia.cublas_plain" not in served, (
        served
    )


def of_tex(x: Tensor, high: int, kind: torch.dtype = E4M3):
    quantizer = q.Float8BlockQuantizer(fp8_dtype=kind, block_scaling_dim=1 if high == 1 else 2)
    return q.quantized(q.OPS, x, quantizer)


def product(A, B, out=None, to=BF16, bias=None, accumulate=False) -> Tensor:
    workspace = torch.empty(64, dtype=torch.uint8, device=CUDA)
    return tex_gemm.generic_gemm(
        A, True, B, False, out, None, to, bias, BF16, False, None, False, workspace, 64, accumulate, True,
        comm_overlap=None, comm_type=None, extra_output=None, bulk_overlap=False, alpha=1.0, beta=None,
    )[0]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("rows", PAIRS)
@pytest.mark.parametrize(("m", "k", "n"), [(256, 128, 256), (320, 64, 336), (320, 256, 336), (16, 128, 128)])
def test_tex_gemm_adds_the_bias_before_rounding_and_accumulates_after(m, k, n, rows, dtype):
    torch.manual_seed(0)
    x, w = torch.randn(m, k, device=CUDA), torch.randn(n, k, device=CUDA)
    b, a = of_tex(x, rows[0]), of_tex(w, rows[1])
    (wd, ws, _), (xd, xs, _) = tex_gemm.blocks_of(a, False), tex_gemm.blocks_of(b, False)
    want = by_blocks(xd.view(E4M3), wd.view(E4M3), xs, ws)
    bias, out = torch.randn(n, device=CUDA, dtype=BF16), torch.randn(m, n, device=CUDA, dtype=dtype)
    same_bits(product(a, b, to=dtype), want.to(dtype), "product")
    same_bits(product(a, b, to=dtype, bias=bias), (want + bias).to(dtype), "bias")
    same_bits(product(a, b, out.clone(), dtype, accumulate=True), want.to(dtype) + out, "accumulate")
    both = (want + bias).to(dtype) + out
    same_bits(product(a, b, out.clone(), dtype, bias, accumulate=True), both, "bias and accumulate")


def test_cublas_accepts_any_number_of_blocks_along_k():
    impls = get_default_manager().registry.get_implementations("block_scaled_gemm")
    cublas = next(i for i in impls if i.impl_id == "vendor.nvidia.cublas")
    for k in (64, 128, 384, 512, 1008):
        for rows in PAIRS:
            (a, sa), (b, sb) = (blocks(256, k, h, E4M3, i) for i, h in enumerate(rows))
            args = (a.view(torch.uint8), b.view(torch.uint8), sa, sb, E4M3, E4M3, None, *rows, BF16)
            reason = cublas.when(*args)
            assert reason is True, (k, rows, reason, refusal(cublas, *args))
