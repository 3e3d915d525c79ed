"""`liger_kernel.transformers`: what depends on the library transformers."""

from __future__ import annotations

import importlib.util


def is_transformers_available() -> bool:
    return importlib.util.find_spec("transformers") is not None
