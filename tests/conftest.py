"""Options, markers and fixtures of all tests. README.md in this folder says what each test folder covers."""

import contextlib
import functools
import gc
import importlib
import os
import sys
import threading
from pathlib import Path

import fresh
import pytest
import torch
import touched

PREFIXES = ("OPMUX_", "TE_FL_", "TEFL_")
NAMES = {"TE_BACKEND", "TE_PLUGIN", "TE_FALLBACK_BACKEND"}
KEPT = {"OPMUX_CACHE_DIR"}  # the cache of the C++ libraries that were compiled at the start of the session


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run every test and every case")
    parser.addoption("--rest", action="store_true", help="with --slow: leave out what a run without it has run whole")
    parser.addoption("--touched", metavar="BASE", help="run only the tests of what changed since a commit")
    parser.addoption(
        "--triton",
        choices=("interpret", "compile", "device"),
        default="device" if torch.cuda.is_available() else "interpret",
        help="how kernels run: in the interpreter, compiled for chips that are not here, or on the device",
    )


def pytest_configure(config):
    # Set this before anything imports triton, which reads it at import.
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.pop("COLUMNS", None)  # set by pytest-xdist; what opmux prints to a pipe depends on it
    if config.getoption("--triton") == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):
        import setuptools  # noqa: F401 - its import fails after one of Python's own distutils, which tests import
    os.umask(0o022)  # a cache directory that others can write to is rejected
    fresh.torn_down = config.getoption("--slow")
    # Several workers that each use every core are slower than workers with one thread each.
    if hasattr(config, "workerinput"):
        # programs that tests start inherit the variable
        torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))


def pytest_ignore_collect(collection_path):
    """Do not even collect tests/gpu without a GPU, unless it is named on the command line."""
    return True if collection_path.name == "gpu" and not torch.cuda.is_available() else None


def pytest_sessionstart(session):
    """Compile the C++ libraries before the tests, so that no test waits for a compiler or sees its log line."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    import libraries

    _compiling.extend(libraries.start())


_compiling: list[threading.Thread] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished():
    """Workers collect tests while the compilers run, and then wait for the compilers."""
    for thread in _compiling:
        thread.join()


def pytest_collection_finish():
    for thread in _compiling:
        thread.join()
    # modules and tests stay alive, so without freezing each full garbage collection would traverse them for half a
    # second
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # at exit, triton reports objects that are still frozen as leaked


def _load_libraries():
    """Load opmux's C++ from the usual cache folder: in a test with a folder of its own, it would be compiled again."""
    from opmux.backends._cpu.ops import native
    from opmux.core.errors import NotSupported
    from opmux.cpp import library

    library.available()
    with contextlib.suppress(NotSupported):  # there is no compiler
        native.load("rms_norm")


_files: list[Path] = []  # the test files, in the order in which they run


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Between files: collect the reference cycles of the last file (managers, scopes), freeze the modules that it
    imported, and reset Dynamo, which stops compiling a function that earlier tests have recompiled too often.
    """
    if not _files:
        _load_libraries()
    if _files[-1:] != [item.path]:
        _files.append(item.path)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        gc.collect()
        gc.freeze()


def pytest_report_header(config):
    if config.getoption("--touched"):
        return touched.since(config.getoption("--touched")).header()
    return None


@pytest.hookimpl(trylast=True)  # after pytest has applied -k
def pytest_collection_modifyitems(config, items):
    slow_ones = {item for item in items if item.get_closest_marker("slow")}
    slow_ones |= _beyond_few([item for item in items if item not in slow_ones])
    if not config.getoption("--slow"):
        # If -k selects slow tests only, as for a new kernel, they run.
        leave_out = set() if config.option.keyword and slow_ones >= set(items) else slow_ones
    elif config.getoption("--rest"):
        leave_out = {i for i in items if i not in slow_ones and not {"slow", "few"} & set(i.fixturenames)}
    else:
        leave_out = set()
    if config.getoption("--touched"):
        change = touched.since(config.getoption("--touched"))
        leave_out = leave_out | {item for item in items if not change.concerns(item)}
    config.hook.pytest_deselected(items=[item for item in items if item in leave_out])
    # First run the files whose tests start programs: these take longest, and no worker should be idle at the end.
    items[:] = sorted((i for i in items if i not in leave_out), key=lambda item: not _starts_programs(item.path))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@functools.cache
def _starts_programs(path):
    text = path.read_text(encoding="utf-8")
    return any(word in text for word in ("import fresh", "import ranks", "import vendor_folder", "simulat", "shell"))


def _beyond_few(items):
    """The cases that the marker `few(n)` leaves out."""
    cases = {}
    for item in items:
        if item.get_closest_marker("few"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set()
    for cases_of_one in cases.values():
        selected = set(_spread(cases_of_one, cases_of_one[0].get_closest_marker("few").args[0]))
        left_out.update(item for item in cases_of_one if item not in selected)
    return left_out


def _spread(items, n):
    """Return n items, spread evenly from the first one on; all items if there are at most n."""
    items = list(items)
    return items if len(items) <= n else [items[i * len(items) // n] for i in range(n)]


@pytest.fixture
def setenv(monkeypatch):
    """Set variables and reload the process's policy. Both are undone after the test."""
    from opmux.core import reset_global_policy

    def set_all(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        reset_global_policy()

    yield set_all
    monkeypatch.undo()
    reset_global_policy()


@pytest.fixture(autouse=True)
def clean_env(monkeypatch):
    """Variables that the developer has exported must not affect a test."""
    for name in list(os.environ):
        if (name.startswith(PREFIXES) or name in NAMES) and name not in KEPT:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def seeded():
    """Without a GPU, seed only the CPU generator: `torch.manual_seed` would take 1 ms to queue the seed for CUDA."""
    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture(scope="session")
def slow(pytestconfig):
    """Whether --slow was given."""
    return pytestconfig.getoption("--slow")


@pytest.fixture(scope="session")
def few(slow):
    """`few(items, n)` returns n items, spread evenly over the list; with --slow it returns all items."""

    return lambda items, n: list(items) if slow else _spread(items, n)


@pytest.fixture(scope="session")
def interpreted(pytestconfig):
    """Run kernels in Triton's interpreter. Once per process, patch it and check that it computes correctly."""
    pytest.importorskip("triton")
    if pytestconfig.getoption("--triton") != "interpret":
        pytest.skip("runs with --triton=interpret")
    from opmux.kernels.lib import interpret, quick_interpret

    quick_interpret.install()
    interpret.self_test()


@pytest.fixture
def poisoned(monkeypatch):
    """Fill new memory with NaN, 85 or alternating flags, so that a test fails if a kernel does not write its result."""
    importlib.import_module(
        "torch._dynamo"
    )  # it records torch's functions at its import, so they must not be patched yet
    for name in ("empty", "empty_like", "empty_strided"):
        allocate = getattr(torch, name)
        monkeypatch.setattr(torch, name, functools.partial(_poison, allocate))


def _poison(allocate, *args, **kwargs):
    tensor = allocate(*args, **kwargs)
    if tensor.dtype is torch.bool:
        flags = torch.arange(tensor.numel(), device=tensor.device) % 2 == 0
        return tensor.copy_(flags.view(tensor.shape))
    return tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 85)


@pytest.fixture(scope="module", autouse=True)
def references_on_the_cpu(request):
    """In these folders the CPU's own C++ kernels are off; tests/backends/test_cpu.py tests them."""
    if request.path.parent.name in ("core", "ops", "tools"):
        request.getfixturevalue("no_kernels_of_the_cpu")


@pytest.fixture(scope="module")
def no_kernels_of_the_cpu():
    """The references run on the CPU, as on a machine without a compiler."""
    from opmux.machine import vendors

    cpu = vendors.known()["cpu"]
    vendors.forget("cpu")
    yield
    vendors._add(cpu.info, cpu.module, cpu.origin)


@pytest.fixture(scope="session")
def simulated():
    """`simulated(device, code, arch=, env=)`: run a program where torch has such a device; returns its last line,
    parsed as JSON.
    """
    from opmux.cpp import build
    from opmux.tools import simulator

    try:
        build.compiler()
    except build.CannotBuild as error:
        pytest.skip(str(error))
    return functools.partial(simulator.run, start=fresh.warm)


@pytest.fixture
def adapters(request, interpreted, poisoned):
    """The ATen adapters of the op family that the test file names in FAMILY; they call our interpreted kernels."""
    import aten

    return aten.Adapters(request.module.FAMILY)
