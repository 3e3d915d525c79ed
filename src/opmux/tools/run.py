"""`opmux run`: runs an unchanged program with opmux in place of other libraries' modules."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import shlex
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from .. import settings
from ..core.errors import UnknownName, quoted
from ..faces import compat
from .arguments import BadOption

INTERRUPTED = 130  # the exit code by which shells report a program that Ctrl-C has ended


def run(program: list[str], libraries: list[str], shadow: bool, module: bool) -> int:
    """Run a script or a module as `python` would, and return its exit status.

    An exception is printed as by `python`: only with the program's frames, by the program's `sys.excepthook`.
    """
    for library in libraries:  # before the program: in `--as train.py`, the name of the library is missing
        if library not in compat.LIBRARIES:
            raise UnknownName("library", library, compat.LIBRARIES, "(run --as NAME program.py)")
    if not program:
        raise BadOption("run takes a program: opmux run [--as NAME] script.py [ARGS], or -m MODULE [ARGS]")
    name = program[0]
    if not module and not os.path.exists(name):  # noqa: PTH110  # False for a name that is too long
        raise BadOption(f"run: there is no file {quoted(name)}")
    with _in_place_of(libraries, shadow):
        status, missing = _run(program, module)
    if missing in compat.LIBRARIES and missing not in libraries:
        words = " ".join(["-m", shlex.join(program)] if module else [shlex.join(program)])
        hint = f"opmux run: {missing} is not installed. To use opmux in its place: opmux run --as {missing} {words}"
        print(hint, file=sys.stderr)
    return status


@contextlib.contextmanager
def _in_place_of(libraries: list[str], shadow: bool) -> Iterator[None]:
    """Make imports of these libraries return opmux's modules, also in the processes that the program starts.

    These processes read the variable in `opmux_startup`, which Python imports at each start (opmux_startup.pth).
    """
    compat.install(*libraries, shadow=shadow)
    variable, before = settings.RUN_AS.name, os.environ.get(settings.RUN_AS.name)
    compat.reporting, reported = True, compat.reporting
    if libraries:
        os.environ[variable] = ",".join([*libraries, *(["shadow"] if shadow else [])])
    try:
        yield
    finally:
        compat.reporting = reported
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before
        compat.uninstall(*libraries)


def _run(program: list[str], module: bool) -> tuple[int, str]:
    """Run the program; returns its exit status, and the package that it needs and that is not installed, or ""."""
    name = program[0]
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = program
    sys.path.insert(0, str(Path.cwd() if module else Path(name).resolve().parent))
    try:
        missing = _missing_module(name) if module else _missing_main(name)
        if missing is not None:
            print(f"opmux run: {missing}", file=sys.stderr)
            return 1, ""
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0, ""
        print(stop.code, file=sys.stderr)
        return 1, ""
    except BaseException as error:
        shown = _below(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        # A note is that of opmux_startup.py, which already says how to run the program.
        wanted = error.name if isinstance(error, ModuleNotFoundError) and not hasattr(error, "__notes__") else None
        absent = (wanted or "").partition(".")[0]
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1, absent
    finally:
        sys.argv[:], sys.path[:] = argv, path
    return 0, ""


def _below(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without the frames of opmux and runpy that called the program."""
    above = (__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")
    while trace is not None and trace.tb_frame.f_code.co_filename in above:
        trace = trace.tb_next
    return trace


def _missing_module(name: str) -> str | None:
    """Why a module cannot be run, with Python's message."""
    try:
        spec = importlib.util.find_spec(name) if name else None
        if spec is not None and spec.submodule_search_locations is not None:
            if importlib.util.find_spec(f"{name}.__main__") is None:
                return f"No module named {name}.__main__; '{name}' is a package and cannot be directly executed"
    except (ImportError, ValueError) as error:  # the parent is missing or no package, or the name starts with a dot
        return f"Error while finding module specification for {quoted(name)} ({type(error).__name__}: {error})"
    return None if spec is not None else f"No module named {quoted(name)[1:-1]}"


def _missing_main(name: str) -> str | None:
    """Why a folder cannot be run, with Python's message."""
    if Path(name).is_dir() and not Path(name, "__main__.py").is_file():
        return f"can't find '__main__' module in {quoted(name)}"
    return None
