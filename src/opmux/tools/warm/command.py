"""The command: its options, its progress bar and its summary."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from ...core.errors import quoted
from ...runtime import background
from .. import arguments, screen
from ..arguments import BadArgument
from . import script
from .compiling import At, Result, Workload, assumed, check_installed, check_triton, compile_for, target
from .model import config_of, model_step

LARGEST = 2**40  # tokens; nothing is allocated


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    what: str
    args: list[str]
    batch: int
    length: int
    dtype: str | None
    chip: str | None
    jobs: int | None
    train: bool
    seconds: float


def run(asked: Asked) -> int:
    """Compile, show a progress bar and a summary; the exit code."""
    start = time.perf_counter()
    check_installed()
    at = target(asked.chip)
    workload = _workload(asked)
    check_triton()
    jobs = asked.jobs or background.usable_cores()
    with assumed(at), screen.progress("now") as bar:
        task = bar.add_task(f"{workload.name} on {at.arch}", total=None, now="finding its kernels")

        def show(done: int, total: int, now: str) -> None:
            bar.update(task, completed=done, total=total, now=now)

        result = compile_for(workload.step, at, jobs, show, passes=workload.passes)
    return _report(workload, at, result, time.perf_counter() - start, jobs)


def _report(workload: Workload, at: At, result: Result, seconds: float, jobs: int) -> int:
    out = screen.out()
    where = "" if at.here else f", which is not here: {at.cores} multiprocessors are assumed"
    out.print(Text(f"{workload.name} on {at.chip}{where}"))
    parts = [
        f"{result.compiled} compiled",
        f"{result.cached} in Triton's cache before",
        *([f"{result.shared} compiled by other processes"] if result.shared else []),
        *([f"{len(result.failed)} failed"] if result.failed else []),
    ]
    took = f"{seconds:.1f} s, {screen.count(jobs, 'job')}"
    out.print(Text(f"{screen.count(result.kernels, 'kernel')}: {', '.join(parts)}; {took}"))
    for name, reason in result.failed.items():
        out.print(Text(f"failed: {name}: {reason}"))
    if result.stopped:
        out.print(Text(f"{workload.name} was not run to its end: {result.stopped}"))
        out.print(Text("Kernels that it launches first after that are compiled when it runs."))
    if not result.kernels:
        out.print(Text("It launches no Triton kernel before that." if result.stopped else "It launches no kernel."))
    return int(bool(result.failed) or (bool(result.stopped) and not (workload.may_stop and result.kernels)))


def _workload(asked: Asked) -> Workload:
    for name in ("batch", "length", "jobs"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise BadArgument(f"--{name} {value} is not allowed. Allowed: 1 and more")
    if asked.batch * asked.length > LARGEST:
        raise BadArgument(f"--batch times --length is too large. Allowed: up to {LARGEST} tokens")
    if asked.what.endswith(".py"):
        return script.workload(asked.what, asked.args, asked.seconds)
    if asked.args:
        raise BadArgument(f"{quoted(asked.args[0])} after a model is not expected: only a script takes arguments")
    dtype = None if asked.dtype is None else arguments.dtype(asked.dtype, ("bfloat16", "float16", "float32"))
    config = config_of(asked.what)
    name = asked.what if re.fullmatch(r"[\w.-]+", asked.what) else Path(asked.what).name
    return Workload(name, model_step(config, asked.batch, asked.length, dtype, asked.train))
