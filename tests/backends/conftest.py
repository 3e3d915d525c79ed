"""Fixtures of the tests of vendors."""

import pytest


@pytest.fixture(scope="module")
def cpu_kernels():
    """Compile the CPU's C++ kernels, or skip the tests if there is no compiler."""
    from opmux.backends._cpu.ops import native
    from opmux.core.errors import NotSupported
    from opmux.cpp.build import CannotBuild

    try:
        native.compile()
        native.load("rms_norm")
    except (NotSupported, CannotBuild) as error:
        pytest.skip(str(error))
