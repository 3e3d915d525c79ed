"""What the tests of the caches share."""

import os

import pytest


@pytest.fixture(autouse=True)
def closed_to_others():
    """Folders that tests make must pass the check of owners and modes."""
    before = os.umask(0o022)
    yield
    os.umask(before)
