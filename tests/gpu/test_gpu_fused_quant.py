"""Norms and activations with float8 results, some with a factor for each row, on a GPU at real sizes."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import specs
from opmux.faces.tex import quantized
from opmux.faces.tex.ops import activation as tex_activation
from opmux.faces.tex.ops import norm as tex_norm
from opmux.faces.tex.ops import quantize as tex_quantize
from opmux.faces.tex.ops import scaled_activation as tex_scaled_activation

pytestmark = pytest.mark.gpu

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SHAPES = [(4096, 8192), (2, 1023, 11008), (70_000, 40), (300, 4096), (64, 131072)]


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def arguments(name, shape, dtype):
    *lead, n = shape
    x, dy, both = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype), lambda: draw(*lead, 2 * n, dtype=dtype)
    weight, bias = draw(n, dtype=dtype), draw(n, dtype=dtype)
    return {
        "rms_norm_fp8": lambda: (x, weight),
        "layer_norm_fp8": lambda: (x, weight, bias),
        "act_fp8": lambda: (x,),
        "act_bwd_fp8": lambda: (dy, x),
        "act_bias_bwd_fp8": lambda: (dy, x),
        "glu_fp8": lambda: (both(),),
        "glu_bwd_fp8": lambda: (dy, both()),
    }[name]()


def tail(name):
    return (1e-6, 0.0) if "norm" in name else ("silu",)


NAMES = sorted(s.name for s in specs.by_key.values() if s.space == "opmux" and s.name.endswith("_fp8"))


@pytest.mark.parametrize("dtype, to", [(torch.bfloat16, E4M3), (torch.float32, E5M2)], ids=["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_float8_results_agree_with_the_reference(name, shape, dtype, to):
    """The second call uses the bound launch. A byte may differ by one if its value is at a rounding boundary."""
    args, scale = arguments(name, shape, dtype), torch.full((1,), 9.0, device="cuda")
    amax_want = torch.zeros(1, device="cuda")
    want = specs.by_key[f"opmux::{name}"].reference(*args, scale, amax_want, to, *tail(name))
    for _ in range(2):
        amax = torch.zeros(1, device="cuda")
        with opmux.policy("flagos", strict=True):
            got = getattr(opmux.ops, name)(*args, scale, amax, to, *tail(name))
        # map bytes to integers that have the order of the float8 numbers
        a, b = (torch.where(t[0] < 128, t[0].int(), 128 - t[0].int()) for t in (got, want))
        assert (a - b).abs().max() <= 1 and (a != b).float().mean() < 1e-3
        assert torch.equal(got[1], want[1])
        torch.testing.assert_close(amax, amax_want, rtol=1e-5, atol=0)
        for g, w in zip(got[2:], want[2:], strict=True):
            rows = args[0].numel() // shape[-1]
            torch.testing.assert_close(g.float(), w.float(), rtol=1.6e-2, atol=1e-5 * rows if "bias" in name else 1e-5)


def test_casts_equal_torchs_bit_for_bit():
    """relu of values across the whole float32 range, times 1: only the cast remains."""
    x = torch.randint(0, 2**31 - 1, (1 << 22,), device="cuda").int().view(torch.float32)
    x = torch.cat([x, torch.randn(1 << 22, device="cuda") * torch.logspace(-8, 6, 1 << 22, device="cuda")]).relu()
    one = torch.ones(1, device="cuda")
    for to, most in ((E4M3, 448.0), (E5M2, 57344.0)):
        got = opmux.ops.act_fp8(x, one, None, to, "relu")[0]
        want = x.clamp(max=most).to(to).view(torch.uint8)
        assert torch.equal(got[~x.isnan()], want[~x.isnan()]) and got[x.isnan()].view(to).float().isnan().all()


def test_delayed_scaling_works_in_a_cuda_graph():
    """The call is captured once and replayed with other values; amax keeps rising."""
    x, w = draw(512, 4096), draw(4096)
    scale, amax = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
    quantizer = quantized.Float8Quantizer(scale, amax)
    for _ in range(5):
        tex_norm.rmsnorm_fwd(x, w, 1e-5, None, quantizer, torch.bfloat16, 0, False)
        tex_activation.swiglu(x, quantizer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tex_norm.rmsnorm_fwd(x, w, 1e-5, None, quantizer, torch.bfloat16, 0, False)[0]
        gated = tex_activation.swiglu(x, quantizer)
    x.mul_(3.0)
    amax.zero_()
    graph.replay()
    y = torch.nn.functional.silu(x[:, :2048].float()) * x[:, 2048:].float()
    torch.testing.assert_close(amax, y.abs().amax().reshape(1), rtol=1e-5, atol=0)
    want = tex_norm.rmsnorm_fwd(x, w, 1e-5, None, quantizer, torch.bfloat16, 0, False)[0]
    assert torch.equal(out._data, want._data) and torch.equal(out._transpose, want._data.t())
    assert (gated._data.int() - tex_activation.swiglu(x, quantizer)._data.int()).abs().max() == 0


SCALED = {
    "silu_glu_scaled": (0,),
    "situ_glu": (4.0, 25.0, 32),
    "clamped_glu": (7.0, 1.702, 1.0, 0),
    "srelu_scaled": (),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(4096, 8192), (70_000, 64), (3, 50_000), (1000, 11008)], ids=str)
@pytest.mark.parametrize("name", SCALED)
def test_row_factors_agree_with_the_reference(name, shape, dtype):
    rest = SCALED[name] if shape[-1] % 32 == 0 else tuple(0 if p == 32 else p for p in SCALED[name])
    x = draw(shape[0], shape[1] * (2 if "glu" in name else 1), dtype=dtype)
    dy, scales = draw(*shape, dtype=dtype), torch.rand(shape[0], device="cuda")
    for op, args in ((name, (x, scales, *rest)), (f"{name}_bwd", (dy, x, scales, *rest))):
        spec = specs.by_key[f"opmux::{op}"]
        want = spec.reference(*args)
        for _ in range(2):
            with opmux.policy("flagos", strict=True):
                got = getattr(opmux.ops, op)(*args)
            for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
                tol, long = spec.tol[dtype], a.dim() == 1 and a.shape[0] == shape[0]
                atol = 1e-5 * shape[-1] if long else tol.atol
                torch.testing.assert_close(a.float(), b.float(), rtol=max(tol.rtol, 1e-5), atol=max(atol, 1e-5))


def test_tex_gated_units_agree_with_torch():
    x, s = draw(512, 2048), torch.rand(512, device="cuda")
    y = tex_scaled_activation.scaled_swiglu(x, s, None)
    a, b = x.float().chunk(2, -1)
    torch.testing.assert_close(y.float(), torch.nn.functional.silu(a) * b * s[:, None], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(tex_scaled_activation.situglu(x, None), opmux.ops.situ_glu(x))


def test_rmsnorm_bwd_add_is_one_pass():
    """The time limit is that of rms_norm_bwd plus reading one more tensor. It excludes a copy of x to float32."""
    x, dz, add, gamma = draw(4096, 8192), draw(4096, 8192), draw(4096, 8192), draw(8192)
    _, _, rsigma = tex_norm.rmsnorm_fwd(x, gamma, 1e-5, None, None, torch.bfloat16, 0, False)

    def took(call):
        call(), call()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(20):
            call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    plain = took(lambda: tex_norm.rmsnorm_bwd(dz, x, rsigma, gamma, 0, False))
    more = took(lambda: tex_norm.rmsnorm_bwd_add(dz, x, add, rsigma, gamma, 0, False))
    assert more < 1.8 * plain
    dx = tex_norm.rmsnorm_bwd_add(dz, x, add, rsigma, gamma, 0, False)[0]
    want = specs.by_key["opmux::rms_norm_bwd_add"].reference(dz, x, add, gamma, rsigma, 0.0)[0]
    torch.testing.assert_close(dx, want, rtol=1.6e-2, atol=1e-2)


# ---- fused quantization: the same bits as in two passes --------------------------------------------------------------

ONE_PASS = [(4096, 8192), (2, 1023, 1376), (1000, 4104), (64, 131072)]
QUANTIZERS = {
    "delayed": lambda: quantized.Float8Quantizer(torch.full((1,), 9.0, device="cuda"), torch.zeros(1, device="cuda")),
    "current": lambda: quantized.Float8CurrentScalingQuantizer(),
    "1x128": lambda: quantized.Float8BlockQuantizer(block_scaling_dim=1),
    "128x128": lambda: quantized.Float8BlockQuantizer(block_scaling_dim=2),
    "1x32": lambda: quantized.MXFP8Quantizer(),
    "32x32": lambda: quantized.MXFP8Quantizer(with_2d_quantization=True),
}
ROUNDED = [kind for kind in QUANTIZERS if kind != "delayed"]  # the result is rounded to bfloat16 before it is quantized


def fitting(shape, kind):
    """The shape, with dimensions rounded to whole blocks if the format needs that."""
    *lead, rows, n = shape
    return (*lead, -(-rows // 32) * 32, -(-n // 32) * 32) if "32" in kind else shape


def held(value):
    return {n: t for n, t in vars(value).items() if isinstance(t, torch.Tensor)}


def same(got, want):
    assert held(got).keys() == held(want).keys() and held(got)
    for name, t in held(got).items():
        assert torch.equal(t, held(want)[name]), name


def of_functions(shape):
    *lead, n = shape
    x, dy, both = draw(*shape), draw(*shape), draw(*lead, 2 * n)
    return {
        "gelu": (tex_activation.gelu, (x,)),
        "dsilu": (tex_activation.dsilu, (dy, x)),
        "swiglu": (tex_activation.swiglu, (both,)),
        "dswiglu": (tex_activation.dswiglu, (dy, both)),
    }


@pytest.mark.parametrize("shape", ONE_PASS, ids=str)
@pytest.mark.parametrize("kind", ROUNDED)
def test_quantized_activations_equal_two_passes(kind, shape):
    """The second call uses the bound launch."""
    for fn, args in of_functions(fitting(shape, kind)).values():
        quantizer = QUANTIZERS[kind]()
        with opmux.policy("flagos", strict=True):
            want = tex_quantize.quantize(fn(*args, None), quantizer, None, None)
            for _ in range(2):
                same(fn(*args, quantizer), want)


@pytest.mark.parametrize("shape", ONE_PASS, ids=str)
@pytest.mark.parametrize("kind", ["1x128", "1x32"])
def test_quantized_gradients_of_gated_units_equal_texs_two_passes(kind, shape):
    """Calls the primitives, because tex's functions use two passes for these gradients."""
    *lead, n = fitting(shape, kind)
    x, dy, quantizer = draw(*lead, 2 * n), draw(*lead, n), QUANTIZERS[kind]()
    got, transposed = quantized.empty(quantizer, x.shape, x.dtype, x.device), (2 * n, *lead)
    with opmux.policy("flagos", strict=True):
        if kind == "1x32":
            buffers = quantized.shaped(got, x.shape, x.shape)
            opmux.ops.act_mxfp8_into(x, dy, *buffers, None, E4M3, "silu", True, False)
        else:
            buffers = quantized.shaped(got, x.shape, transposed)
            opmux.ops.act_fp8_blocks_into(x, dy, *buffers, None, E4M3, "silu", True, False, True, 0.0)
        same(got, tex_activation.dswiglu(dy, x, quantizer))


@pytest.mark.parametrize("shape", ONE_PASS, ids=str)
def test_delayed_scaled_activations_also_write_the_transpose(shape):
    """The bytes equal those of the ops that write no transpose."""
    names = {"gelu": ("act_fp8", "gelu_tanh"), "dsilu": ("act_bwd_fp8", "silu"), "swiglu": ("glu_fp8", "silu"),
             "dswiglu": ("glu_bwd_fp8", "silu")}  # fmt: skip
    for name, (fn, args) in of_functions(shape).items():
        quantizer, amax, (op, act) = QUANTIZERS["delayed"](), torch.zeros(1, device="cuda"), names[name]
        with opmux.policy("flagos", strict=True):
            want, inverse = getattr(opmux.ops, op)(*args, quantizer.scale, amax, E4M3, act)
            got = fn(*args, quantizer)
        assert torch.equal(got._data, want) and torch.equal(got._scale_inv, inverse)
        assert torch.equal(quantizer.amax, amax)
        if got._transpose is not None:
            assert torch.equal(got._transpose, want.movedim(-1, 0))


@pytest.mark.parametrize("shape", ONE_PASS, ids=str)
@pytest.mark.parametrize("kind", ROUNDED)
def test_quantized_norms_equal_two_passes(kind, shape):
    shape = fitting(shape, kind)
    x, w, b = draw(*shape), draw(shape[-1]), draw(shape[-1])
    with opmux.policy("flagos", strict=True):
        for fn, args in ((tex_norm.rmsnorm_fwd, (x, w)), (tex_norm.layernorm_fwd, (x, w, b))):
            y, *stats = fn(*args, 1e-5, None, None, torch.bfloat16, 0, True)
            want = tex_quantize.quantize(y, QUANTIZERS[kind](), None, None)
            for _ in range(2):
                got, *more = fn(*args, 1e-5, None, QUANTIZERS[kind](), torch.bfloat16, 0, True)
                same(got, want)
                torch.testing.assert_close(more, stats, rtol=1e-5, atol=1e-7)  # sums over blocks of another size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [*ONE_PASS, (8192, 4096), (8192, 14336), (512, 64), (256, 32768)], ids=str)
@pytest.mark.parametrize("kind", ["1x128", "1x32"])
def test_row_quantized_norms_equal_two_passes(kind, shape, dtype):
    shape = fitting(shape, kind)
    x, w, b = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype), draw(shape[-1], dtype=dtype)
    quantizer = QUANTIZERS[kind]()
    quantizer.set_usage(rowwise=True, columnwise=False)
    with opmux.policy("flagos", strict=True):
        for fn, args in ((tex_norm.rmsnorm_fwd, (x, w)), (tex_norm.layernorm_fwd, (x, w, b))):
            y, *stats = fn(*args, 1e-5, None, None, dtype, 0, True)
            want = tex_quantize.quantize(y, quantizer, None, None)
            for _ in range(2):
                got, *more = fn(*args, 1e-5, None, quantizer, dtype, 0, True)
                same(got, want)
                torch.testing.assert_close(more, stats, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", ONE_PASS, ids=str)
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_bias_sums_equal_two_passes(kind, shape):
    shape = fitting(shape, kind)
    x, dy = draw(*shape), draw(*shape)
    rows = x.numel() // shape[-1]
    with opmux.policy("flagos", strict=True):
        dbias, quantized_dx = tex_quantize.bgrad_quantize(x, QUANTIZERS[kind]())
        same(quantized_dx, tex_quantize.quantize(x, QUANTIZERS[kind](), None, None))
        torch.testing.assert_close(dbias.float(), x.double().view(rows, -1).sum(0).float(), rtol=1e-2, atol=1e-5 * rows)
        dbias, quantized_dx = tex_activation.dbias_dgelu(dy, x, QUANTIZERS[kind]())
        same(quantized_dx, tex_activation.dgelu(dy, x, QUANTIZERS[kind]()))
        want = tex_activation.dbias_dgelu(dy, x, None)[0]
        torch.testing.assert_close(dbias.float(), want.float(), rtol=1e-2, atol=1e-5 * rows)
