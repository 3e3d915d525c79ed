"""For every ATen overload that we override: torch answers if our impls decline (checks in decline_checks.py)."""

from pathlib import Path

import fresh
import pytest

from opmux.cpp import build
from opmux.faces.aten.overloads import table
from opmux.tools import simulator

# Families in which the schemas suffice to generate valid arguments. In other families some generated calls raise, and
# torch must raise the same error.
BY_SCHEMA = frozenset("activation channel_norm norm pointwise random reduce scan softmax".split())

# Overloads whose calls raise in torch: only CUDA has a kernel, or (normal) `out` must already have the right size.
REFUSED = {
    "npu": {"_fused_rms_norm_backward", "_masked_scale", "_masked_scale.out", "normal.Tensor_float_out"},
    "cpu": {"_masked_scale.out", "normal.Tensor_float_out"},
}

HOME = Path(__file__).parent
CODE = f"""
import json, sys
sys.path[:0] = [{str(HOME)!r}]
import decline_checks
from opmux.kernels.lib import quick_interpret
quick_interpret.install()
print(json.dumps(decline_checks.main({{device!r}})))
"""


@pytest.fixture(scope="module", params=[pytest.param("cpu", marks=pytest.mark.slow), "npu"])
def outcome(request):
    device = request.param
    if device != "cpu":
        pytest.importorskip("triton")
        try:
            build.compiler()
        except build.CannotBuild as error:
            pytest.skip(str(error))
    code, env = CODE.format(device=device), {"OMP_NUM_THREADS": "1"}
    return device, simulator.run(None if device == "cpu" else device, code, env=env, start=fresh.warm)


def words(differ):
    return "\n".join(f"{name}: {got}, torch: {expected}" for name, (got, expected) in differ.items())


def test_torch_answers_when_our_impls_decline(outcome):
    device, results = outcome
    results = results["declining"]
    assert not results["differ"], words(results["differ"])
    assert results["overridden"] >= 645 and not results["not overridden"]
    # In these families torch accepts all generated arguments, except for REFUSED.
    wrong = {n: e for n, e in results["errors"].items() if table()[n].family in BY_SCHEMA}
    assert set(wrong) == REFUSED[device], wrong
    assert results["gradients"] > 200


def test_gradients_are_right_if_opmux_is_switched_between_forward_and_backward(outcome):
    device, results = outcome
    results = results["crossing"]
    assert not results["differ"], words(results["differ"])
    assert results["compared"] >= (200 if device != "cpu" else 6)
