"""Specs are tested by their references, which is what runs on a CPU without kernels of its own."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def bare(no_kernels_of_the_cpu):
    """tests/backends/test_cpu.py is for the CPU's own kernels."""
