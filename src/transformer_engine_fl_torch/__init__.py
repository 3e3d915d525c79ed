"""Transformer Engine's compiled core under the name of the TEX interface: `import transformer_engine_fl_torch as tex`.

The same functions, enums and classes as `opmux.tex`, and the same management of backends.
"""

from opmux.faces.tex.interface import module as _module

globals().update({_name: getattr(_module(), _name) for _name in _module().__all__})
__all__ = _module().__all__
__version__ = _module().__version__
