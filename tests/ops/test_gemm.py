"""linear's reference against torch's own in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import opmux
from opmux.core.spec import Tol, specs

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
FORWARD, BACKWARD = specs.find("linear"), specs.find("linear_bwd")


def close(got, want, what):
    """Equal, but for one rounding of the result and what float32 may lose on the way."""
    halves = {d: Tol(0.51 * torch.finfo(d).eps, 2e-5) for d in (torch.float16, torch.bfloat16)}
    tol = {**halves, torch.float64: Tol(1e-11, 1e-11), torch.float32: Tol(1e-5, 2e-5)}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{what}: {m}")


@every_dtype
def test_forward_adds_up_wide_and_rounds_once(dtype):
    for sample in FORWARD.samples(dtype, CPU):
        want = F.linear(*(None if t is None else t.double() for t in sample.args))
        got = FORWARD.reference(*sample.args)
        assert got.dtype is dtype and got.is_contiguous()
        close(got, want, sample.id)


def test_a_long_sum_of_halves_does_not_lose_its_end():
    """4096 ones and a 1: where parts are kept in bfloat16, it ends at 256."""
    x, w = torch.ones(1, 4096, dtype=torch.bfloat16), torch.ones(1, 4096, dtype=torch.bfloat16)
    y = FORWARD.reference(x, w, torch.full((1,), 64.0, dtype=torch.bfloat16))
    assert y.item() == 4160.0


@every_dtype
def test_backward_is_the_gradient_of_torchs(dtype):
    for sample in BACKWARD.samples(dtype, CPU):
        dy, x, weight = sample.args
        bias = torch.zeros(weight.shape[0], dtype=torch.float64)
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        want = torch.autograd.grad(F.linear(*leaves), leaves, dy.double(), materialize_grads=True)
        for name, g, w in zip(BACKWARD.out, BACKWARD.reference(*sample.args), want, strict=True):
            assert g.dtype is dtype and g.is_contiguous()
            close(g, w, f"{sample.id}: {name}")


@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_as_a_user_gets_them(has_bias):
    x, w, b = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5), (4, 5), (4,)))
    bias = (b,) if has_bias else ()
    assert torch.autograd.gradcheck(opmux.ops.linear, (x, w, *bias))


def test_a_gradient_of_another_dtype_is_taken():
    dy, x, w = torch.randn(3, 4), torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(4, 8, dtype=torch.bfloat16)
    assert [g.dtype for g in opmux.ops.linear_bwd(dy, x, w)] == [torch.bfloat16] * 3


def test_a_result_may_be_written_to():
    x = torch.randn(2, 3, 5, requires_grad=True)
    opmux.ops.linear(x, torch.randn(4, 5)).mul_(2).sum().backward()
    assert x.grad is not None


def test_sizes_are_not_burned_in():
    for spec in (FORWARD, BACKWARD):
        at = lambda shape, spec=spec: spec.samples.at(shape, torch.float32, CPU, out=7).args
        traced = make_fx(spec.reference, tracing_mode="symbolic")(*at((3, 5, 8)))
        torch.testing.assert_close(traced(*at((2, 9, 6))), spec.reference(*at((2, 9, 6))))


def test_flops():
    x, w = torch.empty(2, 3, 8), torch.empty(5, 8)
    assert FORWARD.flops(x, w) == 2 * 6 * 8 * 5
    assert BACKWARD.flops(torch.empty(2, 3, 5), x, w) == 4 * 6 * 8 * 5


def test_shapes_are_said():
    with pytest.raises(ValueError, match=r"linear: weight must be \[out, in\]; got \(8,\)"):
        opmux.ops.linear(torch.randn(3, 8), torch.randn(8))
    with pytest.raises(
        ValueError, match=r"weight must have shape \(4, 8\), the last dimension of x \(3, 8\) being its"
    ):
        opmux.ops.linear(torch.randn(3, 8), torch.randn(4, 9))
