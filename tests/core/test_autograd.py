"""Forward and backward: a backward accepts the results of any forward, and a fallback never loses a gradient."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, BadSpec, NotSupported, OpImpl, OpManager, OpRegistry, op, specs
from opmux.core.spec import Gradient

VENDOR = BackendImplKind.VENDOR


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def truth(x, w):
    y = torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)
    return torch.autograd.grad(y.sin().sum(), (x, w))


def ours(x, w):
    y, rstd = opmux.ops.rms_norm(x, w)
    assert not rstd.requires_grad
    return torch.autograd.grad(y.sin().sum(), (x, w))


def close(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_flow_to_the_arguments_that_require_them():
    x, w = leaf(3, 8), leaf(8)
    close(ours(x, w), truth(x, w))
    y, _ = opmux.ops.rms_norm(x, w.detach())
    assert y.grad_fn is not None and "RmsNorm" in type(y.grad_fn).__name__
    y, _ = opmux.ops.rms_norm(x.detach(), w.detach())
    assert y.grad_fn is None
    with torch.no_grad():
        assert opmux.ops.rms_norm(x, w)[0].grad_fn is None
    y, _ = opmux.ops.rms_norm(weight=w, x=x, eps=1e-6)
    close(torch.autograd.grad(y.sin().sum(), (x, w)), truth(x, w))


def test_an_optional_bias_may_be_absent():
    x, w = leaf(3, 8), leaf(8)
    for bias in (None, leaf(8)):
        y, *_ = opmux.ops.layer_norm(x, w, bias)
        inputs = (x, w) if bias is None else (x, w, bias)
        expected = torch.nn.functional.layer_norm(x, (8,), w, bias, 1e-5)
        close(torch.autograd.grad(y.sin().sum(), inputs), torch.autograd.grad(expected.sin().sum(), inputs))


def test_two_differentiable_results_are_supported():
    x, r, w = leaf(3, 8), leaf(3, 8), leaf(8)
    y, s, _ = opmux.ops.add_rms_norm(x, r, w)
    expected = torch.nn.functional.rms_norm(x + r, (8,), w, 1e-6)
    got = torch.autograd.grad((y.sin() + s.cos()).sum(), (x, r, w))
    close(got, torch.autograd.grad((expected.sin() + (x + r).cos()).sum(), (x, r, w)))


def test_a_forward_only_plugin_pairs_with_the_reference_backward(add_impl):
    calls = []

    def forward(x, weight, eps=1e-6, **rest):
        calls.append(rest)
        rstd = torch.rsqrt(x.pow(2).mean(-1) + eps)
        return x * rstd[..., None] * weight, rstd

    add_impl("rms_norm", "vendor.acme", VENDOR, forward, vendor="acme")
    x, w = leaf(3, 8), leaf(8)
    with opmux.policy("vendor"):
        close(ours(x, w), truth(x, w))
    assert calls == [{"offset": 0.0}]


@pytest.mark.parametrize("op", ["rms_norm", "rms_norm_bwd"])
@pytest.mark.parametrize("error", [RuntimeError("no kernel"), NotSupported("no"), NotImplementedError()], ids=repr)
def test_a_failing_forward_or_backward_keeps_the_gradient_and_strict_raises(add_impl, op, error):
    def fail(*args):
        raise error

    add_impl(op, "vendor.acme", VENDOR, fail, vendor="acme")
    x, w = leaf(3, 8), leaf(8)
    with opmux.policy("vendor"):
        close(ours(x, w), truth(x, w))
    with opmux.policy("vendor", strict=True), pytest.raises(type(error)) as caught:
        ours(x, w)
    assert caught.value is error


def test_out_of_memory_in_a_backward_is_not_retried(add_impl):
    error = torch.OutOfMemoryError("no")

    def backward(*args):
        raise error

    add_impl("rms_norm_bwd", "vendor.acme", VENDOR, backward, vendor="acme")
    with opmux.policy("vendor"), pytest.raises(torch.OutOfMemoryError) as caught:
        ours(leaf(3, 8), leaf(8))
    assert caught.value is error


class Private(torch.autograd.Function):
    """An op whose forward saves private state for the backward."""

    fail = False

    @staticmethod
    def forward(ctx, x, weight, eps, offset):
        if Private.fail:
            raise RuntimeError("no")
        ctx.shape = x.shape, weight.shape
        return x.clone(), x.new_ones(x.shape[:-1])

    @staticmethod
    def backward(ctx, dy, _):
        return dy.new_full(ctx.shape[0], 5.0), dy.new_full(ctx.shape[1], 5.0), None, None


def test_an_autograd_function_brings_its_own_backward(add_impl):
    add_impl("rms_norm", "vendor.private", VENDOR, Private, vendor="private")
    x, w = leaf(3, 8), leaf(8)
    with opmux.policy("vendor"):
        y, _ = opmux.ops.rms_norm(x, w)
        gx, gw = torch.autograd.grad(y.sum(), (x, w))
        assert gx.eq(5).all() and gw.eq(5).all()
        Private.fail = True
        try:
            close(ours(x, w), truth(x, w))  # after a failure there is still a gradient
        finally:
            Private.fail = False


DTYPE, ALWAYS = {"supported_dtypes": {torch.float64}}, {"when": lambda *a: True}


@pytest.mark.parametrize("fields", [DTYPE, ALWAYS, DTYPE | ALWAYS], ids=["dtype", "when", "both"])
def test_an_autograd_function_keeps_its_backward_with_when_and_dtype_limits(add_impl, fields):
    add_impl("rms_norm", "vendor.private", VENDOR, Private, vendor="private", **fields)
    x, w = leaf(3, 8), leaf(8)
    with opmux.policy("vendor"):
        y, _ = opmux.ops.rms_norm(x, w)
        assert torch.autograd.grad(y.sum(), x)[0].eq(5).all()


def test_an_impl_with_too_few_results_raises_if_strict_and_falls_back_otherwise(add_impl):
    add_impl("rms_norm", "vendor.short", VENDOR, lambda *a: (a[0],), vendor="short")
    words = "'vendor.short', an impl of opmux::rms_norm, returned 1 result; the op has 2: y, rstd"
    with opmux.policy("vendor", strict=True), pytest.raises(RuntimeError, match=words):
        opmux.ops.rms_norm(leaf(3, 8), leaf(8))
    with opmux.policy("vendor"):
        x, w = leaf(3, 8), leaf(8)
        close(ours(x, w), truth(x, w))


def test_calls_of_an_op_by_name_have_gradients(add_impl):
    from opmux.core import get_default_manager

    x, w = leaf(3, 8), leaf(8)
    for call in (get_default_manager().call, lambda name, *a, **k: get_default_manager().resolve(name)(*a, **k)):
        for y, _ in (call("rms_norm", x, w), call("rms_norm", x, weight=w, eps=1e-6)):
            close(torch.autograd.grad(y.sin().sum(), (x, w)), truth(x, w))


def test_a_separate_manager_uses_its_own_backward_or_none():
    registry = OpRegistry()
    registry.register_impl(OpImpl("rms_norm", "vendor.a", VENDOR, "a", lambda x, w: (x * w, x[..., 0])))
    manager = OpManager(registry)
    x, w = leaf(3, 8), leaf(8)
    y, _ = manager.call("rms_norm", x, w)
    (gx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gx, w.detach().expand(3, 8))  # autograd recorded the impl's torch calls
    registry.register_impl(
        OpImpl("rms_norm_bwd", "vendor.a", VENDOR, "a", lambda dy, x, w, r, *_: (x * 0 + 3, w * 0 + 3))
    )
    y, _ = manager.call("rms_norm", x, w)
    assert torch.autograd.grad(y.sum(), x)[0].eq(3).all()


def test_unlinkable_declarations_raise():
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x

    def backward(dz: torch.Tensor) -> torch.Tensor:
        return dz

    ops = []
    try:
        ops.append(op(forward, name="bad_link", grad="bad_link_bwd", fake=lambda x: x.clone()))
        ops.append(op(backward, name="bad_link_bwd", out="dx", fake=lambda dz: dz.clone()))
        with pytest.raises(BadSpec, match="bad_link_bwd takes 'dz', which is no argument"):
            Gradient.of(ops[0].spec, ops[1].spec)
    finally:
        for fn in ops:
            specs.remove(fn.spec)
    with pytest.raises(BadSpec, match=r"mutates \['y'\], which it does not take"):
        op(forward, name="bad_mutation", mutates=("y",))
    with pytest.raises(BadSpec, match="is declared twice"):
        op(opmux.ops.rms_norm.reference, out="y rstd")


def test_every_forward_links_to_its_backward():
    linked = [s for s in specs if s.grad]
    assert len(linked) >= 10
    for spec in linked:
        plan = spec.gradient
        tensors = [n for n, p in spec.signature.parameters.items() if "Tensor" in str(p.annotation)]
        # Only tensors get gradients, and the first tensor always does; seeds, masks and running statistics get none.
        takers = [spec.names.index(n) for n in tensors]
        assert set(plan.targets) <= set(takers) and takers[0] in plan.targets, spec.key


# ---- the generated Function -----------------------------------------------------------------------------------------


@pytest.fixture
def declare():
    """Declare a forward op and its backward for one test, from their references."""
    declared_ops = []

    def declared(forward, backward, name, **fields):
        for fn, options in ((forward, {"grad": f"{name}_bwd", **fields}), (backward, {"name": f"{name}_bwd"})):
            options = {"name": name, **options}
            outs = fn.__annotations__.pop("results", None)
            declared_ops.append(op(fn, space="probe", **options, **({"out": outs} if outs else {})))
        return declared_ops[-2]

    yield declared
    for fn in declared_ops:
        specs.remove(fn.spec)


def test_generated_functions_take_numbers_tensors_lists_and_keywords(declare):
    def probe(
        x: torch.Tensor,
        factor: torch.Tensor | float,
        sizes: list[int],
        *,
        shift: torch.Tensor | None = None,
        p: int = 2,
    ) -> torch.Tensor:
        return x**p * factor + (0 if shift is None else shift)

    def probe_bwd(
        dy: torch.Tensor, x: torch.Tensor, factor: torch.Tensor | float, p: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return dy * factor * p * x ** (p - 1), dy * x**p, dy

    probe_bwd.__annotations__["results"] = "dx dfactor dshift"
    fn = declare(probe, probe_bwd, "probe")
    x, factor, shift = leaf(4), leaf(4), leaf(4)
    for kwargs in ({}, {"p": 3}, {"shift": shift}, {"shift": shift, "p": 3}):
        for factor_or_number in (2.5, factor):
            inputs = [t for t in (x, factor_or_number, kwargs.get("shift")) if isinstance(t, torch.Tensor)]
            for create_graph in (False, True):
                got = torch.autograd.grad(
                    fn(x, factor_or_number, [1], **kwargs).sin().sum(), inputs, create_graph=create_graph
                )
                expected = probe(x, factor_or_number, [1], **kwargs).sin().sum()
                close(got, torch.autograd.grad(expected, inputs, create_graph=create_graph))


def test_keywords_and_defaults_are_not_bound_by_inspect(monkeypatch):
    import inspect

    x, w = leaf(3, 8), leaf(8)
    expected = truth(x, w)
    ours(x, w)
    monkeypatch.setattr(inspect.Signature, "bind", lambda *a, **k: pytest.fail("signature.bind on a call's path"))
    for y, _ in (opmux.ops.rms_norm(weight=w, x=x), opmux.core.get_default_manager().call("rms_norm", x, weight=w)):
        close(torch.autograd.grad(y.sin().sum(), (x, w)), expected)


class GivesNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        return None


def test_gradients_that_are_not_needed_are_not_computed(add_impl):
    calls = []

    def backward(*args):
        calls.append(args)
        return args[0] * 2

    for name in ("gelu_tanh_bwd", "rope_bwd"):
        add_impl(name, "vendor.acme", VENDOR, backward, vendor="acme")
    x, angles = leaf(2, 3, 2, 8), torch.randn(2, 8, dtype=torch.float64)
    with opmux.policy("vendor"):
        z = x * 1
        GivesNothing.apply(opmux.ops.gelu_tanh(z)).sum().backward()  # the incoming gradient is None
        opmux.ops.rope_fwd(x.detach(), angles.requires_grad_()).sum().backward()  # angles have no gradient
        assert not calls and angles.grad is None and (x.grad is None or not x.grad.any())
        opmux.ops.gelu_tanh(x).sum().backward()
        opmux.ops.rope_fwd(x, angles).sum().backward()
        assert len(calls) == 2


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_results_without_a_gradient_are_not_filled_with_zeros():
    x, w, b = leaf(3, 8), leaf(8), leaf(8)
    for y in (opmux.ops.rms_norm(x, w)[0], opmux.ops.layer_norm(x, w, b)[0], sum(opmux.ops.add_rms_norm(x, x, w)[:2])):
        dy = torch.ones_like(y)
        with Seen() as recorded:
            torch.autograd.grad(y, (x, w), dy)
        assert recorded.names and not [n for n in recorded.names if "zero" in n]


def test_one_of_two_differentiable_results_may_be_unused():
    x, r, w = leaf(3, 8), leaf(3, 8), leaf(8)
    expected = torch.nn.functional.rms_norm(x + r, (8,), w, 1e-6), x + r
    for i in (0, 1):
        got = opmux.ops.add_rms_norm(x, r, w)[i].sin().sum()
        inputs = (x, r, w)[: 3 - i]
        close(torch.autograd.grad(got, inputs), torch.autograd.grad(expected[i].sin().sum(), inputs))


def test_only_what_the_backward_needs_is_saved():
    x, w = leaf(3, 8), leaf(8)
    packed = []

    def pack(t):
        packed.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y, rstd = opmux.ops.rms_norm(x, w)
        assert [t.shape for t in packed] == [x.shape, w.shape, rstd.shape]
        close(torch.autograd.grad(y.sin().sum(), (x, w), retain_graph=True), truth(x, w))
        packed.clear()
        total = opmux.ops.sum(x)
        [shell] = packed
        assert shell.shape == x.shape and shell.untyped_storage().nbytes() == x.element_size()
        assert torch.autograd.grad(total, x)[0].eq(1).all()


def test_metadata_created_under_a_mode_is_not_cached():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from opmux.core.autograd import shape_only

    x = torch.ones(2, 3, dtype=torch.complex64)  # a dtype that no other test uses
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(shape_only(mode.from_tensor(x)), FakeTensor)
    assert not isinstance(shape_only(x), FakeTensor)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint

    x, w = leaf(3, 8), leaf(8)
    y = checkpoint(lambda x, w: opmux.ops.rms_norm(x, w)[0], x, w, use_reentrant=reentrant)
    y.sin().sum().backward()
    close((x.grad, w.grad), truth(x, w))


def test_an_impl_may_return_a_list(add_impl):
    reference = opmux.ops.rms_norm.reference
    add_impl("rms_norm", "vendor.list", VENDOR, lambda *a: list(reference(*a)), vendor="list")
    add_impl(
        "rms_norm_bwd", "vendor.list", VENDOR, lambda *a: list(opmux.ops.rms_norm_bwd.reference(*a)), vendor="list"
    )
    x, w = leaf(3, 8), leaf(8)
    with opmux.policy("vendor", strict=True):
        close(ours(x, w), truth(x, w))


def test_a_tensor_left_over_from_functorch_is_accepted():
    left = []
    x = torch.randn(4, dtype=torch.float64)
    torch.func.grad(lambda t: (left.append(t), t.sin().sum())[1])(x)
    got, expected = opmux.ops.silu(left[0]), torch.nn.functional.silu(left[0])
    assert got.requires_grad == expected.requires_grad
    torch.testing.assert_close(got, expected)


def test_the_error_for_a_non_tensor_names_the_argument():
    with pytest.raises(TypeError, match="rms_norm: weight must be a Tensor; got list"):
        opmux.ops.rms_norm(leaf(3, 8), [1.0] * 8)
