"""OpImpl, OpRegistry, how an impl receives its op's arguments, and the impls of compositions."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch

import opmux
from opmux.core import (
    BackendImplKind,
    BadImpl,
    DuplicateImpl,
    NotSupported,
    OpImpl,
    OpManager,
    OpRegistry,
    UnknownName,
    get_default_manager,
    impl,
    specs,
)
from opmux.core.registry import Fit, tagged

VENDOR, REFERENCE, DEFAULT = BackendImplKind.VENDOR, BackendImplKind.REFERENCE, BackendImplKind.DEFAULT


@pytest.mark.parametrize("fields, words", [
    (dict(op_name=""), "op_name must be a name"),
    (dict(impl_id=None), "impl_id must be a name"),
    (dict(kind="gpu"), r"kind must be one of DEFAULT \('flagos'\), VENDOR \('vendor'\), REFERENCE"),
    (dict(kind=VENDOR, vendor=None), "must name its vendor"),
    (dict(fn=None), "fn must be callable"),
    (dict(fn="f"), "fn must be callable"),
    (dict(when=3), "when must be a predicate"),
    (dict(priority="high"), "priority must be an integer"),
    (dict(supported_dtypes={"bfloat"}), "takes torch dtypes such as torch.bfloat16, got 'bfloat'"),
    (dict(min_arch="hopper"), "is not of the form 'sm_90'"),
])  # fmt: skip
def test_an_invalid_impl_is_rejected_with_the_reason(fields, words):
    good = dict(op_name="op", impl_id="id", kind=VENDOR, vendor="acme", fn=lambda: 1)
    with pytest.raises(BadImpl, match=words):
        OpImpl(**{**good, **fields})


def test_kinds_have_token_values():
    assert [k.value for k in BackendImplKind] == ["flagos", "vendor", "reference", "cpp"]
    assert OpImpl("op", "id", "flagos", fn=print).kind is DEFAULT


def test_impls_can_be_registered_read_and_removed():
    registry = OpRegistry()
    a, b = (OpImpl("own", i, REFERENCE, fn=print) for i in "ab")
    registry.register_many([a, b])
    assert registry.get_implementations("own") == [a, b] == registry.get_implementations("OWN")
    assert registry.list_operators() == ["own"] and registry.get_implementations("other") == []
    with pytest.raises(DuplicateImpl, match="op 'own' has an impl 'A' already"):
        registry.register_impl(OpImpl("own", "A", REFERENCE, fn=print))
    with pytest.raises(UnknownName, match="did you mean 'a'|Known: a, b"):
        registry.unregister("own", "aa")
    with pytest.raises(UnknownName, match="unknown op 'owm': did you mean 'own'"):
        registry.unregister("owm")
    assert registry.unregister("own", "a") == 1
    assert registry.unregister("own") == 1
    assert registry.list_operators() == [] and len(registry) == 0


def test_register_many_is_all_or_nothing():
    registry = OpRegistry()
    good, twin = OpImpl("own", "a", REFERENCE, fn=print), OpImpl("own", "a", DEFAULT, fn=print)
    for wrong in ([good, twin], [good, "no impl"]):
        with pytest.raises((DuplicateImpl, BadImpl)):
            registry.register_many(wrong)
        assert registry.list_operators() == []


def test_a_separate_registry_has_only_its_own_impls():
    registry = OpRegistry()
    registry.register_impl(OpImpl("rmsnorm_fwd", "mine", VENDOR, "me", lambda x: x))
    manager = OpManager(registry)
    assert registry.list_operators() == ["rmsnorm_fwd"]
    assert [i.impl_id for i in manager.resolve_candidates("rmsnorm_fwd")] == ["mine"]
    with pytest.raises(UnknownName, match="unknown op 'rms_norm': did you mean 'rmsnorm_fwd'|unknown op 'rms_norm'"):
        manager.call("rms_norm", 1)


def test_names_resolve_by_entry_point():
    assert specs.find("rmsnorm_fwd").key == "tex::rmsnorm_fwd"
    assert specs.find("rms_norm").key == specs.find("RMS_Norm").key == "opmux::rms_norm"
    assert specs.find("tex::rmsnorm_fwd") is specs.find("rmsnorm_fwd")
    with pytest.raises(UnknownName, match="unknown op 'rmsnorm_fw': did you mean 'rmsnorm_fwd'"):
        specs.find("rmsnorm_fw")
    with pytest.raises(AttributeError, match="unknown op 'rms_nrom': did you mean 'rms_norm'"):
        opmux.ops.rms_nrom  # noqa: B018
    assert opmux.ops.rms_norm is opmux.ops.rms_norm and "rms_norm" in dir(opmux.ops)


def test_opmux_ops_lists_primitives_and_finds_the_functions_of_tex_too():
    listed = set(dir(opmux.ops))
    assert {"rms_norm", "silu_mul", "add", "linear_act"} <= listed
    tex_alone = {s.name for s in specs if s.space == "tex"} - {s.name for s in specs if s.space != "tex"}
    assert "cusolvermp_ctx_create" in tex_alone and not listed & tex_alone
    from opmux.ops import rmsnorm_fwd  # not listed in dir(opmux.ops), but found by its name

    assert rmsnorm_fwd is opmux.ops.rmsnorm_fwd is specs.functions["tex::rmsnorm_fwd"]
    with pytest.raises(AttributeError, match="did you mean 'rmsnorm_fwd'"):
        opmux.ops.rmsnorm_fw  # noqa: B018


def test_a_public_function_has_the_ops_signature():
    fn = opmux.ops.rms_norm
    assert fn.__name__ == "rms_norm" and "rstd" in fn.__doc__ and fn.__module__ == "opmux.specs.norm"
    assert inspect.signature(fn) == inspect.signature(fn.reference, eval_str=True)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'weight'"):
        fn(torch.ones(2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        fn(torch.ones(2), torch.ones(2), epsilon=1)


# ---- how an impl receives a call ------------------------------------------------------------------------------------


def fit(fn, op="rms_norm"):
    return Fit.of(specs.find(op), OpImpl(op, "x", VENDOR, "x", fn))


@pytest.mark.parametrize("fn, expected", [
    (lambda x, weight, eps, offset: (x, weight, eps, offset), (1, 2, 3, 4)),
    (lambda a, b, c, d: (a, b, c, d), (1, 2, 3, 4)),  # filled in order, because no name matches
    (lambda x, weight, **rest: (x, weight, rest), (1, 2, {"eps": 3, "offset": 4})),
    (lambda a, b, **rest: (a, b, rest), (1, 2, {"eps": 3, "offset": 4})),
    (lambda x, weight, offset, **rest: (x, weight, offset, rest), (1, 2, 4, {"eps": 3})),  # by name where names match
    (lambda *args: args, (1, 2, 3, 4)),
    (lambda x, weight, *, eps, offset=0: (x, weight, eps, offset), (1, 2, 3, 4)),
    (lambda x, weight, eps, offset, more=5: (x, weight, eps, offset, more), (1, 2, 3, 4, 5)),
])  # fmt: skip
def test_positional_parameters_are_filled_in_order_and_others_by_keyword(fn, expected):
    assert fit(fn).call(1, 2, 3, 4, "gemma") == expected


@pytest.mark.parametrize("fn, words", [
    (lambda x, weight: 0, r"cannot take \['eps', 'offset'\]"),
    (lambda x, weight, eps, offset, more: 0, r"needs \['more'\]"),
    (lambda x, weight, eps, offset, *, ctx: 0, r"needs \['ctx'\]"),
])  # fmt: skip
def test_an_impl_with_an_incompatible_signature_is_rejected(fn, words):
    assert fit(fn).refusal is not None
    with pytest.raises(BadImpl, match=words):
        get_default_manager().registry.register_impl(OpImpl("rms_norm", "vendor.x", VENDOR, "x", fn))


def test_every_call_path_passes_the_ops_defaults(add_impl):
    exact = lambda x, weight, eps, offset: (x * eps, x.sum() * offset)
    when = lambda x, weight, eps, offset: eps == 1e-6
    add_impl("rms_norm", "vendor.exact", VENDOR, exact, vendor="exact", when=when)
    x, w, manager = torch.ones(4), torch.ones(4), get_default_manager()
    with opmux.policy("vendor"):
        for call in (
            opmux.ops.rms_norm,
            manager.resolve("rms_norm"),
            lambda *a, **k: manager.call("rms_norm", *a, **k),
        ):
            for y, rstd in (call(x, w), call(weight=w, x=x)):
                assert torch.equal(y, x * 1e-6) and rstd.item() == 0
        assert opmux.explain("rms_norm", x, w).chosen.impl_id == "vendor.exact"
        assert opmux.explain("rms_norm", weight=w, x=x).chosen.impl_id == "vendor.exact"


@pytest.mark.parametrize("when", [None, lambda x, weight, eps, offset: eps == 1e-6], ids=["always", "when"])
def test_an_impl_without_a_new_argument_gets_only_calls_with_its_default(add_impl, when):
    mine = lambda x, weight, eps, offset: (torch.full_like(x, 7.0), x.new_ones(x.shape[:-1], dtype=torch.float32))
    add_impl("rms_norm", "vendor.acme", VENDOR, mine, vendor="acme", when=when)
    x, weight = torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(8, dtype=torch.bfloat16)
    with opmux.policy("vendor"):
        assert opmux.ops.rms_norm(x, weight)[0].eq(7).all()
        report = opmux.explain("rms_norm", x, weight, casting="llama")
        assert report.chosen.impl_id != "vendor.acme" and "takes no casting, casting='llama' was given" in str(report)
        assert not opmux.ops.rms_norm(x, weight, casting="llama")[0].eq(7).any()
        if when is not None:
            assert not opmux.ops.rms_norm(x, weight, 1e-5)[0].eq(7).any()
    assert not get_default_manager().failures()


def test_keyword_only_parameters_of_an_op_are_passed_by_keyword():
    from opmux.core import op

    def kw(x: torch.Tensor, a: float = 1.0, *, ab: float = 2.0) -> torch.Tensor:
        return x * a * ab

    fn = op(kw, name="kw_test")
    try:
        assert fn(torch.ones(1)).item() == 2 and fn(torch.ones(1), 3.0, ab=5.0).item() == 15
        for impl_fn in (lambda y, e, f: (y, e, f), lambda *a: a, lambda x, a, **k: (x, a, k["ab"])):
            assert fit(impl_fn, "kw_test").call(1, 2, ab=3) == (1, 2, 3)
    finally:
        specs.remove(fn.spec)


def test_a_builtin_without_a_signature_is_accepted():
    assert fit(torch.ops.aten.add).refusal is None


def test_a_foreign_norms_result_is_reshaped_for_the_op(add_impl):
    """The op reshapes the impl's result to what it declares; a call by name returns the impl's result unchanged."""

    def pair(input, weight, eps=1e-5, **rest):
        rstd = torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps)
        return input * rstd * weight, rstd

    add_impl("rmsnorm_fwd", "vendor.pair", VENDOR, pair, vendor="pair")
    x, w = torch.randn(3, 2, 8), torch.randn(8)
    with opmux.policy("vendor"):
        out = opmux.ops.rmsnorm_fwd(x, w, 1e-5, None, None, torch.float32, 0, False)
        raw = get_default_manager().call("rmsnorm_fwd", x, w)
    assert isinstance(out, list) and out[1] is None and out[2].shape == (6,) and out[2].dtype is torch.float32
    assert isinstance(raw, tuple) and len(raw) == 2 and raw[1].shape == (3, 2, 1)
    expected = specs.find("rmsnorm_fwd").reference(x, w, 1e-5, None, None, torch.float32, 0, False)
    torch.testing.assert_close(out[0], expected[0])
    torch.testing.assert_close(out[2], expected[2])


# ---- compositions ---------------------------------------------------------------------------------------------------


def tex_norm(x, w):
    return opmux.ops.rmsnorm_fwd(x, w, 1e-5, None, None, None, 0, False)


def test_a_composition_lists_its_parts():
    assert set(specs.find("layernorm_bwd").parts) == {"opmux::layer_norm_bwd"}
    # The list includes parts of called functions: the source of rmsnorm_fwd itself does not mention quantizing.
    assert {"opmux::rms_norm", "opmux::rms_norm_fp8", "opmux::fp8_cast_into"} < set(specs.find("rmsnorm_fwd").parts)


def test_a_composition_gets_the_impls_of_its_parts(add_impl):
    """A vendor that implements the primitive also implements tex's op. If the policy prefers the reference, the
    parts are references too.
    """
    calls = []

    def mine(x, weight, eps, offset):
        calls.append("mine")
        return x * 0 + 5, x[..., 0]

    x, w = torch.randn(3, 8), torch.randn(8)
    reference = tex_norm(x, w)[0]
    add_impl("rms_norm", "vendor.acme", VENDOR, mine, vendor="acme")
    ids = [i.impl_id for i in get_default_manager().resolve_candidates("rmsnorm_fwd")]
    assert ids == ["vendor.acme", "reference.torch"]
    assert tex_norm(x, w)[0].eq(5).all() and calls == ["mine"]
    with opmux.policy("reference"):
        torch.testing.assert_close(tex_norm(x, w)[0], reference)
    with opmux.policy(deny="acme"):
        torch.testing.assert_close(tex_norm(x, w)[0], reference)
    assert calls == ["mine"]


def test_a_declining_part_falls_back_inside_the_composition(add_impl):
    x, w = torch.randn(3, 8), torch.randn(8)
    reference = tex_norm(x, w)[0]
    add_impl("rms_norm", "default.flagos.x", DEFAULT, lambda *a: 1 / 0, when=lambda x, *a: "not on a Sunday")
    torch.testing.assert_close(tex_norm(x, w)[0], reference)
    with opmux.policy(strict=True), pytest.raises(NotSupported, match="not on a Sunday"):
        tex_norm(x, w)


def test_an_impl_of_the_composition_itself_has_priority(add_impl):
    add_impl("rms_norm", "vendor.acme", VENDOR, lambda *a: 1 / 0, vendor="acme")
    add_impl("rmsnorm_fwd", "vendor.acme", VENDOR, lambda *a: [a[0], None, a[0][:, 0]], vendor="acme")
    x = torch.randn(3, 8)
    with opmux.policy("vendor"):
        assert tex_norm(x, torch.ones(8))[0] is x
    assert [i.impl_id for i in get_default_manager().resolve_candidates("rmsnorm_fwd")].count("vendor.acme") == 1


def test_impl_tags_are_registered_in_the_default_manager():
    registry = get_default_manager().registry
    try:

        @impl(opmux.ops.rms_norm, id="default.flagos.test", when=lambda x, *a: "never")
        def tagged_norm(x, weight, eps, offset):
            return x, x

        assert tagged
        ids = [v.impl.impl_id for v in opmux.explain("rms_norm").verdicts]
        assert "default.flagos.test" in ids and not tagged
        with pytest.raises(BadImpl, match="does not fit"):
            impl(opmux.ops.rms_norm)(lambda x: x)
        with pytest.raises(BadImpl, match="@impl takes an op"):
            impl(print)
    finally:
        registry.unregister("rms_norm", "default.flagos.test")


# ---- explain and the log --------------------------------------------------------------------------------------------


def test_explain_returns_data_and_prints_one_screen(add_impl):
    fields = dict(vendor="acme", supported_dtypes={torch.bfloat16})
    add_impl("rms_norm", "vendor.acme", VENDOR, lambda *a: a, **fields)
    add_impl(
        "rms_norm", "vendor.bolt", VENDOR, lambda *a: a, vendor="bolt", when=lambda x, *a: x.shape[-1] % 8 == 0 or "odd"
    )
    x, w = torch.ones(3, 7), torch.ones(7)
    with opmux.policy("vendor", deny=["nobody"]):
        report = opmux.explain(opmux.ops.rms_norm, x, w)
        assert report.chosen.impl_id == "reference.torch" and report.key == "opmux::rms_norm"
        rows = {v.impl.impl_id: (v.status, v.stage, v.reason) for v in report.verdicts}
        assert rows["vendor.acme"] == ("refused", "dtype", "takes bfloat16; the first tensor is float32")
        assert rows["vendor.bolt"] == ("refused", "when", "odd")
        assert rows["reference.torch"][0] == "chosen"
        assert opmux.explain("rms_norm", x[:, :0], w[:0]).chosen.impl_id == "vendor.bolt"
        # without tensors, no impl is refused for its dtypes
        assert opmux.explain("rms_norm").chosen.impl_id == "vendor.acme"
        add_impl(
            "rms_norm", "vendor.cut", VENDOR, lambda *a: a, vendor="cut", priority=9, when=lambda x, *a: x.shape[9]
        )
        assert "raised IndexError" in str(opmux.explain("rms_norm", x, w))
    text = str(report)
    assert len(text.splitlines()) < 24 and "takes bfloat16" in text and "policy prefer=vendor" in text
    with pytest.raises(UnknownName, match="did you mean 'rms_norm'"):
        opmux.explain("rms_nom")
    with pytest.raises(TypeError, match="an op is given by its name"):
        opmux.explain(print)


def test_selections_are_logged(caplog):
    with opmux.policy("reference"):  # makes the default manager log its first line now, not below
        pass
    registry = OpRegistry()
    registry.register_impl(OpImpl("own", "a", REFERENCE, None, lambda x: x))
    registry.register_impl(OpImpl("own", "b", VENDOR, "bee", lambda x: x))
    manager = OpManager(registry)
    with caplog.at_level(logging.INFO, "opmux"):
        for _ in range(3):
            manager.call("own", 1)
        registry.register_impl(OpImpl("own", "c", DEFAULT, None, lambda x: x))
        for _ in range(3):
            manager.call("own", 1)
        for _ in range(2):
            with opmux.policy("reference"):
                manager.resolve("own")(1)
    assert [r.getMessage() for r in caplog.records] == [
        "Registered impl_ids: ['a', 'b']",
        "Op 'own' using 'b' (kind=vendor, vendor=bee)",
        "Op 'own' switched from 'b' to 'c' (kind=flagos, vendor=None): registration",
        "Op 'own' switched from 'c' to 'a' (kind=reference, vendor=None): policy prefer=reference",
    ]


def test_the_digest_changes_with_the_selection(add_impl):
    before = opmux.digest()
    assert before == opmux.digest() and len(before) == 32
    add_impl("rms_norm", "vendor.acme", VENDOR, lambda *a: a, vendor="acme")
    assert opmux.digest() != before
    with opmux.policy(deny="acme"):
        assert opmux.digest() == before
