"""Vendors' backends on devices that are not here."""

import functools

import fresh
import pytest

from opmux.runtime import build
from opmux.tools import simulator


@pytest.fixture(scope="session")
def simulated():
    """`simulated(device, code, arch=, env=)`: what a program prints last, as JSON, where torch has such a device."""
    try:
        build.compiler()
    except build.CannotBuild as error:
        pytest.skip(str(error))
    return functools.partial(simulator.run, start=fresh.warm)
