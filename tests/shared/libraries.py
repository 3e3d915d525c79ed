"""The C++ that opmux compiles on first use, compiled before the tests: none is to wait for it, or to see it said.

`make test` runs this as a program while pip, which has one thread, installs what is left; a run of pytest compiles
what is still missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def start() -> list[threading.Thread]:
    """A thread for each library; the last one is there when all of them have ended."""
    from opmux.cpp import build
    from opmux.tools import cpp, simulator

    made = [one.compile for one in cpp.libraries()]
    made.append(lambda: build.library("simulator", simulator.sources(), flags=simulator.FLAGS))
    threads = [threading.Thread(target=_make, args=[make]) for make in made]
    for thread in threads:
        thread.start()
    return threads


def _make(make: Callable[[], Any]) -> None:
    from opmux.cpp import build

    try:
        make()
    except build.CannotBuild as error:  # a machine without a compiler: tests that need one say so
        print(error)


if __name__ == "__main__":
    for running in start():
        running.join()
