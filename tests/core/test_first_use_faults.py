"""An error at any line of a first use, or a fork there: the next use works, and nothing is left of the failed one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).with_name("first_use_checks.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

FAULTS = {"plugins": 120, "family": 340, "enable": 50}


def test_faults(tmp_path):
    """KeyboardInterrupt, RuntimeError and MemoryError in turn, at lines that are spread over the whole of it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL"))}
    env |= {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, str(CHECKS)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    reports = json.loads(done.stdout.splitlines()[-1])
    bad = [one for report in reports.values() for one in report["bad"]]
    assert not bad, f"{len(bad)}: {json.dumps(bad[:3], indent=1)[:6000]}"
    assert {name: r["faults"] for name, r in reports.items()} == FAULTS
    assert {name: r["forks"] for name, r in reports.items()} == {name: count // 10 for name, count in FAULTS.items()}
