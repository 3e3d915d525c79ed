"""tex functions that run only the references, whatever the policy prefers: `cpp_extensions.rmsnorm_fwd(...)`.

The references are elsewhere, because each is also the specification of its op: see `opmux/specs`, and
`opmux/faces/tex/ops` for functions without a primitive.
"""

from ....base import METHODS, methods_of
from ..torch_backend import TorchBackend

__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = methods_of(TorchBackend(), __name__)
