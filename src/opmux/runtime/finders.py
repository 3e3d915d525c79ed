"""Adds and removes finders of modules while other threads import.

An import walks through `sys.meta_path`: if another thread removes a finder from that list, it skips the next one, and a
module that exists is not found. Each change makes a new list instead.
"""

from __future__ import annotations

import sys
from typing import Any

from ..core.lock import lock


def add(finder: Any, last: bool = False) -> None:
    """Ask a finder before all others, or after them."""
    with lock.held:
        sys.meta_path = [*sys.meta_path, finder] if last else [finder, *sys.meta_path]


def remove(finder: Any) -> None:
    """Ask a finder no more."""
    with lock.held:
        sys.meta_path = [other for other in sys.meta_path if other is not finder]
