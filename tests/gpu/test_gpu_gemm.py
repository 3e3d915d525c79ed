"""Matrix products on the GPU: cuBLAS calls and our kernels compared with the references, and tex's gemm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from impls import refusal

import opmux
import opmux.functional
from opmux.core import get_default_manager, specs
from opmux.core.dispatch import PROVEN_AFTER
from opmux.core.spec import Tol
from opmux.faces.tex import quantized as q
from opmux.faces.tex.ops import gemm as tex_gemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("full_precision"),
    pytest.mark.skipif(torch.version.cuda is None, reason="needs NVIDIA's CUDA"),
]

CUDA = torch.device("cuda")
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
OPS = "linear linear_bwd linear_act gemm gemm_gelu gemm_dgelu gemm_add_ scaled_gemm block_scaled_gemm".split()
PLAIN = ("scaled_gemm", "block_scaled_gemm")
IMPLS = [(op, i) for op in OPS for i in ("default.flagos", "vendor.nvidia.cublas")]
IMPLS += [("matmul", "default.flagos"), *((op, "vendor.nvidia.cublas_plain") for op in PLAIN)]
HOPPER = "default.flagos.nvidia.hopper"
IMPLS += [("block_scaled_gemm", HOPPER)]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def impl_of(op, impl_id):
    matches = [i for i in get_default_manager().registry.get_implementations(op) if i.impl_id == impl_id]
    if impl_id == HOPPER and (not matches or matches[0].available() is not True):
        pytest.skip("needs Hopper, and Gluon")
    return matches[0]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def fresh(args):
    return tuple(a.clone() if torch.is_tensor(a) and a.is_contiguous() else a for a in args)


# sm_90 tensor cores keep about 14 bits when they sum the FP8 products of a block; cuBLAS has the same errors.
SUMS_OF_FP8 = Tol(1e-5, 5e-3)


def agree(op, impl_id, args, what=""):
    """The impl's result, which must agree with the reference; None if the impl declines the arguments."""
    impl, spec = impl_of(op, impl_id), specs.find(op)
    if refusal(impl, *args) is not None:
        return None
    mine, other = fresh(args), fresh(args)
    got, want = impl.fn(*mine), spec.reference(*other)
    if spec.mutates:
        got, want = mine[0], other[0]
    for g, w in zip(as_tuple(got), as_tuple(want), strict=True):
        tol = SUMS_OF_FP8 if op == "block_scaled_gemm" and w.dtype is F32 else spec.tol[w.dtype]
        assert g.dtype is w.dtype and g.shape == w.shape and g.isfinite().all(), what
        torch.testing.assert_close(g, w, rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{op} {impl_id} {what}: {m}")
    return got


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("op, impl_id", IMPLS)
def test_samples_agree_with_the_reference(op, impl_id, dtype):
    for sample in specs.find(op).samples(dtype, CUDA):
        agree(op, impl_id, sample.args, sample.id)


def new(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(shape, device=CUDA) * scale).to(dtype)


SIZES = [(4096, 4096, 1024), (1000, 1032, 4096), (37, 1000, 515), (1, 4096, 4096), (16384, 128, 256)]


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("impl_id", ["default.flagos", "vendor.nvidia.cublas"])
def test_gemm_agrees_at_the_sizes_of_models(impl_id, m, n, k):
    torch.manual_seed(0)
    for trans_a, trans_b in ((False, True), (False, False), (True, False), (True, True)):
        a = new(*((k, m) if trans_a else (m, k)), scale=k**-0.5)
        b = new(*((n, k) if trans_b else (k, n)))
        flags, bias = (trans_a, trans_b, 1.0), new(n)
        agree("gemm", impl_id, (a, b, bias, *flags, None), "bias")
        agree("gemm", impl_id, (a, b, None, *flags, F32), "float32")
        agree("gemm_gelu", impl_id, (a, b, bias, *flags, None))
        agree("gemm_dgelu", impl_id, (a, b, new(m, n), *flags, None))
        agree("gemm_add_", impl_id, (new(m, n, dtype=F32), a, b, *flags, 1.0), "float32")
        agree("gemm_add_", impl_id, (new(m, n), a, b, *flags, 0.5))


@pytest.mark.parametrize("m, n, k", [*SIZES, (8192, 14336, 1024), (512, 4096, 4096), (3, 4096, 4096)])
@pytest.mark.parametrize("impl_id", ["default.flagos", "vendor.nvidia.cublas"])
def test_linear_act_agrees_at_the_sizes_of_models(impl_id, m, n, k):
    """Tests grouped and ungrouped tiles, single products and GLUs (two products), few rows, row- and column-major
    weights.
    """
    torch.manual_seed(0)
    for glu in (False, True):
        rows = n - n % 2 if glu else n
        x, bias, added = new(m, k, scale=0.25), new(rows), new(m, rows // 2 if glu else rows)
        for w in (new(rows, k, scale=k**-0.5), new(k, rows, scale=k**-0.5).t()):
            agree("linear_act", impl_id, (x, w, bias, added, "silu", glu, True), f"all {glu=}")
            agree("linear_act", impl_id, (x, w, None, None, "gelu", glu, False), f"little {glu=}")
            agree("linear_act", impl_id, (x, w, bias, added.float(), None, glu, True), f"float32 {glu=}")


@pytest.mark.parametrize("order", ["impl:default.flagos", "vendor:nvidia"])
@pytest.mark.parametrize("act, glu", [("gelu", False), ("silu", True), (None, False)])
def test_functional_linear_and_its_gradients_are_about_as_exact_as_torchs(act, glu, order):
    torch.manual_seed(0)
    leaves = [new(4, 512, 1024), new(2048, 1024, scale=1 / 32), new(2048), new(4, 512, 1024 if glu else 2048)]
    leaves = [t.requires_grad_() for t in leaves]
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    f = {None: lambda v: v, "gelu": F.gelu, "silu": F.silu}[act]

    def torchs(x, w, b, r):
        y = F.linear(x, w, b)
        return (f(y[..., :1024]) * y[..., 1024:] if glu else f(y)) + r

    dy = new(*leaves[3].shape)
    with opmux.policy(order):
        y = opmux.functional.linear(*leaves[:3], activation=act, glu=glu, residual=leaves[3])
        got = (y, *torch.autograd.grad(y, leaves, dy))
    want = torchs(*doubles)
    expected = (want, *torch.autograd.grad(want, doubles, dy.double()))
    native = torchs(*leaves)
    natives = (native, *torch.autograd.grad(native, leaves, dy))
    for g, w, theirs in zip(got, expected, natives, strict=True):
        error, torchs_error = ((t.double() - w).abs().max().item() for t in (g, theirs))
        assert error <= 1.5 * torchs_error + 1e-3 * w.abs().max().item()


@torch.no_grad()
def test_linear_with_glu_and_residual_is_one_launch():
    x, w, r = new(4096, 1024), new(8192, 1024), new(4096, 4096)
    with opmux.policy("impl:default.flagos"):
        kernels = launches(lambda: opmux.functional.linear(x, w, activation="silu", glu=True, residual=r))
    assert len(kernels) == 1 and "_gemm" in kernels[0]


def scales(rows, length, k, powers):
    drawn = torch.rand(-(-length // rows), -(-k // 128), device=CUDA) + 0.5
    return torch.exp2(drawn.log2().round()) if powers else drawn


@pytest.mark.parametrize("m, n, k", [(4096, 4096, 1024), (256, 512, 2048), (1008, 1040, 640), (37, 1000, 515)])
@pytest.mark.parametrize("impl_id", ["default.flagos", "vendor.nvidia.cublas", "vendor.nvidia.cublas_plain"])
def test_fp8_products_agree_with_the_reference(impl_id, m, n, k):
    torch.manual_seed(0)
    a, b = new(m, k, dtype=E4M3).view(torch.uint8), new(n, k, dtype=E4M3).view(torch.uint8)
    one = torch.full((1,), k**-0.5, device=CUDA)
    served = []
    for dtype in (BF16, F32, F16):
        for kinds in ((E4M3, E4M3), (E5M2, E4M3)):
            x = new(m, k, dtype=kinds[0]).view(torch.uint8)
            served.append(agree("scaled_gemm", impl_id, (x, b, one, one, *kinds, new(n, dtype=dtype), dtype, False)))
        for rows in ((1, 128), (1, 1), (128, 1)):
            s = scales(rows[0], m, k, True) * k**-0.5, scales(rows[1], n, k, True)
            served.append(agree("block_scaled_gemm", impl_id, (a, b, *s, E4M3, E4M3, None, *rows, dtype)))
    if m % 16 == 0 and impl_id == "default.flagos":
        assert all(r is not None for r in served)
    if m % 16 == 0 and impl_id == "vendor.nvidia.cublas":
        assert served[0] is not None  # cuBLAS must accept products with one scale per tensor


ODD = [(300, 1032, 528), (1008, 1040, 640), (65, 72, 16), (129, 264, 128)]


@pytest.mark.parametrize("m, n, k", [(4096, 4096, 1024), (4224, 8192, 384), (256, 512, 2048), *ODD])
def test_the_hopper_block_gemm_agrees_with_the_reference(m, n, k):
    """Tests wide and narrow tiles, several tiles per program, an odd number of blocks along K, and a partial block."""
    torch.manual_seed(0)
    s = scales(1, m, k, True) * k**-0.5, scales(128, n, k, True)
    by_columns = s[0].t().contiguous().t(), s[1].t().contiguous().t()
    for dtype in (BF16, F32, F16):
        for kinds in ((E4M3, E4M3), (E5M2, E4M3)):
            a, b = (new(rows, k, dtype=kind).view(torch.uint8) for rows, kind in zip((m, n), kinds))
            for scaling, bias in ((s, None), (by_columns, new(n, dtype=dtype))):
                args = (a, b, *scaling, *kinds, bias, 1, 128, dtype)
                assert agree("block_scaled_gemm", HOPPER, args, f"{dtype} {kinds}") is not None
    moved = torch.empty(m * k + 1, dtype=torch.uint8, device=CUDA)[1:].view(m, k).copy_(a)  # not aligned
    run = lambda x: impl_of("block_scaled_gemm", HOPPER).fn(x, b, *s, *kinds, None, 1, 128, BF16)
    assert torch.equal(run(moved), run(a))


# ---- tex ------------------------------------------------------------------------------------------------------------


def call(A, B, layout="TN", out=None, to=None, bias=None, grad=False, accumulate=False, split=False, **more):
    workspace = torch.empty(64, dtype=torch.uint8, device=CUDA)
    keywords = dict(comm_overlap=None, comm_type=None, extra_output=None, bulk_overlap=False, alpha=1.0, beta=None)
    return tex_gemm.generic_gemm(
        A, layout[0] == "T", B, layout[1] == "T", out, None, to, bias, BF16, False, None, grad, workspace, 64,
        accumulate, split, **{**keywords, **more},
    )  # fmt: skip


def launches(fn):
    """The names of the kernels that a call launches once the impl is proven: before that, outputs are copied."""
    for _ in range(PROVEN_AFTER):
        fn()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        fn()
        torch.cuda.synchronize()
    return [e.name for e in profile.events() if e.device_type.name == "CUDA" and "Memset" not in e.name]


@torch.no_grad()
def test_tex_linear_is_one_launch_for_forward_dgrad_and_wgrad():
    x, w, bias, dy = new(4, 1024, 1024), new(2048, 1024), new(2048), new(4, 1024, 2048)
    main = new(2048, 1024, dtype=F32)
    split = lambda names: [n for n in names if "splitK" not in n and "reduce" not in n.lower()]
    assert len(split(launches(lambda: call(w, x, bias=bias, to=BF16)))) == 1
    assert len(split(launches(lambda: call(w, dy, "NN", to=BF16, grad=True)))) == 1
    rows, grads = x.view(-1, 1024), dy.view(-1, 2048)
    wgrad = lambda **more: call(rows, grads, "NT", main, F32, grad=True, accumulate=True, split=True, **more)
    assert len(split(launches(wgrad))) == 1
    torch.testing.assert_close(call(w, x, bias=bias)[0], F.linear(x, w, bias), rtol=1.6e-2, atol=5e-2)


def test_tex_gemm_can_be_captured_in_a_graph():
    """Calls with unquantized and with quantized operands do not synchronize with the device."""
    x, w, main = new(512, 256), new(384, 256), new(384, 256, dtype=F32)
    dy = new(512, 384)
    xs, ws = (q.quantized(q.OPS, t, q.Float8CurrentScalingQuantizer()) for t in (x, w))

    def run():
        call(x, dy, "NT", main, F32, grad=True, accumulate=True)
        return call(w, x, bias=new_bias)[0], call(ws, xs, to=BF16)[0]

    new_bias = new(384)
    run(), torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    before = main.clone()
    graph.replay()
    torch.testing.assert_close(main, before + dy.float().t() @ x.float(), rtol=1e-3, atol=1e-1)
    for g, w_ in zip(got, run(), strict=True):
        torch.testing.assert_close(g, w_)


MAKES = {
    "current": (q.Float8CurrentScalingQuantizer, q.Float8CurrentScalingQuantizer),
    "block": (lambda: q.Float8BlockQuantizer(block_scaling_dim=2), lambda: q.Float8BlockQuantizer(block_scaling_dim=1)),
    "mxfp8": (q.MXFP8Quantizer, q.MXFP8Quantizer),
}


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("kind", MAKES)
def test_tex_gemm_of_quantized_operands_agrees_with_dequantized_ones(kind, layout):
    m, n, k = 1024, 512, 2048
    shapes = {"TN": ((n, k), (m, k)), "NN": ((k, n), (m, k)), "NT": ((k, n), (k, m))}[layout]
    A, B = (q.quantized(q.OPS, new(*s), make()) for s, make in zip(shapes, MAKES[kind], strict=True))
    a, b = q.plain(q.OPS, A, F32, layout[0] == "N"), q.plain(q.OPS, B, F32, layout[1] == "T")
    want = (b.t() if layout[1] == "T" else b) @ (a.t() if layout[0] == "T" else a)
    for to in (BF16, F32):
        D = call(A, B, layout, to=to, split=kind == "block")[0]
        torch.testing.assert_close(D, want.to(to), rtol=1.6e-2, atol=0.25)
    main = torch.ones_like(want)
    call(A, B, layout, main, F32, accumulate=True, split=True)
    torch.testing.assert_close(main, want + 1, rtol=1e-2, atol=0.25)


def test_cublas_runs_gemm_by_default_and_our_kernel_by_policy():
    x, w = new(64, 64), new(64, 64)
    assert opmux.explain("gemm", x, w).chosen.impl_id == "vendor.nvidia.cublas"
    with opmux.policy("impl:default.flagos"):
        assert opmux.explain("gemm", x, w).chosen.impl_id == "default.flagos"
        torch.testing.assert_close(opmux.ops.gemm(x, w), x @ w, rtol=1.6e-2, atol=5e-2)


SIZES = [
    (4096, 4096, 512), (1000, 1544, 264), (8192, 2056, 1024), (16, 8192, 4096), (1, 2048, 8192), (3000, 8, 2048),
    (3, 8192, 4096), (4096, 1, 8192), (2, 1001, 515),
    (129, 257, 100),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("m, n, k", SIZES)
def test_large_products_are_as_close_as_cublas(m, n, k, layout):
    """Tests sizes with grouped tiles, with K split across programs, and with partial tiles."""

    def factor(rows, cols, transposed):
        x = torch.randn(*((cols, rows) if transposed else (rows, cols)), device=CUDA, dtype=BF16)
        return x.t() if transposed else x

    a, b = factor(m, k, layout[0] == "t"), factor(k, n, layout[1] == "t")
    run = impl_of("matmul", "default.flagos").fn
    c = torch.randn(n, device=CUDA, dtype=BF16).expand(m, n)
    exact = a.double() @ b.double()
    for got, native, want in (
        (run(a, b, None, 1.0, 1.0, None), torch.mm(a, b), exact),
        (run(a, b, c, 0.5, 2.0, None), torch.addmm(c, a, b, beta=2.0, alpha=0.5), 0.5 * exact + 2.0 * c.double()),
    ):
        ours, theirs = ((y.double() - want).abs().max().item() for y in (got, native))
        assert ours <= 1.01 * theirs + 1e-3


def test_an_unaligned_operand_gives_the_same_bits():
    buffer = torch.randn(4096 * 1024 + 1, device=CUDA, dtype=BF16)
    a, b = buffer[1:].view(4096, 1024), torch.randn(1024, 4096, device=CUDA, dtype=BF16)
    run = impl_of("matmul", "default.flagos").fn
    aligned = run(a.clone(), b, None, 1.0, 1.0, None)
    assert torch.equal(run(a, b, None, 1.0, 1.0, None), aligned)


@pytest.mark.parametrize("m", [1, 3, 16, 1000])
def test_row_scaled_fp8_products_agree_with_the_reference(m):
    a, b = (torch.randn(rows, 1024, device=CUDA).to(E4M3).view(torch.uint8) for rows in (m, 2048))
    sa, sb = torch.rand(m, device=CUDA) * 1024**-0.5, torch.rand(2048, device=CUDA)
    for impl_id in ("default.flagos", "vendor.nvidia.cublas", "vendor.nvidia.cublas_plain"):
        agree("scaled_gemm", impl_id, (a, b, sa, sb, E4M3, E4M3, None, BF16, False), impl_id)


def test_aten_products_agree_and_do_not_recurse_into_the_override():
    """Tests our kernels, and cuBLAS calls, which call ATen themselves."""
    a, b = torch.randn(64, 256, device=CUDA).to(E4M3), torch.randn(128, 256, device=CUDA).to(E4M3).t()
    one = torch.full((), 0.1, device=CUDA)
    want = torch._scaled_mm(a, b, one, one, out_dtype=BF16)
    for order in ("impl:default.flagos", "vendor:nvidia"):
        with opmux.policy(order), opmux.use(include=["_scaled_mm"], mode="all"):
            got = torch._scaled_mm(a, b, one, one, out_dtype=BF16)
        torch.testing.assert_close(got, want, rtol=1.6e-2, atol=5e-2)


@pytest.mark.parametrize("m, k, n", [(4096, 4096, 4096), (17, 8192, 4096), (1000, 1032, 1000), (300, 2056, 72)])
def test_int8_products_equal_torchs(m, k, n):
    """Tests row- and column-major operands; integer results must be exact."""
    a, b = (torch.randint(-128, 128, s, device=CUDA, dtype=torch.int8) for s in ((m, k), (k, n)))
    want = (a.double() @ b.double()).to(torch.int32)
    for left, right in ((a, b), (a, b.t().contiguous().t()), (a.t().contiguous().t(), b)):
        assert torch.equal(impl_of("int_mm", "default.flagos").fn(left, right), want)
        with opmux.policy("impl:default.flagos"), opmux.use(include=["_int_mm"], mode="all"):
            assert torch.equal(torch._int_mm(left, right), want)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_int8_products_with_few_rows_are_exact(m):
    a, b = (torch.randint(-128, 128, s, device=CUDA, dtype=torch.int8) for s in ((m, 8192), (4096, 8192)))
    want = (a.double() @ b.double().t()).to(torch.int32)
    for right in (b.t(), b.t().contiguous()):
        assert torch.equal(impl_of("int_mm", "default.flagos").fn(a, right), want)


def test_aten_grouped_products_agree_with_torch():
    """Tests groups along rows, columns and K, and batches without groups."""
    ends = torch.tensor([64, 64, 200, 256], device=CUDA, dtype=torch.int32)
    new = lambda *shape: torch.randn(*shape, device=CUDA, dtype=BF16)
    for a, b, offs in (
        (new(256, 128), new(4, 128, 64), ends),
        (new(4, 96, 128), new(128, 256), ends),
        (new(64, 256), new(256, 96), ends),
        (new(4, 96, 128), new(4, 128, 64), None),
    ):
        want = torch._grouped_mm(a, b, offs=offs)
        with opmux.policy("impl:default.flagos"), opmux.use(include=["_grouped_mm"], mode="all"):
            got = torch._grouped_mm(a, b, offs=offs)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1.6e-2, atol=5e-2)
