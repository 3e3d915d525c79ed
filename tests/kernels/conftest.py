"""Kernel tests run in one of two modes (see --triton). Each file states its mode in MODE."""

import re

import pytest

MODE = re.compile(r'^MODE = "(\w+)"$', re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """Do not collect files whose MODE is not the mode of this run."""
    if collection_path.suffix == ".py":
        match = MODE.search(collection_path.read_text(encoding="utf-8"))
        if match and match[1] != config.getoption("--triton"):
            return True
    return None


def pytest_collection_modifyitems(config, items):
    """Skip tests of other modes: pytest collects them if the command line names their file."""
    mode = config.getoption("--triton")
    for item in items:
        wants = getattr(item.module, "MODE", None)
        if wants is not None and wants != mode:
            item.add_marker(pytest.mark.skip(reason=f"runs with --triton={wants}"))


@pytest.fixture(autouse=True)
def prepared(request):
    """Check that the interpreter computes correctly, and poison new memory."""
    if getattr(request.module, "MODE", None) == "interpret":
        request.getfixturevalue("interpreted")
        request.getfixturevalue("poisoned")
