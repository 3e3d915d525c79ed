"""Kernel tests run in one of two modes (see --triton); each file names its own."""

import re

import pytest

MODE = re.compile(r'^MODE = "(\w+)"$', re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """Do not even import a file for the other mode."""
    if collection_path.suffix == ".py":
        found = MODE.search(collection_path.read_text(encoding="utf-8"))
        if found and found[1] != config.getoption("--triton"):
            return True
    return None


def pytest_collection_modifyitems(config, items):
    """A file named on the command line is collected whatever its mode."""
    mode = config.getoption("--triton")
    for item in items:
        wants = getattr(item.module, "MODE", None)
        if wants is not None and wants != mode:
            item.add_marker(pytest.mark.skip(reason=f"runs with --triton={wants}"))


@pytest.fixture(autouse=True)
def prepared(request):
    """The interpreter computes correctly, and new memory is poisoned."""
    if getattr(request.module, "MODE", None) == "interpret":
        request.getfixturevalue("interpreted")
        request.getfixturevalue("poisoned")
