"""Training steps of small models with all of our overrides enabled, on a simulated device (see model_steps.py)."""

from pathlib import Path

import fresh
import pytest

from opmux.cpp import build
from opmux.tools import simulator

pytest.importorskip("triton")
pytest.importorskip("transformers")

HOME = Path(__file__).parent
CODE = f"""
import json, sys
sys.path[:0] = [{str(HOME)!r}]
import model_steps
from opmux.kernels.lib import quick_interpret
quick_interpret.install()
print(json.dumps(model_steps.main("toy", {{names}})))
"""


@pytest.fixture(scope="module")
def results(request):
    """Runs all models in one process, because importing transformers takes longer than a step."""
    try:
        build.compiler()
    except build.CannotBuild as error:
        pytest.skip(str(error))
    names = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
    return simulator.run("toy", CODE.format(names=names), env={"OMP_NUM_THREADS": "1"}, start=fresh.warm)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "resnet"])
def test_losses_and_gradients_match_torch(name, results):
    assert results[name]["largest distance"] < 1e-6, results
    assert results[name]["overloads"] > 20 and results[name]["calls"] > 100, results
    assert results[name]["garbage"] == 0, results
