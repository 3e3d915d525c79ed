"""The standard logger `opmux`. It propagates to the root logger, and is silent until a level is set."""

from __future__ import annotations

import logging
import sys

from . import knobs

logger = logging.getLogger("opmux")

FORMAT = "[opmux %(filename)s:%(lineno)d %(levelname)s] %(message)s"


def show(level: str | int) -> None:
    """Show messages of `level` and above; adds a stderr handler only if the program has no handler."""
    logger.setLevel(level)
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)


def from_knobs() -> None:
    """Apply OPMUX_LOG_LEVEL, else OPMUX_DEBUG; if neither is set, change nothing."""
    level = knobs.LOG_LEVEL.get()
    if level is None and knobs.DEBUG.get():
        level = "DEBUG"
    if level is not None:
        show(level)
