"""Kernels from generated source.

`codegen` stores the source in linecache, where Triton's `inspect.getsource` finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl

from ...core import codegen


def jit_from_source(text: str, **names: Any) -> Callable[..., Any]:
    """Compile text that defines one function, with `tl` and `names` as globals; `triton.jit` accepts the result."""
    name = text.partition("(")[0].removeprefix("def ")
    return codegen.function(text, name, f"kernel {name}", {"__name__": __name__, "tl": tl, **names})
