"""Transformer Engine's compiled core: `from opmux import tex` has NVIDIA's functions, enums and classes.

The module that replaces this one is built on first use, in the version of the interface that is provided
(`OPMUX_TEX_VERSION`, else that of the installed transformer_engine).
"""

import sys

from .faces.tex.interface import module

sys.modules[__name__] = module()
