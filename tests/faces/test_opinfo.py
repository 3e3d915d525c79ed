"""PyTorch's own op samples through our kernels on a simulated device (see opinfo.py).

Without --slow, one sample of every third op runs.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path

import fresh
import pytest

from opmux.cpp import build
from opmux.tools import simulator

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(600)

HOME = Path(__file__).parent
CODE = f"""
import sys
sys.path[:0] = [{str(HOME)!r}]
import opinfo
from opmux.kernels.lib import quick_interpret
quick_interpret.install()
print(opinfo.run("toy", {{dtypes}}, limit={{limit}}).as_json())
"""


def run(dtypes, limit, seconds):
    """Uses a device without vendor kernels, so that our kernels run for every dtype."""
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
    return opinfo.Report.from_json(
        simulator.run("toy", code, limit=seconds, env={"OMP_NUM_THREADS": "1"}, start=fresh.warm)
    )


@pytest.fixture(scope="module")
def few():
    """One sample of every third op, each in one dtype."""
    return run("opinfo.one_dtype", 1, 580)


def test_samples_of_every_third_op_agree_with_torch(few):
    assert not few.unexpected(), "\n".join(map(str, few.unexpected()))


def test_our_kernels_serve_samples_of_every_dtype(few):
    assert len(few.tallies) > 130 and len(few.reached) > 200
    totals = few.by_dtype()
    assert totals["float32"].run > 50 and totals["float32"].served > 200
    for dtype in ("bfloat16", "float16", "float64", "int64", "int32", "bool", "complex64"):
        assert totals[dtype].run > 0, dtype
    assert sum(t.served for t in totals.values()) > 500 and totals["errors"].run > 15


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int32", "bool"])
def test_a_sample_of_each_op_agrees_in_every_dtype(dtype):
    """One sample per op, because all samples (`make opinfo`) take hours in the interpreter."""
    report = run(f"[opinfo.torch.{dtype}]", 1, 1200)
    assert not report.unexpected(), "\n".join(map(str, report.unexpected()))


# ---- many processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def worker_pool(monkeypatch, tmp_path):
    """A pool with one fake worker at a time; the name of a unit determines what the worker does."""
    monkeypatch.syspath_prepend(HOME)
    import opinfo

    class Scripted:
        count = 0

        def __init__(self, device, limit):
            Scripted.count += 1
            self.said = "ready"

        def ask(self, unit):
            report = opinfo.Report("toy", units=[unit])
            report.of("add", "float32").run += 1
            if "lost" in unit:
                report.failures.append(opinfo.Failure("lost", "float32", 3, "device", "illegal memory access"))
            self.said = {"hangs float32": None, "crashes float32": ""}.get(unit, report.as_json())

        def answer(self, seconds):
            return self.said

        def end(self):
            return "exit status -11; Segmentation fault"

    monkeypatch.setattr(opinfo, "Worker", Scripted)
    options = Namespace(
        device="toy", limit=None, processes=1, seconds=60, unit_seconds=5, json=str(tmp_path / "r.json")
    )

    def run(*units):
        pool = opinfo.WorkerPool(options, [f"{unit} float32" for unit in units], opinfo.Report("toy"))
        monkeypatch.setattr(opinfo.time, "sleep", lambda seconds: None)
        pool.run()
        return opinfo.Report.from_json(json.loads(Path(options.json).read_text())), Scripted.count

    return run


def test_a_worker_that_ends_is_replaced_and_reported_by_op(worker_pool):
    report, workers = worker_pool("good", "crashes", "hangs", "lost", "fine")
    assert [(f.op, f.form) for f in report.failures] == [
        ("crashes", "crash"), ("hangs", "time limit"), ("lost", "device"),
    ]  # fmt: skip
    assert "Segmentation fault" in report.failures[0].words and "5 s" in report.failures[1].words
    assert workers == 4 and report.left == []
    assert report.tallies["add"]["float32"].run == 3 and len(report.units) == 5
    assert report.unexpected() == report.failures
