"""NVIDIA's libraries on an NVIDIA chip: cuBLAS, flash attention, cuDNN, and other libraries if they are installed."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from impls import refusal

import opmux
from opmux.core import get_default_manager, specs
from opmux.core.machine import arch_of, split_arch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs NVIDIA's CUDA"),
]

CUDA = torch.device("cuda")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
REFERENCE = "reference.torch"
ATOL = {BF16: 3e-2, F16: 4e-3, F32: 1e-4, torch.float64: 1e-9}
short = {"ids": lambda v: str(v).removeprefix("torch.").removeprefix("vendor.nvidia.").replace(" ", "")}


def hopper() -> bool:
    prefix, number = split_arch(arch_of("cuda") or "sm_0")
    return prefix == "sm" and 90 <= number < 100


ATTENTION = ["vendor.nvidia.flash", *(["vendor.nvidia.cudnn"] if torch.cuda.is_available() and hopper() else [])]


def only(**ids):
    """`only(attention=..., attention_bwd=...)` is a policy that allows only these impls, and no fallback."""
    return opmux.policy(per_op={op: f"impl:{impl}" for op, impl in ids.items()}, strict=True)


def by(impl_id, op="attention", backward=None):
    return only(**{op: impl_id, f"{op}_bwd": backward or impl_id})


def close(got, want, atol, what):
    assert got.isfinite().all(), f"{what}: not finite"
    torch.testing.assert_close(got.double(), want.double(), rtol=atol, atol=atol, msg=lambda m: f"{what}: {m}")


def impl_of(op, impl_id):
    return next(i for i in get_default_manager().registry.get_implementations(op) if i.impl_id == impl_id)


# ---- attention ------------------------------------------------------------------------------------------------------


def qkv(dtype, b, h, h_kv, sq, sk, d, seq_first=False, seed=0):
    g = torch.Generator(CUDA).manual_seed(seed)

    def one(heads, s):
        shape = (b, s, heads, d) if seq_first else (b, heads, s, d)
        t = torch.randn(shape, generator=g, device=CUDA, dtype=F32).to(dtype)
        return t.transpose(1, 2) if seq_first else t

    return one(h, sq), one(h_kv, sk), one(h_kv, sk)


def run_attention(args, causal, scale, do):
    """Run attention through autograd; return o, lse and the gradients."""
    leaves = [t.detach().requires_grad_() for t in args]
    o, lse = opmux.ops.attention(*leaves, causal, scale)
    return (o.detach(), lse, *torch.autograd.grad(o, leaves, do))


def truth(args, causal, scale, do):
    with by(REFERENCE):
        return run_attention([t.double() for t in args], causal, scale, do.double())


# batch, query heads, key heads, queries, keys, dim, causal, scale
SHAPES = [
    (2, 4, 4, 128, 128, 64, False, None),
    (2, 4, 4, 128, 128, 64, True, None),
    (1, 8, 2, 257, 257, 128, True, None),
    (2, 6, 1, 65, 65, 32, False, 0.3),
    (1, 4, 2, 100, 333, 64, False, None),
    (3, 2, 2, 1000, 1000, 128, True, 0.05),
    (1, 2, 2, 37, 37, 8, True, None),
    (1, 2, 1, 72, 72, 96, True, None),
]
NOT_SQUARE = [  # cases: causal with more keys than queries (aligned to the bottom right), wide heads, one query
    (1, 4, 2, 100, 333, 64, True, None),
    (2, 2, 2, 64, 65, 128, True, None),
    (1, 2, 2, 130, 130, 256, True, None),
    (2, 8, 2, 1, 77, 64, True, None),
]


@pytest.mark.parametrize("seq_first", [False, True], ids=["packed", "seq_first"])
@pytest.mark.parametrize("dtype", [BF16, F16], **short)
@pytest.mark.parametrize("impl_id", ATTENTION, **short)
def test_attention_of_each_library_agrees_with_float64(impl_id, dtype, seq_first):
    for b, h, h_kv, sq, sk, d, causal, scale in [*SHAPES, *(NOT_SQUARE if impl_id.endswith("flash") else [])]:
        what = f"{impl_id} {(b, h, h_kv, sq, sk, d)} causal={causal}"
        args = qkv(dtype, b, h, h_kv, sq, sk, d, seq_first)
        do = torch.randn_like(args[0])
        want = truth(args, causal, scale, do)
        with by(impl_id):
            got = run_attention(args, causal, scale, do)
        for name, g, w in zip(("o", "lse", "dq", "dk", "dv"), got, want, strict=True):
            assert g.dtype is (F32 if name == "lse" else dtype)
            size = 1.0 if name == "lse" else max(1.0, w.abs().max().item())
            close(g / size, w / size, 1e-3 if name == "lse" else ATOL[dtype] / 2, f"{what}: {name}")
        follows = (args[0], None, *args)
        for name, g, t in zip(("o", "lse", "dq", "dk", "dv"), got, follows, strict=True):
            contiguous = g.is_contiguous() if t is None or not seq_first else g.transpose(1, 2).is_contiguous()
            assert contiguous, f"{what}: {name} lies as {g.stride()}"


@pytest.mark.parametrize("impl_id", ATTENTION, **short)
def test_unsupported_attention_is_declined_with_a_reason(impl_id):
    impl = impl_of("attention", impl_id)
    for shape, causal in (
        ((1, 2, 2, 40, 9, 64), True),
        ((1, 2, 2, 16, 16, 36), False),
        ((1, 2, 2, 16, 16, 264), False),
    ):
        args = qkv(BF16, *shape)
        assert isinstance(refusal(impl, *args, causal, None), str), f"{impl_id} {shape}"
        with by(impl_id), pytest.raises(opmux.core.NotSupported):
            opmux.ops.attention(*args, causal)
        got = run_attention(args, causal, None, torch.ones_like(args[0]))  # another impl runs
        for g, w in zip(got, truth(args, causal, None, torch.ones_like(args[0])), strict=True):
            torch.testing.assert_close(g.double(), w, rtol=3e-2, atol=3e-2, equal_nan=True)


@pytest.mark.parametrize("dtype", [BF16, F16], **short)
@pytest.mark.parametrize("impl_id", ATTENTION, **short)
@pytest.mark.parametrize("name", ["attention", "attention_bwd"])
def test_attention_agrees_with_the_reference_on_all_accepted_samples(name, impl_id, dtype):
    spec, impl, accepted = specs.find(name), impl_of(name, impl_id), []
    for sample in spec.samples(dtype, CUDA):
        if refusal(impl, *sample.args) is not None:
            continue
        before = [t.clone() for t in sample.args if torch.is_tensor(t)]
        with only(**{name: impl_id}):
            got = getattr(opmux.ops, name)(*sample.args)
        assert all(
            torch.equal(a, b) for a, b in zip([t for t in sample.args if torch.is_tensor(t)], before, strict=True)
        )
        for out, g, w in zip(spec.out, got, spec.reference(*sample.args), strict=True):
            close(g, w, spec.tol[dtype].atol, f"{impl_id} {name} {sample.id}: {out}")
        accepted.append(sample.id)
    assert len(accepted) >= 6, accepted


@pytest.mark.parametrize("backward", [REFERENCE, *ATTENTION], **short)
@pytest.mark.parametrize("forward", [REFERENCE, *ATTENTION], **short)
def test_any_attention_backward_accepts_any_forwards_results(forward, backward):
    args = qkv(F16, 2, 4, 2, 96, 96, 64)
    do = torch.randn_like(args[0])
    with by(forward, backward=backward):
        got = run_attention(args, True, None, do)
    for g, w in zip(got[2:], truth(args, True, None, do)[2:], strict=True):
        close(g, w, ATOL[F16], f"{forward} then {backward}")


@pytest.mark.parametrize("impl_id", ATTENTION, **short)
def test_incoming_gradients_may_have_any_strides(impl_id):
    """cuDNN caches its plans by the strides of q, k and v only, so the strides of `do` must not matter."""
    args = qkv(BF16, 2, 4, 4, 64, 64, 64)
    base = torch.randn_like(args[0])
    want = truth(args, True, None, base)
    layouts = {
        "packed": base,
        "seq first": base.transpose(1, 2).contiguous().transpose(1, 2),
        "step": torch.stack((base, base), -1)[..., 0],
        "heads last": base.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    }
    for _ in range(2):
        for name, do in layouts.items():
            with by(impl_id):
                got = run_attention(args, True, None, do)
            for g, w in zip(got[2:], want[2:], strict=True):
                close(g, w, ATOL[BF16], f"{impl_id} do {name}")
    one = torch.ones((), device=CUDA, dtype=BF16).expand(args[0].shape)  # like the gradient of sum()
    with by(impl_id):
        got = run_attention(args, True, None, one)
    for g, w in zip(got[2:], truth(args, True, None, one)[2:], strict=True):
        close(g, w, ATOL[BF16], f"{impl_id} do expanded")


@pytest.mark.parametrize("impl_id", ATTENTION, **short)
def test_unaligned_and_strided_inputs_are_supported(impl_id):
    """Tests unaligned starts, unaligned row strides, other dimension orders, and expanded tensors."""
    flat = torch.randn(2 * 4 * 48 * 80, device=CUDA).to(BF16)
    n = 2 * 4 * 48 * 64
    layouts = {
        "odd start": flat[1 : 1 + n].view(2, 4, 48, 64),
        "odd rows": flat[: 2 * 4 * 48 * 67].view(2, 4, 48, 67)[..., 3:],
        "swapped": flat[:n].view(4, 2, 48, 64).transpose(0, 1),
        "a slice of qkv": flat[: 2 * 48 * 3 * 4 * 16].view(2, 48, 3, 4, 16)[:, :, 1].transpose(1, 2),
        "expanded": flat[: 48 * 64].view(1, 1, 48, 64).expand(2, 4, 48, 64),
    }
    for name, q in layouts.items():
        k, v = torch.randn_like(q), torch.randn_like(q)
        do = torch.randn(q.shape, device=CUDA, dtype=BF16)
        with by(impl_id):
            got = run_attention((q, k, v), True, None, do)
        for out, g, w in zip(("o", "lse", "dq", "dk", "dv"), got, truth((q, k, v), True, None, do), strict=True):
            close(g, w, 2 * ATOL[BF16], f"{impl_id} {name}: {out}")


def captured(call, inputs):
    """Capture a call, replay it with new input values, and return the results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    for t in inputs:
        t.copy_(torch.randn_like(t))
    graph.replay()
    torch.cuda.synchronize()
    return results


@pytest.mark.parametrize("impl_id", ATTENTION, **short)
def test_attention_can_be_captured_in_a_cuda_graph(impl_id):
    q, k, v = qkv(BF16, 2, 4, 2, 64, 64, 64)
    do = torch.randn_like(q)

    def call():
        o, lse = opmux.ops.attention(q, k, v, True)
        return (o, lse, *opmux.ops.attention_bwd(do, q, k, v, o, lse, True, None))

    with by(impl_id):
        got = captured(call, (q, k, v, do))
    for g, w in zip(got, truth((q, k, v), True, None, do), strict=True):
        close(g, w, ATOL[BF16], impl_id)


@pytest.mark.parametrize("impl_id", ATTENTION, **short)
@pytest.mark.parametrize("seq_first", [False, True], ids=["packed", "seq_first"])
def test_attention_can_be_compiled_with_its_gradients(impl_id, seq_first):
    torch._dynamo.reset()
    args = qkv(BF16, 2, 4, 2, 64, 64, 64, seq_first)
    do = torch.randn_like(args[0])
    f = torch.compile(lambda q, k, v: opmux.ops.attention(q, k, v, True)[0] * 1.0, fullgraph=True)
    with by(impl_id):
        leaves = [t.detach().requires_grad_() for t in args]
        o = f(*leaves)
        got = (o, *torch.autograd.grad(o, leaves, do))
    want = truth(args, True, None, do)
    for g, w in zip(got, (want[0], *want[2:]), strict=True):
        close(g.detach(), w, ATOL[BF16], impl_id)


def test_attention_agrees_with_torchs():
    q, k, v = qkv(BF16, 2, 8, 2, 256, 256, 128)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    close(opmux.ops.attention(q, k, v, True)[0], want, ATOL[BF16], "attention")


def test_libraries_are_chosen_for_attention_and_linear():
    q, k, v = qkv(BF16, 1, 2, 2, 64, 64, 64)
    explain = get_default_manager().explain
    assert explain("attention", q, k, v).chosen.impl_id == ATTENTION[-1], explain("attention", q, k, v)
    lse = torch.zeros(1, 2, 64, device=CUDA)
    assert explain("attention_bwd", q, q, k, v, q, lse, False, None).chosen.impl_id == ATTENTION[-1]
    x, w = torch.randn(4, 8, device=CUDA), torch.randn(8, 8, device=CUDA)
    chosen = explain("linear", x, w).chosen
    assert chosen.vendor is None or chosen.impl_id == "vendor.nvidia.cublas", explain("linear", x, w)
    assert explain("attention", q.float(), k.float(), v.float()).chosen.impl_id == REFERENCE


# ---- linear ---------------------------------------------------------------------------------------------------------

CUBLAS = "vendor.nvidia.cublas"


@pytest.mark.parametrize("dtype", [torch.float64, F32, F16, BF16], **short)
@pytest.mark.parametrize("name", ["linear", "linear_bwd"])
def test_cublas_linear_agrees_with_the_reference(name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, CUDA):
        with only(**{name: CUBLAS}):
            got = getattr(opmux.ops, name)(*sample.args)
        want = spec.reference(*(t.cpu() if torch.is_tensor(t) else t for t in sample.args))
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        for g, w in pairs:
            assert g.is_cuda and g.is_contiguous() and g.dtype is dtype
            close(g.cpu(), w, max(spec.tol[dtype].atol, spec.tol[dtype].rtol), f"{name} {sample.id}")


@pytest.mark.parametrize("dtype", [F32, F16, BF16], **short)
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no_bias"])
def test_cublas_linear_agrees_at_a_models_size(dtype, has_bias):
    x, w, b = (torch.randn(*s, device=CUDA, dtype=F32).to(dtype) for s in ((4, 256, 1024), (768, 1024), (768,)))
    leaves = [t.detach().requires_grad_() for t in ((x, w * 0.03, b) if has_bias else (x, w * 0.03))]
    with by(CUBLAS, "linear"):
        y = opmux.ops.linear(*leaves)
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, leaves, dy)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    want = F.linear(*wide)
    expected = torch.autograd.grad(want, wide, dy.double())
    for name, g, t in zip(
        ("y", "dx", "dweight", "dbias"), (y.detach(), *grads), (want.detach(), *expected), strict=False
    ):
        size = max(1.0, t.abs().max().item())
        close(g / size, t / size, {F32: 1e-5, F16: 2e-3, BF16: 1e-2}[dtype], f"linear {name}")
    assert not y._is_view()


def test_cublas_linear_can_be_captured_in_a_cuda_graph():
    x, w, b = (torch.randn(*s, device=CUDA).to(BF16) for s in ((8, 64), (32, 64), (32,)))
    dy = torch.randn(8, 32, device=CUDA).to(BF16)
    with by(CUBLAS, "linear"):
        got = captured(lambda: (opmux.ops.linear(x, w, b), *opmux.ops.linear_bwd(dy, x, w)), (x, w, b, dy))
    want = (F.linear(x, w, b), dy @ w, dy.t() @ x, dy.sum(0))
    for g, t in zip(got, want, strict=True):
        close(g, t, 0.1, "linear in a graph")


# ---- batch norm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F16], **short)
def test_cudnns_batch_norm_agrees_with_the_reference(dtype):
    cudnn = "vendor.nvidia.cudnn"
    x = (torch.randn(8, 32, 14, 14, device=CUDA) * 2 + 1).to(dtype)
    for weight, bias, running in ((True, True, True), (True, False, False), (False, False, True)):
        w = torch.rand(32, device=CUDA, dtype=F32) + 0.5 if weight else None
        b = torch.randn(32, device=CUDA) if bias else None
        mean, var = (torch.randn(32, device=CUDA), torch.rand(32, device=CUDA)) if running else (None, None)
        old = None if mean is None else (mean.clone(), var.clone())
        args = (x, w, b, mean, var, 0.3, 1e-5)
        with only(batch_norm=cudnn):
            got = opmux.ops.batch_norm(*args)
        want = specs.find("batch_norm").reference(*args)
        for name, g, t in zip(specs.find("batch_norm").out, got, want, strict=True):
            assert (g.dtype, g.stride()) == (t.dtype, t.stride()), name
            close(g, t, 2e-3 if g.dtype is F16 else 2e-5, f"batch_norm {name} {weight, bias, running}")
        assert old is None or (torch.equal(mean, old[0]) and torch.equal(var, old[1]))
        dy = torch.randn_like(x)
        for stats in (got, want):  # the backward gets the statistics of its own forward, then of another forward
            with only(batch_norm_bwd=cudnn):
                grads = opmux.ops.batch_norm_bwd(dy, x, w, stats[1], stats[2])
            expected = specs.find("batch_norm_bwd").reference(dy, x, w, want[1], want[2])
            for name, g, t in zip(("dx", "dweight", "dbias"), grads, expected, strict=True):
                assert g.dtype is t.dtype
                close(g, t, 2e-2 if dtype is F16 else 2e-3, f"batch_norm_bwd {name} {weight, bias, running}")


# ---- other installed libraries --------------------------------------------------------------------------------------


def optional():
    from opmux.backends._nvidia.ops import providers

    return sorted(providers.IMPLS.items())


@pytest.mark.parametrize("name, fn", optional(), ids=[name for name, _ in optional()])
def test_an_installed_library_agrees_with_the_reference(name, fn):
    there = fn._is_available()
    if there is not True:
        pytest.skip(there)
    spec, accepted = specs.find(fn.op), 0
    for dtype in (BF16, F16, F32):
        if fn.dtypes is not None and dtype not in fn.dtypes:
            continue
        for sample in spec.samples(dtype, CUDA):
            if fn.when(*sample.args) is not True:
                continue
            tensors = [t for t in sample.args if torch.is_tensor(t)]
            before = [t.clone() for t in tensors]
            got = fn(*sample.args)
            got = spec.result(got) if spec.result else got
            want = spec.reference(*sample.args)
            tuples = [r if isinstance(r, (tuple, list)) else (r,) for r in (got, want)]
            for out, g, w in zip(spec.out, *tuples, strict=True):
                if w is not None:
                    tol = max(spec.tol[dtype].atol, 2 * spec.tol[dtype].rtol)
                    close(g, w, tol, f"{name} {sample.id} {dtype}: {out}")
            if "ln_out" not in sample.id:
                same = all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
                assert same, f"{name} wrote to its arguments: {sample.id}"
            accepted += 1
    assert accepted


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("impl_id", [*ATTENTION, CUBLAS], **short)
def test_impls_run_on_a_device_that_is_not_the_current_one(impl_id):
    op = "linear" if impl_id == CUBLAS else "attention"
    with contextlib.ExitStack() as stack:
        stack.enter_context(by(impl_id, op))
        if op == "linear":
            got = opmux.ops.linear(*(torch.ones(8, 8, device="cuda:1") for _ in range(2)))
            assert got.device.index == 1 and got.eq(8).all()
        else:
            q = torch.randn(1, 2, 16, 64, device="cuda:1", dtype=BF16)
            o, _ = opmux.ops.attention(q, q, q)
            close(o, specs.find("attention").reference(q, q, q)[0], ATOL[BF16], impl_id)
