"""The ATen overrides on a real GPU: PyTorch's own samples, and the checks of `enable`, `use` and `native`.

Hundreds of kernels are compiled: `pytest -n 16 tests/gpu/test_gpu_aten.py`.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
pytest.importorskip("expecttest")  # PyTorch's samples import it

sys.path.insert(0, str(Path(__file__).parents[1] / "faces"))
opinfo = importlib.import_module("opinfo")
checks = importlib.import_module("engine_checks")

# Listing PyTorch's samples takes seconds: skip it without a GPU.
OPS = [opinfo.name_of(op) for op in opinfo.database()] if torch.cuda.is_available() else ["none"]


def agrees(op, dtypes, limit=None):
    report = opinfo.run("cuda", dtypes, [op], limit)
    assert not report.unexpected(), "\n".join(map(str, report.unexpected()))


@pytest.mark.parametrize("op", OPS)
def test_pytorchs_samples_agree_in_float32_and_bfloat16(op):
    agrees(op, (torch.float32, torch.bfloat16))


@pytest.mark.parametrize("op", OPS)
def test_pytorchs_samples_agree_in_other_dtypes(op, request):
    others = (torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
    agrees(op, others, None if request.config.getoption("--slow") else 4)


@pytest.mark.parametrize("name", checks.CHECKS)
def test_each_engine_check_passes(name):
    failed = checks.run("cuda", [name])
    assert not failed, failed[name]
