"""Options, markers and a clean slate for every test."""

import os
from pathlib import Path

import pytest
import torch

PREFIXES = ("OPMUX_", "TE_FL_", "TEFL_")
NAMES = {"TE_BACKEND", "TE_PLUGIN", "TE_FALLBACK_BACKEND"}


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


def pytest_sessionstart(session):
    """Compile what is compiled on first use before any test: none is to wait for it, or to see it said."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    from opmux.backends._cpu.ops import native
    from opmux.runtime import build

    simulator = Path(build.__file__).parents[1] / "tools" / "simulator"
    try:
        build.library("cpu_kernels", native.SOURCES, flags=native.flags())
        build.library("simulator", sorted([*simulator.glob("*.cpp"), *simulator.glob("*.h")]), flags=("-O1",))
    except build.CannotBuild as error:  # a machine without a compiler: tests that need one say so
        print(error)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A worker that crashes costs the test it was running, by name, and nothing else.

    xdist's own scheduler of groups sends work to workers that are not ready or not there any more (an internal error
    ends the run), repeats the test that crashed, and leaves the last test of a replacement waiting (seen in 3.8).
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
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
    reasons = {}
    if not config.getoption("--slow"):
        reasons["slow"] = "needs --slow"
    if any(item.get_closest_marker("gpu") for item in items) and not torch.cuda.is_available():
        reasons["gpu"] = "needs a CUDA device"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def clean_env(monkeypatch):
    """What the developer has exported must not decide a test."""
    for name in list(os.environ):
        if name.startswith(PREFIXES) or name in NAMES:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def no_kernels_of_the_cpu():
    """On the CPU the references run, as on a machine without a compiler."""
    from opmux.runtime import packages

    kept = packages.known()["cpu"]
    packages.forget("cpu")
    yield
    packages._add(kept.info, kept.module, kept.origin)
