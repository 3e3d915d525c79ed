"""Options and fixtures of the tests on a GPU."""

import pytest
import torch


@pytest.fixture
def full_precision():
    """Turn TF32 off, so that all float32 products, also those of libraries, are computed in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def pytest_addoption(parser):
    parser.addoption("--part", default="", help='"2/8": every eighth of the selected tests, from the second one on')


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    if part := config.getoption("--part", default=""):
        number, count = map(int, part.split("/"))
        kept = items[number - 1 :: count]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
