"""tex functions that run only our own kernels, whatever the policy prefers: `cpp_extensions.rmsnorm_fwd(...)`.

The kernels are in other folders, because `opmux.ops` and torch's ops use them too: Triton in `opmux/kernels`, C++ for
the CPU in `opmux/backends/_cpu`. `opmux/faces/tex/ops` calls them with NVIDIA's signatures.
"""

from ....base import METHODS, methods_of
from ..flaggems import FlagGemsBackend

__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = methods_of(FlagGemsBackend(), __name__)
