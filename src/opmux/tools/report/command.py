"""`opmux report`: its options, its progress, and where the page is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...core.errors import quoted
from .. import doctor, explain, screen
from ..arguments import BadOption
from ..warm.model import config_of
from . import facts, model, page

FILE = "opmux-report.html"


@dataclass(frozen=True)
class ReportOptions:
    """The options of `opmux report`."""

    file: Path | None
    model: str | None
    assume: str | None
    force: bool


def run(options: ReportOptions) -> int:
    """Write the report. Returns 1 if something on this machine is broken, as `opmux doctor` does."""
    file = Path(FILE) if options.file is None else options.file
    check_file(file, options.force)
    chip = None if options.assume is None else explain.chip_of(options.assume)
    if chip is not None and chip.vendor == "cpu":
        raise BadOption("--assume cpu is not needed: without an accelerator the report is about the CPU")
    config = None if options.model is None else config_of(options.model)
    file.parent.mkdir(parents=True, exist_ok=True)  # now, so that a wrong path is reported at once
    # The next line forks a process, so it must run before anything uses CUDA.
    at = "" if config is None else model.chip_for_kernels(None if chip is None else chip.arch)
    with screen.progress("now") as bar:
        task = bar.add_task("report", total=5 + (config is not None), now="examining the machine")

        def show(step: str) -> None:
            bar.update(task, advance=1, now=step)

        machine = doctor.examine()
        with explain.assuming(chip) if chip is not None else contextlib.nullcontext():
            of_model = None if config is None else lambda: model.examine(str(options.model), config, at)
            found = facts.collect(machine, chip is not None, show, of_model)
        show("writing")
        written = page.page(found, datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"))
        screen.write(file, written)
        bar.update(task, advance=1, now="done")
    screen.out().print(str(file.absolute()), soft_wrap=True, markup=False)
    return int(bool(machine.broken))


def check_file(file: Path, force: bool) -> None:
    """Raise if a file cannot be written, or would overwrite something that is not a report."""
    if not str(file).strip() or file.is_dir():
        raise BadOption(f"{quoted(str(file))} is a folder. Name a file, such as {FILE}")
    if file.exists() and not force and not is_report(file):
        raise BadOption(f"{quoted(str(file))} exists and is no report. Name another file, or replace it with --force")


def is_report(file: Path) -> bool:
    with file.open("rb") as opened:
        return f"<title>{page.TITLE}".encode() in opened.read(1000)
