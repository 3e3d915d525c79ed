"""Quantization against independent arithmetic: torch's own casts, Python floats, bits."""

from __future__ import annotations

import math
import struct
import sys
import types

import pytest
import torch

import opmux
from opmux.core.spec import specs
from opmux.faces.tex import fp4
from opmux.faces.tex import quantized as Q
from opmux.faces.tex.enums import DType
from opmux.faces.tex.ops import quantize as tex_quantize
from opmux.specs import quant

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
both = pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=["e4m3", "e5m2"])
MAX = {E4M3: 448.0, E5M2: 57344.0}
FLOAT_MAX = torch.finfo(torch.float32).max
tex = {name.removeprefix("tex::"): specs.functions[name] for name in specs.by_key if name.startswith("tex::")}


def every(dtype):
    """All values of a 16-bit dtype."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def awkward():
    """float32 values at and near ties, limits, subnormals; infinities, NaN and both zeros."""
    bases = [2.0**e * (1 + i / 16) for e in range(-20, 18) for i in range(16)] + [448, 464, 480, 57344, 61440, 65536]
    neighbours = [b * (1 + d * 2.0**-23) for b in bases for d in (-1, 0, 1)]
    special = [0.0, 1e-45, 1e-40, 3.4e38, math.inf, math.nan, 2.0**-9, 2.0**-10, 2.0**-16, 2.0**-17]
    values = torch.tensor([*neighbours, *special])
    return torch.cat((values, -values))


def same_bytes(got, want, fp8):
    """Assert that elements are equal, or NaN in both."""
    a, b = got.view(fp8).float(), want.view(fp8).float()
    assert torch.equal(got[~b.isnan()], want[~b.isnan()]) and bool(a[b.isnan()].isnan().all())


def cast(x, scale, fp8, transposed=False):
    y, yt = torch.empty(x.shape, dtype=torch.uint8), torch.empty(quant.transposed_shape(x.shape), dtype=torch.uint8)
    amax, inv = torch.zeros(1), torch.zeros(1)
    quant.fp8_cast_into(x, torch.tensor([scale]), y, yt if transposed else None, inv, amax, None, fp8)
    return y, yt, inv, amax


@both
@pytest.mark.parametrize("x", [every(torch.bfloat16), every(torch.float16), awkward()], ids=["bf16", "fp16", "fp32"])
def test_a_cast_equals_torchs_of_the_clamped_value(x, fp8):
    same_bytes(cast(x, 1.0, fp8)[0], x.float().clamp(-MAX[fp8], MAX[fp8]).to(fp8).view(torch.uint8), fp8)


@both
def test_a_cast_saturates_and_keeps_nan(fp8):
    y = cast(torch.tensor([math.inf, -math.inf, 1e30, math.nan, 1.5]), 1.0, fp8)[0].view(fp8).float()
    assert y[:3].tolist() == [MAX[fp8], -MAX[fp8], MAX[fp8]] and y[3].isnan() and y[4] == 1.5


def test_amax_ignores_nan_and_never_decreases():
    x = torch.tensor([[1.0, -3.0, math.nan]])
    assert quant.amax_abs(x).tolist() == [3.0] and cast(x, 2.0, E4M3)[3].tolist() == [3.0]
    amax = torch.tensor([7.0])
    quant.fp8_cast_into(x, torch.ones(1), None, None, None, amax, None, E4M3)
    assert amax.item() == 7.0
    assert quant.amax_abs(torch.tensor([math.inf, 1.0])).item() == math.inf


def f32(value):
    """Round to float32, as a Python float."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.inf


def rule(amax, largest, pow2, eps=0.0, top=FLOAT_MAX):
    """NVIDIA's rule for a scale, in Python floats. A double division that is then rounded to float32 is exact
    enough.
    """
    amax = max(amax, f32(eps))
    if amax == 0 or math.isinf(amax):
        return 1.0
    scale = f32(largest / amax)
    scale = f32(top) if math.isinf(scale) else scale
    return 2.0 ** (math.frexp(scale)[1] - 1) if pow2 else scale


@both
@pytest.mark.parametrize("pow2", [False, True])
def test_the_scale_of_an_amax_follows_nvidias_rule(fp8, pow2):
    amaxes = [0.0, math.inf, 1e-45, 1e-38, 1e-30, 0.3, 1.0, 447.0, 448.0, 3e38, 57344.0, *(1.37**i for i in range(40))]
    got = quant.fp8_scale(torch.tensor(amaxes), fp8, pow2, 1e-35).tolist()
    assert got == [rule(f32(a), MAX[fp8], pow2, 1e-35) for a in amaxes]
    assert quant.fp8_scale(torch.tensor([math.nan]), fp8).item() == 1.0
    assert quant.fp8_scale(torch.tensor([2.0]), fp8, False, 0.0, 2).item() == MAX[fp8] / 8


@both
def test_current_scaling_equals_a_cast_with_the_scale_of_its_amax(fp8):
    x = torch.randn(5, 7) * 3
    y, yt, inv = torch.empty(5, 7, dtype=torch.uint8), torch.empty(7, 5, dtype=torch.uint8), torch.zeros(1)
    quant.fp8_current_into(x, y, yt, inv, None, fp8, True, 0.0)
    scale = rule(x.abs().max().item(), MAX[fp8], True)
    assert torch.equal(y, cast(x, scale, fp8)[0]) and torch.equal(yt, y.t()) and inv.item() == f32(1 / scale)


@both
@pytest.mark.parametrize("two_d", [False, True])
@pytest.mark.parametrize("pow2", [False, True])
def test_block_scaling_equals_python_loops(fp8, two_d, pow2):
    """The loops compute one tile at a time."""
    m, k, dtype = 130, 259, torch.bfloat16
    x = (torch.randn(m, k) * torch.logspace(-3, 3, k)).to(dtype)
    x[:, 128:256] = 0  # a block of zeros
    x[0, 0] = 1e-40  # its scale overflows
    x[1:128, :128] = 0
    y, yt = torch.empty(m, k, dtype=torch.uint8), torch.empty(k, m, dtype=torch.uint8)
    ys, yts = (torch.full(quant.block_scales((m, k), two_d, columnwise), -1.0) for columnwise in (False, True))
    quant.fp8_blocks_into(x, y, ys, yt, yts, None, fp8, two_d, pow2, 0.0)
    top = torch.finfo(dtype).max
    rows, cols = (128, 128) if two_d else (1, 128)
    for i in range(0, m, rows):
        for j in range(0, k, cols):
            tile = x[i : i + rows, j : j + cols].float()
            scale = rule(tile.abs().max().item(), MAX[fp8], pow2, top=top)
            assert torch.equal(y[i : i + rows, j : j + cols], cast(tile, scale, fp8)[0])
            assert (ys[i // 128, j // 128] if two_d else ys[j // 128, i]).item() == f32(1 / scale)
    rows, cols = (128, 128) if two_d else (128, 1)
    for i in range(0, m, rows):
        for j in range(0, k, cols):
            tile = x[i : i + rows, j : j + cols].float()
            scale = rule(tile.abs().max().item(), MAX[fp8], pow2, top=top)
            assert torch.equal(yt[j : j + cols, i : i + rows].t(), cast(tile, scale, fp8)[0])
            assert (yts[j // 128, i // 128] if two_d else yts[i // 128, j]).item() == f32(1 / scale)
    count = lambda t: int((t == -1).sum())
    assert count(ys) == ys.numel() - (2 * 3 if two_d else m * 3) and count(yts) == yts.numel() - (6 if two_d else k * 2)
    back = quant.fp8_blocks_uncast(y, ys, fp8, two_d, False, torch.float32)
    assert torch.equal(back[2:, 256:], y.view(fp8).float()[2:, 256:] * spread_of(ys, two_d, m, k)[2:, 256:])
    transposed = quant.fp8_blocks_uncast(yt, yts, fp8, two_d, True, torch.float32)
    assert transposed.shape == (m, k) and (transposed - back).abs().max() < x.abs().max() * 0.3


def spread_of(scales, two_d, m, k):
    return torch.stack([torch.stack([scales[i // 128, j // 128] if two_d else scales[j // 128, i] for j in range(k)]) for i in range(m)])  # fmt: skip # noqa: E501


def e8m0(amax, largest):
    """The biased exponent of the smallest power of two that is at least amax / largest."""
    value = f32(amax * f32(1 / largest))
    if value == 0:
        return 0
    if math.isinf(value):
        return 254
    part, exponent = math.frexp(value)
    return min(254, max(0, exponent + 126 if part == 0.5 else exponent + 127))


@both
@pytest.mark.parametrize("two_d", [False, True])
def test_mxfp8_equals_python_loops(fp8, two_d):
    x = torch.randn(64, 96) * torch.logspace(-30, 30, 96)
    x[:32, :32] = 0
    x[0, 40] = math.inf
    x[3, 70] = 1e-44
    y, yc = torch.empty(64, 96, dtype=torch.uint8), torch.empty(64, 96, dtype=torch.uint8)
    ys, ycs = (torch.zeros(quant.mx_scales((64, 96), columnwise), dtype=torch.uint8) for columnwise in (False, True))
    quant.mxfp8_into(x, y, ys, yc, ycs, None, fp8, two_d)
    for data, scales, rows, cols in ((y, ys, 1, 32), (yc, ycs, 32, 1)):
        for i in range(0, 64, rows):
            for j in range(0, 96, cols):
                i0, j0 = i // 32 * 32, j // 32 * 32
                whole = x[i0 : i0 + 32, j0 : j0 + 32] if two_d else x[i : i + rows, j : j + cols]
                e = e8m0(whole.abs().max().item(), MAX[fp8])
                assert scales[i // rows, j // cols].item() == e
                tile = x[i : i + rows, j : j + cols]
                assert torch.equal(data[i : i + rows, j : j + cols], cast(tile, 2.0 ** (127 - e), fp8)[0]), (i, j)
    back = quant.mxfp8_uncast(y, ys, fp8, False, torch.float32)
    assert torch.equal(back[5, 32:64], y[5, 32:64].view(fp8).float() * 2.0 ** (ys[5, 1].item() - 127))
    fine = x.isfinite()
    across = quant.mxfp8_uncast(yc, ycs, fp8, True, torch.float32)
    for got in (back, across):
        # relative error, plus an absolute error for elements far below the largest of their block
        assert ((got - x)[fine].abs() <= 0.3 * x[fine].abs() + 2.0**-6 * x[fine].abs().max()).all()


# ---- NVFP4 ----------------------------------------------------------------------------------------------------------


def nearest(value):
    """The E2M1 code of the nearest number; ties go to the even code."""
    code = min(range(8), key=lambda c: (abs(fp4.LEVELS[c] - abs(value)), c % 2))
    return code | (8 if math.copysign(1, value) < 0 else 0)


def test_fp4_codes_are_the_nearest_numbers():
    values = [s * v for v in (0, 0.25, 0.26, 0.5, 0.75, 1.2, 1.25, 1.75, 2.5, 2.6, 3.5, 5.0, 5.1, 6.0) for s in (1, -1)]
    code = fp4.codes(torch.tensor(values))
    assert code.tolist() == [nearest(v) for v in values]
    pairs = fp4.packed(code)
    assert pairs.numel() * 2 == code.numel() and torch.equal(fp4.codes(fp4.unpacked(pairs)), code)


@pytest.mark.parametrize("two_d", [False, True])
def test_nvfp4_equals_python_loops(two_d):
    x = torch.randn(32, 48) * torch.logspace(-2, 2, 48)
    x[:16, :16] = 0
    y = Q.quantized(Q.OPS, x, Q.NVFP4Quantizer(with_2d_quantization=two_d))
    amax = x.abs().max()
    assert y._amax_rowwise.item() == y._amax_columnwise.item() == amax.item()
    forth = torch.tensor(2688.0) / amax
    for data, scales, matrix in (
        (y._rowwise_data, y._rowwise_scale_inv, x),
        (y._columnwise_data, y._columnwise_scale_inv, x.t()),
    ):
        code = torch.stack((data & 15, data >> 4), -1).flatten(-2)
        for i in range(matrix.shape[0]):
            for j in range(0, matrix.shape[1], 16):
                top = (
                    (matrix[i // 16 * 16 : i // 16 * 16 + 16, j : j + 16] if two_d else matrix[i, j : j + 16])
                    .abs()
                    .max()
                )
                scale = (top * (forth * (torch.tensor(1.0) / 6))).clamp(max=448).to(E4M3)
                assert scales[i, j // 16].item() == scale.view(torch.uint8).item()
                encode = (1 / (scale.float() * (1 / forth))).clamp(max=torch.finfo(torch.float32).max)
                codes = [nearest(v) for v in (matrix[i, j : j + 16] * encode).clamp(-6, 6).tolist()]
                assert code[i, j : j + 16].tolist() == codes
    assert (Q.plain(Q.OPS, y) - x).abs().max() <= amax / 6 * 1.1
    assert (Q.plain(Q.OPS, y, columnwise=True) - x).abs().max() <= amax / 6 * 1.1


def test_stochastic_rounding_is_unbiased():
    torch.manual_seed(0)
    values = torch.tensor([0.1, 0.6, 1.3, 2.2, 3.7, 5.9, -0.4, -4.4]).repeat(4000, 1)
    drawn = fp4.unpacked(fp4.packed(fp4.codes(values, stochastic=True)))
    torch.testing.assert_close(drawn.mean(0), values[0], rtol=0.05, atol=0.02)
    exact = torch.tensor([fp4.LEVELS, [-v for v in fp4.LEVELS]])
    assert torch.equal(fp4.unpacked(fp4.packed(fp4.codes(exact, stochastic=True))), exact)


def test_four_over_six_keeps_the_scale_with_the_smaller_error():
    x = torch.randn(64, 64)
    amax = x.abs().max().reshape(1)
    errors = {}
    for criterion in (None, "MAE", "MSE"):
        back = fp4.decoded(*fp4.encoded(x, amax, four_over_six=criterion), amax)
        errors[criterion] = (back - x).view(64, 4, 16)
    assert (errors["MAE"].abs().sum(-1) <= errors[None].abs().sum(-1) + 1e-5).all()
    assert ((errors["MSE"] ** 2).sum(-1) <= (errors[None] ** 2).sum(-1) + 1e-5).all()
    assert (errors["MAE"] != errors[None]).any()


def hadamard():
    h = torch.ones(1, 1)
    for _ in range(4):
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    return h / 4


def test_rotating_columns_and_back_gives_the_original():
    x = torch.randn(32, 48)
    q = Q.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, rht_matrix=hadamard())
    y = Q.quantized(Q.OPS, x, q)
    rotated = (x.t().reshape(-1, 16) @ hadamard()).view(48, 32)
    assert y._amax_columnwise.item() == rotated.abs().max().item()
    data, _ = fp4.encoded(rotated, y._amax_columnwise)
    assert torch.equal(y._columnwise_data, data)
    assert (Q.plain(Q.OPS, y, columnwise=True) - x).abs().mean() < 0.15


# ---- quantizers and tensors -----------------------------------------------------------------------------------------

MADE = {
    "delayed": lambda: Q.Float8Quantizer(torch.tensor([20.0]), torch.zeros(1)),
    "current": lambda: Q.Float8CurrentScalingQuantizer(),
    "block": lambda: Q.Float8BlockQuantizer(block_scaling_dim=1),
    "mxfp8": lambda: Q.MXFP8Quantizer(),
    "nvfp4": lambda: Q.NVFP4Quantizer(),
}
every_kind = pytest.mark.parametrize("kind", MADE)


def buffers(t):
    return {n: v.clone() for n, v in vars(t).items() if isinstance(v, torch.Tensor)}


@every_kind
def test_quantizing_again_reuses_the_memory(kind):
    x, q = torch.randn(2, 32, 64), MADE[kind]()
    quantized_x = tex["quantize"](x, q)
    held = {n: v.data_ptr() for n, v in vars(quantized_x).items() if isinstance(v, torch.Tensor)}
    assert tex["quantize"](3 * x, q, quantized_x, torch.zeros(1)) is quantized_x
    assert {n: v.data_ptr() for n, v in vars(quantized_x).items() if isinstance(v, torch.Tensor)} == held
    fresh = tex["quantize"](3 * x, q)
    assert all(torch.equal(v, buffers(fresh)[n]) for n, v in buffers(quantized_x).items())
    assert (tex["dequantize"](quantized_x, torch.float32) - 3 * x).abs().mean() < 0.5
    assert quantized_x.dequantize(dtype=torch.bfloat16).dtype == torch.bfloat16


@every_kind
def test_the_noop_flag_leaves_everything_unchanged(kind):
    x, q = torch.randn(32, 64), MADE[kind]()
    quantized_x = tex["quantize"](x, q)
    before, amax = buffers(quantized_x), getattr(q, "amax", torch.zeros(1)).clone()
    tex["quantize"](5 * x, q, quantized_x, torch.ones(1))
    assert all(torch.equal(v, before[n]) for n, v in buffers(quantized_x).items())
    assert torch.equal(getattr(q, "amax", torch.zeros(1)), amax)


@every_kind
def test_buffers_follow_the_usages(kind):
    x, q = torch.randn(32, 64), MADE[kind]()
    names = ("_data", "_transpose") if kind in ("delayed", "current") else ("_rowwise_data", "_columnwise_data")
    quantized_x = tex["quantize"](x, q)
    assert all(getattr(quantized_x, n) is not None for n in names)
    for row, col in ((True, False), (False, True), (True, True)):
        q.set_usage(rowwise=row, columnwise=col)
        tex["quantize"](x, q, quantized_x)
        assert [getattr(quantized_x, n) is not None for n in names] == [row, col]
        if kind in ("delayed", "current"):
            assert quantized_x._transpose_invalid is not col
        assert (Q.plain(Q.OPS, quantized_x, torch.float32) - x).abs().mean() < 0.2
        empty = tex["create_empty_quantized_tensor"](q, [32, 64], torch.bfloat16, torch.device("cpu"), False)
        assert [getattr(empty, n) is not None for n in names] == [row, col] and empty.dtype == torch.bfloat16


@every_kind
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_the_dtype_of_an_empty_tensor_may_be_fp8(kind, dtype):
    """The tensor reports this dtype; its buffers are the same for all dtypes."""
    x, q = torch.randn(32, 64), MADE[kind]()
    tensor = tex["create_empty_quantized_tensor"](q, [32, 64], dtype, torch.device("cpu"), False)
    assert tensor.dtype is dtype
    tex["quantize"](x, q, tensor)
    want = tex["dequantize"](tex["quantize"](x, MADE[kind]()), torch.float32)
    assert torch.equal(tex["dequantize"](tensor, torch.float32), want)


def test_an_empty_amax_is_not_recorded():
    x, q = torch.randn(32, 64), Q.Float8Quantizer(torch.full((1,), 20.0), torch.empty(0))
    with_amax = Q.Float8Quantizer(torch.full((1,), 20.0), torch.zeros(1))
    assert torch.equal(tex["quantize"](x, q)._data, tex["quantize"](x, with_amax)._data)
    assert torch.equal(opmux.tex.gelu(x, q)._data, opmux.tex.gelu(x, with_amax)._data)


def test_fp8_is_transposed_as_bytes():
    x = torch.randn(4, 6).to(torch.float8_e4m3fn)
    y = tex["fp8_transpose"](x, torch.float8_e4m3fn, out=None)
    assert y.dtype is torch.uint8 and torch.equal(y.view(torch.float8_e4m3fn).float(), x.float().t())


@every_kind
def test_a_tensor_without_elements_is_quantized(kind):
    tensor = tex["quantize"](torch.empty(0, 64, dtype=torch.bfloat16), MADE[kind]())
    back = tex["dequantize"](tensor, torch.bfloat16)
    assert back.shape == (0, 64) and back.dtype == torch.bfloat16


def test_a_0_dim_tensor_is_quantized():
    tensor = tex["quantize"](torch.tensor(2.0), MADE["delayed"]())
    assert (
        tensor._data.shape == tensor._transpose.shape == () and tex["dequantize"](tensor, torch.float32).item() == 2.0
    )


def test_inference_tensors_in_the_state_are_written():
    with torch.inference_mode():
        amax = torch.zeros(1)
    tex["quantize"](torch.tensor([[3.0, -4.0]]), Q.Float8Quantizer(torch.ones(1), amax))
    assert amax.item() == 4.0
    tex["compute_amax"](torch.tensor([[3.0, -9.0]]), amax)
    assert amax.item() == 9.0


def test_quantizing_parameters_records_no_gradient():
    w = torch.nn.Parameter(torch.randn(32, 64))
    tensor = tex["quantize"](w, MADE["delayed"]())
    assert not tensor.dequantize().requires_grad and w.grad is None


def test_kinds_are_recognized_by_class():
    assert [Q.kind_of(make()) for make in MADE.values()] == list(MADE) and Q.kind_of(None) is None
    with pytest.raises(TypeError, match="must be None or one of Float8Quantizer.*got Tensor"):
        Q.kind_of(torch.ones(1))
    assert (
        not Q.is_quantized(torch.ones(1)) and not Q.is_quantized(None) and Q.plain(Q.OPS, torch.ones(1)).item() == 1.0
    )


def older_engine():
    """A module like that of version 2.9, in which tensors have no device and storages have no dtype."""
    module = types.ModuleType("transformer_engine.pytorch.tensor.old")

    class Float8TensorBase:
        def __new__(cls, *args, data, fp8_scale_inv, fp8_dtype, data_transpose=None, quantizer=None, **kwargs):
            tensor = object.__new__(cls)
            tensor._data, tensor._scale_inv, tensor._fp8_dtype, tensor._transpose = (
                data,
                fp8_scale_inv,
                fp8_dtype,
                data_transpose,
            )
            tensor._transpose_invalid, tensor._dtype, tensor.given = data_transpose is None, torch.float32, kwargs
            return tensor

        def __init__(self, *args, **kwargs):
            pass

    class Float8Tensor(Float8TensorBase):
        def __new__(cls, shape, dtype, *, requires_grad=False, **kwargs):
            tensor = Float8TensorBase.__new__(cls, **kwargs)
            tensor.asked = (shape, dtype)
            return tensor

    class Float8Quantizer(Q.Float8Quantizer):
        pass

    for cls in (Float8TensorBase, Float8Tensor, Float8Quantizer):
        cls.__module__ = module.__name__
        setattr(module, cls.__name__, cls)
    return module


def test_tensor_classes_come_from_the_quantizers_module(monkeypatch):
    old = older_engine()
    monkeypatch.setitem(sys.modules, old.__name__, old)
    q = old.Float8Quantizer(torch.tensor([20.0]), torch.zeros(1), DType.kFloat8E5M2)
    x = torch.randn(3, 5)
    tensor = tex["quantize"](x, q)
    assert type(tensor) is old.Float8Tensor and tensor.asked == ((3, 5), torch.float32) and tensor.given == {}
    q.internal = True
    assert type(tex["quantize"](x, q)) is old.Float8TensorBase
    assert torch.equal(tensor._data, cast(x, 20.0, E5M2)[0])
    assert Q.is_quantized(tensor) and (tex["dequantize"](tensor, torch.float32) - x).abs().max() < 0.5
    wrapped = Q.wrapped_fp8(q, tensor._data, (3, 5), torch.bfloat16)
    assert type(wrapped) is old.Float8TensorBase and wrapped._scale_inv.item() == f32(1 / 20)


# ---- other tex functions ---------------------------------------------------------------------------------------------


def test_bgrad_quantize_returns_the_column_sums():
    x = torch.randn(4, 5, 64, dtype=torch.bfloat16)
    bias, same = tex["bgrad_quantize"](x, None)
    torch.testing.assert_close(bias, x.double().sum((0, 1)).to(torch.bfloat16))
    assert torch.equal(same, x)
    bias, tensor = tex["bgrad_quantize"](x[:0], MADE["delayed"]())
    assert torch.equal(bias, torch.zeros(64, dtype=torch.bfloat16)) and tensor.shape == (0, 5, 64)


def test_each_piece_is_quantized_by_its_own_quantizer():
    x, three = torch.randn(96, 64), [MADE["delayed"](), MADE["mxfp8"](), MADE["current"]()]
    for got, part, q in zip(tex["split_quantize"](x, [64, 32, 0], three), x.split([64, 32, 0]), three, strict=True):
        want = tex["quantize"](part, q)
        assert type(got) is type(want) and all(torch.equal(v, buffers(want)[n]) for n, v in buffers(got).items())


def test_fp4_is_quantized_with_known_amaxes():
    x, q = torch.randn(32, 64), MADE["nvfp4"]()
    tensor = tex["nvfp4_quantize_with_amax"](x, q, torch.tensor([9.0]), torch.tensor([7.0]))
    assert torch.equal(tensor._rowwise_data, fp4.encoded(x, torch.tensor([9.0]))[0])
    assert torch.equal(tensor._columnwise_data, fp4.encoded(x.t(), torch.tensor([7.0]))[0])
    assert (tensor._amax_rowwise.item(), tensor._amax_columnwise.item()) == (9.0, 7.0)


def moved(buffer, histories, scales, algo, largest):
    """Compute the update of delayed scaling one number at a time."""
    index = 0
    for h, s in zip(histories, scales, strict=True):
        for j in range(s.numel()):
            last = buffer[index].item() if buffer.numel() and buffer[index] != 0 else h[0, j].item()
            index += 1
            if last != 0:
                h[:, j] = torch.tensor([*h[1:, j].tolist(), last])
                amax = last if algo == "most_recent" else max(h[:, j].tolist())
                h[0, j] = 0
                if 0 < amax < math.inf:
                    s[j] = min(f32(f32(largest) / amax), torch.finfo(torch.float32).max)


@pytest.mark.parametrize("algo", ["max", "most_recent"])
@pytest.mark.parametrize("lengths", [(4, 4, 4), (1, 7, 4), (16, 16, 1)])
@pytest.mark.parametrize("reduced", [True, False])
def test_amax_histories_are_updated_as_nvidias(algo, lengths, reduced):
    counts = (3, 1, 5)
    for mode in (False, True):
        with torch.inference_mode(mode):  # with and without inference tensors
            histories = [torch.rand(n, c) * 10 for n, c in zip(lengths, counts, strict=True)]
            histories[0][:, 1] = 0
            histories[2][0] = 0
            scales = [torch.rand(c) for c in counts]
            buffer = torch.rand(9) * torch.tensor([1, 0, 1, 0, 1, 1e-44, math.inf, 0, 0]).nan_to_num(posinf=math.inf)
            buffer = buffer if reduced else torch.empty(0)
            want = [h.clone() for h in histories], [s.clone() for s in scales]
        with torch.inference_mode(mode):
            moved(buffer, *want, algo, 448.0 / 2)
        update = tex["fused_amax_and_scale_update_after_reduction"]
        assert update(buffer, histories, scales, algo, E4M3, 1) is None
        for got, expected in zip((*histories, *scales), (*want[0], *want[1]), strict=True):
            assert torch.equal(got, expected), (got, expected)


def test_many_histories_take_as_few_launches_as_one():
    """Only torch's own batched copies loop over tensors."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            views = ("view", "split", "_unsafe_view", "detach", "alias", "select", "slice", "unsqueeze", "reshape")
            self.seen += func.__name__.split(".")[0] not in views
            return func(*args, **(kwargs or {}))

    def launches(n):
        count = Count()
        count.seen = 0
        histories, scales = [torch.rand(4, 3) for _ in range(n)], [torch.ones(3) for _ in range(n)]
        with count:
            tex_quantize.update(quant.amax_history, torch.rand(3 * n), histories, scales, 4, 448.0, False)
        return count.seen

    launches(1), launches(200)  # the first call computes and caches the order of the histories' numbers
    assert launches(200) == launches(1)
