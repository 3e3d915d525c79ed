"""Options, markers and a clean slate for every test."""

import functools
import gc
import importlib
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import bytecode
import fresh
import pytest

bytecode.keep()  # before the import that has the most of it

import torch  # noqa: E402

PREFIXES = ("OPMUX_", "TE_FL_", "TEFL_")
NAMES = {"TE_BACKEND", "TE_PLUGIN", "TE_FALLBACK_BACKEND"}
KEPT = {"OPMUX_CACHE_DIR"}  # where the C++ is that was compiled at the start of the session


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption(
        "--triton",
        choices=("interpret", "compile", "device"),
        default="device" if torch.cuda.is_available() else "interpret",
        help="how kernels run: in the interpreter, compiled for chips that are not here, or on the device",
    )


def pytest_configure(config):
    # Before anything imports triton: it decides at import what its decorators make.
    os.environ.pop("TRITON_INTERPRET", None)
    if config.getoption("--triton") == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    # Workers that each take every core are slower together than one alone.
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the programs that tests start


@functools.cache
def _turn():
    """A number that grows by one from commit to commit; TEST_TURN sets it.

    The count of commits brings every case round within n of them; the hash of a commit, which is all that a shallow
    clone knows, only makes it likely.
    """
    given = os.environ.get("TEST_TURN")
    if given is not None:
        return int(given)
    if _git("rev-parse", "--is-shallow-repository") == "false":
        return int(_git("rev-list", "--count", "--first-parent", "HEAD") or 0)
    return int(_git("rev-parse", "HEAD")[:6] or "0", 16)


def _git(*words):
    """What git writes, or nothing: the sources may lie in no repository."""
    done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, encoding="utf-8")
    return done.stdout.strip() if done.returncode == 0 else ""


def pytest_report_header(config):
    if not config.getoption("--slow"):
        return f"turn {_turn()}: of tests marked rotates(n) or turns(n), one in n; TEST_TURN={_turn()} selects the same"
    return None


def pytest_ignore_collect(collection_path):
    """tests/gpu is not even collected without a GPU, unless it is named on the command line."""
    return True if collection_path.name == "gpu" and not torch.cuda.is_available() else None


def pytest_sessionstart(session):
    """Compile what is compiled on first use before any test: none is to wait for it, or to see it said."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    import libraries

    _compiling.extend(libraries.start())


_compiling: list[threading.Thread] = []


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """In a tree that is new, workers collect one after another: the first compiles what all of them import.

    Each would spend 20 s of CPU time on the same bytecode. The type checker runs meanwhile (make test).
    """
    config = session.config
    done = Path(sys.pycache_prefix, *config.rootpath.parts[1:], "collected")
    if not hasattr(config, "workerinput") or done.exists():
        return (yield)
    import fcntl

    done.parent.mkdir(parents=True, exist_ok=True)
    with done.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = yield
        done.touch()
        return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished():
    """Workers collect while compilers work; then they wait."""
    for thread in _compiling:
        thread.join()


def pytest_collection_finish():
    for thread in _compiling:
        thread.join()
    gc.freeze()  # modules and tests stay: each full collection of garbage would look through them for half a second


_files: list[Path] = []  # in the order in which their tests are run


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """What the tests of other files have imported stays too. What they leave in cycles is gone: managers, scopes.

    The programs of a test are taken apart at their end in one of its five runs: that takes longer than most programs.
    """
    fresh.torn_down = item.config.getoption("--slow") or (zlib.crc32(item.nodeid.encode()) + _round(item)) % 5 == 0
    if _files[-1:] != [item.path]:
        _files.append(item.path)
        gc.collect()
        gc.freeze()


def _round(item):
    """A number that grows by one from one run of a test to its next."""
    marks = [mark for kind in ("rotates", "turns") if (mark := item.get_closest_marker(kind))]
    return _turn() // max((mark.args[0] for mark in marks), default=1)


@functools.cache
def _stays_together(path):
    return "pytest.mark.xdist_group" in path.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file with an `xdist_group` stays on one worker; a crash costs the test that was running, and nothing else.

    xdist's own scheduler of groups (3.8) finds no group under pytest 9.2, which keeps names of tests elsewhere: both
    workers then make what the tests of a file share. It sends work to workers that are not ready or not there any more
    (an internal error ends the run), repeats the test that crashed, and leaves the last test of a replacement waiting.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0]
            return path if _stays_together(config.rootpath / path) else nodeid

        def mark_test_complete(self, node, item_index, duration=0):
            """Units that are done are forgotten: xdist counts through all of them after every test."""
            nodeid = self.registered_collections[node][item_index]
            scope, units = self._split_scope(nodeid), self.assigned_work[node]
            units[scope][nodeid] = True
            if all(units[scope].values()):
                del units[scope]
            self._reschedule(node)

        def remove_node(self, node):
            units = self.assigned_work.pop(node)
            left = [(unit, test) for unit in units.values() for test, done in unit.items() if not done]
            if not left:
                return None
            unit, crashed = left[0]
            unit[crashed] = True
            self.workqueue.update({name: unit for name, unit in units.items() if not all(unit.values())})
            return crashed  # whoever has time, or the worker that replaces this one, does the rest

        def _reschedule(self, node):
            if node not in self.registered_collections:  # still collecting: it asks when it is done
                return
            try:
                super()._reschedule(node)
            except OSError:  # down, and not yet removed: then the work comes back
                return
            if not self.workqueue:
                node.shutdown()  # nothing comes after its last test: it need not wait for a next one

    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        left_out = _beyond_few(items) | _not_in_turn(_unnamed(config, items))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):  # long tests first: at the end no worker waits for another's
        items.sort(key=lambda item: item.get_closest_marker("turns") is None)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _beyond_few(items):
    """The cases that `few(n)` leaves out of each test that is marked so."""
    cases = {}
    for item in items:
        if item.get_closest_marker("few"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set()
    for found in cases.values():
        n = found[0].get_closest_marker("few").args[0]
        kept = {i * len(found) // n for i in range(n)} if len(found) > n else range(len(found))
        left_out.update(item for i, item in enumerate(found) if i not in kept)
    return left_out


def _unnamed(config, items):
    """The items that nobody has asked for: by `-k`, or by the name of their file or test on the command line."""
    if config.option.keyword:
        return []
    named = {(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args}
    return [item for item in items if item.path.resolve() not in named]


def _not_in_turn(items):
    """Of the cases of a test marked `rotates(n)`, and of all tests marked `turns(n)`, all but one in n.

    Others run from commit to commit. A file that is marked as a whole, with `pytestmark`, is one test, and so are those
    of one `unit`.
    """
    cases, tests = {}, {}
    for item in items:
        if item.get_closest_marker("rotates"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        if mark := item.get_closest_marker("turns"):
            unit = item.nodeid if mark in item.own_markers else item.nodeid.partition("::")[0]
            tests.setdefault(mark.args[0], {}).setdefault(mark.kwargs.get("unit", unit), []).append(item)
    left_out = set()
    for found in cases.values():
        n = min(found[0].get_closest_marker("rotates").args[0], len(found))
        left_out.update(item for i, item in enumerate(found) if (i + _turn()) % n)
    for n, units in tests.items():
        for unit, place in _spread(units, n).items():
            if (place + _turn()) % n:
                left_out.update(units[unit])
    return left_out


def _spread(units, n):
    """At which of n turns each unit runs: the longest first, where there is the least until then."""
    seconds = {unit: found[0].get_closest_marker("turns").kwargs.get("seconds", 3) for unit, found in units.items()}
    taken, places = [0] * n, {}
    for unit in sorted(units, key=lambda unit: -seconds[unit]):
        places[unit] = taken.index(min(taken))
        taken[places[unit]] += seconds[unit]
    return places


@pytest.fixture
def setenv(monkeypatch):
    """Set variables, and have the process's policy read again; both are undone after the test."""
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
    """What the developer has exported must not decide a test."""
    for name in list(os.environ):
        if (name.startswith(PREFIXES) or name in NAMES) and name not in KEPT:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def seeded():
    """Without a GPU, `torch.manual_seed` keeps the stack of its caller, for one that is initialized later: 1 ms."""
    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture(scope="session")
def slow(pytestconfig):
    """Whether the run takes its time (--slow)."""
    return pytestconfig.getoption("--slow")


@pytest.fixture(scope="session")
def turn():
    """A number that changes from commit to commit, for tests that run other cases then."""
    return _turn()


@pytest.fixture(scope="session")
def few(slow):
    """`few(things, n)`: n of them, spread from first to last; all of them with --slow."""

    def pick(things, n):
        found = list(things)
        return found if slow or len(found) <= n else [found[i * len(found) // n] for i in range(n)]

    return pick


@pytest.fixture(scope="session")
def interpreted(pytestconfig):
    """Kernels run in Triton's interpreter, repaired and checked once per process."""
    pytest.importorskip("triton")
    if pytestconfig.getoption("--triton") != "interpret":
        pytest.skip("runs with --triton=interpret")
    import quick_interpreter

    from opmux.kernels.lib import interpret

    quick_interpreter.install()
    interpret.self_test()


@pytest.fixture
def poisoned(monkeypatch):
    """New memory holds NaN, 85 or alternating flags: a result that a kernel does not write cannot pass."""
    importlib.import_module("torch._dynamo")  # which traces the functions that torch has at its import, and no others
    for name in ("empty", "empty_like", "empty_strided"):
        allocate = getattr(torch, name)
        monkeypatch.setattr(torch, name, functools.partial(_poison, allocate))


def _poison(allocate, *args, **kwargs):
    made = allocate(*args, **kwargs)
    if made.dtype is torch.bool:
        flags = torch.arange(made.numel(), device=made.device) % 2 == 0
        return made.copy_(flags.view(made.shape))
    return made.fill_(float("nan") if made.is_floating_point() or made.is_complex() else 85)


@pytest.fixture(scope="module")
def no_kernels_of_the_cpu():
    """On the CPU the references run, as on a machine without a compiler."""
    from opmux.runtime import vendors

    kept = vendors.known()["cpu"]
    vendors.forget("cpu")
    yield
    vendors._add(kept.info, kept.module, kept.origin)
