"""tex's backends: both ways to register use one registry, and a missing backend raises.

tests/seeds/test_seed_004.py tests the settings that select a backend, and a vendor's file in the tree.
"""

from importlib.machinery import EXTENSION_SUFFIXES

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, OpImpl
from opmux.core.default import get_default_manager
from opmux.core.errors import BackendNotFound, BadImpl, NotSupported
from opmux.core.policy import reset_global_policy
from opmux.faces.tex import interface, registry
from opmux.faces.tex.backends.nvidia import nvidia
from opmux.faces.tex.base import METHODS, TEXBackendBase

tex = interface.module()


@pytest.fixture(autouse=True)
def restore_backends():
    before = dict(registry._backends)
    yield
    for name in set(registry._backends) - set(before):
        registry.unregister_backend(name)
    reset_global_policy()


def norm(x=None, otype=None):
    x = torch.randn(3, 8) if x is None else x
    return tex.rmsnorm_fwd(x, torch.ones(8), 1e-5, None, None, otype, 0, False)


def acme(**methods):
    return type("AcmeBackend", (TEXBackendBase,), {"NAME": "acme", "PRIORITY": 90, **methods})


def fives(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
    return torch.full_like(input, 5.0), None, input.new_ones(input.shape[0])


# ---- listing and selecting backends ---------------------------------------------------------------------------------


def test_list_backends_reports_name_vendor_priority_and_availability():
    rows = tex.list_backends()
    assert [set(r) for r in rows] == [{"name", "vendor", "priority", "available"}] * len(rows)
    built_in = [(r["name"], r["priority"]) for r in rows if r["name"] in ("flaggems", "nvidia", "torch")]
    assert built_in == [("flaggems", 150), ("nvidia", 100), ("torch", 50)]
    assert {r["name"]: r["vendor"] for r in rows}["nvidia"] == "NVIDIA"
    assert {r["name"]: r["available"] for r in rows}["torch"] is True


def test_a_registered_class_is_listed_selected_and_run():
    registry.register_backend(acme(rmsnorm_fwd=fives))
    assert {"name": "acme", "vendor": "acme", "priority": 90, "available": True} in tex.list_backends()
    assert not norm()[0].eq(5).all()  # our kernels have a higher priority
    tex.set_backend("acme")
    assert tex.get_backend().name == "acme"
    out, none, rsigma = norm()
    assert out.eq(5).all() and none is None and rsigma.dtype is torch.float32
    x = torch.randn(3, 8)
    # acme has no gelu
    torch.testing.assert_close(tex.gelu(x, None), torch.nn.functional.gelu(x, approximate="tanh"))
    tex.set_backend("torch")
    assert tex.get_backend().name == "torch" and not norm()[0].eq(5).all()


def test_a_backend_class_and_an_op_impl_register_in_the_same_registry():
    registry.register_backend(acme(rmsnorm_fwd=fives))
    impls = get_default_manager().registry.get_implementations("rmsnorm_fwd")
    assert [i.kind for i in impls if i.vendor == "acme"] == [BackendImplKind.VENDOR]
    impl = OpImpl(
        "rmsnorm_fwd", "vendor.bolt", BackendImplKind.VENDOR, "bolt", lambda x, *a: [x * 0 + 7, None, x[:, 0]]
    )
    get_default_manager().registry.register_impl(impl)
    try:
        assert "bolt" in [r["name"] for r in tex.list_backends()]
        tex.set_backend("bolt")
        assert norm()[0].eq(7).all() and tex.get_backend().name == "bolt"
        assert (
            tex.get_backend()
            .rmsnorm_fwd(torch.randn(3, 8), torch.ones(8), 1e-5, None, None, None, 0, False)[0]
            .eq(7)
            .all()
        )
        with opmux.policy("vendor:acme"):
            assert norm()[0].eq(5).all()
    finally:
        reset_global_policy()
        get_default_manager().registry.unregister("rmsnorm_fwd", "vendor.bolt")


def test_references_to_functions_follow_set_backend():
    held = tex.rmsnorm_fwd
    registry.register_backend(acme(rmsnorm_fwd=fives))
    tex.set_backend("acme")
    assert held(torch.randn(3, 8), torch.ones(8), 1e-5, None, None, None, 0, False)[0].eq(5).all()


def test_get_backend_returns_the_selected_backend():
    x = torch.randn(3, 8)
    tex.set_backend("torch")
    torch.testing.assert_close(tex.get_backend().silu(x, None), torch.nn.functional.silu(x))


def test_backends_receive_torch_dtypes():
    dtypes = []

    def record(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
        dtypes.append(otype)
        return fives(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma)

    registry.register_backend(acme(rmsnorm_fwd=record))
    tex.set_backend("acme")
    norm(otype=tex.DType.kBFloat16)
    assert dtypes == [torch.bfloat16]


# ---- missing backends and methods -----------------------------------------------------------------------------------


def test_set_backend_rejects_unknown_and_unavailable_names():
    with pytest.raises(RuntimeError, match=r"^Backend 'hygon' not found\. Available backends: \[.*'torch'.*\]"):
        tex.set_backend("hygon")
    registry.register_backend(acme(is_available=lambda self: False))
    with pytest.raises(RuntimeError, match=r"Backend 'acme' not found.*is_available\(\) returned False"):
        tex.set_backend("acme")
    assert {r["name"]: r["available"] for r in tex.list_backends()}["acme"] is False


def test_an_exception_in_is_available_is_reported_as_the_reason():
    registry.register_backend(acme(is_available=lambda self: 1 / 0, rmsnorm_fwd=fives))
    with pytest.raises(BackendNotFound, match="ZeroDivisionError"):
        tex.set_backend("acme")
    assert not norm()[0].eq(5).all()


def test_a_method_that_raises_not_implemented_falls_back():
    def declines(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
        raise NotImplementedError("not for rows of eight")

    registry.register_backend(acme(rmsnorm_fwd=declines))
    tex.set_backend("acme")
    assert norm()[0].shape == (3, 8)


def test_a_decline_applies_to_one_call_only():
    """A decline depends on the arguments, so the backend gets the next call again, even if its shape is the same."""
    calls = []

    def sometimes(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
        calls.append(zero_centered_gamma)
        if zero_centered_gamma:
            raise NotImplementedError("a weight around zero")
        return fives(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma)

    registry.register_backend(acme(rmsnorm_fwd=sometimes))
    tex.set_backend("acme")
    x, w = torch.randn(3, 8), torch.ones(8)
    for centred in (False, True, False):
        out = tex.rmsnorm_fwd(x, w, 1e-5, None, None, None, 0, centred)[0]
        assert out.eq(5).all() == (not centred)
    assert calls == [False, True, False]


def test_a_method_with_a_misspelled_name_warns(caplog):
    with caplog.at_level("WARNING", logger="opmux"):
        registry.register_backend(acme(rmsnorm_fwdd=fives, own_business=fives))
    (messages,) = [r.getMessage() for r in caplog.records]
    assert messages == "tex backend 'acme' has a method 'rmsnorm_fwdd': did it mean 'rmsnorm_fwd'?"


def test_a_missing_method_raises_if_no_fallback_is_allowed():
    base = acme()()
    with pytest.raises(NotImplementedError, match="^fused_attn_fwd not implemented"):
        base.fused_attn_fwd()
    assert isinstance(NotSupported(""), NotImplementedError)
    registry.register_backend(acme(gelu=lambda self, input, quantizer: input))
    with (
        pytest.raises(NotImplementedError, match="rmsnorm_fwd not implemented"),
        opmux.policy(per_op={"rmsnorm_fwd": "vendor:acme"}),
    ):
        norm()


def test_the_base_class_has_every_method_with_signature_and_docstring():
    import inspect

    assert set(METHODS) == {s.name for s in interface.tex_specs()}
    for name in METHODS:
        method = getattr(TEXBackendBase, name)
        assert method.__doc__ and next(iter(inspect.signature(method).parameters)) == "self"


@pytest.mark.parametrize(
    ("what", "words"),
    [(int, "subclass of TEXBackendBase"), (type("X", (TEXBackendBase,), {}), "must have a NAME")],
)
def test_an_invalid_backend_class_is_rejected(what, words):
    with pytest.raises(BadImpl, match=words):
        registry.register_backend(what)


def test_a_name_that_is_taken_is_rejected():
    registry.register_backend(acme(rmsnorm_fwd=fives))
    with pytest.raises(BadImpl, match="registered already"):
        registry.register_backend(type("Other", (TEXBackendBase,), {"NAME": "acme"}))


def test_properties_override_attributes_and_init_is_not_called():
    class Hygon(TEXBackendBase):
        NAME = "hygon"

        def __init__(self):
            self.lib = None

        @property
        def vendor(self):
            return "Hygon"

        @property
        def priority(self):
            return 90

        def is_available(self):
            return self.lib is None

        def rmsnorm_fwd(self, input, weight, eps, *rest):
            return torch.full_like(input, 9.0), None, input.new_ones(3)

    registry.register_backend(Hygon)
    assert {"name": "hygon", "vendor": "Hygon", "priority": 90, "available": True} in tex.list_backends()
    tex.set_backend("HYGON")
    assert norm()[0].eq(9).all()


# ---- NVIDIA's own extension -----------------------------------------------------------------------------------------


class Extension:
    """A fake of the compiled module, with its own enums and two functions."""

    class DType:
        def __init__(self, number):
            self.number = number

        def __int__(self):
            return self.number

    class NVTE_Fused_Attn_Backend(DType):
        pass

    def __init__(self):
        self.seen = []

    def rmsnorm_fwd(self, *args):
        self.seen = args
        return [args[0] * 0 + 3, None, args[0][:, 0].float()]

    def get_fused_attn_backend(self, *args):
        self.seen = args
        return self.NVTE_Fused_Attn_Backend(1)


def test_nvidias_extension_gets_its_own_enums_and_results_have_ours(monkeypatch):
    extension = Extension()
    monkeypatch.setattr(nvidia, "load", lambda: extension)
    one = nvidia.NVIDIABackend()
    out = one.rmsnorm_fwd(torch.randn(3, 8), torch.ones(8), 1e-5, None, None, torch.bfloat16, 0, False)
    assert out[0].eq(3).all() and isinstance(extension.seen[5], Extension.DType) and int(extension.seen[5]) == 6
    assert one.get_fused_attn_backend(True) is tex.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
    with pytest.raises(NotImplementedError, match="gelu not implemented by the installed transformer_engine_torch"):
        one.gelu(torch.ones(3), None)


@pytest.mark.parametrize("place", ["", "transformer_engine/", "transformer_engine/wheel_lib/"])
def test_nvidias_extension_is_found_in_each_of_its_places(monkeypatch, tmp_path, place):
    name = f"transformer_engine_torch{EXTENSION_SUFFIXES[0]}"
    for file in ("transformer_engine/__init__.py", place + name):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert nvidia.find() == tmp_path / place / name


def test_a_python_module_with_that_name_is_not_the_extension(monkeypatch, tmp_path):
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine/__init__.py").write_text("")
    (tmp_path / "transformer_engine_torch.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert nvidia.find() is None


def test_nvidias_extension_gets_contiguous_tensors(monkeypatch):
    extension = Extension()
    monkeypatch.setattr(nvidia, "load", lambda: extension)
    nvidia.NVIDIABackend().rmsnorm_fwd(torch.randn(8, 3).T, torch.ones(8), 1e-5, None, None, None, 0, False)
    assert extension.seen[0].is_contiguous()


def test_nvidia_is_unavailable_without_its_extension():
    assert nvidia.find() is None
    with pytest.raises(RuntimeError, match="Backend 'nvidia' not found.*transformer_engine_torch is not installed"):
        tex.set_backend("nvidia")


# ---- calls run on the backend that is named -------------------------------------------------------------------------

IMPL_OF = {"flaggems": "default.flagos", "torch": "reference.torch"}


@pytest.mark.parametrize(
    ("variables", "vendor", "runs"),
    [
        ({}, None, "flaggems"),
        ({"TE_FL_ALLOW_VENDORS": "nvidia,acme"}, None, "flaggems"),
        ({"TE_FL_ALLOW_VENDORS": "nvidia,acme"}, "acme", "flaggems"),
        ({"TE_FL_ALLOW_VENDORS": "nvidia,acme", "TE_FL_PREFER": "vendor"}, "acme", "acme"),
        ({"TE_FL_ALLOW_VENDORS": "nvidia", "TE_FL_PREFER": "vendor"}, "acme", "flaggems"),
        ({"TE_FL_DENY_VENDORS": "cpu"}, None, "torch"),  # the vendor of our kernels for CPUs
        ({"TE_FL_DENY_VENDORS": "cpu"}, "acme", "acme"),
        ({"TE_FL_DENY_VENDORS": "cpu"}, "nvidia", "nvidia"),
        ({"TE_FL_PREFER": "vendor"}, "nvidia", "nvidia"),
        ({"TE_FL_PREFER": "vendor", "TE_FL_SKIP_CUDA": "1"}, "nvidia", "flaggems"),
    ],
)
def test_calls_run_on_the_backend_that_get_backend_names(setenv, request, variables, vendor, runs):
    """On a CPU without NVIDIA's extension. A plugin may have the vendor `nvidia`."""
    if torch.cuda.is_available() or nvidia.find() is not None:
        pytest.skip("needs a machine without a GPU and without NVIDIA's extension")
    if vendor is not None:
        fn = lambda input, weight, eps, *rest: fives(None, input, weight, eps, *rest)
        impl = OpImpl("rmsnorm_fwd", f"vendor.{vendor}", BackendImplKind.VENDOR, vendor, fn, 200)
        get_default_manager().registry.register_impl(impl)
        request.addfinalizer(lambda: get_default_manager().registry.unregister("rmsnorm_fwd", impl.impl_id))
    setenv(**variables)
    x = torch.randn(3, 8)
    selected = lambda: get_default_manager().get_selected_impl_id(
        "rmsnorm_fwd", x, torch.ones(8), 1e-5, None, None, None, 0, False
    )
    assert tex.get_backend().name == runs and selected() == IMPL_OF.get(runs, f"vendor.{runs}")
    assert norm(x)[0].eq(5).all() == (runs == vendor)
    if runs == vendor:
        assert tex.get_backend().rmsnorm_fwd(x, torch.ones(8), 1e-5, None, None, None, 0, False)[0].eq(5).all()
    available = {row["name"]: row["available"] for row in tex.list_backends()}
    for name in ("flaggems", "torch", "nvidia"):
        reset_global_policy()
        if available[name]:
            tex.set_backend(name)
            assert tex.get_backend().name == name and selected() == IMPL_OF.get(name, f"vendor.{name}")
        else:
            with pytest.raises(BackendNotFound):
                tex.set_backend(name)
            assert selected() != IMPL_OF.get(name, f"vendor.{name}")


def test_explain_says_that_the_kernels_for_cpus_are_denied():
    with opmux.policy(deny=["cpu"]):
        explanation = opmux.explain("tex::gelu", torch.ones(3), None)
        assert explanation.chosen.impl_id == "reference.torch"
        reasons = [v.reason for v in explanation.verdicts if v.impl.impl_id == "default.flagos"]
        assert reasons and all("vendor 'cpu' is denied" in reason for reason in reasons)
        with pytest.raises(BackendNotFound, match="vendor 'cpu' is denied"):
            tex.set_backend("flaggems")
