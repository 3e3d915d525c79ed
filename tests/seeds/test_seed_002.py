"""Follows the third document, a vendor backend for Liger: one test for each promise.

The program uses Liger's own names, which `opmux.compat.install` provides. It runs once, on a simulated device that
belongs to no vendor in the tree.
"""

from __future__ import annotations

import subprocess

import pytest
from vendor_folder import BACKENDS, follow

pytest.importorskip("triton")

INIT = '''
"""
Acme backend for Liger-Kernel.
"""

from liger_kernel.ops.backends.registry import VendorInfo, register_vendor

register_vendor(
    VendorInfo(
        vendor="acme",
        device="acm",
    )
)
'''

GEGLU = '''
import torch
from liger_kernel.ops.utils import ensure_contiguous

calls = []


class LigerGELUMulFunction(torch.autograd.Function):
    """
    Vendor-specific LigerGELUMulFunction implementation.
    """
    @staticmethod
    def forward(ctx, a, b):
        calls.append("forward")
        ctx.save_for_backward(a, b)
        return geglu_forward_vendor(a, b)

    @staticmethod
    @ensure_contiguous
    def backward(ctx, dc):
        calls.append("backward")
        return geglu_backward_vendor(*ctx.saved_tensors, dc)

# Optional: vendor-specific kernel functions
def geglu_forward_vendor(a, b):
    return torch.nn.functional.gelu(a, approximate="tanh") * b

def geglu_backward_vendor(a, b, dc):
    with torch.enable_grad():
        x = a.detach().requires_grad_()
        g = torch.nn.functional.gelu(x, approximate="tanh")
    (da,) = torch.autograd.grad(g, x, dc * b)
    return da, dc * g.detach()


def silu_mul_vendor(a, b):
    calls.append("silu_mul")
    return torch.nn.functional.silu(a) * b


def acme_only(a):
    return a + 1
'''

OPS = '''
"""
Acme-specific operator implementations.
"""

from .geglu import (
    LigerGELUMulFunction,
    geglu_forward_vendor as geglu_forward,   # Rename to match default API
    geglu_backward_vendor as geglu_backward,
    silu_mul_vendor as silu_mul,
    acme_only,
    acme_only as swiglu_foward,
)

# Explicitly declare what to export (recommended)
__all__ = [
    "LigerGELUMulFunction",
    "geglu_forward",
    "geglu_backward",
    "silu_mul",
    "acme_only",
    "swiglu_foward",
]
'''

FOLDER = {"__init__.py": INIT, "ops/__init__.py": OPS, "ops/geglu.py": GEGLU}

PROGRAM = """
found["before"] = [m for m in sys.modules if m.startswith(("opmux.backends._", "liger_kernel"))]
opmux.compat.install("liger_kernel")
import liger_kernel.ops.backends
from liger_kernel.ops.backends.registry import VENDOR_REGISTRY, VendorInfo, register_vendor
from liger_kernel.utils import infer_device
found["device"] = infer_device()
found["registry"] = {d: v.vendor_name for d, v in VENDOR_REGISTRY.items() if d == "acm"}
found["entry"] = [VENDOR_REGISTRY["acm"].vendor, VENDOR_REGISTRY["acm"].device]
found["packages"] = sorted(m for m in sys.modules if m.startswith("opmux.backends._") and m.count(".") == 2)

a, b = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
on = lambda t: t.to("acm").requires_grad_()
from liger_kernel.ops.backends._acme.ops import geglu
import opmux.backends._acme.ops.geglu
found["one copy"] = geglu is opmux.backends._acme.ops.geglu

# overrides, under the default's names
def gradients(call):
    x, y = on(a), on(b)
    z = call(x, y)
    z.sum().backward()
    return [off(z, want), off(x.grad, want_a.grad), off(y.grad, want_b.grad)]

want_a, want_b = a.clone().requires_grad_(), b.clone().requires_grad_()
want = torch.nn.functional.gelu(want_a, approximate="tanh") * want_b
want.sum().backward()
off = lambda got, exact: (got.detach().cpu() - exact.detach()).abs().max().item()
x, y = on(a), on(b)
found["override"] = gradients(opmux.ops.gelu_tanh_mul)
found["calls"] = list(geglu.calls)
found["silu_mul"] = off(opmux.ops.silu_mul(x.detach(), y.detach()), torch.nn.functional.silu(a) * b)
ops = ("opmux::gelu_tanh_mul", "opmux::silu_mul", "opmux::rms_norm")
found["chosen"] = {op: opmux.explain(op).chosen.impl_id for op in ops}

# the namespace: Liger's functions and modules use what it has
import liger_kernel.transformers.functional as F
from liger_kernel.ops import LigerGELUMulFunction, LigerSiLUMulFunction, acme_only, geglu_backward, geglu_forward
from liger_kernel.ops.geglu import LigerGELUMulFunction as default
found["names"] = [LigerGELUMulFunction is geglu.LigerGELUMulFunction, geglu_forward is geglu.geglu_forward_vendor,
                  default is not LigerGELUMulFunction, "acme" not in LigerSiLUMulFunction.__module__]
geglu.calls.clear()
found["by name"] = [gradients(LigerGELUMulFunction.apply), gradients(F.liger_geglu), gradients(default.apply)]
found["by name calls"] = list(geglu.calls)
found["swiglu"] = off(F.liger_swiglu(x, y), torch.nn.functional.silu(a) * b)
found["added"] = [off(acme_only(x), a + 1), "acme_only" in dir(liger_kernel.ops), "acme_only" in dir(opmux.ops)]

# what the vendor does not implement
found["rms_norm"] = off(opmux.ops.rms_norm(x.detach(), torch.ones(16, device="acm"))[0],
                        torch.nn.functional.rms_norm(a, (16,), eps=1e-6))

# taken out of the tree, its functions are gone
import opmux.machine.vendors
opmux.machine.vendors.forget("acme")
liger_kernel.ops._replace_with_vendor_ops()
found["default again"] = liger_kernel.ops.LigerGELUMulFunction is default and not hasattr(liger_kernel.ops, "acme_only")
opmux.compat.uninstall("liger_kernel")
found["foreign"] = [m for m in sys.modules if m.startswith("liger_kernel")]
"""

# Here Liger's names are not installed: they exist only while opmux imports the vendor's package.
WITHOUT = """
a, b = torch.randn(2, 5, 16, device="acm")
opmux.ops.gelu_tanh_mul(a, b)
found["calls"] = sys.modules["opmux.backends._acme.ops.geglu"].calls
found["foreign"] = [m for m in sys.modules if m.startswith("liger_kernel")]
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The program's output; the document's own commands create the folders."""
    root = tmp_path_factory.mktemp("seed")
    (root / "tree").mkdir()
    commands = "mkdir -p _acme/ops && touch _acme/__init__.py && touch _acme/ops/__init__.py"
    subprocess.run(commands, shell=True, cwd=root / "tree", check=True)
    return follow(root, {"_acme": FOLDER}, PROGRAM, device="acm")


# ---- the directory --------------------------------------------------------------------------------------------------


def test_the_directory_has_the_documented_files():
    for name in ("README.md", "__init__.py", "registry.py", "_ascend/__init__.py", "_ascend/ops/__init__.py"):
        assert (BACKENDS / name).is_file(), name
    assert (BACKENDS / "_ascend/ops/geglu.py").is_file()  # the document's complete example


def test_the_registry_maps_a_device_to_its_vendor(report):
    assert report.registry == {"acm": "acme"} and report.entry == ["acme", "acm"]


# ---- how it works ---------------------------------------------------------------------------------------------------


def test_vendor_packages_are_imported_on_first_use(report):
    assert report.before == [] and {"opmux.backends._acme", "opmux.backends._ascend"} <= set(report.packages)


def test_a_package_registers_itself_under_ligers_names(report):
    assert report.registry["acm"] == "acme" and getattr(report, "one copy")
    assert report.foreign == []  # uninstall removes Liger's modules


def test_the_current_device_is_detected(report):
    assert report.device == "acm"


# ---- operators ------------------------------------------------------------------------------------------------------


def test_an_autograd_function_replaces_forward_and_backward(report):
    assert max(report.override) < 1e-5 and report.calls == ["forward", "backward"]
    assert report.chosen["opmux::gelu_tanh_mul"] == "default.flagos.acme"


def test_a_renamed_function_replaces_the_default(report):
    assert report.silu_mul < 1e-6 and report.chosen["opmux::silu_mul"] == "default.flagos.acme"


def test_unimplemented_operators_use_the_default(report):
    assert report.rms_norm < 1e-5 and report.chosen["opmux::rms_norm"] == "default.flagos"


def test_exports_replace_the_names_of_the_namespace(report):
    assert report.names == [True, True, True, True]
    assert max(max(each) for each in getattr(report, "by name")) < 1e-5
    # Our autograd.Function calls the vendor's forward and backward.
    assert getattr(report, "by name calls") == ["forward", "backward"] * 3
    assert report.swiglu < 1e-6


def test_a_vendor_may_add_operators(report):
    assert report.added == [0.0, True, True]


def test_removing_a_vendor_removes_its_names(report):
    assert getattr(report, "default again")


def test_a_misspelled_name_warns_once(report):
    (message,) = report.said
    assert "'swiglu_foward' is no op" in message and "did you mean 'swiglu_forward'" in message


def test_a_package_for_liger_works_without_installing_names(tmp_path):
    report = follow(tmp_path, {"_acme": FOLDER}, WITHOUT, device="acm")
    assert report.calls == ["forward"] and report.foreign == []
