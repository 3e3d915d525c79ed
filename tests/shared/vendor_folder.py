"""Run a program on a simulated device with a vendor's folder in the tree of backends."""

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

# The patch makes opmux find the test's folders in its own tree. `found` collects the program's results.
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
    """`_nvidia/__init__.py` as a vendor `acme` would copy it: only the arguments of VendorInfoBase are changed."""
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
    """Run `code` with `folders` (name, such as `_acme`, -> files) in the tree of backends; returns its results."""
    for name, texts in folders.items():
        write(root / "tree" / name, texts)
    program = root / "program.py"  # the program is a file, because triton reads the source of kernels
    program.write_text(START.format(device=device, tree=str(root / "tree")) + code + END, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), str(root)]), **env}
    result = fresh.run([sys.executable, str(program)], env=variables, cwd=root, timeout=300, warm=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return SimpleNamespace(**json.loads(result.stdout.splitlines()[-1]))
