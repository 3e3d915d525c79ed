"""tex functions that run only our own kernels, whatever the policy prefers: `cpp_extensions.rmsnorm_fwd(...)`.

`opmux.ops` and torch's ops use the same kernels, so these are in other folders: Triton in `opmux/kernels`, C++ for the
CPU in `opmux/backends/_cpu`. `opmux/faces/tex/ops` has NVIDIA's signatures over them.
"""

from ....base import METHODS, methods_of
from ..flaggems import FlagGemsBackend

__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = methods_of(FlagGemsBackend(), __name__)
