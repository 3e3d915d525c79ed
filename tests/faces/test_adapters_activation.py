"""ATen adapters of gated linear units: results match ATen's own overloads, and unsupported calls go to torch."""

import pytest
import torch

FAMILY = "activation"
aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CASES = (
    ((6,), 0),
    ((3, 8), -1),
    ((4, 37), 0),
    ((2, 6, 5), 1),
    ((2, 4, 3, 6), -3),
    ((0, 4), 1),
    ((4, 0), 0),
    ((2, 0), -1),
)


def test_adapter_signatures_match_aten(adapters):
    assert adapters.signatures_are_atens()
    assert set(adapters.table) == {"glu", "glu_backward"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_glu_matches_aten_in_forward_and_backward(dtype, adapters):
    for shape, dim in CASES if dtype is torch.float32 else CASES[1:3]:
        x = torch.randn(shape, dtype=dtype)
        y = aten.glu(x, dim)
        assert adapters.agrees("glu", x, dim)
        assert adapters.agrees("glu_backward", torch.randn_like(y), x, dim)
    assert adapters.agrees("glu_backward", y.sum().expand(y.shape), x, dim)


def test_glu_backward_matches_aten_for_any_strides(adapters):
    x = torch.randn(2, 6, 4, 8)
    for t in (x.transpose(1, 3), x.contiguous(memory_format=torch.channels_last), x[:, ::3], x[..., 1:7]):
        assert adapters.agrees("glu_backward", aten.glu(t, 1), t, 1)
        assert adapters.declines("glu", t, 1, match="not contiguous")


def test_glu_matches_aten_on_opinfo_samples(adapters):
    assert adapters.answers_pytorchs_samples("nn.functional.glu") >= 4


def test_glu_leaves_invalid_and_unsupported_calls_to_torch(adapters):
    x = torch.randn(3, 4)
    for t, dim in ((x, 0), (x, 2), (x, -3), (torch.tensor(1.0), 0), (x.int(), 1), (x.to(torch.complex64), 1)):
        assert not adapters.agrees("glu", t, dim)
        assert adapters.declines("glu_backward", x[:, :2], t, dim)
    assert adapters.declines("glu_backward", x[:, :2].double(), x, 1)
    assert adapters.declines("glu_backward", x, x, 1, match="dy must have shape")
    assert adapters.faults_are_no_refusals("glu", x)
    assert adapters.faults_are_no_refusals("glu_backward", x[:, :2], x, 1)
