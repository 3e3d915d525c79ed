"""The third document, a vendor backend for Liger: each promise is one check.

`liger_kernel.ops` is `opmux.ops` here, and its `infer_device` opmux's; the modules of Liger that a vendor's package
imports have their own names. One program uses the folder on a simulated device that no vendor of the tree has.
"""

from __future__ import annotations

import subprocess

import pytest
from vendor_folder import BACKENDS, follow

pytest.importorskip("triton")
pytestmark = pytest.mark.xdist_group("seed_002")  # the program runs once

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
    LigerGELUMulFunction as gelu_tanh_mul,
    geglu_forward_vendor as geglu_forward,   # Rename to match default API
    geglu_backward_vendor as geglu_backward,
    silu_mul_vendor as silu_mul,
    acme_only,
)

# Explicitly declare what to export (recommended)
__all__ = [
    "LigerGELUMulFunction",
    "geglu_forward",
    "geglu_backward",
    "gelu_tanh_mul",
    "silu_mul",
    "acme_only",
]
'''

FOLDER = {"__init__.py": INIT, "ops/__init__.py": OPS, "ops/geglu.py": GEGLU}

PROGRAM = """
found["before"] = [m for m in sys.modules if m.startswith("opmux.backends._")]
from opmux.backends import VENDOR_REGISTRY, infer_device
from opmux.backends.registry import VendorInfo, register_vendor
found["device"] = infer_device()
found["registry"] = {d: v.vendor_name for d, v in VENDOR_REGISTRY.items() if d == "acm"}
found["packages"] = sorted(m for m in sys.modules if m.startswith("opmux.backends._") and m.count(".") == 2)

a, b = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
on = lambda t: t.to("acm").requires_grad_()
from opmux.backends._acme.ops import geglu

# overrides, under the default's names
x, y = on(a), on(b)
z = opmux.ops.gelu_tanh_mul(x, y)
z.sum().backward()
want_a, want_b = a.clone().requires_grad_(), b.clone().requires_grad_()
want = torch.nn.functional.gelu(want_a, approximate="tanh") * want_b
want.sum().backward()
off = lambda got, exact: (got.detach().cpu() - exact.detach()).abs().max().item()
found["override"] = [off(z, want), off(x.grad, want_a.grad), off(y.grad, want_b.grad)]
found["silu_mul"] = off(opmux.ops.silu_mul(x.detach(), y.detach()), torch.nn.functional.silu(a) * b)
found["calls"] = list(geglu.calls)
found["chosen"] = {op: opmux.explain(op).chosen.impl_id for op in ("opmux::silu_mul", "opmux::rms_norm")}

# what the vendor does not implement
found["rms_norm"] = off(opmux.ops.rms_norm(x.detach(), torch.ones(16, device="acm"))[0],
                        torch.nn.functional.rms_norm(a, (16,), eps=1e-6))

# names in the namespace
from opmux.ops import LigerGELUMulFunction, acme_only, geglu_backward, geglu_forward
found["names"] = [LigerGELUMulFunction is geglu.LigerGELUMulFunction, geglu_forward is geglu.geglu_forward_vendor]
found["function"] = off(LigerGELUMulFunction.apply(x, y), want)
found["added"] = [off(acme_only(x), a + 1), "acme_only" in dir(opmux.ops)]
found["foreign"] = [m for m in sys.modules if m.startswith("liger_kernel")]
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folders are made by the document's own commands."""
    root = tmp_path_factory.mktemp("seed")
    (root / "tree").mkdir()
    commands = "mkdir -p _acme/ops && touch _acme/__init__.py && touch _acme/ops/__init__.py"
    subprocess.run(commands, shell=True, cwd=root / "tree", check=True)
    return follow(root, {"_acme": FOLDER}, PROGRAM, device="acm")


# ---- the directory --------------------------------------------------------------------------------------------------


def test_the_directory_has_the_documents_files():
    for name in ("README.md", "__init__.py", "registry.py", "_ascend/__init__.py", "_ascend/ops/__init__.py"):
        assert (BACKENDS / name).is_file(), name
    assert (BACKENDS / "_ascend/ops/geglu.py").is_file()  # the complete example


def test_the_registry_maps_a_device_to_its_vendor(ran):
    assert ran.registry == {"acm": "acme"}


# ---- how it works ---------------------------------------------------------------------------------------------------


def test_vendor_packages_are_imported_when_they_are_needed(ran):
    assert ran.before == [] and {"opmux.backends._acme", "opmux.backends._ascend"} <= set(ran.packages)


def test_a_package_registers_itself_by_ligers_names(ran):
    assert ran.registry["acm"] == "acme" and ran.said == []
    assert ran.foreign == []  # gone once the package is imported


def test_the_current_device_is_detected(ran):
    assert ran.device == "acm"


# ---- operators ------------------------------------------------------------------------------------------------------


def test_an_autograd_function_replaces_forward_and_backward(ran):
    assert max(ran.override) < 1e-5 and ran.calls[:2] == ["forward", "backward"]


def test_a_renamed_function_replaces_the_default(ran):
    assert ran.silu_mul < 1e-6 and "silu_mul" in ran.calls
    assert ran.chosen["opmux::silu_mul"] == "default.flagos.acme"


def test_unimplemented_operators_use_the_default(ran):
    assert ran.rms_norm < 1e-5 and ran.chosen["opmux::rms_norm"] == "default.flagos"


def test_exports_are_in_the_namespace_under_their_names(ran):
    assert ran.names == [True, True] and ran.function < 1e-5


def test_a_vendor_may_add_operators(ran):
    assert ran.added == [0.0, True]
