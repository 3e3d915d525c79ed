"""`opmux run`: a program's errors and exit codes are the same as with `python`."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from opmux.core.errors import UnknownName
from opmux.faces import compat
from opmux.tools import run as command
from opmux.tools.device_translation import translated, translating

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(code, name="program.py"):
        Path(name).write_text(textwrap.dedent(code), encoding="utf-8")
        return name

    return write


def run(*program, module=False):
    return command.run(list(program), [], False, module)


ENDS = {
    "raise ValueError('mine')": 1,
    "def f():\n    import opmux\n    opmux.policy('nope')\nf()": 1,
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError(5, 'mine') from e": 1,
    "import runpy\nrunpy.run_path('other.py')": 1,
    "x = (": 1,
    "raise KeyboardInterrupt": 130,
    "import sys\nsys.exit(7)": 7,
    "import sys\nsys.exit('bye')": 1,
    "import sys\nsys.exit()": 0,
    "raise SystemExit(None)": 0,
    "import sys\nsys.excepthook = lambda kind, *rest: print('hooked', kind.__name__, file=sys.stderr)\n1 / 0": 1,
}


@pytest.mark.parametrize("code", ENDS)
def test_a_program_ends_as_with_python(script, capfd, code, monkeypatch):
    script("raise ValueError('of the other')", "other.py")
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # torch.distributed leaves a hook that prints the rank
    status = run(script(code))
    got = capfd.readouterr()
    plain = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, encoding="utf-8", env=os.environ | {"PYTHONPATH": str(SRC)}
    )
    expected = -2 if ENDS[code] == 130 else ENDS[code]  # `subprocess` returns minus a signal's number
    assert (status, plain.returncode) == (ENDS[code], expected), got.err
    lines = lambda text: re.sub(r'File "[^"]*/(?=\w+\.py")', 'File "', text)  # python prints the full path of a script
    assert lines(got.err) == lines(plain.stderr)
    assert "opmux/tools" not in got.err and "runpy.py" not in got.err.replace("import runpy", "")


def test_an_error_of_the_program_gives_one_traceback(script):
    """Runs the command in a new process: no frames of typer or opmux are above the program's frames."""
    script("import opmux\nopmux.set_policy('nope')\n")
    words = [sys.executable, "-m", "opmux", "run", "program.py"]
    result = subprocess.run(words, capture_output=True, encoding="utf-8", env=os.environ | {"PYTHONPATH": str(SRC)})
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1 and "typer" not in result.stderr and "cli.py" not in result.stderr
    assert result.stderr.splitlines()[1].strip().startswith('File "program.py", line 2')
    assert "BadPolicy: 'nope' is not a preference" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nope", "No module named nope"),
        ("", "No module named "),
        ("a.b", "Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')"),
        ("package", "No module named package.__main__; 'package' is a package and cannot be directly executed"),
    ],
)
def test_a_missing_module_gives_one_line(script, capfd, name, words):
    Path("package").mkdir()
    script("", "package/__init__.py")
    assert run(name, module=True) == 1
    assert capfd.readouterr().err == f"opmux run: {words}\n"


def test_modules_and_folders_can_be_run(script, capfd):
    Path("program_in_a_folder").mkdir()
    script("import sys\nprint(__name__, sys.argv[1:])", "program_in_a_folder/__main__.py")
    assert run("program_in_a_folder", "-m", module=True) == 0 and run("program_in_a_folder", "x") == 0
    assert capfd.readouterr().out == "__main__ ['-m']\n__main__ ['x']\n"
    Path("empty").mkdir()
    assert run("empty") == 1
    assert capfd.readouterr().err == "opmux run: can't find '__main__' module in 'empty'\n"


# ---- --as -----------------------------------------------------------------------------------------------------------

PARENT = """
import subprocess, sys
for code in sys.argv[1:]:
    subprocess.run([sys.executable, "-c", "import opmux_startup, sys\\n" + code], check=True)
"""
USES = "import liger_kernel.transformers as t; print(t.LigerRMSNorm.__module__)"
USES_NOT = "import json; print('opmux' in sys.modules)"


def test_processes_that_a_program_starts_get_the_same_modules(script, capfd, monkeypatch):
    """A process that uses none of these modules does not import opmux. The .pth file imports `opmux_startup`."""
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    assert command.run([script(PARENT), USES, USES_NOT], ["liger_kernel"], True, False) == 0
    assert capfd.readouterr().out.split() == ["opmux.faces.liger.norms", "False"]
    assert "OPMUX_RUN_AS" not in os.environ and "liger_kernel" not in sys.modules
    monkeypatch.setenv("OPMUX_RUN_AS", "flag_gems")  # as if another `opmux run` had started this process
    script("import os; print(os.environ['OPMUX_RUN_AS'])", "shows.py")
    assert command.run(["shows.py"], ["liger_kernel"], True, False) == 0
    assert command.run(["shows.py"], [], False, False) == 0
    assert capfd.readouterr().out.split() == ["liger_kernel,shadow", "flag_gems"]


@pytest.mark.parametrize(
    ("library", "statement"),
    [("liger_kernel", "import liger_kernel.transformers"), ("flag_gems", "from flag_gems import enable")],
)
def test_a_program_that_needs_a_library_gets_a_hint_at_as(script, capfd, monkeypatch, library, statement):
    if importlib.util.find_spec(library) is not None:
        pytest.skip(f"{library} is installed")
    others = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "Hint"]
    monkeypatch.setattr(sys, "meta_path", others)
    words = [script(statement, "a program.py"), "--lr", "1"]
    assert run(*words) == 1
    *trace, hint = capfd.readouterr().err.splitlines()
    assert trace[-1].startswith("ModuleNotFoundError: No module named")
    assert hint.endswith(f"To use opmux in its place: opmux run --as {library} 'a program.py' --lr 1")
    import opmux_startup  # adds its finders to this test's list, unless it was imported before

    monkeypatch.setattr(sys, "meta_path", [*others, opmux_startup.Hint])
    assert run(*words) == 1
    assert capfd.readouterr().err.count(f"opmux run --as {library}") == 1
    assert command.run(words, [library], False, False) == 0 and capfd.readouterr().err == ""
    assert run(script(f"try:\n    {statement}\nexcept ImportError:\n    pass")) == 0
    assert capfd.readouterr().err == ""  # the program can do without it
    assert run(script("import no_such_module")) == 1 and "--as" not in capfd.readouterr().err


def test_an_unknown_library_is_reported_before_the_program():
    for words in ([], ["no_such_file.py"]):
        with pytest.raises(UnknownName, match="library 'liger-kernel'.*did you mean 'liger_kernel'"):
            command.run(words, ["liger-kernel"], False, False)
    with pytest.raises(UnknownName, match=r"library 'train\.py'.*run --as NAME program\.py"):  # the name is forgotten
        command.run([], ["train.py"], False, False)


PATCHES = """
from liger_kernel.transformers import apply_liger_kernel_to_llama as apply
import opmux
for _ in range(2):
    apply(rope=False, cross_entropy=False, fused_linear_cross_entropy=False, swiglu=False)
opmux.unpatch_model("llama")
"""


def test_run_as_liger_kernel_prints_once_what_was_patched(script, capfd, monkeypatch):
    pytest.importorskip("transformers")
    assert command.run([script(PATCHES)], ["liger_kernel"], True, False) == 0
    printed = capfd.readouterr().err
    assert printed.count("replaced by") == 1
    first, heading, *_ = printed.partition("opmux: ")[2].splitlines()
    assert first == "llama" and heading.split()[:3] == ["module", "replaced", "by"]
    monkeypatch.setattr(compat, "_reported", set())
    monkeypatch.setenv("RANK", "1")
    assert command.run(["program.py"], ["liger_kernel"], True, False) == 0
    assert "replaced by" not in capfd.readouterr().err


# ---- --device -------------------------------------------------------------------------------------------------------

SAYS_CUDA = """
import sys, torch
device = torch.device("cuda")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="cuda")).to(device)
other = torch.nn.Linear(4, 4).cuda()
x = torch.randn(2, 4, device="cuda:0", pin_memory=False) + torch.ones(2, 4).to("cuda") + torch.zeros(4).cuda(0)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = other(model(x))
assert y.dtype is torch.bfloat16
scaler = torch.amp.GradScaler("cuda")
scaler.scale(y.float().sum()).backward()
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
with torch.device("cuda"):
    assert torch.empty(2).device.type == WANTED
torch.set_default_device("cuda")
assert torch.empty(2).device.type == WANTED
torch.set_default_device(None)
torch.save(model.state_dict(), "weights.pt")
assert {v.device.type for v in torch.load("weights.pt", map_location="cuda").values()} == {WANTED}
noise = torch.Generator(device="cuda").manual_seed(1)
assert isinstance(noise, torch.Generator)
assert torch.randn(2, generator=noise, device="cuda").device.type == WANTED
assert torch.cuda.max_memory_allocated() == 0
assert torch.ones(1, device=f"cuda:{torch.cuda.current_device()}").device.type == WANTED
assert {p.device.type for p in model.parameters()} == {x.device.type} == {WANTED}
assert torch.ones(2).pin_memory().device.type == WANTED
print("ran", sys.argv[1:])
"""


def test_a_program_written_for_cuda_runs_on_the_cpu(script, capfd):
    script("WANTED = 'cpu'\n" + SAYS_CUDA)
    torch_load, autocast = torch.load, torch.autocast.__init__
    with translating("cpu"):
        assert run("program.py", "--device", "cuda") == 0, capfd.readouterr().err
    assert capfd.readouterr().out == "ran ['--device', 'cuda']\n"
    # all patches are removed afterwards
    assert torch.load is torch_load and torch.autocast.__init__ is autocast
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.ones(2, device="cuda")


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [("cuda", "cpu", "cpu"), ("cuda:1", "cpu", "cpu"), ("cuda:1", "xpu:0", "xpu:1"), ("cuda", "xpu:1", "xpu:1"),
     ("cudalike", "cpu", "cudalike"), (3, "cpu", 3), ("meta", "cpu", "meta")],
)  # fmt: skip
def test_cuda_devices_are_translated(value, target, expected):
    assert translated(value, torch.device(target)) == expected
    if isinstance(value, str) and value != "cudalike":
        assert translated(torch.device(value), torch.device(target)) == torch.device(expected)


def test_an_absent_device_is_rejected(cli, script):
    result = cli("run", "--device", "nope", script("print('ran')"))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("opmux: --device 'nope' is not on this machine")
