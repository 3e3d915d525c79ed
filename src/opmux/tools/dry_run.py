"""Makes launch plans without launching, to show what a kernel would launch on this chip or another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from triton import knobs

from ..kernels.lib import config
from ..kernels.lib.compile_only import CHIPS, compiling_for
from ..kernels.lib.launch import Launcher
from ..kernels.lib.plans import forget
from ..machine import vendors
from ..machine.devices import Chip
from . import arguments, tile_checks


@contextlib.contextmanager
def standing_in(chip: str | None) -> Iterator[None]:
    """Make plans for another chip, given by its arch or its vendor. None is this machine's chip."""
    if chip is None:
        yield
        return
    of_vendor = None if chip in CHIPS else tile_checks.of_vendor(chip)
    if chip not in CHIPS and of_vendor is None:
        allowed = f"{', '.join(CHIPS)}, or a vendor: {', '.join(sorted(vendors.known()))}"
        raise arguments.BadOption(f"--chip {chip!r} is not known. Allowed: {allowed}")
    with contextlib.ExitStack() as stack:
        if not knobs.runtime.interpret:
            stack.enter_context(compiling_for(chip if of_vendor is None else _carrier(of_vendor)))
        if of_vendor is not None or knobs.runtime.interpret:
            stack.enter_context(config.as_on(of_vendor or Chip.of_arch(chip)))
        yield


def _carrier(chip: Chip) -> str:
    """A chip with the same warp size for which Triton can make plans without the vendor's compiler."""
    package = vendors.get(chip.vendor or "")
    width = None if package is None else package.info.target(chip.arch).warp_size
    return next((name for name, (target, _) in CHIPS.items() if target.warp_size == width), "sm_90")


@contextlib.contextmanager
def nothing_launched() -> Iterator[None]:
    """In a block, make plans whose launches are no-ops."""
    before = Launcher.__call__
    Launcher.__call__ = lambda self, grid, args, config: None
    forget()
    try:
        yield
    finally:
        Launcher.__call__ = before
        forget()
