"""Follows the first document, a vendor's folder for FlagGems, step by step: one test for each promise.

The folder is a copy of NVIDIA's `__init__.py` with three arguments changed, two tile files, and `ops/` as in the
document. One program uses it on a simulated device of the type that the folder names.
"""

from __future__ import annotations

import pytest
from vendor_folder import BACKENDS, copied_init, follow

pytest.importorskip("triton")


HEURISTICS = """
HEURISTICS_CONFIGS = {
    "softmax.rows": {"BLOCK_M": lambda args: 2 if args["n"] <= 1024 else 1, "num_warps": 8},
}
"""

TUNE = """
softmax.rows:
- gen: true
  param_map:
    META:
      BLOCK_M: block_m
    num_warps: warps
  block_m:
  - 1
  - 4
  warps:
  - 4
  - 8
"""

ADD = '''
"""The vendor's add, in Triton; it counts its calls."""
import torch
import triton
import triton.language as tl

calls = []


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    y = tl.load(y_ptr + o, mask=o < n)
    tl.store(out_ptr + o, x + alpha * y, mask=o < n)


def add(A, B, *, alpha=1):
    calls.append(type(B).__name__)
    A, B = (t.contiguous() for t in torch.broadcast_tensors(A, B))
    out = torch.empty_like(A)
    add_kernel[(triton.cdiv(A.numel(), 64),)](A, B, out, alpha, A.numel(), BLOCK=64)
    return out
'''

GELU = '''
"""The vendor's gelu, with a gradient of its own that can be told from torch's."""
import torch

calls = []


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, approximate):
        calls.append("forward")
        ctx.save_for_backward(A)
        return 0.5 * A * (1 + torch.erf(A * 0.5**0.5))

    @staticmethod
    def backward(ctx, dy):
        calls.append("backward")
        return torch.full_like(dy, 7.0), None


def gelu(A, *, approximate="none"):
    return Gelu.apply(A, approximate)
'''

OPS = """
from backend_utils import Autograd

from . import add, gelu

def get_specific_ops():
    return (
        ("add.Tensor", add.add, Autograd.disable),
        ("gelu", gelu.gelu, Autograd.enable),
    )


def get_unused_ops():
    return ("cumsum", "cos")
"""

FOLDER = {
    "__init__.py": copied_init(),
    "heuristics_config_utils.py": HEURISTICS,
    "tune_configs.yaml": TUNE,
    "ops/__init__.py": OPS,
    "ops/add.py": ADD,
    "ops/gelu.py": GELU,
}
# A vendor whose lists of ops are empty.
EMPTY = {
    "__init__.py": copied_init().replace('"acme"', '"bolt"').replace("acme-smi", "bolt-smi"),
    "ops/__init__.py": "def get_specific_ops():\n    return ()\n\n\ndef get_unused_ops():\n    return ()\n",
}

PROGRAM = """
import torch.nn.functional as F
from opmux.backends import infer_device
from opmux.kernels import softmax
from opmux.kernels.lib import config
from opmux.machine import devices, vendor_ops, vendors
from opmux.tuning import tile_files

found["vendors"] = {n: [p.info.vendor_name, p.device, p.info.device_query_cmd] for n, p in vendors.known().items()}
found["device"], found["vendor"] = infer_device(), devices.vendor_of("npu").name
chip = devices.Chip("acme", None)
with config.as_on(chip):
    chosen = {n: config.tunables["softmax.rows"].look(n=n, dtype=torch.float32) for n in (1024, 4096)}
found["heuristics"] = {n: [c.tiles["BLOCK_M"], c.tiles.threads, c.source] for n, c in chosen.items()}
found["autotune"] = tile_files.candidates(chip, "softmax.rows").given

names = opmux.enable()
found["enabled"] = [n for n in names if n.partition(".")[0].rstrip("_") in ("add", "gelu", "cumsum", "cos", "sin")]
from opmux.backends._acme.ops import add, gelu
x = torch.linspace(-2, 2, 6, device="npu")
found["add"], found["add_calls"] = (x + x).tolist(), list(add.calls)
found["alpha"] = torch.add(x, x, alpha=3).tolist()
found["numbers"] = [(x + 1).tolist(), torch.add(x, 1).tolist(), x.clone().add_(1).tolist()]
w = x.clone().requires_grad_()
torch.add(w, x, alpha=2).sum().backward()
found["add_gradient"] = w.grad.tolist()
w = x.clone().requires_grad_()
y = F.gelu(w)
y.sum().backward()
found["gelu"] = (y.detach().cpu() - F.gelu(x.cpu())).abs().max().item()
found["gelu_calls"], found["gelu_gradient"] = list(gelu.calls), w.grad.tolist()
found["cumsum"] = (torch.cumsum(x, 0).cpu() - torch.cumsum(x.cpu(), 0)).abs().max().item()
found["cos"] = (torch.cos(x).cpu() - torch.cos(x.cpu())).abs().max().item()
found["why"] = [v.reason for v in opmux.explain("opmux::cumsum", x, 0).verdicts if v.status == "refused"]
found["overloads"] = {op: str(opmux.explain(op, x, *rest)) for op, *rest in (("aten::cumsum", 0), ("aten::cos",))}
bolt = vendor_ops.read(vendors.get("bolt"), None)
found["empty"] = [len(bolt.rows), len(bolt.unused), len(bolt.impls)]
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The output of PROGRAM on a machine on which only this vendor's query command succeeds."""
    root = tmp_path_factory.mktemp("seed")
    query = root / "bin" / "acme-smi"
    query.parent.mkdir()
    query.write_text("#!/bin/sh\nexit 0\n")
    query.chmod(0o755)
    return follow(root, {"_acme": FOLDER, "_bolt": EMPTY}, PROGRAM, PATH=f"{query.parent}:/usr/bin:/bin")


# ---- step 1 and 2: the folder ---------------------------------------------------------------------------------------


def test_a_folder_named_after_the_vendor_is_a_vendor(report):
    assert report.vendors["acme"] == ["acme", "npu", "acme-smi"] and report.said == []


def test_nvidias_folder_exists_as_an_example():
    for name in ("__init__.py", "heuristics_config_utils.py", "tune_configs.yaml", "ops/__init__.py"):
        assert (BACKENDS / "_nvidia" / name).is_file(), name


# ---- step 2.1: __init__.py ------------------------------------------------------------------------------------------


def test_device_name_is_the_device_of_this_machine(report):
    assert report.device == "npu"


def test_the_query_command_decides_between_vendors_of_one_device_type(report):
    assert {n for n, v in report.vendors.items() if v[1] == "npu"} == {"acme", "bolt", "ascend"}
    assert report.vendor == "acme"


# ---- steps 2.2 and 2.3: tiles ---------------------------------------------------------------------------------------


def test_heuristics_set_the_params_of_a_kernel(report):
    assert report.heuristics == {"1024": [2, 256, "heuristics"], "4096": [1, 256, "heuristics"]}


def test_tune_configs_are_the_params_to_autotune(report):
    assert report.autotune == [{"BLOCK_M": m, "num_warps": w} for m in (1, 4) for w in (4, 8)]


# ---- step 2.4: ops --------------------------------------------------------------------------------------------------


def test_a_row_replaces_the_aten_operation(report):
    assert report.add == pytest.approx([-4.0, -2.4, -0.8, 0.8, 2.4, 4.0]) and report.add_calls == ["Tensor"]
    assert report.alpha == pytest.approx([-8.0, -4.8, -1.6, 1.6, 4.8, 8.0])
    assert {"add.Tensor", "gelu"} <= set(report.enabled)


def test_a_row_that_only_takes_tensors_does_not_break_numbers(report):
    assert report.numbers == [pytest.approx([-1.0, -0.2, 0.6, 1.4, 2.2, 3.0])] * 3


def test_autograd_disable_uses_torchs_gradient(report):
    assert report.add_gradient == [1.0] * 6


def test_autograd_enable_uses_the_functions_own_gradient(report):
    assert report.gelu < 1e-6 and report.gelu_calls == ["forward", "backward"]
    assert report.gelu_gradient == [7.0] * 6


def test_unused_ops_are_left_to_torch(report):
    assert not [n for n in report.enabled if n.startswith(("cumsum", "cos"))] and "sin" in report.enabled
    assert report.cumsum < 1e-6 and report.cos < 1e-6
    assert any("acme declares it unused" in why for why in report.why)
    for text in report.overloads.values():
        assert "acme declares it unused" in text and "_acme/ops/__init__.py" in text
        assert "opmux.enable" not in text  # enable() would not change the choice


def test_both_lists_may_be_empty(report):
    assert report.empty == [0, 0, 0]
