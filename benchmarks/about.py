"""The facts that every file of results records about its run: chip, versions, date and commit."""

from __future__ import annotations

import importlib
import os
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch


def about(*packages: str, **more: Any) -> dict[str, Any]:
    """The facts of this run, with versions of torch, triton and the named packages; `more` comes last.

    If git finds no commit, the environment variable COMMIT names it.
    """
    return {
        "chip": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **{name: importlib.import_module(name).__version__ for name in ("torch", "triton", *packages)},
        "date": date.today().isoformat(),
        "commit": os.environ.get("COMMIT") or _commit(),
        **more,
    }


def _commit() -> str:
    """The short commit hash of the checkout that contains this file; empty without git or outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""
