"""The examples run unchanged, and the example vendor package is found both installed and by its module name."""

import ast
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import fresh
import notebooks
import pytest
import vendor_folder

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PLUGIN = EXAMPLES / "vendor_plugin"
SRC = ROOT / "src"
LINE = r"\[opmux \w+\.py:\d+ {level}\] {words}"


def run(*command, cwd, path=(), warm=False, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL", "PYTHONPATH", "PIP_"))}
    clean |= {"PYTHONDONTWRITEBYTECODE": "1"}  # a run must leave no files in the tree
    if path:
        clean["PYTHONPATH"] = os.pathsep.join(map(str, path))
    result = fresh.run([str(c) for c in command], cwd=cwd, env=clean | env, timeout=240, warm=warm)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def python(code, cwd, **more):
    return run(sys.executable, "-c", code, cwd=cwd, **{"path": (SRC,)} | more)


def lines(text, words, level="INFO"):
    """The log lines in opmux's format whose message matches the pattern `words`."""
    pattern = re.compile(LINE.format(level=level, words=f"({words})"))
    return [m[1] for m in map(pattern.fullmatch, text.splitlines()) if m]


def registered(text):
    (line,) = lines(text, r"Registered impl_ids: .*")
    return ast.literal_eval(line.partition(": ")[2])


# ---- the two programs -----------------------------------------------------------------------------------------------


def test_the_in_tree_example_runs_falls_back_and_explains(tmp_path):
    result = run(sys.executable, EXAMPLES / "example_intree.py", cwd=tmp_path, path=(SRC,), warm=True)
    assert registered(result.stderr) == ["reference.torch", "vendor.mybackend"]
    assert lines(result.stderr, r"Op 'rmsnorm_fwd' using .*") == [
        "Op 'rmsnorm_fwd' using 'vendor.mybackend' (kind=vendor, vendor=mybackend)"
    ]
    assert lines(result.stderr, r"Op 'rmsnorm_fwd' switched from 'vendor.mybackend' to 'reference.torch' .*")
    (failed,) = lines(result.stderr, r"Op 'rmsnorm_fwd': 'vendor.mybackend.turbo' failed .*", "WARNING")
    assert "the turbo unit is switched off" in failed and failed.endswith("using 'vendor.mybackend'")
    assert "out (4, 64), rsigma (4, 1), from vendor.mybackend" in result.stdout
    assert "from reference.torch, largest difference" in result.stdout
    why = result.stdout.partition("why this one?")[2]
    assert re.search(r"x vendor\.mybackend\.turbo +vendor +priority 300 +quarantine: RuntimeError: the turbo", why)
    assert re.search(r"\* vendor\.mybackend +vendor +priority 200 +chosen", why)
    assert len(result.stdout.splitlines()) + len(result.stderr.splitlines()) <= 24  # the output must fit on a screen


def test_the_out_of_tree_example_runs_the_vendor_package(tmp_path):
    result = run(sys.executable, EXAMPLES / "example_outtree.py", cwd=tmp_path, path=(SRC,), warm=True)
    assert {"reference.torch", "vendor.acme"} <= set(registered(result.stderr))
    assert "Op 'rmsnorm_fwd' using 'vendor.acme' (kind=vendor, vendor=acme)" in lines(result.stderr, "Op .*")
    assert "manager.call: out (4, 64), rsigma (4,)" in result.stdout
    assert "the same numbers: True" in result.stdout
    package = PLUGIN / "src" / "acme_opmux"
    expected = f"rmsnorm_fwd: 'vendor.acme' (kind=vendor, vendor=acme)\n    from acme_opmux ({package / 'norm.py'})"
    assert expected in result.stdout
    assert "silu_mul, 64 columns: 'vendor.acme'" in result.stdout
    assert "silu_mul, 63 columns: 'vendor.acme'" not in result.stdout


FLOW = """
import torch
from {core} import BackendImplKind, OpImpl, OpManager, OpRegistry

def my_rmsnorm(input, weight, eps=1e-5, **kwargs):
    rsigma = torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps)
    return input * rsigma * weight, rsigma

registry = OpRegistry()
registry.register_impl(
    OpImpl(
        op_name="rmsnorm_fwd",
        impl_id="vendor.mybackend",
        kind=BackendImplKind.VENDOR,
        vendor="mybackend",
        fn=my_rmsnorm,
        priority=200,
    )
)
manager = OpManager(registry)
input, weight = torch.randn(3, 8), torch.randn(8)
output, rsigma = manager.call("rmsnorm_fwd", input, weight)
assert rsigma.shape == (3, 1)
torch.testing.assert_close(output, torch.nn.functional.rms_norm(input, (8,), weight, 1e-5))
"""


def test_an_op_of_a_separate_registry_can_be_called_as_documented(tmp_path):
    result = python(FLOW.format(core="opmux.core"), tmp_path, warm=True, TEFL_LOG_LEVEL="INFO")
    assert result.stdout == ""
    for line, words in zip(
        result.stderr.splitlines(),
        [
            "Registered impl_ids: ['vendor.mybackend']",
            "Op 'rmsnorm_fwd' using 'vendor.mybackend' (kind=vendor, vendor=mybackend)",
        ],
        strict=True,
    ):
        assert lines(line, re.escape(words))


def test_importing_opmux_prints_nothing_at_any_log_level(tmp_path):
    env = dict(TEFL_LOG_LEVEL="DEBUG", TE_FL_DEBUG="1", TE_FL_PREFER="vendor", TE_FL_PLUGIN_MODULES="no_such_module")
    result = python("import opmux, opmux.ops, opmux.core", tmp_path, **env)
    assert (result.stdout, result.stderr) == ("", "")


# ---- programs that train with other libraries -----------------------------------------------------------------------

TRAINING = {
    "finetune_trainer": ("transformers", "accelerate"),
    "finetune_accelerate": ("transformers", "accelerate", "peft"),
    "finetune_trl": ("trl", "datasets"),
    "finetune_lightning": ("transformers", "lightning"),
    "fp8_transformer_engine": ("transformer_engine", "einops"),
    "megatron_layer_spec": ("megatron.core", "einops"),
}


def needs(*packages):
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ImportError:  # its parent package is missing
            found = None
        if found is None:
            pytest.skip(f"needs {package}")


@pytest.mark.parametrize("example", TRAINING)
def test_an_example_of_training_lowers_the_loss(example, tmp_path):
    needs(*TRAINING[example])
    env = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = run(sys.executable, EXAMPLES / f"{example}.py", cwd=tmp_path, path=(SRC,), **env)
    first, last = re.search(r"loss ([\d.]+), then ([\d.]+)$", result.stdout.strip()).groups()
    assert float(last) < float(first)


def test_the_kernels_example_takes_our_layers(tmp_path):
    needs("transformers", "kernels")
    result = run(sys.executable, EXAMPLES / "kernelize_model.py", cwd=tmp_path, path=(SRC,), HF_HUB_OFFLINE="1")
    assert "our layers: RMSNorm, SwiGLUMLP" in result.stdout
    assert float(result.stdout.split()[-1]) < 1e-5


# ---- the vendor's package -------------------------------------------------------------------------------------------

USE = """
import opmux, torch
x, weight = torch.randn(4, 64), torch.ones(64)
out, _, rsigma = opmux.ops.rmsnorm_fwd(x, weight, 1e-5, None, None, torch.float32, 0, False)
torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (64,), weight, 1e-5))
assert rsigma.shape == (4,) and rsigma.dtype is torch.float32
y = opmux.ops.silu_mul(x, x)
from opmux.core import discovery
for op in ("rmsnorm_fwd", "rms_norm", "silu_mul", "layernorm_fwd"):
    for row in opmux.explain(op).verdicts:
        if row.impl.vendor == "acme":
            print("op", op, row.impl.impl_id, row.origin, sep=" | ")
for p in discovery.plugins():
    print("plugin", p.name, p.source, p.distribution, p.version, p.status, sep=" | ")
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package, so that no build leaves a file in the tree."""
    copy = tmp_path / "vendor_plugin"
    shutil.copytree(PLUGIN, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    return copy


def install(package, root):
    """Install a package with pip in a new virtual environment that also sees this environment's packages."""
    run(sys.executable, "-m", "venv", "--without-pip", root, cwd=package)
    python = root / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=root).stdout.strip())
    here = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(SRC)))
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in here))
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *flags, package, cwd=root)
    return python, site


def rows(result, kind):
    split = (line.split(" | ") for line in result.stdout.splitlines())
    return {row[1]: row[2:] for row in split if row[0] == kind}


@pytest.mark.slow
def test_the_vendor_package_works_after_pip_install(package, tmp_path):
    """Makes all checks in one test, because the installation is slow."""
    python, site = install(package, tmp_path / "scratch")
    result = run(python, "-c", USE, cwd=tmp_path, TE_FL_PREFER="vendor", TEFL_LOG_LEVEL="INFO")

    used = {
        "acme": ["entry point opmux.backends", "opmux-vendor-acme", "1.2.0", "loaded"],
        "acme_legacy": ["entry point te_fl.plugin", "opmux-vendor-acme", "1.2.0", "loaded"],
    }
    assert rows(result, "plugin") == used
    files = dict(rmsnorm_fwd="norm", rms_norm="norm", silu_mul="activation", layernorm_fwd="legacy")
    assert rows(result, "op") == {
        op: ["vendor.acme", f"opmux-vendor-acme 1.2.0 ({site / 'acme_opmux' / stem}.py)"] for op, stem in files.items()
    }
    assert {"reference.torch", "vendor.acme"} <= set(registered(result.stderr))
    assert lines(result.stderr, "Op 'rmsnorm_fwd' .*") == [
        "Op 'rmsnorm_fwd' using 'vendor.acme' (kind=vendor, vendor=acme)"
    ]
    assert len(lines(result.stderr, ".*")) == len(result.stderr.splitlines())

    named = run(python, "-c", USE, cwd=tmp_path, TE_FL_PLUGIN_MODULES="acme_opmux")
    assert rows(named, "plugin") == used  # the package was loaded once
    assert named.stderr == ""

    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    own = run(python, "-m", "pytest", *quiet, "tests", cwd=package, PYTEST_ADDOPTS="")
    assert re.search(r"^\d+ passed", own.stdout.splitlines()[-1]), own.stdout


def test_the_vendor_package_can_be_named_in_a_variable_without_installation(package, tmp_path):
    env = dict(TE_FL_PREFER="vendor", TEFL_LOG_LEVEL="INFO", TE_FL_PLUGIN_MODULES="acme_opmux,acme_opmux.legacy")
    result = python(USE, tmp_path, path=(SRC, package / "src"), warm=True, **env)
    assert rows(result, "plugin") == {
        name: ["env TE_FL_PLUGIN_MODULES", "None", "None", "loaded"] for name in ("acme_opmux", "acme_opmux.legacy")
    }
    norm = package / "src" / "acme_opmux" / "norm.py"
    assert rows(result, "op")["rmsnorm_fwd"] == ["vendor.acme", f"acme_opmux ({norm})"]
    assert "vendor.acme" in registered(result.stderr)
    assert lines(result.stderr, "Op 'rmsnorm_fwd' using .*") == [
        "Op 'rmsnorm_fwd' using 'vendor.acme' (kind=vendor, vendor=acme)"
    ]


def test_the_example_package_has_no_build_files():
    left = [p for p in PLUGIN.rglob("*") if p.name in ("build", "dist") or p.name.endswith(".egg-info")]
    assert left == []


@pytest.mark.slow
def test_the_chip_example_passes_finds_the_wrong_kernel_and_passes_again(tmp_path):
    output = run(sys.executable, EXAMPLES / "bring_up_chip.py", cwd=tmp_path, path=(SRC,), warm=True).stdout
    ends = re.findall(r"^acme: \d+ checks? of .*?, (nothing failed|\d+ failed)", output, re.MULTILINE)
    assert [end == "nothing failed" for end in ends] == [True, False, True], output
    assert "expected" in output and "--check values" in output


# ---- notebooks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_has_the_code_of_its_example(name):
    cells = json.loads((EXAMPLES / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    program = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(program.body[1:], []))  # without the docstring
    assert len({cell["id"] for cell in cells}) == len(cells) > 3
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds == ["markdown"] * 2 + ["code"] + ["markdown", "code"] * (len(cells) // 2 - 1), "text above each code"


def test_notebooks_are_up_to_date(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["notebooks.py", "--check"])
    assert notebooks.main() == 0, capsys.readouterr().out


def test_a_stale_notebook_is_detected(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["notebooks.py", "--check"])
    monkeypatch.setattr(notebooks, "EXAMPLES", tmp_path)
    monkeypatch.setattr(notebooks, "NAMES", ("one",))
    (tmp_path / "one.py").write_text('"""One."""\n\nx = 1\n')
    assert notebooks.main() == 1 and "one.ipynb" in capsys.readouterr().out


# ---- a vendor's folder ----------------------------------------------------------------------------------------------

FOLDER = EXAMPLES / "vendor_folder" / "_acme"
IN_A_FOLDER = """
import torch.nn.functional as F
from opmux.machine.here import HERE
from opmux.tuning import tile_files
from opmux.machine.devices import Chip

opmux.enable(mode="all")
x = torch.linspace(-3, 3, 7, device="acm")
w = x.clone().requires_grad_()
F.gelu(w).sum().backward()
v = x.cpu().requires_grad_()
F.gelu(v).sum().backward()
found["add"] = [(x + x).tolist(), torch.add(x, x, alpha=2).tolist(), (x + x[:1].double()).tolist()]
found["gelu"] = [(F.gelu(x).cpu() - F.gelu(v)).abs().max().item(), (w.grad.cpu() - v.grad).abs().max().item()]
found["numbers"] = [(x + 1)[0].item(), (x + torch.tensor(2.0))[0].item()]
found["chosen"] = [opmux.explain(*call).chosen.impl_id for call in (("aten::add.Tensor", x, x), ("aten::gelu", x))]
found["cumsum"] = str(opmux.explain("aten::cumsum", x, 0))
found["tiles"] = [tile_files.heuristics(Chip("acme", None), "softmax.rows") is not None,
                  len(tile_files.candidates(Chip("acme", None), "softmax.rows").given)]
found["failures"] = [str(f) for f in opmux.core.get_default_manager().failures()]
"""


@pytest.mark.parametrize("place", ["in the tree", "outside"])
def test_the_example_folder_of_a_vendor_runs(tmp_path, place):
    """The folder has the documented layout: ops/add.py, ops/gelu.py, get_specific_ops and get_unused_ops."""
    texts = {str(f.relative_to(FOLDER)): f.read_text() for f in FOLDER.rglob("*") if f.suffix in (".py", ".yaml")}
    layout = ["__init__.py", "heuristics_config_utils.py", "tune_configs.yaml"]
    assert sorted(texts) == sorted([*layout, "ops/__init__.py", "ops/add.py", "ops/gelu.py"])
    if place == "outside":
        vendor_folder.write(tmp_path / "_acme", texts)
        report = vendor_folder.follow(tmp_path, {}, IN_A_FOLDER, device="acm", OPMUX_PLUGIN_MODULES="_acme")
    else:
        report = vendor_folder.follow(tmp_path, {"_acme": texts}, IN_A_FOLDER, device="acm")
    x = [float(n) for n in range(-3, 4)]
    assert report.add == [[2 * n for n in x], [3 * n for n in x], [n - 3 for n in x]]
    assert max(report.gelu) < 1e-6 and report.numbers == [-2.0, -1.0]
    assert report.chosen == ["default.flagos.acme"] * 2 and "acme declares it unused" in report.cumsum
    assert report.tiles == [True, 4] and report.failures == report.said == []


def test_the_example_folder_conforms():
    words = "conform --vendor acme --op aten::add.Tensor --op aten::gelu".split()
    result = run(sys.executable, "-m", "opmux", *words, cwd=FOLDER.parent, path=(SRC, FOLDER.parent), warm=True,
                 OPMUX_PLUGIN_MODULES="_acme")  # fmt: skip
    assert ", nothing failed" in result.stdout
