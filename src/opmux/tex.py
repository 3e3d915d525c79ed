"""Transformer Engine's compiled core: `from opmux import tex` has NVIDIA's functions, enums and classes.

On first use, this module is replaced by one that is built for the interface version in `OPMUX_TEX_VERSION`, else for
the version of the installed transformer_engine.
"""

import sys

from .faces.tex.interface import module

sys.modules[__name__] = module()
