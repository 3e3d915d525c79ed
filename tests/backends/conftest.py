"""Fixtures of the tests of vendors."""

import pytest


@pytest.fixture(scope="module")
def cpu_kernels():
    """The CPU's C++ kernels are compiled; without a compiler the tests are skipped."""
    from opmux.backends._cpu.ops import native
    from opmux.core.errors import NotSupported

    try:
        native.compile()
        native.load("rms_norm")
    except NotSupported as error:
        pytest.skip(str(error))
