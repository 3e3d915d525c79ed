"""tex's block scales of shards and NVFP4 helpers match loops over elements; also functions that need other hardware."""

import pytest
import torch

from opmux.core.errors import NoImplementation, NotSupported
from opmux.core.spec import specs
from opmux.faces.tex.ops import nvfp4, scaling, unavailable
from opmux.faces.tex.quantized import OPS, Float8BlockQuantizer, MXFP8Quantizer, NVFP4Quantizer, quantized

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

CPU = torch.device("cpu")
MINE = [s for s in specs if s.family in ("tex_scaling", "tex_nvfp4", "tex_unavailable")]
LEVELS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def drawn(*shape, seed=1, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def elements(shard, w, start):
    """The (row, column, value) of each element of a shard."""
    return [((start + i) // w, (start + i) % w, v) for i, v in enumerate(shard.tolist())]


def amaxes(shard, w, start, rows, cols, shape):
    want = torch.zeros(shape)
    for r, c, v in elements(shard, w, start):
        want[r // rows, c // cols] = max(float(want[r // rows, c // cols]), abs(v))
    return want


def e4m3(x):
    return torch.tensor(max(-448.0, min(448.0, x))).to(torch.float8_e4m3fn).view(torch.uint8).item()


def nearest_fp4(x):
    """The code of the nearest of the 16 values, by comparing with all magnitudes; ties go to the even code."""
    best = min(range(8), key=lambda i: (abs(abs(x) - LEVELS[i]), i % 2))
    return best | (8 if x < 0 or str(x)[0] == "-" else 0)


@pytest.mark.parametrize("spec", [s for s in MINE if s.mutates], ids=lambda s: s.name)
def test_only_declared_arguments_are_written(spec):
    for sample in spec.samples(torch.float32, CPU):
        arguments = spec.signature.bind(*sample.args, **sample.kwargs).arguments
        originals = {n: [t.clone() for t in tensors(v)] for n, v in arguments.items() if n not in spec.mutates}
        spec.reference(*sample.args, **sample.kwargs)
        for name, before in originals.items():
            assert all(map(torch.equal, tensors(arguments[name]), before)), name


def tensors(value):
    return (
        [value]
        if isinstance(value, torch.Tensor)
        else [t for v in value for t in tensors(v)]
        if isinstance(value, list)
        else []
    )


# ---- shards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start, size", [(0, 130 * 150), (5, 1), (153, 9000), (149, 152), (130 * 150, 0)])
def test_amax_of_blocks_of_a_shard_matches_a_loop(start, size):
    shard = drawn(size)
    wide = torch.full((2, 5), 9.0)
    amax = wide[:, ::2][:, :3]  # strided; the third column is padding
    scaling.fp8_block_scaling_compute_partial_amax(shard, amax, 130, 150, start, 128)
    assert torch.equal(amax[:, :2], amaxes(shard, 150, start, 128, 128, (2, 2)))
    assert (amax[:, 2] == 9).all() and (wide[:, 1::2] == 9).all()


def test_amax_ignores_nan():
    amax = torch.zeros(1, 1)
    scaling.fp8_block_scaling_compute_partial_amax(torch.tensor([1.0, torch.nan, -3.0]), amax, 2, 4, 1, 128)
    assert amax.item() == 3.0


@pytest.mark.parametrize("dtype, most", [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)])
def test_cast_of_a_shard_by_blocks_matches_a_loop(dtype, most):
    shard, scale = drawn(400, scale=30.0).bfloat16(), torch.tensor([[1.0, 1e9], [0.3, 7.0]])
    out = torch.zeros(400, dtype=torch.uint8)
    start = 127 * 140 + 100
    scaling.fp8_block_scaling_partial_cast(shard, out, scale, 131, 140, start, 128, dtype)
    got = out.view(dtype).float().tolist()
    for (r, c, v), g in zip(elements(shard, 140, start), got, strict=True):
        x = torch.tensor(v) * scale[r // 128, c // 128]
        assert g == x.clamp(-most, most).to(dtype).float().item()
    assert max(got) == most  # some values were clamped


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("start, size", [(0, 64 * 96), (101, 700), (6144, 0)])
def test_amax_of_mx_blocks_of_a_shard_matches_a_loop(start, size, dtype):
    shard = drawn(size).to(dtype)
    rows, cols = torch.full((128, 4), 9.0, dtype=dtype), torch.full((4, 128), 9.0, dtype=dtype)
    scaling.mxfp8_scaling_compute_partial_amax(shard, rows, cols, 64, 96, start)
    assert torch.equal(rows, amaxes(shard, 96, start, 1, 32, (128, 4)).to(dtype))
    assert torch.equal(cols, amaxes(shard, 96, start, 32, 1, (4, 128)).to(dtype))


def test_cast_of_a_shard_by_mx_blocks_matches_a_loop():
    shard, start = drawn(300, scale=5.0), 70
    by_row = torch.randint(118, 132, (128, 4), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    by_col = torch.randint(118, 132, (4, 128), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    row, col = torch.zeros(300, dtype=torch.uint8), torch.zeros(300, dtype=torch.uint8)
    scaling.mxfp8_scaling_partial_cast(shard, row, col, by_row, by_col, 64, 96, start)
    for i, (r, c, v) in enumerate(elements(shard, 96, start)):
        assert row[i].item() == e4m3(v * 2.0 ** (127 - by_row[r, c // 32].item()))
        assert col[i].item() == e4m3(v * 2.0 ** (127 - by_col[r // 32, c].item()))


SHARDS = ((0, 3001), (3001, 64 * 96))


def test_cast_shards_equal_a_quantized_block_tensor():
    x = drawn(64, 96, scale=3.0)
    whole = quantized(OPS, x, Float8BlockQuantizer(columnwise=False))
    amax = torch.zeros(len(SHARDS), *whole._rowwise_scale_inv.shape)
    for part, (a, b) in zip(amax, SHARDS, strict=True):
        scaling.fp8_block_scaling_compute_partial_amax(x.view(-1)[a:b], part, 64, 96, a, 128)
    assert amax.amax(0)[0, 0] == x.abs().max()
    out, scale = torch.zeros(64 * 96, dtype=torch.uint8), 1 / whole._rowwise_scale_inv
    for a, b in SHARDS:
        args = 64, 96, a, 128, torch.float8_e4m3fn
        scaling.fp8_block_scaling_partial_cast(x.view(-1)[a:b], out[a:b], scale, *args)
    assert torch.equal(out.view(64, 96), whole._rowwise_data)


def test_cast_shards_equal_a_quantized_mx_tensor():
    x = drawn(64, 96, scale=3.0)
    whole = quantized(OPS, x, MXFP8Quantizer())
    row, col = torch.zeros(2, 64 * 96, dtype=torch.uint8)
    for a, b in SHARDS:
        scales = whole._rowwise_scale_inv, whole._columnwise_scale_inv
        scaling.mxfp8_scaling_partial_cast(x.view(-1)[a:b], row[a:b], col[a:b], *scales, 64, 96, a)
    assert torch.equal(row.view(64, 96), whole._rowwise_data)
    assert torch.equal(col.view(64, 96), whole._columnwise_data)


def test_cast_shards_equal_a_quantized_nvfp4_tensor():
    x = drawn(64, 96, scale=3.0)
    whole = quantized(OPS, x, NVFP4Quantizer(with_2d_quantization=True))
    parts, amax = torch.zeros(2, 4, 6), torch.zeros(2, 1)
    shards = [x.view(-1)[a:b] for a, b in SHARDS]
    starts = [a for a, _ in SHARDS]
    nvfp4.nvfp4_multi_tensor_compute_partial_amax(shards, list(parts), list(amax), [64] * 2, [96] * 2, starts)
    tiles, top, scale = parts.amax(0), amax.amax(0), torch.zeros(4, 6)
    held, held_amax = torch.zeros_like(whole._rowwise_scale_inv), torch.zeros(1)
    nvfp4.nvfp4_fused_scale(tiles, top, scale, held, held_amax, 4, 6, 64, 16)
    assert torch.equal(held_amax, whole._amax_rowwise) and torch.equal(held_amax[0], x.abs().max())
    assert torch.equal(held[:64, :6], whole._rowwise_scale_inv[:64, :6])
    encode, out = torch.zeros(1), torch.zeros(64 * 48, dtype=torch.uint8)
    nvfp4.nvfp4_compute_global_scale(top, encode)
    for a, b in SHARDS:  # the first shard ends in the middle of a byte
        nvfp4.nvfp4_2d_partial_cast(x.view(-1)[a:b], out[a // 2 : (b + 1) // 2], scale, encode, 64, 96, a)
    assert torch.equal(out.view(64, 48), whole._rowwise_data)
    columns, col_scales = torch.zeros_like(whole._columnwise_data), torch.zeros_like(whole._columnwise_scale_inv)
    lists = [out.view(64, 48)], [columns], [held], [col_scales], [64], [96]
    nvfp4.nvfp4_2d_multi_tensor_transpose(*lists)
    assert torch.equal(columns, whole._columnwise_data)
    assert torch.equal(col_scales[:96, :4], whole._columnwise_scale_inv[:96, :4])


# ---- NVFP4 ----------------------------------------------------------------------------------------------------------


def test_nvfp4_data_transpose_matches_a_loop():
    data = torch.randint(0, 256, (6, 4), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    codes = [[b >> 4 * half & 15 for b in row for half in (0, 1)] for row in data.tolist()]
    want = [[codes[2 * i][k] | codes[2 * i + 1][k] << 4 for i in range(3)] for k in range(8)]
    assert nvfp4.nvfp4_data_transpose(data, out=None).tolist() == want
    out = torch.zeros(8, 3, dtype=torch.uint8)
    assert nvfp4.nvfp4_data_transpose(data, out=out) is out and out.tolist() == want
    with pytest.raises(ValueError, match=r"nvfp4_data_transpose: input must have shape \[2\*m, k\]; got"):
        nvfp4.nvfp4_data_transpose(data[:5], out=None)


def test_nvfp4_2d_scale_transpose_matches_a_loop():
    scales = torch.arange(48 * 4).view(48, 4).to(torch.uint8)
    out = torch.full((64, 4), 99, dtype=torch.uint8)
    nvfp4.nvfp4_2d_scale_transpose(scales, out, 3, 2)
    for r in range(64):
        for c in range(4):
            want = 99 if c >= 3 else scales[16 * c, r // 16].item() if r < 32 else 0
            assert out[r, c].item() == want


@pytest.mark.parametrize("amax, want", [(2688.0, 1.0), (3.0, 896.0), (0.0, 1.0), (1e-42, torch.finfo().max)])
def test_nvfp4_global_scale_has_the_expected_value(amax, want):
    out = torch.zeros(1)
    nvfp4.nvfp4_compute_global_scale(torch.tensor([amax]), out)
    assert out.item() == want


def test_nvfp4_block_scales_have_the_expected_values():
    amax, out = torch.tensor([[6.0, 3.0, 0.0]]), torch.full((1, 3), -1.0)
    nvfp4.nvfp4_compute_per_block_scale(amax, out, torch.tensor([6.0]))
    assert out.tolist() == [[448.0, 224.0, 0.0]]
    nvfp4.nvfp4_compute_per_block_scale(amax, out, torch.tensor([0.0]))
    assert out.tolist() == [[1.0, 0.5, 0.0]]
    rows = torch.full((40, 4), 99, dtype=torch.uint8)
    nvfp4.nvfp4_expand_scale_to_fp8(torch.tensor([[448.0, 1.03, 0.0], [9e9, 2.0, 1.0]]), rows, 2, 3, 40, 16)
    bytes_ = [[e4m3(v) for v in row] for row in ([448.0, 1.03, 0.0], [448.0, 2.0, 1.0])]
    assert rows.tolist() == [[*bytes_[0], 99]] * 16 + [[*bytes_[1], 99]] * 16 + [[0, 0, 0, 99]] * 8


def test_the_fused_nvfp4_scale_equals_its_separate_steps():
    amax, top = drawn(3, 4).abs(), torch.tensor([3.0])
    scale, rows, scale_inv = torch.zeros(3, 4), torch.zeros(128, 4, dtype=torch.uint8), torch.zeros(1)
    nvfp4.nvfp4_multi_tensor_fused_scale([amax], [top], [scale], [rows], [scale_inv], [3], [4], [128], 16)
    want, want_rows = torch.zeros(3, 4), torch.zeros(128, 4, dtype=torch.uint8)
    nvfp4.nvfp4_compute_per_block_scale(amax, want, top)
    nvfp4.nvfp4_expand_scale_to_fp8(want, want_rows, 3, 4, 128, 16)
    assert torch.equal(scale, want) and torch.equal(rows, want_rows) and scale_inv.item() == 3.0


@pytest.mark.parametrize("start, size", [(0, 40), (3, 24), (7, 1), (16, 15)])
def test_cast_of_a_shard_to_fp4_matches_a_loop(start, size):
    shard, encode = drawn(size, scale=2.0), 5.0
    scale = torch.tensor([[1.7, 0.9], [300.0, 0.0]])
    first = start // 2
    out = torch.full(((start + size + 1) // 2 - first,), 0x5A, dtype=torch.uint8)
    nvfp4.nvfp4_2d_partial_cast(shard, out, scale, torch.tensor([encode]), 4, 18, start)
    for r, c, v in elements(shard, 18, start):
        decode = scale[r // 16, c // 16].to(torch.float8_e4m3fn).float()
        factor = 1 / (decode * (1 / torch.tensor(encode))) if decode else torch.tensor(torch.finfo().max)
        element = r * 18 + c
        assert out[element // 2 - first].item() >> 4 * (element % 2) & 15 == nearest_fp4(
            (torch.tensor(v) * factor).item()
        )
    if start % 2:
        assert out[0].item() & 15 == 0xA
    if (start + size) % 2:
        assert out[-1].item() >> 4 == 0x5


# ---- swizzling ------------------------------------------------------------------------------------------------------


def test_swizzling_changes_nothing_because_our_gemms_read_plain_scales():
    tensor = quantized(OPS, drawn(32, 32), MXFP8Quantizer())
    originals = tensor._rowwise_scale_inv.clone(), tensor._columnwise_scale_inv.clone()
    assert scaling.swizzle_scales_for_gemm_(tensor) is None
    assert scaling.multi_tensor_swizzle_scales_for_gemm_([tensor], True, True) is None
    assert scaling.multi_tensor_swizzle_scales_for_gemm_unchecked_([tensor], True, False) is None
    assert torch.equal(tensor._rowwise_scale_inv, originals[0]) and torch.equal(
        tensor._columnwise_scale_inv, originals[1]
    )
    assert tensor._with_gemm_swizzled_scales is False
    with pytest.raises(TypeError, match="tensors must be a quantized tensor in every item; got Tensor at index 0"):
        scaling.multi_tensor_swizzle_scales_for_gemm_([drawn(2, 2)], True, True)


@pytest.mark.parametrize("direction", ["mxfp8_rowwise", "mxfp8_columnwise", "nvfp4"])
def test_scales_for_external_kernels_are_swizzled(direction):
    scales = torch.randint(0, 256, (256, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    data = [torch.zeros(3, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)]
    input_scales = scales.t().contiguous() if direction == "mxfp8_columnwise" else scales
    ptrs, scale_ptrs, buffer = scaling.swizzle_scales_and_pack_ptrs_for_discrete_weights(
        data, [input_scales, input_scales], direction, CPU
    )
    assert ptrs.tolist() == [d.data_ptr() for d in data]
    assert scale_ptrs.tolist() == [buffer.data_ptr(), buffer.data_ptr() + 2048] and buffer.numel() == 4096
    swizzled = buffer.tolist()
    for r in range(256):
        for c in range(8):
            tile = r // 128 * 2 + c // 4
            offset = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            assert swizzled[offset] == swizzled[2048 + offset] == scales[r, c].item()


# ---- functions that need other hardware -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(unavailable.UNAVAILABLE))
def test_an_unavailable_function_says_what_it_needs(name):
    spec = specs.by_key[f"tex::{name}"]
    args = next(iter(spec.samples(torch.float32, CPU))).args
    row = unavailable.UNAVAILABLE[name]
    with pytest.raises(NotSupported, match=rf"^{name}\(.*\): needs ") as caught:
        spec.reference(*args)
    assert row.needs in str(caught.value) and row.instead in str(caught.value)
    with pytest.raises((NotSupported, NoImplementation), match="needs"):
        specs.functions[spec.key](*args)
    with pytest.raises(TypeError):
        specs.functions[spec.key](*args, nonsense=1)


def test_capability_queries_have_fixed_answers():
    assert unavailable.get_cublasLt_version() < 130300 and unavailable.get_num_cublas_streams() == 4
    assert 90000 < unavailable.get_cudnn_version() < 200000
    assert unavailable.device_supports_multicast() is unavailable.ubuf_built_with_mpi() is False
    assert unavailable.nvte_built_with_cublasmp() is unavailable.ep_zero_copy_supported() is False
    assert unavailable.ep_get_zero_copy() is False and unavailable.ep_finalize() is None
    if not torch.cuda.is_available():
        assert unavailable.get_stream_priority_range() == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m, n", [(5, 8), (8, 5), (6, 6)])
def test_newton_schulz_applies_a_polynomial_to_the_singular_values(m, n, dtype):
    x = drawn(m, n)
    x = (x / torch.linalg.matrix_norm(x, 2)).to(dtype)
    steps = [3.4445, -4.7750, 2.0315, 2.8366, -3.0525, 1.2012, 1.875, -1.25, 0.375]
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    for a, b, c in (steps[i : i + 3] for i in (0, 3, 6)):
        s = a * s + b * s**3 + c * s**5
    ctx = unavailable.cusolvermp_ctx_create(0, 1, 0)
    assert isinstance(ctx, int) and ctx
    assert unavailable.newton_schulz(ctx, m, n, x, 3, steps) is None
    tol = 2e-5 if dtype is torch.float32 else 5e-3
    torch.testing.assert_close(x.double(), u * s @ v, rtol=tol, atol=tol)
    unavailable.cusolvermp_ctx_destroy(ctx)
    with pytest.raises(ValueError, match="newton_schulz: ctx_ptr must be of cusolvermp_ctx_create"):
        unavailable.newton_schulz(ctx, m, n, x, 3, steps)


def test_a_context_of_several_ranks_is_rejected():
    with pytest.raises((NotSupported, NoImplementation), match="nranks must be 1.*cuSOLVERMp"):
        unavailable.cusolvermp_ctx_create(0, 2, 1)
