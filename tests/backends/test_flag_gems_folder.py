"""A vendor's folder that was written for FlagGems works unchanged: its modules import `flag_gems`."""

from __future__ import annotations

import importlib.util

import pytest
from vendor_folder import follow

from opmux.tuning import flag_gems_tiles

pytest.importorskip("triton")

FOLDER = {
    "__init__.py": """
from backend_utils import VendorInfoBase

vendor_info = VendorInfoBase(
    vendor_name="acme",
    device_name="npu",
    device_query_cmd="acme-smi",
)

CUSTOMIZED_UNUSED_OPS = ("cos", "cumsum")

__all__ = ["*"]
""",
    "heuristics_config_utils.py": """
HEURISTICS_CONFIGS = {
    "softmax_inner": {"TILE_N": lambda args: 1024},
    "mm": {"EVEN_K": lambda args: True},
    "softmax.rows": {"BLOCK_M": lambda args: 2},
}
""",
    "tune_configs.yaml": """
attention:
- META:
    BLOCK_M: 32
  num_warps: 4
softmax.rows:
- META:
    BLOCK_M: 4
  num_warps: 4
""",
    "ops/__init__.py": 'from .abs import abs\nfrom .mul import mul\n\n__all__ = ["abs", "mul"]\n',
    "ops/abs.py": """
import logging

import flag_gems
import torch
import triton
import triton.language as tl
from flag_gems import runtime
from flag_gems.runtime import torch_device_fn
from flag_gems.utils import libentry

logger = logging.getLogger(__name__)
calls = []


@libentry()
@triton.jit
def abs_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    tl.store(y_ptr + o, tl.where(x < 0, -x, x), mask=o < n)


def abs(A):
    logger.debug("GEMS ABS")
    calls.append((runtime.device.vendor_name, flag_gems.vendor_name))
    out = torch.empty_like(A)
    with torch_device_fn.device(A.device):
        abs_kernel[(triton.cdiv(A.numel(), 64),)](A, out, A.numel(), BLOCK=64)
    return out
""",
    "ops/mul.py": "import torch\n\n\ndef mul(A, B):\n    return torch.div(A, 1 / B)\n",
}

PROGRAM = """
from opmux.machine import devices
from opmux.machine.here import HERE
from opmux.tuning import tile_files

found["unused"] = sorted(HERE.ops("npu").unused)
opmux.enable(mode="all")
x = torch.linspace(-2, 2, 5, device="npu")
found["abs"], found["mul"] = x.abs().tolist(), (x * x).tolist()
found["calls"] = sys.modules["opmux.backends._acme.ops.abs"].calls
found["left"] = [name for name in sys.modules if name.partition(".")[0] == "flag_gems"]
chip = devices.Chip("acme", None)
for _ in range(2):
    found["tiles"] = [tile_files.heuristics(chip, "softmax.rows") is not None,
                      tile_files.candidates(chip, "softmax.rows").given]
"""

POINTWISE = """
import triton
from flag_gems.utils import pointwise_dynamic


@pointwise_dynamic(promotion_methods=[(0, "DEFAULT")])
@triton.jit
def abs_func(x):
    return x * (x > 0) - x * (x < 0)


calls = []


def abs(A):
    calls.append("pointwise_dynamic")
    return abs_func(A)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return follow(tmp_path_factory.mktemp("folder"), {"_acme": FOLDER}, PROGRAM, OPMUX_VENDOR="acme")


def test_functions_that_import_flag_gems_run(report):
    assert report.abs == [2.0, 1.0, 0.0, 1.0, 2.0] and report.mul[1:4:2] == [1.0, 1.0]
    assert report.calls == [["acme", "acme"]]


def test_the_name_flag_gems_is_served_only_while_the_folder_is_imported(report):
    assert report.left == []


def test_unused_ops_may_be_listed_in_the_package(report):
    assert report.unused == ["cos", "cumsum"]


def test_names_of_flag_gems_tiles_give_one_warning_for_each_file(report):
    assert report.tiles == [True, [{"BLOCK_M": 4, "num_warps": 4}]]
    heuristics, trials = sorted(line.partition("_acme/")[2] for line in report.said)
    assert heuristics.startswith("heuristics_config_utils.py: tiles of FlagGems' kernels are ignored.")
    assert heuristics.endswith("instead: mm: gemm.tiles, gemm.few; softmax_inner: softmax.rows, softmax.pieces")
    assert trials.startswith("tune_configs.yaml: ") and trials.endswith("instead: attention: attention.fwd")


def test_the_named_tunables_exist_and_are_not_taken_for_names_of_flag_gems():
    from opmux.kernels.lib import config
    from opmux.tools import tile_checks

    tile_checks.load()
    named = {name for ours in flag_gems_tiles.OURS for name in ours.split(", ")}
    assert named <= set(config.tunables)
    assert [name for name in config.tunables if flag_gems_tiles.ours_for(name) is not None] == []


@pytest.mark.skipif(
    importlib.util.find_spec("opmux.backends.pointwise_dynamic") is None, reason="needs FlagGems' pointwise_dynamic"
)
def test_a_pointwise_function_of_a_folder_runs(tmp_path):
    folder = FOLDER | {"ops/abs.py": POINTWISE}
    report = follow(tmp_path, {"_acme": folder}, PROGRAM, OPMUX_VENDOR="acme")
    assert report.abs == [2.0, 1.0, 0.0, 1.0, 2.0] and report.calls == ["pointwise_dynamic"]
