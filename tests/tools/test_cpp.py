"""`opmux build` compiles all C++ now; `opmux doctor` says what is compiled, and how to fix what is not."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from opmux import cache as cache_dir
from opmux.cpp import launching
from opmux.cpp import library as native_library
from opmux.tools import cpp


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and a CPU that our C++ kernels support."""
    known = {"cpu": types.SimpleNamespace(module="opmux.backends._cpu")}
    monkeypatch.setattr(cpp, "vendors", types.SimpleNamespace(known=lambda: known))
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A fake compiler: a Python program that ends with these lines."""

    def write(text):
        path = tmp_path / "compiler"
        path.write_text(
            f"#!{sys.executable}\nimport sys\nif '--version' in sys.argv:\n    sys.exit(print('made up 1.0'))\n{text}\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return write


WRITES = "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('built')"
FAILS = "sys.exit('gate.cpp:1: error: out of ink')"


def states(cli):
    """Library name -> the line about it in the doctor's table."""
    rows, states_by_name = cli("doctor").stdout.partition("C++")[2].partition("plugins")[0], {}
    for line in rows.splitlines():
        name = line.split()[0] if line.startswith("  ") and line[2:3].strip() else None
        if name is not None:
            states_by_name[name] = " ".join(line.split()[1:])
            last = name
        elif line.strip():
            states_by_name[last] += " " + " ".join(line.split())
    return states_by_name


def both(cli):
    reported = states(cli)
    return [reported["native"], reported["cpu_kernels"]]


def test_build_compiles_what_is_missing(cli, compiler, cache):
    compiler(WRITES)
    assert all(s.startswith("not compiled yet: `opmux build` compiles it") for s in both(cli))
    result = cli("build")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if " compiled in " in line]
    assert [line.partition(":")[0] for line in lines] == ["native", "cpu_kernels"]
    assert len(list(cache.glob("build/*.so"))) == 2
    assert both(cli) == ["compiled", "compiled"]
    again = cli("build")
    assert again.exit_code == 0
    assert again.stdout.splitlines() == ["native: compiled before", "cpu_kernels: compiled before"]


def test_doctor_says_that_another_process_compiles(cli, compiler, cache):
    compiler(WRITES)
    assert cli("build").exit_code == 0
    for file in cache.glob("build/*.so"):
        file.unlink()
    held = [cache_dir.try_lock(lock) for lock in cache.glob("build/*.lock")]  # as a process that compiles
    assert len(held) == 2
    assert all(s.startswith("another process compiles it now, in some 30 s. Until then, ") for s in both(cli))
    for release in held:
        release()
    assert all(s.startswith("not compiled yet") for s in both(cli))


def test_build_without_a_compiler_says_what_to_install(cli, monkeypatch, cache):
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    result = cli("build")
    assert result.exit_code == 2
    for name, lost in (("native", "auto mode overrides few ops"), ("cpu_kernels", "plain PyTorch")):
        (line,) = [one for one in result.output.splitlines() if one.startswith(f"opmux: {name} is not compiled")]
        assert "there is no C++ compiler" in line and "Install one, or set CXX" in line and lost in line
    for state in both(cli):
        assert state.startswith("no compiler: there is no C++ compiler") and "then run `opmux build`" in state


def test_build_retries_a_failing_compiler_each_time(cli, compiler):
    compiler(FAILS)
    for _ in range(2):
        result = cli("build")
        assert result.exit_code == 2 and result.output.count("error: out of ink") == 2
        assert "minutes ago" not in result.output and ".log" in result.output
    assert all(s.startswith("the compiler fails: ") and "out of ink" in s for s in both(cli))
    compiler(WRITES)
    assert cli("build").exit_code == 0 and both(cli) == ["compiled", "compiled"]


def test_build_reports_an_unwritable_cache(cli, compiler, tmp_path, monkeypatch):
    compiler(WRITES)
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "file"))
    result = cli("build")
    assert result.exit_code == 2 and result.output.count("Set OPMUX_CACHE_DIR to a writable folder") == 2
    assert all(s.startswith("the cache folder cannot be used: ") for s in both(cli))


def test_build_compiles_nothing_if_cpp_is_disabled(cli, compiler, monkeypatch, cache):
    compiler(WRITES)
    monkeypatch.setenv("OPMUX_CPP", "0")
    result = cli("build")
    assert result.exit_code == 2 and "OPMUX_CPP=0. Unset it, and run `opmux build` again" in result.output
    assert not cache.exists()
    assert all(s.startswith("off: OPMUX_CPP=0; unset it to change that. Without it, ") for s in both(cli))


def test_an_untested_torch_only_disables_the_native_library(cli, compiler, monkeypatch):
    compiler(WRITES)
    monkeypatch.setitem(launching.TESTED, "torch", ((1, 0), (1, 13)))
    result = cli("build")
    assert (
        result.exit_code == 2
        and "native is not compiled" in result.output
        and "cpu_kernels: compiled in" in result.output
    )
    native, cpu = both(cli)
    assert native.startswith("off: ") and "tested with torch 1.0 to 1.13" in native and cpu == "compiled"


def test_missing_python_headers_are_reported(cli, compiler, monkeypatch, tmp_path):
    compiler(WRITES)
    monkeypatch.setattr(native_library.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    result = cli("build")
    assert result.exit_code == 2 and "Install python3-dev" in result.output
    assert states(cli)["native"].startswith("headers are missing: ")
    assert sysconfig.get_paths() == {"include": str(tmp_path)}


def test_the_libraries_are_listed_if_only_torch_is_installed():
    """`make setup` compiles the libraries while pip installs the other packages."""
    absent = "typer", "rich", "numpy", "triton", "yaml"
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); from opmux.tools import cpp, simulator"
    program += "; print(*[one.name for one in cpp.libraries()]); simulator.sources()"
    src = str(Path(__file__).parents[2] / "src")
    result = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": src}, capture_output=True, encoding="utf-8",
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[0].startswith("native ")
