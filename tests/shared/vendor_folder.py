"""A vendor's folder in the tree of backends, and a program on a simulated device that uses it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import fresh

SRC = Path(__file__).parents[2] / "src"
BACKENDS = SRC / "opmux/backends"

# Folders of the test are folders of the tree to opmux; `found` is what the program tells.
START = """
import json, logging, sys
from opmux.tools.simulator import simulate
simulate({device!r})
import torch
import opmux, opmux.backends
opmux.backends.__path__.append({tree!r})
found, said = {{}}, []


class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logging.getLogger("opmux").addHandler(Said(logging.WARNING))
"""
END = "\nprint(json.dumps({**found, 'said': said}, default=str))\n"


def copied_init() -> str:
    """The text of `_nvidia/__init__.py` as a vendor `acme` copies it: only VendorInfoBase is changed."""
    text = (BACKENDS / "_nvidia" / "__init__.py").read_text(encoding="utf-8")
    for name, value in (("vendor_name", "acme"), ("device_name", "npu"), ("device_query_cmd", "acme-smi")):
        text, count = re.subn(rf'{name}="[^"]*"', f'{name}="{value}"', text)
        assert count == 1, name
    return text


def write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def follow(
    root: Path, folders: Mapping[str, Mapping[str, str]], code: str, device: str = "npu", **env: str
) -> SimpleNamespace:
    """What the program tells, where each of `folders` (`_acme`: its files) is a folder of the tree."""
    for name, texts in folders.items():
        write(root / "tree" / name, texts)
    program = root / "program.py"  # a file: triton reads the source of kernels
    program.write_text(START.format(device=device, tree=str(root / "tree")) + code + END, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), str(root)]), **env}
    done = fresh.run([sys.executable, str(program)], env=variables, cwd=root, timeout=300, warm=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))
