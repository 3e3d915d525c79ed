"""The quantization kernels, interpreted: special values give the reference's bits; also state, flags and odd sizes."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import quant as kernels
from opmux.specs import quant as spec

MODE = "interpret"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
both = pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=["e4m3", "e5m2"])


def every(dtype):
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_every_16_bit_number_is_cast_as_in_torch(fp8, dtype):
    x, scale, amax = every(dtype), torch.tensor([1.0]), torch.zeros(1)
    y, want = torch.zeros(65536, dtype=torch.uint8), torch.zeros(65536, dtype=torch.uint8)
    kernels.fp8_cast_into(x, scale, y, None, None, amax, None, fp8)
    spec.fp8_cast_into.reference(x, scale, want, None, None, None, None, fp8)
    nan = x.isnan()  # ignore the sign of NaN: some of torch's float16 conversions change it
    assert torch.equal(y[~nan], want[~nan]) and y.view(fp8).float()[nan].isnan().all() and amax.item() == math.inf


@both
def test_every_byte_is_decoded_and_encoded_again(fp8):
    data, inv = torch.arange(256, dtype=torch.int32).to(torch.uint8), torch.tensor([0.5])
    got = kernels.fp8_uncast(data, inv, fp8, torch.float32)
    torch.testing.assert_close(got, data.view(fp8).float() * 0.5, rtol=0, atol=0, equal_nan=True)


def test_every_e8m0_scale_is_applied_exactly():
    scales = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(64, 4).repeat(2, 1)
    data = torch.full((64, 128), 0x38, dtype=torch.uint8)  # 1.0
    got = kernels.mxfp8_uncast(data, scales, E4M3, False, torch.float32)
    want = spec.mxfp8_uncast.reference(data, scales, E4M3, False, torch.float32)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def by_reference_and_kernel(op, impl, x, *args):
    """The buffers that the reference and the kernel write."""
    results = []
    for run in (op.reference, impl):
        copies = [None if a is None else a.clone() if torch.is_tensor(a) else a for a in args]
        run(x, *copies)
        results.append([a for a in copies if torch.is_tensor(a)])
    return results


@both
@pytest.mark.parametrize("amax", [0.0, 1e-44, 3e-38, math.inf, 5.0])
@pytest.mark.parametrize("pow2", [False, True])
def test_scales_at_the_limits_equal_the_reference(fp8, amax, pow2):
    """The scales overflow, or are zero or infinite."""
    x = torch.rand(130, 140) * min(amax, 1.0)
    x[3, 5] = amax
    x[4, 6] = math.nan
    buffers = (torch.zeros(130, 140, dtype=torch.uint8), torch.zeros(140, 130, dtype=torch.uint8))
    want, got = by_reference_and_kernel(
        spec.fp8_current_into, kernels.fp8_current_into, x, *buffers, torch.zeros(1), None, fp8, pow2, 0.0
    )
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    scales = [torch.zeros(spec.block_scales(x.shape, False, columnwise)) for columnwise in (False, True)]
    args = (buffers[0], scales[0], buffers[1], scales[1], None, fp8, False, pow2, 0.0)
    want, got = by_reference_and_kernel(spec.fp8_blocks_into, kernels.fp8_blocks_into, x, *args)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_amax_over_many_tiles_is_exact():
    """Several programs compute the amax, each over several tiles."""
    x = torch.randn(300_001)
    x[270_000] = -77.0
    assert kernels.amax_abs(x).item() == 77.0
    assert kernels._parts(x).grid[0] > 1
    y, inv = torch.zeros(300_001, dtype=torch.uint8), torch.zeros(1)
    want, got = by_reference_and_kernel(
        spec.fp8_current_into, kernels.fp8_current_into, x, y, None, inv, None, E4M3, False, 0.0
    )
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_amax_of_a_buffer_never_decreases():
    x, amax = torch.randn(40, 50), torch.tensor([9.0])
    y, yt = torch.zeros(40, 50, dtype=torch.uint8), torch.zeros(50, 40, dtype=torch.uint8)
    kernels.fp8_cast_into(x, torch.ones(1), y, yt, None, amax, None, E4M3)
    assert amax.item() == 9.0 and torch.equal(y.t(), yt)
    kernels.fp8_cast_into(x * 100, torch.ones(1), None, yt, None, amax, None, E4M3)
    assert amax.item() == (x * 100).abs().max().item()


def test_float32_scales_equal_the_reference():
    """Scales must be equal, not just close, because consumers compare them."""
    x = torch.randn(256, 384, dtype=torch.bfloat16) * 3
    for two_d in (False, True):
        data = torch.zeros(256, 384, dtype=torch.uint8), torch.zeros(384, 256, dtype=torch.uint8)
        scales = [torch.zeros(spec.block_scales(x.shape, two_d, columnwise)) for columnwise in (False, True)]
        args = (data[0], scales[0], data[1], scales[1], None, E4M3, two_d, False, 0.0)
        want, got = by_reference_and_kernel(spec.fp8_blocks_into, kernels.fp8_blocks_into, x, *args)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
