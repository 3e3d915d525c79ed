"""Fixtures of the tests on a GPU."""

import pytest
import torch


@pytest.fixture
def full_precision():
    """Turn TF32 off, so that all float32 products, also those of libraries, are computed in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
