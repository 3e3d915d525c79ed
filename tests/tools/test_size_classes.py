"""Size formulas, derived from fake planned calls."""

from __future__ import annotations

import pytest

from opmux.tools.size_classes import MOST_CALLS, MOST_SIZES, Formula, class_of, fit, formulas_of, key_formulas


def ceil(a, b):
    return -(-a // b)


LAUNCHES = {
    "elements": lambda v: [768 * v],
    "a grid": lambda v: [ceil(4 * v * 768, 2048)],
    "a grid of odd rows": lambda v: [ceil(v * 1000, 4096)],
    "several grids": lambda v: [48 * ceil(v, 32), 12 * ceil(4 * v, 64), v, 7],
    "squares": lambda v: [v * v, ceil(48 * v * v, 1024)],
    "an offset": lambda v: [768 * v - 576, v + 1],
    "small values": lambda v: [ceil(v, 64), ceil(v, 128)],
    "nothing": lambda v: [5],
}


@pytest.mark.parametrize("v", [65, 90, 301, 848, 5000, 70_001])
@pytest.mark.parametrize("name", LAUNCHES)
def test_formulas_agree_with_every_call_of_the_class(name, v):
    launch = LAUNCHES[name]
    requests = []

    def plan(size):
        requests.append(size)
        return [99, *launch(size)]

    free = set(range(1, 1 + len(launch(v))))
    size_class = fit(class_of(v), v, plan(v), free, plan)
    assert (
        size_class is not None and size_class.low <= v <= size_class.high and len(requests) <= MOST_CALLS + MOST_SIZES
    )
    for size in size_class.sizes():
        expected = plan(size)
        assert [f.at(size) for _, f in sorted(size_class.formulas.items())] == [
            expected[i] for i in sorted(size_class.formulas)
        ]
        fixed = {i: word for i, word in enumerate(plan(v)) if i not in size_class.formulas}
        assert all(expected[i] == word for i, word in fixed.items())


@pytest.mark.parametrize(
    "launch",
    [
        lambda v: [v % 7],
        lambda v: [v**3],
        lambda v: [hash(str(v)) % 1000],
        lambda v: [1 << 63 | v],
        lambda v: [1000 - v],
    ],
    ids=["a remainder", "a cube", "no order", "a float", "a difference"],
)
def test_launches_without_a_formula_get_no_class(launch):
    assert fit(class_of(301), 301, launch(301), {0}, launch) is None


def test_a_class_is_rejected_if_a_fixed_word_changes():
    assert fit(class_of(301), 301, [301], set(), lambda v: [v]) is None


@pytest.mark.parametrize("threshold", [300, 350, 400, 500])
def test_a_class_ends_where_another_kernel_is_chosen(threshold):
    launch = lambda v: [int(v >= threshold), 4 * v]
    for v in (257, 301, 399, 511):
        size_class = fit(class_of(v), v, launch(v), {1}, launch)
        assert size_class is None or all(launch(size)[0] == launch(v)[0] for size in size_class.sizes())
    assert fit(class_of(257), 257, launch(257), {1}, launch) is not None


def in_parts(v, most=6):
    """The split of a sum over v rows into parts of whole blocks, computed as in kernels/reduce."""
    blocks = ceil(v, 64)
    parts = ceil(blocks, ceil(blocks, most))
    return [parts, ceil(blocks, parts), 64 * parts * ceil(blocks, parts)]


LAUNCHES_BY_PERIOD = {
    "parts": lambda v: [0, *in_parts(v)],
    "parts of thirds": lambda v: [0, *in_parts(v, 33)],
    "multiples of 16 of the size before": lambda v: [(v - 1) % 16 == 0, 768 * v],
    "multiples of 16 of a sum": lambda v: [(v + 12) % 16 == 0, v],
    "one size that is special": lambda v: [v == 2305, v],
    "a remainder": lambda v: [0, v % 24, v],
}


@pytest.mark.parametrize("v", [573, 577, 580, 2049, 2801, 3105, 3721, 3972])
@pytest.mark.parametrize("name", LAUNCHES_BY_PERIOD)
def test_formulas_are_right_for_every_size_of_a_class(name, v):
    """Wrong formulas could fit only the calls from which they were derived."""
    launch = LAUNCHES_BY_PERIOD[name]
    first = launch(v)
    size_class = fit(class_of(v), v, first, set(range(1, len(first))), launch)
    for size in () if size_class is None else size_class.sizes():
        assert [
            size_class.formulas[i].at(size) if i in size_class.formulas else word for i, word in enumerate(first)
        ] == launch(size)


def test_a_class_ends_before_a_call_that_cannot_be_planned():
    launch = lambda v: [4 * v] if v < 400 else None
    size_class = fit(class_of(301), 301, launch(301), {0}, launch)
    assert size_class is not None and size_class.high < 400
    assert fit(class_of(301), 301, [1204], {0}, lambda v: None) is None


@pytest.mark.parametrize(
    "v, low, high, step",
    [(301, 257, 511, 2), (302, 258, 510, 4), (96, None, 0, 0), (256, None, 0, 0), (0, None, 0, 0), (1, None, 0, 0),
     (80, 80, 112, 32), (3 << 13, 2 << 13, 3 << 13, 1 << 13), (9 << 13, 8 << 13, 15 << 13, 1 << 13),
     (2**64 - 1, None, 0, 0)],
)  # fmt: skip
def test_sizes_of_a_class_have_a_common_power_of_two(v, low, high, step):
    size_class = class_of(v)
    if low is None:
        assert size_class is None
    else:
        assert (size_class.low, size_class.high, size_class.sizes().step) == (
            low,
            high,
            step,
        ) and v in size_class.sizes()


def test_a_class_has_at_most_256_sizes():
    size_class = class_of(30_000_001)
    assert 30_000_001 in size_class.sizes() and len(size_class.sizes()) <= MOST_SIZES


def test_key_formulas_find_the_size_and_the_words_that_depend_on_it():
    first, second = [5, 4, 301, 768, 231168, 301 * 301], [5, 4, 303, 768, 232704, 303 * 303]
    position, formulas = key_formulas(first, second, [1, 2, 3])
    assert position == 2 and formulas == {2: Formula(1, 1), 4: Formula(1, 768), 5: Formula(2, 1)}


@pytest.mark.parametrize(
    "second, sizes", [([5, 303], [0]), ([5, 301], [1]), ([6, 303], [1]), ([4, 303], [1])],
    ids=["not a size", "no difference", "no whole factor", "the other way"],
)  # fmt: skip
def test_key_formulas_reject_keys_that_do_not_differ_in_one_size(second, sizes):
    with pytest.raises(ValueError, match="more than one size"):
        key_formulas([5, 301], second, sizes)


def test_formulas_stay_within_64_bits():
    points = [(1 << 30, 1 << 61), ((1 << 30) + 2, (1 << 61) + (1 << 32))]
    assert all(f.at((1 << 31) - 2) < 1 << 63 for f in formulas_of(points, (1 << 31) - 2))
