"""Layout ops, factories and fills on a real GPU, compared with torch's kernels on the same GPU: values, dtypes and
strides.
"""

from __future__ import annotations

import functools

import pytest
import torch

import opmux
from opmux.faces.aten import engine
from opmux.specs import creation, layout

pytestmark = pytest.mark.gpu

ROWS = {r.name: r for r in (*layout.TABLE, *layout.LISTS, *layout.ARITHMETIC, *creation.TABLE)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
ROUNDED = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.complex64: 1e-5}


def both(call):
    """Return the results of torch's kernel and of our kernel."""
    native = call()
    with opmux.use(mode="all"):
        return native, call()


def same(native, ours, what, exact=True):
    listed = lambda r: list(r) if isinstance(r, (tuple, list)) else [r]
    for a, b in zip(listed(native), listed(ours), strict=True):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device), what
        assert not a.numel() or a.stride() == b.stride(), f"{what}: strides {b.stride()}, native {a.stride()}"
        if exact:
            assert torch.equal(a, b), what
        else:
            tolerance = ROUNDED.get(a.dtype, 0)
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_samples_agree_with_torch(name, dtype):
    op = getattr(torch.ops.aten, name)
    for sample in ROWS[name].samples(dtype, "cuda"):
        try:
            native, ours = both(lambda sample=sample: op(*sample.args, **sample.kwargs))
        except (RuntimeError, NotImplementedError):
            continue  # torch has no kernel for this dtype
        exact = name not in ("unfold_backward", "polar", "arange", "linspace", "logspace")
        same(native, ours, f"{name} {sample.id}", exact)


@functools.cache  # cached: with `mode="all"` our random op would draw other numbers
def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(dtype)


# model shapes: rotated halves, a growing cache, split heads, images, masks
CALLS = {
    "rotate": lambda: (lambda h: torch.cat([-h[..., 32:], h[..., :32]], -1))(drawn(4, 32, 1024, 64)),
    "cache": lambda: torch.cat([drawn(4, 8, 1023, 128), drawn(4, 8, 1, 128)], 2),
    "many": lambda: torch.cat([drawn(17 + i, 768) for i in range(20)]),
    "heads": lambda: drawn(4, 1024, 32, 128).transpose(1, 2).contiguous(),
    "transposed": lambda: drawn(4096, 1000).t().contiguous(),
    "channels last": lambda: drawn(16, 64, 56, 56).clone(memory_format=torch.channels_last),
    "permuted": lambda: drawn(8, 16, 33, 32, 7).permute(0, 3, 1, 4, 2).contiguous(),
    "cast": lambda: drawn(4096, 4096).float(),
    "odd": lambda: drawn(1 << 20)[1:-2].clone(),
    "pad": lambda: torch.nn.functional.pad(drawn(16, 64, 56, 56), (1, 1, 2, 3), value=1.5),
    "mask": lambda: torch.full((2048, 2048), -65504.0, device="cuda", dtype=torch.float16).triu(1),
    "batched triangles": lambda: drawn(8, 513, 700).tril(-3),
    "flip": lambda: drawn(1000, 4096).flip(1),
    "roll": lambda: drawn(8, 56, 56, 96).roll((-3, 3), (1, 2)),
    "stack": lambda: torch.stack([drawn(4096, 1000)] * 3, -1),
    "repeat": lambda: drawn(4, 1, 33, 128).repeat(1, 8, 1, 1),
    "eye": lambda: torch.eye(1000, 3001, device="cuda"),
    "trace": lambda: torch.arange(10000, device="cuda").view(100, 100).trace(),
    "repeated": lambda: torch.repeat_interleave(torch.arange(5000, device="cuda") % 7),
}


@pytest.mark.parametrize("call", CALLS)
def test_layout_calls_of_models_agree_with_torch(call):
    same(*both(CALLS[call]), call)


def test_writes_to_existing_tensors_agree_with_torch():
    def call():
        y = torch.zeros(512, 1000, device="cuda")
        y[:, ::2] = drawn(512, 500)
        y[7] = 3
        y[:, 5].fill_(torch.tensor(2.0, device="cuda"))
        y.t()[:100].copy_(drawn(100, 512, dtype=torch.float32))
        return [y.clone(), y.tril_(-2), torch.cat([y[:256], y[256:]], out=torch.empty(1000, 512, device="cuda").t())]

    same(*both(call), "writes")


def test_gradients_of_layout_ops_agree_with_torch():
    def call():
        x = drawn(64, 96, dtype=torch.float32).clone().requires_grad_()
        y = torch.cat([x[:, :32], x[:, 32:].flip(0)], 1).roll(3, 1).tril(5)
        y = torch.nn.functional.pad(y, (1, 2)).unfold(1, 8, 4) * torch.ones(8, device="cuda")
        return [y, *torch.autograd.grad(y.square().sum() + x.diagonal().sum(), x)]

    same(*both(call), "gradients", exact=False)


def test_the_calls_above_run_our_kernels():
    with opmux.use(mode="all"), engine.counted() as counts:
        for call in CALLS.values():
            call()
    assert {"cat", "clone", "constant_pad_nd", "flip", "roll", "stack", "repeat", "triu", "eye.m", "full"} <= set(
        counts
    )


def test_tensors_of_more_than_2_31_elements_are_supported():
    n = 2**31 + 77
    with opmux.use(mode="all"):
        x = torch.zeros(n, dtype=torch.int8, device="cuda")
        x[5:].fill_(3)
        y = x.clone()
        assert y[4].item() == 0 and y[-1].item() == 3 and y[2**31].item() == 3
        y = torch.cat([x[:100], x])
        assert y.shape == (n + 100,) and y[104].item() == 0 and y[105].item() == 3 and y[-1].item() == 3
        del y
        wide = x[:-1].view(2, -1).t()  # a transpose of more than 2^31 elements
        y = wide.contiguous()
        assert y[0, 0].item() == 0 and y[5, 0].item() == 3 and y[-1, 1].item() == 3 and torch.equal(y, wide)
        del x, y, wide
        assert torch.arange(n, device="cuda")[-1].item() == n - 1
