"""The simulated device: what works on it (simulator_checks.py), and which calls `simulate` and `run` reject."""

import ast
import re
from pathlib import Path

import fresh
import pytest

PROGRAM = Path(__file__).with_name("simulator_checks.py").read_text(encoding="utf-8")
CHECKS = [f.name for f in ast.parse(PROGRAM).body if isinstance(f, ast.FunctionDef) and f.decorator_list]

# Starts without a device: each rejected call must leave the process unchanged; only the last simulate() succeeds.
REFUSALS = """
import json, sys
from opmux.tools.simulator import CannotSimulate, fallbacks, simulate

def why(*args, **kwargs):
    try:
        simulate(*args, **kwargs)
    except CannotSimulate as error:
        return str(error)

found = {"cuda": why("cuda"), "npu0": why("npu0"), "many": why("npu", count=65), "before": fallbacks()}
import triton
found["triton"] = why("txda")
for name in [n for n in sys.modules if n.partition(".")[0] == "triton"]:
    del sys.modules[name]
import torch
torch.ones(1, requires_grad=True).sum().backward()
found["backward"] = why("txda", arch="tx8")
found["again"] = why("mlu")
x = torch.ones(3, device="txda") + 1
stream, arch = torch.txda.current_stream().txda_stream, torch.txda.get_device_properties(0).arch
found["txda"] = [str(x.device), x.tolist(), stream, arch]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def checked(simulated) -> dict[str, str]:
    return simulated("npu", PROGRAM, arch="910b")


@pytest.mark.parametrize("name", CHECKS)
def test_a_simulated_device_passes_each_check(checked, name):
    assert not checked[name], checked[name]


def test_every_check_of_simulator_checks_is_run(checked):
    assert len(CHECKS) > 20 and list(checked) == CHECKS


@pytest.fixture(scope="module")
def refused(simulated) -> dict:
    return simulated(None, REFUSALS, env={"TRITON_INTERPRET": "0"}, start=fresh.run)  # triton is imported later


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cuda", "'cuda' is one of torch's own device types"),
        ("npu0", "name has small letters and _, such as 'npu'; got 'npu0'"),
        ("many", "count = 65. Allowed: 1 to 64 devices"),
        ("triton", r"triton was imported before simulate\('txda'\).*call simulate first, or set TRITON_INTERPRET=1"),
        ("backward", r"backward\(\) ran in this process before simulate\('txda'\).*Call simulate first"),
        ("again", "has a device 'txda' already"),
    ],
)
def test_simulate_says_why_it_cannot_run(refused, case, words):
    assert re.search(words, refused[case]), refused[case]


def test_simulate_accepts_any_device_name(refused):
    assert refused["before"] == {} and refused["txda"] == ["txda:0", [2, 2, 2], 0, "tx8"]


def test_an_error_of_a_simulated_program_is_reported(simulated):
    with pytest.raises(RuntimeError, match=r"(?s)failed \(1\):.*simulated.py\", line 1.*ZeroDivisionError"):
        simulated(None, "1 / 0", start=None)
    with pytest.raises(RuntimeError, match=r"printed no JSON last:\nhello"):
        simulated(None, "print('hello')", start=None)
    with pytest.raises(RuntimeError, match=r"took over 0.5 s"):
        simulated(None, "import time; print('x', flush=True); time.sleep(60)", limit=0.5, start=None)
