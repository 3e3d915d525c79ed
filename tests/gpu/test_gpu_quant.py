"""Quantization on a GPU: kernels equal their references bit for bit; flags and state in a CUDA graph."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from opmux.core.spec import specs
from opmux.faces.tex import quantized as Q
from opmux.kernels import quant as kernels
from opmux.specs import quant as spec

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
both = pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=["e4m3", "e5m2"])
SHAPES = [(8192, 8192), (4096, 5120), (1000, 4104), (33, 77), (1, 16384), (2, 513, 1024)]


def numbers(shape, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return torch.randn(shape, device=DEVICE, dtype=dtype) * torch.logspace(-3, 2, shape[-1], device=DEVICE).to(dtype)


def bytes_like(shape):
    return torch.zeros(shape, dtype=torch.uint8, device=DEVICE)


def one(value=0.0):
    return torch.tensor([value], device=DEVICE)


def equal(op, impl, x, *args, fp8=None):
    """Assert that reference and kernel write equal buffers."""
    found = []
    for run in (op.reference, impl):
        made = [a.clone() if torch.is_tensor(a) else a for a in args]
        run(x, *made)
        found.append([a for a in made if torch.is_tensor(a)])
    for want, got in zip(*found, strict=True):
        if fp8 is not None and want.dtype is torch.uint8:
            nan = want.view(fp8).float().isnan()  # the conversion instruction writes one encoding for every NaN
            assert got.view(fp8).float()[nan].isnan().all()
            want, got = want[~nan], got[~nan]
        assert torch.equal(want, got)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_every_16_bit_number_is_cast_as_in_the_reference(fp8, dtype):
    x = torch.arange(65536, dtype=torch.int32, device=DEVICE).to(torch.int16).view(dtype).view(256, 256)
    for turned in (None, bytes_like((256, 256))):
        equal(spec.fp8_cast_into, kernels.fp8_cast_into, x, one(1.0), bytes_like((256, 256)), turned, one(), one(), None, fp8, fp8=fp8)  # fmt: skip # noqa: E501


@both
def test_every_byte_is_decoded_exactly(fp8):
    data = torch.arange(256, dtype=torch.int32, device=DEVICE).to(torch.uint8)
    got = kernels.fp8_uncast(data, one(0.5), fp8, torch.float32)
    torch.testing.assert_close(got, data.view(fp8).float() * 0.5, rtol=0, atol=0, equal_nan=True)


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantization_with_one_scale_equals_the_reference(fp8, shape):
    x, y, yt = numbers(shape), bytes_like(shape), bytes_like(spec.transposed_shape(shape))
    for rows, columns in ((y, None), (None, yt), (y, yt)):
        equal(spec.fp8_cast_into, kernels.fp8_cast_into, x, one(3.7), rows, columns, one(), one(0.1), None, fp8)
        equal(spec.fp8_current_into, kernels.fp8_current_into, x, rows, columns, one(), None, fp8, False, 0.0)
    assert torch.equal(kernels.amax_abs(x), spec.amax_abs.reference(x))
    assert torch.equal(kernels.bytes_transpose(y), spec.bytes_transpose.reference(y))
    kernels.fp8_cast_into(x, one(3.7), y, None, None, None, None, fp8)
    got = kernels.fp8_uncast(y, one(1 / 3.7), fp8, torch.bfloat16)
    assert torch.equal(got, spec.fp8_uncast.reference(y, one(1 / 3.7), fp8, torch.bfloat16))


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("two_d", [False, True], ids=["1d", "2d"])
def test_block_quantization_equals_the_reference(fp8, shape, two_d):
    x = numbers(shape)
    pairs = [
        (bytes_like(s), torch.zeros(spec.block_scales(shape, two_d, way), device=DEVICE))
        for s, way in ((shape, False), (spec.transposed_shape(shape), True))
    ]
    for pow2 in (False, True):
        for row, col in ((pairs[0], (None, None)), ((None, None), pairs[1]), pairs):
            equal(spec.fp8_blocks_into, kernels.fp8_blocks_into, x, *row, *col, None, fp8, two_d, pow2, 0.0)
    spec.fp8_blocks_into.reference(x, *pairs[0], *pairs[1], None, fp8, two_d, True, 0.0)
    for (data, scales), way in zip(pairs, (False, True), strict=True):
        args = (data, scales, fp8, two_d, way, torch.bfloat16)
        assert torch.equal(kernels.fp8_blocks_uncast(*args), spec.fp8_blocks_uncast.reference(*args))


@both
@pytest.mark.parametrize("shape", [(8192, 8192), (96, 4128), (2, 64, 1056)], ids=str)
@pytest.mark.parametrize("two_d", [False, True], ids=["1d", "2d"])
def test_mxfp8_quantization_equals_the_reference(fp8, shape, two_d):
    x = numbers(shape)
    pairs = [(bytes_like(shape), bytes_like(spec.mx_scales(shape, way))) for way in (False, True)]
    for row, col in ((pairs[0], (None, None)), ((None, None), pairs[1]), pairs):
        equal(spec.mxfp8_into, kernels.mxfp8_into, x, *row, *col, None, fp8, two_d)
    spec.mxfp8_into.reference(x, *pairs[0], *pairs[1], None, fp8, two_d)
    for (data, scales), way in zip(pairs, (False, True), strict=True):
        args = (data, scales, fp8, way, torch.bfloat16)
        assert torch.equal(kernels.mxfp8_uncast(*args), spec.mxfp8_uncast.reference(*args))


@pytest.mark.parametrize("amax", [0.0, 1e-44, 3e-38, math.inf, 5.0])
def test_scales_at_the_limits_equal_the_reference(amax):
    x = torch.rand(256, 384, device=DEVICE) * min(amax, 1.0)
    x[3, 5], x[4, 6] = amax, math.nan
    y, yt = bytes_like((256, 384)), bytes_like((384, 256))
    for pow2 in (False, True):
        equal(spec.fp8_current_into, kernels.fp8_current_into, x, y, yt, one(), None, E4M3, pow2, 0.0, fp8=E4M3)
        scales = [torch.zeros(spec.block_scales(x.shape, False, way), device=DEVICE) for way in (False, True)]
        given = (y, scales[0], yt, scales[1], None, E4M3, False, pow2, 0.0)
        equal(spec.fp8_blocks_into, kernels.fp8_blocks_into, x, *given, fp8=E4M3)


KINDS = {
    "delayed": lambda: Q.Float8Quantizer(one(20.0), one()),
    "current": lambda: Q.Float8CurrentScalingQuantizer(),
    "block": lambda: Q.Float8BlockQuantizer(block_scaling_dim=1),
    "block 2d": lambda: Q.Float8BlockQuantizer(),
    "mxfp8": lambda: Q.MXFP8Quantizer(),
    "nvfp4": lambda: Q.NVFP4Quantizer(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_quantize_reads_its_noop_flag_at_replay(kind):
    """The host never reads the flag."""
    specs.load_all()
    quantize, dequantize = specs.functions["tex::quantize"], specs.functions["tex::dequantize"]
    x, flag, q = numbers((256, 512)), one(), KINDS[kind]()
    made = quantize(x, q)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            quantize(x, q, made, flag)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        quantize(x, q, made, flag)
    first = dequantize(made, torch.float32)
    x.mul_(2)
    flag.fill_(1.0)
    graph.replay()
    assert torch.equal(dequantize(made, torch.float32), first)
    flag.zero_()
    graph.replay()
    assert not torch.equal(dequantize(made, torch.float32), first)
    assert torch.equal(dequantize(made, torch.float32), dequantize(quantize(x, q), torch.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_quantize_and_dequantize_never_synchronize(kind):
    x, q = numbers((256, 512)), KINDS[kind]()
    specs.load_all()
    quantize, dequantize = specs.functions["tex::quantize"], specs.functions["tex::dequantize"]
    dequantize(quantize(x, q), torch.bfloat16)  # the first call compiles kernels and fills caches
    torch.cuda.set_sync_debug_mode("error")
    try:
        dequantize(quantize(x, q), torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_amax_histories_of_many_tensors_equal_the_cpus():
    update = specs.functions["tex::fused_amax_and_scale_update_after_reduction"]
    histories = [torch.rand(16, 3, device=DEVICE) for _ in range(300)]
    scales = [torch.ones(3, device=DEVICE) for _ in range(300)]
    buffer = torch.rand(900, device=DEVICE)
    there = [t.cpu().clone() for t in (*histories, *scales)]
    update(buffer, histories, scales, "max", E4M3, 0)
    update(buffer.cpu(), there[:300], there[300:], "max", E4M3, 0)
    assert all(torch.equal(a.cpu(), b) for a, b in zip((*histories, *scales), there, strict=True))


@pytest.mark.parametrize("row, column", [(True, False), (False, True), (True, True)])
def test_group_members_may_be_unaligned(row, column):
    """Members of odd sizes and their scales start at unaligned addresses."""
    specs.load_all()
    group_quantize = specs.functions["tex::group_quantize"]
    x, last = numbers((256, 1799)), (513, 1027, 259)
    q = Q.Float8CurrentScalingQuantizer(rowwise=row, columnwise=column)
    group = group_quantize(x, q, 3, None, torch.tensor(last, device=DEVICE))
    parts = x.view(-1).split([256 * n for n in last])
    for i, (n, part) in enumerate(zip(last, parts, strict=True)):
        want, at = Q.quantized(Q.OPS, part.view(256, n).clone(), q), 256 * sum(last[:i])
        for held, alone in ((group.rowwise_data, want._data), (group.columnwise_data, want._transpose)):
            assert (held is None) == (alone is None)
            assert held is None or torch.equal(held[at : at + 256 * n], alone.view(-1))
        inverse = group.scale_inv if row else group.columnwise_scale_inv
        assert torch.equal(inverse[i : i + 1], want._scale_inv)
        assert group.amax[i] == part.abs().max().float()
