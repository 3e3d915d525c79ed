"""tex functions that run only reference implementations, whatever the policy prefers:
`cpp_extensions.rmsnorm_fwd(...)`.

Each reference is also the specification of its op, so it is in `opmux/specs`, or in `opmux/faces/tex/ops` for functions
without a primitive.
"""

from ....base import METHODS, methods_of
from ..torch_backend import TorchBackend

__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = methods_of(TorchBackend(), __name__)
