"""Fixtures of the tests of faces."""

import contextlib

import pytest


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """An empty cache folder. opmux's C++ is loaded first, because with an empty cache it would be compiled."""
    from opmux.backends._cpu.ops import native
    from opmux.core.errors import NotSupported
    from opmux.cpp import library as native_library

    native_library.available()
    with contextlib.suppress(NotSupported):  # there is no compiler
        native.load("rms_norm")
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path))
    return tmp_path
