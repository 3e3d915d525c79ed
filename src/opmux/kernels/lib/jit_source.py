"""Kernels made from text. Triton reads a kernel's source; `codegen` keeps it where `inspect.getsource` finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl

from ...core import codegen


def jit_from_source(text: str, **names: Any) -> Callable[..., Any]:
    """The one function that the text defines, with `tl` and these globals; ready for `triton.jit`."""
    name = text.partition("(")[0].removeprefix("def ")
    return codegen.function(text, name, f"kernel {name}", {"__name__": __name__, "tl": tl, **names})
