"""What type checkers see of the package."""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import parsed
import pytest

SRC = Path(__file__).parents[2] / "src"
PROGRAM = Path(__file__).with_name("typed_program.py")


def test_module_level_getattr_returns_any():
    """mypy 2.4 fails with an internal error if a module's `__getattr__` returns `Callable[..., Any]`."""
    wrong = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in sorted(SRC.rglob("*.py"))
        for node in parsed.walk(parsed.tree(path))
        if isinstance(node, ast.FunctionDef)
        and node.name == "__getattr__"
        and [a.arg for a in node.args.args] == ["name"]
        and ast.unparse(node.returns or ast.Constant(None)) != "Any"
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["pyright", "basedpyright"])
def test_pyright_in_strict_mode_finds_no_error_in_a_users_program(tmp_path, checker):
    command = shutil.which(checker, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if command is None:
        pytest.skip(f"needs {checker}")
    settings = {"typeCheckingMode": "strict", "include": [PROGRAM.name], "extraPaths": [str(SRC)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(PROGRAM, tmp_path)
    _check([command, "-p", str(tmp_path), "--pythonpath", sys.executable], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_mypy_in_strict_mode_finds_no_error_in_a_users_program(tmp_path):
    """Errors inside of opmux are not reported, as for an installed package."""
    shutil.copy(PROGRAM, tmp_path)
    words = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), PROGRAM.name]
    _check([sys.executable, "-m", "mypy", *words], tmp_path)


def _check(command: list[str], folder: Path) -> None:
    env = {**os.environ, "MYPYPATH": str(SRC)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_program_that_type_checkers_accept_runs():
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "(opmux::rms_norm) on cpu" in done.stdout, done.stderr
