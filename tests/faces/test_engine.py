"""`enable`, `disable`, `use` and `native` on a simulated device: one test for each check in engine_checks.py."""

import ast
from pathlib import Path

import fresh
import pytest

from opmux.cpp import build
from opmux.tools import simulator

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(600)

HOME = Path(__file__).parent
PROGRAM = (HOME / "engine_checks.py").read_text(encoding="utf-8")
CHECKS = [
    f.name
    for f in ast.parse(PROGRAM).body
    if isinstance(f, ast.FunctionDef) and "check" in map(ast.unparse, f.decorator_list)
]
CODE = f"""
import json, sys
sys.path[:0] = [{str(HOME)!r}]
import engine_checks
from opmux.kernels.lib import quick_interpret
quick_interpret.install()
print(json.dumps([list(engine_checks.CHECKS), engine_checks.run("npu", {{names}}, thorough={{slow}})]))
"""


@pytest.fixture(scope="module")
def outcome(slow, request):
    """The names of all checks, and the tracebacks of those that failed in this run."""
    try:
        build.compiler()
    except build.CannotBuild as error:
        pytest.skip(str(error))
    cases = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    code = CODE.format(slow=slow, names=[item.callspec.params["name"] for item in cases])
    return simulator.run("npu", code, limit=580, env={"OMP_NUM_THREADS": "1"}, start=fresh.warm)


def test_every_check_has_a_test(outcome):
    assert outcome[0] == CHECKS and len(CHECKS) > 35


@pytest.mark.parametrize("name", CHECKS)
def test_check_passes(outcome, name):
    assert name not in outcome[1], outcome[1][name]
