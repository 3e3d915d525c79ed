"""`opmux tune --aten` on a real GPU: torch's own kernels accept the arguments that it uses for timing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import speed_cases

pytestmark = pytest.mark.gpu

CODE = """
import json, sys, torch
import speed_cases
from opmux.faces.aten.overloads import table
from opmux.tools.speed.cases import Sources
sources = Sources(table(), "cuda", speed_cases.DTYPES)
without = speed_cases.without(sources, 1 << 16)
torch.cuda.synchronize()
json.dump({n: sources.refused.get(n, "") for n in sorted(without)}, sys.stdout)
"""


def test_every_overload_has_arguments_or_a_reason():
    # Runs in a subprocess: wrong arguments can cause an illegal access, after which no kernel of the process runs.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_LAUNCH_BLOCKING": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], env=env, capture_output=True, encoding="utf-8", timeout=540
    )
    assert result.returncode == 0, result.stderr[-2000:]
    without = json.loads(result.stdout.splitlines()[-1])
    lacking = {n for n, why in without.items() if why.startswith("NotImplementedError")}  # torch has no kernel for them
    assert without.keys() - lacking - speed_cases.NONE.keys() == set(), without
