"""The command line as a user runs it, either in a new process, or in this process, which is faster."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import fresh
import pytest
from typer.testing import CliRunner

from opmux.core import get_default_manager, reset_global_policy
from opmux.tools.cli import app

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def shell(tmp_path):
    """Run `python -m opmux ...` in an empty folder; keyword arguments become environment variables."""

    def run(
        *words: str, script: str | None = None, bare: bool = False, warm: bool = True, **variables: str
    ) -> subprocess.CompletedProcess:
        path = os.pathsep.join([str(SRC), str(tmp_path)])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **variables}
        start = ["-m", "opmux"] if script is None else ["-c", script]
        command = [sys.executable, *start, *words]
        if bare:  # block the import of torch
            return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        return fresh.run(command, env=env, cwd=tmp_path, timeout=120, warm=warm)

    return run


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run a command in this process. Before and after it, the policy is read again from the settings."""
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger("opmux").level

    def run(*words: str):
        reset_global_policy()
        return CliRunner().invoke(app, list(words), prog_name="opmux")

    yield run
    monkeypatch.undo()
    reset_global_policy()
    logging.getLogger("opmux").setLevel(level)


@pytest.fixture
def register():
    """Registers impls in the default registry for one test."""
    manager = get_default_manager()
    manager.registry.list_operators()
    added = []

    def put(impl):
        manager.registry.register_impl(impl)
        added.append(impl)

    yield put
    for impl in added:
        manager.registry.unregister(impl.op_name, impl.impl_id)
    manager.clear_quarantine()
