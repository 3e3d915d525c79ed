"""The logger `opmux`: standard, propagating, silent until a level is asked for."""

from __future__ import annotations

import logging
import sys

from . import knobs

logger = logging.getLogger("opmux")

FORMAT = "[opmux %(filename)s:%(lineno)d %(levelname)s] %(message)s"


def show(level: str | int) -> None:
    """Let lines of `level` and above appear; add a stderr handler only where the program has none of its own."""
    logger.setLevel(level)
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)


def from_knobs() -> None:
    """Obey OPMUX_LOG_LEVEL (an explicit level wins), else OPMUX_DEBUG; without either, change nothing."""
    level = knobs.LOG_LEVEL.get()
    if level is None and knobs.DEBUG.get():
        level = "DEBUG"
    if level is not None:
        show(level)
