"""The kernels of grouped products, interpreted, beyond the samples: rows without a group, and invalid ends."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import grouped as kernels
from opmux.specs import grouped as spec

MODE = "interpret"


def ends_of(*ends):
    return torch.tensor(ends, dtype=torch.int32)


def test_rows_after_the_last_group_are_ignored():
    """Rows after the last group are not read, and do not affect any result."""
    a, b, dy = torch.randn(40, 24), torch.randn(3, 24, 20), torch.randn(40, 20)
    a[33:] = dy[33:] = torch.nan
    ends = ends_of(20, 20, 33)
    got, want = kernels.grouped_mm(a, b, ends, False), spec.grouped_mm.reference(a, b, ends)
    torch.testing.assert_close(got[:33], want[:33], rtol=1e-5, atol=1e-4)
    got, want = kernels.grouped_mm_wgrad(a, dy, ends), spec.grouped_mm_wgrad.reference(a, dy, ends)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("ends", [(5, 3, 12), (-1, 4, 12), (4, 30, 31)], ids=str)
def test_invalid_ends_cause_no_access_out_of_bounds(ends):
    """Groups may overlap or end after the last row; the kernel still reads and writes nothing outside of the
    tensors.
    """
    buffer = torch.full((3, 12, 16), 7.0)
    a = buffer[1].copy_(torch.randn(12, 16))
    y = kernels.grouped_mm(a, torch.randn(3, 16, 16), ends_of(*ends), True)
    c = kernels.grouped_mm_wgrad(a, a, ends_of(*ends))
    assert y.shape == (12, 16) and c.shape == (3, 16, 16) and (buffer[::2] == 7).all()


def test_one_group_is_a_plain_product():
    a, b = torch.randn(70, 33), torch.randn(1, 33, 40)
    torch.testing.assert_close(kernels.grouped_mm(a, b, ends_of(70), False), a @ b[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(kernels.grouped_mm_wgrad(a, a, ends_of(70))[0], a.T @ a, rtol=1e-5, atol=1e-4)
