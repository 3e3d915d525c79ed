"""Hooks that turn opmux on inside other libraries' training programs: one module for each library.

The modules import their libraries and opmux's core, faces, functional and settings; no other package of opmux imports
them. Read session.py first: it turns opmux on and off for every callback. Then read transformers.py.
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
