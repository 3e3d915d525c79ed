"""Other libraries' module names, served by opmux: `opmux.compat.install("transformer_engine")`."""

from .faces.compat import CannotServe, install, installed, uninstall

__all__ = ["CannotServe", "install", "installed", "uninstall"]
