"""A part of `opmux conform --real` on a GPU: the first cases of each of our kernels, at the sizes of real models.

Hundreds of kernels are compiled: `pytest -n 8 tests/gpu/test_gpu_real.py`. The command itself runs many more cases.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from opmux.core import get_default_manager, specs
from opmux.faces.aten.overloads import table
from opmux.tools.conform import real
from opmux.tools.conform.real_command import attempt, settled

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")

CUDA = torch.device("cuda", 0)
EACH = 3
FAMILIES = (
    "activation channel_norm gemm moe norm pointwise quant random reduce rope scan softmax dropout stack3"
).split()


def first_of_each(found):
    """The first cases of every op, in their order."""
    found = sorted(found, key=lambda c: c.op)
    return [c for _, mine in itertools.groupby(found, key=lambda c: c.op) for c in itertools.islice(mine, EACH)]


def all_right(found):
    made = [attempt(case, CUDA) for case in found]
    wrong = [f"{o.op} {o.dtype} {o.case} ({', '.join(o.models)}): {o.reason}" for o in made if o.status == real.FAIL]
    assert not wrong, "\n".join(wrong)
    assert any(o.status == real.PASS for o in made)


@pytest.mark.parametrize("family", FAMILIES)
def test_ops_conform_at_real_sizes(family):
    with settled():
        mine = [s for s in specs if s.family == family and s.space in ("opmux", "aten") and s.samples is not None]
        all_right(first_of_each(real.cases(real.CaseSelection(mine, {}), CUDA)))


@pytest.mark.parametrize("family", ["activation", "channel_norm", "norm", "pointwise", "reduce", "scan", "softmax"])
def test_aten_overrides_conform_at_real_sizes(family):
    with settled():
        mine = {n: o for n, o in table().items() if o.family == family}
        all_right(first_of_each(real.cases(real.CaseSelection([], mine), CUDA)))


def test_the_list_of_families_is_complete():
    registry = get_default_manager().registry
    registry.list_operators()
    ours = [s for s in specs if s.space != "tex" and any(i.impl_id == "default.flagos" for i in registry.impls(s.key))]
    assert {s.family for s in ours} == set(FAMILIES)
