"""`opmux new-backend`: the files that it writes work unchanged, and it never overwrites anything."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opmux.machine import vendors
from opmux.machine.vendors import VendorInfo
from opmux.tools import scaffold

ROOT = Path(__file__).parents[2]
FOLDER = ["__init__.py", "heuristics_config_utils.py", "ops/__init__.py", "ops/silu_mul.py", "tune_configs.yaml"]


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def printed(stdout: str) -> list[str]:
    """The commands printed in the last lines."""
    return [line.strip() for line in stdout.partition("Next:\n")[2].splitlines() if line.startswith("  ")]


@pytest.fixture
def checkout(tmp_path):
    """The parts of an opmux checkout that --in-tree reads."""
    for name in ("src/opmux/backends/registry.py", "tests/backends/test_x.py"):
        (tmp_path / "opmux" / name).parent.mkdir(parents=True)
        (tmp_path / "opmux" / name).touch()
    return tmp_path / "opmux"


# ---- written files ---------------------------------------------------------------------------------------------------


def test_a_package_has_the_expected_files(cli, tmp_path):
    result = cli("new-backend", "acme", "--device", "npu")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "opmux-acme"
    around = ["README.md", "pyproject.toml", "tests/test_acme.py"]
    assert files(folder) == sorted([*around, *(f"src/opmux_acme/{name}" for name in FOLDER)])
    assert all(name in result.stdout for name in files(folder))
    assert printed(result.stdout) == [
        "pip install --no-deps --no-build-isolation -e opmux-acme", "opmux list acme", "opmux conform --vendor acme",
    ]  # fmt: skip
    assert "npu is a device type of ascend too" in result.stdout and "OPMUX_VENDOR=acme" in result.stdout
    assert 'acme = "opmux_acme"' in (folder / "pyproject.toml").read_text()


def test_in_tree_creates_a_vendor_folder(cli, checkout):
    result = cli("new-backend", "acme", "--device", "dsp", "--in-tree", "--out", str(checkout))
    assert result.exit_code == 0, result.output
    assert files(checkout / "src/opmux/backends/_acme") == FOLDER
    assert "opmux.backends._acme.ops" in (checkout / "tests/backends/test_acme.py").read_text()
    assert len(files(checkout)) == 2 + len(FOLDER) + 1
    assert printed(result.stdout) == ["opmux list acme", "opmux conform --vendor acme"] and "too" not in result.stdout


def test_all_placeholders_are_filled_in(cli, tmp_path):
    """The files contain valid Python, which passes our own checks."""
    assert cli("new-backend", "acme_two", "--device", "npu").exit_code == 0
    texts = {name: (tmp_path / "opmux-acme_two" / name).read_text() for name in files(tmp_path / "opmux-acme_two")}
    left = {name: re.findall(r"\b[A-Z]+_(?:NAME|TITLE|PACKAGE)\b", text) for name, text in texts.items()}
    assert not any(left.values()), left
    assert 'torch_package="torch_npu"' in texts["src/opmux_acme_two/__init__.py"]
    assert "tests/test_acme_two.py" in texts["README.md"]
    for name, text in texts.items():
        assert "acme" in text.casefold() and (not name.endswith(".py") or ast.get_docstring(ast.parse(text)))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "120", str(tmp_path)]
    result = subprocess.run([*command, "--select", "E,F,W,B,UP"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_the_checklist_names_existing_ops():
    """Checks the names of our ops, of ATen's overloads and of tunables, in the package's README and in the vendors'
    guide.
    """
    from opmux.core import specs
    from opmux.machine import vendor_ops

    for path in (scaffold.TEMPLATE / "README.md", ROOT / "src/opmux/backends/README.md"):
        rows = re.findall(r"^\| (?:critical|important|optional) \|.*", path.read_text(), re.M)
        named = {name for row in rows for name in re.findall(r"`([a-z]\w+|_[a-z]\w{5,})`", row)}
        names = named - {"get_specific_ops", "__all__"}
        assert len(rows) >= 3 and {"mm", "rms_norm", "layer_norm", "softmax"} <= names
        for name in names:
            assert specs.lookup(name, ("opmux", "tex", "aten")) or vendor_ops.overloads_of(name), name


@pytest.mark.parametrize("where", ["opmux-acme", "a place/deep/opmux-acme"])
def test_a_package_can_be_created_in_another_folder(cli, tmp_path, where):
    out = Path(where).parent
    result = cli("new-backend", "acme", "--device", "npu", "--out", str(out))
    assert result.exit_code == 0 and (tmp_path / where / "pyproject.toml").is_file()
    # relative to the current folder, as a user would type it
    assert shlex.split(printed(result.stdout)[0])[-1] == where
    assert (tmp_path / where).stat().st_mode & 0o777 == 0o755
    assert not [p for p in (tmp_path / where).parent.iterdir() if p.name.startswith(".")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a cuda that is not here")
def test_a_device_type_that_cannot_be_simulated_is_reported(cli, tmp_path):
    result = cli("new-backend", "acme", "--device", "cuda")
    assert printed(result.stdout)[-1] == "opmux conform --vendor acme --device cpu"
    assert 'torch_package=""' in (tmp_path / "opmux-acme/src/opmux_acme/__init__.py").read_text()


# ---- rejected input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        (("acme corp", "--device", "npu"), "'acme corp' cannot be a vendor's name. Allowed: small letters"),
        (("Acme", "--device", "npu"), "with a letter first: acme"),
        (("9lives", "--device", "npu"), "with a letter first, such as acme"),
        (("../acme", "--device", "npu"), "cannot be a vendor's name"),
        (("nvidia", "--device", "cuda"), "a vendor 'nvidia' exists already: "),
        (("flagos", "--device", "npu"), "'flagos' has another meaning where a vendor is named"),
        (("torch", "--device", "npu"), "'torch' has another meaning"),
        (("acme", "--device", "NPU 1"), "--device 'NPU 1' is no name of a device type"),
        (("acme", "--device", "cpu"), "the package needs Triton, which does not run there"),
        (("acme", "--device", "npu", "--in-tree", "--out", "."), "a checkout of opmux; --out . is not one"),
        (("acme",), "Missing option '--device'"),
        ((), "Missing argument 'NAME'"),
    ],
)  # fmt: skip
def test_invalid_names_and_options_give_one_line(cli, tmp_path, words, message):
    result = cli("new-backend", *words)
    assert result.exit_code == 2 and message in result.stderr and result.stdout == ""
    assert "Traceback" not in result.stderr and files(tmp_path) == []


@pytest.mark.parametrize(
    "make", [lambda p: p.mkdir(), lambda p: p.write_text("mine"), lambda p: p.symlink_to("nowhere")]
)
def test_an_existing_folder_is_not_overwritten(cli, tmp_path, make):
    make(tmp_path / "opmux-acme")
    before = files(tmp_path)
    result = cli("new-backend", "acme", "--device", "npu")
    assert result.exit_code == 2 and "opmux-acme exists and is not overwritten" in result.stderr
    assert files(tmp_path) == before


@pytest.mark.parametrize("there", ["src/opmux/backends/_acme", "tests/backends/test_acme.py"])
def test_an_existing_vendor_in_the_tree_is_not_overwritten(cli, checkout, there):
    (checkout / there).mkdir()
    result = cli("new-backend", "acme", "--device", "npu", "--in-tree", "--out", str(checkout))
    assert result.exit_code == 2 and f"{there} exists and is not overwritten" in result.stderr
    assert len(files(checkout)) == 2


def test_a_vendor_registered_in_code_is_known(cli, tmp_path):
    vendors.register_vendor(VendorInfo("bolt", "npu"))
    try:
        result = cli("new-backend", "bolt", "--device", "npu")
    finally:
        vendors.forget("bolt")
    assert result.exit_code == 2 and "a vendor 'bolt' exists already" in result.stderr and files(tmp_path) == []


def test_a_failing_disk_leaves_no_files(cli, tmp_path, checkout, monkeypatch):
    stock = Path.write_text

    def full(self, *args, **kwargs):
        if self.name == "silu_mul.py":
            raise OSError(28, "No space left on device")
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    for words in ((), ("--in-tree", "--out", str(checkout))):
        result = cli("new-backend", "acme", "--device", "npu", *words)
        assert result.exit_code == 2 and "cannot be written: [Errno 28] No space left on device" in result.stderr
    assert len(files(tmp_path)) == 2  # only the files of the checkout


# ---- the generated package works -------------------------------------------------------------------------------------


class Shell:
    """Runs commands in a folder; pip installs into a prefix in it."""

    def __init__(self, folder: Path):
        self.folder, self.prefix = folder, folder / "prefix"
        start = folder / "start"
        start.mkdir()
        # An editable install creates .pth files. Python does not read these in folders of PYTHONPATH, but addsitedir
        # does.
        site = self.prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (start / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(site)!r})\n")
        path = os.pathsep.join([str(start), str(ROOT / "src")])
        self.env = {**os.environ, "PYTHONPATH": path, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def __call__(self, command: str, *more: str, **variables: str) -> subprocess.CompletedProcess:
        """Run a command as printed; `pip` and `opmux` use this interpreter."""
        name, *words = shlex.split(command)
        start = [sys.executable, "-m", name] if name != "python" else [sys.executable]
        env = {**self.env, **variables}
        result = subprocess.run(
            [*start, *words, *more], cwd=self.folder, env=env, capture_output=True, text=True, timeout=280
        )
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
        return result


@pytest.fixture
def installed(tmp_path, cli):
    """Create a new package and install it by the first printed command; return the shell and the other commands."""
    pytest.importorskip("triton")
    for tool in ("pip", "setuptools"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"needs {tool}")
    shell = Shell(tmp_path)
    install, *more = printed(cli("new-backend", "acme", "--device", "npu").stdout)
    shell(install, "--prefix", str(shell.prefix))
    return shell, more


# These checks take 45 s of CPU time. The others (fake, opcheck, compile, opinfo) would take 45 s more, and tests/ops
# and tests/faces run them for each op.
QUICK_CHECKS = ("load", "values", "mutation", "errors", "gradient")


@pytest.mark.timeout(900)
def test_the_printed_commands_work_for_a_new_package(installed, slow):
    """The entry point is found, `opmux list` shows the package, and every op conforms on a simulated device. The
    package's own tests run in the interpreter, on the CPU.
    """
    shell, (list_command, conform) = installed
    acme = json.loads(shell(list_command, "--json").stdout)
    assert [(i["op"], i["impl_id"]) for i in acme["implementations"]] == [("silu_mul", "default.flagos.acme")]
    assert (acme["device"], acme["distribution"], acme["version"]) == ("npu", "opmux-acme", "0.1.0")
    assert Path(acme["folder"]) == shell.folder / "opmux-acme/src/opmux_acme"
    words = [] if slow else [word for check in QUICK_CHECKS for word in ("--check", check)]
    assert "nothing failed" in shell(conform, *words).stdout
    assert "4 passed" in shell("pytest opmux-acme/tests", "-q", "-p", "no:cacheprovider").stdout


IN_TREE = """
import sys, opmux.backends, pytest
folder, tests, root = sys.argv[1:]
opmux.backends.__path__.append(folder)
run = lambda: pytest.main([tests, "-q", "-p", "no:cacheprovider", "--rootdir", root])
assert run() == 0
from opmux.backends._acme import ops
wrong = lambda a, b: a * b
right, wrong.dtypes = ops.silu_mul, ops.silu_mul.dtypes
ops.silu_mul = wrong
assert run() == 1
def limited(a, b):
    return right(a, b) if a.is_contiguous() else a * b
limited.dtypes, limited.when = right.dtypes, lambda a, b: a.is_contiguous() or "contiguous tensors only"
ops.silu_mul = limited
assert run() == 0
limited.when = lambda a, b: "takes nothing"
assert run() == 1
"""


def test_the_generated_tests_of_a_vendor_in_the_tree_pass(cli, tmp_path, checkout):
    """The generated tests fail if an op is wrong, and say by how much. They skip calls that `fn.when` refuses."""
    pytest.importorskip("triton")
    cli("new-backend", "acme", "--device", "dsp", "--in-tree", "--out", str(checkout))
    places = [checkout / "src/opmux/backends", checkout / "tests/backends/test_acme.py", checkout]
    result = Shell(tmp_path)("python -c", IN_TREE, *map(str, places))
    assert result.stdout.count("4 passed") == 2 and result.stdout.count("3 failed, 1 passed") == 2
    assert "differs: Tensor-likes are not close!" in result.stdout and "Greatest relative difference" in result.stdout
    assert "silu_mul takes none of the samples with torch.float32: see its `when`" in result.stdout
