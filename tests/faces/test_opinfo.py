"""PyTorch's own samples through the ATen face, on a simulated device: opinfo.py, a sample or two of each op."""

import sys
from pathlib import Path

import pytest

from opmux.runtime import build
from opmux.tools import simulator

pytest.importorskip("triton")
pytestmark = [pytest.mark.xdist_group("opinfo"), pytest.mark.timeout(600)]

HOME = Path(__file__).parent
SHARED = HOME.parent / "shared"
CODE = f"""
import sys
sys.path[:0] = [{str(HOME)!r}, {str(SHARED)!r}]
import opinfo, quick_interpreter
quick_interpreter.install()
print(opinfo.run("toy", {{dtypes}}, limit={{limit}}).as_json())
"""


def run(dtypes, limit, seconds):
    """A device that is nobody's, so that no vendor keeps a dtype from our kernels."""
    try:
        build.compiler()
    except build.CannotBuild as error:
        pytest.skip(str(error))
    sys.path.insert(0, str(HOME))
    try:
        import opinfo
    finally:
        sys.path.remove(str(HOME))
    code = CODE.format(dtypes=dtypes, limit=limit)
    return opinfo.Report.from_json(simulator.run("toy", code, limit=seconds, env={"OMP_NUM_THREADS": "1"}))


@pytest.fixture(scope="module")
def few():
    """One sample of each op in float32, and one in a dtype that takes turns from op to op."""
    return run("opinfo.in_turn", 1, 580)


def test_samples_agree(few):
    assert not few.unexpected(), "\n".join(map(str, few.unexpected()))


def test_our_kernels_were_asked(few):
    assert len(few.tallies) > 400 and len(few.reached) > 400
    totals = few.by_dtype()
    assert totals["float32"].run > 380 and totals["float32"].served > 1500
    for dtype in ("bfloat16", "float16", "float64", "int64", "int32", "bool"):
        assert totals[dtype].run > 20 and totals[dtype].served > 50, dtype
    assert totals["errors"].run > 50


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int32", "bool"])
def test_all_samples_agree(dtype):
    report = run(f"[opinfo.torch.{dtype}]", None, 7200)
    assert not report.unexpected(), "\n".join(map(str, report.unexpected()))
