"""`choose` decides which impl of an op runs, from policies and measured times; it needs no machine and no tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from opmux.core import BackendImplKind, OpImpl, SelectionPolicy
from opmux.core.choosing import Measured, Preference, Speeds, choose

DEFAULT, VENDOR, REFERENCE = BackendImplKind.DEFAULT, BackendImplKind.VENDOR, BackendImplKind.REFERENCE
OURS, HOPPER, A, B, TORCH = (
    "default.flagos",
    "default.flagos.acme.hopper",
    "vendor.acme",
    "vendor.acme.b",
    "reference.torch",
)
POLICY = SelectionPolicy()


def impl(impl_id, kind, vendor=None, priority=0):
    return OpImpl("an_op", impl_id, kind, vendor, lambda x: x, priority)


IMPLS = {
    OURS: impl(OURS, DEFAULT),
    HOPPER: impl(HOPPER, DEFAULT, "acme", 200),
    A: impl(A, VENDOR, "acme", 2),
    B: impl(B, VENDOR, "acme", 1),
    TORCH: impl(TORCH, REFERENCE),
}


def order(times, policy=POLICY, first=None, ids=(OURS, A, B, TORCH)) -> list[str]:
    ranked, _ = choose(policy, "an_op", [IMPLS[i] for i in ids], Measured(times, first, "a chip", "n<=8"))
    return [c.impl.impl_id for c in ranked]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, [OURS, A, B, TORCH]),
        ({OURS: 3.0, A: 2.0, B: 1.0, TORCH: 9.0}, [B, A, OURS, TORCH]),
        ({OURS: 1.0, A: 1.0, B: 0.99}, [OURS, A, B, TORCH]),  # a difference below the margin
        ({A: 2.0, B: 1.0}, [OURS, B, A, TORCH]),  # our kernel was not measured and keeps its place
        ({OURS: 2.0, TORCH: 1.0}, [A, B, TORCH, OURS]),
    ],
)
def test_a_candidate_measured_slower_than_another_comes_after_it(times, expected):
    assert order(times) == expected


def test_a_verdict_has_the_candidates_time_and_names_the_faster_one():
    ranked, _ = choose(POLICY, "an_op", [IMPLS[A], IMPLS[B]], Measured({A: 55.0, B: 41.25}, None, "a chip", "n<=8"))
    assert [(c.impl.impl_id, c.us) for c in ranked] == [(B, 41.25), (A, 55.0)]
    assert ranked[1].after == {B: f"measured on a chip: {B} 41.25 us, this 55 us (n<=8)"} and not ranked[0].after


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SelectionPolicy(strict=True), [OURS, A, B, TORCH]),
        (SelectionPolicy(prefer="vendor"), [B, A, OURS, TORCH]),
        (SelectionPolicy(prefer="reference"), [TORCH, OURS, B, A]),
        (SelectionPolicy(per_op_order={"an_op": f"impl:{A}|*"}), [A, OURS, B, TORCH]),
        (SelectionPolicy(per_op_order={"an_op": "vendor:acme"}), [B, A]),
        (SelectionPolicy(deny_vendors=frozenset({"acme"})), [TORCH, OURS]),
        (SelectionPolicy(by_space={"tex": POLICY.space_order("tex::")._replace(first="vendor")}), [OURS, B, A, TORCH]),
        (replace(POLICY, part_token="vendor:acme"), [B, A, OURS, TORCH]),
        (replace(POLICY, part_token="flagos"), [TORCH, B, A, OURS]),
    ],
    ids=str,
)
def test_speed_decides_only_among_candidates_that_the_policy_ranks_alike(policy, expected):
    assert order({OURS: 4.0, A: 3.0, B: 2.0, TORCH: 1.0}, policy) == expected


LIBRARIES = Preference("acme", "its library is faster", reference_too=True)
SOME = replace(LIBRARIES, reference_too=False)


@pytest.mark.parametrize(
    ("times", "first", "expected"),
    [
        ({}, LIBRARIES, [A, TORCH, HOPPER, OURS]),
        ({}, SOME, [A, HOPPER, OURS, TORCH]),  # our kernel runs the calls that no library accepts
        ({HOPPER: 1.0, A: 2.0}, LIBRARIES, [HOPPER, A, OURS, TORCH]),
        ({OURS: 1.0, A: 2.0}, LIBRARIES, [OURS, A, HOPPER, TORCH]),
        ({HOPPER: 1.0, A: 1.01}, LIBRARIES, [A, HOPPER, OURS, TORCH]),
        ({HOPPER: 1.0}, LIBRARIES, [A, TORCH, HOPPER, OURS]),  # the library was not measured
        ({HOPPER: 3.0, OURS: 2.0, A: 1.0}, LIBRARIES, [A, OURS, HOPPER, TORCH]),
    ],
)
def test_where_libraries_come_first_our_kernel_runs_first_only_if_measured_faster(times, first, expected):
    ids = (OURS, HOPPER, A, TORCH)
    assert order(times, first=first, ids=ids) == expected
    named = SelectionPolicy(per_op_order={"an_op": "flagos|*"})
    assert order(times, named, first, ids)[0] in (OURS, HOPPER)
    assert order(times, SelectionPolicy(strict=True), first, ids) == [HOPPER, OURS, A, TORCH]


def test_a_compositions_token_for_its_parts_does_not_name_our_kernel():
    """`part_token` does not come from the user's policy, so libraries still come first."""
    inside = replace(POLICY, part_token="flagos")
    assert order({}, inside, LIBRARIES) == order({}, POLICY, LIBRARIES) == [A, B, TORCH, OURS]


def test_a_call_without_a_class_gets_the_times_of_an_unknown_class(caplog):
    known, unknown = Measured(facts="known"), Measured(facts="unknown")
    speeds = Speeds(lambda args: unknown if args is None else known, lambda x: (x.shape,))
    assert speeds.of_call((torch.ones(2),)) is known and speeds.of_call(()) is unknown
    with caplog.at_level("DEBUG", "opmux"):
        assert speeds.of_call(("no tensor",)) is unknown
        assert Speeds(speeds.measured, lambda x: ([x],)).of_call((1,)) is unknown  # a class that is not hashable
    assert "AttributeError" in caplog.text and "unhashable" in caplog.text
