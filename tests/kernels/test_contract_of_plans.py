"""A planned kernel checks all arguments of its op, including those that its plan does not name."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton.language as tl

from opmux.core import get_default_manager, specs
from opmux.core.contract import Annotated, between
from opmux.core.errors import BadArgument
from opmux.core.spec import op
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.harness import Plan, RowSizes, host_code
from opmux.kernels.lib.launch import Launcher
from opmux.kernels.lib.rows import OutputSpec

MODE = "interpret"


def _shifted(x_ptr, y_ptr, x_stride, n_rows, n, shift, eps, BLOCK_N: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, BLOCK_N)
    b_x = tl.load(x_ptr + row * x_stride + o, mask=o < n)
    tl.store(y_ptr + row * n + o, b_x + shift + eps, mask=o < n)


kernel = Launcher(_shifted, sizes="x_stride n")


def shifted(x: Tensor, shift: int, eps: Annotated[float, between(0, None, open=True)], unused: int = 0) -> Tensor:
    return x + shift + eps


@pytest.fixture
def planned_shift():
    new_op = op(shifted, name="shifted_rows", out="y")

    @host_code(new_op)
    def rows(x: Tensor) -> Plan:
        sizes = RowSizes.of(x=x)
        return Plan({"y": OutputSpec.of(x.shape, x.dtype)}, [sizes.launch(kernel, Tiles(BLOCK_N=16), sizes.count)])

    yield rows
    specs.remove(new_op.spec)


@pytest.mark.parametrize(
    "name, wrong",
    [("eps", 0.0), ("eps", float("nan")), ("eps", "1"), ("shift", object()), ("shift", 1.5), ("unused", object())],
)
def test_a_number_that_the_plan_does_not_name_is_checked(planned_shift, name, wrong):
    x, numbers = torch.randn(3, 5), {"shift": 2, "eps": 0.5, "unused": 0}
    torch.testing.assert_close(planned_shift(x, *numbers.values()), x + 2.5)
    with pytest.raises(BadArgument, match=name):
        planned_shift(x, *{**numbers, name: wrong}.values())
    torch.testing.assert_close(planned_shift(x, 3, 0.25, 7), x + 3.25)


def kernels_of_ours():
    for family in specs.families:
        specs.load_implementers(family)
    manager = get_default_manager()
    manager.prepare()
    for spec in specs:
        if spec.space == "opmux":
            impls = {i.impl_id: i for i in manager.registry.impls(spec.key)}
            if "default.flagos" in impls:
                yield spec, impls["default.flagos"]


def test_kernels_accept_no_argument_that_the_contract_excludes():
    """The test calls the kernels without dispatch, because dispatch would fall back to a reference that makes the same
    checks. The kernel may raise any error: after a failed call, dispatch checks the arguments and raises BadArgument.
    """
    accepted, count = [], 0
    for spec, impl in kernels_of_ours():
        for bad in spec.errors("cpu"):
            count += 1
            with contextlib.suppress(Exception):
                impl.fn(*bad.args, **bad.kwargs)
                accepted.append(f"{spec.name} [{bad.id}]")
    assert not accepted and count > 1000, accepted
