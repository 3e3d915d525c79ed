"""The C++ launch tables and autograd nodes under GCC's sanitizers: memory errors, undefined behaviour, data races."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opmux.cpp import build
from opmux.cpp import library as native_library

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = HERE / "tables_stress.cpp"
KINDS = {"": "no sanitizer", "thread": "data races", "address,undefined": "memory and undefined behaviour"}
MOST_RECORDS = 4 * 256 + 64  # per op: the records in its table, and the replaced records that threads still read


def compiler():
    try:
        return build.compiler().command
    except build.CannotBuild as error:
        pytest.skip(str(error))


def can_link(command, kind, folder):
    (folder / "empty.cpp").write_text("int main() {}")
    command_line = [*command, f"-fsanitize={kind}", "empty.cpp", "-o", "empty"]
    return not subprocess.run(command_line, cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS, ids=KINDS.get)
def test_launch_tables_stay_correct_and_bounded_under_ten_threads(kind, tmp_path):
    """In 160,000 calls, each call runs the launch of its key. The number of records is bounded, and all records are
    freed.
    """
    command = compiler()
    if kind and not can_link(command, kind, tmp_path):
        pytest.skip(f"the runtime of -fsanitize={kind} is not installed")
    rounds = 10_000
    flags = ["-std=c++20", "-g", "-O1", *([f"-fsanitize={kind}", "-fno-sanitize-recover=all"] if kind else [])]
    program = tmp_path / "stress"
    sources = [f"-I{native_library.FOLDER}", str(SOURCE), *build._torch(), "-o", str(program)]
    compiled = subprocess.run([*command, *flags, *sources], capture_output=True, encoding="utf-8", check=False)
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    env = os.environ | {"LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib"), "TSAN_OPTIONS": "halt_on_error=1"}
    result = subprocess.run([program, str(rounds)], env=env, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    keys, hits, by_class, left = map(int, result.stdout.split())
    assert keys == 16 * rounds + 10 and hits > rounds and by_class > 100 and left <= MOST_RECORDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_launches_and_autograd_nodes_pass_the_address_sanitizer(tmp_path):
    """Compiles the library with the address sanitizer, and runs the tests of the gate and of ops with gradients."""
    command = compiler()
    kind = "address,undefined"
    if not can_link(command, kind, tmp_path):
        pytest.skip(f"the runtime of -fsanitize={kind} is not installed")
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "shared")])}
    plugin = [sys.executable, str(ROOT / "tests" / "shared" / "sanitized.py")]
    # Compile in a separate step, because with the sanitizer's runtime loaded a compiler takes minutes.
    compiled = subprocess.run(plugin, env=os.environ | paths, capture_output=True, encoding="utf-8", check=False)
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    find = lambda name: subprocess.check_output([*command, f"-print-file-name={name}.so"], encoding="utf-8").strip()
    env = (
        os.environ
        | paths
        | {
            "LD_PRELOAD": f"{find('libasan')}:{find('libubsan')}",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:detect_odr_violation=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        }
    )
    files = ["tests/machine/test_functions.py", "tests/faces/test_gate_launch.py"]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "sanitized",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *files,
    ]
    result = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert "skipped" not in result.stdout.splitlines()[-1]
