"""Foreach ops and fused optimizers on a real GPU, compared with torch's; also a tensor of more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu

SIZES = ((4096, 4096), (4096,), (11008, 4096), (1,), (0,), (37, 129))
OURS = ["_foreach_*", "_fused_*", "_amp_*"]


def drawn(dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.rand(size, device="cuda", generator=generator).add(0.1).to(dtype) for size in SIZES]


def close(got, want, tol):
    for a, b in zip(got, want, strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=tol, atol=tol)


CALLS = {
    "sqrt": lambda x, y: torch._foreach_sqrt(x),
    "add": lambda x, y: torch._foreach_add(x, y, alpha=0.5),
    "numbers": lambda x, y: torch._foreach_mul(x, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    "a tensor": lambda x, y: torch._foreach_mul(x, y[3].reshape(())),
    "addcdiv": lambda x, y: torch._foreach_addcdiv(x, y, x, value=-0.1),
    "lerp": lambda x, y: torch._foreach_lerp(x, y, 0.1),
    "norm": lambda x, y: torch._foreach_norm(x[:4]),
    "in place": lambda x, y: (torch._foreach_add_(x, y), x)[1],
    "copy": lambda x, y: (torch._foreach_copy_(x, y), x)[1],
    "zero": lambda x, y: (torch._foreach_zero_(x), x)[1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_foreach_ops_agree_with_torch(name, dtype):
    want = CALLS[name](drawn(dtype), drawn(dtype, 1))
    with opmux.use(include=OURS):
        got = CALLS[name](drawn(dtype), drawn(dtype, 1))
    close(got, want, {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}[dtype])


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, foreach=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, foreach=True, capturable=True),
    "fused adam": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}


def trained(name, on):
    params = [torch.nn.Parameter(t) for t in drawn()]
    optimizer = OPTIMIZERS[name](params)
    for step in range(3):
        for p, g in zip(params, drawn(seed=step + 1), strict=True):
            p.grad = g
        with opmux.use(include=OURS if on else ["_foreach_tan"]):
            optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimizers_agree_with_torch(name):
    close(trained(name, True), trained(name, False), 1e-5)


def test_gradient_scaling_agrees_with_torch():
    grads, scale = drawn(), torch.tensor(0.5, device="cuda")
    grads[2][5, 7] = float("inf")
    flags = [torch.zeros(1, device="cuda") for _ in range(2)]
    with opmux.use(include=OURS):
        torch._amp_foreach_non_finite_check_and_unscale_(grads[:2], flags[0], scale)
        torch._amp_foreach_non_finite_check_and_unscale_(grads[2:3], flags[1], scale)
    assert [f.item() for f in flags] == [0.0, 1.0]
    torch.testing.assert_close(grads[0], drawn()[0] * 0.5)


def test_tensors_of_more_than_2_31_elements_are_supported():
    x = [torch.ones(n, device="cuda", dtype=torch.bfloat16) for n in (2**31 + 100, 3)]
    with opmux.use(include=OURS):
        torch._foreach_mul_(x, 3.0)
    assert x[0][-1].item() == 3 and x[0][2**31 + 7].item() == 3 and x[1][2].item() == 3
