"""Results of impls from outside opmux are checked in their first calls."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, get_default_manager
from opmux.core.errors import WrongResult

VENDOR = BackendImplKind.VENDOR


def right(x, weight, eps=1e-6, offset=0.0):
    rstd = torch.rsqrt(x.pow(2).mean(-1) + eps)
    return x * rstd[..., None] * (weight + offset), rstd


WRONG = {
    "nothing": (lambda y, r: None, r"returned None; the op has 2 results: y, rstd"),
    "one of two": (lambda y, r: y, r"returned 1 result; the op has 2"),
    "three": (lambda y, r: (y, r, r), r"returned 3 results; the op has 2"),
    "None for a tensor": (lambda y, r: (y, None), r"returned None as 'rstd'; expected float32\[3\] on cpu"),
    "a number for a tensor": (lambda y, r: (y, 1.0), r"returned a float as 'rstd'"),
    "shape": (lambda y, r: (y[:2], r), r"returned float32\[2, 8\] on cpu as 'y'; expected float32\[3, 8\] on cpu"),
    "rank": (lambda y, r: (y, r[:, None]), r"returned float32\[3, 1\] on cpu as 'rstd'; expected float32\[3\]"),
    "dtype": (lambda y, r: (y.half(), r), r"returned float16\[3, 8\] on cpu as 'y'"),
    "device": (lambda y, r: (y, r.to("meta")), r"returned float32\[3\] on meta as 'rstd'"),
}


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_a_failure_that_names_the_impl(add_impl, name, grad, caplog):
    spoil, words = WRONG[name]
    add_impl("rms_norm", "vendor.acme", VENDOR, lambda *a, **k: spoil(*right(*a, **k)), vendor="acme")
    x, w = torch.randn(3, 8, requires_grad=grad), torch.randn(8)
    with opmux.policy("vendor"):
        y, rstd = opmux.ops.rms_norm(x, w)
    torch.testing.assert_close((y, rstd), right(x.detach(), w), check_dtype=True)
    [failure] = get_default_manager().failures()
    assert failure.impl_id == "vendor.acme" and "'vendor.acme', an impl of opmux::rms_norm, returned" in caplog.text
    with opmux.policy("vendor", strict=True), pytest.raises(WrongResult, match=words):
        opmux.ops.rms_norm(x, w)


TEX_WRONG = {
    "nothing": (lambda x: None, "returned None; the op has 3 results: out, mu, rsigma"),
    "one tensor": (lambda x: x, r"returned 1 result; the op has 3: out, mu, rsigma"),
    "shape": (lambda x: (x[:1], x[:, 0]), r"returned float32\[1, 8\] on cpu as 'out'; expected float32\[3, 8\] on cpu"),
    "dtype": (lambda x: (x.double(), x[:, 0]), r"returned float64\[3, 8\] on cpu as 'out'; expected float32"),
    "device": (lambda x: (x.to("meta"), x[:, 0]), r"returned float32\[3, 8\] on meta as 'out'"),
}


@pytest.mark.parametrize("name", TEX_WRONG)
def test_a_wrong_result_of_a_tex_plugin_is_a_failure_that_names_the_impl(add_impl, name):
    spoil, words = TEX_WRONG[name]
    add_impl("tex::rmsnorm_fwd", "vendor.acme", VENDOR, lambda input, weight, *rest: spoil(input), vendor="acme")
    x, args = torch.randn(3, 8), (torch.ones(8), 1e-6, None, None, None, 0, False)
    with opmux.policy("vendor"):
        out, _, rsigma = opmux.tex.rmsnorm_fwd(x, *args)
    torch.testing.assert_close((out, rsigma), right(x, torch.ones(8)))
    assert [f.impl_id for f in get_default_manager().failures()] == ["vendor.acme"]
    with opmux.policy("vendor", strict=True), pytest.raises(WrongResult, match=words):
        opmux.tex.rmsnorm_fwd(x, *args)


def test_a_tex_plugin_that_returns_none_for_a_quantized_result_is_a_failure(add_impl):
    """A quantizer contains tensors, so the fake kernel cannot be called; None is found without it."""
    from opmux.faces.tex.tensors import Float8Quantizer

    quantizer = Float8Quantizer(torch.ones(1), torch.zeros(1), torch.float8_e4m3fn)
    add_impl("tex::quantize", "vendor.acme", VENDOR, lambda tensor, quantizer, *rest: None, vendor="acme")
    with opmux.policy("vendor", strict=True), pytest.raises(WrongResult, match="returned None; the op has 1 result"):
        opmux.tex.quantize(torch.ones(4), quantizer)


def test_only_the_first_calls_of_a_dtype_and_shape_class_are_checked(add_impl):
    state = {"late": False, "calls": 0}

    def fn(x):
        state["calls"] += 1
        return x[:1] if state["late"] else torch.nn.functional.silu(x)

    add_impl("opmux::silu", "vendor.acme", VENDOR, fn, vendor="acme")
    with opmux.policy("vendor"):
        for _ in range(3):
            opmux.ops.silu(torch.ones(4))
        state["late"] = True
        assert opmux.ops.silu(torch.ones(4)).shape == (1,)  # proven, so no longer checked
        assert opmux.ops.silu(torch.ones(100)).shape == (100,)  # another shape class
        assert opmux.ops.silu(torch.ones(4, dtype=torch.float64)).shape == (4,)  # another dtype
        state["late"] = False
        assert opmux.ops.silu(torch.ones(3)).shape == (3,)
    assert {f.case for f in get_default_manager().failures()} == {
        (torch.float32, (1, 8)), (torch.float64, (1, 3)),
    }  # fmt: skip


def test_results_with_a_data_dependent_size_are_not_checked():
    from opmux.core import op, specs

    def pick_positive(x: torch.Tensor) -> torch.Tensor:
        """The positive elements."""
        return x[x > 0]

    new_op = op(pick_positive, fake=lambda x: (_ for _ in ()).throw(NotImplementedError("depends on the data")))
    try:
        registry = get_default_manager().registry
        registry.register_impl(
            opmux.core.OpImpl("pick_positive", "vendor.acme", VENDOR, "acme", lambda x: x[x > 0].clone())
        )
        with opmux.policy("vendor", strict=True):
            assert new_op(torch.tensor([1.0, -1.0, 2.0])).tolist() == [1.0, 2.0]
    finally:
        registry.unregister("pick_positive", "vendor.acme")
        specs.remove(new_op.spec)


def test_errors_of_an_impl_fall_back_and_errors_of_the_caller_are_raised(add_impl):
    """An error of any type that the reference does not raise is the impl's fault."""

    def fn(x, *rest):
        raise ValueError("acme: no plan for this size")

    add_impl("rms_norm", "vendor.acme", VENDOR, fn, vendor="acme")
    with opmux.policy("vendor"):
        x, w = torch.randn(3, 8), torch.randn(8)
        torch.testing.assert_close(opmux.ops.rms_norm(x, w)[0], right(x, w)[0])
        with pytest.raises(ValueError) as caught:  # for the caller's mistake, the op's own error is raised
            opmux.ops.rms_norm(torch.randn(3, 9), w)
        assert str(caught.value).startswith("rms_norm: weight must have shape (9,)")
        assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert len(get_default_manager().failures()) == 1


def test_a_quantizer_and_a_quantized_output_are_restored(add_impl):
    """tex's quantize writes its output and the quantizer's amax; both are restored after a failure."""
    from opmux.faces.tex.tensors import Float8Quantizer

    tex = opmux.tex
    tensors = {}

    def bad(tensor, quantizer, output=None, noop=None):
        quantizer.amax.fill_(1e4)
        quantizer.scale = torch.full((1,), 7.0)
        output._data.fill_(7)
        output._scale_inv = None
        raise RuntimeError("late")

    def good(tensor, quantizer, output=None, noop=None):
        tensors.update(amax=quantizer.amax.item(), scale=quantizer.scale.item(), data=output._data.tolist())
        tensors["scale_inv"] = output._scale_inv.item()
        return output

    add_impl("tex::quantize", "vendor.bad", VENDOR, bad, vendor="bad", priority=2)
    add_impl("tex::quantize", "vendor.good", VENDOR, good, vendor="good", priority=1)
    quantizer = Float8Quantizer(torch.ones(1), torch.zeros(1), torch.float8_e4m3fn)
    with opmux.policy("reference"):
        output = tex.quantize(torch.zeros(4), quantizer)
    with opmux.policy("vendor"):
        assert tex.quantize(torch.ones(4), quantizer, output) is output
    assert tensors == {"amax": 0.0, "scale": 1.0, "data": [0, 0, 0, 0], "scale_inv": 1.0}
