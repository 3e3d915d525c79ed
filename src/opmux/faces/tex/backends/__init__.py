"""The built-in backends of tex. A vendor's file here needs one more guarded import below.

Copy `template.py` to start. A backend in its own package needs no change here: it registers itself when its module is
imported, through an entry point of the group `opmux.backends` or through `OPMUX_PLUGIN_MODULES`.
"""

from __future__ import annotations

import importlib

BUILT_IN = ("flaggems", "nvidia", "torch_backend")


def load() -> None:
    """Register the built-in backends by importing their modules."""
    for name in BUILT_IN:
        importlib.import_module(f"{__name__}.{name}")
