"""The C++ library in `src/opmux/native`: when it is compiled, and what is logged if it cannot be."""

from __future__ import annotations

import logging
import sys
import sysconfig
import threading
import time
import tomllib
from pathlib import Path

import pytest
import torch

from opmux.backends._cpu.ops import native as cpu_kernels
from opmux.cpp import background, build, launching
from opmux.cpp import library as native_library
from opmux.cpp.library import Untested
from opmux.faces.aten import gate
from opmux.faces.aten.schema import OverloadSchema


@pytest.fixture
def new(monkeypatch):
    """Set the state of a process that has not tried to load the library; the test fails if it is compiled."""
    for name, value in {"library": None, "tried": False, "compiling": False, "waiting": []}.items():
        monkeypatch.setattr(native_library._LibraryState, name, value)
    for name in ("load", "library"):
        monkeypatch.setattr(build, name, lambda *a, **k: pytest.fail("it is compiled"))
    monkeypatch.setattr(background, "run", lambda *a, **k: pytest.fail("it is compiled in the background"))
    return monkeypatch


def said(caplog, call):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="opmux"):
        call()
    return [r.getMessage() for r in caplog.records]


def test_sources_lists_every_file_of_the_folder():
    """A change to a file that is not listed would not recompile the library."""
    assert sorted(native_library.SOURCES) == sorted(native_library.FOLDER.iterdir())


def test_a_wheel_contains_the_sources():
    settings = tomllib.loads((native_library.FOLDER.parents[2] / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"]["find"]["namespaces"]  # includes folders without Python files as packages
    assert {f"*{file.suffix}" for file in native_library.SOURCES} <= set(settings["package-data"]["*"])


def test_opmux_native_is_a_function_and_not_the_folder():
    import opmux

    assert callable(opmux.native) and not list(native_library.FOLDER.glob("*.py"))


def test_clear_invalidates_records_of_ops_with_gradients(monkeypatch):
    """tests/faces/test_gate_launch.py tests the same for the gate's records."""
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    monkeypatch.setattr(launching._LaunchingState, "recorded", True)
    before = native_library.loaded().functions_epoch()
    launching.clear()
    assert native_library.loaded().functions_epoch() == before + 1


def test_with_an_untested_torch_nothing_is_compiled(new, caplog):
    """The gate uses a private name of torch's dispatcher."""
    new.setitem(launching.TESTED, "torch", ((1, 0), (1, 13)))
    assert not native_library.possible() and not native_library.must_be_compiled()
    assert not native_library.soon(lambda: pytest.fail("is used"))
    for compiles in (native_library.compile, native_library.is_built):
        with pytest.raises(Untested, match=rf"torch {torch.__version__.split('+')[0]}.* tested with torch 1.0 to 1.13"):
            compiles()
    (warning,) = said(caplog, lambda: [native_library.available() for _ in range(3)])
    assert "tested with torch 1.0 to 1.13" in warning and "auto mode overrides few ops" in warning
    assert native_library.loaded() is None and gate.make("cpu", OverloadSchema("exp"), "CPU") is None
    assert cpu_kernels.available() is True  # the CPU's kernels only use torch's public headers


def test_with_an_untested_triton_nothing_is_launched_from_cpp(monkeypatch, caplog):
    monkeypatch.setitem(launching.TESTED, "triton", ((1, 0), (1, 1)))
    monkeypatch.setattr(launching._LaunchingState, "drives", None)
    assert not launching.untested("torch")
    (warning,) = said(caplog, launching.drives)
    assert "tested with triton 1.0 to 1.1" in warning and not launching.drives()


def test_without_python_headers_the_error_says_what_to_install(new, caplog, tmp_path):
    new.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert not native_library.possible()
    (warning,) = said(caplog, native_library.available)
    assert f"there is no {tmp_path}/Python.h. Install python3-dev or python3." in warning and "python3-devel" in warning


def test_the_cost_of_missing_cpp_is_logged_once(new, caplog):
    """The overrides log it, or an op with a gradient that waits for a background build, whichever is first."""

    def fail(*args, **kwargs):
        raise build.NoCompiler("there is no C++ compiler")

    started = []
    new.setattr(build, "load", fail)
    new.setattr(build, "is_built", lambda *a, **k: False)
    new.setattr(background, "run", lambda program, then, env=None: started.append(then))
    assert native_library.soon(lambda: pytest.fail("is used"))
    (warning,) = said(
        caplog, lambda: (native_library.available(), started[0]("g++: failed"), native_library.available())
    )
    assert warning.endswith("there is no C++ compiler") and "5 to 40 us" in warning and "5 to 20 us" in warning


def test_the_background_program_compiles_the_library(new):
    program = []
    new.setattr(build, "is_built", lambda *a, **k: False)
    new.setattr(background, "run", lambda text, then, env=None: program.append(text))
    assert native_library.soon(lambda: None)
    new.setattr(build, "library", lambda name, sources, flags, retry: program.append((name, sources, flags, retry)))
    exec(program[0])
    assert program[1] == ("native", native_library.SOURCES, native_library.flags(), False)


def test_if_disabled_it_is_neither_compiled_nor_loaded(new, caplog):
    new.setenv("OPMUX_CPP", "0")
    assert not native_library.possible() and not native_library.must_be_compiled()
    assert not native_library.soon(lambda: pytest.fail("is used"))
    assert said(caplog, native_library.available) == [] and native_library.loaded() is None


def test_a_background_process_starts_with_a_path_object_in_sys_path(monkeypatch):
    """Python ignores entries of sys.path that are not strings."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    ended, messages = threading.Event(), []
    background.run(
        "import sys; assert all(type(one) is str for one in sys.path)", lambda e: (messages.append(e), ended.set())
    )
    assert ended.wait(60) and messages == [""]


def test_all_waiting_callbacks_run_even_if_one_raises(new):
    new.setattr(native_library._LibraryState, "library", object())
    new.setattr(native_library._LibraryState, "tried", True)
    called = []
    new.setattr(native_library._LibraryState, "waiting", [lambda: 1 / 0, lambda: called.append(1)])
    native_library._compiled("the other process failed, this one has compiled it meanwhile")
    assert called == [1] and not native_library._LibraryState.waiting


def test_an_op_does_not_wait_while_another_thread_compiles(new):
    """The op runs in Python until the compiling thread calls it back."""
    compiling, proceed, called = threading.Event(), threading.Event(), []

    def compile_slowly(*args, **kwargs):
        compiling.set()
        assert proceed.wait(30)
        raise build.CompilerFails("g++: failed")

    new.setattr(build, "load", compile_slowly)
    new.setattr(build, "is_built", lambda *a, **k: False)
    thread = threading.Thread(target=native_library.available)
    thread.start()
    try:
        assert compiling.wait(30)
        began = time.monotonic()
        assert native_library.soon(lambda: called.append(1))
        assert time.monotonic() - began < 5 and not called
    finally:
        proceed.set()
        thread.join()
    assert not called and not native_library._LibraryState.waiting and not native_library.soon(lambda: None)


def test_waiting_callbacks_run_in_the_thread_that_compiled(new):
    called = []
    new.setattr(launching, "attach", lambda library: None)
    new.setattr(native_library, "Library", lambda loaded: loaded)
    new.setattr(native_library._LibraryState, "compiling", True)

    def load(*args, **kwargs):
        assert native_library.soon(lambda: called.append(threading.get_ident()))
        return "the library"

    new.setattr(build, "load", load)
    assert native_library.available() and called == [threading.get_ident()]


def test_after_ctrl_c_during_compilation_the_next_call_tries_again(new):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    new.setattr(build, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        native_library.available()
    assert not native_library._LibraryState.tried and not native_library._LibraryState.compiling
