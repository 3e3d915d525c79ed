"""NVIDIA's impls on a machine without an NVIDIA chip: which are offered, which calls they accept, how they call
libraries.

cuBLAS calls run on the CPU; flash and cuDNN run on meta tensors, through torch's meta kernels. Other libraries are
small fake packages that compute with torch, write to the same arguments as the real ones, and record their calls.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import textwrap
import types

import pytest
import torch

from opmux.backends._nvidia.hopper.ops import cudnn as hopper
from opmux.backends._nvidia.hopper.ops import gluon_attention, gluon_blocks
from opmux.backends._nvidia.ops import cublas, cudnn, flash, providers
from opmux.core import BackendImplKind, OpImpl, OpManager, OpRegistry, get_default_manager, specs
from opmux.core.errors import NotSupported
from opmux.core.registry import Fit, when_of
from opmux.machine import vendor_ops, vendors
from opmux.machine.devices import Chip
from opmux.specs import attention as attention_spec
from opmux.tuning import provider_speed
from opmux.tuning.speed_classes import CLASSES

CPU, META = torch.device("cpu"), torch.device("meta")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LIBRARIES = ("transformer_engine", "transformer_engine_torch", "flash_attn", "liger_kernel", "flag_gems")


def as_tuple(results):
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def agree(spec, got, args, what=""):
    want = as_tuple(spec.reference(*args))
    for name, a, b in zip(spec.out, as_tuple(got), want, strict=True):
        if b is None:
            assert a is None
            continue
        tol = spec.tol[args[0].dtype]
        assert a.is_contiguous() and (a.dtype, a.shape) == (b.dtype, b.shape), f"{what}: {name}"
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, msg=lambda m, n=name: f"{what}: {n}: {m}")


# ---- which impls are offered ----------------------------------------------------------------------------------------


def impls(arch):
    get_default_manager().prepare()
    return vendor_ops.read(vendors.get("nvidia"), arch)


@pytest.mark.parametrize(
    "arch, attention",
    [("sm_80", "flash flash_attn"), ("sm_90", "cudnn hopper flash flash_attn"), ("sm_75", "flash flash_attn")],
)
def test_each_arch_is_offered_its_impls_in_order_of_priority(arch, attention):
    offered = impls(arch)
    by_op = {}
    for impl in sorted(offered.impls, key=lambda i: (-i.priority, i.impl_id.rpartition(".")[2])):
        ours = impl.impl_id.startswith("default.flagos")
        assert impl.kind is (BackendImplKind.DEFAULT if ours else BackendImplKind.VENDOR)
        assert impl.vendor == "nvidia" and impl.devices == {"cuda"}
        by_op.setdefault(impl.op_name, []).append(impl.impl_id.rpartition(".")[2])
    assert by_op["opmux::attention"] == by_op["opmux::attention_bwd"] == attention.split()
    products = ["hopper", "cublas", "cublas_plain"] if arch == "sm_90" else ["cublas", "cublas_plain"]
    assert by_op["opmux::block_scaled_gemm"] == products
    assert by_op["opmux::linear"] == by_op["opmux::linear_bwd"] == ["cublas"]
    assert by_op["opmux::batch_norm"] == by_op["opmux::batch_norm_bwd"] == ["cudnn"]
    assert by_op["opmux::rms_norm"] == by_op["opmux::silu_mul_bwd"] == ["flag_gems", "liger_kernel"]
    assert offered.extras == {}


def test_shipped_times_name_existing_implementations():
    known = {(i.op_name, i.impl_id) for i in impls("sm_90").impls}
    times = provider_speed.FILES.measured(Chip("nvidia", "sm_90"))
    assert len(times) > 100
    for label, by_impl in times.items():
        key = f"opmux::{label.partition('[')[0]}"
        ours = {(key, "default.flagos")} if key in CLASSES else set()
        assert {(key, impl_id) for impl_id in by_impl} <= known | ours, label
        assert len(by_impl) > 1, label


def test_listing_nvidias_impls_imports_no_library():
    before = set(sys.modules)
    impls("sm_90")
    assert not [m for m in set(sys.modules) - before if m.partition(".")[0] in LIBRARIES]


# ---- our kernel in Gluon --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "m, n, k, rows, why",
    [
        (65, 72, 16, (1, 128), None),
        (4096, 4096, 4096, (1, 128), None),
        (64, 4096, 4096, (1, 128), "more than 64 rows and columns; the result has 64 and 4096"),
        (4096, 64, 4096, (1, 128), "more than 64 rows and columns; the result has 4096 and 64"),
        (128, 128, 100, (1, 128), "multiples of 16 bytes; the factors have 100"),
        (128, 128, 0, (1, 128), "multiples of 16 bytes; the factors have 0"),
        (128, 100, 128, (1, 128), "multiples of 16 bytes; the factors have 128 and the result 200"),
        (128, 128, 128, (1, 1), "these are of 1x128 and 1x128"),
        (128, 128, 128, (128, 1), "these are of 128x128 and 1x128"),
    ],
)
def test_the_hopper_block_gemm_accepts_its_sizes_and_says_why_it_declines_others(m, n, k, rows, why):
    new = lambda *shape, dtype: torch.empty(shape, dtype=dtype, device=META)
    scale = lambda length, each: new(-(-length // each), -(-k // 128), dtype=F32)
    a, b = new(m, k, dtype=torch.uint8), new(n, k, dtype=torch.uint8)
    fp8 = torch.float8_e4m3fn
    reason = gluon_blocks.takes(a, b, scale(m, rows[0]), scale(n, rows[1]), fp8, fp8, None, *rows, BF16)
    assert reason is True if why is None else why in reason


# ---- impls that come with torch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, F32, F16, BF16], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")
@pytest.mark.parametrize("name", ["linear", "linear_bwd"])
def test_cublas_calls_compute_linear(name, dtype):
    spec, fn = specs.find(name), getattr(cublas, name)
    for sample in spec.samples(dtype, CPU):
        got = fn(*sample.args)
        agree(spec, got, sample.args, sample.id)
        assert not any(t._is_view() for t in as_tuple(got)), sample.id
    for bad in (b for b in spec.errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            fn(*bad.args)


ATTENTION = [
    (flash.attention, flash.flash_when),
    (flash.attention_bwd, flash.flash_bwd_when),
    (hopper.attention, hopper.cudnn_when),
    (hopper.attention_bwd, hopper.cudnn_bwd_when),
]
by_impl = {"ids": lambda v: f"{v.impl_id}.{v.op}" if hasattr(v, "impl_id") else ""}


@pytest.mark.parametrize("order", ["packed", "seq first"])
@pytest.mark.parametrize("fn, when", ATTENTION, **by_impl)
def test_attention_results_have_the_specs_shapes_dtypes_and_strides(fn, when, order):
    """Checks all samples that the impl accepts, through torch's own meta kernels."""
    spec = specs.find(fn.op)
    layout = lambda t: (
        attention_spec.empty_result(t.transpose(1, 2)).transpose(1, 2) if torch.is_tensor(t) and t.dim() == 4 else t
    )
    accepted = []
    for sample in spec.samples(BF16, META):
        args = sample.args if order == "packed" else tuple(map(layout, sample.args))
        if when(*args) is not True:
            continue
        want = spec.fake(*args)
        for name, a, b in zip(spec.out, fn(*args), want, strict=True):
            steps = [[n for n, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in (a, b)]
            assert (a.shape, a.dtype, steps[0]) == (b.shape, b.dtype, steps[1]), f"{sample.id}: {name}"
        accepted.append(sample.id)
    assert len(accepted) >= (8 if fn in (flash.attention, flash.attention_bwd) else 6), accepted


@pytest.mark.parametrize("fn, when", ATTENTION, **by_impl)
def test_invalid_attention_arguments_raise_the_specs_errors(fn, when):
    spec = specs.find(fn.op)
    for bad in (b for b in spec.errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            when(*bad.args)


def qkv(sq=16, sk=16, d=64, dv=None, heads=(4, 4), dtype=BF16):
    make = lambda h, s, d: torch.empty(2, h, s, d, dtype=dtype, device=META)
    return make(heads[0], sq, d), make(heads[1], sk, d), make(heads[1], sk, dv or d)


@pytest.mark.parametrize(
    "kwargs, causal, by_flash, by_cudnn",
    [
        ({}, True, True, True),
        ({"heads": (8, 2)}, True, True, True),
        ({"sk": 40}, False, True, True),
        ({"sk": 40}, True, True, "as many keys as queries; there are 40 for 16"),
        ({"sk": 8}, True, "at least as many keys as queries", "as many keys"),
        ({"sq": 1, "sk": 40}, True, True, "sequences of more than 1"),
        ({"d": 256}, False, True, "at most 128"),
        ({"d": 36}, False, "multiple of 8", "multiple of 8"),
        ({"d": 264}, False, "at most 256", "at most 128"),
        ({"d": 64, "dv": 128}, False, "equal", "equal"),
        ({"dtype": F32}, False, "float16 and bfloat16", "float16 and bfloat16"),
        ({"sk": 0}, False, "not empty", "not empty"),
    ],
)
def test_flash_and_cudnn_attention_say_which_calls_they_decline(kwargs, causal, by_flash, by_cudnn):
    args = (*qkv(**kwargs), causal, None)
    for when, want in ((flash.flash_when, by_flash), (hopper.cudnn_when, by_cudnn)):
        got = when(*args)
        assert got is True if want is True else want in got


@pytest.mark.parametrize(
    "args, left, right, scale, want",
    [
        ({}, -1, -1, None, True),
        ({}, -1, 0, 0.3, True),
        ({}, 5, 0, None, "left = -1 and right = -1 or 0; they are 5 and 0"),
        ({}, -1, 2, None, "left = -1 and right = -1 or 0; they are -1 and 2"),
        ({}, -1, 0, 0.0, "a scale above 0; it is 0.0"),
        ({"d": 80}, -1, 0, None, "64 or 128 numbers; there are 80 and 80"),
        ({"dv": 128}, -1, 0, None, "64 or 128 numbers; there are 64 and 128"),
        ({"dtype": F32}, -1, 0, None, "float16 and bfloat16"),
        ({"sk": 0}, -1, 0, None, "not empty"),
    ],
)
def test_packed_attention_in_gluon_says_which_calls_it_declines(args, left, right, scale, want):
    q, k, v = (t[0].transpose(0, 1) for t in qkv(**{"d": 64, **args}))
    lse, cu = torch.empty(q.shape[1], q.shape[0], device=META), torch.empty(3, dtype=torch.int32, device=META)
    rest = (cu, cu, 16, 16, left, right, scale)
    o = q.new_empty(*q.shape[:2], v.shape[2])
    for got in (
        gluon_attention.varlen_when(q, k, v, *rest),
        gluon_attention.varlen_bwd_when(o, q, k, v, o, lse, *rest),
    ):
        assert got is True if want is True else want in got
    if want is True:
        assert "gradients of q's dtype" in gluon_attention.varlen_bwd_when(o.float(), q, k, v, o, lse, *rest)


def test_cudnn_backward_declines_under_deterministic_algorithms():
    q, k, v = qkv()
    args = (q, q, k, v, q, torch.empty(2, 4, 16, device=META), False, None)
    assert hopper.cudnn_bwd_when(*args) is True
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic" in hopper.cudnn_bwd_when(*args) and flash.flash_bwd_when(*args) is True
    finally:
        torch.use_deterministic_algorithms(False)


def test_only_unaligned_or_strided_inputs_of_flash_are_copied():
    flat = torch.arange(2 * 4 * 16 * 72 + 8, dtype=BF16)
    whole = flat[: 2 * 4 * 16 * 64].view(2, 4, 16, 64)
    for good in (whole, whole.transpose(1, 2), flat[8 : 8 + whole.numel()].view(2, 4, 16, 64)):
        assert flash.aligned(good) is good
    odd_start = flat[1 : 1 + whole.numel()].view(2, 4, 16, 64)
    odd_rows = flat[: 2 * 4 * 16 * 67].view(2, 4, 16, 67)[..., :64]
    for bad in (odd_start, odd_rows, whole[..., ::2], whole.transpose(0, 1), whole[:1].expand(2, 4, 16, 64)):
        copy = flash.aligned(bad)
        assert copy is not bad and copy.is_contiguous() and copy.storage_offset() == 0 and torch.equal(copy, bad)


@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_bwd"])
def test_cudnns_batch_norm_has_the_specs_shapes_dtypes_and_strides(name):
    spec, fn = specs.find(name), getattr(cudnn, name)
    accepted = 0
    for sample in spec.samples(F16, META):
        if fn.when(*sample.args) is True:
            for a, b in zip(fn(*sample.args), spec.reference(*sample.args), strict=True):
                assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype), sample.id
            accepted += 1
    assert accepted >= 2
    for bad in (b for b in spec.errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            fn.when(*bad.args)


def test_cudnns_batch_norm_declines_channels_last_float64_and_degenerate_shapes():
    x = torch.empty(4, 6, 5, 5)
    assert cudnn.limits(x) is True
    for other in (x.to(memory_format=torch.channels_last), x.double(), x[:, :1], x[..., :1, :1], x[0]):
        assert isinstance(cudnn.limits(other), str)


@pytest.mark.parametrize(
    "version, answer",
    [(None, "torch has none"), (8907, "needs cuDNN 9; torch has cuDNN 8"), (90100, True), (91002, True)],
)
def test_cudnn_attention_needs_cudnn_9_and_honours_avoid_recompile(monkeypatch, version, answer):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: version is not None)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    monkeypatch.delenv("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", raising=False)
    usable = hopper.usable()
    assert usable is True if answer is True else answer in usable
    monkeypatch.setenv("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", "1")
    assert "AVOID_RECOMPILE" in hopper.usable()


# ---- other libraries ------------------------------------------------------------------------------------------------

LIGER = {
    "liger_kernel/__init__.py": "",
    "liger_kernel/ops/__init__.py": "",
    "liger_kernel/ops/utils.py": "def calculate_settings(n):\n    return 1 << (n - 1).bit_length(), 4\n",
    "liger_kernel/ops/rms_norm.py": """
        import torch
        calls = []
        def rms_norm_forward(X, W, eps, offset, casting_mode, row_mode):
            calls.append((eps, offset, casting_mode, row_mode))
            shape, X = X.shape, X.view(-1, X.shape[-1])
            rstd = (X.float().square().mean(-1) + eps).rsqrt()
            Y = (X.float() * rstd[:, None] * (W.float() + offset)).to(X.dtype)
            return Y.view(shape), X, rstd, 64, 4, casting_mode
        def rms_norm_backward(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode):
            calls.append((offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode))
            assert X.dim() == 2 and RSTD.dim() == 1
            dy, x, r = dY.view(X.shape).float(), X.float(), RSTD[:, None]
            g, xhat = dy * (W.float() + offset), x * r
            dX = (r * (g - xhat * (g * xhat).mean(-1, keepdim=True))).to(dY.dtype).view(dY.shape)
            return (dY.copy_(dX) if in_place else dX), (dy * xhat).sum(0).to(W.dtype)
    """,
    # like the released version: writes the gradients over a and b
    "liger_kernel/ops/swiglu.py": """
        import torch
        def swiglu_forward(a, b, gate_multiplier, down_multiplier):
            assert gate_multiplier == down_multiplier == 1.0
            return a, b, (torch.nn.functional.silu(a.float()) * b.float()).to(a.dtype)
        def swiglu_backward(a, b, dc):
            x, y, g, s = a.double(), b.double(), dc.view(a.shape).double(), torch.sigmoid(a.double())
            a.copy_(g * y * (s + x * s * (1 - s))), b.copy_(g * x * s)
            return a.view(dc.shape), b.view(dc.shape)
    """,
    "liger_kernel/ops/geglu.py": """
        import torch
        def geglu_forward(a, b):
            return a, b, (torch.nn.functional.gelu(a.float(), approximate="tanh") * b.float()).to(a.dtype)
        def geglu_backward(a, b, dc):
            x, y = a.double().requires_grad_(), b.double().requires_grad_()
            with torch.enable_grad():
                c = torch.nn.functional.gelu(x, approximate="tanh") * y
            da, db = torch.autograd.grad(c, (x, y), dc.view(a.shape).double())
            a.copy_(da), b.copy_(db)
            return a.view(dc.shape), b.view(dc.shape)
    """,
}
GEMS = {
    "flag_gems/__init__.py": "",
    "flag_gems/ops/__init__.py": "from .rms_norm import rms_norm\n",
    "flag_gems/ops/rms_norm.py": """
        def rms_norm(x):
            raise AssertionError
        def rms_norm_forward(x, normalized_shape, weight, eps=1e-5):
            assert normalized_shape == list(weight.shape)
            rstd = (x.float().square().mean(-1) + eps).rsqrt()
            return (x.float() * rstd[..., None] * weight.float()).to(x.dtype), rstd.flatten()
        def rms_norm_backward(dy, x, inv_rms, normalized_shape, weight, eps=1e-5):
            assert normalized_shape == list(weight.shape) and inv_rms.dim() == 1
            r, d, v = inv_rms.view(x.shape[:-1])[..., None], dy.float(), x.float()
            g, xhat = d * weight.float(), v * r
            dx = r * (g - xhat * (g * xhat).mean(-1, keepdim=True))
            return dx.to(x.dtype), (d * xhat).sum_to_size(weight.shape)
    """,
    "flag_gems/fused/__init__.py": "",
    "flag_gems/fused/silu_and_mul.py": """
        import torch
        f = torch.nn.functional.silu
        def silu_and_mul(A, B):
            return (f(A.float()) * B.float()).to(A.dtype)
        def silu_and_mul_grad_kernel(x, y, dgrad):
            a, b = x.double().requires_grad_(), y.double().requires_grad_()
            with torch.enable_grad():
                grads = torch.autograd.grad(f(a) * b, (a, b), dgrad.double())
            return tuple(g.to(x.dtype) for g in grads)
    """,
    "flag_gems/fused/gelu_and_mul.py": """
        import torch
        f = torch.nn.functional.gelu
        def gelu_and_mul(x, y, approximate="none"):
            return (f(x.float(), approximate=approximate) * y.float()).to(x.dtype)
        def _grad(x, y, dgrad, how):
            a, b = x.double().requires_grad_(), y.double().requires_grad_()
            with torch.enable_grad():
                grads = torch.autograd.grad(f(a, approximate=how) * b, (a, b), dgrad.double())
            return tuple(g.to(x.dtype) for g in grads)
        def gelu_none_and_mul_grad_kernel(x, y, dgrad):
            return _grad(x, y, dgrad, "none")
        def gelu_tanh_and_mul_grad_kernel(x, y, dgrad):
            return _grad(x, y, dgrad, "tanh")
    """,
}
FLASH = {
    "flash_attn/__init__.py": "",
    "flash_attn/flash_attn_interface.py": """
        import torch
        from opmux.specs.attention import attention, attention_bwd
        calls = []
        turned = lambda *ts: [t.transpose(1, 2) for t in ts]
        @torch.library.custom_op("opmux_test_flash::forward", mutates_args=())
        def _flash_attn_forward(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float, causal: bool,
            window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: torch.Tensor | None,
            return_softmax: bool,
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
            window = (window_size_left, window_size_right)
            calls.append((dropout_p, softmax_scale, causal, *window, softcap, return_softmax))
            o, lse = attention.reference(*turned(q, k, v), causal, softmax_scale)
            return torch.empty_like(q).copy_(o.transpose(1, 2)), lse, q.new_empty(0), q.new_empty(2)
        def _flash_attn_backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
            window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
        ):
            calls.append((softmax_scale, causal, deterministic, rng_state, alibi_slopes))
            assert dout.is_contiguous() and out.is_contiguous() and softmax_lse.is_contiguous()
            grads = attention_bwd.reference(*turned(dout, q, k, v, out), softmax_lse, causal, softmax_scale)
            for to, g in zip((dq, dk, dv), grads):
                to.copy_(g.transpose(1, 2))
    """,
}
OLD_FLASH = {  # before 2.7: takes one `window_size` tuple, and also returns the padded inputs
    "flash_attn/__init__.py": "",
    "flash_attn/flash_attn_interface.py": """
        from opmux.specs.attention import attention
        calls = []
        def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_softmax):
            calls.append(window_size)
            o, lse = attention.reference(*(t.transpose(1, 2) for t in (q, k, v)), causal, softmax_scale)
            return o.transpose(1, 2), q, k, v, o, lse, None, None
    """,
}


@pytest.fixture
def installs(tmp_path, monkeypatch):
    """`installs(files)` puts packages on the import path until the end of the test."""

    def install(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))

    def forget():
        for name in [m for m in sys.modules if m.partition(".")[0] in LIBRARIES]:
            del sys.modules[name]
        providers.parameters.cache_clear()

    forget()
    yield install
    forget()


def impl_named(name):
    """The impl of this name, with nothing loaded yet."""
    return next(row.impl() for row in providers.table() if row.impl().__name__ == name)


def check_samples(name, dtypes=(F32, BF16), least=4):
    """Check on all samples which the impl accepts that it agrees with the reference and writes to no argument."""
    fn = impl_named(name)
    spec, accepted = specs.find(fn.op), 0
    impl = OpImpl(fn.op, name, BackendImplKind.VENDOR, "nvidia", fn, when=fn.when)
    when, fit = when_of(spec, impl), Fit.of(spec, impl).call
    for dtype in dtypes:
        for sample in spec.samples(dtype, CPU):
            if when(*sample.args) is not True:
                continue
            tensors = [t for t in sample.args if torch.is_tensor(t)]
            before = [t.clone() for t in tensors]
            got = fit(*sample.args)
            agree(spec, spec.result(got) if spec.result else got, sample.args, f"{name} {sample.id} {dtype}")
            if "ln_out" not in sample.id:
                assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True)), (
                    f"{name} wrote: {sample.id}"
                )
            accepted += 1
    assert accepted >= least * len(dtypes)


@pytest.mark.parametrize(
    "op", ["rms_norm", "rms_norm_bwd", "silu_mul", "silu_mul_bwd", "gelu_tanh_mul", "gelu_tanh_mul_bwd"]
)
def test_ligers_impls_agree_with_the_reference(installs, op):
    installs(LIGER)
    check_samples(f"{op}_liger_kernel")


def test_ligers_rms_norm_is_called_with_casting_mode_1_and_not_in_place(installs):
    installs(LIGER)
    check_samples("rms_norm_bwd_liger_kernel", (F32,))
    impl_named("rms_norm_liger_kernel")(torch.ones(2, 8), torch.ones(8), 1e-3, 1.0)
    calls = importlib.import_module("liger_kernel.ops.rms_norm").calls
    assert calls[-1] == (1e-3, 1.0, 1, None) and calls[0][1:] == (1, 64, 4, False, None)


@pytest.mark.parametrize(
    "op",
    "rms_norm rms_norm_bwd silu_mul silu_mul_bwd gelu_tanh_mul gelu_tanh_mul_bwd gelu_mul gelu_mul_bwd".split(),
)
def test_flaggems_impls_agree_with_the_reference(installs, op):
    installs(GEMS)
    check_samples(f"{op}_flag_gems")


def test_flaggems_rms_norm_declines_an_offset():
    when = impl_named("rms_norm_flag_gems").when
    x, w = torch.ones(2, 8), torch.ones(8)
    assert when(x, w, 1e-6, 0.0) is True and when(x, w, 1e-6, 1.0) == "takes no offset"


@pytest.mark.parametrize("op", ["attention", "attention_bwd"])
def test_flash_attn_agrees_with_the_reference(installs, op):
    installs(FLASH)
    check_samples(f"{op}_flash_attn", (BF16,), least=8)
    calls = importlib.import_module("flash_attn.flash_attn_interface").calls
    if op == "attention":
        assert calls[0] == (0.0, 0.25, False, -1, -1, 0.0, False)
    else:
        assert calls[0] == (0.25, False, False, None, None)


def test_flash_attn_keeps_the_memory_order_of_its_inputs(installs):
    installs(FLASH)
    q, k, v = (torch.randn(1, 16, 2, 8, dtype=BF16).transpose(1, 2) for _ in range(3))
    o, lse = impl_named("attention_flash_attn")(q, k, v, True, None)
    grads = impl_named("attention_bwd_flash_attn")(torch.ones_like(o), q, k, v, o, lse, True, None)
    assert all(t.transpose(1, 2).is_contiguous() for t in (o, *grads))


def test_flash_attn_before_2_7_is_supported(installs):
    installs(OLD_FLASH)
    check_samples("attention_flash_attn", (BF16,), least=8)
    assert set(importlib.import_module("flash_attn.flash_attn_interface").calls) == {(-1, -1)}


def test_a_library_function_with_an_unknown_signature_is_declined(installs):
    text = "def swiglu_forward(a, b, surprise):\n    raise AssertionError\n"
    installs({**LIGER, "liger_kernel/ops/swiglu.py": text})
    with pytest.raises(NotSupported, match=r"swiglu_forward.* requires \['surprise'\], which opmux does not know"):
        impl_named("silu_mul_liger_kernel")(torch.ones(2, 8), torch.ones(2, 8))
    with pytest.raises(NotSupported, match="the installed liger_kernel has no liger_kernel.ops.swiglu:swiglu_backward"):
        impl_named("silu_mul_bwd_liger_kernel")(*[torch.ones(2, 8)] * 3)


# ---- libraries that are missing or broken ---------------------------------------------------------------------------


def verdict(fn):
    """What `explain` says of an impl on this machine."""
    registry = OpRegistry()
    impl = next(i for i in impls("sm_90").impls if i.fn is fn)
    registry.register_impl(dataclasses.replace(impl, op_name="own", devices=None, min_arch=None, when=None))
    return OpManager(registry).explain("own").verdicts[0]


def test_explain_says_what_is_not_installed():
    for name, fn in providers.IMPLS.items():
        reason = verdict(fn)
        assert (reason.status, reason.stage) == ("refused", "library"), name
        assert reason.reason.endswith(" is not installed"), name


def test_a_placeholder_module_does_not_count_as_the_library(installs, monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    assert providers.installed("liger_kernel") == "liger_kernel is not installed"
    ours = types.ModuleType("flag_gems")
    ours.__spec__ = importlib.util.spec_from_file_location("flag_gems", providers.__file__)
    monkeypatch.setitem(sys.modules, "flag_gems", ours)
    assert providers.installed("flag_gems") == "flag_gems is not installed"
    with pytest.raises(NotSupported, match="'flag_gems' is a placeholder in this process"):
        providers.loaded("flag_gems")


def test_flash_attn_without_its_interface_module_is_not_installed(installs):
    installs({"flash_attn/__init__.py": "raise AssertionError", "flash_attn/cute/__init__.py": ""})
    assert verdict(providers.IMPLS["attention_flash_attn"]).reason == "flash_attn.flash_attn_interface is not installed"
    installs(FLASH)
    importlib.invalidate_caches()
    assert verdict(providers.IMPLS["attention_flash_attn"]).status == "chosen"
    assert "flash_attn" not in sys.modules


@pytest.mark.parametrize(
    "spoil, why",
    [
        (lambda a, b: (a, b[:, :-1]), "fit together"),
        (lambda a, b: (a, b.bfloat16()), "one dtype"),
        (lambda a, b: (a, b.to("meta")), "one device"),
        (lambda a, b: (a[:0], b[:0]), "rows of 1 to 65536"),
    ],
)
def test_tensors_that_do_not_fit_together_are_declined(spoil, why):
    assert why in impl_named("silu_mul_liger_kernel").when(*spoil(torch.ones(3, 8), torch.ones(3, 8)))


def test_rms_norm_bwd_declines_a_wrong_number_of_rstd_or_weight_elements():
    when = impl_named("rms_norm_bwd_liger_kernel").when
    x, w = torch.ones(8, 8), torch.ones(8)
    assert when(x, x, w, torch.ones(8), 0.0) is True
    assert "fit together" in when(x, x, w, torch.ones(7), 0.0) and "fit together" in when(
        x, x, w[:-1], torch.ones(8), 0.0
    )
