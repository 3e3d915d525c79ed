"""Launch plans without launches: what a kernel would do, on this chip or another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from triton import knobs

from ..kernels.lib import config
from ..kernels.lib.compile_only import CHIPS, compiling_for
from ..kernels.lib.launch import Launcher
from ..kernels.lib.plans import forget
from ..runtime.devices import Chip
from . import arguments


@contextlib.contextmanager
def standing_in(chip: str | None) -> Iterator[None]:
    """Plans as on a chip that is not here; None: as here."""
    if chip is None:
        yield
    elif chip not in CHIPS:
        raise arguments.BadArgument(f"--chip {chip!r} is not known. Allowed: {', '.join(CHIPS)}")
    else:
        with config.as_on(Chip.of_arch(chip)) if knobs.runtime.interpret else compiling_for(chip):
            yield


@contextlib.contextmanager
def nothing_launched() -> Iterator[None]:
    """Make plans whose launches are no-ops."""
    before = Launcher.__call__
    Launcher.__call__ = lambda self, grid, args, config: None
    forget()
    try:
        yield
    finally:
        Launcher.__call__ = before
        forget()
