"""`opmux run`: an unchanged program, with the names of other libraries served by opmux."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ..faces import compat
from .arguments import BadArgument


def run(program: list[str], libraries: list[str], shadow: bool, module: bool) -> int:
    """Run a script or a module as `python` would, and give its exit status."""
    if not program:
        raise BadArgument("run takes a program: opmux run [--as NAME] script.py [ARGS], or -m MODULE [ARGS]")
    name = program[0]
    if not module and not Path(name).is_file():
        raise BadArgument(f"run: there is no file '{name}'")
    compat.install(*libraries, shadow=shadow)
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = program
    sys.path.insert(0, str(Path.cwd() if module else Path(name).resolve().parent))
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    finally:
        sys.argv[:], sys.path[:] = argv, path
        compat.uninstall(*libraries)
    return 0
