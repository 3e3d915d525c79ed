"""After an error or a fork at any line of a first use, the next use works, and the failed use leaves nothing behind."""

import json
import os
import sys
from pathlib import Path

import fresh
import pytest

ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).with_name("first_use_checks.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

FAULTS = {"plugins": 120, "family": 340, "enable": 50}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FAULTS)
def test_the_next_use_works_after_a_fault(tmp_path, name, slow):
    """Raises KeyboardInterrupt, RuntimeError and MemoryError in rotation, at lines spread over the whole first use."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL"))}
    env |= {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    part = 1.0 if slow else 0.15
    command = [sys.executable, str(CHECKS), name, str(part)]
    result = fresh.run(command, env=env, cwd=tmp_path, timeout=280)
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])[name]
    bad = report["bad"]
    assert not bad, f"{len(bad)}: {json.dumps(bad[:3], indent=1)[:6000]}"
    assert (report["faults"], report["forks"]) == (int(FAULTS[name] * part), int(FAULTS[name] * part / 10))
