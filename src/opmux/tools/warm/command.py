"""`opmux warm`: its options, its progress bar and its summary."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from ...core.errors import quoted
from ...cpp import background
from .. import arguments, screen
from ..arguments import BadOption
from . import script
from .compiling import At, Result, Workload, assumed, check_installed, check_triton, compile_for, target
from .model import config_of, model_step

LARGEST = 2**40  # largest number of tokens; nothing is allocated


@dataclass(frozen=True)
class WarmOptions:
    """The options of `opmux warm`."""

    what: str
    args: list[str]
    batch: int
    length: int
    dtype: str | None
    chip: str | None
    jobs: int | None
    train: bool
    seconds: float


def run(options: WarmOptions) -> int:
    """Compile, and show a progress bar and a summary. Returns the exit code."""
    start = time.perf_counter()
    check_installed()
    at = target(options.chip)
    workload = _workload(options)
    check_triton()
    jobs = options.jobs or background.usable_cores()
    with assumed(at), screen.progress("now") as bar:
        task = bar.add_task(f"{workload.name} on {at.arch}", total=None, now="finding its kernels")

        def show(done: int, total: int, now: str) -> None:
            bar.update(task, completed=done, total=total, now=now)

        result = compile_for(workload.step, at, jobs, show, passes=workload.passes)
    return _report(workload, at, result, time.perf_counter() - start, jobs)


def _report(workload: Workload, at: At, result: Result, seconds: float, jobs: int) -> int:
    out = screen.out()
    where = "" if at.here else f", which is not present: {at.cores} multiprocessors are assumed"
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
        out.print(Text("Kernels that it launches only after that point are compiled when it runs."))
        if not workload.may_stop:
            out.print(Text("If it stops there on a CPU too, sizes in its config contradict each other."))
    if result.too_large:
        kernels = screen.count(result.too_large, "kernel")
        out.print(
            Text(
                f"{kernels} need more shared memory than the chip has: run the command again to compile the "
                "kernels that are launched in their place."
            )
        )
    if not result.kernels:
        out.print(Text("It launches no Triton kernel before that." if result.stopped else "It launches no kernel."))
    return int(bool(result.failed) or (bool(result.stopped) and not (workload.may_stop and result.kernels)))


def _workload(options: WarmOptions) -> Workload:
    for name in ("batch", "length", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise BadOption(f"--{name} {value} is not allowed. Allowed: 1 and more")
    if options.batch * options.length > LARGEST:
        raise BadOption(f"--batch times --length is too large. Allowed: up to {LARGEST} tokens")
    if options.what.endswith(".py"):
        return script.workload(options.what, options.args, options.seconds)
    if options.args:
        raise BadOption(f"{quoted(options.args[0])} after a model is not expected: only a script takes arguments")
    dtype = None if options.dtype is None else arguments.dtype(options.dtype, ("bfloat16", "float16", "float32"))
    config = config_of(options.what, or_script=True)
    name = options.what if re.fullmatch(r"[\w.-]+", options.what) else Path(options.what).name
    return Workload(name, model_step(config, options.batch, options.length, dtype, options.train))
