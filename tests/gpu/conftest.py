"""Fixtures of the tests on a GPU."""

import pytest
import torch


@pytest.fixture
def full_precision():
    """No TF32: float32 products, those of libraries too, are computed in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
