"""The examples of docs/extending.md, applied to a copy of the repository: each works as the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hunks
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
DIFFS = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
FUSED, FAMILY, POINTWISE, VENDOR, SETTING = DIFFS


def files_of(diff):
    return re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository with all diffs of the page applied."""
    copy = tmp_path_factory.mktemp("extended")
    for name in ("src", "tests", "docs", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for diff in DIFFS:
        applied = subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=copy, capture_output=True)
        assert not applied.returncode, f"{files_of(diff)} of {PAGE.name}: {applied.stderr}"
    return copy


def python(copy, *args, **env):
    env = {**os.environ, "PYTHONPATH": str(copy / "src"), **env}
    result = subprocess.run([sys.executable, *args], cwd=copy, env=env, capture_output=True, text=True)
    assert not result.returncode, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_a_fused_op_needs_a_spec_a_kernel_and_a_test():
    assert files_of(FUSED) == ["src/opmux/specs/norm.py", "src/opmux/kernels/norm.py", "tests/ops/test_reference.py"]


def test_a_new_family_needs_a_spec_a_kernel_and_a_test_file():
    assert files_of(FAMILY) == [
        "src/opmux/specs/soft_cap.py",
        "src/opmux/kernels/soft_cap.py",
        "tests/ops/test_soft_cap.py",
    ]


def test_an_aten_op_needs_a_row_and_a_function():
    assert files_of(POINTWISE) == ["src/opmux/specs/pointwise.py", "src/opmux/kernels/pointwise.py"]


def test_a_vendors_kernel_needs_one_file():
    assert len(files_of(VENDOR)) == 1


def test_a_setting_needs_a_line_and_its_use():
    assert files_of(SETTING) == ["src/opmux/core/knobs.py", "src/opmux/core/log.py"]


FUSED_PROGRAM = """
import torch, opmux
from torch.nn.functional import layer_norm

def leaves():
    torch.manual_seed(0)
    shapes = (5, 37), (5, 37), (37,), (37,)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]

x, r, w, b = given = leaves()
torch.stack((layer_norm(x + r, (37,), w, b), x + r)).square().sum().backward()
for prefer in ("flagos", "reference"):
    mine = leaves()
    with opmux.policy(prefer=prefer):
        y, s, *_ = opmux.ops.add_layer_norm(*mine)
        torch.stack((y, s)).square().sum().backward()
    for a, b in zip(mine, given, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
compiled = torch.compile(lambda *a: opmux.ops.add_layer_norm(*a)[0], backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(*mine), y)
print("same gradients")
"""


def test_the_fused_op_works_with_gradients(copy):
    assert "same gradients" in python(copy, "-c", FUSED_PROGRAM, TRITON_INTERPRET="1")


@pytest.mark.slow
def test_the_fused_op_passes_the_tests_generated_from_its_spec(copy):
    output = python(
        copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "add_layer_norm or soft_cap or special_ndtri",
        "tests/ops", "tests/kernels", "tests/core",
    )  # fmt: skip
    assert int(re.search(r"(\d+) passed", output)[1]) > 40


@pytest.mark.slow
def test_the_name_of_the_fused_op_selects_the_tests_that_compile_its_kernels(copy):
    words = ("--triton", "compile", "-k", "add_layer_norm", "tests/kernels")
    output = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    assert int(re.search(r"(\d+) passed", output)[1]) >= 2


FAMILY_PROGRAM = """
import torch, opmux
from opmux.kernels import soft_cap as kernels

given = torch.linspace(-5, 5, 37, requires_grad=True)
y = 0.75 * torch.tanh(given / 0.75)
y.square().sum().backward()
mine = given.detach().clone().requires_grad_()
opmux.ops.soft_cap(mine, 0.75).square().sum().backward()
torch.testing.assert_close(mine.grad, given.grad)
torch.testing.assert_close(kernels.soft_cap(given.detach(), 0.75), y.detach())
torch.testing.assert_close(kernels.soft_cap_bwd(2 * y.detach(), given.detach(), 0.75), given.grad)
print("same values and gradients")
"""


def test_the_op_with_its_own_kernel_works_with_gradients(copy):
    assert "same values and gradients" in python(copy, "-c", FAMILY_PROGRAM, TRITON_INTERPRET="1")


def test_the_new_family_has_a_test_file_and_without_it_the_message_names_it(copy):
    words = ("-q", "-p", "no:cacheprovider", "tests/arch/test_selection.py", "-k", "every_family_has_a_test_file")
    python(copy, "-m", "pytest", *words)
    file = copy / "tests/ops/test_soft_cap.py"
    text = file.read_text()
    file.unlink()
    try:
        with pytest.raises(AssertionError, match=r"Add tests/ops/test_soft_cap.py.*NAMED of tests/shared/touched.py"):
            python(copy, "-m", "pytest", *words)
    finally:
        file.write_text(text)


def test_the_line_numbers_of_the_diffs_are_those_of_the_files(tmp_path):
    stale = "--- a/f.py\n+++ b/f.py\n@@ -1,2 +1,3 @@\n b\n+x\n c\n@@ -7,1 +8,0 @@\n-e\n"
    (tmp_path / "f.py").write_text("a\nb\nc\nd\ne\n")
    renumbered = hunks.renumbered(stale, tmp_path)
    assert re.findall("^@@.*", renumbered, re.MULTILINE) == ["@@ -2,2 +2,3 @@", "@@ -5,1 +6,0 @@"]
    (tmp_path / "f.py").write_text("no such lines\n")
    assert hunks.renumbered(stale, tmp_path) == stale
    assert all(hunks.renumbered(diff) == diff for diff in DIFFS)


def test_docs_and_stubs_get_the_new_op_and_the_new_setting(copy):
    python(copy, "tools/docs.py")
    assert "add_layer_norm" in (copy / "docs/ops.md").read_text()
    assert "def add_layer_norm(" in (copy / "src/opmux/ops.pyi").read_text()
    assert "OPMUX_LOG_TIME" in (copy / "docs/settings.md").read_text()


POINTWISE_PROGRAM = """
import torch
from opmux.kernels.pointwise import ROWS

p = torch.tensor([[0.0, 1e-30, 1e-4, 0.3], [0.5, 0.9999, 1.0, 2.0]])
for given in (p, p.double(), p.T):
    got = ROWS["special_ndtri"].call(given)
    assert got.stride() == given.stride()
    torch.testing.assert_close(got, torch.special.ndtri(given), rtol=2e-5, atol=1e-5, equal_nan=True)
print("same values")
"""


def test_the_pointwise_op_matches_torch(copy):
    assert "same values" in python(copy, "-W", "ignore", "-c", POINTWISE_PROGRAM, TRITON_INTERPRET="1")


@pytest.mark.slow
def test_the_vendors_kernel_conforms_on_a_simulated_device(copy):
    output = python(copy, "-m", "opmux", "conform", "--vendor", "mthreads", "--op", "tanh", COLUMNS="200")
    assert "default.flagos.mthreads" in output and "nothing failed" in output


SETTING_PROGRAM = "import torch, opmux; opmux.ops.silu_mul(torch.ones(4), torch.ones(4))"


def test_the_setting_is_used_and_shown(copy):
    output = python(copy, "-c", SETTING_PROGRAM, OPMUX_LOG_LEVEL="INFO", OPMUX_LOG_TIME="1")
    assert re.search(r"^\d{4}-\d\d-\d\d [\d:,]+ \[opmux ", output, re.MULTILINE)
    assert "OPMUX_LOG_TIME" in python(copy, "-m", "opmux", "doctor", COLUMNS="200", OPMUX_LOG_TIME="1")
