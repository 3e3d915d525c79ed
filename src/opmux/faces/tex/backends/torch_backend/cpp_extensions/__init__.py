"""tex's functions by their references alone, whatever the policy prefers: `cpp_extensions.rmsnorm_fwd(...)`.

The references are not in this folder, because each is also the specification of its op: see `opmux/specs` and, for
functions that have no primitive, `opmux/faces/tex/ops`.
"""

from typing import Any

from ....base import METHODS
from ..torch_backend import TorchBackend

_backend = TorchBackend()
__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in METHODS:
        return getattr(_backend, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
