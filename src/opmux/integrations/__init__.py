"""Hooks that turn opmux on inside other libraries' training programs: one module for each library.

A module imports its library, opmux.core, faces and functional; nothing else of opmux imports it. Read session.py first,
which turns opmux on and off for every callback, then transformers.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import lazy

if TYPE_CHECKING:
    from .lightning import OpmuxLightningCallback as OpmuxLightningCallback
    from .transformers import OpmuxCallback as OpmuxCallback
else:
    __getattr__, __dir__, __all__ = lazy.names(
        __name__, {"transformers": "OpmuxCallback", "lightning": "OpmuxLightningCallback"}
    )
