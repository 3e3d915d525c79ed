"""The one library of `src/opmux/native`: when it is compiled, and what is said where it cannot be."""

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
from opmux.faces.aten.schema import Shape


@pytest.fixture
def new(monkeypatch):
    """As in a process that has not tried to load it, and must not compile it."""
    for name, value in {"library": None, "tried": False, "compiling": False, "waiting": []}.items():
        monkeypatch.setattr(native_library._State, name, value)
    for name in ("load", "library"):
        monkeypatch.setattr(build, name, lambda *a, **k: pytest.fail("it is compiled"))
    monkeypatch.setattr(background, "run", lambda *a, **k: pytest.fail("it is compiled in the background"))
    return monkeypatch


def said(caplog, call):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="opmux"):
        call()
    return [r.getMessage() for r in caplog.records]


def test_every_file_of_the_folder_belongs_to_it():
    """Else a change of that file would not compile the library again."""
    assert sorted(native_library.SOURCES) == sorted(native_library.FOLDER.iterdir())


def test_a_wheel_contains_it():
    settings = tomllib.loads((native_library.FOLDER.parents[2] / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"]["find"]["namespaces"]  # a folder without Python counts as a package
    assert {f"*{file.suffix}" for file in native_library.SOURCES} <= set(settings["package-data"]["*"])


def test_opmux_native_stays_a_function():
    import opmux

    assert callable(opmux.native) and not list(native_library.FOLDER.glob("*.py"))


def test_forgetting_launches_reaches_what_the_functions_have_recorded(monkeypatch):
    """The gate's are voided with them: tests/faces/test_gate_launch.py."""
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    monkeypatch.setattr(launching._State, "recorded", True)
    before = native_library.loaded().functions_epoch()
    launching.clear()
    assert native_library.loaded().functions_epoch() == before + 1


def test_with_an_untested_torch_nothing_is_compiled(new, caplog):
    """The gate names a private member of torch's dispatcher."""
    new.setitem(launching.TESTED, "torch", ((1, 0), (1, 13)))
    assert not native_library.possible() and not native_library.must_be_compiled()
    assert not native_library.soon(lambda: pytest.fail("is used"))
    for compiles in (native_library.compile, native_library.is_built):
        with pytest.raises(Untested, match=rf"torch {torch.__version__.split('+')[0]}.* tested with torch 1.0 to 1.13"):
            compiles()
    (warning,) = said(caplog, lambda: [native_library.available() for _ in range(3)])
    assert "tested with torch 1.0 to 1.13" in warning and "auto mode takes few ops" in warning
    assert native_library.loaded() is None and gate.make("cpu", Shape("exp"), "CPU") is None
    assert cpu_kernels.available() is True  # they use torch's public headers


def test_triton_may_be_untested_then_the_gate_launches_nothing(monkeypatch, caplog):
    monkeypatch.setitem(launching.TESTED, "triton", ((1, 0), (1, 1)))
    monkeypatch.setattr(launching._State, "drives", None)
    assert not launching.untested("torch")
    (warning,) = said(caplog, launching.drives)
    assert "tested with triton 1.0 to 1.1" in warning and not launching.drives()


def test_without_pythons_headers_the_package_to_install_is_named(new, caplog, tmp_path):
    new.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert not native_library.possible()
    (warning,) = said(caplog, native_library.available)
    assert f"there is no {tmp_path}/Python.h. Install python3-dev or python3." in warning and "python3-devel" in warning


def test_what_is_lost_is_said_once(new, caplog):
    """By whoever meets it first: the overrides, or an op with a gradient whose library another process compiles."""

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


def test_the_program_that_compiles_in_the_background_runs(new):
    program = []
    new.setattr(build, "is_built", lambda *a, **k: False)
    new.setattr(background, "run", lambda text, then, env=None: program.append(text))
    assert native_library.soon(lambda: None)
    new.setattr(build, "library", lambda name, sources, flags, retry: program.append((name, sources, flags, retry)))
    exec(program[0])
    assert program[1] == ("native", native_library.SOURCES, native_library.flags(), False)


def test_turned_off_it_is_neither_compiled_nor_loaded(new, caplog):
    new.setenv("OPMUX_CPP", "0")
    assert not native_library.possible() and not native_library.must_be_compiled()
    assert not native_library.soon(lambda: pytest.fail("is used"))
    assert said(caplog, native_library.available) == [] and native_library.loaded() is None


def test_another_process_starts_with_a_path_among_its_modules(monkeypatch):
    """Python ignores entries of sys.path that are not strings."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    ended, said = threading.Event(), []
    background.run(
        "import sys; assert all(type(one) is str for one in sys.path)", lambda e: (said.append(e), ended.set())
    )
    assert ended.wait(60) and said == [""]


def test_what_waits_is_done_although_one_of_them_raises(new):
    new.setattr(native_library._State, "library", object())
    new.setattr(native_library._State, "tried", True)
    done = []
    new.setattr(native_library._State, "waiting", [lambda: 1 / 0, lambda: done.append(1)])
    native_library._compiled("the other process failed, this one has compiled it meanwhile")
    assert done == [1] and not native_library._State.waiting


def test_an_op_does_not_wait_for_another_thread_that_compiles(new):
    """It runs in Python until then, and is called back by that thread."""
    compiling, proceed, done = threading.Event(), threading.Event(), []

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
        assert native_library.soon(lambda: done.append(1))
        assert time.monotonic() - began < 5 and not done
    finally:
        proceed.set()
        thread.join()
    assert not done and not native_library._State.waiting and not native_library.soon(lambda: None)


def test_what_waits_is_called_by_the_thread_that_has_compiled(new):
    done = []
    new.setattr(launching, "attach", lambda library: None)
    new.setattr(native_library, "Library", lambda loaded: loaded)
    new.setattr(native_library._State, "compiling", True)

    def load(*args, **kwargs):
        assert native_library.soon(lambda: done.append(threading.get_ident()))
        return "the library"

    new.setattr(build, "load", load)
    assert native_library.available() and done == [threading.get_ident()]


def test_ctrl_c_while_the_library_is_compiled_lets_the_next_call_try_again(new):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    new.setattr(build, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        native_library.available()
    assert not native_library._State.tried and not native_library._State.compiling
