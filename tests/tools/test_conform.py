"""`opmux conform` reports every mistake; a fake vendor makes one of each kind. Also tests arguments, known gaps and the
page.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fresh
import pytest
import torch
from rich.console import Console

from opmux.core import specs
from opmux.core.spec import Sample, Tol
from opmux.faces.aten.schema import OverloadSchema
from opmux.tools.conform import command, gaps, page, report, rows
from opmux.tools.conform.checks import Tally, forward
from opmux.tools.conform.compare import difference, numbers
from opmux.tools.conform.plan import ConformPlan, Depth
from opmux.tools.conform.record import CHECKS, STATUSES, WHERE, CheckResult, ConformRecord, Covered
from opmux.tools.conform.rows import SampledCall
from opmux.tools.conform.samples import Watch, drawn, moved, shared_memory
from opmux.tools.conform.subject import Subject
from opmux.tools.conform.target import DEVICE, SIMULATED, find
from opmux.tools.simulator.launch import VARIABLE

SRC = Path(__file__).parents[2] / "src"
OWN = "default.flagos.acme"

PACKAGE = """
from opmux.backends import VendorInfoBase

vendor_info = VendorInfoBase("acme", "acm", "acme-smi")
"""

OPS = """
import os

import torch
from opmux.backends import Autograd
from opmux.core import NotSupported
from opmux.kernels.lib.config import Tiles, tunable
from opmux.specs import activation, softmax as family

__all__ = ["silu", "relu", "silu_mul", "softmax", "gelu", "qgelu", "srelu", "not_there", "dropout"]


def dropout(*args, **kwargs):
    raise NotSupported("no random numbers")


@tunable("acme.words")
def of_words(mode: str):
    return Tiles(threads=128)


def mm(self, mat2):
    return 2 * torch.einsum("ij,jk->ik", self, mat2)


def bmm(self, mat2):
    return torch.einsum("bij,bjk->bik", self, mat2)


def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    if alpha != 1:
        raise NotSupported("alpha is 1 here")
    self.add_(0)
    return beta * self + torch.einsum("ij,jk->ik", mat1, mat2)


def add(self, other, *, alpha=1):
    return torch.sub(self, other.to(self.dtype), alpha=-alpha)  # without type promotion


def mul(self, other):
    if not isinstance(other, torch.Tensor):
        raise RuntimeError("no numbers")
    return torch.div(self, 1 / other.to(self.device))


def packed_only(input, normalized_shape, weight, bias, eps):
    if not input.is_contiguous():
        raise RuntimeError("stride")
    return torch.ops.aten.native_layer_norm.default(input.contiguous(), normalized_shape, weight, bias, eps)


def get_specific_ops():
    return (
        ("mm", mm, Autograd.disable),
        ("bmm", bmm, Autograd.disable),
        ("add.Tensor", add, Autograd.disable),
        ("mul.Tensor", mul, Autograd.disable),
        ("addmm", addmm, Autograd.disable),
        ("native_layer_norm", packed_only, Autograd.disable),
        ("_nnpack_available", lambda: False, Autograd.disable),
    )


def silu(x):
    return activation.silu.reference(x)


def relu(x):
    return activation.relu.reference(x) + 1


def silu_mul(a, b):
    y = activation.silu_mul.reference(a, b)
    if a.stride() and a.is_contiguous():
        a.add_(1)
    return y


def softmax(x, dim=-1):
    return family.softmax.reference(x, dim)


softmax.dtypes = {torch.float32}


class gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return activation.gelu.reference(x)

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy


def qgelu(x):
    if x.dim() == 3:
        raise NotSupported("no three dimensions")
    if x.dim() == 4:
        os._exit(7)
    return activation.qgelu.reference(x)


def srelu(x):
    if x.dtype is torch.int32:
        return torch.zeros(x.shape, device=x.device)
    if x.dim() == 2:
        raise RuntimeError("too flat")
    return activation.srelu.reference(x)


def get_unused_ops():
    return ("log_softmax",)
"""

RULES = """
def rows(args):
    raise LookupError("no such chip")

HEURISTICS_CONFIGS = {"rope.rows": {"num_warps": rows}}
"""
TRIALS = """
moe.rows:
  - {num_warps: 7}
acme.words:
  - {num_warps: 4}
router.rowz:
  - {num_warps: 4}
"""

GAPS = """
[srelu.values]
reason = "two dimensions come with the next chip"

["sil?".values]
reason = "was wrong once"

[nosuchop.values]
reason = "of another version"
"""


def write_vendor(root: Path, *, entry_point: bool) -> None:
    package = root / "acme"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "ops" / "__init__.py").write_text(OPS)
    (package / "xfail.toml").write_text(GAPS)
    (package / "heuristics_config_utils.py").write_text(RULES)
    (package / "tune_configs.yaml").write_text(TRIALS)
    if entry_point:
        info = root / "opmux_acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opmux-acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[opmux.backends]\nacme = acme\n")


def conform(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run `opmux conform ...` in a new process that can import the vendor."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), str(root)]), **variables}
    command = [sys.executable, "-m", "opmux", "conform", *words]
    return fresh.run(command, env=env, cwd=root, timeout=300, warm=True)


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """Run over the vendor's ops without the checks that trace; return (process, data, page)."""
    root = tmp_path_factory.mktemp("acme")
    write_vendor(root, entry_point=True)
    ops = "silu relu silu_mul softmax gelu qgelu srelu log_softmax mm bmm addmm native_layer_norm".split()
    ops += ["add.Tensor", "mul.Tensor"]
    ops += ["_nnpack_available", "dropout"]
    checks = "load values mutation errors gradient".split()
    words = [w for o in ops for w in ("--op", o)] + [w for c in checks for w in ("--check", c)]
    result = conform(root, "--vendor", "acme", *words, "--json", "run.json", "--html", "run.html")
    assert result.returncode == 1, result.stderr
    return result, json.loads((root / "run.json").read_text()), (root / "run.html").read_text()


@pytest.fixture
def outcome(acme):
    return lambda op, check, impl=OWN: next(
        r for r in acme[1]["results"] if (r["op"], r["check"], r["impl"]) == (op, check, impl)
    )


# ---- one example of every mistake -----------------------------------------------------------------------------------


def test_the_first_line_says_that_the_device_is_simulated(acme):
    first = acme[0].stdout.splitlines()[0]
    assert first.startswith("acme on a SIMULATED acm: this machine has no such device")
    assert acme[1]["facts"]["how"] == "simulated"


def test_a_correct_op_passes_in_every_layout_and_dtype(outcome):
    right = outcome("silu", "mutation")
    layouts = len(list(specs.find("silu", ("opmux",)).samples(torch.float32, torch.device("cpu"))))
    assert right["status"] == "pass" and right["tried"] == layouts + 3
    assert outcome("silu", "gradient")["status"] == "pass" and outcome("silu", "errors")["status"] == "pass"


def test_a_wrong_result_is_reported_with_its_first_difference(acme, outcome):
    wrong = outcome("relu", "values")
    assert wrong["status"] == "fail" and wrong["dtype"] == "float32" and wrong["sample"] == "37"
    assert "y[0] is 1, expected 0" in wrong["reason"]
    assert outcome("relu", "values", "dispatch")["status"] == "fail"  # dispatch would run this impl too
    assert f"FAIL relu by {OWN} and so by dispatch: values float32 [37]" in acme[0].stdout


def test_a_written_argument_is_reported(outcome):
    wrong = outcome("silu_mul", "mutation")
    assert wrong["status"] == "fail" and wrong["reason"].startswith("a was written: element 0 of a's memory was ")
    assert outcome("silu_mul", "values")["status"] == "pass"


def test_an_unsupported_dtype_is_reported_but_does_not_fail(acme, outcome):
    result = outcome("softmax", "values")
    assert result["status"] == "pass" and result["failed"] == 0
    refused = {d: r["stage"] for r in result["refusals"] for d in r["dtypes"]}
    assert refused == dict.fromkeys(("bfloat16", "float16", "float64"), "dtype")
    assert "takes float32; the first tensor is bfloat16" in acme[0].stdout


def test_a_wrong_gradient_is_reported_although_results_are_right(outcome):
    assert outcome("gelu", "values")["status"] == "pass"
    wrong = outcome("gelu", "gradient")
    assert wrong["status"] == "fail" and wrong["reason"].startswith("dx[0] is ")


def test_an_error_is_reported_with_the_line_of_the_vendors_file(acme, outcome):
    line = OPS.splitlines().index('        raise RuntimeError("too flat")') + 1
    wrong = outcome("srelu", "values")
    assert re.search(rf"^raised RuntimeError: too flat \(at .*/acme/ops/__init__.py:{line}\)$", wrong["reason"])
    wrong = outcome("native_layer_norm", "values")
    assert re.search(r"raised RuntimeError: stride \(at .*/acme/ops/__init__.py:\d+\)$", wrong["reason"])


def test_the_report_counts_failed_samples(acme, outcome):
    wrong = outcome("relu", "values")
    counts = f"the first of {wrong['failed']} failures in {wrong['tried']} samples"
    assert f"FAIL relu by {OWN} and so by dispatch: values float32 [37], {counts}" in acme[0].stdout


@pytest.mark.parametrize(
    ("how", "words"), [(SIMULATED, "has not written this element"), (DEVICE, "may have any value")]
)
def test_the_report_says_what_nan_means(how, words):
    record = ConformRecord({"how": how, "vendor": "acme", "depth": "quick", "device": "acm:0"})
    record.results = [CheckResult("relu", "opmux::relu", "activation", OWN, True, "values", "fail", tried=1, failed=1)]
    record.results[0].reason = "y[0] is nan, expected 1 within 0; 1 of 1 numbers are too far, 1 of them are NaN"
    assert words in printed(record)
    record.results[0].reason = "y[0] is 2, expected 1 within 0; 1 of 1 numbers are too far, by up to 1"
    assert "NaN" not in printed(record)


def printed(record: ConformRecord) -> str:
    console = Console(width=400, file=io.StringIO())
    console.print(report.report(record, []))
    return console.file.getvalue()


def test_a_run_on_the_cpu_says_that_no_triton_kernel_was_checked():
    facts = {"how": DEVICE, "vendor": "cpu", "depth": "quick", "device": "cpu", "ops": ["rope_qk", "a b"]}
    record = ConformRecord(facts)
    key = ("rope", "dispatch", False, "values")
    record.results = [
        CheckResult("rope_qk", "opmux::rope_qk", *key, tried=1, ran=["reference.torch"]),
        CheckResult("silu", "opmux::silu", *key, tried=1, ran=["cpp.cpu", "reference.torch"]),
    ]
    text = printed(record)
    assert "no kernel of rope_qk was checked: the reference itself ran here, compared with itself" in text
    assert "opmux conform --vendor nvidia --device cpu --op rope_qk --op 'a b'" in text
    assert report.without_a_kernel(record)[0] in page.page(replace(record, facts=facts | {"where": "", "date": ""}))
    record.facts = facts | {"how": SIMULATED}
    record.results[0].ran = ["default.flagos"]
    assert report.without_a_kernel(record) == []


def test_an_impl_whose_library_is_not_installed_is_refused_without_dispatch_too(cli, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(command, "cores", lambda: 1)
    words = "conform --vendor nvidia --device cpu --op opmux::silu_mul --check values --sample 37 --json -"
    result = cli(*words.split())
    assert result.exit_code == 0, result.output
    refused = {r["impl"]: r["reason"] for r in json.loads(result.stdout)["results"] if r["status"] == "refused"}
    if not any(importlib.util.find_spec(name) for name in ("liger_kernel", "flag_gems")):
        assert refused["vendor.nvidia.liger_kernel"] == "library: liger_kernel is not installed"


def test_an_impl_that_kills_its_process_only_fails_its_own_check(outcome):
    dead = outcome("qgelu", "values")
    assert dead["status"] == "fail" and "took its process down (exit code 7)" in dead["reason"]
    assert outcome("qgelu", "values", "dispatch")["status"] == "pass"  # the op has a single sample, with one dimension


def test_accepted_invalid_arguments_are_reported(outcome):
    wrong = outcome("srelu", "errors")
    assert wrong["status"] == "fail" and wrong["sample"] == "x: int32"
    assert wrong["reason"].startswith("returned float32[37] on acm:0; expected BadArgument")


def test_a_name_missing_from_the_package_fails(outcome):
    wrong = outcome("(package)", "load", "acme")
    assert wrong["status"] == "fail" and "__all__ has 'not_there', which the module does not" in wrong["reason"]


def test_a_row_with_a_wrong_result_fails(acme, outcome):
    wrong = outcome("mm", "values")
    assert wrong["status"] == "fail" and wrong["own"] and wrong["sample"] == "mm 0"
    assert "25 of 25 numbers are too far" in wrong["reason"]
    assert wrong["reproduce"].endswith("--op aten::mm --dtype float32 --check values --sample 'mm 0'")
    assert f"FAIL mm by {OWN}: values float32 [mm 0]" in acme[0].stdout


def test_a_correct_row_passes_and_a_declining_row_is_refused(outcome):
    assert outcome("bmm", "values")["status"] == "pass" and outcome("bmm", "values")["tried"] > 10
    result = outcome("addmm", "values")
    assert result["status"] == "pass" and [r["reason"] for r in result["refusals"]] == ["alpha is 1 here"]


def test_a_row_that_writes_its_argument_fails(outcome):
    wrong = outcome("addmm", "mutation")
    assert wrong["status"] == "fail" and wrong["reason"].startswith("self was written")


def test_a_row_is_also_checked_with_other_strides(outcome):
    wrong = outcome("native_layer_norm", "values")
    assert wrong["status"] == "fail" and "transposed" in wrong["sample"] and "stride" in wrong["reason"]
    assert wrong["failed"] < wrong["tried"]


def test_a_row_is_checked_with_mixed_types_and_numbers(acme, outcome):
    """`add` computes in the dtype of its first argument. The samples of OpInfo pass, because their dtypes are equal."""
    wrong = outcome("add.Tensor", "values")
    assert wrong["status"] == "fail" and wrong["sample"].endswith("with int64 first")
    assert re.search(r"result is int64\[.*\] on acm:0, expected float32\[", wrong["reason"])
    assert f"FAIL add.Tensor by {OWN}: values float32 [{wrong['sample']}]" in acme[0].stdout
    assert wrong["reproduce"].endswith(f"--check values --sample '{wrong['sample']}'")
    right = outcome("mul.Tensor", "values")
    assert [r["reason"] for r in right["refusals"]] == [
        "it does not accept a number for a tensor (RuntimeError: no numbers)"
    ]


def test_a_row_is_tried_with_each_mixture_once():
    shape = OverloadSchema("add.Tensor")
    call = SampledCall("add 0", torch.float32, Sample((torch.ones(3), torch.ones(3))))
    tried = {c.id: (c.sample.args, c.on_cpu) for c in rows._mixed(shape, call)}
    assert list(tried) == [
        "add 0 with int64", "add 0 with int64 first", "add 0 with a number", "add 0 with a CPU scalar"
    ]  # fmt: skip
    assert tried["add 0 with a number"][0][1] == 2.5
    (x, scalar), on_cpu = tried["add 0 with a CPU scalar"]
    assert scalar.dim() == 0 and on_cpu == 1 and x.dtype is torch.float32
    matrices = SampledCall("mm 0", torch.float32, Sample((torch.ones(3, 3), torch.ones(3, 3))))
    assert list(rows._mixed(OverloadSchema("mm"), matrices)) == []  # torch refuses these
    [integers] = [c for c in rows._mixed(shape, replace(call, dtype=torch.int64, sample=Sample((torch.arange(3),) * 2)))
                  if c.id.endswith("a number")]  # fmt: skip
    assert integers.sample.args[1] == 2


def test_every_failure_is_printed_with_its_reason_and_command():
    """A failure of dispatch is left out only if the vendor's impl fails for the same sample."""

    def failed(op, impl, own, sample, check="values", count=1):
        result = CheckResult(op, f"opmux::{op}", "f", impl, own, check, "fail", f"{impl} is wrong", sample, "float32")
        result.failed, result.tried, result.reproduce = count, 8, f"opmux conform --op {op} --sample {sample}"
        return result

    record = ConformRecord({"vendor": "v", "depth": "full"})
    record.results = [
        failed("relu", OWN, True, "37"),
        failed("relu", "dispatch", False, "37"),
        failed("silu", OWN, True, "37"),
        failed("silu", "dispatch", False, "5x64"),
        failed("add", "dispatch", True, "add 3", "opinfo", count=4),  # own: the vendor computes one of its overloads
    ]
    screen = Console(file=io.StringIO(), width=160)
    screen.print(report.report(record, []))
    text = screen.file.getvalue()
    assert re.findall(r"^FAIL (\w+ by [\w.]+(?: and so by dispatch)?): (.*?) *$", text, re.MULTILINE) == [
        (f"relu by {OWN} and so by dispatch", "values float32 [37]"),
        (f"silu by {OWN}", "values float32 [37]"),
        ("silu by dispatch", "values float32 [5x64]"),
        ("add by dispatch", "opinfo float32 [add 3], the first of 4 failures in 8 samples"),
    ]
    assert text.count("is wrong") == text.count("opmux conform --op") == 4


def test_unchecked_ops_are_listed_with_a_reason(acme):
    reasons = {u["op"]: u["reason"] for u in acme[1]["unchecked"]}
    assert reasons == {
        "aten::_nnpack_available": "PyTorch has no samples that call this overload",
        "dropout": "the op declares no samples",
        "acme.words": "its tiles depend on something else than torch.dtype, bool, int",
    }
    assert "not checked: aten::_nnpack_available: PyTorch has no samples" in acme[0].stdout
    assert "failed as expected" in acme[0].stdout and ", 3 not checked (" in acme[0].stdout
    assert "not checked: aten::_nnpack_available" in acme[2]


def test_faults_in_tile_files_are_reported(outcome):
    """The report names the file of each fault: a rule that raises, a config that the kernel rejects, an unknown
    tunable.
    """
    why = outcome("(package)", "load", "acme")["reason"]
    assert re.search(r"heuristics_config_utils\.py: rope\.rows: num_warps: LookupError: no such chip", why)
    assert re.search(r"tune_configs\.yaml: moe\.rows: num_warps = 7\. Allowed: a power of two", why)
    assert re.search(r"tune_configs\.yaml: router\.rowz is no tunable; did you mean 'router\.rows'\?", why)


def test_known_gaps_are_expected_to_fail(acme, outcome):
    assert outcome("srelu", "values")["status"] == "expected"
    assert outcome("srelu", "values")["gap"] == "two dimensions come with the next chip"
    assert outcome("silu", "values")["status"] == "unexpected"
    assert "xfail.toml: [nosuchop.values]: no such op" in acme[0].stdout
    assert "checks pass that xfail.toml expects to fail" in acme[0].stdout


def test_coverage_says_where_each_op_runs(acme):
    rows = {(r["space"], r["op"]): r for r in acme[1]["coverage"]}
    mine, unused = rows["opmux", "silu"], rows["opmux", "log_softmax"]
    assert mine["where"] == "own" and mine["impl"] == OWN
    assert unused["where"] == "cpu" and "acme declares it unused" in unused["why"]
    assert any(name.startswith("aten::_log_softmax") for name in unused["on_cpu"])
    assert rows["aten", "_softmax"]["where"] == "own"  # the vendor's own op computes this overload
    left = rows["aten", "_log_softmax"]
    assert left["where"] == "cpu" and left["impl"] == "native"


def test_the_json_data_has_all_fields(acme):
    data = acme[1]
    assert data["schema"] == ConformRecord.schema == 1
    assert set(data) == {
        "schema", "facts", "results", "coverage", "rest_of_aten", "unchecked", "notes", "seconds", "counts", "covered",
    }  # fmt: skip
    assert set("vendor device how where chip depth torch triton opmux date".split()) <= set(data["facts"])
    fields = "op key family impl own check status reason sample dtype tried failed refusals ran gap reproduce seconds"
    for row in data["results"]:
        assert set(row) == set(fields.split())
        assert row["check"] in CHECKS and row["status"] in STATUSES
        assert (row["reproduce"] is None) is (row["status"] in ("pass", "refused", "unexpected"))
    for row in data["coverage"]:
        assert set(row) == set("op key space family where impl why on_cpu".split()) and row["where"] in WHERE


def test_the_page_needs_no_other_files(acme):
    html = acme[2]
    assert "<title>opmux conform, acme</title>" in html and "SIMULATED" in html
    assert "y[0] is 1, expected 0" in html and "two dimensions come with the next chip" in html
    assert "http" not in html.replace("http-equiv", "") and "src=" not in html


def test_the_printed_command_reproduces_a_failure(acme, outcome, tmp_path):
    """The vendor is a plugin here, so the command contains its name."""
    write_vendor(tmp_path, entry_point=False)
    line = outcome("relu", "values")["reproduce"]
    assert line == "opmux conform --vendor acme --op opmux::relu --dtype float32 --check values --sample 37"
    result = conform(tmp_path, *shlex.split(line)[2:], "--json", "-", OPMUX_PLUGIN_MODULES="acme")
    data = json.loads(result.stdout)  # stdout contains nothing else
    assert result.returncode == 1 and "FAIL relu by" in result.stderr
    assert [(r["impl"], r["tried"], r["failed"]) for r in data["results"]] == [(OWN, 1, 1), ("dispatch", 1, 1)]
    assert data["results"][0]["reproduce"] == f"OPMUX_PLUGIN_MODULES=acme {line}"


def test_tracing_compiling_and_aten_checks_pass(tmp_path):
    """Runs the checks that need torch's tracer on a correct op, for a vendor without ops."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "__init__.py").write_text(PACKAGE.replace("acm", "pln"))
    result = conform(tmp_path, "--vendor", "plne", "--op", "softmax", "--json", "-", OPMUX_PLUGIN_MODULES="plain")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert {r["check"]: r["status"] for r in data["results"]} == dict.fromkeys(CHECKS, "pass")
    assert next(r for r in data["results"] if r["check"] == "values")["ran"] == ["default.flagos"]
    assert {r["where"] for r in data["coverage"]} == {"triton"}


WITHOUT_EXPECTTEST = """
import importlib.abc, importlib.util, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "expecttest":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "expecttest" else real(name, package)
from opmux.tools.cli import app
app(sys.argv[1:], prog_name="opmux")
"""


def test_rows_without_expecttest_are_reported_as_unchecked(tmp_path):
    write_vendor(tmp_path, entry_point=True)
    words = "conform --vendor acme --device cpu --op mm --op silu_mul --check values".split()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), str(tmp_path)]), VARIABLE: "1"}
    command = [sys.executable, "-c", WITHOUT_EXPECTTEST, *words]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"not checked: aten::mm: .*pip install expecttest", result.stdout) and "silu_mul" in result.stdout


def test_the_report_breaks_no_words_at_80_columns():
    record = ConformRecord({"vendor": "v", "depth": "quick"}, [row("gelu_tanh_mul_bwd", check) for check in CHECKS])
    shown = {}
    for width in (80, 160):
        screen = Console(file=io.StringIO(), width=width)
        screen.print(report.report(record, []))
        shown[width] = screen.file.getvalue().splitlines()
        assert max(map(len, shown[width])) <= width
        assert {"gelu_tanh_mul_bwd", OWN, *CHECKS} <= set(" ".join(shown[width]).split())
    assert any(line.split()[:4] == ["op", "impl", "load", "values"] for line in shown[160])  # a column for each check
    assert any(line.split() == ["op", "impl", "checks"] for line in shown[80])


def test_a_run_over_all_ops_says_first_what_it_will_do():
    says = lambda target, full: command.announcement(
        ConformPlan.of([specs.find("softmax", ("opmux",)), specs.find("rms_norm", ("opmux",))], target, Depth(full))
    )
    on_cpu = replace(find("ascend", "cpu"), how=DEVICE)
    assert says(on_cpu, False).startswith("checks 2 ops; this takes about a minute on two cores. --op rms_norm checks")
    assert says(replace(on_cpu, how=SIMULATED), False).startswith(
        "checks 2 ops; this takes minutes, because kernels are interp"
    )
    assert says(on_cpu, True).startswith("checks 2 ops; this can take hours.")


# ---- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--vendor ascent", "unknown vendor 'ascent': did you mean 'ascend'?"),
        ("--vendor ascend --device cuda", "--device 'cuda' is not ascend's. Allowed: npu, cpu"),
        ("--vendor ascend --device cpu --op sofmax", "unknown op 'sofmax': did you mean 'softmax'?"),
        ("--vendor ascend --device cpu --op family:nrom", "unknown family 'nrom': did you mean 'norm'?"),
        ("--vendor ascend --device cpu --check value", "unknown check 'value': did you mean 'values'?"),
        ("--vendor ascend --dtype float31", "--dtype 'float31' is not allowed here: did you mean float32?"),
    ],
)
def test_invalid_options_give_exit_code_2(cli, words, message):
    result = cli("conform", *words.split())
    assert result.exit_code == 2 and message in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_type_of_torch_cannot_be_simulated(cli):
    result = cli("conform", "--vendor", "nvidia")
    assert result.exit_code == 2
    assert "this machine has no cuda" in result.output and "--device cpu" in result.output


def test_vendor_functions_can_be_checked_on_the_cpu(cli, monkeypatch):
    """Functions are called directly on CPU tensors: no device is simulated, and the first line says so."""
    pytest.importorskip("triton")
    monkeypatch.setattr(command, "cores", lambda: 1)  # this process has used torch's threads and must not fork
    words = "conform --vendor ascend --device cpu --op gelu_tanh_mul --check values --check mutation --sample 5x64*"
    result = cli(*words.split())
    assert result.exit_code == 0, result.output
    assert result.output.startswith("ascend's functions called directly on CPU tensors")
    assert "default.flagos.ascend" in result.output and "nothing failed" in result.output


def test_list_shows_impls_and_checks(cli, monkeypatch):
    pytest.importorskip("triton")
    result = cli("conform", "--vendor", "ascend", "--device", "cpu", "--op", "gelu_tanh_mul", "--list")
    assert result.exit_code == 0 and "2 impls of them" in result.output
    assert "default.flagos.ascend" in result.output and "values, mutation, errors, fake" in result.output


# ---- known gaps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a.values", "is not valid TOML"),
        ("[a.value]\nreason = 'x'", "there is no check 'value'. did you mean 'values'?"),
        ("[a.values]", "a reason is required"),
        ("[a.values]\nreason = ' '", "a reason is required"),
        ("[a.values]\nreason = 'x'\nwhy = 'y'", "unknown field why. Allowed: reason, impl"),
        ("[a.values]\nreason = 'x'\nimpl = 3", "Allowed: the id of an impl"),
        ("a = 3", "a row is [op.check]"),
    ],
)
def test_invalid_gap_files_raise(tmp_path, text, message):
    (tmp_path / gaps.FILE).write_text(text)
    with pytest.raises(gaps.BadGaps, match="xfail.toml") as raised:
        gaps.read(tmp_path)
    assert message in str(raised.value)


def row(op, check="values", status="pass", impl=OWN):
    return CheckResult(op, f"opmux::{op}", "f", impl, True, check, status)


def test_a_gap_covers_its_op_check_and_impl(tmp_path):
    (tmp_path / gaps.FILE).write_text(
        '["cum*".values]\nreason = "r"\n["opmux::add"."*"]\nreason = "s"\n[mul.values]\nreason = "t"\nimpl = "other"\n'
    )
    rows = [row("cumsum", status="fail"), row("cumprod"), row("add", "compile", "fail"), row("mul", status="fail")]
    rows += [row("cumsum", "gradient", "fail"), row("cummax", status="refused")]
    gaps.apply(gaps.read(tmp_path), rows)
    # a known gap may cover several checks: if one of them fails, the others may pass
    assert [r.status for r in rows] == ["expected", "pass", "expected", "fail", "fail", "refused"]
    alone = [row("cumsum")]
    gaps.apply(gaps.read(tmp_path), alone)
    assert alone[0].status == "unexpected" and alone[0].gap == "r"


# ---- helper functions -----------------------------------------------------------------------------------------------


def test_a_difference_is_described_in_one_sentence():
    want = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    assert numbers("y", want + 1e-7, want, Tol(1e-6, 0.0)) is None
    got = want.clone()
    got[1, 0] = 4
    assert numbers("y", got, want, Tol(0.0, 0.5)) == (
        "y[1, 0] is 4, expected 3 within 0.5; 1 of 4 numbers are too far, by up to 1"
    )
    got[0] = float("nan")
    assert numbers("y", got, want, Tol(0.0, 0.5)) == (
        "y[0, 0] is nan, expected 1 within 0.5; 3 of 4 numbers are too far, 2 of them are NaN, by up to 1"
    )
    assert "y[1, 1] is 0, expected nan" in numbers("y", want.nan_to_num(), want, Tol(0.0, 9.0))
    assert numbers("n", torch.tensor([1, 2]), torch.tensor([1, 3]), Tol(1.0, 9.0)).startswith("n[1] is 2, expected 3")
    inf = torch.tensor([float("inf")])
    assert numbers("y", inf, inf, Tol(0.0, 0.0)) is None and numbers("y", -inf, inf, Tol(9.0, 9.0)) is not None


def test_the_two_halves_of_a_weight_are_compared_as_one_number():
    """The last bit of the combined weight may differ, although a carry may then change every bit of both tensors."""
    from opmux.specs.optim import split

    spec = specs.find("multi_tensor_adam_param_remainder")

    def written(weight):
        p, rest = split(torch.tensor([weight]))
        return {"tensor_lists[1][0] (written)": p, "tensor_lists[4][0] (written)": rest}

    middle = 1 + 2**-8  # half way between two bfloat16 values
    here, below = written(middle), written(middle - 2**-23)
    assert all((here[name] != below[name]).all() for name in here)
    assert difference(below, here, spec) is None
    message = difference(written(middle + 1e-3), here, spec)
    assert message.startswith("tensor_lists[1][0] (written) and its remainder[0] is 1.004906, expected 1.003906 within")


def test_a_sample_keeps_its_layout_on_another_device():
    x = torch.arange(40.0).reshape(5, 8)[:, 1::2]
    y = moved(Sample((x, 3)), torch.device("cpu")).args[0]
    assert y.stride() == x.stride() and y.storage_offset() == 1 and y.data_ptr() != x.data_ptr()
    assert torch.equal(x, y) and y.untyped_storage().nbytes() == x.untyped_storage().nbytes()


def test_writes_outside_of_an_argument_are_found():
    around = torch.zeros(8)
    x = around[2:4]
    watch = Watch({"x": x, "n": 3})
    assert watch.changed() is None
    around[6] = 1  # outside of the view, in the same storage
    assert watch.changed() == "x was written: element 4 of x's memory was 0, and is 1"
    again = Watch({"x": x})
    x.add_(0)
    assert again.changed() == "x was written in place (version 1, then 2), with the same numbers"
    assert Watch({"x": x}, allowed=["x"]).changed() is None
    assert shared_memory({"x": x}, {"y": around[:1]}) == (
        "y shares memory with x: results of this op must be new tensors"
    )
    assert shared_memory({"x": x}, {"y": x.clone()}) is None


def test_dtypes_that_an_op_does_not_support_give_no_samples():
    softmax, bits = specs.find("softmax", ("opmux",)), specs.find("bitwise_and", ("aten",))
    assert list(drawn(softmax, torch.int32)) == [] and list(drawn(bits, torch.float32)) == []
    one = next(drawn(bits, torch.int32))
    assert list(one.results) == ["y"] and one.results["y"].dtype is torch.int32


def test_ops_with_undefined_results_are_not_compared():
    spec = specs.find("bulk_allocate")
    assert spec.samples is not None and list(spec.samples(torch.float32, torch.device("cpu")))
    assert list(drawn(spec, torch.float32)) == []


def test_results_written_to_an_argument_are_compared():
    subject = Subject(specs.find("gemm_add_", ("opmux",)), None, False)
    tallies = {check: Tally(subject, check) for check in ("values", "mutation")}
    forward(subject, next(drawn(subject.spec, torch.float32)), torch.device("cpu"), tallies)
    assert {check: (tally.tried, tally.failed) for check, tally in tallies.items()} == {
        "values": (1, 0), "mutation": (1, 0),
    }  # fmt: skip


def test_an_empty_record_fails():
    facts = {"vendor": "v", "where": "w", "depth": "full", "date": "d"}
    record = ConformRecord(facts, [row("add"), row("mul", status="refused")])
    record.coverage = [Covered("add", "opmux::add", "opmux", "f", "own", OWN)]
    record.coverage += [Covered("b", "aten::b", "aten", "f", "cpu", None)]
    assert record.headline() == "v: 2 checks of 2 ops, nothing failed, 1 refused"
    assert record.covered() == {"own": 1, "cpu": 1}
    assert "<article>" not in page.page(record) and json.loads(record.text())["counts"]["refused"] == 1
