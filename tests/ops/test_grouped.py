"""Grouped matrix products on the CPU: the torch calls of the reference, and the torch calls of NVIDIA's backend."""

from __future__ import annotations

import pytest
import torch

from opmux.backends._cpu.ops import grouped as cpu
from opmux.backends._nvidia.ops import grouped as nvidia
from opmux.core import specs
from opmux.specs import grouped as spec

CPU = torch.device("cpu")
NAMES = ("grouped_mm", "grouped_mm_bwd", "grouped_mm_wgrad")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def agree(name, fn, sample):
    results = lambda result: result if isinstance(result, tuple) else (result,)
    for got, want in zip(results(fn(*sample.args)), results(specs.find(name).reference(*sample.args)), strict=True):
        tol = specs.find(name).tol[want.dtype]
        assert got.dtype is want.dtype and got.is_contiguous() and not got._is_view()
        torch.testing.assert_close(got, want, rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{sample.id}: {m}")


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_grouped_products_on_the_cpu_equal_the_reference(name):
    for dtype in DTYPES:
        for sample in specs.find(name).samples(dtype, CPU):
            agree(name, getattr(cpu, name), sample)
    for bad in (b for b in specs.find(name).errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            getattr(cpu, name)(*bad.args)


@pytest.mark.skipif(nvidia._grouped_mm is None, reason="this torch has no grouped product")
@pytest.mark.parametrize("name", NAMES)
def test_torchs_grouped_calls_equal_the_reference(name):
    """torch has grouped products on the CPU too, called in the same way and with the same requirements."""
    when = getattr(nvidia, name).when
    assert all(isinstance(when(*s.args), str) for s in specs.find(name).samples(torch.bfloat16, CPU))
    for rows, k, n in ((37, 104, 24), (5, 8, 16)):
        options = {"groups": 5, "out": n, "tb": rows == 37}
        agree(name, getattr(nvidia, name), specs.find(name).samples.at((rows, k), torch.bfloat16, CPU, **options))
    for bad in (b for b in specs.find(name).errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            when(*bad.args)


def test_rows_without_a_group_do_not_affect_gradients():
    a, b, ends = torch.randn(6, 3), torch.randn(6, 2), torch.tensor([2, 2, 4], dtype=torch.int32)
    a[4:] = torch.nan
    for fn in (spec.grouped_mm_wgrad.reference, cpu.grouped_mm_wgrad):
        got = fn(a, b, ends)
        torch.testing.assert_close(got, torch.stack([a[:2].T @ b[:2], torch.zeros(3, 2), a[2:4].T @ b[2:4]]))
