"""Transformer Engine's compiled core: `from opmux import tex` has NVIDIA's functions, enums and classes.

The module that replaces this one is built on first use, for the interface version in `OPMUX_TEX_VERSION`, else for the
version of the installed transformer_engine.
"""

import sys

from .faces.tex.interface import module

sys.modules[__name__] = module()
