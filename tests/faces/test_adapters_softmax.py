"""ATen adapters of softmax: results match ATen's own overloads, and unsupported calls go to torch."""

import pytest
import torch

FAMILY = "softmax"
aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NAMES = ("softmax", "log_softmax")
SHAPES = ((3, 37), (2, 3, 5), (), (1,), (0,), (2, 0, 3), (2, 1))


def layouts(dtype):
    x = torch.randn(2, 6, 4, 8, dtype=dtype)
    yield x[:, :, 0]
    yield x.transpose(1, 3)
    yield x.contiguous(memory_format=torch.channels_last)
    yield x[:, ::2, :, 1:].transpose(0, 1)
    yield x[0, 0, 0].expand(3, 8)


def test_adapter_signatures_match_aten(adapters):
    assert adapters.signatures_are_atens()
    assert set(adapters.table) == {f"_{n}{end}" for n in NAMES for end in ("", "_backward_data")}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_softmax_matches_aten_in_forward_and_backward(name, dtype, adapters):
    shapes = SHAPES if dtype is torch.float32 else SHAPES[:2]
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    tensors += layouts(dtype) if dtype is torch.float32 else []
    for x in tensors:
        for dim in {-1, x.dim() // 2} if x.dim() else {-1, 0}:
            y = getattr(aten, f"_{name}")(x, dim, False)
            dy = torch.randn_like(x)
            assert adapters.agrees(f"_{name}", x, dim, False)
            assert adapters.agrees(f"_{name}_backward_data", dy, y, dim, dtype)
    assert adapters.agrees(f"_{name}_backward_data", dy.sum().expand(x.shape), y, dim, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_softmax_propagates_nan_and_infinity_as_aten_does(name, adapters):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 3.0], [inf, 1.0, 2.0], [-inf, -inf, 1.0], [-inf, -inf, -inf]])
    assert adapters.agrees(f"_{name}", x, 1, False) and adapters.agrees(f"_{name}", x, 0, False)


@pytest.mark.parametrize("op", ("softmax.with_dtype", "nn.functional.cross_entropy"))
def test_softmax_matches_aten_on_opinfo_samples(op, adapters):
    assert adapters.answers_pytorchs_samples(op) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_softmax_leaves_unsupported_calls_to_torch(name, adapters):
    x, forward, backward = torch.randn(3, 4), f"_{name}", f"_{name}_backward_data"
    assert adapters.declines(forward, x.half(), 1, True, match="one kernel in torch")
    assert adapters.declines(forward, x.int(), 1, False, match="got int32")
    assert adapters.declines(forward, x.to(torch.complex64), 1, False, match="got complex64")
    assert adapters.declines(forward, x, 2, False, match="dim must be between -2 and 1")
    assert adapters.declines(backward, x, x, -3, torch.float32, match="dim must be between")
    assert adapters.declines(backward, x, x, 1, torch.float16, match="another dtype")
    assert adapters.declines(backward, x, x.double(), 1, torch.float32, match="another dtype")
    assert adapters.declines(backward, x[:2], x, 1, torch.float32, match="dy must have shape")
    assert adapters.faults_are_no_refusals(forward, x, 1, False)
    assert adapters.faults_are_no_refusals(backward, x, x, 1, torch.float32)
