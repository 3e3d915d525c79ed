"""Transformer Engine's compiled core: `from opmux import tex` has NVIDIA's functions, enums and classes.

The module that takes this one's place is made when first asked for, in the version of the interface that is served
(`OPMUX_TEX_VERSION`, else that of the installed transformer_engine).
"""

import sys

from .faces.tex.interface import module

sys.modules[__name__] = module()
