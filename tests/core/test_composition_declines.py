"""A composition declines if one of its parts has no implementation; this does not count as a failure."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from opmux.core import BackendImplKind, NotSupported, SelectionPolicy, get_default_manager, policy_context, specs
from opmux.core.adapter import adapt
from opmux.core.spec import op

KEYS = ("opmux::declining_part", "tex::declining_whole")


@pytest.fixture
def whole():
    """Declare the op tex::declining_whole, which returns part(x) + 1, and its part opmux::declining_part, which returns
    2 * x.
    """

    def declining_part(x: Tensor) -> Tensor:
        return 2 * x

    part = op(declining_part, out="y")

    @adapt(KEYS[1], over=part, out="y")
    def declining_whole(part, x: Tensor) -> Tensor:
        return part(x) + 1

    yield declining_whole
    for key in KEYS:
        specs.remove(specs.by_key[key])


@pytest.fixture
def declining(add_impl):
    """The only impl of the part that the policy allows; it declines every call."""

    def never(x):
        raise NotSupported("not for this tensor")

    add_impl(KEYS[0], "default.flagos", BackendImplKind.DEFAULT, never)


def test_a_part_without_an_implementation_is_not_a_failure(whole, declining, caplog):
    x, manager = torch.arange(3.0), get_default_manager()
    with policy_context(SelectionPolicy(per_op_order={KEYS[0]: ("flagos",)})), caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.testing.assert_close(whole(x), 2 * x + 1)
    assert not [f for f in manager.failures() if f.op.endswith("declining_whole")]
    assert "skipped from now on" not in caplog.text
