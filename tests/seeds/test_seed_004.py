"""Follows the guide to the TEX interface from top to bottom: one test for each promise.

This process imports the modules by the names of Transformer Engine. A vendor's file is added to a copy of the tree.
"""

import importlib
import os
import shutil
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
import torch.nn.functional as F

import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager, reset_global_policy
from opmux.faces import compat
from opmux.faces.tex import interface, registry

tex = interface.module()
SRC = Path(__file__).parents[2] / "src"
PLUGINS = "transformer_engine.plugins"


@pytest.fixture(scope="module", autouse=True)
def names():
    """Installs the names once per file, because NVIDIA's layer, if present, takes three seconds to import."""
    compat.install("transformer_engine")
    yield
    compat.uninstall("transformer_engine")


@pytest.fixture(autouse=True)
def restore_backends():
    before = dict(registry._backends)
    yield
    for name in set(registry._backends) - set(before):
        registry.unregister_backend(name)
    get_default_manager().clear_quarantine()
    reset_global_policy()


def norm(module=tex, rows=3):
    return module.rmsnorm_fwd(torch.ones(rows, 8), torch.ones(8), 1e-5, None, None, torch.float32, 0, False)


def state():
    """The reports of the management functions; asserts that a call runs the backend that they report."""
    available = {row["name"]: row["available"] for row in tex.list_backends()}
    first, selected = tex.get_backend().name, get_default_manager().get_selected_impl_id("rmsnorm_fwd")
    value = norm()[0][0, 0].item()
    runs = "hygon" if value == 9 else {"reference.torch": "torch", "default.flagos": "flaggems"}[selected]
    assert available[first] and first == runs and (selected == "vendor.hygon") == (value == 9)
    return first, available


# ---- quick start ----------------------------------------------------------------------------------------------------


def test_the_alias_and_the_full_path_are_the_same_module():
    from transformer_engine.plugins import tex as alias

    names: dict[str, Any] = {}
    exec("from transformer_engine.plugins.transformer_engine_fl_torch import *", names)
    import transformer_engine_torch

    import transformer_engine_fl_torch

    assert alias is names["tex"] is transformer_engine_torch is opmux.tex
    assert names["rmsnorm_fwd"] is alias.rmsnorm_fwd is transformer_engine_fl_torch.rmsnorm_fwd
    torch.testing.assert_close(norm(names["tex"])[0], torch.ones(3, 8))


def test_every_documented_module_exists():
    """The functions in `cpp_extensions` are those of one backend: policies do not redirect them."""
    modules = ["", ".base", ".registry", ".backends", ".backends.template"]
    for folder, file in (("nvidia", "nvidia"), ("flaggems", "flaggems"), ("torch_backend", "torch_backend")):
        modules += [f".backends.{folder}", f".backends.{folder}.{file}"]
    modules += [".backends.flaggems.cpp_extensions", ".backends.torch_backend.cpp_extensions"]
    known = dict(registry._backends)
    for name in modules:
        module = importlib.import_module(f"{PLUGINS}.tex_interface{name}")
        assert module is importlib.import_module(f"opmux.faces.tex{name}")
    assert set(registry._backends) - set(known) == {"template"}
    root = Path(importlib.import_module(f"{PLUGINS}.tex_interface").__file__).parent
    assert (root / "README.md").is_file()
    # Direct calls of a backend's functions must ignore this policy.
    with opmux.policy(per_op={"rmsnorm_fwd": "vendor:template"}):
        ours = importlib.import_module(f"{PLUGINS}.tex_interface.backends.torch_backend.cpp_extensions")
        torch.testing.assert_close(norm(ours)[0], torch.ones(3, 8))


def test_the_package_exports_what_its_files_define():
    names: dict[str, Any] = {}
    exec(f"from {PLUGINS}.tex_interface import *", names)
    assert names["TEXBackendBase"] is tex.TEXBackendBase and names["register_backend"] is tex.register_backend
    assert {"get_backend", "list_backends", "set_backend"} < set(names)
    assert names["NVIDIABackend"].NAME == "nvidia"
    with pytest.raises(ImportError, match="no_such_name"):
        exec(f"from {PLUGINS}.tex_interface import no_such_name", {})
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{PLUGINS}.tex_interface.no_such_module")
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = importlib.import_module(PLUGINS).no_such_name


# ---- the vendor's class ---------------------------------------------------------------------------------------------


def hygon(**members):
    """The guide's example backend, which loads its library lazily, and overrides class attributes by properties."""
    from transformer_engine.plugins.tex_interface.base import TEXBackendBase
    from transformer_engine.plugins.tex_interface.registry import register_backend

    class HygonBackend(TEXBackendBase):
        NAME = "hygon"
        PRIORITY = 90

        def __init__(self):
            self._hygon_lib = None

        def _get_lib(self):
            if self._hygon_lib is None:
                import hygon_te_ops

                self._hygon_lib = hygon_te_ops
            return self._hygon_lib

        @property
        def name(self):
            return "hygon"

        @property
        def vendor(self):
            return "Hygon"

        @property
        def priority(self):
            return 90

        def is_available(self):
            try:
                import hygon_te_ops  # noqa: F401

                return torch.hip.is_available()
            except ImportError:
                return False

        def rmsnorm_fwd(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
            lib = self._get_lib()
            return lib.rmsnorm_fwd(input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma)

    for name, member in members.items():
        setattr(HygonBackend, name, member)
    return register_backend(HygonBackend)


@pytest.fixture
def library(monkeypatch):
    lib: Any = types.ModuleType("hygon_te_ops")
    lib.rmsnorm_fwd = lambda input, *rest: (torch.full_like(input, 9.0), None, input.new_ones(input.shape[0]))
    monkeypatch.setitem(sys.modules, "hygon_te_ops", lib)
    monkeypatch.setattr(torch, "hip", types.SimpleNamespace(is_available=lambda: True), raising=False)
    return lib


def test_the_example_is_listed_selected_and_run(library):
    hygon()
    assert {"name": "hygon", "vendor": "Hygon", "priority": 90, "available": True} in tex.list_backends()
    assert state()[0] == "flaggems"
    tex.set_backend("hygon")
    assert state()[0] == "hygon"
    torch.testing.assert_close(tex.silu(torch.ones(3), None), F.silu(torch.ones(3)))  # silu, which the example lacks


def test_the_example_is_unavailable_without_its_library():
    hygon()
    assert state()[1]["hygon"] is False
    with pytest.raises(RuntimeError, match=r"^Backend 'hygon' not found\. Available backends: \[.*'torch'\]"):
        tex.set_backend("hygon")


def test_a_copy_of_the_template_is_a_new_backend(tmp_path):
    """Copies and renames the template, imports the copy in a `try`, selects it. A second vendor's import fails."""
    shutil.copytree(SRC, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    backends = tmp_path / "src" / "opmux" / "faces" / "tex" / "backends"
    text = (backends / "template.py").read_text()
    (backends / "hygon.py").write_text(text.replace("TemplateBackend", "HygonBackend").replace('"template"', '"hygon"'))
    (backends / "amd.py").write_text("import rocm_ops\n")
    with (backends / "__init__.py").open("a") as init:
        for name in ("hygon", "amd"):
            init.write(f"\ntry:\n    from . import {name}\nexcept ImportError:\n    pass\n")
    code = """
        import torch, transformer_engine_fl_torch as tex
        tex.set_backend("hygon")
        x, w = torch.randn(3, 8), torch.ones(8)
        got = tex.rmsnorm_fwd(x, w, 1e-5, None, None, torch.float32, 0, False)
        torch.testing.assert_close(got[0], torch.nn.functional.rms_norm(x, (8,), w, 1e-5))
        print(tex.get_backend().name, [r["name"] for r in tex.list_backends()])
        try:
            tex.set_backend("amd")
        except RuntimeError as error:
            print(error)
    """
    result = python(code, path=tmp_path / "src", TEFL_LOG_LEVEL="INFO")
    listed, error = result.stdout.splitlines()
    assert listed == "hygon ['flaggems', 'nvidia', 'hygon', 'torch']"
    assert error.startswith("Backend 'amd' not found. Available backends: ['flaggems', 'hygon', 'torch'].")
    assert error.endswith("amd could not be imported: ModuleNotFoundError: No module named 'rocm_ops'")
    assert "Op 'rmsnorm_fwd' using 'vendor.hygon' (kind=vendor, vendor=hygon)" in result.stderr


def python(code, path=SRC, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL", "TRITON"))}
    cache = {k: v for k, v in os.environ.items() if k == "OPMUX_CACHE_DIR"}
    env = clean | cache | {"PYTHONPATH": str(path)} | variables
    result = fresh.run([sys.executable, "-c", textwrap.dedent(code)], env=env, timeout=240, warm=path == SRC)
    assert result.returncode == 0, result.stderr
    return result


def test_a_class_defined_in_a_command_is_used_and_logged():
    """Runs the code by `python -c`. With TE_FL_DEBUG=1 each op logs a line when it first runs."""
    code = """
        import torch
        from transformer_engine_fl_torch import TEXBackendBase, register_backend, set_backend, rmsnorm_fwd

        @register_backend
        class Acme(TEXBackendBase):
            NAME = "acme"

            def gelu(self, input, quantizer):
                return input

        rmsnorm_fwd(torch.ones(3, 8), torch.ones(8), 1e-5, None, None, None, 0, False)
        set_backend("acme")
    """
    lines = [line for line in python(code, TE_FL_DEBUG="1").stderr.splitlines() if "Op '" in line]
    assert len(lines) == 2 and "Op 'rmsnorm_fwd' using 'default.flagos'" in lines[0] and "Op 'rms_norm'" in lines[1], (
        lines
    )


# ---- the interface --------------------------------------------------------------------------------------------------

METHODS = """
    quantize dequantize bgrad_quantize generic_gemm te_general_grouped_gemm rmsnorm_fwd rmsnorm_bwd layernorm_fwd
    layernorm_bwd fused_attn_fwd fused_attn_bwd get_fused_attn_backend gelu geglu qgelu relu silu swiglu dgelu dgeglu
    dqgelu drelu dsilu dswiglu multi_tensor_adam multi_tensor_sgd multi_tensor_scale multi_tensor_l2norm
"""


def test_the_interface_has_every_method_that_the_guide_lists():
    base = tex.TEXBackendBase()
    for name in METHODS.split():
        assert callable(getattr(tex, name))
        with pytest.raises(NotImplementedError, match=f"^{name} not implemented"):
            getattr(base, name)()


def test_the_guides_test_program_works():
    """Runs the guide's program on the CPU: a norm, and the product of row-major A and B, written to D."""
    tex.set_backend("torch")
    x = torch.randn(32, 1024, dtype=torch.bfloat16)
    weight = torch.ones(1024, dtype=torch.bfloat16)
    output, _, rsigma = tex.rmsnorm_fwd(x, weight, 1e-5, None, None, torch.bfloat16, 0, False)
    assert output.shape == (32, 1024) and (rsigma.dtype, rsigma.shape) == (torch.float32, (32,))
    A = torch.randn(1024, 512, dtype=torch.bfloat16)
    B = torch.randn(512, 2048, dtype=torch.bfloat16)
    D = torch.empty(1024, 2048, dtype=torch.bfloat16)
    workspace = torch.empty(1024 * 1024, dtype=torch.uint8)
    tex.generic_gemm(
        A,
        False,
        B,
        False,
        D,
        None,
        torch.bfloat16,
        None,
        None,
        False,
        None,
        False,
        workspace,
        1024 * 1024,
        False,
        False,
    )
    torch.testing.assert_close(D, A @ B, rtol=1.6e-2, atol=1e-2)


# ---- variables, and what the management functions report ------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, "flaggems"),
        ({"TE_BACKEND": "torch"}, "torch"),
        ({"TE_BACKEND": "hygon"}, "hygon"),
        ({"TE_PLUGIN": "hygon"}, "hygon"),
        ({"TE_PLUGIN": "hygon", "TE_BACKEND": "torch"}, "torch"),
        ({"TE_FALLBACK_BACKEND": "torch"}, "flaggems"),
        ({"TE_FL_PREFER": "vendor"}, "hygon"),
        ({"TE_FL_PREFER": "impl:vendor.hygon"}, "hygon"),
        ({"TE_BACKEND": "hygon", "TE_FL_DENY_VENDORS": "hygon"}, "flaggems"),
        ({"TE_BACKEND": "hygon", "TE_FL_ALLOW_VENDORS": "cpu,amd"}, "flaggems"),
        ({"TE_FL_SKIP_CUDA": "1", "TE_BACKEND": "nvidia"}, "flaggems"),
    ],
    ids=lambda value: "+".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_management_functions_report_what_runs(variables, first, library, setenv):
    hygon()
    setenv(**variables)
    named, available = state()
    assert named == first
    excluded = "TE_FL_DENY_VENDORS" in variables or "TE_FL_ALLOW_VENDORS" in variables
    assert available["hygon"] is not excluded and available["nvidia"] is False
    if excluded:
        with pytest.raises(RuntimeError, match="Backend 'hygon' not found.*vendor 'hygon' is (denied|not allowed)"):
            tex.set_backend("hygon")
    else:
        tex.set_backend("hygon")
        assert state()[0] == "hygon"


def test_an_unknown_backend_raises_everywhere(setenv):
    setenv(TE_BACKEND="hygon")
    for query in (norm, tex.get_backend, lambda: get_default_manager().get_selected_impl_id("rmsnorm_fwd")):
        with pytest.raises(RuntimeError, match=r"^Backend 'hygon' not found\. Available backends: \['flaggems', 'tor"):
            query()
    assert "hygon" not in {row["name"] for row in tex.list_backends()}
    tex.set_backend("torch")  # overrides the variable
    assert state()[0] == "torch"


def test_skip_cuda_says_why_nvidia_is_not_available(setenv):
    setenv(TE_FL_SKIP_CUDA="1")
    with pytest.raises(RuntimeError, match="Backend 'nvidia' not found.*NVIDIA's libraries are disabled"):
        tex.set_backend("nvidia")


def test_set_backend_overrides_an_order_from_the_environment(library, setenv):
    hygon()
    setenv(TE_FL_PER_OP="rmsnorm_fwd=reference;opmux::softmax=reference")
    assert get_default_manager().get_selected_impl_id("rmsnorm_fwd") == "reference.torch"
    tex.set_backend("hygon")
    assert state()[0] == "hygon"
    assert get_default_manager().get_selected_impl_id("opmux::softmax") == "reference.torch"


def test_after_a_failure_all_functions_report_the_fallback(library):
    """If its only function fails, a backend is skipped for this shape. It is not preferred until the function works."""
    hygon()
    tex.set_backend("hygon")

    def broken(*args):
        raise RuntimeError("the chip is off")

    works, library.rmsnorm_fwd = library.rmsnorm_fwd, broken
    torch.testing.assert_close(norm()[0], torch.ones(3, 8), rtol=1e-4, atol=0)
    first, available = state()
    assert first == "flaggems" and available["hygon"] is False
    with pytest.raises(RuntimeError, match=r"not found.*rmsnorm_fwd failed \(RuntimeError: the chip is off\)"):
        tex.set_backend("hygon")
    library.rmsnorm_fwd = works
    assert norm(rows=300)[0].eq(9).all()  # another shape is tried, and works
    assert tex.get_backend().name == "hygon"
    get_default_manager().clear_quarantine()
    assert state()[0] == "hygon"


def test_a_vendor_that_only_has_primitives_is_a_backend():
    """TE_BACKEND and set_backend accept the same names."""
    impl = OpImpl("opmux::silu", "vendor.bolt", BackendImplKind.VENDOR, "bolt", lambda x: x * 0 + 4)
    get_default_manager().registry.register_impl(impl)
    try:
        tex.set_backend("bolt")
        assert tex.get_backend().name == "bolt"
        assert tex.silu(torch.ones(3), None).eq(4).all()
    finally:
        reset_global_policy()
        get_default_manager().registry.unregister("opmux::silu", "vendor.bolt")
