"""opmux inside other libraries' training programs, by those libraries' own hooks: one module for each library.

A module imports its library, opmux.core, faces and functional; nothing else of opmux imports it. Start with session.py,
which turns opmux on and undoes it for every callback, then transformers.py.
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
