"""For tests of Liger's names: opmux serves them while a module of tests runs."""

import pytest
import torch

from opmux.faces import compat


@pytest.fixture(scope="module", autouse=True)
def liger():
    compat.install("liger_kernel")
    yield
    compat.uninstall("liger_kernel")


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)
