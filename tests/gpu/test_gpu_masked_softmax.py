"""Masked softmax on a GPU, at sizes that no sample has: rows in one block and in several, all forms, and tex's
functions.
"""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.specs import softmax as spec

pytestmark = pytest.mark.gpu

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
SHAPES = [(2, 8, 512, 512), (2, 4, 300, 1000), (1, 2, 128, 4096), (1, 2, 60, 16384), (1, 1, 40, 40000), (3, 77, 33)]


def check(op, *args):
    """Compare two calls with the reference; the second call uses the bound launch."""
    want = op.reference(*args)
    tol = op.spec.tol[want.dtype]
    for _ in range(2):
        got = getattr(opmux.ops, op.spec.name)(*args)
        torch.testing.assert_close(got, want, rtol=tol.rtol, atol=tol.atol)
    return want


@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_of_masked_softmax_agrees_with_the_reference(shape, dtype):
    with opmux.policy("flagos", strict=True):
        x = torch.randn(shape, device="cuda", dtype=dtype) * 4
        dy = torch.randn_like(x)
        mask = torch.rand(shape[0], *([1] * (len(shape) - 3)), *shape[-2:], device="cuda") > 0.6
        mask[..., 0, :] = True
        for mask_arg in (None, mask, mask[..., :1, :]):
            for causal in (False, True):
                y = check(spec.scaled_softmax, x, mask_arg, 0.125, causal)
                check(spec.scaled_softmax_bwd, dy, y, 0.125, causal)


def test_more_rows_than_a_grid_dimension_of_65535_are_supported():
    x = torch.randn(70_000, 3, 16, device="cuda", dtype=torch.bfloat16)
    check(spec.scaled_softmax, x, torch.rand(70_000, 1, 16, device="cuda") > 0.5, 1.0, True)


def test_logits_beyond_32_bit_offsets_are_supported():
    """A 32-bit offset would overflow in the last row of more than 2^31 logits."""
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free memory")
    x = torch.zeros(1, 2, 33_000, 33_000, device="cuda", dtype=torch.bfloat16)
    x[0, 1, -1, 7] = 5.0
    y = opmux.ops.scaled_softmax(x, None, 1.0, True)
    torch.testing.assert_close(y[0, 1, -1], torch.softmax(x[0, 1, -1].float(), -1).bfloat16())
    assert y[0, 1, -2, -1] == 0 and y[0, 1, 0, 0] == 1 and y[0, 1, 0, 1] == 0


@pytest.mark.parametrize("name", ["masked", "upper_triang_masked", "aligned_causal_masked", ""])
def test_tex_softmax_functions_agree_with_torch(name):
    middle = f"_{name}" if name else ""
    forward = getattr(opmux.ops, f"scaled{middle}_softmax_forward")
    backward = getattr(opmux.ops, f"scaled{middle}_softmax_backward")
    x = torch.randn(8, 256, 256, device="cuda", dtype=torch.bfloat16)
    mask = torch.rand(8, 256, 256, device="cuda") > 0.5 if name == "masked" else None
    hidden = (
        torch.ones(256, 256, dtype=torch.bool, device="cuda").triu(1) if "triang" in name or "causal" in name else mask
    )
    y = forward(x, mask, 0.5) if mask is not None else forward(x, 0.5)
    leaf = x.double().requires_grad_()
    want = torch.softmax((leaf * 0.5) if hidden is None else (leaf * 0.5).masked_fill(hidden, -10000.0), -1)
    torch.testing.assert_close(y.double(), want, rtol=1.6e-2, atol=1e-3)
    dy = torch.randn_like(x)
    original = dy.clone()
    (dx,) = torch.autograd.grad(want, leaf, dy.double())
    torch.testing.assert_close(backward(dy, y, 0.5).double(), dx, rtol=5e-2, atol=2e-2)
    assert torch.equal(dy, original)
