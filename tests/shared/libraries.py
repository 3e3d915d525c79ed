"""Compile the C++ libraries before the tests, so that no test waits for a compiler or sees its log line.

`make test` runs this as a program while pip, which uses one thread, installs packages. A run of pytest compiles the
libraries that are still missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def start() -> list[threading.Thread]:
    """Start one thread per library, which compiles it; return the threads."""
    from opmux.cpp import build
    from opmux.tools import cpp, simulator

    tasks = [one.compile for one in cpp.libraries()]
    tasks.append(lambda: build.library("simulator", simulator.sources(), flags=simulator.FLAGS))
    threads = [threading.Thread(target=_make, args=[make]) for make in tasks]
    for thread in threads:
        thread.start()
    return threads


def _make(make: Callable[[], Any]) -> None:
    from opmux.cpp import build

    try:
        make()
    except build.CannotBuild as error:  # no compiler on this machine: the tests that need a compiler report this
        print(error)


if __name__ == "__main__":
    for running in start():
        running.join()
