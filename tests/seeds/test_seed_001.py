"""Follows the second document, a new FlagGems backend that lists its ops in `__all__`: one test for each promise.

A single program uses the backend's folder on a simulated device.
"""

from __future__ import annotations

import pytest
from vendor_folder import copied_init, follow

from opmux.backends import BadVendor, VendorInfoBase

pytest.importorskip("triton")


ADD = """
import torch

calls = []


def add(A, B, *, alpha=1):
    calls.append(alpha)
    return torch.sub(A, B, alpha=-alpha)
"""

GELU = """
import torch

calls = []


def gelu(A, *, approximate="none"):
    calls.append(approximate)
    if approximate == "tanh":
        return 0.5 * A * (1 + torch.tanh(0.7978845608028654 * (A + 0.044715 * A**3)))
    return 0.5 * A * (1 + torch.erf(A * 0.5**0.5))
"""

OPS = """
from .add import add
from .gelu import gelu
__all__= ["add", "gelu"]
"""

FOLDER = {
    "__init__.py": copied_init().replace("    driver_files=", '    dispatch_key="PrivateUse1",\n    driver_files='),
    "heuristics_config_utils.py": "HEURISTICS_CONFIGS = {'activation.flat': {'BLOCK': 256}}\n",
    "tune_configs.yaml": "activation.flat:\n- META:\n    BLOCK: 512\n  num_warps: 4\n",
    "ops/__init__.py": OPS,
    "ops/add.py": ADD,
    "ops/gelu.py": GELU,
}

PROGRAM = """
import sys
import torch.nn.functional as F
from opmux.backends import VENDOR_REGISTRY
from opmux.kernels import activation
from opmux.kernels.lib import config
from opmux.machine import devices, vendors
from opmux.tuning import tile_files

info = vendors.get("acme").info
found["info"] = [info.vendor_name, info.device_name, info.device_query_cmd, info.dispatch_key, info.key]
found["active"] = VENDOR_REGISTRY["npu"].vendor_name
chip = devices.Chip("acme", None)
with config.as_on(chip):
    look = config.tunables["activation.flat"].look(dtype=torch.float32)
found["heuristics"] = [look.tiles["BLOCK"], look.source]
found["autotune"] = tile_files.candidates(chip, "activation.flat").given

has = lambda op: torch._C._dispatch_has_kernel_for_dispatch_key(op, "PrivateUse1")
before = has("aten::gelu")
opmux.enable()
found["registered"] = [before, has("aten::gelu"), has("aten::add.Tensor")]
from opmux.backends._acme.ops import add, gelu
adds, gelus = sys.modules[add.__module__].calls, sys.modules[gelu.__module__].calls
x = torch.linspace(-3, 3, 7, device="npu")
found["add"] = [(x + x).tolist(), torch.add(x, x, alpha=2).tolist(), list(adds)]
found["number"] = (x + 1).tolist()
off = lambda y, **how: (y.cpu() - F.gelu(x.cpu(), **how)).abs().max().item()
found["erf"], found["tanh"] = off(F.gelu(x)), off(F.gelu(x, approximate="tanh"), approximate="tanh")
found["module"], found["gelus"] = off(torch.nn.GELU()(x)), list(gelus)
w = x.clone().requires_grad_()
F.gelu(w).sum().backward()
v = x.cpu().requires_grad_()
F.gelu(v).sum().backward()
found["gradient"] = (w.grad.cpu() - v.grad).abs().max().item()
found["chosen"] = {op: opmux.explain(op, *args).chosen.impl_id
                   for op, args in (("aten::gelu.default", (x,)), ("aten::add.Tensor", (x, x)))}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return follow(tmp_path_factory.mktemp("seed"), {"_acme": FOLDER}, PROGRAM, OPMUX_VENDOR="acme")


# ---- 2 and 3: the directory -----------------------------------------------------------------------------------------


def test_a_directory_named_after_the_vendor_is_a_backend(report):
    assert report.active == "acme" and report.said == []


def test_a_copied_init_needs_only_its_own_properties(report):
    assert report.info[:3] == ["acme", "npu", "acme-smi"]


def test_the_dispatch_key_is_where_operators_are_registered(report):
    assert report.info[3:] == ["PrivateUse1", "PrivateUse1"] and report.registered == [False, True, True]


def test_the_dispatch_key_is_optional_and_checked():
    assert VendorInfoBase("acme", "npu", "acme-smi").key == "PrivateUse1"
    with pytest.raises(BadVendor, match=r"dispatch_key = 'PrivatUse1'\. Allowed: .*did you mean 'PrivateUse1'\?"):
        VendorInfoBase("acme", "npu", "acme-smi", dispatch_key="PrivatUse1")


def test_heuristics_are_configured_in_their_file(report):
    assert report.heuristics == [256, "heuristics"]


def test_autotune_parameters_are_configured_in_their_file(report):
    assert report.autotune == [{"BLOCK": 512, "num_warps": 4}]


# ---- 3.4: ops -------------------------------------------------------------------------------------------------------


def test_an_exported_add_is_atens_add(report):
    double, triple, calls = report.add
    assert double == [2.0 * n for n in range(-3, 4)] and triple == [3.0 * n for n in range(-3, 4)]
    assert calls == [1, 2] and report.number == [float(n) for n in range(-2, 5)]
    assert report.chosen["aten::add.Tensor"] == "default.flagos.acme"


def test_an_exported_gelu_is_atens_gelu(report):
    """Tests gelu's default (erf) and approximate="tanh"."""
    assert report.gelus == ["none", "tanh", "none"] and report.chosen["aten::gelu.default"] == "default.flagos.acme"
    assert report.erf < 1e-6 and report.tanh < 1e-6 and report.module < 1e-6


def test_an_exported_forward_keeps_torchs_gradient(report):
    assert report.gradient < 1e-5
