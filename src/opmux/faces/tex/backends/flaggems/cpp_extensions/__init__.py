"""tex's functions on our own kernels alone, whatever the policy prefers: `cpp_extensions.rmsnorm_fwd(...)`.

The kernels are not in this folder, because `opmux.ops` and torch's ops run on the same ones: Triton in
`opmux/kernels`, C++ for the CPU in `opmux/backends/_cpu`. `opmux/faces/tex/ops` has NVIDIA's signatures over them.
"""

from typing import Any

from ....base import METHODS
from ..flaggems import FlagGemsBackend

_backend = FlagGemsBackend()
__all__ = list(METHODS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in METHODS:
        return getattr(_backend, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
