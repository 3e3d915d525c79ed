"""Four vendors' chips, each simulated in its own process: they are found, their vendor's ops run, and a model trains on
them.
"""

from __future__ import annotations

import textwrap

import pytest

CHIPS = {"npu": "ascend", "mlu": "cambricon", "musa": "mthreads", "gcu": "enflame"}

# A vendor package as somebody would write it for such a device; `two` is the chip's second generation.
PACKAGE = {
    "__init__.py": """
        import torch
        from opmux.backends import VendorInfoBase

        DEVICE = torch._C._get_privateuse1_backend_name()
        ARCH_MAP = {"acme2": "two"}
        vendor_info = VendorInfoBase(vendor_name="acme", device_name=DEVICE, dispatch_key="PrivateUse1")


        def arch_of(index):
            return getattr(torch, DEVICE).get_device_properties(index).arch
    """,
    "ops/__init__.py": """
        from backend_utils import Autograd

        from .both import log1p, silu_mul, twice

        __all__ = ["silu_mul", "twice"]


        def get_specific_ops():
            return (("log1p", log1p, Autograd.disable),)


        def get_unused_ops():
            return ("cumsum", "sin")
    """,
    "ops/both.py": """
        import torch

        calls = []


        def silu_mul(a, b):
            calls.append("silu_mul")
            return torch.nn.functional.silu(a) * b


        def log1p(self):
            calls.append("log1p")
            return torch.log(self + 1)


        def twice(x):
            return x + x
    """,
    "two/__init__.py": "",
    "two/ops/__init__.py": """
        import torch

        from ...ops.both import calls

        __all__ = ["silu_mul"]


        def silu_mul(a, b):
            calls.append("silu_mul of two")
            return torch.nn.functional.silu(a) * b
    """,
}

PROGRAM = """
import importlib, json, sys
import torch
import opmux
from opmux.backends import infer_device, register_vendor
from opmux.machine import devices
from opmux.tools import coverage, llama

device = torch._C._get_privateuse1_backend_name()
size = llama.LlamaSize(dim=16, layers=1, heads=2, kv_heads=1, hidden=32, batch=1, context=8)
has = lambda op: torch._C._dispatch_has_kernel_for_dispatch_key(op, "PrivateUse1")
said = {"vendor": devices.vendor_of(device).name, "infer": infer_device(), "before": has("aten::log1p")}


def train(where):
    model = llama.build(size, llama.PLAIN, 0, torch.device(where), torch.float32)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in llama.batches(size, 3, 0):
        adam.zero_grad()
        loss = llama.loss_of(model, batch.to(where))
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


said["cpu"] = train("cpu")
said["enabled"] = len(opmux.enable(mode="all"))
with coverage.watch(device) as seen:
    said["ours"] = train(device)
seen.show()
said["ran on"] = {row.op: row.where for row in reversed(seen.rows)}
said["registered"] = has("aten::log1p")
opmux.disable()
said["removed"] = has("aten::log1p")

sys.path.insert(0, PLACE)
register_vendor(importlib.import_module("acme_chip").vendor_info)
said["after"] = devices.vendor_of(device).name
x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)
agree = lambda a, b: torch.allclose(a.cpu(), b, atol=1e-6)
right = agree(opmux.ops.silu_mul(x, y), torch.nn.functional.silu(x.cpu()) * y.cpu())
calls = sys.modules["acme_chip.ops.both"].calls
said["overridden"] = right, calls[:]
said["added"] = agree(opmux.ops.twice(x), x.cpu() * 2), "twice" in dir(opmux.ops)
why = opmux.explain("cumsum", x, -1)
said["unused"] = why.chosen.impl_id, [v.reason for v in why.verdicts if v.stage == "vendor"]
calls.clear()
opmux.enable(mode="all")
z = x.abs().requires_grad_()
torch.log1p(z).sum().backward()
said["row"] = calls[:], agree(z.grad, 1 / (1 + z.detach().cpu())), "sin" in opmux.enabled_ops()
opmux.disable()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vendors")
    for name, text in PACKAGE.items():
        file = folder / "acme_chip" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
    return folder


@pytest.mark.few(1)
@pytest.mark.parametrize("device", CHIPS)
def test_a_plugin_vendor_works_on_a_simulated_chip(simulated, package, device):
    arch = "acme2" if device in ("mlu", "gcu") else None
    report = simulated(device, PROGRAM.replace("PLACE", repr(str(package))), arch=arch)
    assert (report["vendor"], report["infer"], report["after"]) == (CHIPS[device], device, "acme")
    assert (report["before"], report["registered"], report["removed"]) == (False, True, False)
    assert report["enabled"] > 500
    assert report["ours"] == pytest.approx(report["cpu"], rel=1e-5)
    ours = {op for op, where in report["ran on"].items() if where in ("default Triton", "the chip's own kernels")}
    assert {"_softmax", "_fused_rms_norm", "silu", "mul.Tensor", "_log_softmax_backward_data"} <= ours
    assert "mm" in ours, report["ran on"]
    assert report["overridden"] == [True, ["silu_mul of two" if arch else "silu_mul"]]
    assert report["added"] == [True, True]
    chosen, reasons = report["unused"]
    assert chosen == "reference.torch" and "acme declares it unused" in reasons[0] and "ops/__init__.py" in reasons[0]
    assert report["row"] == [["log1p"], True, False]
