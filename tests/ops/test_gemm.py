"""The references of matrix products against torch's own in double precision."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import opmux
from opmux.backends._nvidia.ops import cublas
from opmux.core import get_default_manager
from opmux.core.policy import get_policy
from opmux.core.spec import Tol, specs
from opmux.machine import devices
from opmux.tuning import provider_speed

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
FORWARD, BACKWARD = specs.find("linear"), specs.find("linear_bwd")


def close(got, want, what):
    """Assert equality up to one rounding of the result and the rounding errors of float32 before it."""
    halves = {d: Tol(0.51 * torch.finfo(d).eps, 2e-5) for d in (torch.float16, torch.bfloat16)}
    tol = {**halves, torch.float64: Tol(1e-11, 1e-11), torch.float32: Tol(1e-5, 2e-5)}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{what}: {m}")


@every_dtype
def test_products_accumulate_in_float32_and_round_once(dtype):
    for sample in FORWARD.samples(dtype, CPU):
        want = F.linear(*(None if t is None else t.double() for t in sample.args))
        got = FORWARD.reference(*sample.args)
        assert got.dtype is dtype and got.is_contiguous()
        close(got, want, sample.id)


def test_long_half_precision_sums_keep_small_terms():
    """Sums 4096 ones; partial sums in bfloat16 would stop at 256."""
    x, w = torch.ones(1, 4096, dtype=torch.bfloat16), torch.ones(1, 4096, dtype=torch.bfloat16)
    y = FORWARD.reference(x, w, torch.full((1,), 64.0, dtype=torch.bfloat16))
    assert y.item() == 4160.0


@every_dtype
def test_backward_equals_torchs_gradient(dtype):
    for sample in BACKWARD.samples(dtype, CPU):
        dy, x, weight = sample.args
        bias = torch.zeros(weight.shape[0], dtype=torch.float64)
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        want = torch.autograd.grad(F.linear(*leaves), leaves, dy.double(), materialize_grads=True)
        for name, g, w in zip(BACKWARD.out, BACKWARD.reference(*sample.args), want, strict=True):
            assert g.dtype is dtype and g.is_contiguous()
            close(g, w, f"{sample.id}: {name}")


@pytest.mark.parametrize("has_bias", [True, False])
def test_autograd_gives_torchs_gradients(has_bias):
    x, w, b = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5), (4, 5), (4,)))
    bias = (b,) if has_bias else ()
    assert torch.autograd.gradcheck(opmux.ops.linear, (x, w, *bias))


def test_a_gradient_of_another_dtype_is_accepted():
    dy, x, w = torch.randn(3, 4), torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(4, 8, dtype=torch.bfloat16)
    assert [g.dtype for g in opmux.ops.linear_bwd(dy, x, w)] == [torch.bfloat16] * 3


def test_a_result_may_be_modified_in_place():
    x = torch.randn(2, 3, 5, requires_grad=True)
    opmux.ops.linear(x, torch.randn(4, 5)).mul_(2).sum().backward()
    assert x.grad is not None


def test_compiled_graphs_have_no_fixed_sizes():
    for spec in (FORWARD, BACKWARD):
        args_for = lambda shape, spec=spec: spec.samples.at(shape, torch.float32, CPU, out=7).args
        traced = make_fx(spec.reference, tracing_mode="symbolic")(*args_for((3, 5, 8)))
        torch.testing.assert_close(traced(*args_for((2, 9, 6))), spec.reference(*args_for((2, 9, 6))))


def test_flops_are_counted():
    x, w = torch.empty(2, 3, 8), torch.empty(5, 8)
    assert FORWARD.flops(x, w) == 2 * 6 * 8 * 5
    assert BACKWARD.flops(torch.empty(2, 3, 5), x, w) == 4 * 6 * 8 * 5


def test_mismatched_shapes_raise_with_the_arguments_name():
    with pytest.raises(ValueError, match=r"linear: weight must have 2 dimensions, \[n, k\]; got \(8,\)"):
        opmux.ops.linear(torch.randn(3, 8), torch.randn(8))
    with pytest.raises(
        ValueError, match=r"weight must have shape \(n, 8\), \[n, k\] where x \(3, 8\) is \[\*rows, k\]; got"
    ):
        opmux.ops.linear(torch.randn(3, 8), torch.randn(4, 9))


# ---- gemm -----------------------------------------------------------------------------------------------------------

tanh = lambda x: F.gelu(x, approximate="tanh")


def tanh_slope(x):
    x = x.double().requires_grad_()
    return torch.autograd.grad(tanh(x).sum(), x)[0]


def product(a, b, trans_a, trans_b, alpha):
    return alpha * (a.double().t() if trans_a else a.double()) @ (b.double().t() if trans_b else b.double())


@every_dtype
@pytest.mark.parametrize("name", ["gemm", "gemm_gelu", "gemm_dgelu"])
def test_gemm_rounds_once_after_the_epilogue(name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, CPU):
        a, b, beside, trans_a, trans_b, alpha, to = sample.args
        want = product(a, b, trans_a, trans_b, alpha)
        if name == "gemm_dgelu":
            want = (want * tanh_slope(beside),)
        else:
            want = want if beside is None else want + beside.double()
            want = (tanh(want), want) if name == "gemm_gelu" else (want,)
        got = spec.reference(*sample.args)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            assert g.dtype is (to or dtype) and g.is_contiguous()
            close(g, w, sample.id)


FUNCTIONS = {
    None: lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": tanh,
    "silu": F.silu,
    "relu": F.relu,
    "srelu": lambda x: F.relu(x).square(),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
}


@every_dtype
def test_linear_act_rounds_once_after_the_epilogue(dtype):
    spec, activations = specs.find("linear_act"), set()
    for sample in spec.samples(dtype, CPU):
        x, weight, bias, residual, act, glu, save = sample.args
        activations.add(act)
        pre = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        a, b = pre.chunk(2, -1) if glu else (pre, 1.0)
        want = FUNCTIONS[act](a) * b + (0.0 if residual is None else residual.double())
        y, pre_activation = spec.reference(*sample.args)
        assert y.dtype is (dtype if residual is None else residual.dtype) and pre_activation.dtype is dtype
        assert y.is_contiguous() and pre_activation.is_contiguous()
        close(y, want, sample.id)
        if save and (act or glu):
            close(pre_activation, pre, sample.id)
        else:
            assert pre_activation.shape == (0,)
    assert activations == {*FUNCTIONS}


@every_dtype
def test_gemm_add_adds_in_place_and_rounds_once(dtype):
    spec = specs.find("gemm_add_")
    for sample in spec.samples(dtype, CPU):
        c, a, b, trans_a, trans_b, alpha, beta = sample.args
        want = product(a, b, trans_a, trans_b, alpha)
        want = want + beta * c.double() if beta else want
        assert spec.reference(*sample.args) is None
        close(c, want, sample.id)


def expanded_scale(scale, rows, shape):
    return torch.kron(scale.double(), torch.ones(rows, 128, dtype=torch.float64))[: shape[0], : shape[1]]


@pytest.mark.parametrize("name", ["scaled_gemm", "block_scaled_gemm"])
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_fp8_products_equal_dequantized_ones(name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, CPU):
        a, b, a_scale, b_scale, a_dtype, b_dtype, bias, *rest = sample.args
        x, w = a.view(a_dtype).double(), b.view(b_dtype).double()
        if name == "scaled_gemm":
            x, w = x * a_scale.double().reshape(-1, 1), w * b_scale.double().reshape(-1, 1)
        else:
            x, w = x * expanded_scale(a_scale, rest[0], a.shape), w * expanded_scale(b_scale, rest[1], b.shape)
        want = x @ w.t()
        got = spec.reference(*sample.args)
        assert got.dtype is dtype
        close(got, want if bias is None else want + bias.double(), sample.id)


def test_gemm_flops_are_counted():
    new = torch.empty
    for name, args in {
        "gemm": (new(3, 8), new(8, 5), None, False, False),
        "gemm_gelu": (new(8, 3), new(5, 8), new(5), True, True),
        "gemm_add_": (new(3, 5), new(8, 3), new(8, 5), True, False),
        "scaled_gemm": (new(3, 8), new(5, 8)),
        "linear_act": (new(3, 8), new(5, 8), new(5)),
    }.items():
        assert specs.find(name).flops(*args) == 2 * 3 * 5 * 8


# ---- cuBLAS calls, which torch also has on the CPU -------------------------------------------------------------------

CUBLAS = [fn for fn in cublas.IMPLS.values() if "gemm" in fn.op or fn.op == "linear_act"]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("fn", CUBLAS, ids=lambda f: f"{f.op} {f.impl_id}")
def test_cublas_calls_agree_with_the_reference(fn, dtype):
    """A call that cuBLAS does not support is declined with a reason; a wrong call raises the reference's error."""
    spec, ran = specs.find(fn.op), 0
    when = getattr(fn, "when", None)
    for sample, again in zip(spec.samples(dtype, CPU), spec.samples(dtype, CPU), strict=True):
        if when is not None and when(*sample.args) is not True:
            assert isinstance(when(*sample.args), str)
            continue
        ran += 1
        got, want = fn(*sample.args), spec.reference(*again.args)
        if spec.mutates:
            got, want = sample.args[0], again.args[0]
        for g, w in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            tol = spec.tol[w.dtype]
            assert g.dtype is w.dtype and g.is_contiguous() and not g._is_view()
            torch.testing.assert_close(g, w, rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}")
    assert ran or fn is cublas.block_scaled_gemm  # the CPU has no block-scaled GEMM
    for bad in (b for b in spec.errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            (when or fn)(*bad.args)


def test_cublas_multiplies_only_some_fp8_products():
    e4, e5 = torch.float8_e4m3fn, torch.float8_e5m2
    new, one = lambda *s: torch.zeros(s, dtype=torch.uint8), torch.ones(1)
    supported = lambda a, b, kinds=(e4, e4), **more: cublas.scaled_when(a, b, one, one, *kinds, **more)
    assert supported(new(5, 32), new(16, 32)) is True and supported(new(5, 32), new(16, 32), (e5, e4)) is True
    assert "multiples of 16" in supported(new(5, 24), new(16, 24)) and "multiples of 16" in supported(
        new(5, 32), new(15, 32)
    )
    assert "at most one" in supported(new(5, 32), new(16, 32), (e5, e5))
    assert "contiguous" in supported(new(5, 64)[:, :32], new(16, 32))
    assert "bias" in supported(new(5, 32), new(16, 32), bias=torch.ones(16))


# ---- which implementation runs ---------------------------------------------------------------------------------------


@pytest.fixture
def refusal(monkeypatch):
    """Why our kernel of an op is not selected on an NVIDIA chip without measurements; None if it is selected."""
    monkeypatch.setattr(provider_speed, "measured", functools.cache(lambda chip: {}))
    launch = pytest.importorskip("opmux.kernels.lib.launch")
    monkeypatch.setattr(launch, "runs_on_chip", lambda: True)
    manager = get_default_manager()
    reasons = {}
    for name in ("gemm", "linear"):
        candidates = manager.registry.get_implementations(name)
        reasons[name] = next(i for i in candidates if i.impl_id == "default.flagos")

    def ask(name, policy=None):
        refused = manager.static_refusal(f"opmux::{name}", reasons[name], "cuda", policy)
        return None if refused is None else f"{refused.stage}: {refused.reason}"

    with devices.assume("nvidia", "sm_90"):
        yield ask


def test_our_kernels_run_on_nvidia_only_if_named(refusal):
    """cuBLAS runs unless a policy excludes it."""
    words = "library: cuBLAS is faster: it runs only if a policy names it, by impl:default.flagos or an order for {}"
    assert refusal("gemm") == words.format("gemm") and refusal("linear") == words.format("linear")
    with opmux.policy(per_op={"gemm": "flagos|*"}):
        assert refusal("gemm") is None and refusal("linear") is not None
    with opmux.policy(per_op={"linear": "impl:default.flagos"}):
        assert refusal("linear") is None and refusal("gemm") is not None
    for scope in (opmux.policy("impl:default.flagos"), opmux.policy(deny=["nvidia"]), opmux.policy(allow=["acme"])):
        with scope:
            assert refusal("gemm") is None
    for scope in (opmux.policy("flagos"), opmux.policy(per_op={"gemm": "vendor|*"}), opmux.policy(allow=["nvidia"])):
        with scope:
            assert refusal("gemm") is not None


def test_a_candidate_is_judged_by_the_policy_that_chose_it(refusal):
    """A table of candidates may be filled in a thread of autograd, where the scope of the forward is not current."""
    with opmux.policy(per_op={"gemm": "impl:default.flagos"}):
        named = get_policy()
    assert refusal("gemm") is not None
    assert refusal("gemm", named) is None


def test_our_kernels_are_candidates_where_measurements_favour_them(refusal, monkeypatch):
    monkeypatch.undo()  # use the shipped measurements
    monkeypatch.setattr("opmux.kernels.lib.launch.runs_on_chip", lambda: True)
    assert refusal("linear") is None and refusal("gemm") is not None


def test_our_kernels_are_not_declined_if_they_do_not_run_on_a_chip(refusal, monkeypatch):
    monkeypatch.setattr("opmux.kernels.lib.launch.runs_on_chip", lambda: False)
    assert refusal("gemm") is None
