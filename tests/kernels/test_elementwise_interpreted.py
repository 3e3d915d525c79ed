"""Kernels of distances, and of elementwise ops with several results, interpreted, against torch's own ops on the
CPU.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core.errors import NotSupported
from opmux.kernels import wrappers

MODE = "interpret"
CALLS = wrappers()
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INF = float("inf")


def same(name, *args, **kwargs):
    got, want = CALLS[f"aten::{name}"](*args, **kwargs), getattr(torch.ops.aten, name)(*args, **kwargs)
    for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_gradient_of_prelu_equals_torchs(dtype):
    x, dy, weight = (torch.randn(3, 4, 5).to(dtype) for _ in range(3))
    same("_prelu_kernel_backward", dy, x, weight[:1, :, :1].expand(3, 4, 5))
    same("_prelu_kernel_backward", *(t.transpose(0, 2) for t in (dy, x, weight)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8], ids=str)
def test_cross_products_equal_torchs(dtype):
    x, y = ((torch.randn(4, 3, 5) * 9).to(dtype) for _ in range(2))
    same("linalg_cross", x, y, dim=1)
    same("linalg_cross", x.transpose(1, 2), y.transpose(1, 2)[:1])
    same("linalg_cross", x[0, :, 0], y[0, :, 0])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fake_quantization_equals_torchs(dtype):
    x, scale, zero = (torch.randn(4, 3, 5) * 3).to(dtype), torch.tensor([0.03]), torch.tensor([3], dtype=torch.int32)
    x[0, 0, 0], x[0, 0, 1] = 0.045, 0.075  # ties round to even
    limits = (-10, 20)
    same("fake_quantize_per_tensor_affine_cachemask", x, 0.03, 3, *limits)
    for on in (0, 1):
        same(
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", x.mT, scale, zero, torch.tensor([on]), *limits
        )
    same("_fake_quantize_learnable_per_tensor_affine", x, scale, torch.tensor([2.6]), *limits)
    zeros = torch.tensor([3, 0, -2], dtype=torch.int32)
    same("fake_quantize_per_channel_affine_cachemask", x, torch.tensor([0.03, 0.1, 1.0]), zeros, 1, *limits)
    with pytest.raises(NotSupported, match="outside"):
        CALLS["aten::fake_quantize_per_channel_affine_cachemask"](x, torch.ones(3), zeros - 20, 1, *limits)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_distances_agree_with_torch(p):
    a, b = torch.randn(2, 5, 7), torch.randn(2, 9, 7)
    b[0, 1], b[1, :, 3] = a[0, 0], a[1, 0, 3]
    same("_cdist_forward", a, b, p, 2)
    same("_pdist_forward", a[0].double(), p)
    if p:
        y, z = torch.ops.aten._cdist_forward(a, b, p, 2), torch.ops.aten._pdist_forward(a[0], p)
        same("_cdist_backward", torch.randn_like(y), a, b, p, y)
        same("_pdist_backward", torch.randn_like(z), a[0], p, z)


def test_distances_of_batches_and_several_tiles_agree_with_torch():
    a, b = torch.randn(3, 1, 40, 20), torch.randn(2, 35, 20)
    same("_cdist_forward", a, b, 1.0, None)
    same("_pdist_forward", torch.randn(70, 3), 2.0)
    with pytest.raises(NotSupported, match="matrix product"):
        CALLS["aten::_cdist_forward"](a, b, 2.0, None)
