"""Fixtures of the tests of faces."""

import pytest


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """An empty cache folder; opmux's C++ was loaded from another."""
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path))
    return tmp_path
