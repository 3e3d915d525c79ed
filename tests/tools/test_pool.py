"""Processes that work on a list of tasks: one that dies or hangs only loses its current task."""

import os
import sys
import time
from pathlib import Path

import fresh
import pytest

from opmux.tools.runner.pool import Workers

SRC = Path(__file__).parents[2] / "src"


def run(tmp_path, code):
    """Run code in a new process, because this one has threads."""
    script = tmp_path / "script.py"
    script.write_text(code)
    return fresh.run([sys.executable, script], env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_pool_survives_a_crashed_worker(tmp_path):
    start = time.monotonic()
    result = run(tmp_path, """
import os, time
from opmux.tools.runner import pool
pool.PATIENCE = 1.0
def fails(): raise ValueError('no')
tasks = [lambda: 1, lambda: os._exit(3), lambda: time.sleep(60), fails, lambda: 5]
made = dict(pool.Workers(tasks, 2).results(lambda at: None))
print([getattr(made[i], 'why', made[i]) for i in range(5)])
""")  # fmt: skip
    words = "[1, 'took its process down (exit code 3)', 'was stopped after 1 s', 'raised ValueError: no ("
    assert result.stdout.startswith(words) and result.stdout.strip().endswith("5]"), result.stderr
    assert time.monotonic() - start < 50


def test_fresh_processes_are_replaced_too(tmp_path):
    """Tests a crash, a timeout, and a task that ends its process."""
    result = run(tmp_path, """
import contextlib, os, time
from functools import partial
from opmux.tools.runner.pool import Workers

@contextlib.contextmanager
def tasks():
    yield [os.getpid, os.getpid, partial(os._exit, 3), partial(str, "broken"), os.getpid, partial(time.sleep, 60)]

if __name__ == "__main__":
    workers = Workers.fresh(tasks, [[0, 1, 2, 3, 4], [5]], time.monotonic() + 100, lambda made: made == "broken", 5.0)
    made = {at: getattr(outcome, "why", outcome) for at, outcome in workers.results()}
    print(made[2], made[3], made[5], made[0] == made[1], len({made[0], made[4], os.getpid()}), sep=", ")
""")  # fmt: skip
    words = "took its process down (exit code 3), broken, was stopped after 5 s, True, 3\n"
    assert result.stdout == words, result.stderr


def test_one_worker_runs_in_this_process():
    here = Workers([os.getpid, lambda: 1 / 0], 1)
    (_, pid), (_, lost) = here.results(lambda index: None)
    assert pid == os.getpid() and lost.why.startswith("raised ZeroDivisionError: division by zero (")


def test_no_task_starts_after_the_time_limit():
    assert list(Workers([os.getpid], 1, time.monotonic()).results()) == []
