"""The C++ that opmux compiles on first use, compiled before the tests: none is to wait for it, or to see it said.

`make test` runs this as a program while pip, which has one thread, installs what is left; a run of pytest compiles
what is still missing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path


def start() -> list[threading.Thread]:
    """A thread for each library; the last one is there when all of them have ended."""
    from opmux.backends._cpu.ops import native
    from opmux.faces.aten import gate
    from opmux.runtime import functions
    from opmux.tools import simulator

    made = [
        ("cpu_kernels", native.SOURCES, native.flags()),
        ("simulator", simulator.sources(), simulator.FLAGS),
        ("gate", gate.SOURCES, ()),
        ("functions", functions.SOURCES, functions.flags()),
    ]
    threads = [threading.Thread(target=_make, args=args) for args in made]
    for thread in threads:
        thread.start()
    return threads


def _make(name: str, sources: Sequence[Path], flags: tuple[str, ...]) -> None:
    from opmux.runtime import build

    try:
        build.library(name, sources, flags=flags)
    except build.CannotBuild as error:  # a machine without a compiler: tests that need one say so
        print(error)


if __name__ == "__main__":
    for running in start():
        running.join()
