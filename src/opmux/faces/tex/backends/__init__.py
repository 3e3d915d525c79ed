"""The backends of tex in this folder: all modules except `template.py`, imported when a backend is first needed.

To add one, copy `template.py`; importing the copy here in a try block is allowed but not needed. A backend in a
separate package registers itself when its module is imported, through an entry point of the group `opmux.backends` or
through `OPMUX_PLUGIN_MODULES`.
"""

from __future__ import annotations

import importlib
import pkgutil

from ....core.log import logger

BUILT_IN = ("flaggems", "nvidia", "torch_backend")

failed: dict[str, str] = {}  # module -> why its import failed; for the error if a backend is not found


def load() -> None:
    """Register the backends by importing their modules. If a vendor's module fails, the others stay usable."""
    for name in BUILT_IN:
        importlib.import_module(f"{__name__}.{name}")
    for module in pkgutil.iter_modules(__path__):
        if module.name in ("template", *BUILT_IN, *failed):
            continue
        try:
            importlib.import_module(f"{__name__}.{module.name}")
        except Exception as error:  # the vendor's library may be missing here, or broken
            failed[module.name] = f"{type(error).__name__}: {error}"
            logger.debug("tex backend %s/%s: %s", __path__[0], module.name, failed[module.name])
