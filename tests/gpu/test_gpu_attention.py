"""Our attention kernels on the GPU, compared with float64 and with torch's kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opmux.core import get_default_manager
from opmux.faces.aten import attention as adapters
from opmux.specs import attention_general as general
from opmux.specs.samples import Case

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def ours(op):
    impls = get_default_manager().registry.get_implementations(op)
    return next(i for i in impls if i.impl_id == "default.flagos").fn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128, 80])
def test_attention_is_as_close_to_float64_as_torchs(dtype, causal, dim):
    q, do = (torch.randn(2, 8, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, 2, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    attend = lambda *t: F.scaled_dot_product_attention(*t, is_causal=causal, enable_gqa=True)

    def with_gradients(*tensors):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        o = attend(*leaves)
        return o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))

    exact, torchs = with_gradients(q.double(), k.double(), v.double()), with_gradients(q, k, v)
    o, lse = ours("attention")(q, k, v, causal, None)
    results = (o, *ours("attention_bwd")(do, q, k, v, o, lse, causal, None))
    for name, got, native, want in zip(("o", "dq", "dk", "dv"), results, torchs, exact, strict=True):
        error = [(t.double() - want).norm() / want.norm() for t in (got, native)]
        assert error[0] <= 1.25 * error[1] + 1e-5, (name, error)


def test_the_backward_is_deterministic():
    q, do = (torch.randn(4, 16, 777, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(4, 4, 777, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    o, lse = ours("attention")(q, k, v, True, None)
    runs = [ours("attention_bwd")(do, q, k, v, o, lse, True, None) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


OPTIONS = {
    "window": dict(left=256, right=0),
    "top left": dict(right=0, at_end=False),
    "bias": dict(bias=(1, 8, 1000)),
    "one row of bias, sink": dict(bias=(2, 1, 1), sink=True),
    "alibi, soft-cap": dict(slopes=True, softcap=20.0, right=0),
    "dropout": dict(dropout_p=0.2, right=0),
    "lengths": dict(q_sizes=(1000, 333), k_sizes=(900, 64), right=0, sink=True),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_option_agrees_with_the_reference(options, dim):
    """Compares bfloat16 results with the reference in float64 on the same inputs."""
    case = Case((2, 8, 1000, dim), options={"kv_heads": 2, **options})
    for op, samples in (
        (general.attention_general, general.GENERAL),
        (general.attention_general_bwd, general.GENERAL_BWD),
    ):
        args = samples.named(case, torch.bfloat16, CUDA)
        wide = {n: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in args.items()}
        want = op.reference(**wide)
        for name, got, exact in zip(op.spec.out, ours(op.spec.name)(*args.values()), want, strict=True):
            if got.numel():
                error = (got.double() - exact).norm() / exact.norm()
                assert error < 0.02, (op.spec.name, name, error)


def test_offsets_beyond_32_bits_are_read():
    # each batch element has over 2^31 elements
    k = torch.zeros(2, 1, 2**24 + 64, 128, device=CUDA, dtype=torch.bfloat16)
    q = torch.zeros(2, 1, 64, 128, device=CUDA, dtype=torch.bfloat16)
    k[1, 0, -1] = 8.0
    q[1] = 8.0
    absent, numbers = (None,) * 8, (0, 0, -1, -1, True, 0.0, 0.0, 1.0, False, False)
    o, _ = ours("attention_general")(q, k, k, *absent, *numbers)
    assert torch.equal(o[1], torch.full_like(o[1], 8.0)) and not o[0].any()


# ---- ATen's overloads, compared with torch's kernels -----------------------------------------------------------------


def new(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device=CUDA, dtype=dtype)


def like_torchs(results, native, skip=(), tolerance=2e-2):
    """Assert that shapes, dtypes and strides are equal, and values equal within rounding. Does not compare the values
    of results in `skip`.
    """
    for i, (got, want) in enumerate(zip(results, native, strict=True)):
        if want is None or not isinstance(want, torch.Tensor):
            assert got == want, i
            continue
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride()), i
        if i not in skip and want.numel():
            finite = want.isfinite()
            assert torch.equal(got[~finite], want[~finite]), i
            error = (got[finite].double() - want[finite].double()).norm() / want[finite].double().norm()
            assert error < tolerance, (i, error)


WINDOWS = [(False, None, None), (True, None, None), (False, 100, 30), (False, 64, None), (False, None, 10)]


@pytest.mark.parametrize("shape", ["whole", "of one projection", "packed", "packed, other keys"])
@pytest.mark.parametrize(("causal", "left", "right"), WINDOWS)
def test_flash_overloads_agree_with_torch(shape, causal, left, right):
    """Each backward is tested with our forward and with torch's forward."""
    aten, sides = torch.ops.aten, dict(window_size_left=left, window_size_right=right)
    cu_q = cu_k = None
    if shape == "whole":
        q, do, k, v = (new(2, 500, n, 64) for n in (8, 8, 2, 2))
        longest = (500, 500)
    elif shape == "of one projection":
        q, k, v = new(2, 500, 3, 8, 64).unbind(2)
        do, longest = new(2, 500, 8, 64), (500, 500)
    else:
        lengths = (100, 37, 300)
        keys = lengths if shape == "packed" else (130, 20, 300)
        q, do, k, v = (new(sum(m), n, 64) for m, n in ((lengths, 8), (lengths, 8), (keys, 2), (keys, 2)))
        cu_q = torch.tensor([0, *lengths], device=CUDA).cumsum(0).int()
        cu_k = cu_q if shape == "packed" else torch.tensor([0, *keys], device=CUDA).cumsum(0).int()
        longest = (300, 300)
    inputs = (q, k, v, cu_q, cu_k, *longest, 0.0, causal, False)
    native = aten._flash_attention_forward.default(*inputs, **sides)
    results = adapters.flash_attention_forward(ours("attention_general"), *inputs, **sides)
    like_torchs(results, native, skip=(2, 3))
    for o, lse in (native[:2], results[:2]):
        args = (do, q, k, v, o, lse, cu_q, cu_k, *longest, 0.0, causal, *native[2:4])
        want = aten._flash_attention_backward.default(*args, **sides)
        like_torchs(adapters.flash_attention_backward(ours("attention_general_bwd"), *args, **sides), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [adapters.NO_MASK, adapters.TOP_LEFT, adapters.BOTTOM_RIGHT])
@pytest.mark.parametrize("shape", ["whole", "shared", "packed"])
def test_efficient_backward_agrees_with_torch(shape, mask, dtype):
    aten, cu, longest = torch.ops.aten, None, (200, 200)
    if shape == "packed":
        cu, longest = torch.tensor([0, 100, 137, 437], device=CUDA, dtype=torch.int32), (300, 300)
        q, k, v, do = (new(1, 437, 4, 64, dtype=dtype) for _ in range(4))
    else:
        q, k, v, do = (new(2, 200, 4, 64, dtype=dtype) for _ in range(4))
    forward = aten._efficient_attention_forward.default(q, k, v, None, cu, cu, *longest, 0.0, mask, True)
    o, lse, seed, offset = forward[:4]
    args = (do, q, k, v, None, o, cu, cu, *longest, lse, 0.0, seed, offset, mask, False)
    options = dict(shared_storage_dqdkdv=shape == "shared")
    want = aten._efficient_attention_backward.default(*args, **options)
    results = adapters.efficient_attention_backward(ours("attention_general_bwd"), *args, **options)
    like_torchs(results, want)


@pytest.mark.parametrize("layout", ["heads first", "sequences first", "of one projection"])
def test_efficient_attention_agrees_with_torch_in_any_layout(layout):
    """Tests the float32 calls of gpt2, bert and vit. Results have the same strides as torch's."""
    if layout == "of one projection":
        q, k, v = new(2, 333, 3, 4, 64, dtype=torch.float32).permute(2, 0, 3, 1, 4)
    else:
        q, k, v = (new(2, 333, 4, 64, dtype=torch.float32).transpose(1, 2) for _ in range(3))
    if layout == "heads first":
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    do = new(2, 333, 4, 64, dtype=torch.float32).transpose(1, 2)
    args = (q, k, v, None, True, 0.0, True)
    native = torch.ops.aten._scaled_dot_product_efficient_attention.default(*args)
    like_torchs(adapters.efficient(ours("attention_general"), *args), native, skip=(2, 3))
    args = (do, q, k, v, None, *native, 0.0, [True, True, True, False], True)
    want = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(*args)
    like_torchs(adapters.efficient_backward(ours("attention_general_bwd"), *args), want)
