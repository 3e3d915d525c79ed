"""Tests that take turns (tests/conftest.py): each comes round within as many commits as its mark says."""

from pathlib import Path

import pytest


class Item:
    """As much of a test as is asked where turns are taken."""

    def __init__(self, nodeid, kind, n, whole_file=False, **more):
        mark = getattr(pytest.mark, kind)(n, **more).mark
        self.nodeid, self.get_closest_marker = nodeid, {kind: mark}.get
        self.own_markers = [] if whole_file else [mark]


@pytest.fixture
def conftest(request):
    path = str(Path(__file__).parents[1] / "conftest.py")
    (found,) = [p for p in request.config.pluginmanager.get_plugins() if getattr(p, "__file__", None) == path]
    return found


CASES = [f"tests/a.py::test_cases[{i}]" for i in range(11)]
FEW = [f"tests/a.py::test_chips[{i}]" for i in range(4)]
SLOW = [f"tests/b.py::test_{i}" for i in range(4)]
WHOLE = ["tests/c.py::test_1", "tests/c.py::test_2"]


def test_everything_comes_round(conftest, monkeypatch):
    items = [
        *(Item(name, "rotates", 3) for name in CASES),
        *(Item(name, "rotates", 5) for name in FEW),
        *(Item(name, "turns", 3) for name in SLOW),
        *(Item(name, "turns", 4, whole_file=True) for name in WHOLE),
    ]
    for first in (0, 1000):
        ran = []
        for turn in range(first, first + 60):
            monkeypatch.setattr(conftest, "_turn", lambda turn=turn: turn)
            left_out = conftest._not_in_turn(items)
            ran.append({i.nodeid for i in items} - {i.nodeid for i in left_out})
        for names, n in ((CASES, 3), (FEW, 4), (SLOW, 3), (WHOLE, 4)):
            for name in names:
                assert all(any(name in ran[t + i] for i in range(n)) for t in range(60 - n)), name
        assert all(3 <= len(r & set(CASES)) <= 4 and len(r & set(FEW)) == 1 for r in ran)
        assert all(1 <= len(r & set(SLOW)) <= 2 and len(r & set(WHOLE)) in (0, 2) for r in ran)


def test_long_tests_are_spread_and_units_stay_together(conftest, monkeypatch):
    lengths = {"a": 20, "b": 19, "c": 9, "d": 9, "e": 2, "f": 1}
    items = [Item(f"tests/a.py::test_{name}", "turns", 3, seconds=s) for name, s in lengths.items()]
    items += [Item(f"tests/a.py::test_unit_{i}", "turns", 3, unit="one") for i in range(3)]
    seconds = []
    for turn in range(3):
        monkeypatch.setattr(conftest, "_turn", lambda turn=turn: turn)
        ran = {i.nodeid.partition("test_")[2] for i in items if i not in conftest._not_in_turn(items)}
        units = {name for name in ran if name.startswith("unit")}
        assert len(units) in (0, 3)
        seconds.append(sum(lengths[name] for name in ran - units) + (3 if units else 0))
    assert sorted(seconds) == [21, 21, 21]


def test_the_programs_of_a_test_are_taken_apart_in_one_of_its_five_runs(conftest, monkeypatch):
    for item, n in ((Item("tests/b.py::test_1", "turns", 3), 3), (Item("tests/b.py::test_2", "few", 3), 1)):
        for first in range(n):
            rounds = []
            for turn in range(first, first + 5 * n, n):
                monkeypatch.setattr(conftest, "_turn", lambda turn=turn: turn)
                rounds.append(conftest._round(item) % 5)
            assert sorted(rounds) == [0, 1, 2, 3, 4]
