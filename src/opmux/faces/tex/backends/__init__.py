"""The backends that come with tex. A vendor's own file here is one more guarded import below.

`template.py` is what to copy. A backend in a package of its own needs no change here: it registers itself when its
module is imported, by an entry point of the group `opmux.backends` or `OPMUX_PLUGIN_MODULES`.
"""

from __future__ import annotations

import importlib

BUILT_IN = ("flaggems", "nvidia", "torch_backend")


def load() -> None:
    """Register the built-in backends; importing a module of one does it."""
    for name in BUILT_IN:
        importlib.import_module(f"{__name__}.{name}")
