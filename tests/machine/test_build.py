"""Compiling C++: once per library, by one process at a time, never half written, and with a clear error."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from opmux import cache as cache_dir
from opmux.cpp import build
from opmux.cpp.build import CannotBuild

fork = multiprocessing.get_context("fork")
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "build"


@pytest.fixture
def source(tmp_path):
    def write(text: str, name: str = "answer.cpp") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A fake compiler: a Python program that gets the compiler's arguments."""

    def write(text: str) -> Path:
        path = tmp_path / "compiler"
        lines = f"#!{sys.executable}\nimport sys\nif '--version' in sys.argv:\n    sys.exit(print('made up 1.0'))\n"
        path.write_text(lines + textwrap.dedent(text))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return write


WRITES = "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('built')\n"


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix not in (".lock", ".log"))


# ---- building -------------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_library_is_built_once_and_loads(cache, source, capfd, monkeypatch):
    sources = [
        source('#include "answer.h"\nextern "C" int answer() { return ANSWER; }'),
        source("#define ANSWER 42", "answer.h"),
    ]
    path = build.library("an_answer", sources, flags=("-I", str(sources[0].parent)))
    assert (
        capfd.readouterr().err == "opmux: compiling an answer for this machine, once: half a minute on two idle cores\n"
    )
    assert path.parent == cache and path.name.startswith("an_answer-") and path.suffix == ".so"
    assert ctypes.CDLL(str(path)).answer() == 42
    monkeypatch.setattr(build, "_run", lambda command: pytest.fail("it is compiled again"))
    assert build.library("an_answer", sources, flags=("-I", str(sources[0].parent))) == path
    assert capfd.readouterr().err == "" and leftovers(cache) == [path.name]


def test_the_file_name_depends_on_sources_flags_and_versions(source, compiler, monkeypatch):
    compiler(WRITES)
    names = set()

    def add(*files: Path, flags: tuple[str, ...] = ()) -> None:
        before = len(names)
        names.add(build.library("thing", files, flags=flags).name)
        assert len(names) == before + 1

    one, header = source("1"), source("h", "thing.h")
    add(one)
    add(one, header)
    source("other", "thing.h")
    add(one, header)
    add(one, flags=("-O3",))
    add(one, flags=("-march=native",))
    monkeypatch.setattr(build, "_processor", lambda: "another")
    add(one, flags=("-march=native",))
    monkeypatch.setattr(torch, "__version__", "9.9")
    add(one)
    monkeypatch.setattr(build, "_version", lambda *command: "another")
    add(one)
    source("2")
    add(one)


def test_the_compiler_gets_flags_and_include_paths(source, compiler, tmp_path):
    path = compiler(f"open({str(tmp_path / 'given')!r}, 'w').write('\\n'.join(sys.argv))\n{WRITES}")
    os.environ["CXX"] += " --plain"
    build.library("thing", [source("1"), source("2", "more.hpp")], flags=("-O3", "-fopenmp"))
    flags = (tmp_path / "given").read_text().splitlines()
    assert flags[:3] == [str(path), "--plain", str(tmp_path / "answer.cpp")] and "more.hpp" not in " ".join(flags)
    assert flags.index("-O2") < flags.index("-O3") and {"-std=c++20", "-fPIC", "-shared", "-fopenmp"} <= set(flags)
    assert f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}" in flags
    assert Path(flags[flags.index("-isystem") + 1], "torch", "library.h").is_file()


WAITS = """
import os, pathlib, time
folder = pathlib.Path(__file__).parent
if "-c" in sys.argv:
    (folder / f"started {os.getpid()}").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob("started *"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not [a for a in sys.argv if a.startswith(("-l", "-L")) or a == "-shared"]
"""


def test_sources_are_compiled_in_parallel_and_then_linked(source, compiler, cache):
    """Each compiler waits until the other one runs too."""
    compiler(WAITS + WRITES)
    path = build.library("thing", [source("1"), source("2", "more.cpp"), source("3", "thing.h")], flags=("-lm",))
    assert path.read_text() == "built" and leftovers(cache) == [path.name]
    *compiled, linked = [line for line in path.with_suffix(".log").read_text().splitlines() if "compiler" in line]
    assert len(compiled) == 2 and all(" -c " in line for line in compiled) and "-shared" in linked and "-lm" in linked


def test_if_one_source_fails_the_error_is_reported_and_the_other_compiler_is_stopped(source, compiler, cache, tmp_path):
    compiler(
        f"""
        import os, pathlib, time
        if any(a.endswith("bad.cpp") for a in sys.argv):
            sys.exit("bad.cpp:1: error: out of ink")
        pathlib.Path({str(tmp_path / "other")!r}).write_text(str(os.getpid()))
        time.sleep(600)
        """
    )
    with pytest.raises(build.CompilerFails, match="error: out of ink"):
        build.library("thing", [source("1", "bad.cpp"), source("2")])
    assert leftovers(cache) == []
    other = tmp_path / "other"
    assert not other.exists() or not Path("/proc", other.read_text()).exists()


def test_a_failed_build_is_retried_on_request(source, compiler, cache):
    compiler("sys.exit('error: out of ink')")
    files = [source("1")]
    for _ in range(2):
        with pytest.raises(build.CompilerFails, match="out of ink"):
            build.library("thing", files)
    compiler(WRITES)
    with pytest.raises(build.CompilerFails, match="to try again now"):
        build.library("thing", files)
    assert build.library("thing", files, retry=True).read_text() == "built"


# ---- many processes -------------------------------------------------------------------------------------------------


def build_at(barrier, path, results) -> None:
    barrier.wait()
    results.put(build.library("thing", [path]).read_text())


def test_two_processes_at_once_compile_once(source, compiler, tmp_path):
    compiler(f"import time\ntime.sleep(0.5)\nopen({str(tmp_path / 'runs')!r}, 'a').write('.')\n{WRITES}")
    barrier, results = fork.Barrier(2), fork.Queue()
    both = [fork.Process(target=build_at, args=(barrier, source("1"), results)) for _ in range(2)]
    for process in both:
        process.start()
    assert [results.get(timeout=60) for _ in both] == ["built", "built"]
    for process in both:
        process.join()
    assert (tmp_path / "runs").read_text() == "."


def test_without_file_locks_libraries_are_still_built(source, compiler, monkeypatch):
    compiler(WRITES)
    monkeypatch.setattr(cache_dir, "fcntl", None)
    assert build.library("thing", [source("1")]).read_text() == "built"


# ---- builds that fail -----------------------------------------------------------------------------------------------


def test_without_a_compiler_the_error_says_what_to_install(source, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"there is no C\+\+ compiler: none of g\+\+, .* Install one, or set CXX"):
        build.library("thing", [source("1")])


@pytest.mark.parametrize(
    ("value", "words"), [("no-such-compiler -x", "there is no such command"), ("'g++", "is no command: No closing")]
)
def test_an_invalid_cxx_variable_raises(source, monkeypatch, value, words):
    monkeypatch.setenv("CXX", value)
    with pytest.raises(CannotBuild, match=rf"CXX=.*{words}.*unset it"):
        build.library("thing", [source("1")])


def test_a_compiler_that_does_not_run_raises_with_its_output(source, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no licence >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CannotBuild, match=r"broken --version` does not run: no licence. Set CXX to another"):
        build.library("thing", [source("1")])


@needs_compiler
def test_a_compile_error_raises_with_the_first_error_and_the_log(source, cache):
    with pytest.raises(
        CannotBuild, match=r"failed \(exit status 1\): .*answer.cpp:2:\d+: error: .*nothing.*Full output: "
    ) as error:
        build.library("thing", [source("int f() {\n  return nothing;\n}")])
    log = Path(str(error.value).partition("Full output: ")[2])
    assert "answer.cpp" in log.read_text() and log.parent == cache and leftovers(cache) == []


def test_a_missing_source_raises(tmp_path, compiler):
    compiler(WRITES)
    with pytest.raises(CannotBuild, match="a source cannot be read: .*gone.cpp"):
        build.library("thing", [tmp_path / "gone.cpp"])


def test_an_unwritable_cache_raises_and_names_the_variable(source, compiler, tmp_path, monkeypatch):
    compiler(WRITES)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CannotBuild, match="thing cannot be compiled: .*Set OPMUX_CACHE_DIR to a writable folder"):
        build.library("thing", [source("1")])


def test_without_a_home_directory_the_error_names_the_variable(source, compiler, monkeypatch):
    compiler(WRITES)
    monkeypatch.setattr(cache_dir, "root", lambda: None)
    with pytest.raises(CannotBuild, match="there is no home directory. Set OPMUX_CACHE_DIR"):
        build.library("thing", [source("1")])


def test_a_compiler_that_never_ends_is_stopped_with_its_child_processes(source, compiler, cache, tmp_path, monkeypatch):
    started = tmp_path / "started"
    compiler(
        f"""
        import pathlib, subprocess
        child = subprocess.Popen(["sleep", "600"])
        pathlib.Path({str(started)!r}).write_text(str(child.pid))
        child.wait()
        """
    )
    monkeypatch.setattr(build, "LIMIT", 2.0)
    with pytest.raises(CannotBuild, match="was stopped after 2 s"):
        build.library("thing", [source("1")])
    assert leftovers(cache) == []
    child, until = Path("/proc", started.read_text(), "stat"), time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < until, "the compiler's child lives on"
        time.sleep(0.02)


def test_a_fork_waits_until_a_compiler_has_started(monkeypatch):
    """Otherwise both processes would hang: the child waits for the parent's lock, and the parent waits for the end of a
    pipe that the child has inherited.
    """
    reached, observed = threading.Event(), {}

    def popen(*args, **kwargs):
        observed["read"], observed["write"] = os.pipe()
        reached.set()
        time.sleep(0.3)  # simulates a loaded machine
        os.close(observed["write"])

    monkeypatch.setattr(build.subprocess, "Popen", popen)
    thread = threading.Thread(target=build._start, args=(["c++"], 0))
    thread.start()
    reached.wait(10)
    child = os.fork()
    if child == 0:
        try:
            os.fstat(observed["write"])
        except OSError:
            os._exit(0)
        os._exit(1)
    thread.join()
    os.close(observed["read"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
