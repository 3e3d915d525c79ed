"""generic_gemm and te_general_grouped_gemm, called as in TE's Python code, match their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opmux.core.errors import NoImplementation
from opmux.core.spec import Tol
from opmux.faces.tex import quantized as q
from opmux.faces.tex.ops import gemm as tex_gemm

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
DTYPES = (F64, F32, F16, BF16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
LAYOUTS = {"TN": (True, False), "NN": (False, False), "NT": (False, True)}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def call(A, B, layout="TN", out=None, quantizer=None, to=None, bias=None, gelu=False, gelu_in=None, grad=False,
         accumulate=False, split=False, **more):  # fmt: skip
    """Passes arguments as `general_gemm` does: 16 by position, the rest by name."""
    transa, transb = LAYOUTS[layout]
    workspace = torch.empty(64, dtype=torch.uint8)
    bias_type = BF16 if bias is None else bias.dtype
    keywords = dict(comm_overlap=None, comm_type=None, extra_output=None, bulk_overlap=False, alpha=1.0, beta=None)
    return tex_gemm.generic_gemm(
        A, transa, B, transb, out, quantizer, to, bias, bias_type, gelu, gelu_in, grad, workspace, workspace.shape[0],
        accumulate, split, **{**keywords, **more},
    )  # fmt: skip


def factors(layout, dtype, m=5, n=24, k=64, lead=None):
    """A and B for the product of an [m, k] (or [*lead, k]) and a [k, n] matrix, stored as the layout requires."""
    lead = (m,) if lead is None else lead
    g = torch.Generator().manual_seed(m + n + k)
    new = lambda *s: (torch.randn(s, generator=g) / max(k, 1) ** 0.25).to(dtype)
    shapes = {"TN": ((n, k), (*lead, k)), "NN": ((k, n), (*lead, k)), "NT": ((k, n), (k, m))}[layout]
    return new(*shapes[0]), new(*shapes[1])


def truth(A, B, layout):
    a, b = (t.double().reshape(-1, t.shape[-1]) for t in (A, B))
    y = (b.t() if layout == "NT" else b) @ (a.t() if layout == "TN" else a)
    return y.reshape(*([B.shape[-1]] if layout == "NT" else B.shape[:-1]), y.shape[-1])


def close(got, want, what=""):
    """Tolerates one rounding of the result and the error of float32 accumulation."""
    halves = {d: Tol(0.51 * torch.finfo(d).eps, 3e-5) for d in (F16, BF16)}
    tol = {**halves, F64: Tol(1e-11, 1e-11), F32: Tol(1e-5, 3e-5)}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{what}: {m}")


tanh = lambda x: F.gelu(x, approximate="tanh")


def slope(x):
    x = x.double().requires_grad_()
    return torch.autograd.grad(tanh(x).sum(), x)[0]


# ---- epilogues ------------------------------------------------------------------------------------------------------


@every_dtype
@every_layout
def test_every_epilogue_in_every_layout_matches_the_formula(layout, dtype):
    A, B = factors(layout, dtype)
    want = truth(A, B, layout)
    bias = torch.randn(24).to(dtype)
    D, bias_grad, pre, extra = call(A, B, layout)
    assert bias_grad is pre is extra is None and D.dtype is dtype and D.is_contiguous()
    close(D, want, "plain")
    close(call(A, B, layout, bias=bias)[0], want + bias.double(), "bias")
    D, _, pre, _ = call(A, B, layout, bias=bias, gelu=True)
    close(pre, want + bias.double(), "pre")
    close(D, tanh(want + bias.double()), "gelu of what is not rounded yet")
    gelu_in = torch.randn(want.shape).to(dtype)
    before = gelu_in.clone()
    D, _, pre, _ = call(A, B, layout, gelu=True, gelu_in=gelu_in, grad=True)
    close(D, want * slope(gelu_in), "dgelu")
    assert pre is None and torch.equal(gelu_in, before)
    D, bias_grad, pre, _ = call(A, B, layout, bias=bias, grad=True)
    close(D, want, "a bias is not added with grad")
    close(bias_grad, B.double().sum(0), "the gradient of a bias")
    assert bias_grad.dtype is dtype and bias_grad.shape == B.shape[-1:] and pre is None


@every_layout
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (37, 1, 1000), (1, 37, 5), (1000, 37, 3)])
def test_odd_sizes_match_the_formula(layout, m, n, k):
    A, B = factors(layout, F32, m, n, k)
    close(call(A, B, layout)[0], truth(A, B, layout))


@every_dtype
@pytest.mark.parametrize("layout", ["TN", "NN"])
def test_leading_dimensions_are_kept(layout, dtype):
    A, B = factors(layout, dtype, lead=(2, 3, 4))
    bias = torch.randn(24).to(dtype)
    D, _, pre, _ = call(A, B, layout, bias=bias, gelu=True)
    assert D.shape == pre.shape == (2, 3, 4, 24)
    close(D, tanh(truth(A, B, layout) + bias.double()))
    assert not D._is_view()
    D = call(A, B, layout, out=torch.full((2, 3, 4, 24), float("nan"), dtype=dtype))[0]
    close(D, truth(A, B, layout))


def test_a_one_dimensional_operand_is_a_row():
    A, B = torch.randn(3, 8), torch.randn(8)
    close(call(A, B)[0], B.double() @ A.double().t())


@pytest.mark.parametrize("to", [F32, F16, BF16])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_results_have_the_requested_dtype(dtype, to):
    A, B = factors("TN", dtype)
    D, _, pre, _ = call(A, B, to=to, bias=torch.ones(24, dtype=dtype), gelu=True)
    assert D.dtype is pre.dtype is to
    close(D, tanh(truth(A, B, "TN") + 1))
    _, bias_grad, _, _ = call(A, B, to=to, bias=torch.ones(64, dtype=dtype), grad=True)
    assert bias_grad.dtype is to


# ---- accumulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_a_weight_gradient_accumulates_into_float32(dtype):
    A, B = factors("NT", dtype, m=16, k=37)
    main = torch.randn(16, 24)
    want = main.double() + truth(A, B, "NT")
    D, bias_grad, _, _ = call(
        A, B, "NT", out=main, to=F32, bias=torch.empty(16), grad=True, accumulate=True, split=True
    )
    assert D is main and bias_grad.dtype is F32
    close(main, want)
    close(bias_grad, B.double().sum(0))


@pytest.mark.parametrize("beta", [None, 0.0, 0.5, 1.0])
def test_beta_applies_to_a_product_of_empty_operands(beta):
    """The product counts as zero, so D becomes beta * D."""
    A, B = torch.zeros(0, 4), torch.zeros(3, 0)
    D = torch.full((3, 4), 2.0)
    got, *_ = call(A, B, "NN", out=D, accumulate=True, beta=beta)
    assert got is D and torch.equal(D, torch.full((3, 4), 2.0 * (1.0 if beta is None else beta)))


@pytest.mark.parametrize("alpha, beta", [(0.5, None), (-2.0, 0.25), (1.0, 0.0), (np.float32(0.5), np.float32(2.0))])
@pytest.mark.parametrize("epilogue", ["", "bias", "gelu", "dgelu"])
def test_alpha_and_beta_apply_before_the_epilogue(epilogue, alpha, beta):
    """As in cuBLAS, the epilogue's input is alpha * product + beta * D."""
    A, B = factors("NN", F32)
    D, bias, gelu_in = torch.randn(5, 24), torch.randn(24), torch.randn(5, 24)
    want = alpha * truth(A, B, "NN") + D.double() * (1.0 if beta is None else beta)
    more = {"bias": dict(bias=bias), "gelu": dict(bias=bias, gelu=True)}.get(epilogue, {})
    want = want + bias.double() if more else want
    if epilogue == "dgelu":
        more, want = dict(gelu=True, gelu_in=gelu_in, grad=True), want * slope(gelu_in)
    got, _, pre, _ = call(A, B, "NN", out=D, accumulate=True, alpha=alpha, beta=beta, **more)
    assert got is D
    if epilogue == "gelu":
        close(pre, want)
        want = tanh(want)
    close(D, want)


def test_old_contents_of_d_are_ignored_without_accumulate():
    A, B = factors("TN", BF16)
    for more in ({}, {"bias": torch.zeros(24, dtype=BF16)}, {"gelu": True}):
        D = torch.full((5, 24), float("nan"), dtype=BF16)
        assert call(A, B, out=D, **more)[0] is D and D.isfinite().all()


def test_gemm_writes_leaves_and_records_no_graph():
    """generic_gemm is a raw kernel that autograd does not see."""
    A, B = (torch.nn.Parameter(t) for t in factors("TN", F32))
    D = torch.zeros(5, 24, requires_grad=True)
    got = call(A, B, out=D, accumulate=True)[0]
    assert got is D and D.grad_fn is None and not call(A, B)[0].requires_grad
    close(D.detach(), truth(A.detach(), B.detach(), "TN"))


# ---- empty operands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m, n, k", [(0, 24, 64), (5, 24, 0), (5, 0, 64)])
@every_layout
def test_gemm_accepts_operands_without_elements(layout, m, n, k):
    A, B = factors(layout, F32, m, n, k)
    columns = B.shape[-1]
    D, bias_grad, _, _ = call(A, B, layout, bias=torch.randn(columns), grad=True)
    assert D.shape == (m, n) and not D.any()
    assert torch.equal(bias_grad, B.sum(0))
    D, _, pre, _ = call(A, B, layout, bias=torch.randn(n), gelu=True)
    assert D.shape == pre.shape == (m, n) and not D.any()
    x_of_ones = torch.ones(m, n)
    assert call(A, B, layout, out=x_of_ones, accumulate=True)[0] is x_of_ones and x_of_ones.all()
    assert call(A, B, layout, out=x_of_ones)[0] is x_of_ones and not x_of_ones.any()


# ---- quantized ------------------------------------------------------------------------------------------------------

QUANTIZERS = {
    "current": q.Float8CurrentScalingQuantizer,
    "block 1d": lambda: q.Float8BlockQuantizer(block_scaling_dim=1),
    "block 2d": lambda: q.Float8BlockQuantizer(block_scaling_dim=2),
    "mxfp8": q.MXFP8Quantizer,
}


def numbers(value, columnwise):
    return q.plain(q.OPS, value, F32, columnwise)


@every_layout
@pytest.mark.parametrize("a_kind, b_kind", [("current", "current"), ("block 2d", "block 1d"), ("block 1d", "block 1d"),
                                            ("mxfp8", "mxfp8"), ("block 2d", "current")])  # fmt: skip
def test_quantized_operands_match_the_formula(layout, a_kind, b_kind):
    """The formula multiplies the dequantized values of the rowwise or columnwise data; the layout decides which."""
    (A, B), (transa, transb) = factors(layout, BF16, 160, 96, 288), LAYOUTS[layout]
    a, b = q.quantized(q.OPS, A, QUANTIZERS[a_kind]()), q.quantized(q.OPS, B, QUANTIZERS[b_kind]())
    want, blocks = truth(numbers(a, not transa), numbers(b, transb), layout), "block" in a_kind and "block" in b_kind
    bias = torch.randn(96, dtype=BF16)
    close(call(a, b, layout, to=F32, split=blocks)[0], want, "float32")
    D = call(a, b, layout, to=BF16, bias=bias, split=blocks)[0]
    assert D.dtype is BF16
    close(D, want + bias.double(), "bias")
    assert torch.equal(call(a, b, layout, to=BF16, bias=bias[None], split=blocks)[0], D)
    if not blocks:
        D, _, pre, _ = call(a, b, layout, to=F32, bias=bias, gelu=True)
        assert pre.dtype is BF16 and D.dtype is F32  # the gelu input has the dtype `bias_type`
        close(pre, want + bias.double(), "pre")
        close(D, tanh(want + bias.double()), "gelu")
    main = torch.ones(want.shape)
    assert call(a, b, layout, out=main, to=F32, accumulate=True, split=True)[0] is main
    close(main, want + 1, "accumulated")
    close(call(a, b, layout, to=F32, alpha=0.5, split=blocks)[0], 0.5 * want, "alpha")


def blocks(dim, shape=(64, 128), dtype=torch.float8_e4m3fn):
    return q.quantized(q.OPS, torch.randn(shape), q.Float8BlockQuantizer(fp8_dtype=dtype, block_scaling_dim=dim))


def test_block_scaled_gemm_applies_dgelu():
    """With block scaling, cuBLAS supports only the gradient of gelu, in bfloat16."""
    a, b, pre = blocks(2), blocks(1), torch.randn(64, 64, dtype=BF16)
    D = call(a, b, to=BF16, gelu=True, gelu_in=pre, grad=True, split=True)[0]
    close(D, truth(numbers(a, False), numbers(b, False), "TN") * slope(pre))


E5M2 = torch.float8_e5m2


@pytest.mark.parametrize(
    "a, b, args, message",
    [
        ({"dim": 2}, {"dim": 1}, {"split": False}, "use_split_accumulator must be True"),
        ({"dim": 2}, {"dim": 2}, {}, "B must have blocks of 1 x 128"),
        ({"dim": 2, "dtype": E5M2}, {"dim": 1, "dtype": E5M2}, {}, "B must be float8_e4m3fn"),
        ({"dim": 2}, {"dim": 1}, {"grad": True, "bias": torch.ones(64)}, "bias must be None with grad"),
        ({"dim": 2}, {"dim": 1}, {"gelu": True}, "gelu must be False without grad"),
        (
            {"dim": 2}, {"dim": 1}, {"gelu": True, "grad": True, "gelu_in": torch.ones(64, 64)},
            "output_dtype must be bfloat16 with gelu",
        ),
        ({"dim": 2, "shape": (64, 120)}, {"dim": 1, "shape": (64, 120)}, {}, "A must be padded to a multiple of 16"),
        ({"dim": 2, "shape": (60, 128)}, {"dim": 1}, {}, "A must be padded to a multiple of 8 columns"),
        ({"dim": 2}, {"dim": 1, "shape": (63, 128)}, {}, "B must be padded to a multiple of 8 rows"),
    ],
)  # fmt: skip
def test_block_scaled_gemms_that_cublas_rejects_raise(a, b, args, message):
    with pytest.raises(ValueError, match=f"generic_gemm: {message}.*for blocks of 128"):
        call(blocks(**a), blocks(**b), **{"to": F32, "split": True, **args})


def test_block_scaled_products_are_rounded_before_accumulation():
    """cuBLAS rounds the product, then adds; adding first and rounding once would change one in eight elements here."""
    torch.manual_seed(0)
    a, b, bias = blocks(2), blocks(1), torch.randn(64, dtype=BF16)
    out = torch.randn(64, 64, dtype=BF16)
    for more in ({}, {"bias": bias}):
        y = call(a, b, to=BF16, split=True, **more)[0]
        D = call(a, b, out=out.clone(), to=BF16, split=True, accumulate=True, **more)[0]
        assert torch.equal(D, y + out)
        wide = call(a, b, to=F32, split=True, **more)[0]
        assert not torch.equal(D, (wide + out.float()).to(BF16))


def test_square_blocks_accept_any_number_of_rows():
    a, b = blocks(1), blocks(2, (63, 128))
    close(call(a, b, to=F32, split=True)[0], truth(numbers(a, False), numbers(b, False), "TN"))


def test_one_operand_may_be_quantized():
    A, B = factors("TN", BF16, 32, 32, 64)
    a = q.quantized(q.OPS, A, q.Float8CurrentScalingQuantizer())
    close(call(a, B)[0], truth(q.plain(q.OPS, a, BF16), B, "TN"))


def test_gemm_uses_the_data_if_the_transpose_is_missing_or_stale():
    """Also tests that gemm uses the transpose if the data is missing."""
    A, B = factors("NN", BF16, 32, 48, 64)
    a, b = (q.quantized(q.OPS, t, q.Float8CurrentScalingQuantizer()) for t in (A, B))
    want = call(a, b, "NN", to=F32)[0].double()
    a._transpose_invalid = True
    close(call(a, b, "NN", to=F32)[0], want)
    a._transpose_invalid, a._data, b._transpose = False, None, None
    close(call(a, b, "NN", to=F32)[0], want)


def test_results_may_be_quantized():
    A, B = factors("TN", BF16, 32, 64, 64)
    for make in QUANTIZERS.values():
        D = call(A, B, quantizer=make(), to=BF16)[0]
        want = q.plain(q.OPS, q.quantized(q.OPS, call(A, B)[0], make()), F32)
        assert q.is_quantized(D) and torch.equal(q.plain(q.OPS, D, F32), want)
    delayed = q.Float8Quantizer(torch.full((1,), 8.0), torch.zeros(1))
    out = q.empty(delayed, (32, 64), BF16, "cpu")
    D = call(A, B, out=out, quantizer=delayed, to=BF16)[0]
    assert D is out and delayed.amax.item() == call(A, B)[0].abs().max().item()


# ---- overlap --------------------------------------------------------------------------------------------------------


class Overlap:
    """A fake of overlapped communication that records its arguments, and calls the gemm once."""

    def around(self, gemm, comm_type, bulk_overlap, extra_output):
        self.asked = comm_type, bulk_overlap
        results = gemm()
        return [*results[:3], extra_output]


def test_comm_overlap_wraps_the_gemm():
    A, B = factors("TN", F32)
    overlap, extra = Overlap(), torch.empty(3)
    D, _, _, got = call(A, B, comm_overlap=overlap, comm_type=1, extra_output=extra, bulk_overlap=True)
    assert overlap.asked == (1, True) and got is extra
    close(D, truth(A, B, "TN"))
    with pytest.raises(TypeError, match="generic_gemm: comm_overlap must be a CommOverlap or CommOverlapP2P; got int"):
        call(A, B, comm_overlap=3)


# ---- groups ---------------------------------------------------------------------------------------------------------


def group(As, Bs, layout, D, bias=None, single=False, pre=None, grad=False, accumulate=False):
    """Passes arguments as `general_grouped_gemm` does: all by position."""
    none = [torch.empty(0)] * len(As)
    workspaces = [torch.empty(64, dtype=torch.uint8)]
    return tex_gemm.te_general_grouped_gemm(
        As, LAYOUTS[layout][0], Bs, LAYOUTS[layout][1], D, D[0].dtype, [b.shape[0] for b in Bs],
        none if bias is None else bias, BF16, single, none if pre is None else pre, grad, workspaces, 64, accumulate,
        False, 0,
    )  # fmt: skip


ROWS = (5, 0, 37)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_grouped_forward_matches_the_formula(dtype):
    As, Bs = zip(*(factors("TN", dtype, m) for m in ROWS), strict=True)
    bias = [torch.randn(24).to(dtype) for _ in ROWS]
    D = [torch.full((42, 24), float("nan"), dtype=dtype)]
    assert group(list(As), list(Bs), "TN", D, bias, single=True) is bias
    want = torch.cat([truth(a, b, "TN") + c.double() for a, b, c in zip(As, Bs, bias, strict=True)])
    close(D[0], want)
    pre = [torch.full((m, 24), float("nan"), dtype=dtype) for m in ROWS]
    D = [torch.full((m, 24), float("nan"), dtype=dtype) for m in ROWS]
    group(list(As), list(Bs), "TN", D, bias, pre=pre)
    close(torch.cat(pre), want)
    close(torch.cat(D), tanh(want))


@pytest.mark.parametrize("accumulate", [False, True])
def test_grouped_weight_gradients_match_the_formula(accumulate):
    """For an expert without tokens, the gradients of weight and bias are zero; with accumulate, the old ones stay."""
    As, Bs = zip(*(factors("NT", BF16, 16, 24, k) for k in ROWS), strict=True)
    D = [torch.ones(16, 24) for _ in ROWS]
    bias = [torch.full((16,), float("nan")) for _ in ROWS]
    group(list(As), list(Bs), "NT", D, bias, grad=True, accumulate=accumulate)
    for d, c, a, b in zip(D, bias, As, Bs, strict=True):
        close(d, truth(a, b, "NT") + (1 if accumulate else 0))
        close(c, b.double().sum(0))


def test_grouped_gemm_accepts_quantized_operands():
    As, Bs = zip(*(factors("TN", BF16, m, 32, 64) for m in (16, 32)), strict=True)
    new = lambda t: q.quantized(q.OPS, t, q.Float8CurrentScalingQuantizer())
    As, Bs = list(map(new, As)), list(map(new, Bs))
    D = [torch.full((48, 32), float("nan"), dtype=F32)]
    group(As, Bs, "TN", D, single=True)
    close(D[0], torch.cat([truth(numbers(a, False), numbers(b, False), "TN") for a, b in zip(As, Bs, strict=True)]))


# ---- rejected input -------------------------------------------------------------------------------------------------

BAD = {
    "A None": (dict(A=None), TypeError, "A must be a Tensor of float16, .* or a quantized tensor; got None"),
    "A ints": (dict(A=torch.ones(24, 64, dtype=torch.int32)), TypeError, "A must be a Tensor of .*; got int32"),
    "B 0-dim": (dict(B=torch.ones(())), ValueError, "B must have at least one dimension"),
    "B short": (dict(B=torch.ones(5, 63)), ValueError, r"B must have 64 in its last dimension, .* TN; got \(5, 63\)"),
    "B away": (dict(B=torch.ones(5, 64, device="meta")), ValueError, "B must be on cpu, the device of A; got meta"),
    "D shape": (dict(out=torch.ones(5, 23)), ValueError, r"D must have shape \(5, 24\), that of the product; got"),
    "D dtype": (dict(out=torch.ones(5, 24).half(), to=F32), TypeError, "D must be float32; got float16"),
    "D list": (dict(out=[1]), TypeError, "D must be a Tensor; got list"),
    "D apart": (dict(out=torch.ones(24, 5).t()), ValueError, "D must be contiguous"),
    "dtype": (dict(to="bf16"), TypeError, "output_dtype must be a torch.dtype or None; got 'bf16'"),
    "quantizer": (dict(quantizer=3), TypeError, "quantizer must be None or one of Float8Quantizer"),
    "bias": (dict(bias=torch.ones(23)), ValueError, r"bias must have shape \(24\), a number for each .*; got \(23,\)"),
    "no gelu_in": (dict(gelu=True, grad=True), TypeError, "gelu_in must be a Tensor; got None"),
    "gelu_in": (dict(gelu=True, grad=True, gelu_in=torch.ones(5, 3)), ValueError, r"gelu_in must have shape \(5, 24\)"),
    "alpha": (dict(alpha="1"), TypeError, "alpha must be a number; got '1'"),
    "beta": (dict(beta=0.5), ValueError, "beta must be None or 0 without accumulate; got 0.5"),
    "no D": (dict(accumulate=True), ValueError, "D must be a plain Tensor to accumulate in; got None"),
}  # fmt: skip


@pytest.mark.parametrize("invalid, error, message", BAD.values(), ids=list(BAD))
def test_invalid_arguments_raise_and_nothing_is_written(invalid, error, message):
    A, B = factors("TN", F32)
    D = invalid.get("out")
    before = D.clone() if torch.is_tensor(D) else None
    with pytest.raises(error, match=f"^generic_gemm: {message}"):
        call(**{"A": A, "B": B, **invalid})
    assert before is None or torch.equal(D, before)


def test_an_unsupported_combination_raises():
    A, B = factors("NN", F32)
    with pytest.raises(NoImplementation, match="generic_gemm: bias must be None with gelu and grad"):
        call(A, B, "NN", bias=torch.ones(24), gelu=True, gelu_in=torch.ones(5, 24), grad=True)


@pytest.mark.parametrize(
    "spoil, error, message",
    [
        (lambda A, B, D: A.pop(), ValueError, "B must have 1 items; got 2"),
        (lambda A, B, D: B.__setitem__(1, B[1][:, 1:]), ValueError, r"B\[1\] must have 64 in its last dimension"),
        (lambda A, B, D: D.__setitem__(1, D[1][:, 1:]), ValueError, r"D\[1\] must have shape \(5, 24\)"),
        (lambda A, B, D: D.__setitem__(0, None), TypeError, "D must be a list of Tensors; got None at index 0"),
    ],
)
def test_invalid_groups_raise_before_anything_is_written(spoil, error, message):
    As, Bs = (list(v) for v in zip(*(factors("TN", F32) for _ in range(2)), strict=True))
    D = [torch.ones(5, 24) for _ in range(2)]
    originals = list(D)
    spoil(As, Bs, D)
    transa, transb = LAYOUTS["TN"]
    none = [torch.empty(0)] * 2
    with pytest.raises(error, match=f"^te_general_grouped_gemm: {message}"):
        tex_gemm.te_general_grouped_gemm(
            As, transa, Bs, transb, D, F32, None, none[: len(As)], BF16, False, none[: len(As)], False, [], 0, False,
            False, 0,
        )  # fmt: skip
    assert all(d.eq(1).all() for d in originals)


def test_results_of_other_backends_become_a_list_of_four():
    D = torch.ones(2)
    assert tex_gemm.as_list(D) == [D, None, None, None]
    assert tex_gemm.as_list((D, None, D)) == [D, None, D, None]
    four = [D, None, None, None]
    assert tex_gemm.as_list(four) is four
