"""Provides other libraries' modules: `opmux.compat.install("transformer_engine")`."""

from .faces.compat import CannotServe, install, installed, uninstall

__all__ = ["CannotServe", "install", "installed", "uninstall"]
