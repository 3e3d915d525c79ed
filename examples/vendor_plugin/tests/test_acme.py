"""Run with `pytest` after `pip install -e .`. Checks that the package is found and agrees with opmux's references."""

import pytest
import torch

import opmux
from opmux.core import get_default_manager

OPS = ["rmsnorm_fwd", "rms_norm", "silu_mul", "layernorm_fwd"]


def samples(op, dtype):
    return list(getattr(opmux.ops, op).spec.samples(dtype, torch.device("cpu")))


@pytest.mark.parametrize("op", OPS)
def test_dispatch_selects_acmes_impl(op):
    with opmux.policy("vendor:acme"):
        assert get_default_manager().get_selected_impl_id(op) == "vendor.acme"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_every_op_agrees_with_its_reference(op, dtype):
    """Every op of opmux has its own samples and tolerances."""
    fn = getattr(opmux.ops, op)
    tol = fn.spec.tol[dtype]
    cases = samples(op, dtype)
    assert cases
    for case, same in zip(cases, samples(op, dtype), strict=True):
        with opmux.policy("reference"):
            want = fn(*same.args, **same.kwargs)
        with opmux.policy("vendor:acme"):
            got = fn(*case.args, **case.kwargs)
        torch.testing.assert_close(_tensors(got), _tensors(want), rtol=tol.rtol, atol=tol.atol, equal_nan=True)


def test_an_unsupported_row_length_falls_back_to_the_next_implementation():
    a = torch.randn(3, 63)
    with opmux.policy("vendor:acme"):
        report = opmux.explain("silu_mul", a, a)
        torch.testing.assert_close(opmux.ops.silu_mul(a, a), torch.nn.functional.silu(a) * a)
    assert report.chosen.impl_id != "vendor.acme"
    assert "rows of 8 n elements, these have 63" in str(report)


def _tensors(value):
    return [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]
