"""Each of FlagGems' overloads is overridden, composed by ATen, a view, or left to torch for a stated reason."""

import aten_coverage
import pytest
import torch
from aten_coverage import COMPOSED, NOT_YET, OURS

from opmux.faces.aten import left
from opmux.faces.aten.schema import OverloadSchema, overloads


def test_each_overload_has_a_kernel_or_a_reason():
    undecided = {
        name: aten_coverage.status(name)
        for name in left.flaggems_names()
        if OverloadSchema(name) in overloads(_op(name))
    }
    forgotten = sorted(n for n, what in undecided.items() if what == NOT_YET and n not in left.not_yet())
    assert not forgotten, f"add a kernel, or a reason in faces/aten/left.py: {forgotten}"


def test_overridden_ops_are_not_listed_as_left_to_torch():
    ours = aten_coverage.ours()
    assert not sorted(n for n in left.not_yet() if n in ours), "delete these lines of NOT_YET"
    both = {row: [n for n in ours if row in (n, _op(n))] for row in left.LEFT}
    assert not {row: overlap for row, overlap in both.items() if overlap}, "delete these rows of LEFT"


@pytest.mark.skipif(torch.__version__ < "2.13", reason="the rows are of torch 2.13; earlier ones have fewer ops")
def test_rows_name_existing_ops_of_torch():
    unknown = [n for n in (*left.LEFT, *left.COMPOSED) if not overloads(_op(n))]
    assert not unknown, unknown


def test_composed_ops_name_the_ops_that_they_call():
    vague = [n for n in left.flaggems_names() if aten_coverage.status(n) == COMPOSED and left.parts(n) == "other ops"]
    assert not vague, f"add them to COMPOSED: {vague}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transpose.int", "it is a view; no kernel runs"),
        ("divide_.Tensor", "ATen composes it from div"),
        ("repeat_interleave.self_int", "ATen composes it from expand and clone"),
        ("linalg_lu", left.LEFT["linalg_lu"]),
        ("linalg_lu.out", left.LEFT["linalg_lu"]),
        ("_fft_r2c", "opmux has no kernel for it"),
        ("add.Tensor", None),
        ("no_such_op", None),
    ],
)
def test_reason_says_why_an_op_is_left_to_torch(name, words):
    assert left.reason(name) == words
    assert words is not None or aten_coverage.status("add.Tensor") == OURS


def _op(name: str) -> str:
    return name.partition(".")[0]
