"""The cases of benchmarks/choice.py exist among those that the tuner times."""

import importlib.util
from pathlib import Path

import pytest

from opmux.tools.speed.provider_cases import TIMED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def choice(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("choice", ROOT / "benchmarks" / "choice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_case_has_options_that_are_timed(choice):
    for op, _, options in choice.CASES:
        assert any(options in case.options for case in TIMED[op]), (op, options)
