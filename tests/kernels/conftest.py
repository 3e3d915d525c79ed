"""Kernel tests run in one of two modes (see --triton): each file says which it is for."""

import pytest


def pytest_collection_modifyitems(config, items):
    mode = config.getoption("--triton")
    for item in items:
        wants = getattr(item.module, "MODE", None)
        if wants is not None and wants != mode:
            item.add_marker(pytest.mark.skip(reason=f"runs with --triton={wants}"))
