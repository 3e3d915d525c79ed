"""tex's functions by their references alone, whatever the policy prefers: `cpp_extensions.rmsnorm_fwd(...)`.

The references are not in this folder, because each is also the specification of its op: see `opmux/specs` and, for
functions that have no primitive, `opmux/faces/tex/ops`.
"""

from ....base import METHODS, methods_of
from ..torch_backend import TorchBackend

__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = methods_of(TorchBackend(), __name__)
